"""Lengths of what texts pool of images through Gram matrices, as `ChunkedGram` of
`losses/tiled/chunked_cosine.py` has them, and the way back.

    gram    along = a . (V u) and square = a' G a + 2 a . (M b_o) of all pairs, from the logits and V u
    ungram  gradients by logits, and weights times a gradient, for products with keys, values, queries and u;
            those by G and M b_o: a program passes over texts, while all that is of an image stays where it is

Weights are never stored. No two programs add to one number: parts [splits, ...] are added afterwards, so the
bits are the same in each run. r images, T texts, L segments; P = heads * L, all segments of all heads, which
are one block of a product. Operands are in units (`operands.py`).
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from grainline.kernels.pooled import LENGTHS, _softmax, precision, settings, split


@triton.jit
def _weights(
    fit, mask, unit, at, real, i, head, slot,
    H: tl.constexpr, L: tl.constexpr, BM: tl.constexpr, BH: tl.constexpr, BL: tl.constexpr,
    MASK: tl.constexpr,
):  # fmt: skip
    """Softmax of each head: [BM, BH * BL]"""
    off = tl.where((head < H) & (slot < L), 0.0, float("-inf"))
    if MASK:
        off += tl.load(mask + i * L + slot, mask=slot < L, other=0.0)
    logits = tl.load(fit + at, mask=real, other=0.0) * unit + off[None, :]
    return tl.reshape(_softmax(tl.reshape(logits, [BM, BH, BL])), [BM, BH * BL])


@triton.jit(do_not_specialize=LENGTHS)
def _gram(
    fit, dots, mask, matrix, middle, units, along, square, T, N,
    H: tl.constexpr, L: tl.constexpr, BM: tl.constexpr, BH: tl.constexpr, BL: tl.constexpr,
    MASK: tl.constexpr, PREC: tl.constexpr,
):  # fmt: skip
    i, tile = tl.program_id(0).to(tl.int64), tl.program_id(1)  # neighbours share texts: whole rows of `fit`
    row, col = tile * BM + tl.arange(0, BM), tl.arange(0, BH * BL)
    head, slot = col // BL, col % BL
    there, point = (head < H) & (slot < L), head * L + slot
    real = (row < T)[:, None] & there[None, :]
    at = ((head[None, :] * T + row[:, None]).to(tl.int64) * N + i) * L + slot[None, :]
    a = _weights(fit, mask, tl.load(units), at, real, i, head, slot, H, L, BM, BH, BL, MASK)
    of_dots, of_gram = tl.load(units + 1), tl.load(units + 2)
    place = (i * H * L + point)[:, None] * (H * L) + point[None, :]
    g = tl.load(matrix + place, mask=there[:, None] & there[None, :], other=0.0)
    shift = tl.load(middle + i * H * L + point, mask=there, other=0.0)[None, :]
    y = tl.dot(a.to(g.dtype), g, input_precision=PREC) * of_gram
    tl.store(square + i * T + row, tl.sum(a * (y + 2.0 * shift), 1), mask=row < T)
    of_text = tl.load(dots + at, mask=real, other=0.0)
    tl.store(along + i * T + row, tl.sum(a * of_text, 1) * of_dots, mask=row < T)


@triton.jit(do_not_specialize=LENGTHS)
def _ungram(
    fit, dots, mask, matrix, middle, by_along, by_square, units, by_fit, turned, by_gram, by_middle,
    T, N, tiles,
    H: tl.constexpr, L: tl.constexpr, BM: tl.constexpr, BH: tl.constexpr, BL: tl.constexpr,
    MASK: tl.constexpr, PREC: tl.constexpr,
):  # fmt: skip
    i, part = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    col = tl.arange(0, BH * BL)
    head, slot = col // BL, col % BL
    there, point = (head < H) & (slot < L), head * L + slot
    of_fit, of_gram, of_square = tl.load(units), tl.load(units + 1), tl.load(units + 2)
    place = (i * H * L + point)[:, None] * (H * L) + point[None, :]
    both = there[:, None] & there[None, :]
    g = tl.load(matrix + place, mask=both, other=0.0)
    shift = tl.load(middle + i * H * L + point, mask=there, other=0.0)[None, :]
    dg, dm = tl.zeros([BH * BL, BH * BL], tl.float32), tl.zeros([BH * BL], tl.float32)
    for tile in range(part * tiles, part * tiles + tiles):
        row = tile * BM + tl.arange(0, BM)
        real = (row < T)[:, None] & there[None, :]
        at = ((head[None, :] * T + row[:, None]) * N + i) * L + slot[None, :]
        a = _weights(fit, mask, of_fit, at, real, i, head, slot, H, L, BM, BH, BL, MASK)
        ba = tl.load(by_along + i * T + row, mask=row < T, other=0.0)[:, None]
        bs = tl.load(by_square + i * T + row, mask=row < T, other=0.0)[:, None]
        half, left = a.to(g.dtype), a * bs
        dm += tl.sum(left, 0)
        dg = tl.dot(tl.trans(left.to(g.dtype)), half, dg, input_precision=PREC)
        y = tl.dot(half, g, input_precision=PREC) * of_gram + shift
        f = a * (ba * tl.load(dots + at, mask=real, other=0.0) + (bs * of_square) * y)
        by_head = tl.sum(tl.reshape(f, [BM, BH, BL]), 2, keep_dims=True)
        f -= a * tl.reshape(tl.broadcast_to(by_head, [BM, BH, BL]), [BM, BH * BL])
        tl.store(by_fit + at, f.to(by_fit.dtype.element_ty), mask=real)
        tl.store(turned + at, (ba * a).to(turned.dtype.element_ty), mask=real)
    to = part * N + i
    tl.store(by_gram + to * (H * L * H * L) + point[:, None] * (H * L) + point[None, :], dg, mask=both)
    tl.store(by_middle + to * (H * L) + point, 2.0 * dm, mask=there)


def constants(kernel: str, heads: int, slots: int, half: Tensor) -> dict[str, Any]:
    """Of a kernel: its sizes, precision and launch settings."""
    wide = triton.next_power_of_2(heads)
    high = max(triton.next_power_of_2(slots), 16 // wide)  # 16 rows of a product at least
    tile, launch = settings(kernel, wide * high)
    return {"H": heads, "L": slots, "BM": tile, "BH": wide, "BL": high, "PREC": precision(half), **launch}


@torch.library.custom_op("grainline::gram", mutates_args=())
def gram(
    fit: Tensor, dots: Tensor, mask: Tensor | None, matrix: Tensor, middle: Tensor, units: Tensor
) -> tuple[Tensor, Tensor]:
    """along and square [r, T] in float32, without what is the same for all images

    fit, dots  [heads, T, r, L] float32: q K' and u V'
    mask       [r, L] of 0, and -inf where there is no segment
    matrix     [r, P, P] G; middle [r, P] float32, M b_o
    units      [3] of fit, dots and matrix
    """
    heads, texts, images, slots = fit.shape
    along, square = (fit.new_empty(images, texts) for _ in range(2))
    if fit.numel():
        sizes = constants("gram", heads, slots, matrix)
        with torch.cuda.device_of(fit):
            _gram[(images, triton.cdiv(texts, sizes["BM"]))](
                fit, dots, fit if mask is None else mask, matrix, middle, units, along, square, texts, images,
                MASK=mask is not None, **sizes,
            )  # fmt: skip
    return along, square


@gram.register_fake
def _(
    fit: Tensor, dots: Any, mask: Any, matrix: Any, middle: Any, units: Any
) -> tuple[Tensor, Tensor]:  # fmt: skip
    _, texts, images, _ = fit.shape
    return fit.new_empty(images, texts), fit.new_empty(images, texts)


@torch.library.custom_op("grainline::ungram", mutates_args=())
def ungram(
    fit: Tensor,
    dots: Tensor,
    mask: Tensor | None,
    matrix: Tensor,
    middle: Tensor,
    by_along: Tensor,
    by_square: Tensor,
    units: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients by logits, and by_along * weights: [heads, T, r, L] operands; by G and M b_o in float32

    fit, dots, mask, matrix, middle as of `gram`
    by_along, by_square  [r, T] float32 gradients, each in a unit that keeps it in the range of operands
    units                [3] of fit and matrix; twice that of by_square, over that of the gradient by logits,
                         which is that of by_along times that of dots
    """
    heads, texts, images, slots = fit.shape
    sizes, points = constants("ungram", heads, slots, matrix), heads * slots
    splits, tiles = split(triton.cdiv(texts, sizes["BM"]), images)
    by_fit, turned = (matrix.new_empty(fit.shape) for _ in range(2))
    by_gram, by_middle = (fit.new_zeros(splits, images, *x) for x in ((points, points), (points,)))
    if fit.numel():
        with torch.cuda.device_of(fit):
            _ungram[(images, splits)](
                fit, dots, fit if mask is None else mask, matrix, middle, by_along, by_square, units, by_fit,
                turned, by_gram, by_middle, texts, images, tiles, MASK=mask is not None, **sizes,
            )  # fmt: skip
    return by_fit, turned, by_gram.sum(0), by_middle.sum(0)


@ungram.register_fake
def _(
    fit: Tensor, dots: Any, mask: Any, matrix: Tensor, middle: Tensor,
    by_along: Any, by_square: Any, units: Any,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    by_fit = matrix.new_empty(fit.shape)
    return by_fit, torch.empty_like(by_fit), middle.new_empty(matrix.shape), torch.empty_like(middle)
