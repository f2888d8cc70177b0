"""Farthest point sampling: a few tokens of each set that lie far apart (Qi et al., arXiv 1706.02413).

Sampling starts at the mean of the set, which is no token and is not picked. Each pick is the token that lies
farthest from the nearest of the mean and all earlier picks, as in the code of CAST, which puts the mean in
front of the tokens. Picks are indices and carry no gradient.

All distances come out of one product of the tokens with themselves, so a pick costs a look at L numbers. Two
things keep them exact. Tokens are centred first: a large common offset would use up the digits in which they
differ. And the product is never rounded to 11 bits, as those of float32 are on a GPU that may use TF32: then
each token goes in as a sum of two.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from grainline.nn.precision import may_round
from grainline.types import full

SAME = 1e-5
"""Tokens whose squared distance is at most this share of their squared length from the mean count as equal.

Where all distances come out of products in float32, those of equal tokens are not quite 0.
"""

LOW = 0x1FFF
"""The last 13 of the 23 bits that a float32 stores: without them it is a number of TF32."""


class Picks(NamedTuple):
    """Which tokens were picked."""

    token: Tensor  # [N, M] int64, in the order of picking
    mask: Tensor  # [N, M] bool; False: no valid token was left that differs from those picked before


@torch.no_grad()
def farthest_points(x: Tensor, valid: Tensor | None, number: int) -> Picks:
    """M tokens of each set that lie far apart, in the order of picking. No value is read by the host.

    x       [N, L, C] tokens; distances are Euclidean, computed in float32 at least
    valid   [N, L] bool, the tokens that may be picked; None: all
    number  M, at most L

    Where fewer than M valid tokens differ (`SAME`), the rest is False in the mask; its tokens mean nothing.

    pick[m] = argmax_l min(|x[l] - mean(x)|, min_{k < m} |x[l] - x[pick[k]]|)

    >>> farthest_points(torch.tensor([[[0.0], [1.0], [2.0], [6.0]]]), None, 3).token
    tensor([[3, 0, 1]])
    """
    with torch.autocast(x.device.type, enabled=False):
        once = centred(full(x.detach()), valid)
        product = products(centred(once, valid))  # twice: the mean itself is rounded beside a large offset
    length = product.diagonal(dim1=1, dim2=2).contiguous()  # [N, L] squared
    start, near = torch.arange(x.shape[0], device=x.device) * x.shape[1], SAME * length
    # Squared distance to the mean or a pick; -inf: not to be picked.
    nearest = length if valid is None else length.masked_fill(~valid, -torch.inf)
    picks, real = [], []
    for _ in range(number):
        far, pick = nearest.max(dim=1)
        own = length.flatten().index_select(0, start + pick)
        real.append(far > -torch.inf)
        apart = torch.add(length, product.flatten(0, 1).index_select(0, start + pick), alpha=-2)
        apart += own[:, None]
        # A token equal to a pick goes, the pick itself with it; one equal to the mean may still be picked.
        nearest = nearest.minimum(apart).masked_fill_(apart <= near, -torch.inf)
        picks.append(pick)
    return Picks(torch.stack(picks, dim=1), torch.stack(real, dim=1))


def centred(x: Tensor, valid: Tensor | None) -> Tensor:
    """x [N, L, C] less the mean of its valid tokens."""
    if valid is None:
        return x - x.mean(1, keepdim=True)
    total = x.masked_fill(~valid[..., None], 0.0).sum(1)
    return x - (total / valid.sum(1, keepdim=True).clamp(min=1))[:, None]


def products(x: Tensor) -> Tensor:
    """Scalar products of the tokens of a set, in the precision of x: [N, L, C] -> [N, L, L]"""
    if x.dtype != torch.float32 or not may_round(x.device):
        return x @ x.mT
    high, low = halves(x)
    mixed = high @ low.mT
    return high @ high.mT + mixed + mixed.mT


def halves(x: Tensor) -> tuple[Tensor, Tensor]:
    """x float32 as a sum of a number of 11 bits and one of 13, the first of which is one of TF32.

    So products of the first with itself are exact in TF32, and mixed ones lose the last 2 bits of the second.
    """
    high = (x.view(torch.int32) & ~LOW).view(torch.float32)
    return high, x - high
