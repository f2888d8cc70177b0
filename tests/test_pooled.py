"""Losses and scores of images pooled by the text they are compared with, against loops over pairs."""

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from test_pairs import Largest
from torch import Tensor

from grainline.losses import text_conditioned
from grainline.losses.text_conditioned import part_loss, part_pairs, pooled_scores
from grainline.losses.tiled import pair_mask, scores
from grainline.losses.tiled.pair_mask import PairMatrix, RowIds, SampledPairs
from grainline.losses.tiled.scores import ConditionedCosine, half_products
from grainline.nn.hashing import hash_pairs
from grainline.nn.pooling import ConditionedPool, KeyValue
from grainline.types import Clock, Mean

CLOCK = Clock(step=3, seed=11)


class Case:
    """Five images, the last one without any segment and one of padding; captions; foils."""

    def __init__(
        self, heads: int, dtype: torch.dtype = torch.float64, width: int = 12, slots: int = 7
    ) -> None:
        self.pool = ConditionedPool(width, heads).to(dtype)
        with torch.no_grad():
            for p in self.pool.parameters():
                p.add_(0.3 * torch.randn_like(p))
        self.segments = torch.randn(5, slots, width, dtype=dtype).requires_grad_()
        self.mask = torch.rand(5, slots) > 0.3
        self.mask[0], self.mask[4] = True, False
        image = torch.tensor([7, 7, 7, 3, 3, 12, 40, 40, 40, 40, -1, 7, -1, 3, 90])
        item = torch.arange(100, 115)
        item[[4, 12]] = -1
        self.texts = torch.randn(len(image), width, dtype=dtype).requires_grad_()
        self.scale = torch.tensor([9.0], dtype=dtype).requires_grad_()
        self.bias = torch.tensor([-2.0], dtype=dtype).requires_grad_()
        nothing = torch.zeros(5, dtype=torch.int64)
        self.images = RowIds(
            torch.tensor([50, 51, -1, 53, 54]), torch.tensor([40, 7, 3, 3, 12]), nothing, nothing
        )
        zero = torch.zeros_like(item)
        self.captions = RowIds(item, image, zero, zero)

    def learnt(self) -> list[Tensor]:
        return [self.segments, self.texts, self.scale, self.bias, *self.pool.parameters()]

    def pairs(self, negatives: Any, clock: Clock = CLOCK) -> PairMatrix | SampledPairs:
        return part_pairs(self.images, self.captions, negatives, clock)

    def fast(self, pairs: PairMatrix | SampledPairs, rows: slice = slice(None)) -> Mean:
        segments = self.segments[rows], self.mask[rows]
        return part_loss(self.pool, segments, self.texts, pairs, self.scale, self.bias)

    def cosine(self, i: int, j: int) -> Tensor:
        """Of one pair, by the module itself."""
        out = self.pool(self.texts[None, j : j + 1], self.segments[i : i + 1], self.mask[i : i + 1])
        return F.cosine_similarity(out.vector[0, 0], self.texts[j], dim=0)

    def slow(self, negatives: str, clock: Clock = CLOCK) -> Mean:
        total, number = self.texts.new_zeros(()), self.texts.new_zeros(())
        item, image = self.captions.item.tolist(), self.captions.image.tolist()
        for i in range(5):
            if self.images.item[i] < 0:
                continue
            number = number + 1
            for j in range(len(item)):
                if item[j] < 0:
                    continue
                logit = (self.scale * self.cosine(i, j) + self.bias)[0]
                if image[j] == self.images.image[i]:
                    total = total + F.softplus(-logit)
                    continue
                local = [k for k in range(len(item)) if image[k] == image[j] and item[k] >= 0]
                if image[j] < 0:
                    share = 1.0
                elif negatives == "all":
                    share = 1 / len(local)
                else:
                    lot = hash_pairs(clock, self.images.image[i : i + 1], torch.tensor([image[j]]))
                    share = float(local[int(lot) % len(local)] == j)
                total = total + share * F.softplus(logit)
        return Mean(total, number)


WAYS = pytest.mark.parametrize(("heads", "slots"), [(1, 3), (3, 7)])
NEGATIVES = pytest.mark.parametrize("negatives", ["sampled", "all"])


