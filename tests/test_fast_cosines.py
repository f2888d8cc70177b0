"""Scores of many texts without gradients: images turned into few dimensions against tiles and loops."""

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor

from grainline.nn.patch_selection import scoring
from grainline.nn.patch_selection import selector as selecting
from grainline.nn.patch_selection.selector import FastCosines, Selector, pays
from grainline.nn.patch_selection.types import (
    SelectionConfig,
    SelectionExtra,
    SelectionTexts,
    by_length,
    gumbel_decisions,
    selection_texts,
)
from grainline.nn.pooling import unit
from grainline.types import Clock, Encoded, each, full, rows

PATCHES, WIDTH = 12, 32


def made(branches: Any = "both", dtype: torch.dtype = torch.float64, **changes: Any) -> Selector:
    torch.manual_seed(0)
    beta = changes.pop("beta", 0.4)
    choice = SelectionConfig(0.5, 0.5, beta, branches, "both", **changes)
    selector = Selector(choice, WIDTH, PATCHES).to(dtype)
    for network in (selector.relevance.patches, selector.relevance.words):
        assert network is not None
        torch.nn.init.normal_(network[-1].weight)
    return selector


def sides(n: int = 5, m: int = 11, dtype: torch.dtype = torch.float64) -> tuple[Encoded, Encoded]:
    """Images with class token and description, and texts of 1 to 7 words, the last without any."""
    g = torch.Generator().manual_seed(1)
    patches = torch.randn(n, PATCHES + 2, WIDTH, generator=g, dtype=torch.float64).to(dtype)
    words = torch.randn(m, 7, WIDTH, generator=g, dtype=torch.float64).to(dtype)
    length = torch.randint(1, 8, (m,), generator=g)
    length[-1] = 0
    ids, real = torch.arange(n), torch.ones(n).bool()
    extra = SelectionExtra(patches[:, -2], real, patches[:, -1])
    patches = patches[:, :-2]
    images = Encoded(unit(patches.mean(1)), patches, real[:, None].expand(n, PATCHES), ids, ids, extra)
    mask = torch.arange(7) < length[:, None]
    return images, Encoded(unit(words.mean(1)), words, mask, torch.arange(m) * 3, torch.arange(m))


def tiles(selector: Selector, images: Encoded, texts: Encoded, decide: Any = None) -> Tensor:
    """The specification: one tile of everything."""
    decide = decide or selector.top
    with torch.no_grad():
        return selector.tile(selector.load_side(images), selection_texts(texts), decide)


def looped(seen: Any, words: Tensor, kept: Tensor) -> Tensor:
    """Cosines of aggregated patches, pair by pair and slot by slot."""
    n, t, slots = len(kept), len(words), seen.logits.shape[1]
    out = kept.new_zeros(n, t, slots, words.shape[1])
    for i, j, c in itertools.product(range(n), range(t), range(slots)):
        weight = [float(kept[i, j, k]) * float(seen.logits[i, c, k].exp()) for k in range(PATCHES)]
        token = sum(w / sum(weight) * v for w, v in zip(weight, seen.patches[i], strict=True))
        token = token + (seen.slots[i, c] if seen.slots.shape[1] else 0.0)
        out[i, j, c] = words[j] @ token / token.norm()
    return out


