"""What texts pool of images, as `losses/tiled/chunked_cosine.py` has it, and the way back.

    attend    z = softmax(q K') V of all pairs: one program for an image, a head and a tile of texts
    lengths   y = z M, and the two inner products that a cosine needs, while y is in registers
    unattend  gradients by logits, keys and values: a program passes over texts, while the keys and values of
              an image and head, and their gradients, stay where they are
    outer     sum of w z z' over pairs, a matrix that is symmetric, and of w z

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
# Texts or rows of a program, and how it is launched. The second is for a wider head than 64 or more segments,
# of all heads for `gram` and `ungram`. Registers and shared memory fit on sm_90 and, with 64 segments of a
# head at most, on sm_80 (tests/test_kernels.py).
TILE = {"attend": (128, 64), "lengths": (128, 128), "unattend": (64, 32), "outer": (64, 64)}
TILE |= {"gram": (64, 32), "ungram": (64, 32)}
WARPS = {"attend": (4, 8), "lengths": (8, 8), "unattend": (4, 8), "outer": (4, 4)}
WARPS |= {"gram": (8, 8), "ungram": (8, 8)}
STAGES = {"attend": 1, "lengths": 3, "unattend": 3, "outer": 3, "gram": 1, "ungram": 3}
LISTED = "unattend of lists"  # one product more, and less room for texts
TILE, WARPS, STAGES = TILE | {LISTED: (32, 32)}, WARPS | {LISTED: (4, 8)}, STAGES | {LISTED: 2}
OLDER = {"outer": (32, 8)}  # tile and warps before sm_90, where others take too many registers
# What changes from batch to batch is no reason to compile again.
LENGTHS = ["T", "N", "M", "rows", "tiles"]
PROGRAMS = 264  # of a kernel that adds up: two for each processor of an H100, all at once


@triton.jit
def _softmax(fit):
    """Over the last axis and an empty slot of logit 0; zeros where all are -inf"""
    top = tl.maximum(tl.max(fit, len(fit.shape) - 1, keep_dims=True), 0.0)
    grown = tl.exp2((fit - top) * LOG2E)
    return grown / (tl.sum(grown, len(fit.shape) - 1, keep_dims=True) + tl.exp2(-top * LOG2E))


@triton.jit
def _attention(query, key, off, unit, PREC: tl.constexpr):
    """Softmax over the segments and an empty slot of logit 0. off: 0, or -inf where there is no segment"""
    return _softmax(tl.dot(query, tl.trans(key), input_precision=PREC) * unit + off[None, :])


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
    q, key, value, mask, unit, places, z, T, N, M,
    H: tl.constexpr, L: tl.constexpr, D: tl.constexpr, BM: tl.constexpr, BL: tl.constexpr, BD: tl.constexpr,
    MASK: tl.constexpr, LIST: tl.constexpr, PREC: tl.constexpr,
):  # fmt: skip
    tile, ih = tl.program_id(0), tl.program_id(1).to(tl.int64)  # neighbours share an image: it stays in L2
    i, h = ih // H, ih % H
    row, col, deep = tile * BM + tl.arange(0, BM), tl.arange(0, BL), tl.arange(0, BD)
    some = (row < T)[:, None] & (deep < D)[None, :]
    there = (col < L)[:, None] & (deep < D)[None, :]
    place = ((h * N + i) * L + col)[:, None] * D + deep[None, :]
    k, v = tl.load(key + place, mask=there, other=0.0), tl.load(value + place, mask=there, other=0.0)
    text, real = _texts(places, row, i, T, LIST)
    query = tl.load(
        q + (h * (M if LIST else T) + text)[:, None] * D + deep[None, :],
        mask=real[:, None] & (deep < D)[None, :],
        other=0.0,
    )
    off = tl.where(col < L, 0.0, float("-inf"))
    if MASK:
        off += tl.load(mask + i * L + col, mask=col < L, other=0.0)
    a = _attention(query, k, off, tl.load(unit), PREC)
    out = tl.dot(a.to(v.dtype), v, input_precision=PREC)
    at = (i * T + row)[:, None] * (H * D) + (h * D + deep)[None, :]
    tl.store(z + at, out.to(z.dtype.element_ty), mask=some)


@triton.jit(do_not_specialize=LENGTHS)
def _lengths(
    z, matrix, shift, u, units, places, y, along, square, rows, T,
    D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, KEEP: tl.constexpr,
    TRIANGLE: tl.constexpr, LIST: tl.constexpr, PREC: tl.constexpr,
):  # fmt: skip
    """Shares of BN columns. KEEP: square is z . (y + 2 shift), and y is stored; else |y + shift|^2"""
    block, tile = tl.program_id(0), tl.program_id(1).to(tl.int64)
    row, col, deep = tile * BM + tl.arange(0, BM), block * BN + tl.arange(0, BN), tl.arange(0, BK)
    inside = (row < rows)[:, None] & (col < D)[None, :]
    acc = tl.zeros([BM, BN], tl.float32)
    first = 0
    if TRIANGLE:  # rows of the matrix above this block have zeros in it
        first = block * BN // BK * BK
    for k in range(first, D, BK):
        at = k + deep
        a = tl.load(
            z + row[:, None] * D + at[None, :], mask=(row < rows)[:, None] & (at < D)[None, :], other=0.0
        )
        b = tl.load(
            matrix + at[:, None] * D + col[None, :], mask=(at < D)[:, None] & (col < D)[None, :], other=0.0
        )
        acc = tl.dot(a, b, acc, input_precision=PREC)
    of_z, of_y, of_u = tl.load(units), tl.load(units + 1), tl.load(units + 2)
    own = tl.load(z + row[:, None] * D + col[None, :], mask=inside, other=0.0).to(tl.float32) * of_z
    if LIST:
        here = tl.load(places + row, mask=row < rows, other=-1)
        asks = inside & (here >= 0)[:, None]
    else:
        here, asks = row % T, inside
    text = tl.load(u + here[:, None] * D + col[None, :], mask=asks, other=0.0).to(tl.float32) * of_u
    bias = tl.load(shift + col, mask=col < D, other=0.0)[None, :]
    tl.store(along + block * rows + row, tl.sum(own * text, 1), mask=row < rows)
    if KEEP:
        part = own * (acc * of_y + 2.0 * bias)
        tl.store(y + row[:, None] * D + col[None, :], acc.to(y.dtype.element_ty), mask=inside)
    else:
        out = acc * of_y + bias
        part = tl.where((col < D)[None, :], out * out, 0.0)
    tl.store(square + block * rows + row, tl.sum(part, 1), mask=row < rows)


@triton.jit(do_not_specialize=LENGTHS)
def _unattend(
    q, key, value, mask, u, y, shift, by_along, by_square, units, places, by_text, by_key, by_value,
    T, N, M, tiles,
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
    unit, of_y, of_u = tl.load(units), tl.load(units + 1), tl.load(units + 2)
    bias = tl.load(shift + h * D + deep, mask=deep < D, other=0.0)[None, :]
    dk, dv = tl.zeros([BL, BD], tl.float32), tl.zeros([BL, BD], tl.float32)
    for tile in range(split * tiles, split * tiles + tiles):
        row = tile * BM + tl.arange(0, BM)
        text, real = _texts(places, row, i, T, LIST)
        some, lane = real[:, None] & (deep < D)[None, :], (h * D + deep)[None, :]
        query = tl.load(
            q + (h * (M if LIST else T) + text)[:, None] * D + deep[None, :], mask=some, other=0.0
        )
        a = _attention(query, k, off, unit, PREC)
        at = row[:, None] * (H * D) + lane
        ba = tl.load(by_along + i * T + row, mask=row < T, other=0.0)[:, None]
        bs = tl.load(by_square + i * T + row, mask=row < T, other=0.0)[:, None]
        along = tl.load(u + (text[:, None] * (H * D) + lane), mask=some, other=0.0).to(tl.float32) * of_u
        out = tl.load(y + i * T * (H * D) + at, mask=some, other=0.0).to(tl.float32) * of_y + bias
        dz = tl.where(some, ba * along + 2.0 * bs * out, 0.0).to(v.dtype)
        f = a * tl.dot(dz, tl.trans(v), input_precision=PREC)
        f -= a * tl.sum(f, 1)[:, None]
        dv = tl.dot(tl.trans(a.to(v.dtype)), dz, dv, input_precision=PREC)
        dk = tl.dot(tl.trans(f.to(k.dtype)), query, dk, input_precision=PREC)
        if LIST:  # texts of other images are others: here is the last place where keys are at hand
            dq = tl.dot(f.to(k.dtype), k, input_precision=PREC)
            tl.store(by_text + i * T * (H * D) + at, dq.to(by_text.dtype.element_ty), mask=some)
        else:
            to = ((h * T + row).to(tl.int64) * N + i)[:, None] * L + col[None, :]
            of_logits = f.to(by_text.dtype.element_ty)
            tl.store(by_text + to, of_logits, mask=(row < T)[:, None] & (col < L)[None, :])
    part = (split.to(tl.int64) * N * H + i * H + h) * L * D
    place = part + col[:, None] * D + deep[None, :]
    tl.store(by_key + place, dk, mask=there)
    tl.store(by_value + place, dv, mask=there)


@triton.jit(do_not_specialize=LENGTHS)
def _outer(
    z, weight, by_matrix, by_shift, rows, tiles,
    D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, PREC: tl.constexpr,
):  # fmt: skip
    """The share of some tiles of rows in a block of the matrix: none below the diagonal, twice above it"""
    left, right, split = tl.program_id(0), tl.program_id(1), tl.program_id(2).to(tl.int64)
    down, across = left * BN + tl.arange(0, BN), right * BN + tl.arange(0, BN)
    acc, total = tl.zeros([BN, BN], tl.float32), tl.zeros([BN], tl.float32)
    if left <= right:
        for tile in range(split * tiles, split * tiles + tiles):
            row = tile * BM + tl.arange(0, BM)
            by = tl.load(weight + row, mask=row < rows, other=0.0)
            inside, at = (row < rows)[:, None], row[:, None] * D
            one = tl.load(z + at + down[None, :], mask=inside & (down < D)[None, :], other=0.0)
            other = tl.load(z + at + across[None, :], mask=inside & (across < D)[None, :], other=0.0)
            here = other.to(tl.float32) * by[:, None]
            if left == right:
                total += tl.sum(here, 0)
            acc = tl.dot(tl.trans(one), here.to(one.dtype), acc, input_precision=PREC)
    if left < right:
        acc *= 2.0
    at = (split * D + down)[:, None] * D + across[None, :]
    tl.store(by_matrix + at, acc, mask=(down < D)[:, None] & (across < D)[None, :])
    if left == right:
        tl.store(by_shift + split * D + down, total, mask=down < D)


def sizes(slots: int, width: int) -> dict[str, int]:
    """Constants of an image and a head; blocks of a product have 16 rows and columns at least."""
    blocks = (max(16, triton.next_power_of_2(x)) for x in (slots, width))
    return {"L": slots, "D": width, **dict(zip(("BL", "BD"), blocks, strict=True))}


def settings(kernel: str, slots: int = 0, width: int = 0, older: bool = False) -> tuple[int, dict[str, Any]]:
    """The tile of a kernel and its launch settings. older: than sm_90"""
    large = max(slots, width) > 64
    tile, warps = TILE[kernel][large], WARPS[kernel][large]
    if older:
        tile, warps = OLDER.get(kernel, (tile, warps))
    return tile, {"num_warps": warps, "num_stages": STAGES[kernel], **FUSION}


def columns(width: int) -> tuple[int, int]:
    """Columns of a block of a matrix, and how many blocks there are."""
    wide = min(128, max(16, triton.next_power_of_2(width)))
    return wide, triton.cdiv(width, wide)


def split(tiles: int, programs: int) -> tuple[int, int]:
    """How often to split tiles that are added up by so many programs, and the tiles of a split."""
    splits = max(1, min(tiles, PROGRAMS // max(1, programs)))
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
    if z.numel():
        with torch.cuda.device_of(key):
            _attend[(triton.cdiv(texts, tile), images * heads)](
                q, key, value, key if mask is None else mask, unit, q if places is None else places, z,
                texts, images, q.shape[1], H=heads, BM=tile, MASK=mask is not None, LIST=places is not None,
                PREC=precision(q), **sizes(slots, width), **launch,
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
    z: Tensor,
    matrix: Tensor,
    shift: Tensor,
    u: Tensor,
    units: Tensor,
    keep: bool,
    triangle: bool,
    places: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """z [r, T, D], matrix [D, D], shift [D], u [T, D] -> y = z @ matrix in units; two inner products [r, T]

    along    z . u
    square   keep: z . (y + 2 shift); else |y + shift|^2, and no y [0]
    units    [3] those of z, y and u
    triangle the matrix has zeros above its diagonal

    The products are those of the tensors that stand behind the units.
    """
    images, texts, width = z.shape
    rows, (tile, launch) = images * texts, settings("lengths")
    wide, blocks = columns(width)
    y = torch.empty_like(z) if keep else z.new_empty(0)
    along, square = (torch.empty(blocks, rows, dtype=torch.float32, device=z.device) for _ in range(2))
    if rows:
        with torch.cuda.device_of(z):
            _lengths[(blocks, triton.cdiv(rows, tile))](
                z, matrix, shift, u, units, z if places is None else places, y if keep else z, along, square,
                rows, texts, D=width, BM=tile, BN=wide, BK=min(64, wide), KEEP=keep, TRIANGLE=triangle,
                LIST=places is not None, PREC=precision(z), **launch,
            )  # fmt: skip
    return y, along.sum(0).view(images, texts), square.sum(0).view(images, texts)


@lengths.register_fake
def _(
    z: Tensor, matrix: Any, shift: Tensor, u: Any, units: Any, keep: bool, triangle: bool, places: Any = None
) -> tuple[Tensor, Tensor, Tensor]:
    y = torch.empty_like(z) if keep else z.new_empty(0)
    return y, shift.new_empty(z.shape[:2]), shift.new_empty(z.shape[:2])


@torch.library.custom_op("grainline::unattend", mutates_args=())
def unattend(
    q: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    u: Tensor,
    y: Tensor,
    shift: Tensor,
    by_along: Tensor,
    by_square: Tensor,
    units: Tensor,
    places: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients by logits [heads, T, r, L], keys and values [r, heads, L, d], the last two in float32

    With places the first is that by queries of pairs [r, C, D], not set where there is no text.
    q, key, value, mask as of `attend`; u [T, D], y [r, T, D], shift [D] as of `lengths`
    by_along, by_square  [r, T] float32 gradients, in units that keep those of z in the range of operands
    units                [3] of logits, y and u
    """
    heads, images, slots, width = key.shape
    listed, texts = places is not None, (q if places is None else places).shape[1]
    tile, launch = settings(LISTED if listed else "unattend", slots, width)
    splits, tiles = split(triton.cdiv(texts, tile), images * heads)
    by_text = value.new_empty((images, texts, heads * width) if listed else (heads, texts, images, slots))
    by_key, by_value = (
        torch.zeros(splits, images, heads, slots, width, dtype=torch.float32, device=key.device)
        for _ in range(2)
    )
    if by_text.numel():
        with torch.cuda.device_of(key):
            _unattend[(splits, images * heads)](
                q, key, value, key if mask is None else mask, u, y, shift, by_along, by_square, units,
                places if listed else q, by_text, by_key, by_value, texts, images, q.shape[1], tiles,
                H=heads, BM=tile, MASK=mask is not None, LIST=listed, PREC=precision(q),
                **sizes(slots, width), **launch,
            )  # fmt: skip
    return by_text, by_key.sum(0), by_value.sum(0)


