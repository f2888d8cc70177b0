"""What texts pool of images, as `losses/tiled/chunked_cosine.py` has it, and the way back.

    attend    z = softmax(q K') V of all pairs: a program passes over texts, while the keys and values of an
              image and head stay where they are
    lengths   the two inner products that a cosine needs, from z and y = z M, which is a product of cuBLAS
    weigh     the gradient by z, w z and what is summed over images, in one pass over z and y
    unattend  gradients by logits, keys and values: as `attend`, with the last two in registers

No two programs add to one number: parts [splits, ...] are added afterwards, so the bits are the same in each
run. r images, T texts, L segments, heads of width d; D = heads * d. Operands are in units (`operands.py`).

With places [r, C] each image has its own list of the T texts, -1 = none: text c of image i is places[i, c],
and what is of pairs is [r, C, ...]. A text that is none counts as zeros (`lists.py`).
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from grainline.kernels.launch import FUSION, is_older

LOG2E = tl.constexpr(1.4426950408889634)
# Texts or rows of a program, and how it is launched. The second is for a wider head than 64 or more segments.
# Registers and shared memory fit on sm_90 and, with 64 segments of a head at most, on sm_80.
TILE = {"attend": (64, 64), "unattend": (64, 32)}
WARPS = {"attend": (4, 8), "unattend": (4, 8)}
STAGES = {"attend": (3, 3), "unattend": (3, 2)}
LISTED = "unattend of lists"  # one product more, and less room for texts
TILE, WARPS, STAGES = TILE | {LISTED: (32, 32)}, WARPS | {LISTED: (4, 8)}, STAGES | {LISTED: (2, 2)}
OLDER = {"unattend": (32, 4)}  # tile and warps before sm_90, where others take too many registers
NUMBERS = {"lengths": 2048, "weigh": 4096}  # of a tile of a program that has whole rows of z
# What changes from batch to batch is no reason to compile again.
LENGTHS = ["T", "N", "M", "rows", "tiles"]
PROGRAMS = 264  # of a kernel that passes over texts: two for each processor of an H100, all at once


@triton.jit
def _attention(query, key, off, unit, PREC: tl.constexpr):
    """Softmax over the segments and an empty slot of logit 0; zeros where all are -inf.

    off  0, or -inf where there is no segment
    """
    fit = tl.dot(query, tl.trans(key), input_precision=PREC) * unit + off[None, :]
    top = tl.maximum(tl.max(fit, 1, keep_dims=True), 0.0)
    grown = tl.exp2((fit - top) * LOG2E)
    return grown / (tl.sum(grown, 1, keep_dims=True) + tl.exp2(-top * LOG2E))


@triton.jit
def _texts(places, row, i, T, LIST: tl.constexpr):
    """The text of each of T rows of an image, without lists the row itself; and whether there is one"""
    text, real = row, row < T
    if LIST:
        text = tl.load(places + i * T + row, mask=real, other=-1)
        real = text >= 0
    return text, real


@triton.jit(do_not_specialize=LENGTHS)
def _attend(
    q, key, value, mask, unit, places, z, T, N, M, tiles,
    H: tl.constexpr, L: tl.constexpr, D: tl.constexpr, BM: tl.constexpr, BL: tl.constexpr, BD: tl.constexpr,
    MASK: tl.constexpr, LIST: tl.constexpr, PREC: tl.constexpr,
):  # fmt: skip
    split, ih = tl.program_id(0), tl.program_id(1).to(tl.int64)
    i, h = ih // H, ih % H
    col, deep = tl.arange(0, BL), tl.arange(0, BD)
    there = (col < L)[:, None] & (deep < D)[None, :]
    place = ((h * N + i) * L + col)[:, None] * D + deep[None, :]
    k, v = tl.load(key + place, mask=there, other=0.0), tl.load(value + place, mask=there, other=0.0)
    off = tl.where(col < L, 0.0, float("-inf"))
    if MASK:
        off += tl.load(mask + i * L + col, mask=col < L, other=0.0)
    by = tl.load(unit)
    for tile in range(split * tiles, split * tiles + tiles):
        row = tile * BM + tl.arange(0, BM)
        text, real = _texts(places, row, i, T, LIST)
        query = tl.load(
            q + (h * (M if LIST else T) + text)[:, None] * D + deep[None, :],
            mask=real[:, None] & (deep < D)[None, :],
            other=0.0,
        )
        a = _attention(query, k, off, by, PREC)
        out = tl.dot(a.to(v.dtype), v, input_precision=PREC)
        at = (i * T + row)[:, None] * (H * D) + (h * D + deep)[None, :]
        tl.store(z + at, out.to(z.dtype.element_ty), mask=(row < T)[:, None] & (deep < D)[None, :])


@triton.jit(do_not_specialize=LENGTHS)
def _lengths(
    z, y, u, shift, units, places, along, square, rows, T,
    D: tl.constexpr, BM: tl.constexpr, BD: tl.constexpr, LIST: tl.constexpr,
):  # fmt: skip
    """z . u and z . (y + 2 shift)"""
    row, deep = tl.program_id(0).to(tl.int64) * BM + tl.arange(0, BM), tl.arange(0, BD)
    real, inside = row < rows, (deep < D)[None, :]
    here = row % T
    if LIST:
        here = tl.load(places + row, mask=real, other=-1)
    at, some = row[:, None] * D + deep[None, :], real[:, None] & inside
    of_z, of_y, of_u = tl.load(units), tl.load(units + 1), tl.load(units + 2)
    own = tl.load(z + at, mask=some, other=0.0).to(tl.float32) * of_z
    out = tl.load(y + at, mask=some, other=0.0).to(tl.float32) * of_y
    asks = (here >= 0)[:, None] & some
    text = tl.load(u + here[:, None] * D + deep[None, :], mask=asks, other=0.0).to(tl.float32) * of_u
    bias = tl.load(shift + deep, mask=deep < D, other=0.0)[None, :]
    tl.store(along + row, tl.sum(own * text, 1), mask=real)
    tl.store(square + row, tl.sum(own * (out + bias * 2.0), 1), mask=real)


@triton.jit(do_not_specialize=LENGTHS)
def _weigh(
    z, y, u, shift, by_along, by_square, units, places, weighted, by_u, by_shift, T, N,
    D: tl.constexpr, BM: tl.constexpr, BD: tl.constexpr, LIST: tl.constexpr,
):  # fmt: skip
    """Some texts with all images. The gradient by z takes the place of y"""
    tile, deep = tl.program_id(0).to(tl.int64), tl.arange(0, BD)
    row, inside = tile * BM + tl.arange(0, BM), (deep < D)[None, :]
    real = row < T
    of_z, of_y, of_u = tl.load(units), tl.load(units + 1), tl.load(units + 2)
    of_gradient, of_weight = 1.0 / tl.load(units + 3), 1.0 / tl.load(units + 4)
    bias = tl.load(shift + deep, mask=deep < D, other=0.0)[None, :]
    some = real[:, None] & inside
    text = tl.zeros([BM, BD], u.dtype.element_ty)
    if not LIST:
        text = tl.load(u + row[:, None] * D + deep[None, :], mask=some, other=0.0)
    total, by_text = tl.zeros([BD], tl.float32), tl.zeros([BM, BD], tl.float32)
    for i in range(N):
        if LIST:
            here = tl.load(places + i * T + row, mask=real, other=-1)
            asks = (here >= 0)[:, None] & inside
            text = tl.load(u + here[:, None] * D + deep[None, :], mask=asks, other=0.0)
        along = tl.load(by_along + i * T + row, mask=real, other=0.0)[:, None]
        square = tl.load(by_square + i * T + row, mask=real, other=0.0)[:, None]
        at = (i * T + row)[:, None] * D + deep[None, :]
        own = tl.load(z + at, mask=some, other=0.0).to(tl.float32)
        out = tl.load(y + at, mask=some, other=0.0).to(tl.float32) * of_y + bias
        by = along * (text.to(tl.float32) * of_u) + square * out * 2.0
        tl.store(y + at, (by * of_gradient).to(y.dtype.element_ty), mask=some)
        part = own * (square * of_weight)
        tl.store(weighted + at, part.to(weighted.dtype.element_ty), mask=some)
        total += tl.sum(part, 0)
        if not LIST:
            by_text += own * along
    tl.store(by_shift + tile * D + deep, total, mask=deep < D)
    if not LIST:
        tl.store(by_u + row[:, None] * D + deep[None, :], by_text * of_z, mask=some)


@triton.jit(do_not_specialize=LENGTHS)
def _unattend(
    q, key, value, mask, by_z, unit, places, by_text, by_key, by_value, T, N, M, tiles,
    H: tl.constexpr, L: tl.constexpr, D: tl.constexpr, BM: tl.constexpr, BL: tl.constexpr, BD: tl.constexpr,
    MASK: tl.constexpr, LIST: tl.constexpr, PREC: tl.constexpr,
):  # fmt: skip
    split, ih = tl.program_id(0), tl.program_id(1).to(tl.int64)
    i, h = ih // H, ih % H
    col, deep = tl.arange(0, BL), tl.arange(0, BD)
    there = (col < L)[:, None] & (deep < D)[None, :]
    place = ((h * N + i) * L + col)[:, None] * D + deep[None, :]
    k, v = tl.load(key + place, mask=there, other=0.0), tl.load(value + place, mask=there, other=0.0)
    off = tl.where(col < L, 0.0, float("-inf"))
    if MASK:
        off += tl.load(mask + i * L + col, mask=col < L, other=0.0)
    of_fit = tl.load(unit)
    dk, dv = tl.zeros([BL, BD], tl.float32), tl.zeros([BL, BD], tl.float32)
    for tile in range(split * tiles, split * tiles + tiles):
        row = tile * BM + tl.arange(0, BM)
        text, real = _texts(places, row, i, T, LIST)
        some = real[:, None] & (deep < D)[None, :]
        query = tl.load(
            q + (h * (M if LIST else T) + text)[:, None] * D + deep[None, :], mask=some, other=0.0
        )
        at = (i * T + row)[:, None] * (H * D) + (h * D + deep)[None, :]
        dz = tl.load(by_z + at, mask=some, other=0.0)
        a = _attention(query, k, off, of_fit, PREC)
        f = a * tl.dot(dz, tl.trans(v), input_precision=PREC)
        f -= a * tl.sum(f, 1)[:, None]
        dv = tl.dot(tl.trans(a.to(v.dtype)), dz, dv, input_precision=PREC)
        dk = tl.dot(tl.trans(f.to(k.dtype)), query, dk, input_precision=PREC)
        if LIST:  # texts of other images are others: here is the last place where keys are at hand
            dq = tl.dot(f.to(k.dtype), k, input_precision=PREC)
            tl.store(by_text + at, dq.to(by_text.dtype.element_ty), mask=some)
        else:
            to = ((h * T + row).to(tl.int64) * N + i)[:, None] * L + col[None, :]
            of_logits = f.to(by_text.dtype.element_ty)
            tl.store(by_text + to, of_logits, mask=(row < T)[:, None] & (col < L)[None, :])
    part = (split.to(tl.int64) * N * H + i * H + h) * L * D
    place = part + col[:, None] * D + deep[None, :]
    tl.store(by_key + place, dk, mask=there)
    tl.store(by_value + place, dv, mask=there)


def sizes(slots: int, width: int) -> dict[str, int]:
    """Constants of an image and a head; blocks of a product have 16 rows and columns at least."""
    blocks = (max(16, triton.next_power_of_2(x)) for x in (slots, width))
    return {"L": slots, "D": width, **dict(zip(("BL", "BD"), blocks, strict=True))}


def settings(kernel: str, slots: int = 0, width: int = 0, older: bool = False) -> tuple[int, dict[str, Any]]:
    """The tile of a kernel and its launch settings. older: than sm_90"""
    large = max(slots, width) > 64
    tile, warps = TILE[kernel][large], WARPS[kernel][large]
    if older and not large:
        tile, warps = OLDER.get(kernel, (tile, warps))
    return tile, {"num_warps": warps, "num_stages": STAGES[kernel][large], **FUSION}


def whole_rows(kernel: str, width: int) -> dict[str, int]:
    """Constants of a kernel that has whole rows of z."""
    wide = triton.next_power_of_2(width)
    return {"D": width, "BM": max(1, NUMBERS[kernel] // wide), "BD": wide}


def split(tiles: int, programs: int, times: int = 1) -> tuple[int, int]:
    """How often to split tiles that so many programs pass over, and the tiles of a split.

    times  so many times `PROGRAMS` run at once
    """
    splits = max(1, min(tiles, times * PROGRAMS // max(1, programs)))
    return splits, triton.cdiv(tiles, splits)


def precision(x: Tensor) -> str:
    """Of products: float32 operands, which tests have, are not rounded."""
    return "ieee" if x.dtype == torch.float32 else "tf32"


@torch.library.custom_op("grainline::attend", mutates_args=())
def attend(
    q: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, unit: Tensor, places: Tensor | None = None
) -> Tensor:
    """q [heads, T, d], key and value [heads, r, L, d] -> z [r, T, D], with places [r, C, D]; in units of v

    mask  [r, L] of 0, and -inf where there is no segment; unit [] of logits
    """
    heads, images, slots, width = key.shape
    texts, (tile, launch) = (q if places is None else places).shape[1], settings("attend", slots, width)
    z = value.new_empty(images, texts, heads * width)
    splits, tiles = split(triton.cdiv(texts, tile), images * heads, times=2)  # fewer registers
    if z.numel():
        with torch.cuda.device_of(key):
            _attend[(splits, images * heads)](
                q, key, value, key if mask is None else mask, unit, q if places is None else places, z,
                texts, images, q.shape[1], tiles, H=heads, BM=tile, MASK=mask is not None,
                LIST=places is not None, PREC=precision(q), **sizes(slots, width), **launch,
            )  # fmt: skip
    return z


@attend.register_fake
def _(
    q: Tensor, key: Tensor, value: Tensor, mask: Any, unit: Any, places: Tensor | None = None
) -> Tensor:  # fmt: skip
    texts = (q if places is None else places).shape[1]
    return value.new_empty(key.shape[1], texts, key.shape[0] * key.shape[3])


@torch.library.custom_op("grainline::lengths", mutates_args=())
def lengths(
    z: Tensor, y: Tensor, u: Tensor, shift: Tensor, units: Tensor, places: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """z, y [r, T, D], u [T, D], shift [D] -> z . u and z . (y + 2 shift) of pairs [r, T]

    units  [3] of z, y and u

    The products are those of the tensors that stand behind the units.
    """
    images, texts, width = z.shape
    constants = whole_rows("lengths", width)
    along, square = (torch.empty(images, texts, dtype=torch.float32, device=z.device) for _ in range(2))
    if along.numel():
        with torch.cuda.device_of(z):
            _lengths[(triton.cdiv(images * texts, constants["BM"]),)](
                z, y, u, shift, units, z if places is None else places, along, square, images * texts, texts,
                LIST=places is not None, **constants, **FUSION,
            )  # fmt: skip
    return along, square


@lengths.register_fake
def _(
    z: Tensor, y: Any, u: Any, shift: Tensor, units: Any, places: Any = None
) -> tuple[Tensor, Tensor]:  # fmt: skip
    return shift.new_empty(z.shape[:2]), shift.new_empty(z.shape[:2])


@torch.library.custom_op("grainline::weigh", mutates_args=("y",))
def weigh(
    z: Tensor,
    y: Tensor,
    u: Tensor,
    shift: Tensor,
    by_along: Tensor,
    by_square: Tensor,
    units: Tensor,
    places: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """w z [r, T, D] as operands, the sum over images of by_along z [T, D], and of w z over all pairs [D]

    y becomes the gradient by z: by_along u + 2 by_square (y + shift). The second has its values, the third is
    in units; with places there is no second [0].

    z, y, u, shift as of `lengths`; by_along, by_square [r, T] float32 gradients
    units  [5] of z, y, u, of the gradient by z, and of the weight w, which is by_square in it
    """
    images, texts, width = z.shape
    listed, constants = places is not None, whole_rows("weigh", width)
    programs = triton.cdiv(texts, constants["BM"])
    weighted, by_u = torch.empty_like(z), shift.new_empty(0 if listed else texts, width)
    by_shift = shift.new_empty(programs, width)
    with torch.cuda.device_of(z):
        _weigh[(programs,)](
            z, y, u, shift, by_along, by_square, units, places if listed else z, weighted, by_u, by_shift,
            texts, images, LIST=listed, **constants, **FUSION,
        )  # fmt: skip
    return weighted, by_u, by_shift.sum(0)


@weigh.register_fake
def _(
    z: Tensor, y: Any, u: Any, shift: Tensor, by_along: Any, by_square: Any, units: Any,
    places: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    by_u = shift.new_empty(0 if places is not None else z.shape[1], z.shape[2])
    return torch.empty_like(z), by_u, torch.empty_like(shift)


@torch.library.custom_op("grainline::unattend", mutates_args=())
def unattend(
    q: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    by_z: Tensor,
    unit: Tensor,
    places: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients by logits [heads, T, r, L], keys and values [r, heads, L, d], the last two in float32

    With places the first is that by queries of pairs [r, C, D], not set where there is no text.
    q, key, value, mask, unit as of `attend`; by_z [r, T, D], whose unit all have
    """
    heads, images, slots, width = key.shape
    listed, texts = places is not None, (q if places is None else places).shape[1]
    tile, launch = settings(LISTED if listed else "unattend", slots, width, is_older(key))
    splits, tiles = split(triton.cdiv(texts, tile), images * heads)
    by_text = value.new_empty((images, texts, heads * width) if listed else (heads, texts, images, slots))
    by_key, by_value = (
        torch.zeros(splits, images, heads, slots, width, dtype=torch.float32, device=key.device)
        for _ in range(2)
    )
    if by_text.numel():
        with torch.cuda.device_of(key):
            _unattend[(splits, images * heads)](
                q, key, value, key if mask is None else mask, by_z, unit, places if listed else q,
                by_text, by_key, by_value, texts, images, q.shape[1], tiles, H=heads, BM=tile,
                MASK=mask is not None, LIST=listed, PREC=precision(q), **sizes(slots, width), **launch,
            )  # fmt: skip
    return by_text, by_key.sum(0), by_value.sum(0)


@unattend.register_fake
def _(
    q: Tensor, key: Tensor, value: Tensor, mask: Any, by_z: Any, unit: Tensor, places: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    heads, images, slots, width = key.shape
    other = unit.new_empty(images, heads, slots, width)
    shape = (heads, q.shape[1], images, slots)
    if places is not None:
        shape = (*places.shape, heads * width)
    return value.new_empty(shape), other, torch.empty_like(other)