@pytest.mark.parametrize("branches", ["both", "sparse", "joint"])
@torch.no_grad()
def test_cosines_are_those_of_tokens_that_a_loop_makes(branches: str) -> None:
    selector, (images, texts) = made(branches), sides()
    seen, told = selector.load_side(images), selection_texts(texts)
    kept = selector.choose(seen, told.query, told.item, selector.top)[1]
    found = FastCosines.of(seen).cosines(told.words[0], kept)
    torch.testing.assert_close(found, looped(seen, told.words[0], kept), rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("room", [1, 3000, 2**22])
@pytest.mark.parametrize("branches", ["both", "sparse", "joint", "dense"])
def test_scores_of_many_texts_are_those_of_tiles(
    branches: str, room: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(scoring.TILE_SIZE, "cpu", room)
    for dtype, error in ((torch.float64, 1e-11), (torch.float32, 1e-5)):
        selector, (images, texts) = made(branches, dtype), sides(dtype=dtype)
        expected = tiles(selector, images, texts)[:, :-1]
        for one in (images, selector.precompute(images)):
            found = scoring.score(selector, one, texts)
            assert found.isfinite().all()
            torch.testing.assert_close(found[:, :-1], expected, rtol=error, atol=error)


def test_many_texts_are_turned_and_few_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    selector, (images, texts) = made(), sides()
    asked = []
    whole = FastCosines.cosines
    monkeypatch.setattr(FastCosines, "cosines", lambda *x: asked.append(len(x[1])) or whole(*x))
    scoring.score(selector, images, rows(texts, slice(0, selecting.MIN_TEXTS - 1)))
    assert asked == []
    scoring.score(selector, images, rows(texts, slice(0, selecting.MIN_TEXTS)))
    assert sum(asked) == selecting.MIN_TEXTS


def test_texts_of_many_words_are_not_turned() -> None:
    """Products with all patches are made for each word, and cost more than they save."""
    selector, (images, texts) = made(), sides()
    seen, told = selector.load_side(images), selection_texts(texts)
    long = told._replace(mask=told.mask.new_ones(1, 11, 500))
    assert pays(seen, told)
    assert not pays(seen, long)


@pytest.mark.parametrize("far", [selecting.MAX_LOGIT_RANGE * 1.1, 500.0])
def test_logits_far_apart_are_left_to_the_exact_softmax(far: float) -> None:
    """The best patch of a slot is dropped by some texts: what remains of the others would be 0 in float32."""
    selector, (images, texts) = made("sparse", torch.float32), sides(dtype=torch.float32)
    assert selector.slots is not None
    seen, told = selector.load_side(images), selection_texts(texts)
    near = seen._replace(logits=seen.logits.clamp(-1, 1))
    apart = seen._replace(logits=torch.where(torch.arange(PATCHES) == 3, far, near.logits))
    assert pays(near, told)
    assert not pays(apart, told)
    with torch.no_grad():
        expected = selector.tile(apart, told, selector.top)
    torch.testing.assert_close(
        scoring.scores(selector, apart, told, selector.top)[:, :-1], expected[:, :-1], atol=1e-5, rtol=1e-5
    )


def test_logits_too_far_apart_for_half_precision_are_left_to_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    selector, (images, texts) = made("sparse", torch.float32), sides(dtype=torch.float32)
    given = selector.load_side(images), selection_texts(texts)
    asked: list[bool] = []
    of = FastCosines.of
    monkeypatch.setattr(FastCosines, "of", lambda side, half: asked.append(half) or of(side, half))
    for far in (selecting.HALF_LOGIT_RANGE, selecting.MAX_LOGIT_RANGE, selecting.MAX_LOGIT_RANGE + 1):
        logits = given[0].logits.clamp(-0.1, 0.1)
        logits[0, 0, 3] = far - 0.2
        scoring.scores(selector, given[0]._replace(logits=logits), given[1], selector.top, half=True)
    assert asked == [True, False]


def test_the_widest_logits_that_are_turned_hold_the_tolerance() -> None:
    selector, (images, texts) = made("sparse", torch.float32), sides(dtype=torch.float32)
    seen, told = selector.load_side(images), selection_texts(texts)
    top = torch.where(torch.arange(PATCHES) == 3, selecting.MAX_LOGIT_RANGE - 1, seen.logits.clamp(-0.5, 0.5))
    seen = seen._replace(logits=top)
    assert pays(seen, told)
    with torch.no_grad():
        expected = selector.tile(seen, told, selector.top)
    found = scoring.scores(selector, seen, told, selector.top)
    torch.testing.assert_close(found[:, :-1], expected[:, :-1], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("branches", ["both", "sparse", "joint"])
@torch.no_grad()
def test_scores_with_products_in_half_precision_are_right_to_a_thousandth(branches: str) -> None:
    selector, (images, texts) = made(branches, torch.float32), sides(dtype=torch.float32)
    exact = tiles(selector, images, texts)[:, :-1]
    for scale in (1.0, 1e6):  # beyond the range of float16
        seen = selector.load_side(images)
        parts = ("patches", "length", "slots", "rest", "cls")
        wide = seen._replace(**{part: scale * getattr(seen, part) for part in parts})
        found = scoring.scores(selector, wide, selection_texts(texts), selector.top, half=True)[:, :-1]
        error = (found - exact).abs().max()
        assert 1e-6 < error < 3e-3


@torch.no_grad()
def test_a_factor_of_inner_products_is_that_of_a_decomposition() -> None:
    """Up to the sign of its columns, of patches that nearly cancel, or are equal, or 0, too."""
    patches = unit(torch.randn(3, 9, 20, dtype=torch.float64))
    patches[1, 1] = 1e-3 * patches[1, 1] - patches[1, 0]
    patches[2, 3:5] = patches[2, 2]
    patches[2, 7] = 0
    patches[0, 8] *= 1e6  # beside which nothing of the others is lost
    found, weight = selecting._factor(patches.float()), torch.randn(3, 50, 9)
    weight[1, :, 2:] = 0
    weight[0, ::2, 8] = 0
    weight[1, :, 1] = weight[1, :, 0]
    assert torch.equal(found, found.tril())
    exact = (weight.double() @ patches.float().double()).norm(dim=-1)
    torch.testing.assert_close((weight @ found).norm(dim=-1).double(), exact, rtol=3e-4, atol=1e-6)
    by_rotation = (weight @ selecting._basis(patches.float())).norm(dim=-1).double()
    torch.testing.assert_close(by_rotation, exact, rtol=3e-4, atol=1e-6)


@pytest.mark.parametrize("gap", [0.1, 1e-3])
@torch.no_grad()
def test_tokens_whose_patches_nearly_cancel_lose_no_more_than_their_sum_does(gap: float) -> None:
    """Two patches of length 1 with a sum as long as the gap, and equal ones; squares lose 1 / gap more."""
    selector, (images, texts) = made("sparse", torch.float64), sides()
    seen, told = selector.load_side(images), selection_texts(texts)
    patches = unit(seen.patches)
    patches[:, 1] = gap * patches[:, 1] - patches[:, 0]
    patches[:, 2:8] = patches[:, 2:3]
    seen = seen._replace(patches=patches, logits=torch.zeros_like(seen.logits))
    kept = torch.zeros(5, 11, PATCHES, dtype=torch.float64)
    kept[..., :2] = 1
    exact = looped(seen, told.words[0], kept)
    torch.testing.assert_close(
        FastCosines.of(seen).cosines(told.words[0], kept), exact, atol=1e-11, rtol=1e-11
    )
    short = type(seen)(*(x.float() if x.is_floating_point() else x for x in seen))
    found = FastCosines.of(short).cosines(told.words[0].float(), kept.float())
    assert float((found - exact).abs().max()) < 4 * torch.finfo(torch.float32).eps / gap


def test_lots_fall_on_pairs_whatever_stands_beside_them() -> None:
    selector, (images, texts) = made(), sides()
    decide = gumbel_decisions(Clock(2, 1.0, 3))
    expected = tiles(selector, images, texts, decide)
    with torch.no_grad():
        seen = selector.image_side(images, selector.top)
    told = selection_texts(texts)
    found = scoring.scores(selector, seen, told, decide)
    torch.testing.assert_close(found[:, :-1], expected[:, :-1], rtol=1e-11, atol=1e-11)
    order = torch.randperm(11, generator=torch.Generator().manual_seed(5))
    mixed = scoring.scores(selector, seen, SelectionTexts(*(x[:, order] for x in told)), decide)
    keep = order != 10
    torch.testing.assert_close(mixed[:, keep], expected[:, order[keep]], rtol=1e-11, atol=1e-11)


def test_half_precision_counts_in_float32() -> None:
    selector, (images, texts) = made(dtype=torch.float32), sides(dtype=torch.float32)
    half = [each(lambda x: x.bfloat16() if x.is_floating_point() else x, side) for side in (images, texts)]
    again = [each(full, side) for side in half]
    found = scoring.score(selector, *half)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found[:, :-1], scoring.score(selector, *again)[:, :-1])


def test_texts_of_a_part_are_alike_in_length_and_lose_what_none_of_them_has() -> None:
    told = selection_texts(sides()[1])
    length = told.mask[0].sum(-1)
    parts = list(by_length(told, 4))
    assert [len(place) for place, _ in parts] == [4, 4, 3]
    assert torch.equal(torch.cat([place for place, _ in parts]).sort().values, torch.arange(11))
    assert torch.equal(torch.cat([length[place] for place, _ in parts]), length.sort().values)
    for place, part in parts:
        most = int(length[place].max())
        assert part.words.shape[2] == part.mask.shape[2] == most
        assert torch.equal(part.words, told.words[:, place, :most])
        assert torch.equal(part.item, told.item[:, place])
    nothing = [x[:, :1] for x in told]
    nothing[2] = torch.zeros_like(nothing[2])
    assert next(by_length(SelectionTexts(*nothing), 4))[1].words.shape[2] == 1
