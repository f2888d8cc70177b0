"""Every loss against the slow loop of its docstring, in float64, in value and gradient."""

import math

import torch
from torch import Tensor

from grainline.distributed import ddp_mean
from grainline.losses.contrastive import both_ways, sigmoid, soft_info_nce
from grainline.methods.base import dot
from grainline.types import Encoded, Pair


def test_soft_info_nce_is_the_loop_of_its_docstring() -> None:
    logits = torch.randn(5, 7)
    weight = torch.rand(5, 7) * (torch.rand(5, 7) > 0.6)
    logits[:, 6], weight[:, 6], weight[4] = -torch.inf, 0.0, 0.0
    fast, slow = logits.clone().requires_grad_(), logits.double().requires_grad_()
    total, number = torch.zeros((), dtype=torch.float64), 0
    for i in range(5):
        if weight[i].sum() > 0:
            target = weight[i] / weight[i].sum()
            log_prob = slow[i].log_softmax(0)
            total = total - sum(t * lp for t, lp in zip(target, log_prob, strict=True) if t > 0)
            number += 1
    mean = soft_info_nce(fast, weight)
    assert int(mean.number) == number
    assert_same(mean.total, fast, total, slow)


def test_sigmoid_is_the_loop_of_its_docstring() -> None:
    logits = 5 * torch.randn(5, 7)
    positive = torch.rand(5, 7) > 0.7
    real = torch.ones(5, 7, dtype=torch.bool)
    real[:, 6], real[4] = False, False
    fast, slow = logits.clone().requires_grad_(), logits.double().requires_grad_()
    total = torch.zeros((), dtype=torch.float64)
    for i in range(5):
        for j in range(7):
            if real[i, j]:
                sign = 1 if positive[i, j] else -1
                total = total + torch.log(1 + torch.exp(-sign * slow[i, j]))
    mean = sigmoid(fast, positive, real)
    assert int(mean.number) == 4
    assert_same(mean.total, fast, total, slow)


def test_rows_of_padding_alone_have_no_gradient_and_no_nan() -> None:
    logits = torch.full((2, 3), -torch.inf, requires_grad=True)
    mean = soft_info_nce(logits, torch.zeros(2, 3))
    mean.total.backward()
    assert (float(mean.total.detach()), int(mean.number)) == (0.0, 0)
    assert torch.equal(logits.grad, torch.zeros(2, 3))


def test_both_ways_is_the_symmetric_loss_of_clip() -> None:
    a, b, key = torch.randn(4, 3), torch.randn(4, 3), torch.arange(4)
    pair = pair_of(a, key, b, key)
    total = sum(float(t.weight * ddp_mean(t.mean)) for t in both_ways(dot, pair, pair).values())
    logits = a @ b.T
    expected = -(logits.log_softmax(1).diag() + logits.log_softmax(0).diag()).mean() / 2
    torch.testing.assert_close(total, float(expected))


def test_both_ways_with_two_captions_of_one_image_by_hand() -> None:
    # one image with two captions, another with one; cosines 1, 0, 0 and 0, 1, 0
    images, texts = torch.eye(2, 3), torch.eye(3)
    pair = pair_of(images, torch.tensor([5, 6]), texts, torch.tensor([5, 6, 6]))
    terms = both_ways(dot, pair, pair)
    first = math.log(math.e + 2) - 1  # one positive of score 1 beside two 0s
    second = math.log(math.e + 2) - 0.5  # positives of score 1 and 0, half the weight each
    torch.testing.assert_close(float(ddp_mean(terms["i2t"].mean)), (first + second) / 2)
    up, flat = math.log(math.e + 1) - 1, math.log(2)
    torch.testing.assert_close(float(ddp_mean(terms["t2i"].mean)), (up + up + flat) / 3)
    assert [term.weight for term in terms.values()] == [0.5, 0.5]


def test_foils_and_padding_ask_for_no_image_and_only_foils_are_candidates() -> None:
    images, key = torch.eye(2, 3), torch.tensor([0, 1])
    texts = torch.stack([torch.eye(3)[0], torch.eye(3)[1], torch.eye(3)[0], torch.eye(3)[0]])
    item, owner = torch.tensor([0, 1, 2, -1]), torch.tensor([0, 1, -1, -1])  # two texts, a foil, padding
    none = torch.zeros(4, 0)
    pair = Pair(pair_of(images, key, images, key).images, Encoded(texts, none, none, item, owner))
    terms = both_ways(dot, pair, pair)
    assert int(terms["t2i"].mean.number) == 2
    rival = math.log(2 * math.e + 1) - 1  # the foil scores as high as the caption
    calm = math.log(math.e + 2) - 1
    torch.testing.assert_close(float(ddp_mean(terms["i2t"].mean)), (rival + calm) / 2)


def pair_of(images: Tensor, image_ids: Tensor, texts: Tensor, text_ids: Tensor) -> Pair:
    none = torch.zeros(len(images), 0)
    number = torch.arange(len(texts))
    return Pair(
        Encoded(images, none, none, image_ids, image_ids),
        Encoded(texts, torch.zeros(len(texts), 0), torch.zeros(len(texts), 0), number, text_ids),
    )


def assert_same(fast_total: Tensor, fast: Tensor, slow_total: Tensor, slow: Tensor) -> None:
    torch.testing.assert_close(fast_total.double(), slow_total, rtol=1e-6, atol=1e-6)
    fast_total.backward()
    slow_total.backward()
    torch.testing.assert_close(fast.grad.double(), slow.grad, rtol=1e-5, atol=1e-6)


def test_smoothed_targets_are_the_loop_of_the_docstring_and_spare_what_is_no_candidate() -> None:
    logits, weight, smoothing = torch.randn(4, 6), torch.rand(4, 6), 0.3
    logits[:, 5], weight[:, 5], weight[3] = -torch.inf, 0.0, 0.0
    fast, slow = logits.clone().requires_grad_(), logits.double().requires_grad_()
    total = torch.zeros((), dtype=torch.float64)
    for i in range(3):
        target = (1 - smoothing) * weight[i] / weight[i].sum()
        for j in range(5):
            total = total - (target[j] + smoothing / 5) * slow[i].log_softmax(0)[j]
    mean = soft_info_nce(fast, weight, smoothing)
    assert int(mean.number) == 3
    assert_same(mean.total, fast, total, slow)