def assert_same(actual: Mean, expected: Mean, learnt: list[Tensor], loss: float, gradient: float) -> None:
    assert float(actual.number) == float(expected.number)
    torch.testing.assert_close(actual.total, expected.total, rtol=loss, atol=0)
    for a, b in zip(
        *(torch.autograd.grad(x.total, learnt, retain_graph=True) for x in (actual, expected)), strict=True
    ):
        assert float((a - b).norm()) <= gradient * float(b.norm()) + gradient * 1e-2


@NEGATIVES
@WAYS
def test_loss_and_all_gradients_are_those_of_a_loop_over_pairs(
    heads: int, slots: int, negatives: str
) -> None:
    case = Case(heads, slots=slots)
    actual, expected = case.fast(case.pairs(negatives)), case.slow(negatives)
    assert_same(actual, expected, case.learnt(), 1e-11, 1e-11)
    assert actual.number == 4


@NEGATIVES
@WAYS
@pytest.mark.parametrize("pairs", [2, 40])
def test_in_tiles_of_any_size(
    heads: int, slots: int, negatives: str, pairs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scores, "CACHED", pairs)  # two texts of one image, or two images and all texts
    case = Case(heads, slots=slots)
    assert_same(case.fast(case.pairs(negatives)), case.slow(negatives), case.learnt(), 1e-11, 1e-11)


