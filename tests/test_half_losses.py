"""Losses in training in half precision on a GPU: operands in bfloat16, and what is no product compiled."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from make import CLOCK, batch, build
from torch import Tensor

from grainline.losses.tiled import scores
from grainline.losses.tiled.pair_loss import SigmoidLoss, SoftmaxLoss, pair_loss, vocabulary_loss
from grainline.losses.tiled.pair_mask import PairMatrix, row_ids
from grainline.losses.tiled.scores import Dot, exact, half_operands, half_products, on_gpu
from grainline.methods import METHODS
from grainline.training.step import Objective

HALF = 1e-2


@pytest.fixture(autouse=True)
def as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scores, "on_gpu", lambda _: True)


@pytest.mark.parametrize("method", METHODS)
@torch.no_grad()
def test_texts_that_share_rows_have_the_same_scores(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One of them without tokens, as the parts of a caption may be."""
    images, texts = batch()
    images = images._replace(pixels=images.pixels.double())
    both = []
    for packed in (False, True):
        monkeypatch.setattr("grainline.encoders.text.can_pack", lambda _, packed=packed: packed)
        one = build(method).double().eval()
        both.append(one.score(one.encode_images(images), one.encode_texts(texts)))
    torch.testing.assert_close(*both, rtol=1e-8, atol=1e-9)


def test_operands_are_half_where_training_is(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.zeros(2)
    with exact(x):
        assert not half_operands(x)
    with half_products(True), exact(x):
        assert half_operands(x)
        assert not half_operands(x.double())
    with torch.autocast("cpu", torch.bfloat16), exact(x), exact(x):
        assert not torch.is_autocast_enabled("cpu")
        assert half_operands(x)
    assert not half_operands(x)
    monkeypatch.setattr(scores, "on_gpu", on_gpu)
    with half_products(True):
        assert not half_operands(x), "on a CPU nothing is half"


@pytest.mark.parametrize("loss", [SoftmaxLoss(False), SoftmaxLoss(True), SigmoidLoss()])
def test_inner_products_in_half_precision_are_near(loss: Any) -> None:
    a, b = (F.normalize(torch.randn(9, 8), dim=-1).requires_grad_() for _ in range(2))
    ids = row_ids(torch.arange(9), torch.arange(9) // 2)
    both = []
    for score in (Dot(), Dot(half=True)):
        means = pair_loss(score, loss, (14 * a,), (b,), PairMatrix(ids, ids))
        total = torch.stack([mean.total for mean in means]).sum()
        both.append((total, *torch.autograd.grad(total, (a, b))))
    for exactly, half in zip(*both, strict=True):
        assert 0 < float((exactly - half).detach().norm()) <= HALF * float(exactly.detach().norm())


@pytest.mark.parametrize("precision", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("method", ["flair", "caft", "beta_clip", "tgt"])
def test_losses_of_training_in_half_precision_have_half_operands(
    method: str, precision: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[bool] = []
    real = scores.half_operands
    for place in ("text_conditioned", "calibrated", "tiled.pair_loss"):
        monkeypatch.setattr(
            f"grainline.losses.{place}.half_operands", lambda x: calls.append(real(x)) or calls[-1]
        )
    made = build(method)
    Objective(made, precision)(*batch(), CLOCK).total.backward()
    assert set(calls) == {precision == torch.bfloat16}
    assert all(p.grad is None or p.grad.isfinite().all() for p in made.parameters())


def test_a_vocabulary_in_half_precision_is_near() -> None:
    hidden, table = torch.randn(40, 8).requires_grad_(), (3 * torch.randn(50, 8)).requires_grad_()
    target = torch.randint(-1, 50, (40,))
    both = []
    for allowed in (False, True):
        with half_products(allowed):
            total = vocabulary_loss(hidden, table, target).total
        both.append((total, *torch.autograd.grad(total, (hidden, table))))
    for exactly, half in zip(*both, strict=True):
        assert 0 < float((exactly - half).detach().norm()) <= HALF * float(exactly.detach().norm())


@pytest.mark.parametrize("gpu", [False, True])
def test_a_product_is_in_float32_whatever_its_operands_are(
    gpu: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Leading axes broadcast, as torch.bmm with a type of its own does not."""
    if gpu:
        bmm = torch.bmm
        monkeypatch.setattr(Tensor, "is_cuda", True)
        monkeypatch.setattr(torch, "bmm", lambda a, b, out_dtype: bmm(a.to(out_dtype), b.to(out_dtype)))
    for left, right in (
        ((2, 1, 3, 8), (4, 8, 5)),
        ((3, 8), (8, 5)),
        ((0, 2, 3, 8), (1, 2, 8, 5)),
        ((2, 0, 8), (8, 5)),
    ):
        a, b = torch.randn(left), torch.randn(right)
        half = scores.product(a, b, half=True)
        assert half.dtype == torch.float32
        torch.testing.assert_close(half, a.bfloat16().float() @ b.bfloat16().float())
    a, b, into = torch.randn(3, 8), torch.randn(8, 5), torch.ones(3, 5)
    for operands in (False, True):
        scores.add_product(into, a, b, operands)
    torch.testing.assert_close(into, 1 + a @ b + scores.product(a, b, half=True))
