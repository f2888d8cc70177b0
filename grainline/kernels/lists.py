"""Sums over the pairs of each text, where every image has its own list of texts.

    invert   the pairs of each text, from the texts of each image, in an order that is always the same
    collect  the sum of rows of pairs over those of each text: one program for a text and a block of columns

Gradients by texts are such sums. A program reads what it adds up, and no two add to one number: without
atomics, and the same bits in each run. A list is [r, C], -1 = none; pairs are numbered i * C + c; T texts.
"""

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from grainline.kernels.launch import FUSION

ROWS, COLUMNS = 16, 256  # pairs of a step of a program, and the most columns of it
LAUNCH = {"num_warps": 4, "num_stages": 2, **FUSION}


class Inverted(NamedTuple):
    """Which pairs each text is in."""

    pair: Tensor  # [r * C] int64, by text and then as they are; none come first
    start: Tensor  # [T + 1] int64, where in `pair` those of a text begin


def invert(places: Tensor, texts: int) -> Inverted:
    """places [r, C] int64 -> the pairs of each of so many texts. The host waits for nothing."""
    text, pair = places.flatten().int().sort(stable=True)
    bounds = torch.arange(texts + 1, dtype=torch.int32, device=places.device)
    return Inverted(pair, torch.searchsorted(text, bounds))


@triton.jit
def _collect(
    x, weight, pair, start, out, total,
    D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, WEIGHT: tl.constexpr,
):  # fmt: skip
    text, block = tl.program_id(0).to(tl.int64), tl.program_id(1)
    row, col = tl.arange(0, BM), block * BN + tl.arange(0, BN)
    first, end = tl.load(start + text), tl.load(start + text + 1)
    acc, alone = tl.zeros([BN], tl.float32), tl.zeros([BM], tl.float32)
    for at in range(first, end, BM):
        inside = at + row < end
        here = tl.load(pair + at + row, mask=inside, other=0)
        both = inside[:, None] & (col < D)[None, :]
        part = tl.load(x + here[:, None] * D + col[None, :], mask=both, other=0.0).to(tl.float32)
        if WEIGHT:
            by = tl.load(weight + here, mask=inside, other=0.0)
            alone += by
            part *= by[:, None]
        acc += tl.sum(part, 0)
    tl.store(out + text * D + col, acc, mask=col < D)
    if WEIGHT:
        tl.store(total + text, tl.sum(alone, 0), mask=block == 0)


@torch.library.custom_op("grainline::collect", mutates_args=())
def collect(x: Tensor, weight: Tensor | None, pair: Tensor, start: Tensor) -> tuple[Tensor, Tensor]:
    """x [r, C, D], weight [r, C] float32 -> sums of w x [T, D] and of w [T] over the pairs of each text

    Both in float32; weight None: 1, and no second sum [0]. pair, start  an `Inverted`
    """
    texts, width = len(start) - 1, x.shape[-1]
    out = torch.zeros(texts, width, dtype=torch.float32, device=x.device)
    total = torch.zeros(0 if weight is None else texts, dtype=torch.float32, device=x.device)
    if texts and x.numel():
        wide = min(COLUMNS, triton.next_power_of_2(width))
        with torch.cuda.device_of(x):
            _collect[(texts, triton.cdiv(width, wide))](
                x, x if weight is None else weight, pair, start, out, total, D=width, BM=ROWS, BN=wide,
                WEIGHT=weight is not None, **LAUNCH,
            )  # fmt: skip
    return out, total


@collect.register_fake
def _(x: Tensor, weight: Any, pair: Any, start: Tensor) -> tuple[Tensor, Tensor]:
    shape = len(start) - 1, x.shape[-1]
    out = x.new_empty(shape, dtype=torch.float32)
    return out, out.new_empty(0 if weight is None else shape[0])
