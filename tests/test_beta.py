"""beta-CAL against loops written from its formulas, in float64, and by the numbers worked out by hand."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from grainline.losses.calibrated import Divisor, beta_bce, beta_ce, beta_ce_both, shares_of
from grainline.losses.tiled.pair_loss import SigmoidLoss
from grainline.losses.tiled.pair_mask import PairMatrix, RowIds
from grainline.types import Mean, full, rows

V = torch.tensor([[1.0, 0.0], [0.6, 0.8], [-0.8, 0.6], [0.0, -1.0]])
T = torch.tensor([[0.8, 0.6], [0.0, 1.0], [-1.0, 0.0], [-0.6, -0.8]])
S = 5 * V @ T.T
PADDED, RIVAL = -1, 9  # the item of a slot without a text: out of everything, or left in the denominators


class Beta(NamedTuple):
    """The weights of texts of one image for each other."""

    beta: float
    decay: float = 0.0


def pairs_of(rows: RowIds, cols: RowIds, weights: Beta) -> PairMatrix:
    return PairMatrix(rows, cols, sibling=weights.beta, decay=weights.decay)


def slot_keys(item: Tensor, image: Tensor, slots: int, images: int | None = None) -> RowIds:
    """Keys of texts with item, image [M], `slots` rows for each image in turn; so many images are a group.

    >>> slot_keys(torch.tensor([5, -1, 6, 7]), torch.tensor([0, -1, 1, 1]), 2, 1)[2:]
    (tensor([0, 0, 1, 1]), tensor([0, 1, 0, 1]))
    """
    place = torch.arange(len(item), device=item.device)
    group = torch.zeros_like(place) if images is None else place // (slots * images)
    return RowIds(item, image, group, place % slots)


def dense_beta_ce(logits: Tensor, local: RowIds, gathered: RowIds, weights: Beta) -> Mean:
    """`beta_ce` from the logits [n, M] of any score."""
    logits = full(logits)
    where = pairs_of(local, gathered, weights).where(dtype=logits.dtype)
    share = shares_of(local, gathered).to(logits.dtype)
    mass = where.weight.sum(1)
    asks = mass > 0
    target = where.weight / mass.clamp(min=1e-30)[:, None]
    # A row without positives may hold nothing but -inf: keep its NaN out of the gradient.
    assert where.real is not None
    logits = logits.masked_fill(~where.real & asks[:, None], -torch.inf)
    losses = -(target * logits.log_softmax(1).masked_fill(target == 0, 0.0)).sum(1)
    return Mean((share * losses).sum(), (share * asks).sum())


def dense_beta_bce(logits: Tensor, local: RowIds, gathered: RowIds, weights: Beta, divisor: Divisor) -> Mean:
    """`beta_bce` from the logits [n, M] of any score."""
    logits = full(logits)
    where = pairs_of(local, gathered, weights).where(dtype=logits.dtype)
    counted, among = (x.group >= 0 if divisor == "slots" else x.real() for x in (local, gathered))
    size = torch.stack([(among & (gathered.group == group)).sum() for group in local.group])
    one = counted / size.clamp(min=1).to(logits.dtype)
    share = one if divisor == "rows" else one.square()
    losses = share[:, None] * SigmoidLoss().losses(logits, where)
    return Mean(losses.sum(), one.sum())


def two_by_two(last: int | None = None) -> RowIds:
    """Two images with two texts each; the last slot may be none."""
    item, image = torch.arange(4), torch.tensor([0, 0, 1, 1])
    if last is not None:
        item[3], image[3] = last, -1
    return slot_keys(item, image, 2)


def value(mean: Mean) -> float:
    return float((mean.total / mean.number).detach())


def ce_loop(logits: Tensor, own_rows: RowIds, everyone: RowIds, weights: Beta) -> Tensor:
    """The mean over groups of the mean over valid rows of -sum_j p_ij log softmax_j, entry by entry."""
    groups: dict[int, list[Tensor]] = {}
    for i in range(len(own_rows.item)):
        w = weights_of(i, own_rows, everyone, weights)
        if own_rows.item[i] < 0 or sum(w) == 0:
            continue
        there = [j for j in range(len(w)) if everyone.item[j] >= 0 and everyone.group[j] == own_rows.group[i]]
        log_sum = torch.stack([logits[i, j].exp() for j in there]).sum().log()
        row = sum((w[j] / sum(w) * (log_sum - logits[i, j]) for j in there), torch.zeros(()).double())
        groups.setdefault(int(own_rows.group[i]), []).append(row)
    return torch.stack([torch.stack(actual).mean() for actual in groups.values()]).mean()


def bce_loop(logits: Tensor, own_rows: RowIds, weights: Beta, divisor: Divisor) -> Tensor:
    """The mean over groups of the sum over pairs, divided in one of three ways, entry by entry."""
    values = []
    for group in own_rows.group.unique().tolist():
        total = torch.zeros(()).double()
        here = [i for i in range(len(own_rows.item)) if own_rows.group[i] == group]
        valid = [i for i in here if own_rows.item[i] >= 0]
        for i in valid:
            w = weights_of(i, own_rows, own_rows, weights)
            for j in valid:
                if own_rows.image[i] == own_rows.image[j] and own_rows.image[i] >= 0:
                    total = total + w[j] * (1 + (-logits[i, j]).exp()).log()
                else:
                    total = total + (1 + logits[i, j].exp()).log()
        values.append(
            total / {"rows": len(valid), "pairs": len(valid) ** 2, "slots": len(here) ** 2}[divisor]
        )
    return torch.stack(values).mean()


def weights_of(i: int, own_rows: RowIds, everyone: RowIds, weights: Beta) -> list[float]:
    out = []
    for j in range(len(everyone.item)):
        w = 0.0
        if own_rows.image[i] >= 0 and own_rows.image[i] == everyone.image[j] and everyone.item[j] >= 0:
            w = weights.beta * math.exp(-weights.decay * abs(int(own_rows.slot[i]) - int(everyone.slot[j])))
            if own_rows.item[i] == everyone.item[j]:
                w = 1.0
        out.append(w if own_rows.group[i] == everyone.group[j] else 0.0)
    return out


def drawn(
    images: int = 6, slots: int = 3, group: int | None = 2, dtype: torch.dtype = torch.float64
) -> tuple[Tensor, Tensor, RowIds]:
    """Scaled rows, the other side and keys: with padding, one row of no image, one image twice."""
    number = images * slots
    v, t = (F.normalize(torch.randn(number, 5, dtype=dtype), dim=1) for _ in range(2))
    image = torch.randperm(50)[:images].repeat_interleave(slots)
    item = torch.randperm(number)
    if images > 4:
        image[4 * slots : 5 * slots] = image[5 * slots]
        for place in (1, number - 2):
            item[place], image[place] = -1, -1
        image[2 * slots] = -1
    return (7 * v).requires_grad_(), t.requires_grad_(), slot_keys(item, image, slots, group)


@pytest.mark.parametrize(
    ("beta", "expected"), [(0, 0.384667), (0.25, 0.944667), (0.5, 1.318), (0.75, 1.584667), (1, 1.784667)]
)
def test_cross_entropy_of_four_rows(beta: float, expected: float) -> None:
    keys, weights = two_by_two(), Beta(beta)
    both = beta_ce_both(5 * V, T, pairs_of(keys, keys, weights))
    assert sum(value(mean) for mean in both) / 2 == pytest.approx(expected, abs=1e-5)
    dense = [dense_beta_ce(logits, keys, keys, weights) for logits in (S, S.T)]
    assert sum(value(mean) for mean in dense) / 2 == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize(("beta", "total"), [(0, 3.507513), (0.5, 4.551331), (1, 5.595150)])
def test_binary_cross_entropy_of_four_rows(beta: float, total: float) -> None:
    keys, weights = two_by_two(), Beta(beta)
    for divisor, count in (("rows", 4), ("pairs", 16), ("slots", 16)):
        for a, b in ((5 * V, T), (5 * T, V)):
            assert value(beta_bce(a, b, pairs_of(keys, keys, weights), divisor)) == pytest.approx(
                total / count, abs=1e-5
            )
        dense = dense_beta_bce(S, keys, keys, weights, divisor)
        assert value(dense) == pytest.approx(total / count, abs=1e-5)


def test_padding_is_no_candidate_unless_it_is_given_an_item() -> None:
    for last, expected in ((PADDED, 0.856607), (RIVAL, 0.862056)):
        both = beta_ce_both(5 * V, T, pairs_of(two_by_two(last), two_by_two(last), Beta(0.5)))
        assert sum(value(mean) for mean in both) / 2 == pytest.approx(expected, abs=1e-5)


def test_padding_counts_in_one_divisor_alone() -> None:
    keys = two_by_two(PADDED)
    expected = {"rows": 3.729429 / 3, "pairs": 0.414381, "slots": 0.233089}
    for divisor, number in expected.items():
        assert value(beta_bce(5 * V, T, pairs_of(keys, keys, Beta(0.5)), divisor)) == pytest.approx(
            number, abs=1e-5
        )


def test_weights_fall_with_the_distance_of_slots() -> None:
    keys = slot_keys(torch.arange(12), torch.arange(12) // 6, 6)
    weight = pairs_of(keys, keys, Beta(0.75, 0.05)).where().weight
    expected = [1.0, 0.713422, 0.678628, 0.645531, 0.614048, 0.584101, *[0.0] * 6]
    torch.testing.assert_close(weight[0], torch.tensor(expected), atol=1e-6, rtol=0)
    assert float(weight[2, 0]) == pytest.approx(0.678628, abs=1e-6)
    assert torch.equal(weight, weight.T)


@pytest.mark.parametrize(
    ("weights", "side"), [(Beta(0.0), 512), (Beta(0.5), 4), (Beta(1.0), 5), (Beta(0.75, 0.3), 3)]
)
def test_losses_are_the_loops_in_value_and_gradient(
    weights: Beta, side: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("grainline.losses.tiled.scores.CACHED", side)
    v, t, keys = drawn()
    logits = v @ t.T
    way, back = ce_loop(logits, keys, keys, weights), ce_loop(logits.T, keys, keys, weights)
    slow = torch.autograd.grad(way + 2 * back, (v, t), retain_graph=True)
    first, second = beta_ce_both(v, t, pairs_of(keys, keys, weights))
    actual = first.total / first.number + 2 * second.total / second.number
    assert_close([actual, *torch.autograd.grad(actual, (v, t))], [way + 2 * back, *slow])
    alone = beta_ce(v, t, pairs_of(keys, keys, weights)), beta_ce(t, v, pairs_of(keys, keys, weights))
    assert_close([mean.total / mean.number for mean in alone], [way, back])
    dense = dense_beta_ce(logits, keys, keys, weights)
    assert_close([dense.total / dense.number], [way])
    for divisor in ("rows", "pairs", "slots"):
        slow_bce = bce_loop(logits, keys, weights, divisor)
        fast, dense = (
            beta_bce(v, t, pairs_of(keys, keys, weights), divisor),
            dense_beta_bce(logits, keys, keys, weights, divisor),
        )
        for mean in (fast, dense):
            total = mean.total / mean.number
            grads = torch.autograd.grad(total, (v, t), retain_graph=True)
            slow_grads = torch.autograd.grad(slow_bce, (v, t), retain_graph=True)
            assert_close([total, *grads], [slow_bce, *slow_grads])


def test_groups_are_the_mean_of_separate_losses() -> None:
    v, t, keys = drawn(8, 3, group=2)
    apart = []
    for part in (slice(i, i + 6) for i in range(0, 24, 6)):
        own = rows(keys, part)._replace(group=torch.zeros(6, dtype=torch.int64))
        apart.append(value(beta_ce(v[part], t[part], pairs_of(own, own, Beta(0.5)))))
    assert value(beta_ce(v, t, pairs_of(keys, keys, Beta(0.5)))) == pytest.approx(sum(apart) / 4, abs=1e-12)


@pytest.mark.parametrize("share", [(6, 12), (5, 13), (9, 9)])  # groups of six rows: whole ones, and cut ones
def test_shares_of_rows_against_everyones_add_up(share: tuple[int, int]) -> None:
    v, t, keys = drawn()
    cuts = torch.arange(18).split(list(share))
    for loss in (
        lambda part: beta_ce(v[part], t, pairs_of(rows(keys, part), keys, Beta(0.5))),
        lambda part: beta_bce(v[part], t, pairs_of(rows(keys, part), keys, Beta(0.5)), "slots"),
        lambda part: dense_beta_ce((v @ t.T)[part], rows(keys, part), keys, Beta(0.5)),
        lambda part: dense_beta_bce((v @ t.T)[part], rows(keys, part), keys, Beta(0.5), "pairs"),
    ):
        whole, parts = loss(torch.arange(18)), [loss(part) for part in cuts]
        assert_close([sum(mean.total for mean in parts)], [whole.total])
        assert float(sum(mean.number for mean in parts)) == pytest.approx(3)
        assert float(whole.number) == pytest.approx(3)


def test_a_text_of_padding_changes_nothing_and_learns_nothing() -> None:
    v, t, keys = drawn()
    moved = (t + 3.0 * (keys.item < 0)[:, None]).detach().requires_grad_()
    for loss in (
        lambda t: beta_ce(v, t, pairs_of(keys, keys, Beta(0.5))),
        lambda t: beta_ce_both(v, t, pairs_of(keys, keys, Beta(0.5)))[1],
        lambda t: beta_bce(v, t, pairs_of(keys, keys, Beta(0.5)), "slots"),
    ):
        assert value(loss(moved)) == value(loss(t))
        (grad,) = torch.autograd.grad(loss(moved).total, moved)
        assert torch.equal(grad[keys.item < 0], torch.zeros(2, 5, dtype=torch.float64))


def test_a_batch_of_padding_alone_has_no_loss_and_no_gradient() -> None:
    v, none = torch.randn(4, 3, requires_grad=True), torch.full((4,), -1)
    keys = slot_keys(none, none, 2)
    for mean in (
        *beta_ce_both(v, v, pairs_of(keys, keys, Beta(0.5))),
        dense_beta_ce(v @ v.T, keys, keys, Beta(0.5)),
    ):
        (grad,) = torch.autograd.grad(mean.total, v, retain_graph=True)
        assert (float(mean.total.detach()), float(mean.number)) == (0.0, 0.0)
        assert torch.equal(grad, torch.zeros(4, 3))


def assert_close(actual: Sequence[Tensor], expected: Sequence[Tensor]) -> None:
    for a, b in zip(actual, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-11, atol=1e-12)
