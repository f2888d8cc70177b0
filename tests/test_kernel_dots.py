"""Losses over inner products by kernels, in Triton's interpreter, and by their twins in torch, against whole
matrices in float64."""

import sys
from typing import Any

import pytest
import torch
from test_beta import Beta, dense_beta_bce, dense_beta_ce, drawn, pairs_of, slot_keys
from test_kernels import INTERPRETED, interpreted
from test_kernels_more import calls
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from grainline.kernels import launch
from grainline.losses import calibrated
from grainline.losses.calibrated import Divisor, beta_bce, beta_ce, beta_ce_both
from grainline.losses.tiled import kernel_dots
from grainline.losses.tiled.operands import Operands
from grainline.losses.tiled.pair_mask import RowIds, by_first_place
from grainline.types import Mean, rows

HALVES = pytest.mark.parametrize(
    ("half", "bound"), [(torch.float32, 5e-6), (torch.float16, 2e-3)], ids=["exact", "half"]
)
WEIGHTS = pytest.mark.parametrize("weights", [Beta(0.25, 0.3), Beta(0.0)], ids=str)
Inputs = tuple[Tensor, Tensor, RowIds]


class Twins:
    """What `kernels.dots` computes, by torch over whole tiles: for `make test`, which has no Triton."""

    @staticmethod
    def tile(*given: Any) -> tuple[Tensor, Tensor, Tensor]:
        """Logits, which pairs there are, and weights."""
        left, right, row_ids, col_ids, unit, (own, sibling, decay) = given
        group, image, item, slot = (a[:, None] - b for a, b in zip(row_ids.T, col_ids.T, strict=True))
        weight = torch.where(item == 0, own, sibling * torch.exp(-decay * slot.abs()))
        return unit * (left.float() @ right.float().T), group == 0, weight * (image == 0)

    @classmethod
    def sums(cls, *given: Any) -> tuple[Tensor, Tensor]:
        x, real, weight = cls.tile(*given[:-1])
        lse = x.masked_fill(~real, -torch.inf)
        sides = [torch.stack([lse.logsumexp(i), (weight * x).sum(i), weight.sum(i)]) for i in (1, 0)]
        return sides[0], sides[1] if given[-1] else x.new_empty(0)

    @classmethod
    def slopes(cls, *given: Any) -> Tensor:
        x, real, weight = cls.tile(*given[:-3])
        of_rows, of_cols, scale = given[-3:]
        sides = [of_rows.T[:, :, None], *([] if of_cols is None else [of_cols.T[:, None]])]
        by = sum((torch.exp(x - lse) * force - weight * pull for lse, force, pull in sides), 0 * x)
        return (scale * torch.where(real, by, 0.0)).to(given[0].dtype)

    @classmethod
    def binary(cls, *given: Any) -> tuple[Tensor, Tensor]:
        x, real, weight = cls.tile(*given[:-3])
        share, scale, learns = given[-3:]
        same = given[2][:, 1, None] == given[3][:, 1]
        counts, x = torch.where(same, weight, real.to(x.dtype)), torch.where(same, -x, x)
        by = torch.where(same, -counts, counts) * x.sigmoid() * share[:, None] * scale
        return (counts * torch.nn.functional.softplus(x)).sum(1), by[:, : by.shape[1] * learns].to(
            given[0].dtype
        )


