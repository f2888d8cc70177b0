"""Farthest points: all picks of a set in one program, where torch launches eight kernels for each pick.

The program holds the distances to the picks so far in registers, and reads one row of products for each pick.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from grainline.kernels.launch import FUSION

LAUNCH = {"num_warps": 1, **FUSION}  # a row of 197 numbers is too short for more warps


@triton.jit
def _farthest(
    product, valid, token, real, SAME: tl.constexpr, L: tl.constexpr, M: tl.constexpr, SIZE: tl.constexpr,
    VALID: tl.constexpr,
):  # fmt: skip
    n = tl.program_id(0).to(tl.int64)
    col = tl.arange(0, SIZE)
    inside = col < L
    rows = product + n * L * L
    length = tl.load(rows + col * (L + 1), mask=inside, other=0.0)
    usable = inside
    if VALID:
        usable = inside & (tl.load(valid + n * L + col, mask=inside, other=0) != 0)
    nearest = tl.where(usable, length, float("-inf"))
    for m in range(M):
        far, pick = tl.max(nearest, 0, return_indices=True)
        own = tl.load(rows + pick * (L + 1))
        row = tl.load(rows + pick * L + col, mask=inside, other=0.0)
        distance = (length - 2.0 * row) + own
        tl.store(token + n * M + m, pick.to(tl.int64))
        tl.store(real + n * M + m, far > float("-inf"))
        nearest = tl.where(distance <= SAME * length, float("-inf"), tl.minimum(nearest, distance))


@torch.library.custom_op("grainline::farthest", mutates_args=())
def farthest(product: Tensor, valid: Tensor | None, number: int, same: float) -> tuple[Tensor, Tensor]:
    """Picks [N, M] int64 and which of them are real [N, M] bool, from products of centred tokens [N, L, L].

    valid [N, L] bool, the tokens that may be picked; None: all. same: share of the squared distance from the
    mean up to which tokens are equal. As `nn.grouping.farthest_points`, whose loop is the reference.
    """
    product = product.contiguous()
    count, slots, _ = product.shape
    token = torch.empty(count, number, dtype=torch.int64, device=product.device)
    real = torch.empty(count, number, dtype=torch.bool, device=product.device)
    if count:
        some: Any = product if valid is None else valid.contiguous()
        with torch.cuda.device_of(product):
            _farthest[(count,)](
                product, some, token, real, SAME=same, L=slots, M=number, SIZE=triton.next_power_of_2(slots),
                VALID=valid is not None, **LAUNCH,
            )  # fmt: skip
    return token, real


@farthest.register_fake
def _(product: Tensor, valid: Tensor | None, number: int, same: float) -> tuple[Tensor, Tensor]:
    shape = len(product), number
    return product.new_empty(shape, dtype=torch.int64), product.new_empty(shape, dtype=torch.bool)
