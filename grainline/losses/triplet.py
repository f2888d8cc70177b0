"""Triplets with the hardest negatives of VSE++ (Faghri et al., arXiv 1707.05612), and the share of patches of
SEPS (Mao et al., arXiv 2511.01390, equation 7)."""

from typing import Literal

import torch
from torch import Tensor

Shares = Literal["joint", "apart"]
"""Whether both branches together keep a share of the patches, or each of them."""


def triplet(score: Tensor, positive: Tensor, against: Tensor, margin: float, hardest: bool) -> Tensor:
    """By how much negatives violate the margin of positives, added up over the positives of all rows: []

    score     [n, M]
    positive  [n, M] bool, against [n, M] bool: the negatives of each row; the rest is neither

    for i, j with positive[i, j]:
        cost[k] = max(0, margin + score[i, k] - score[i, j]) for k with against[i, k]
        total += max(cost) if hardest else sum(cost)    (0 without negatives)
    """
    row, column = positive.nonzero(as_tuple=True)
    cost = (margin + score[row] - score[row, column][:, None]).clamp(min=0) * against[row]
    if not cost.shape[1]:
        return score.sum()
    return cost.max(1).values.sum() if hardest else cost.sum()


@torch.no_grad()
def touched(
    score: Tensor, positive: Tensor, against: Tensor, margin: float, hardest: bool, near: float = 0.0
) -> Tensor:
    """Which scores `triplet` has a gradient by: [n, M] bool

    near  also those by which it could have one if each score were off by half of this at most, as by
          rounding: costs just below 0 then count too, and with `hardest` all that nearly reach the greatest
    """
    row, column = positive.nonzero(as_tuple=True)
    out = torch.zeros_like(score)
    if not score.shape[1]:
        return out > 0
    cost = margin + score[row] - score[row, column][:, None]
    cost = cost.masked_fill(~against[row], -torch.inf)
    counts = cost >= -near
    if hardest:
        counts &= cost >= cost.amax(1, keepdim=True) - near
    out.index_add_(0, row, counts.to(out.dtype))
    out[row, column] += counts.any(1).to(out.dtype)
    return out > 0


def keep_ratio(
    keep: float, means: tuple[Tensor, ...], weights: tuple[float, ...], shares: Shares = "joint"
) -> Tensor:
    """The squared distance of the share of patches that stay from `keep`: the shape of the means

    means  of the decisions over all patches, of one branch or two, that broadcast; weights of each of them

    joint: (keep - sum of weight * mean)**2;  apart: the sum of (keep - mean)**2, without weights
    """
    if shares == "apart":
        return torch.stack(torch.broadcast_tensors(*((keep - mean) ** 2 for mean in means))).sum(0)
    weighted = [weight * mean for weight, mean in zip(weights, means, strict=True)]
    return (keep - torch.stack(torch.broadcast_tensors(*weighted)).sum(0)) ** 2
