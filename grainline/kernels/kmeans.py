"""Local k-means of superpixels, as `nn/superpixels.py` has it: pixels are read once for each step.

    assign   pixels of a row of cells choose among nine centres: sums of what they chose, or at last labels
    pieces   pixels learn the first pixel of their piece: a program for each superpixel, over nine cells
    stay     the largest piece of a superpixel stays
    join     all other pixels join what they touch, ring by ring: a program for each image

A lane of `assign` is a column of pixels of a cell. It walks down the cell and holds nine centres and nine
sums in registers; only at the end lanes are added up. No two programs add to one number, and where lanes do,
it is a smallest or a count of integers: the bits are the same in each run.

Numbers of cells stand in planes [number, cells]; cells = images * G * G, G cells along a side of S pixels.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from grainline.kernels import FUSION


@triton.jit
def _lanes(S: tl.constexpr, C: tl.constexpr, BG: tl.constexpr, BC: tl.constexpr):
    """The image and row of cells of a program; cells [BG, 1], columns [1, BC] of its lanes; which are real"""
    line = tl.program_id(0).to(tl.int64)
    cell = tl.program_id(1) * BG + tl.arange(0, BG)[:, None]
    column = tl.arange(0, BC)[None, :]
    return line // (S // C), line % (S // C), cell, column, (cell < S // C) & (column < C)


@triton.jit
def _and(some, more):
    return some + (more,)  # noqa: RUF005 - Triton unpacks nothing


@triton.jit
def _shade(middle, moved, other, home, near, inside):
    """One number of the colour of a centre, over the mean of my cell"""
    own = tl.load(middle + home, mask=inside, other=0.0)
    return tl.load(moved + other, mask=near, other=0.0) + (
        tl.load(middle + other, mask=near, other=0.0) - own
    )


@triton.jit
def _centres(middle, moved, home, plane, row, cell, x, compactness, G: tl.constexpr):
    """Nine centres: [BG, 1] three of colour, down, and [BG, BC] the share of a column of pixels in its fit

    They are relative to the middle of the pixel's own cell, as the pixels are.
    """
    out = ()
    for a in tl.static_range(9):
        down, across = a // 3 - 1, a % 3 - 1
        near = (row + down >= 0) & (row + down < G) & (cell + across >= 0) & (cell + across < G)
        other = home + (down * G + across)
        u0 = _shade(middle, moved, other, home, near, cell < G)
        u1 = _shade(middle + plane, moved + plane, other, home, near, cell < G)
        u2 = _shade(middle + 2 * plane, moved + 2 * plane, other, home, near, cell < G)
        u3 = tl.load(moved + 3 * plane + other, mask=near, other=0.0) + down * compactness
        u4 = tl.load(moved + 4 * plane + other, mask=near, other=0.0) + across * compactness
        # |v - u|^2 = |v|^2 - 2 (v u - |u|^2 / 2), and |v|^2 is the same for all nine
        own = x * u4 - (u0 * u0 + u1 * u1 + u2 * u2 + u3 * u3 + u4 * u4) / 2
        out = _and(out, (u0, u1, u2, u3, tl.where(near, own, float("-inf"))))
    return out


@triton.jit
def _fit(v, u):
    return v[0] * u[0] + v[1] * u[1] + v[2] * u[2] + v[3] * u[3] + u[4]


@triton.jit
def _nearest(v, centres, real):
    """The neighbour that fits best, of equal ones the lower number."""
    top = tl.where(real, float("-inf"), float("inf"))
    pick = tl.where(real, 4, 0)  # where nothing fits, as with NaN, it is the pixel's own cell
    for a in tl.static_range(9):
        fit = _fit(v, centres[a])
        pick = tl.where(fit > top, a, pick)
        top = tl.maximum(fit, top)
    return pick


@triton.jit
def _added(sums, pick, real, v):
    """Sums of colours and rows and the number of pixels, for nine neighbours, with one more pixel each"""
    out = ()
    for a in tl.static_range(9):
        s, own_pixels = sums[a], tl.where((pick == a) & real, 1.0, 0.0)
        new = (
            s[0] + own_pixels * v[0],
            s[1] + own_pixels * v[1],
            s[2] + own_pixels * v[2],
            s[3] + own_pixels * v[3],
            s[4] + own_pixels,
        )
        out = _and(out, new)
    return out


@triton.jit(do_not_specialize=["cells"])
def _assign(
    colour, middle, moved, part, fit, label, cells, compactness,
    S: tl.constexpr, C: tl.constexpr, BG: tl.constexpr, BC: tl.constexpr, LAST: tl.constexpr,
):  # fmt: skip
    G: tl.constexpr = S // C
    n, row, cell, column, real = _lanes(S, C, BG, BC)
    home, plane, scale = (n * G + row) * G + cell, cells.to(tl.int64), compactness / C
    m0 = tl.load(middle + home, mask=cell < G, other=0.0)
    m1 = tl.load(middle + plane + home, mask=cell < G, other=0.0)
    m2 = tl.load(middle + 2 * plane + home, mask=cell < G, other=0.0)
    x = (column - (C - 1) / 2) * scale
    high = row + tl.zeros([BG, 1], tl.int64)  # a block: the interpreter has no masks of a block and a number
    centres = _centres(middle, moved, home, plane, high, cell, x, compactness, G)
    zero = tl.zeros([BG, BC], tl.float32)
    sums = ((zero, zero, zero, zero, zero),) * 9
    for j in range(C):
        place = (row * C + j) * S + cell * C + column
        from_ = colour + n * 3 * S * S + place
        v0 = tl.load(from_, mask=real, other=0.0) - m0
        v1 = tl.load(from_ + S * S, mask=real, other=0.0) - m1
        v2 = tl.load(from_ + 2 * S * S, mask=real, other=0.0) - m2
        v = (v0, v1, v2, (j - (C - 1) / 2) * scale)
        pick = _nearest(v, centres, real)
        if LAST:
            for a in tl.static_range(9):
                tl.store(fit + (n * 9 + a) * S * S + place, _fit(v, centres[a]), mask=real)
            choice = (row + pick // 3 - 1) * G + cell + pick % 3 - 1
            tl.store(label + n * S * S + place, choice, mask=real)
        else:
            sums = _added(sums, pick, real, v)
    if not LAST:
        some = tl.program_id(1) * BG + tl.arange(0, BG)
        target = part + (n * G + row) * G + some
        for a in tl.static_range(9):
            s = sums[a]
            for q in tl.static_range(4):
                tl.store(target + (6 * a + q) * plane, tl.sum(s[q], 1), mask=some < G)
            tl.store(target + (6 * a + 4) * plane, tl.sum(s[4] * x, 1), mask=some < G)
            tl.store(target + (6 * a + 5) * plane, tl.sum(s[4], 1), mask=some < G)


@triton.jit
def _window(label, own, top, left, number, S: tl.constexpr, WIDE: tl.constexpr):
    """Row and column of numbered pixels of the nine cells around one, and which are of its superpixel"""
    y, x = top + number // WIDE, left + number % WIDE
    inside = (number < WIDE * WIDE) & (y >= 0) & (y < S) & (x >= 0) & (x < S)
    return y, x, inside & (tl.load(label + y * S + x, mask=inside, other=-1) == own)


@triton.jit
def _home(S: tl.constexpr, C: tl.constexpr):
    """The superpixel of a program in its image, where that begins, and row and column of the nine cells"""
    cell, G = tl.program_id(0).to(tl.int64), S // C
    own = cell % (G * G)
    return own, cell // (G * G) * S * S, (own // G - 1) * C, (own % G - 1) * C


@triton.jit
def _pieces(label, state, S: tl.constexpr, C: tl.constexpr, BLOCK: tl.constexpr):
    """state: the lowest pixel of its piece, for each pixel of my superpixel

    Until nothing changes, it is the lowest known: that of a pixel beside, or of the lowest one itself.
    """
    WIDE: tl.constexpr = 3 * C
    own, base, top, left = _home(S, C)
    label, state, lane = label + base, state + base, tl.arange(0, BLOCK)
    for start in range(0, WIDE * WIDE, BLOCK):
        y, x, member = _window(label, own, top, left, start + lane, S, WIDE)
        tl.store(state + y * S + x, (y * S + x).to(tl.int32), mask=member)
    changed = tl.max((lane >= 0).to(tl.int32), 0)
    while changed > 0:
        tl.debug_barrier()
        moved = tl.zeros([BLOCK], tl.int32)
        for start in range(0, WIDE * WIDE, BLOCK):
            y, x, member = _window(label, own, top, left, start + lane, S, WIDE)
            place = y * S + x
            old = tl.load(state + place, mask=member, other=0)
            low = tl.minimum(old, tl.load(state + old, mask=member, other=0))
            for a in tl.static_range(1, 9, 2):  # above, left, right, below
                down, across = a // 3 - 1, a % 3 - 1
                near = member & (y + down >= 0) & (y + down < S) & (x + across >= 0) & (x + across < S)
                other = place + (down * S + across)
                near = near & (tl.load(label + other, mask=near, other=-1) == own)
                low = tl.where(near, tl.minimum(low, tl.load(state + other, mask=near, other=0)), low)
            less = member & (low < old)
            tl.atomic_min(state + place, low, mask=less, sem="relaxed")
            tl.atomic_min(state + old, low, mask=less, sem="relaxed")
            moved = tl.where(less, 1, moved)
        changed = tl.max(moved, 0)


@triton.jit
def _stay(label, state, count, S: tl.constexpr, C: tl.constexpr, BLOCK: tl.constexpr):
    """state: the neighbour, 0 to 8, of pixels in the largest piece; -1 for all others"""
    G: tl.constexpr = S // C
    WIDE: tl.constexpr = 3 * C
    own, base, top, left = _home(S, C)
    label, state, count, lane = label + base, state + base, count + base, tl.arange(0, BLOCK)
    for start in range(0, WIDE * WIDE, BLOCK):
        y, x, member = _window(label, own, top, left, start + lane, S, WIDE)
        first = tl.load(state + y * S + x, mask=member, other=0)
        tl.atomic_add(count + first, tl.full([BLOCK], 1, tl.int32), mask=member, sem="relaxed")
    tl.debug_barrier()
    best = tl.zeros([BLOCK], tl.int64)
    for start in range(0, WIDE * WIDE, BLOCK):
        y, x, member = _window(label, own, top, left, start + lane, S, WIDE)
        first = tl.load(state + y * S + x, mask=member, other=0)
        number = tl.load(count + first, mask=member, other=0).to(tl.int64)
        best = tl.maximum(best, tl.where(member, number * (S * S) + (S * S - 1 - first), 0))
    largest = S * S - 1 - tl.max(best, 0) % (S * S)
    for start in range(0, WIDE * WIDE, BLOCK):
        y, x, member = _window(label, own, top, left, start + lane, S, WIDE)
        stays = tl.load(state + y * S + x, mask=member, other=0) == largest
        neighbour = 3 * (own // G - y // C + 1) + own % G - x // C + 1
        tl.store(state + y * S + x, tl.where(stays, neighbour, -1).to(tl.int32), mask=member)


@triton.jit
def _join(label, state, fit, S: tl.constexpr, C: tl.constexpr, BLOCK: tl.constexpr):
    """state: what joins in ring r takes 16 r + its neighbour; so a ring sees the earlier ones alone. At last
    the labels."""
    G: tl.constexpr = S // C
    n = tl.program_id(0).to(tl.int64)
    label, state, fit = label + n * S * S, state + n * S * S, fit + n * 9 * S * S
    lane = tl.arange(0, BLOCK)
    changed = tl.max((lane >= 0).to(tl.int32), 0)
    ring = changed
    while changed > 0:
        tl.debug_barrier()
        moved = tl.zeros([BLOCK], tl.int32)
        for start in range(0, S * S, BLOCK):
            place = start + lane
            y, x = place // S, place % S
            alone = tl.load(state + place, mask=place < S * S, other=0) < 0
            best, pick = tl.full([BLOCK], float("-inf"), tl.float32), tl.full([BLOCK], 9, tl.int32)
            for a in tl.static_range(1, 9, 2):
                down, across = a // 3 - 1, a % 3 - 1
                near = alone & (y + down >= 0) & (y + down < S) & (x + across >= 0) & (x + across < S)
                other = tl.load(state + place + (down * S + across), mask=near, other=-1)
                high = (y + down) // C + other % 16 // 3 - y // C
                wide = (x + across) // C + other % 16 % 3 - x // C
                near = near & (other >= 0) & (other < 16 * ring)
                near = near & (high >= 0) & (high < 3) & (wide >= 0) & (wide < 3)
                own = tl.where(near, 3 * high + wide, 9)
                value = tl.load(fit + own * (S * S) + place, mask=near, other=float("-inf"))
                better = near & ((value > best) | ((value == best) & (own < pick)))
                best, pick = tl.where(better, value, best), tl.where(better, own, pick)
            joins = alone & (pick < 9)
            tl.store(state + place, 16 * ring + pick, mask=joins)
            moved = tl.where(joins, 1, moved)
        changed = tl.max(moved, 0)
        ring += 1
    tl.debug_barrier()
    for start in range(0, S * S, BLOCK):
        place = start + lane
        y, x, real = place // S, place % S, place < S * S
        code, own = tl.load(state + place, mask=real, other=0), tl.load(label + place, mask=real, other=0)
        row, column = y // C + code % 16 // 3 - 1, x // C + code % 16 % 3 - 1
        own = tl.where(code < 0, own, row * G + column)
        tl.store(label + place, own, mask=real)


PIECES, JOIN = (512, {"num_warps": 4, **FUSION}), (2048, {"num_warps": 8, **FUSION})


def connect(label: Tensor, fit: Tensor, cell: int) -> None:
    """Connect superpixels in place, as `nn.superpixels.connected` does."""
    number, size, _ = label.shape
    state, count = torch.empty_like(label, dtype=torch.int32), torch.zeros_like(label, dtype=torch.int32)
    cells = number * (size // cell) ** 2
    sizes: dict[str, Any] = {"S": size, "C": cell}
    _pieces[(cells,)](label, state, **sizes, BLOCK=PIECES[0], **PIECES[1])
    _stay[(cells,)](label, state, count, **sizes, BLOCK=PIECES[0], **PIECES[1])
    _join[(number,)](label, state, fit, **sizes, BLOCK=JOIN[0], **JOIN[1])


def tile(cell: int) -> tuple[dict[str, int], dict[str, Any]]:
    """Cells and columns of a program, and launch settings: a thread for each lane, one warp or more."""
    columns = triton.next_power_of_2(cell)
    lanes = max(32, columns)
    return {"BG": lanes // columns, "BC": columns}, {"num_warps": lanes // 32, **FUSION}


def assign(
    colour: Tensor, middle: Tensor, moved: Tensor, cell: int, compactness: float, last: bool
) -> Tensor:
    """Sums of colour, row and column, and numbers of pixels, by cell and chosen neighbour: [N, G, G, 9, 6];
    or at last the connected labels: [N, S, S] int64. Equal fits go to the lower number.

    colour  [N, 3, S, S] in Lab; S a multiple of the cell, which has 256 pixels at most
    middle  [N, G, G, 3] its mean in each cell
    moved   [N, G, G, 5] of the centres since they began
    """
    number, _, size, _ = colour.shape
    grid, (blocks, launch) = size // cell, tile(cell)
    cells, images = number * grid**2, number if last else 0
    planes = [x.permute(3, 0, 1, 2).reshape(-1, cells).contiguous() for x in (middle, moved)]
    part = colour.new_empty(54, cells)
    fit = colour.new_empty(images, 9, size, size)
    label = colour.new_empty(images, size, size, dtype=torch.int64)
    sizes: dict[str, Any] = {"S": size, "C": cell, "LAST": last, **blocks, **launch}
    with torch.cuda.device_of(colour):
        program = _assign[(number * grid, triton.cdiv(grid, blocks["BG"]))]
        program(colour, *planes, part, fit, label, cells, compactness, **sizes)
        if not last:
            return part.view(9, 6, number, grid, grid).permute(2, 3, 4, 0, 1)
        connect(label, fit, cell)
    return label
