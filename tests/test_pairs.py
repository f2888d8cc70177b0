"""The tile engine against whole matrices: values, gradients, which tiles it visits and what it stores."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from grainline.losses.tiled.pair_loss import SigmoidLoss, SoftmaxLoss, pair_loss
from grainline.losses.tiled.pair_mask import PairMatrix, RowIds
from grainline.losses.tiled.scores import Dot, Parts, Score
from grainline.methods.maxsim import late_score
from grainline.types import Mean


class Small(Dot):
    """Tiles of 7 x 5, which fit no group and no image."""

    def sides(self, rows: Parts, cols: Parts, wide: int) -> tuple[int, int]:  # noqa: ARG002
        return 7, 5


class Late(Score):
    """Late interaction with a shared matrix, to show what autograd does inside a tile: masks, no gradient."""

    def tile(self, rows: Parts, cols: Parts, shared: Parts) -> Tensor:
        return 4 * late_score(rows[0] @ shared[0], rows[1], cols[0], cols[1], 3.0)

    def sides(self, rows: Parts, cols: Parts, wide: int) -> tuple[int, int]:  # noqa: ARG002
        return 4, 3


def keys_of(number: int, groups: int, offset: int = 0, shuffled: bool = False) -> RowIds:
    """Three rows an image; of eleven rows one is padding, and of thirteen one is of no image."""
    place = torch.arange(offset, offset + number)
    item, image = place.clone(), 90 - place // 3
    image[place % 13 == 5] = -1
    item[place % 11 == 7] = -1
    keys = RowIds(item, image, place * groups // (offset + number + 20), place % 3)
    order = torch.randperm(number) if shuffled else torch.arange(number)
    return RowIds(*(x[order] for x in keys))


def drawn(scale: float, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    a, b = (F.normalize(torch.randn(number, 6, dtype=torch.float64), dim=1) for number in (40, 52))
    return (scale * a).to(dtype).requires_grad_(), b.to(dtype).requires_grad_()


def dense(loss: Any, logits: Tensor, blocks: PairMatrix, shares: tuple[Tensor, Tensor]) -> list[Mean]:
    """The same losses from the whole matrix, one row at a time."""
    where = blocks.where(dtype=logits.dtype)
    if isinstance(loss, SigmoidLoss):
        sign = torch.where(where.same, -1.0, 1.0)
        each = (1 + (sign * logits).exp()).log() * torch.where(where.same, where.weight, 1.0) * where.real
        return [Mean((shares[0] * each.sum(1)).sum(), (shares[0] * blocks.rows.real()).sum())]
    actual = []
    for side in range(1 + loss.columns):
        matrix, weight, real = (x.T if side else x for x in (logits, where.weight, where.real))
        total, number = torch.zeros((), dtype=logits.dtype), torch.zeros((), dtype=logits.dtype)
        for i in range(len(matrix)):
            if weight[i].sum() > 0:
                log_prob = matrix[i][real[i]].log_softmax(0)
                target = weight[i][real[i]] / weight[i].sum()
                total = total - shares[side][i] * (target * log_prob).sum()
                number = number + shares[side][i]
        actual.append(Mean(total, number))
    return actual


LOSSES = [SigmoidLoss(), SoftmaxLoss(False), SoftmaxLoss(True)]
NAMES = ["logistic", "rows", "both"]


@pytest.mark.parametrize("shuffled", [False, True])
@pytest.mark.parametrize("loss", LOSSES, ids=NAMES)
@pytest.mark.parametrize(("scale", "dtype"), [(100.0, torch.float64), (14.3, torch.float32)])
def test_tiles_are_the_whole_matrix(loss: Any, scale: float, dtype: torch.dtype, shuffled: bool) -> None:
    v, t = drawn(scale, dtype)
    blocks = PairMatrix(keys_of(40, 3, shuffled=shuffled), keys_of(52, 3, shuffled=shuffled), 1.0, 0.4, 0.2)
    shares = torch.rand(40, dtype=dtype), torch.rand(52, dtype=dtype)
    actual = pair_loss(Small(), loss, (v,), (t,), blocks, shares=shares)
    slow = dense(loss, v @ t.T, blocks, shares)
    exact = {"rtol": 1e-11, "atol": 1e-11} if dtype == torch.float64 else {"rtol": 1e-5, "atol": 1e-5}
    for mean, expected in zip(actual, slow, strict=True):
        torch.testing.assert_close(mean.total, expected.total, **exact)
        torch.testing.assert_close(mean.number, expected.number, **exact)
    both = [sum((k + 1) * mean.total for k, mean in enumerate(means)) for means in (actual, slow)]
    for a, b in zip(*(torch.autograd.grad(x, (v, t)) for x in both), strict=True):
        torch.testing.assert_close(a, b, **exact)


@pytest.mark.parametrize("loss", LOSSES, ids=NAMES)
def test_any_differentiable_score_has_its_gradients_shared_parameters_included(loss: Any) -> None:
    tokens, words = torch.randn(10, 4, 3), torch.randn(8, 2, 3)
    record, report = torch.rand(10, 4) > 0.3, torch.rand(8, 2) > 0.3
    record[:, 0] = report[:, 0] = True
    matrix = torch.randn(3, 3)
    learnt = [x.double().requires_grad_() for x in (tokens, words, matrix)]
    blocks = PairMatrix(keys_of(10, 1), keys_of(8, 1), 1.0, 0.5)

    def fast(tokens: Tensor, words: Tensor, matrix: Tensor) -> list[Mean]:
        return list(pair_loss(Late(), loss, (tokens, record), (words, report), blocks, shared=(matrix,)))

    def slow(tokens: Tensor, words: Tensor, matrix: Tensor) -> list[Mean]:
        logits = Late().tile((tokens, record), (words, report), (matrix,))
        ones = torch.ones(10, dtype=torch.float64), torch.ones(8, dtype=torch.float64)
        return dense(loss, logits, blocks, ones)

    sums = [sum(mean.total for mean in f(*learnt)) for f in (fast, slow)]
    torch.testing.assert_close(sums[0], sums[1])
    for a, b in zip(*(torch.autograd.grad(x, learnt) for x in sums), strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("shuffled", [False, True])
def test_tiles_hold_every_pair_once_and_are_plain_only_where_all_are_negatives(shuffled: bool) -> None:
    blocks = PairMatrix(keys_of(90, 4, shuffled=shuffled), keys_of(60, 4, 15, shuffled=shuffled))
    where = blocks.where()
    visits = torch.zeros(90, 60, dtype=torch.int64)
    tiles = list(blocks.tiles(8, 10))
    for tile in tiles:
        part = tile.rows, tile.cols
        visits[part] += 1
        assert where.real[part].all() or not tile.whole
        assert not (tile.plain and where.same[part].any())
        assert tile.whole or not tile.plain
        here = blocks.where(tile)
        assert torch.equal(here.weight, where.weight[part])
        assert torch.equal(here.same, where.same[part])
    assert (visits[where.real] == 1).all()
    assert visits.max() == 1
    assert shuffled or len(tiles) < 72  # of all


class Largest(TorchDispatchMode):
    """The most elements of any tensor that is made."""

    def __init__(self) -> None:
        super().__init__()
        self.most = 0

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        for x in out if isinstance(out, tuple | list) else (out,):
            if isinstance(x, Tensor):
                self.most = max(self.most, x.numel())
        return out


@pytest.mark.parametrize("loss", LOSSES, ids=NAMES)
def test_the_matrix_of_pairs_is_never_there(loss: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("grainline.losses.tiled.scores.CACHED", 32)
    v = torch.randn(160, 4, requires_grad=True)
    keys = keys_of(160, 1)
    with Largest() as largest:
        sum(mean.total for mean in pair_loss(Dot(), loss, (v,), (v,), PairMatrix(keys, keys))).backward()
    assert largest.most == 8 * 160  # the ids of both sides; a tile is 1,024 numbers, the matrix 25,600


def test_inside_autocast_nothing_is_in_half_precision_and_half_rows_get_half_gradients() -> None:
    v, t = drawn(14.3, torch.float32)
    blocks = PairMatrix(keys_of(40, 1), keys_of(52, 1), 1.0, 0.5)
    for loss in LOSSES:
        plain = pair_loss(Small(), loss, (v,), (t,), blocks)[0].total
        with torch.autocast("cpu", dtype=torch.bfloat16):
            cast = pair_loss(Small(), loss, (v,), (t,), blocks)[0].total
            (grad,) = torch.autograd.grad(cast, v)
        assert torch.equal(plain, cast)
        assert torch.equal(grad, torch.autograd.grad(plain, v)[0])
        half = v.detach().bfloat16().requires_grad_()
        total = pair_loss(Small(), loss, (half,), (t,), blocks)[0].total
        assert total.dtype == torch.float32
        wide = half.detach().float().requires_grad_()
        exact = pair_loss(Small(), loss, (wide,), (t,), blocks)[0].total
        assert torch.equal(total, exact)
        grads = torch.autograd.grad(total, half)[0], torch.autograd.grad(exact, wide)[0].bfloat16()
        assert torch.equal(*grads)


@pytest.mark.parametrize("loss", LOSSES, ids=NAMES)
def test_a_second_derivative_is_refused(loss: Any) -> None:
    v, t = drawn(1.0, torch.float32)
    (mean, *_) = pair_loss(Small(), loss, (v,), (t,), PairMatrix(keys_of(40, 1), keys_of(52, 1)))
    with pytest.raises(RuntimeError, match="differentiable once"):
        torch.autograd.grad(mean.total, v, create_graph=True)


def test_what_is_not_finite_shows_in_the_loss() -> None:
    v, t = drawn(1.0, torch.float32)
    with torch.no_grad():
        t[0, 0] = torch.nan
    for loss in LOSSES:
        assert pair_loss(Small(), loss, (v,), (t,), PairMatrix(keys_of(40, 1), keys_of(52, 1)))[
            0
        ].total.isnan()
