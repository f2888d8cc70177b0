"""MaxSim: its score against the loop of the docstring, and what its parts promise."""

import pytest
import torch
from make import CLOCK, batch, build
from torch import Tensor

from grainline.encoders.towers import distinct_rows
from grainline.methods import maxsim
from grainline.methods.base import dot
from grainline.methods.maxsim import MaxSim, late_heat, late_score
from grainline.nn.pooling import unit
from grainline.training.step import step
from grainline.types import rows

SHARP = 7.0


def slow_best(
    patches: Tensor, image_mask: Tensor, token: Tensor, sharp: float | None = SHARP
) -> tuple[Tensor, Tensor]:
    """The maximum of one token in one image, smooth or plain, and what each real patch adds to it."""
    cosine = torch.stack([patch @ token for patch, real in zip(patches, image_mask, strict=True) if real])
    if sharp is None:
        return cosine.max(), cosine * (cosine == cosine.max())
    weight = (sharp * cosine).exp() / (sharp * cosine).exp().sum()
    return (weight * cosine).sum(), weight * cosine


def slow_score(
    images: Tensor, image_mask: Tensor, texts: Tensor, text_mask: Tensor, sharp: float | None = SHARP
) -> Tensor:
    out = []
    for n in range(len(images)):
        for m in range(len(texts)):
            best = [
                slow_best(images[n], image_mask[n], texts[m, s], sharp)[0]
                for s in range(len(text_mask[m]))
                if text_mask[m, s]
            ]
            out.append(torch.stack(best).mean() if best else torch.zeros((), dtype=images.dtype))
    return torch.stack(out).view(len(images), len(texts))


