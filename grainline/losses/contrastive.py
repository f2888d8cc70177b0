"""Losses over a matrix of scores between local rows and gathered rows, with the slow program of each.

Cross-entropy of CLIP and binary cross-entropy of SigLIP; triplets with the hardest negatives of VSE++ (Faghri
et al., arXiv 1707.05612), and the share of patches of SEPS (Mao et al., arXiv 2511.01390, equation 7).
"""

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from grainline.types import Mean, full

Shares = Literal["joint", "apart"]
"""Whether both branches together keep a share of the patches, or each of them."""


def soft_info_nce(logits: Tensor, weight: Tensor, smoothing: float = 0.0) -> Mean:
    """Cross-entropy of every row against the weights of its positives.

    logits     [n, M]  row i scored against every candidate; -inf takes a candidate out
    weight     [n, M]  >= 0, normalised per row here; a row of zeros is padding and is skipped
    smoothing  share of the target that all candidates of a row have in common (label smoothing)

    for i in rows with weight[i].sum() > 0:
        candidates = logits[i] > -inf
        target = (1 - smoothing) * weight[i] / weight[i].sum() + smoothing * candidates / candidates.sum()
        total += -(target * log_softmax(logits[i])).sum()
        number += 1

    With one positive per row this is InfoNCE (van den Oord et al., arXiv 1807.03748, eq. 4; CLIP,
    arXiv 2103.00020, figure 3); with several of equal weight, its multi-positive form.

    >>> logits = torch.tensor([[2.0, 0.0, -torch.inf], [1.0, 1.0, 0.0]])
    >>> soft_info_nce(logits, torch.tensor([[1.0, 0.0, 0.0], [0.0, 0.0, 0.0]]))
    Mean(total=tensor(0.1269), number=tensor(1))
    """
    mass = weight.sum(1)
    real = mass > 0
    target = weight / mass.clamp(min=1e-8)[:, None]
    if smoothing:
        candidates = (logits > -torch.inf).to(target.dtype)
        even = candidates / candidates.sum(1, keepdim=True).clamp(min=1)
        target = ((1 - smoothing) * target + smoothing * even).masked_fill(~real[:, None], 0.0)
    # A row without positives may hold nothing but -inf (padding): keep its NaN out of the gradient.
    logits = full(logits).masked_fill(~real[:, None], 0.0)
    log_prob = F.log_softmax(logits, dim=1).masked_fill(target == 0, 0.0)
    return Mean(-(target * log_prob).sum(), real.sum())


def sigmoid(logits: Tensor, positive: Tensor, real: Tensor) -> Mean:
    """Binary classification of each pair. SigLIP, arXiv 2303.15343, eq. 1.

    logits    [n, M]  scaled and shifted scores
    positive  [n, M] bool
    real      [n, M] bool, False takes a pair out (padding)

    for i, j with real[i, j]:
        sign = +1 if positive[i, j] else -1
        total += log(1 + exp(-sign * logits[i, j]))
    number = rows with any real pair    (the loss is per image, not per pair: eq. 1 divides by |B|)

    >>> sigmoid(torch.tensor([[2.0, -1.0]]), torch.tensor([[True, False]]), torch.tensor([[True, True]]))
    Mean(total=tensor(0.4402), number=tensor(1))
    """
    signed = full(torch.where(positive, logits, -logits))
    losses = F.softplus(-signed).masked_fill(~real, 0.0)
    return Mean(losses.sum(), real.any(1).sum())


def triplet(score: Tensor, positive: Tensor, against: Tensor, margin: float, hardest: bool) -> Tensor:
    """Sum over the positives of all rows of how far negatives violate their margin: []

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
    score: Tensor, positive: Tensor, against: Tensor, margin: float, hardest: bool, near: float | Tensor = 0.0
) -> Tensor:
    """The scores that `triplet` has a gradient by: [n, M] bool

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

    joint  `(keep - sum of weight * mean)**2`
    apart  the sum of `(keep - mean)**2`, without weights
    """
    if shares == "apart":
        return torch.stack(torch.broadcast_tensors(*((keep - mean) ** 2 for mean in means))).sum(0)
    weighted = [weight * mean for weight, mean in zip(weights, means, strict=True)]
    return (keep - torch.stack(torch.broadcast_tensors(*weighted)).sum(0)) ** 2
