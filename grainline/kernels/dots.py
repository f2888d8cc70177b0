"""Losses over inner products of two lists of rows, as `losses/tiled/pair_loss.py` has them.

    sums    of exponentials of logits, of weighted logits and of weights, over rows and over columns
    slopes  gradients of cross-entropy by the logits, as operands of the products that follow
    binary  losses of binary cross-entropy, added up over columns, and such gradients

A program computes the logits of a tile and all that becomes of them, while they are in registers: logits and
masks are never in memory. Most tiles hold no two rows of one image, and rows of one group alone. Such a
program finds that out by the least and the greatest of its ids, and skips what is of weights. Each writes its
sums to a place of its own, and they are added afterwards, so the bits are the same in each run.

n rows, m columns of width D. ids [n, 4] and [m, 4] int32: group, image, item and slot (`described`). Operands
are in units (`operands.py`). weights: those of one item, of one image, and its decay by slots
(`PairMatrix.where`).
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from grainline.kernels.launch import FUSION

LOG2E = tl.constexpr(1.4426950408889634)
# Rows and columns of a program, warps and stages: registers suffice on sm_80 and sm_90
# (tests/test_kernels.py).
LAUNCH = {
    "sums": ((128, 128), 4, 3),
    "hits": ((64, 64), 4, 3),
    "slopes": ((64, 64), 4, 3),
    "binary": ((64, 64), 4, 3),
}
DEEP = 64  # of the width, at a time
LENGTHS = ["n", "m", "vectors"]


@triton.jit
def _places(number, axis: tl.constexpr, B: tl.constexpr):
    """The rows of this program, and whether there are such; in place of others it reads the first"""
    place = tl.program_id(axis).to(tl.int64) * B + tl.arange(0, B)
    real = place < number
    return tl.where(real, place, 0), real


@triton.jit
def _logits(
    left, right, unit, row, col,
    D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, PREC: tl.constexpr,
):  # fmt: skip
    acc = tl.zeros([BM, BN], tl.float32)
    for k in range(0, D, BK):
        at = k + tl.arange(0, BK)
        one, other = left + row[:, None] * D + at[None, :], right + col[:, None] * D + at[None, :]
        if D % BK == 0:
            a, b = tl.load(one), tl.load(other)
        else:
            a = tl.load(one, mask=(at < D)[None, :], other=0.0)
            b = tl.load(other, mask=(at < D)[None, :], other=0.0)
        acc = tl.dot(a, tl.trans(b), acc, input_precision=PREC)
    return acc * tl.load(unit)


@triton.jit
def _ids(ids, place, real, none: tl.constexpr):
    """One of the ids of rows; a row that is none meets no other"""
    return tl.where(real, tl.load(ids + 4 * place), none)


@triton.jit
def _groups_and_images(row_ids, col_ids, row, of_row, col, of_col):
    a, b = _ids(row_ids, row, of_row, -1), _ids(col_ids, col, of_col, -2)
    return a, b, _ids(row_ids + 1, row, of_row, -1), _ids(col_ids + 1, col, of_col, -2)


@triton.jit
def _alike(a, b):
    """Whether all rows and columns are of one group"""
    low, high = tl.minimum(tl.min(a, 0), tl.min(b, 0)), tl.maximum(tl.max(a, 0), tl.max(b, 0))
    return low == high


@triton.jit
def _disjoint(i, j):
    """Whether no row is of the image of a column, as far as the least and the greatest say"""
    return (tl.max(i, 0) < tl.min(j, 0)) | (tl.max(j, 0) < tl.min(i, 0))


@triton.jit
def _weights(row_ids, col_ids, row, col, i, j, own, sibling, decay):
    """Of pairs of one image; 0 elsewhere"""
    far = tl.load(row_ids + 4 * row + 3)[:, None] - tl.load(col_ids + 4 * col + 3)[None, :]
    weight = (
        tl.exp2(tl.abs(far).to(tl.float32) * (-LOG2E) * decay) * sibling
    )  # constants behind: Triton 3.9 interprets no others
    one = tl.load(row_ids + 4 * row + 2)[:, None] == tl.load(col_ids + 4 * col + 2)[None, :]
    return tl.where(i[:, None] == j[None, :], tl.where(one, own, weight), 0.0)


@triton.jit
def _store(by, out, of_row, vectors, BM: tl.constexpr, BN: tl.constexpr):
    """A tile of rows of so many vectors of 8; those from column m on are padding, with any values"""
    wide = vectors * 8
    row = tl.program_id(0).to(tl.int64) * BM + tl.arange(0, BM)
    col = tl.program_id(1) * BN + tl.arange(0, BN)
    to = out + row[:, None] * wide + col[None, :]
    tl.store(to, by.to(out.dtype.element_ty), mask=of_row[:, None] & (col < wide)[None, :])


@triton.jit
def _log_sum(x, axis: tl.constexpr):
    top = tl.max(x, axis, keep_dims=True)
    zero = tl.where(top == float("-inf"), 0.0, top)
    total = tl.sum(tl.exp2((x - zero) * LOG2E), axis)
    return tl.log2(tl.where(total == 0, 1.0, total)) / LOG2E + tl.max(x, axis)


@triton.jit(do_not_specialize=LENGTHS)
def _sums(
    left, right, row_ids, col_ids, unit, by_row, by_col, n, m,
    D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, BOTH: tl.constexpr,
    PREC: tl.constexpr,
):  # fmt: skip
    row, of_row = _places(n, 0, BM)
    col, of_col = _places(m, 1, BN)
    x = _logits(left, right, unit, row, col, D, BM, BN, BK, PREC)
    a, b = _ids(row_ids, row, of_row, -1), _ids(col_ids, col, of_col, -2)
    if not _alike(a, b):
        x = tl.where(a[:, None] == b[None, :], x, float("-inf"))
    tl.store(by_row + tl.program_id(1).to(tl.int64) * n + row, _log_sum(x, 1), mask=of_row)
    if BOTH:
        tl.store(by_col + tl.program_id(0).to(tl.int64) * m + col, _log_sum(x, 0), mask=of_col)


@triton.jit(do_not_specialize=LENGTHS)
def _hits(
    left, right, row_ids, col_ids, unit, by_row, by_col, n, m, own, sibling, decay,
    D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, BOTH: tl.constexpr,
    PREC: tl.constexpr,
):  # fmt: skip
    """Sums of weight * logit, and of weights, where there are any"""
    row, of_row = _places(n, 0, BM)
    col, of_col = _places(m, 1, BN)
    i, j = _ids(row_ids + 1, row, of_row, -1), _ids(col_ids + 1, col, of_col, -2)
    if not _disjoint(i, j):
        x = _logits(left, right, unit, row, col, D, BM, BN, BK, PREC)
        weight = _weights(row_ids, col_ids, row, col, i, j, own, sibling, decay)
        part = by_row + tl.program_id(1).to(tl.int64) * n + row
        tl.store(part, tl.sum(weight * x, 1), mask=of_row)
        tl.store(part + tl.num_programs(1).to(tl.int64) * n, tl.sum(weight, 1), mask=of_row)
        if BOTH:
            part = by_col + tl.program_id(0).to(tl.int64) * m + col
            tl.store(part, tl.sum(weight * x, 0), mask=of_col)
            tl.store(part + tl.num_programs(0).to(tl.int64) * m, tl.sum(weight, 0), mask=of_col)


@triton.jit
def _share(x, facts, place, axis: tl.constexpr):
    """exp(x - lse) * force of rows (1) or columns (0)"""
    lse, force = tl.load(facts + 3 * place), tl.load(facts + 3 * place + 1)
    return tl.exp2((x - tl.expand_dims(lse, axis)) * LOG2E) * tl.expand_dims(force, axis)


@triton.jit(do_not_specialize=LENGTHS)
def _slopes(
    left, right, row_ids, col_ids, unit, of_rows, of_cols, scale, out, n, m, vectors, own, sibling, decay,
    D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, BOTH: tl.constexpr,
    PREC: tl.constexpr,
):  # fmt: skip
    row, of_row = _places(n, 0, BM)
    col, of_col = _places(m, 1, BN)
    a, b, i, j = _groups_and_images(row_ids, col_ids, row, of_row, col, of_col)
    less = tl.zeros([BM, BN], tl.float32)  # before the products: later there are too few registers
    if not (_alike(a, b) & _disjoint(i, j)):
        pull = tl.load(of_rows + 3 * row + 2)[:, None]
        if BOTH:
            pull += tl.load(of_cols + 3 * col + 2)[None, :]
        less = pull * _weights(row_ids, col_ids, row, col, i, j, own, sibling, decay)
        less = tl.where(a[:, None] == b[None, :], less, float("inf"))
    x = _logits(left, right, unit, row, col, D, BM, BN, BK, PREC)
    by = _share(x, of_rows, row, 1)
    if BOTH:
        by += _share(x, of_cols, col, 0)
    by = tl.where(less < float("inf"), by - less, 0.0)
    _store(by * tl.load(scale), out, of_row, vectors, BM, BN)


@triton.jit
def _log1p(x):
    """log(1 + x), right for small x too"""
    u = 1.0 + x
    return tl.where(u == 1.0, x, tl.log2(u) / LOG2E * (x / tl.where(u == 1.0, 1.0, u - 1.0)))


@triton.jit(do_not_specialize=LENGTHS)
def _binary(
    left, right, row_ids, col_ids, unit, shares, scale, losses, out, n, m, vectors, own, sibling, decay,
    D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, LEARNS: tl.constexpr,
    PREC: tl.constexpr,
):  # fmt: skip
    row, of_row = _places(n, 0, BM)
    col, of_col = _places(m, 1, BN)
    a, b, i, j = _groups_and_images(row_ids, col_ids, row, of_row, col, of_col)
    counts = tl.full([BM, BN], 1.0, tl.float32)  # as a negative; less than 0: as a positive
    if not (_alike(a, b) & _disjoint(i, j)):
        weight = _weights(row_ids, col_ids, row, col, i, j, own, sibling, decay)
        counts = tl.where(i[:, None] == j[None, :], -weight, tl.where(a[:, None] == b[None, :], 1.0, 0.0))
    x = _logits(left, right, unit, row, col, D, BM, BN, BK, PREC)
    x = tl.where(counts < 0, -x, x)
    if LEARNS:
        small = tl.exp2(tl.abs(x) * (-LOG2E))  # of two exponentials the one that is 1 at most
        by = tl.where(x < 0, small, 1.0) / (1.0 + small) * counts
        _store(by * (tl.load(shares + row) * tl.load(scale))[:, None], out, of_row, vectors, BM, BN)
    loss = (tl.maximum(x, 0.0) + _log1p(tl.exp2(tl.abs(x) * (-LOG2E)))) * tl.abs(counts)
    tl.store(losses + tl.program_id(1).to(tl.int64) * n + row, tl.sum(loss, 1), mask=of_row)


def settings(kernel: str, width: int, dtype: torch.dtype) -> dict[str, Any]:
    """Constants and launch settings; float32 operands, which tests have, are not rounded."""
    (high, wide), warps, stages = LAUNCH[kernel]
    deep = min(DEEP, max(16, triton.next_power_of_2(width)))
    constants = {"D": width, "BM": high, "BN": wide, "BK": deep}
    precision = "ieee" if dtype == torch.float32 else "tf32"
    return constants | {"PREC": precision, "num_warps": warps, "num_stages": stages, **FUSION}


def room(rows: Tensor, cols: Tensor) -> Tensor:
    """For the slopes of all pairs, in rows of whole vectors"""
    return rows.new_empty(len(rows), (len(cols) + 7) // 8 * 8)


def grid(kernel: str, rows: Tensor, cols: Tensor) -> tuple[int, int]:
    """Programs. Neighbours share their columns, which stay in the L2 cache"""
    high, wide = LAUNCH[kernel][0]
    return triton.cdiv(len(rows), high), triton.cdiv(len(cols), wide)


@torch.library.custom_op("grainline::dot_sums", mutates_args=())
def sums(
    rows: Tensor,
    cols: Tensor,
    row_ids: Tensor,
    col_ids: Tensor,
    unit: Tensor,
    weights: list[float],
    both: bool,
) -> tuple[Tensor, Tensor]:
    """Of rows [3, n] and, with `both`, of columns [3, m], else [0]: sums over the other side

    The log of the sum of exponentials, the sum of weighted logits, the sum of weights. unit [] of logits
    """
    given = rows, cols, row_ids, col_ids, unit
    size, width, dtype = (len(rows), len(cols)), rows.shape[1], rows.dtype

    def parts(kernel: str, *kinds: int) -> tuple[tuple[int, int], tuple[Tensor, Tensor]]:
        high, wide = programs = grid(kernel, rows, cols)
        return programs, (unit.new_zeros(*kinds, wide, size[0]), unit.new_zeros(*kinds, high, size[1] * both))

    programs, lse = parts("sums")
    again, hits = parts("hits", 2)
    with torch.cuda.device_of(rows):
        _sums[programs](*given, *lse, *size, BOTH=both, **settings("sums", width, dtype))
        _hits[again](*given, *hits, *size, *weights, BOTH=both, **settings("hits", width, dtype))
    by_row, by_col = (torch.cat([x.logsumexp(0)[None], y.sum(1)]) for x, y in zip(lse, hits, strict=True))
    return by_row, by_col if both else unit.new_empty(0)


@sums.register_fake
def _(
    rows: Tensor, cols: Tensor, row_ids: Any, col_ids: Any, unit: Tensor, weights: Any, both: bool
) -> tuple[Tensor, Tensor]:
    return unit.new_empty(3, len(rows)), unit.new_empty(3, len(cols)) if both else unit.new_empty(0)


@torch.library.custom_op("grainline::dot_slopes", mutates_args=())
def slopes(
    rows: Tensor,
    cols: Tensor,
    row_ids: Tensor,
    col_ids: Tensor,
    unit: Tensor,
    weights: list[float],
    of_rows: Tensor,
    of_cols: Tensor | None,
    scale: Tensor,
) -> Tensor:
    """scale times the gradient by the logits, in the type of rows: [n, m], in rows of whole vectors of 8

    of_rows  [n, 3] lse, force and pull (`pair_loss._Second`)
    of_cols  [m, 3], or None: those of rows alone
    """
    out = room(rows, cols)
    with torch.cuda.device_of(rows):
        _slopes[grid("slopes", rows, cols)](
            rows, cols, row_ids, col_ids, unit, of_rows, of_rows if of_cols is None else of_cols, scale, out,
            len(rows), len(cols), out.shape[1] // 8, *weights, BOTH=of_cols is not None,
            **settings("slopes", rows.shape[1], rows.dtype),
        )  # fmt: skip
    return out[:, : len(cols)]


@slopes.register_fake
def _(
    rows: Tensor, cols: Tensor, row_ids: Any, col_ids: Any, unit: Any, weights: Any,
    of_rows: Any, of_cols: Any, scale: Any,
) -> Tensor:  # fmt: skip
    return room(rows, cols)[:, : len(cols)]


@torch.library.custom_op("grainline::dot_binary", mutates_args=())
def binary(
    rows: Tensor,
    cols: Tensor,
    row_ids: Tensor,
    col_ids: Tensor,
    unit: Tensor,
    weights: list[float],
    share: Tensor,
    scale: Tensor,
    learns: bool,
) -> tuple[Tensor, Tensor]:
    """Losses of rows with all columns [n]; scale * share times their gradients by logits [n, m]

    share   [n] of each row in the mean
    learns  False: no gradients [0]
    """
    high, wide = grid("binary", rows, cols)
    losses = unit.new_empty(wide, len(rows))
    out = room(rows, cols[: len(cols) * learns])
    with torch.cuda.device_of(rows):
        _binary[(high, wide)](
            rows, cols, row_ids, col_ids, unit, share, scale, losses, out, len(rows), len(cols),
            out.shape[1] // 8, *weights, LEARNS=learns, **settings("binary", rows.shape[1], rows.dtype),
        )  # fmt: skip
    return losses.sum(0), out[:, : len(cols) * learns]


@binary.register_fake
def _(
    rows: Tensor, cols: Tensor, row_ids: Any, col_ids: Any, unit: Tensor, weights: Any,
    share: Any, scale: Any, learns: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    some = cols[: len(cols) * learns]
    return unit.new_empty(len(rows)), room(rows, some)[:, : len(some)]