def test_tiles_stay_small() -> None:
    case = Case(3, torch.float32, slots=4)
    texts = torch.randn(3000, 12).requires_grad_()
    keys = RowIds(torch.arange(3000), torch.arange(3000) // 4, *(torch.zeros(2, 3000).long()))
    with Largest() as largest:
        pairs = part_pairs(case.images, keys, "all", CLOCK)
        part_loss(case.pool, (case.segments, None), texts, pairs, case.scale, case.bias).total.backward()
    assert largest.most <= 3000 * 12 * 1.1


@WAYS
def test_all_negatives_are_the_mean_over_the_lots(
    heads: int, slots: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = Case(heads, slots=slots)
    actual, sums = case.fast(case.pairs("all")), []
    for lot in range(4):  # images have 4, 2 or 1 captions: each is drawn equally often
        fixed = torch.full((5, 5), lot)
        monkeypatch.setattr(pair_mask, "hash_pairs", lambda *ids, fixed=fixed: fixed[:, : len(ids[2])])
        sums.append(case.fast(case.pairs("sampled")).total)
    mean = Mean(torch.stack(sums).mean(), actual.number)
    assert_same(actual, mean, case.learnt(), 1e-12, 1e-11)
    assert max(sums) > min(sums)


@NEGATIVES
def test_nothing_depends_on_how_images_are_spread_or_ordered(negatives: str) -> None:
    case = Case(3)
    whole = case.fast(case.pairs(negatives))
    parts = []
    for some in (slice(0, 2), slice(2, 3), slice(3, 5)):
        images = RowIds(*(x[some] for x in case.images))
        parts.append(case.fast(part_pairs(images, case.captions, negatives, CLOCK), some))
    split = Mean(sum(x.total for x in parts), sum(x.number for x in parts))
    assert_same(split, whole, case.learnt(), 1e-12, 1e-11)
    order = torch.randperm(len(case.texts))
    captions = RowIds(*(x[order] for x in case.captions))
    pairs = part_pairs(case.images, captions, negatives, CLOCK)
    turned = part_loss(case.pool, (case.segments, case.mask), case.texts[order], pairs, case.scale, case.bias)
    assert_same(turned, whole, case.learnt(), 1e-12, 1e-11)


def test_rows_of_different_groups_never_meet() -> None:
    case = Case(3)
    images = case.images._replace(group=torch.tensor([0, 0, 1, 1, 1]))
    captions = case.captions._replace(group=(case.captions.image % 2 == 0).long())  # 40, 12, 90: 1
    for negatives in ("sampled", "all"):
        pairs = part_pairs(images, captions, negatives, CLOCK)
        where = pairs.where()
        if isinstance(pairs, SampledPairs):
            groups = captions.group[pairs.places.clamp(min=0)]
        else:
            groups = captions.group.expand(5, -1)
        assert not (where.real & (groups != images.group[:, None])).any()
        assert where.real.any()


def test_sampled_pairs_are_a_list_and_no_more_than_that_is_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    case, pairs = Case(3), []
    read = ConditionedCosine.read
    monkeypatch.setattr(
        ConditionedCosine,
        "read",
        lambda self, rows, cols, shared: pairs.append(cols[2].numel()) or read(self, rows, cols, shared),
    )
    case.fast(case.pairs("sampled"))
    # own captions, up to 4; 5 images that have any; a foil: of 15 texts
    assert sum(pairs) == 5 * (4 + 5 + 1)


def test_lots_are_fair_to_captions_and_differ_with_images_steps_and_seeds() -> None:
    rows, cols = torch.arange(200), torch.arange(1000, 1200)
    lot = hash_pairs(CLOCK, rows, cols)
    assert (lot >= 0).all()
    for captions in (2, 3, 5, 8):
        record = torch.bincount((lot % captions).flatten(), minlength=captions).double()
        expected = 40_000 / captions
        assert float(((record - expected) ** 2 / expected).sum()) < 30  # 7 degrees: p < 1e-4
        pair = (lot[:, :-1] % captions) * captions + lot[:, 1:] % captions  # neighbours are independent
        record = torch.bincount(pair.flatten(), minlength=captions**2).double()
        expected = pair.numel() / captions**2
        assert float(((record - expected) ** 2 / expected).sum()) < 130  # 63: p < 1e-5
    assert torch.equal(lot, hash_pairs(CLOCK, rows, cols))
    assert torch.equal(lot[:, 7:9], hash_pairs(CLOCK, rows, cols[7:9]))
    for other in (Clock(4, 0.0, 11), Clock(3, 0.0, 12), Clock(11, 0.0, 3)):
        assert (hash_pairs(other, rows, cols) % 8 == lot % 8).double().mean() < 0.14
    turned = hash_pairs(CLOCK, cols, rows).T
    assert (turned % 8 == lot % 8).double().mean() < 0.14


def test_lots_are_the_same_everywhere_for_ever() -> None:
    actual = hash_pairs(Clock(2, 0.0, 2**70 + 1), torch.tensor([0, -1, 2**62]), torch.tensor([5, 2**40]))
    assert (actual % 1_000_003).tolist() == [[305060, 127173], [221351, 958821], [549977, 250206]]


def test_a_batch_without_captions_of_others_or_without_any_has_a_loss() -> None:
    case = Case(3)
    none = RowIds(*(x[:0] for x in case.captions))
    for negatives in ("sampled", "all"):
        pairs = part_pairs(case.images, none, negatives, CLOCK)
        actual = part_loss(case.pool, (case.segments, None), case.texts[:0], pairs, case.scale, case.bias)
        assert (actual.total, actual.number) == (0, 4)


def test_at_the_start_it_has_the_loss_of_logits_at_the_bias() -> None:
    case = Case(3)
    bias, scale = torch.tensor([-10.0]).double(), torch.tensor([0.0]).double()
    actual = part_loss(case.pool, (case.segments, None), case.texts, case.pairs("sampled"), scale, bias)
    own, others = (
        4 + 4 + 2 + 1,
        4 * (5 - 1),
    )  # captions of the images 40, 7, 3 and 12; of the 5 that have any
    expected = own * math.log1p(math.exp(10)) + (others + 4 * 1) * math.log1p(math.exp(-10))
    assert float(actual.total.detach()) == pytest.approx(expected, rel=1e-12)


def test_autocast_lowers_nothing() -> None:
    case = Case(3, torch.float32)
    expected = case.fast(case.pairs("all"))
    with torch.autocast("cpu", torch.bfloat16):
        actual = case.fast(case.pairs("all"))
    assert torch.equal(actual.total, expected.total)


@pytest.mark.parametrize(("heads", "slots"), [(1, 3), (3, 3), (12, 9)])
@pytest.mark.parametrize("masked", [True, False])
def test_scores_are_sums_over_the_parts_of_a_text(
    heads: int, slots: int, masked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scores, "CACHED", 7)
    case = Case(heads, slots=slots)
    texts, real = case.texts[:12].unflatten(0, (4, 3)).detach(), torch.rand(4, 3) > 0.3
    real[0], real[3] = True, False
    keys = case.pool.keys(case.segments, case.mask)
    learnt = pooled_scores(case.pool, keys, texts, real if masked else None)
    keys = KeyValue(keys.key.detach(), keys.value.detach(), keys.mask)
    actual = pooled_scores(case.pool, keys, texts, real if masked else None)
    assert actual.shape == (5, 4)
    assert learnt.requires_grad
    assert not actual.requires_grad, "weights alone ask for none"
    assert torch.equal(learnt, actual)
    for i in range(5):
        for m in range(4):
            counted = [s for s in range(3) if real[m, s] or not masked]
            total = sum(case.cosine(i, 3 * m + s) for s in counted) * 3 / max(1, len(counted))
            torch.testing.assert_close(actual[i, m], torch.as_tensor(total).double().detach())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("gpu", [False, True])
def test_scores_from_half_precision_are_near_and_in_full(
    dtype: torch.dtype, gpu: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = Case(3, torch.float32)
    with torch.no_grad():
        keys = case.pool.keys(case.segments, case.mask)
        exact = pooled_scores(case.pool, keys, case.texts[:, None])
        monkeypatch.setattr(text_conditioned, "on_gpu", lambda _: gpu)
        near = KeyValue(keys.key.to(dtype), keys.value.to(dtype), keys.mask)
        half = pooled_scores(case.pool, near, case.texts[:, None])
    assert half.dtype == torch.float32
    assert 0 < float((half - exact).abs().max()) < (0.02 if gpu or dtype == torch.bfloat16 else 0.003)


# On a GPU: other tiles, and operands in half precision where training is

GRADIENT = 5e-2  # the worst gradient with operands in bfloat16, at a scale of 9; most are within 1e-2


@pytest.fixture
def as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    for place in (scores, text_conditioned, scores):
        monkeypatch.setattr(place, "on_gpu", lambda _: True)


@NEGATIVES
@WAYS
@pytest.mark.usefixtures("as_on_a_gpu")
@pytest.mark.parametrize("pairs", [1000, 33, 4])  # all in a tile; two images; one image with some texts
def test_tiles_of_a_gpu_have_the_same_loss_and_gradients(
    heads: int, slots: int, negatives: str, pairs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scores, "ROOM", pairs * 4 * heads * (2 * slots + 3 * 12 // heads))
    case = Case(heads, slots=slots)
    rows, cols = (case.pool.keys(case.segments).key,), (case.texts,)
    assert ConditionedCosine().sides(rows, cols, 15) == (max(1, pairs // 15), min(15, pairs))
    assert_same(case.fast(case.pairs(negatives)), case.slow(negatives), case.learnt(), 1e-11, 1e-11)


@NEGATIVES
@WAYS
@pytest.mark.usefixtures("as_on_a_gpu")
@pytest.mark.parametrize(("large", "bias"), [(1.0, -2.0), (1e6, -2.0), (1.0, -25.0)])
def test_half_precision_is_near_whatever_the_size_of_numbers(
    heads: int, slots: int, negatives: str, large: float, bias: float
) -> None:
    """Values and slopes far outside of float16: sigmoid(-25) is 1e-11."""
    case = Case(heads, torch.float32, slots=slots)
    with torch.no_grad():
        case.pool.to_value.weight *= large
        case.pool.to_value.bias *= large
        case.bias.fill_(bias)
    if bias < -2:
        case.captions = case.captions._replace(image=torch.full_like(case.captions.image, -1))
    expected = case.fast(case.pairs(negatives))
    with half_products(True):
        near = case.fast(case.pairs(negatives))
    assert not torch.equal(near.total, expected.total)
    torch.testing.assert_close(near.total, expected.total, rtol=5e-3, atol=0)
    grads = [torch.autograd.grad(x.total, case.learnt(), retain_graph=True) for x in (near, expected)]
    largest = max(float(b.norm()) for b in grads[1])
    for a, b in zip(*grads, strict=True):
        assert float((a - b).norm()) <= GRADIENT * float(b.norm()) + 5e-3 * largest