@pytest.fixture
def called(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The kernels that were called, in small tiles and small programs. One that is refused raises."""
    names = calls(monkeypatch)
    for name, size in (("HIGH", 40), ("WIDE", 48)):
        monkeypatch.setattr(kernel_dots, name, size)
    if not INTERPRETED:
        monkeypatch.setattr(launch, "use", lambda _: True)
        monkeypatch.setitem(sys.modules, "grainline.kernels.dots", Twins)  # type: ignore[arg-type]
        return names
    from grainline.kernels import dots

    small = {name: ((16, 16), *rest) for name, (_, *rest) in dots.LAUNCH.items()}
    small["sums"] = ((16, 32), *small["sums"][1:])
    monkeypatch.setattr(dots, "LAUNCH", small)
    monkeypatch.setattr(dots, "DEEP", 16)
    return names


def given(dtype: torch.dtype, width: int, group: int | None, scale: float) -> Inputs:
    """Rows of 25 images with 3 texts each: padding, a row of no image, one image twice. Ids in no order"""
    _, _, keys = drawn(25, 3, group)
    v = torch.randn(75, width)
    t = torch.nn.functional.normalize(v + 3 * torch.randn(75, width), dim=1)
    v = scale * torch.nn.functional.normalize(v, dim=1)
    return v.to(dtype).requires_grad_(), t.to(dtype).requires_grad_(), keys


def compare(found: list[Mean], expected: list[Mean], sides: tuple[Inputs, Inputs], bound: float) -> None:
    """Values and gradients of a sum in which each mean counts differently."""
    grads = []
    for means, (v, t, _) in zip((found, expected), sides, strict=True):
        values = [mean.total / mean.number for mean in means]
        loss = sum(((-1.5) ** i * value for i, value in enumerate(values)), v.new_zeros(()))
        grads.append((*values, *torch.autograd.grad(loss, (v, t))))
    for one, other in zip(*grads, strict=True):
        assert float((one - other).norm().detach()) <= bound * float(other.norm().detach())
    for one, other in zip(found, expected, strict=True):
        assert float(one.number) == pytest.approx(float(other.number))


def both_types(monkeypatch: pytest.MonkeyPatch, half: torch.dtype, *args: Any) -> tuple[Inputs, Inputs]:
    """The inputs of a kernel, and the same in float64."""
    monkeypatch.setattr(calibrated, "operands", lambda _: Operands(half))
    v, t, keys = given(torch.float32, *args)
    wide = (x.detach().double().requires_grad_() for x in (v, t))
    return (v, t, keys), (*wide, keys)  # type: ignore[return-value]


@HALVES
@WEIGHTS
@pytest.mark.parametrize("case", [(5, 5, 7.0), (32, None, 14.3), (40, 13, 100.0)], ids=str)
def test_cross_entropy_is_that_of_whole_matrices(
    half: torch.dtype,
    bound: float,
    weights: Beta,
    case: tuple[int, int | None, float],
    called: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ours, exact = both_types(monkeypatch, half, *case)
    bound *= max(1.0, case[2] / 14.3)  # a slope's error is the scale times the cosine's
    v, t, keys = exact
    dense = [dense_beta_ce(x, keys, keys, weights) for x in (v @ t.T, t @ v.T)]
    found = beta_ce_both(*ours[:2], pairs_of(keys, keys, weights))
    compare(list(found), dense, (ours, exact), bound)
    assert called == ["sums", "slopes"]
    part = slice(33, 63)  # local rows of several processes
    local = rows(keys, part)
    one = beta_ce(ours[0][part], ours[1], pairs_of(local, keys, weights))
    other = dense_beta_ce(v[part] @ t.T, local, keys, weights)
    compare([one], [other], (ours, exact), bound)


@HALVES
@WEIGHTS
@pytest.mark.parametrize("divisor", ["rows", "slots"])
@pytest.mark.parametrize("case", [(5, 5, 7.0), (32, None, 14.3), (40, 13, 40.0)], ids=str)
def test_binary_cross_entropy_is_that_of_whole_matrices(
    half: torch.dtype,
    bound: float,
    weights: Beta,
    divisor: Divisor,
    case: tuple[int, int | None, float],
    called: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ours, exact = both_types(monkeypatch, half, *case)
    v, t, keys = exact
    part = slice(0, 50)
    local = rows(keys, part)
    found = beta_bce(ours[0][part], ours[1], pairs_of(local, keys, weights), divisor)
    other = dense_beta_bce(v[part] @ t.T, local, keys, weights, divisor)
    compare([found], [other], (ours, exact), bound * max(1.0, case[2] / 14.3))
    assert called == ["binary"]
    with torch.no_grad():
        again = beta_bce(ours[0][part], ours[1], pairs_of(local, keys, weights), divisor)
    assert torch.equal(again.total, found.total), "without gradients the losses alone"


@pytest.mark.parametrize("scale", [1e-30, 1e-12, 1.0, 1e12])
def test_slopes_of_any_size_stay_in_the_range_of_float16(
    scale: float, called: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (v, t, keys), exact = both_types(monkeypatch, torch.float16, 32, None, 14.3)
    found = beta_ce_both(v, t, pairs_of(keys, keys, Beta(0.5)))
    grads = torch.autograd.grad(scale * found[0].total, (v, t))
    mean = dense_beta_ce(exact[0] @ exact[1].T, keys, keys, Beta(0.5))
    for one, other in zip(grads, torch.autograd.grad(scale * mean.total, exact[:2]), strict=True):
        assert float((one - other).norm()) <= 2e-3 * float(other.norm())
    assert called == ["sums", "slopes"]


def test_small_losses_of_pairs_are_not_lost(called: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """log(1 + e) is 0 in float32 where e is less than the rounding of 1."""
    monkeypatch.setattr(calibrated, "operands", lambda _: Operands(torch.float32))
    v, t = torch.full((20, 1), -18.0).requires_grad_(), torch.ones(20, 1).requires_grad_()
    keys = slot_keys(torch.arange(20), torch.full((20,), -1), 1)
    found = beta_bce(v, t, pairs_of(keys, keys, Beta(0.5)), "rows")
    expected = 20 * torch.log1p(torch.exp(torch.tensor(-18.0).double()))
    assert float(found.total.detach()) == pytest.approx(float(expected), rel=1e-5)
    assert called == ["binary"]


@pytest.mark.parametrize("refused", ["sums", "slopes", "binary"])
def test_torch_computes_what_is_refused(refused: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if not INTERPRETED:
        monkeypatch.setitem(sys.modules, "grainline.kernels.dots", Twins)  # type: ignore[arg-type]
    ours, exact = both_types(monkeypatch, torch.float16, 32, 7, 14.3)
    monkeypatch.setattr(launch, "use", lambda _: True)
    monkeypatch.setattr(launch, "_refused", {refused})
    v, t, keys = exact
    pairs = pairs_of(keys, keys, Beta(0.5))
    if refused == "binary":
        found, dense = (
            [beta_bce(*ours[:2], pairs, "pairs")],
            [dense_beta_bce(v @ t.T, keys, keys, Beta(0.5), "pairs")],
        )
    else:
        found = list(beta_ce_both(*ours[:2], pairs))
        dense = [dense_beta_ce(x, keys, keys, Beta(0.5)) for x in (v @ t.T, t @ v.T)]
    compare(found, dense, (ours, exact), 2e-3)
    assert launch._refused == {refused}


def test_rows_may_lie_in_memory_column_by_column(called: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    (v, t, keys), _ = both_types(monkeypatch, torch.float16, 32, None, 14.3)
    pairs = pairs_of(keys, keys, Beta(0.5))
    turned = [x.detach().T.contiguous().T.requires_grad_() for x in (v, t)]
    for one, other in zip(beta_ce_both(v, t, pairs), beta_ce_both(*turned, pairs), strict=True):
        assert torch.equal(one.total, other.total)
    assert called == ["sums", "sums"]


def test_ids_are_numbered_by_their_first_place() -> None:
    ids = torch.tensor([9, 4, 9, -1, 4, 7])
    assert by_first_place(ids).tolist() == [0, 1, 0, 3, 1, 5]
    assert by_first_place(ids[:0]).tolist() == []
    keys = RowIds(
        torch.tensor([5, -1, 6]), torch.tensor([8, 8, -1]), torch.tensor([0, 0, 1]), torch.arange(3)
    )
    of_rows, of_cols = kernel_dots.described(pairs_of(keys, rows(keys, slice(1, 3)), Beta(0.5)))
    assert of_rows.T.tolist() == [[0, -1, 1], [0, -1, -1], [0, 1, 2], [0, 1, 2]]
    assert of_cols.T.tolist() == [[-2, 1], [-2, -2], [1, 2], [1, 2]]


@interpreted
def test_slopes_have_the_strides_that_a_compiler_expects() -> None:
    from grainline.kernels import dots

    rows, cols, one = torch.randn(5, 16), torch.randn(10, 16), torch.ones(())
    ids = torch.zeros(10, 4, dtype=torch.int32)
    given = rows, cols, ids[:5], ids, one, [1.0, 0.5, 0.0]
    facts = torch.ones(5, 3)

    def both() -> list[Tensor]:
        return [
            dots.slopes(*given, facts, None, one),
            dots.binary(*given, facts[:, 0].contiguous(), one, True)[1],
        ]

    found = both()
    with FakeTensorMode(allow_non_fake_inputs=True):
        fakes = both()
    for x, fake in zip(found, fakes, strict=True):
        assert (x.shape, x.stride()) == (fake.shape, fake.stride()) == ((5, 10), (16, 1))
