"""Losses over a matrix of scores between local rows and gathered rows, with the slow program of each."""

import torch
import torch.nn.functional as F
from torch import Tensor

from grainline.types import Mean, full


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