def sides() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Three images of five patches, four texts of up to three sentences; two of which share one."""
    images, texts = unit(torch.randn(3, 5, 6).double()), unit(torch.randn(4, 3, 6).double())
    texts[1, 2] = texts[0, 0]
    image_mask, text_mask = torch.rand(3, 5) > 0.3, torch.rand(4, 3) > 0.3
    image_mask[:, 0], text_mask[:, 0], text_mask[1, 2], text_mask[3] = True, True, True, False
    return images, image_mask, texts, text_mask


@pytest.mark.parametrize("sharp", [SHARP, None])
@pytest.mark.parametrize("block", [1, 40, maxsim.BLOCK])
def test_the_score_is_the_loop_of_its_docstring(
    block: int, sharp: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(maxsim, "BLOCK", block)
    images, image_mask, texts, text_mask = sides()
    leaves = [(x.clone().requires_grad_(), y.clone().requires_grad_()) for x, y in [(images, texts)] * 2]
    (a, b), (c, d) = leaves
    weight = torch.randn(3, 4).double()
    fast = late_score(a, image_mask, b, text_mask, sharp)
    slow = slow_score(c, image_mask, d, text_mask, sharp)
    torch.testing.assert_close(fast, slow)
    assert torch.equal(fast[:, 3], torch.zeros(3))
    (fast * weight).sum().backward()
    (slow * weight).sum().backward()
    torch.testing.assert_close(a.grad, c.grad)
    shared = torch.ones(4, 3, dtype=torch.bool)
    shared[0, 0] = shared[1, 2] = False
    torch.testing.assert_close(b.grad[shared], d.grad[shared])
    # A shared token is compared once: what both rows would get, the first of them gets.
    torch.testing.assert_close(b.grad[0, 0], d.grad[0, 0] + d.grad[1, 2])
    assert torch.equal(b.grad[1, 2], torch.zeros(6))


@pytest.mark.parametrize("sharp", [SHARP, None])
def test_the_heat_of_a_pair_adds_up_to_its_score(sharp: float | None) -> None:
    images, image_mask, texts, text_mask = sides()
    heat = late_heat(images, image_mask, texts[:3], text_mask[:3], sharp)
    score = late_score(images, image_mask, texts[:3], text_mask[:3], sharp)
    torch.testing.assert_close(heat.sum(1), score.diagonal())
    assert torch.equal(heat[~image_mask], torch.zeros_like(heat[~image_mask]))
    parts = [slow_best(images[0], image_mask[0], texts[0, s], sharp)[1] for s in range(3) if text_mask[0, s]]
    torch.testing.assert_close(heat[0, image_mask[0]], torch.stack(parts).mean(0))


def test_rows_of_one_sum_are_distinguished(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.tensor([[1, 2], [2, 1], [1, 2]])
    monkeypatch.setattr(torch, "randint", lambda *_, **__: torch.ones(2, dtype=torch.int64))
    first, back = distinct_rows(x)
    assert len(first) == 2
    assert torch.equal(x[first][back], x)


def test_a_sentence_is_read_the_same_in_any_caption() -> None:
    method, (_, texts) = build("maxsim"), batch()
    other = texts.ids.clone()
    other[:, 1] = 9
    changed = method.encode_texts(texts._replace(ids=other))
    kept = method.encode_texts(texts)
    torch.testing.assert_close(changed.tokens[:, 0], kept.tokens[:, 0])
    assert not torch.allclose(changed.tokens[0, 1], kept.tokens[0, 1])
    assert kept.mask.tolist() == texts.mask.any(-1).tolist()
    assert kept.tokens[~kept.mask].abs().sum() == 0


def test_sentences_that_texts_share_are_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    method, (_, texts) = build("maxsim"), batch()
    assert isinstance(method, MaxSim)
    texts = texts._replace(ids=texts.ids[:1].expand_as(texts.ids), mask=texts.mask[:1].expand_as(texts.mask))
    read = []
    inner = method.towers.text.forward
    monkeypatch.setattr(
        method.towers.text, "forward", lambda *args: (read.append(len(args[0])), inner(*args))[1]
    )
    tokens = method.encode_texts(texts).tokens
    assert read == [2]
    assert torch.equal(tokens, tokens[:1].expand_as(tokens))
    mask = texts.mask.clone()
    mask[1, 0, 2:] = False  # the same ids are another sentence where they end earlier
    tokens = method.encode_texts(texts._replace(mask=mask)).tokens
    assert read == [2, 3]
    assert not torch.allclose(tokens[0, 0], tokens[1, 0])


def test_vectors_are_trained_for_candidates_and_only_by_their_own_term() -> None:
    terms = {weight: step(build("maxsim", f"coarse={weight}"), *batch(), CLOCK) for weight in (0.0, 0.5)}
    assert {"i2t", "t2i", "coarse i2t", "coarse t2i"} == set(terms[0.5])
    torch.testing.assert_close(terms[0.5]["i2t"], terms[0.0]["i2t"])
    assert float(terms[0.0]["coarse i2t"]) == 0 < float(terms[0.5]["coarse i2t"])
    method = build("maxsim", "coarse=0.5")
    images, texts = batch()
    a, b = method.encode_images(images), method.encode_texts(texts)
    plain = method.scale() * dot(a, b)
    loss = torch.logsumexp(plain[:, b.item >= 0], 1) - plain[torch.arange(4), 2 * torch.arange(4)]
    one = rows(b, b.image >= 0)  # images 1 and 3 have one caption; 0 and 2 are checked through theirs
    assert [(one.image == i).sum() for i in range(4)] == [1, 1, 2, 1]
    two = torch.logsumexp(plain[2, b.item >= 0], 0) - plain[2, 4:6].mean()
    expected = 0.25 * torch.stack([loss[0], loss[1], two, loss[3]]).mean()
    torch.testing.assert_close(terms[0.5]["coarse i2t"], expected)


def test_a_clip_may_score_a_text_by_the_mean_of_its_sentences() -> None:
    """Vectors, scores and gradients against sentences that a plain CLIP reads one by one."""
    images, texts = batch()
    fast, plain = build("clip-sentences").double(), build("clip").double()
    read, image = fast.encode_texts(texts), fast.encode_images(images)
    slow = []
    for text in range(len(texts.item)):
        sentences = [
            plain.encode_texts(
                rows(texts, [text])._replace(ids=ids[None, None], mask=mask[None, None])
            ).vector
            for ids, mask in zip(texts.ids[text], texts.mask[text], strict=True)
            if mask.any()
        ]
        mean = sum(sentences, torch.zeros(1, read.vector.shape[1])) / max(1, len(sentences))
        slow.append(mean / mean.norm().clamp(min=1e-12))
    expected = plain.encode_images(images).vector @ torch.cat(slow).T
    scores = fast.score(image, read)
    torch.testing.assert_close(scores, expected)
    weight = torch.randn_like(scores)
    (scores * weight).sum().backward()
    (expected * weight).sum().backward()
    for (name, a), b in zip(fast.towers.named_parameters(), plain.towers.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad, msg=name)
    assert (read.mask.sum(1) == texts.mask.any(-1).sum(1)).all()
