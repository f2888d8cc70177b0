"""Gradients where scores lie within rounding of each other."""

from typing import Any

import pytest
import torch
from make import TINY
from torch import Tensor

from grainline.config import override, parse
from grainline.losses.contrastive import ScoreFn, TripletSchedule, both_triplets
from grainline.methods import patch_words
from grainline.methods.laps import LAPS, LAPSConfig
from grainline.methods.seps import SEPS, SEPSConfig
from grainline.nn.patch_selection import scoring
from grainline.nn.patch_selection.selector import SelectionExtra, selection_texts
from grainline.types import Encoded, Pair

METHODS: dict[str, tuple[Any, Any]] = {"seps": (SEPS, SEPSConfig), "laps": (LAPS, LAPSConfig)}
SMALL = ("image.size=16", "keep_ratio=0.4", "aggregation_ratio=0.5", "coarse=0")


def made(name: str, dtype: torch.dtype) -> Any:
    cls, config = METHODS[name]
    torch.manual_seed(0)
    return cls(parse(config, override(TINY, list(SMALL)), "test")).to(dtype).eval()


def alike(method: Any, number: int, spread: float, dtype: torch.dtype) -> tuple[Pair, tuple[Tensor, Tensor]]:
    """Images and texts that are nearly one image and one text, and the leaves of their tokens."""
    g = torch.Generator().manual_seed(1)
    selector = method.selector
    image = torch.randn(selector.number + 2, selector.width, generator=g)
    text = torch.randn(5, selector.width, generator=g)
    record, report = (
        (one + spread * torch.randn(number, *one.shape, generator=g)).to(dtype).requires_grad_()
        for one in (image, text)
    )
    patches, cls, description = record[:, :-2], record[:, -2], record[:, -1]  # only SEPS reads the last
    real = torch.ones(number, selector.number, dtype=torch.bool)
    extra = SelectionExtra(cls, real[:, 0], patch_words.unit(description))
    ids, words = torch.arange(number), torch.ones(number, 5, dtype=torch.bool)
    images = Encoded(patch_words.summary(patches, real), patches, real, ids, ids, extra)
    return Pair(images, Encoded(patch_words.summary(report, words), report, words, ids, ids)), (
        record,
        report,
    )


def dense(method: Any, images: Encoded, texts: Encoded) -> Tensor:
    """All scores in one graph."""
    selector = method.selector
    return selector.tile(selector.image_side(images, selector.top), selection_texts(texts), selector.top)


def twice(method: Any) -> ScoreFn:
    """Scores as training computes them."""
    return scoring.graded(method.selector, method.selector.top)


def gradient(
    method: Any, pair: Pair, leaves: tuple[Tensor, ...], rule: TripletSchedule, score: ScoreFn
) -> Tensor:
    """By patches, words and all that the selection learns, in one row."""
    terms = both_triplets(score, pair, pair, rule, 1.0).values()
    loss = torch.stack([term.mean.total / term.mean.number for term in terms]).sum()
    learn = [*leaves, *method.selector.parameters()]
    actual = torch.autograd.grad(loss, learn, allow_unused=True, retain_graph=True)
    return torch.cat(
        [
            torch.zeros_like(x).flatten() if g is None else g.flatten()
            for g, x in zip(actual, learn, strict=True)
        ]
    )


@pytest.mark.parametrize("hardest", [True, False], ids=["hardest", "all"])
@pytest.mark.parametrize("name", METHODS)
def test_near_ties_have_the_gradient_of_a_dense_pass(name: str, hardest: bool) -> None:
    """In float32, where scores about 2 are 2e-7 apart at least and these spread by less."""
    method, rule = made(name, torch.float32), TripletSchedule(0.2, hardest, 1.0)
    pair, leaves = alike(method, 16, 1e-7, torch.float32)
    with torch.no_grad():
        exact = made(name, torch.float64)
        assert float(dense(exact, *alike(exact, 16, 1e-7, torch.float64)[0]).std()) < 1e-7
    actual = gradient(method, pair, leaves, rule, twice(method))
    expected = gradient(method, pair, leaves, rule, lambda a, b, _: dense(method, a, b))
    assert float(torch.cosine_similarity(actual, expected, dim=0)) >= 0.999


@pytest.mark.parametrize("most", [0.0, 1.0], ids=["all again", "some again"])
@pytest.mark.parametrize("hardest", [True, False], ids=["hardest", "all"])
@pytest.mark.parametrize("name", METHODS)
def test_rounding_of_the_first_pass_decides_nothing(
    name: str, hardest: bool, most: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scores of the first pass are off by more than they lie apart; gradients are those of a dense pass."""
    first = scoring.scores

    def rounded(*arguments: Any) -> Tensor:
        score = first(*arguments)
        noise = torch.rand(score.shape, generator=torch.Generator().manual_seed(2), dtype=score.dtype)
        return score + 4e-5 * (noise - 0.5)

    monkeypatch.setattr(scoring, "scores", rounded)
    monkeypatch.setattr(scoring, "DENSE_FROM", most)
    monkeypatch.setitem(scoring.TILE_SIZE, "cpu", 2000)  # in several tiles
    method, rule = made(name, torch.float64), TripletSchedule(0.2, hardest, 1.0)
    pair, leaves = alike(method, 8, 1e-5, torch.float64)
    actual = gradient(method, pair, leaves, rule, twice(method))
    expected = gradient(method, pair, leaves, rule, lambda a, b, _: dense(method, a, b))
    torch.testing.assert_close(actual, expected, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("hardest", [True, False], ids=["hardest", "all"])
def test_pairs_far_from_the_hardest_are_scored_once(hardest: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    method, rule = made("laps", torch.float64), TripletSchedule(0.2, hardest, 1.0)
    pair, leaves = alike(method, 16, 1.0, torch.float64)
    again: list[int] = []
    pairs = scoring.pairs

    def counted(selector: Any, record: Any, report: Any, of: tuple[Tensor, Tensor], decide: Any) -> Tensor:
        again.append(len(of[0]))
        return pairs(selector, record, report, of, decide)

    monkeypatch.setattr(scoring, "pairs", counted)
    monkeypatch.setattr(scoring, "DENSE_FROM", 1.0)
    gradient(method, pair, leaves, rule, twice(method))
    assert (again[0] <= 3 * 16) == hardest
