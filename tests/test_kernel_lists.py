"""Sampled negatives as lists, in which kernels read texts by their places, against loops over pairs."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from make import batch, build
from test_chunked import Waits, assert_near, waits  # noqa: F401, a fixture
from test_kernels import DENSE, HALVES, INTERPRETED, called, interpreted, near  # noqa: F401, a fixture
from test_pooled import CLOCK, Case, assert_same

from grainline.kernels import launch
from grainline.losses import text_conditioned
from grainline.losses.text_conditioned import part_pairs
from grainline.losses.tiled import chunked_cosine, kernel_lists
from grainline.losses.tiled import operands as precision
from grainline.losses.tiled.kernel_lists import NAMES, Counts, count, lists_of, max_pairs
from grainline.losses.tiled.operands import Operands, half_products
from grainline.losses.tiled.pair_mask import (
    Pairs,
    RowIds,
    SampledLists,
    SampledMask,
    sample_negatives,
    without_waits,
)
from grainline.methods import text_parts
from grainline.training.step import Objective
from grainline.types import Clock

SHAPES = pytest.mark.parametrize(  # heads, width, segments
    ("heads", "width", "slots"), [(2, 32, 17), (1, 21, 24), (3, 60, 30)], ids=["two", "odd", "three"]
)


@pytest.fixture
def lists(monkeypatch: pytest.MonkeyPatch) -> list[SampledLists]:
    """The lists that losses are computed with, however many pairs they have."""
    made: list[SampledLists] = []
    real = text_conditioned.lists_of
    monkeypatch.setattr(kernel_lists, "LESS", 0)
    monkeypatch.setattr(text_conditioned, "lists_of", lambda mask: made.append(real(mask)) or made[-1])
    return made


def large(heads: int, width: int, slots: int) -> Case:
    """A case of 90 captions of some 30 images, so that a list falls into several tiles and programs."""
    case, nothing = Case(heads, torch.float32, width=width, slots=slots), torch.zeros(90, dtype=torch.int64)
    image = torch.cat([case.captions.image, torch.randint(-1, 30, (75,))])
    item = torch.arange(90).masked_fill(torch.rand(90) < 0.1, -1)
    case.captions = RowIds(item, image, nothing, nothing)
    case.texts = torch.randn(90, width).requires_grad_()
    return case


def pairs_of(case: Case) -> SampledMask:
    """Its sampled pairs, of a number that the host knows."""
    bound = max_pairs(count(case.captions.item, case.captions.image))
    return part_pairs(case.images, case.captions, "sampled", CLOCK, bound)


def random_ids(seed: int) -> tuple[RowIds, RowIds]:
    """Padding, foils, groups, images without a row, rows without a caption, captions in any order."""
    g, n, m = torch.Generator().manual_seed(seed), 6, 40
    nothing = torch.zeros(m, dtype=torch.int64)
    item = torch.arange(n).masked_fill(torch.rand(n, generator=g) < 0.2, -1)
    rows = RowIds(
        item, torch.randperm(9, generator=g)[:n], torch.randint(0, 2, (n,), generator=g), nothing[:n]
    )
    item = torch.randperm(m, generator=g).masked_fill(torch.rand(m, generator=g) < 0.2, -1)
    image = torch.randint(-1, 9 if seed else 1, (m,), generator=g)  # of seed 0: one image in two groups
    return rows, RowIds(item, image, torch.randint(-1, 2, (m,), generator=g), nothing)


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("at_once", [2**22, 80])  # all rows; two
def test_lists_without_waits_are_those_of_sampled_negatives(
    seed: int, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernel_lists, "AT_ONCE", at_once)
    rows, cols = random_ids(seed)
    expected, bound = sample_negatives(rows, cols, CLOCK), max_pairs(count(cols.item, cols.image))
    mask = without_waits(rows, cols, "sampled", CLOCK)
    found = lists_of(mask._replace(max_pairs=bound))
    assert found.places.shape == (6, min(bound, 40))
    twin, where = expected.where(), found.where()
    for i in range(6):
        for a, b in ((where.real, twin.real), (where.same, twin.same)):
            assert found.places[i][a[i]].tolist() == sorted(expected.places[i][b[i]].tolist())
    assert torch.equal(where.weight, where.same.float())
    real = where.real.sum(1)
    assert (where.real == (torch.arange(found.wide) < real[:, None])).all(), "none are at the end"
    assert int(real.max()) <= bound
    with pytest.raises(RuntimeError, match="an image has more pairs than its list has places"):
        lists_of(mask._replace(max_pairs=int(real.max()) - 1))


def test_lists_of_nothing_are_empty() -> None:
    rows, cols = random_ids(1)
    none = RowIds(*(x[:0] for x in cols))
    assert max_pairs(count(none.item, none.image)) == 0
    assert lists_of(without_waits(rows, none, "sampled", CLOCK)).places.shape == (6, 0)
    empty = RowIds(*(x[:0] for x in rows))
    assert lists_of(without_waits(empty, cols, "sampled", CLOCK)).places.shape == (0, 40)


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("ranks", [1, 2, 5])
def test_no_image_has_more_pairs_than_follows_from_what_each_rank_counts(seed: int, ranks: int) -> None:
    rows, cols = random_ids(seed)
    counts = [count(cols.item[rank::ranks], cols.image[rank::ranks]) for rank in range(ranks)]
    bound = max_pairs(Counts(*(max(x) for x in zip(*counts, strict=True))), ranks)
    assert int((sample_negatives(rows, cols, CLOCK).places >= 0).sum(1).max()) <= bound


@pytest.mark.parametrize("method", ["caft", "flair"])
def test_methods_know_how_long_a_list_is(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    numbers: list[int] = []

    def pairs(rows: RowIds, cols: RowIds, negatives: Any, clock: Clock, bound: int) -> Pairs:
        numbers.append(bound)
        assert bound == max_pairs(count(cols.item, cols.image))
        return part_pairs(rows, cols, negatives, clock, bound)

    monkeypatch.setattr(text_parts, "part_pairs", pairs)
    Objective(build(method))(*batch(), CLOCK)
    assert numbers[0] > 1


@interpreted
@SHAPES
@pytest.mark.parametrize("tiles", [1, 3])
@pytest.mark.parametrize("made", [Case, large])
def test_losses_by_lists_are_those_of_a_loop_over_pairs(
    heads: int,
    width: int,
    slots: int,
    tiles: int,
    made: Any,
    called: list[str],  # noqa: F811
    lists: list[SampledLists],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(text_conditioned, "operands", lambda _: Operands(torch.float32))
    case = large(heads, width, slots) if made is large else Case(heads, torch.float32, width, slots)
    pairs = pairs_of(case)
    if tiles > 1:  # two images each
        monkeypatch.setattr(chunked_cosine, "ROOM", 2 * pairs.max_pairs * 4 * 4 * width)
    assert_same(case.fast(pairs), case.slow("sampled"), case.learnt(), 1e-5, 5e-4)
    assert called == ["lists", "unlists"] * tiles
    assert len(lists) == 1
    assert lists[0].wide == pairs.max_pairs < len(case.texts)


@interpreted
@SHAPES
def test_losses_by_lists_in_half_precision_are_near_and_the_same_bits_in_each_run(
    heads: int,
    width: int,
    slots: int,
    called: list[str],  # noqa: F811
    lists: list[SampledLists],
) -> None:
    case = large(heads, width, slots)
    expected = case.fast(pairs_of(case))
    assert called == [], "float32 stays float32"
    with half_products(True):
        both = [case.fast(pairs_of(case)) for _ in range(2)]
    assert called == 2 * ["lists", "unlists"]
    assert not torch.equal(both[0].total, expected.total)
    assert_near(both[0], expected, case.learnt())
    one, other = (torch.autograd.grad(x.total, case.learnt()) for x in both)
    assert torch.equal(both[0].total, both[1].total)
    assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))
    assert len(lists) == 2


@interpreted
@pytest.mark.usefixtures("called")
@HALVES
@pytest.mark.parametrize("width", [21, 300])
@pytest.mark.parametrize("weighted", [False, True])
def test_sums_over_the_pairs_of_a_text_are_those_of_torch(
    width: int, weighted: bool, half: torch.dtype
) -> None:
    from grainline.kernels.lists import collect, invert

    places = torch.randint(-1, 9, (7, 40))
    places[places == 4] = 3  # a text without a pair
    x, weight = torch.randn(7, 40, width).to(half), torch.randn(7, 40)
    pair, start = invert(places, 9)
    assert torch.equal(pair, places.flatten().argsort(stable=True))
    out, total = collect(x, weight if weighted else None, pair, start)
    by = weight.double() if weighted else torch.ones(7, 40).double()
    hit = (places[..., None] == torch.arange(9)).double()
    near(out, torch.einsum("rct,rc,rcd->td", hit, by, x.double()), torch.float32)
    assert not out[4].any()
    assert len(total) == 9 * weighted
    if weighted:
        near(total, torch.einsum("rct,rc->t", hit, by), torch.float32)


@interpreted
def test_the_host_waits_for_nothing_with_lists(
    waits: Waits,  # noqa: F811
    called: list[str],  # noqa: F811
    lists: list[SampledLists],
) -> None:
    case = large(2, 32, 17)
    bound = pairs_of(case).max_pairs
    waits.put([case.segments, case.texts, *case.captions, *case.pool.parameters()])
    with waits, half_products(True):
        case.fast(case.pairs("sampled"))
        assert "lists" not in called, "the host does not know how long they are"
        called.clear()
        case.fast(part_pairs(case.images, case.captions, "sampled", CLOCK, bound)).total.backward()
    assert len(lists) == 1
    assert called == ["lists", "unlists"]
    assert waits.files == set()


@pytest.mark.parametrize("refused", [NAMES, *([x] for x in NAMES if INTERPRETED)], ids=",".join)
def test_torch_computes_lists_that_are_refused_and_the_next_step_has_a_mask(
    refused: Sequence[str], lists: list[SampledLists], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch, "use", lambda _: True)
    monkeypatch.setattr(launch, "_refused", {*refused, *DENSE})
    for place in (text_conditioned, precision):
        monkeypatch.setattr(place, "on_gpu", lambda _: True)
    monkeypatch.setattr(text_conditioned, "operands", lambda _: Operands(torch.float32))
    case = large(3, 60, 30)
    for here in (False, True):
        with monkeypatch.context() as patch:
            if not here:  # as where it was refused in this step
                patch.setattr(launch, "refused", lambda *_: False)
            assert_same(case.fast(pairs_of(case)), case.slow("sampled"), case.learnt(), 1e-5, 5e-4)
        assert len(lists) == 1