@unattend.register_fake
def _(
    q: Tensor, key: Tensor, value: Tensor, mask: Any, u: Any, y: Any, shift: Any,
    by_along: Tensor, by_square: Any, units: Any, places: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    heads, images, slots, width = key.shape
    other = by_along.new_empty(images, heads, slots, width)
    shape = (heads, q.shape[1], images, slots)
    if places is not None:
        shape = (*places.shape, heads * width)
    return value.new_empty(shape), other, torch.empty_like(other)


@torch.library.custom_op("grainline::outer", mutates_args=())
def outer(z: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """z [R, D], weight [R] float32 -> sums over rows of w z z' [D, D] and of w z [D], both in float32

    Blocks of the matrix above the diagonal count twice and those below it are zeros: as the gradient of a
    matrix that is symmetric, that is the same. weight is in a unit that keeps w z in the range of operands.
    """
    (rows, width), (tile, launch) = z.shape, settings("outer", older=is_older(z))
    wide, blocks = columns(width)
    splits, tiles = split(triton.cdiv(rows, tile), blocks * (blocks + 1) // 2)
    by_matrix, by_shift = (weight.new_empty(splits, *shape) for shape in ((width, width), (width,)))
    with torch.cuda.device_of(z):
        _outer[(blocks, blocks, splits)](
            z, weight, by_matrix, by_shift, rows, tiles, D=width, BM=tile, BN=wide, PREC=precision(z),
            **launch,
        )  # fmt: skip
    return by_matrix.sum(0), by_shift.sum(0)


@outer.register_fake
def _(z: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    return weight.new_empty(z.shape[1], z.shape[1]), weight.new_empty(z.shape[1])
