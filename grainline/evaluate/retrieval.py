"""Retrieval metrics: ranks from scores, recalls from ranks, and what a random ranking would reach.

Nothing here knows what a model is. Two rules hold everywhere:
  1. ties are wrong: a negative that scores exactly as high as the best positive stands before it;
  2. a query with several positives (a picture with five captions) is judged by its best one, and its
     other positives are no competitors.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from grainline.errors import UserError


class Ranks(NamedTuple):
    """Where the best positive of every query stands."""

    rank: Tensor  # [Q] int64, 1 = best
    tied: Tensor  # [Q] bool, a negative has exactly the score of the best positive


def ranks(score: Tensor, positive: Tensor) -> Ranks:
    """Rank of the best positive of every query, ties counted as wrong.

    score     [Q, C] any real numbers, negative ones and -inf included
    positive  [Q, C] bool, at least one per row

    Raises UserError with their number if scores are NaN.

    >>> score = torch.tensor([[0.9, 0.2, 0.5], [0.1, 0.7, 0.7], [-0.3, -0.1, -0.2]])
    >>> positive = torch.tensor([[False, True, True], [False, True, False], [False, True, False]])
    >>> ranks(score, positive)
    Ranks(rank=tensor([2, 2, 1]), tied=tensor([False,  True, False]))
    """
    assert score.shape == positive.shape, (score.shape, positive.shape)
    assert bool(positive.any(1).all()), "a query without a positive has no rank"
    refuse_nan(int(score.isnan().sum()), score.numel())
    best = score.masked_fill(~positive, -torch.inf).amax(1, keepdim=True)
    ahead = ((score >= best) & ~positive).sum(1)
    tied = ((score == best) & ~positive).any(1)
    return Ranks(ahead + 1, tied)


def refuse_nan(number: int, total: int) -> None:
    """Raise UserError if any score is NaN: it would compare as neither higher nor lower."""
    if number:
        raise UserError(
            f"{number} of {total} scores are not a number; every score must be one: "
            "look for inf or NaN in the weights of the model"
        )


def chance_recall(positives: Sequence[int] | np.ndarray, candidates: int, k: int) -> float:
    """Expected recall at k of a random ranking: the mean of 1 - C(C - m, k) / C(C, k).

    positives   [Q] number m of positives of every query
    candidates  C, positives included

    >>> chance_recall([1, 1], candidates=64, k=16)
    0.25
    >>> round(chance_recall([5], candidates=1000, k=10), 6)
    0.049106
    """
    m = np.asarray(positives, np.float64)
    assert m.min() >= 1, "a query without a positive has no rank"
    assert m.max() <= candidates, "positives are among the candidates"
    return float(1 - np.mean(_miss(m, candidates, k)))


def chance_median(positives: Sequence[int] | np.ndarray, candidates: int) -> float:
    """Median rank of a random ranking over all queries together.

    positives   [Q] number of positives of every query
    candidates  C, positives included

    >>> chance_median([1, 1], candidates=50)
    25.5
    >>> chance_median([5, 5, 5], candidates=1000)
    130.0
    """
    number, share = np.unique(np.asarray(positives, np.float64), return_counts=True)
    step = np.arange(candidates)[None]
    keep = np.clip((candidates - number[:, None] - step) / (candidates - step), 0, 1)  # [kinds, C]
    reached = 1 - (share / share.sum()) @ np.cumprod(keep, axis=1)  # [C], P(rank <= 1), P(rank <= 2), ...
    lower = np.argmax(reached >= 0.5 - 1e-12) + 1
    upper = np.argmax(reached > 0.5 + 1e-12) + 1
    return float(lower + upper) / 2


def _miss(positives: np.ndarray, candidates: int, k: int) -> np.ndarray:
    """Chance that none of m positives is among k drawn candidates, as a product that cannot overflow: [Q]."""
    miss = np.ones_like(positives)
    for step in range(min(k, candidates)):
        miss = miss * np.clip((candidates - positives - step) / (candidates - step), 0, 1)
    return miss
