"""SCAN: its score against a loop over words and patches, and what its parts promise."""

import math
from typing import Any

import pytest
import torch
from make import CLOCK, batch, build
from torch import Tensor

from grainline.methods import scan
from grainline.methods.scan import SCAN, scan_score
from grainline.nn.pooling import unit
from grainline.recipes import names
from grainline.training.recipe import read_recipe
from grainline.training.step import step
from grainline.types import Encoded, rows

WAYS = {
    f"{direction}-{pooling}": (f"direction={direction}", f"lambda_softmax={softmax}", f"lambda_lse={lse}")
    for direction, softmax, lses in (("t2i", 9, (6, "null")), ("i2t", 4, (5, "null")))
    for pooling, lse in zip(("lse", "mean"), lses, strict=True)
}


def loop(
    patches: list[Tensor], words: list[Tensor], direction: str, softmax: float, lse: float | None
) -> Tensor:
    """The score of the paper for one pair, with the leaky clipping of its code."""
    queries, context = (words, patches) if direction == "t2i" else (patches, words)
    clipped = [[q @ c if q @ c > 0 else 0.1 * (q @ c) for c in context] for q in queries]
    relevance = []
    for a, q in enumerate(queries):
        fits = []
        for b in range(len(context)):
            length = sum((row[b] ** 2 for row in clipped), torch.zeros(())).sqrt()
            fits.append((softmax * clipped[a][b] / length).exp())
        mean = sum((fit / sum(fits) * c for fit, c in zip(fits, context, strict=True)), torch.zeros(()))
        relevance.append(q @ mean / mean.norm())
    if lse is None:
        return sum(relevance, torch.zeros(())) / len(relevance)
    return sum((lse * r).exp() for r in relevance).log() / lse  # type: ignore[union-attr]


def sides() -> tuple[Encoded, Encoded]:
    """Three images of up to five patches, four texts of up to four words, the last of none."""

    def encoded(number: int, length: int) -> Encoded:
        ids, mask = torch.arange(number), torch.rand(number, length) > 0.3
        mask[:, 1] = True
        tokens = unit(torch.randn(number, length, 6).double()).requires_grad_()
        return Encoded(tokens[:, 0], tokens, mask, ids, ids)

    images, texts = encoded(3, 5), encoded(4, 4)
    texts.mask[3] = False
    return images, texts


def slow(method: SCAN, images: Encoded, texts: Encoded) -> Tensor:
    cfg = method.cfg

    def real(side: Encoded, row: int) -> list[Tensor]:
        return list(side.tokens[row][side.mask[row]])

    pairs = [
        loop(real(images, n), real(texts, m), cfg.direction, cfg.lambda_softmax, cfg.lambda_lse)
        if texts.mask[m].any()
        else torch.zeros((), dtype=torch.float64)
        for n in range(len(images.item))
        for m in range(len(texts.item))
    ]
    return torch.stack(pairs).view(len(images.item), -1)


@pytest.mark.parametrize("room", [1, 700, 2**22])
@pytest.mark.parametrize("way", WAYS)
def test_scores_and_gradients_are_those_of_the_loop(
    way: str, room: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scan, "TILE_SIZE", {"cpu": room})
    method: Any = build("scan", *WAYS[way])
    images, texts = sides()
    fast, expected = method.score(images, texts), slow(method, images, texts)
    torch.testing.assert_close(fast, expected)
    assert torch.equal(fast[:, 3], torch.zeros(3))
    with torch.no_grad():
        torch.testing.assert_close(method.score(images, texts), expected)
    weight = torch.randn(3, 4).double()
    leaves = images.tokens, texts.tokens
    for actual, grad in zip(
        *(torch.autograd.grad((x * weight).sum(), leaves) for x in (fast, expected)), strict=True
    ):
        torch.testing.assert_close(actual, grad)


def test_plain_clipping_ignores_negative_cosines() -> None:
    """One of two patches is against the word: with clipping at 0 its fit is 0, so the weights are known."""
    word, patches = torch.tensor([[[1.0, 0.0]]]), torch.tensor([[[0.6, 0.8], [-0.8, 0.6]]])
    real = torch.ones(1, 1).bool(), torch.ones(1, 2).bool()
    cfg: Any = build("scan", "leaky_cosine=false", "lambda_softmax=2", "lambda_lse=null").cfg
    share = math.exp(2) / (math.exp(2) + 1)  # the fit of the first patch is 1
    mean = share * patches[0, 0] + (1 - share) * patches[0, 1]
    expected = (mean[0] / mean.norm()).view(1, 1)
    torch.testing.assert_close(scan_score(cfg, (word, real[0]), (patches, real[1])), expected)


@pytest.mark.parametrize("way", WAYS)
def test_heat_adds_up_to_the_relevances_of_the_score(way: str) -> None:
    method: Any = build("scan", *WAYS[way])
    images, texts = sides()
    texts = rows(texts, slice(0, 3))
    heat, score = method.heat(images, texts), method.score(images, texts).diagonal()
    assert torch.equal(heat[~images.mask], torch.zeros(int((~images.mask).sum())))
    if way.endswith("mean"):
        torch.testing.assert_close(heat.sum(1), score)
        return
    slope = torch.autograd.grad(score.sum(), images.tokens)[0]
    assert slope.isfinite().all()
    lse = method.cfg.lambda_lse
    alone = build("scan", *WAYS[way], "lambda_lse=1000")  # nearly the greatest relevance
    upper = alone.score(images, texts).diagonal()
    assert (heat.sum(1) <= upper).all()  # a weighted mean of relevances
    assert (score <= upper + math.log(5) / lse).all()


def test_the_loss_of_a_step_is_the_triplets_of_the_loop() -> None:
    method: Any = build("scan", "warmup=0", "coarse=0")
    images, texts = batch()
    method.double()
    images = images._replace(pixels=images.pixels.double())
    a, b = method.encode_images(images), method.encode_texts(texts)
    score, own = slow(method, a, b), b.image[None] == a.image[:, None]
    real = b.item >= 0
    expected = [torch.zeros((), dtype=torch.float64)] * 2
    for m in range(len(b.item)):
        for n in range(4):
            if real[m] and own[n, m]:
                others = [score[n, k] for k in range(len(b.item)) if real[k] and not own[n, k]]
                expected[0] = expected[0] + (0.2 + max(others) - score[n, m]).clamp(min=0)
                rest = [score[k, m] for k in range(4) if k != n]
                expected[1] = expected[1] + (0.2 + max(rest) - score[n, m]).clamp(min=0)
    terms = step(method, images, texts, CLOCK)
    torch.testing.assert_close([terms["i2t"], terms["t2i"]], [x.detach() for x in expected])


def test_the_recipe_of_the_paper_has_its_values() -> None:
    recipe = read_recipe("scan/paper", [])
    model, train = recipe.model, recipe.train
    assert (model["direction"], model["lambda_softmax"], model["lambda_lse"]) == ("t2i", 9.0, 6.0)
    assert (model["margin"], model["warmup"], model["coarse"], model["width"]) == (0.2, 0.0, 0.0, 1024)
    assert (train.global_batch_size, train.grad_clip, train.optimizer.lr) == (128, 2.0, 2e-4)
    assert train.max_steps == 30 * 1133  # 145,000 captions
    assert [name for name in names() if name.startswith("scan/")] == [
        "scan/paper",
        "scan/scenes",
        "scan/vit_224",
    ]
