"""Numbers as if at random, from a hash of ids: the same in any batch, in any chunk and on any process.

No generator has a state to keep, and the same ids give the same number however often it is computed, which is
what recomputation needs.
"""

import torch
from torch import Tensor

from grainline.types import Clock


def lots(clock: Clock, rows: Tensor, cols: Tensor) -> Tensor:
    """A number for each pair of ids [n] and [G], as if at random in 0..2**63 - 1: [n, G] int64"""
    start = mixed(mixed(torch.full_like(rows[:1], _signed(clock.seed))) ^ clock.step)
    return mixed(mixed(start ^ rows)[:, None] ^ mixed(cols + GOLDEN)) & (2**63 - 1)


def share_of(lot: Tensor) -> Tensor:
    """Random integers as float32 numbers strictly between 0 and 1, of the same shape."""
    return ((lot & (2**BITS - 1)).float() + 0.5) / 2**BITS


BITS = 23  # half a step below 1 is then still a number of float32


def _signed(x: int) -> int:
    """The 64-bit integer with the same last 64 bits.

    >>> _signed(2**64 - 1), _signed(7)
    (-1, 7)
    """
    return (x + 2**63) % 2**64 - 2**63


GOLDEN = _signed(0x9E3779B97F4A7C15)  # 2**64 over the golden ratio
FIRST, SECOND = _signed(0xFF51AFD7ED558CCD), _signed(0xC4CEB9FE1A85EC53)


def mixed(x: Tensor) -> Tensor:
    """The last steps of MurmurHash3, int64 to int64, one to one: every bit depends on every bit."""
    for factor in (FIRST, SECOND):
        x = (x ^ (x >> 33 & (2**31 - 1))) * factor  # a shift of an int64 repeats its sign: cut that off
    return x ^ (x >> 33 & (2**31 - 1))
