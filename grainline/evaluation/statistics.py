"""Statistics of outcomes: ranks, what a random ranking reaches, and intervals.

Two rules hold for ranks everywhere: a negative that scores exactly as high as the best positive stands before
it (ties are wrong), and a query with several positives (an image with five captions) is judged by its best
one, while its others are no competitors.

Intervals are those of a percentile bootstrap, or Wilson's for plain accuracies. Queries that share an image
are not independent: five captions of one image fail together. So whole images are resampled, with all their
queries (cluster bootstrap), wherever `groups` is given.
"""

from collections.abc import Callable, Iterator, Sequence
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from grainline.errors import UserError

CHUNK = 2**22  # entries of a block of draws: 32 MiB of counts


class Ranks(NamedTuple):
    """The place of the best positive of every query."""

    rank: Tensor  # [Q] int64, 1 = best
    tied: Tensor  # [Q] bool, a negative has exactly the score of the best positive


def ranks(score: Tensor, positive: Tensor) -> Ranks:
    """Rank of the best positive of every query, ties counted as wrong.

    score     [Q, C] any real numbers, negative ones and -inf included
    positive  [Q, C] bool, at least one per row

    Raises UserError with their number if scores are NaN.
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
        why = "look for inf or NaN in the weights of the model"
        raise UserError(f"{number} of {total} scores are not a number; every score must be one: {why}")


def chance_recall(positives: Sequence[int] | np.ndarray, candidates: int, k: int) -> float:
    """Expected recall at k of a random ranking: the mean of 1 - C(C - m, k) / C(C, k).

    positives   [Q] number m of positives of every query
    candidates  C, positives included
    """
    m = np.asarray(positives, np.float64)
    assert m.min() >= 1, "a query without a positive has no rank"
    assert m.max() <= candidates, "positives are among the candidates"
    miss = np.ones_like(m)  # no positive among k candidates, as a product that cannot overflow: [Q]
    for step in range(min(k, candidates)):
        miss = miss * np.clip((candidates - m - step) / (candidates - step), 0, 1)
    return float(1 - np.mean(miss))


def chance_median(positives: Sequence[int] | np.ndarray, candidates: int) -> float:
    """Median rank of a random ranking over all queries together; arguments as in `chance_recall`."""
    number, share = np.unique(np.asarray(positives, np.float64), return_counts=True)
    step = np.arange(candidates)[None]
    miss = np.clip((candidates - number[:, None] - step) / (candidates - step), 0, 1)  # [kinds, C]
    reached = 1 - (share / share.sum()) @ np.cumprod(miss, axis=1)  # [C], P(rank <= 1), P(rank <= 2), ...
    lower = np.argmax(reached >= 0.5 - 1e-12) + 1
    upper = np.argmax(reached > 0.5 + 1e-12) + 1
    return float(lower + upper) / 2


class Interval(NamedTuple):
    """A value and the two ends of its interval."""

    value: float
    low: float
    high: float


def from_replicates(value: float, samples: np.ndarray, level: float = 0.95) -> Interval:
    """The middle `level` of the replicates [R], around the value of the data themselves."""
    low, high = np.quantile(samples, [(1 - level) / 2, (1 + level) / 2])
    return Interval(float(value), float(low), float(high))


def replicates(
    values: np.ndarray,
    groups: np.ndarray | None = None,
    statistic: Callable[[np.ndarray], float] | None = None,
    *,
    resamples: int = 1000,
    seed: int | tuple[int, ...] = 0,
) -> np.ndarray:
    """The statistic of every resample.

    values     [Q] one number per query, or [Q, F] for F means at once
    groups     [Q] id of the image of each query: whole groups are resampled. None: each query alone
    statistic  a function from [K] values to a number, called for every resample; None: the mean

    Returns [R], or [R, F]. Equal seeds and equal numbers of groups mean equal draws, in the order of the
    group ids: sums of replicates from two sets of queries over the same images are a joint bootstrap.
    """
    values = np.asarray(values, np.float64)
    assert len(values) > 0, "no values to resample"
    ids = np.arange(len(values)) if groups is None else np.asarray(groups)
    assert ids.shape == values.shape[:1], (ids.shape, values.shape)
    unique, code = np.unique(ids, return_inverse=True)
    draws = _draws(len(unique), resamples, seed)
    if statistic is not None:
        times = (row[code].astype(np.int64) for block in draws for row in block)
        return np.array([float(statistic(np.repeat(values, number, axis=0))) for number in times])
    size = np.bincount(code).astype(np.float64)  # [G]
    total = np.zeros((len(unique), *values.shape[1:]))
    np.add.at(total, code, values)
    ones = [1] * (values.ndim - 1)
    return np.concatenate([(block @ total) / (block @ size).reshape(-1, *ones) for block in draws])


def wilson(right: int, number: int, level: float = 0.95) -> Interval:
    """Wilson's score interval of a share of independent trials, for shares near 0 and 1 too."""
    assert 0 <= right <= number > 0, (right, number)
    z = NormalDist().inv_cdf((1 + level) / 2)
    share = right / number
    scale = 1 + z * z / number
    middle = (share + z * z / (2 * number)) / scale
    half = z / scale * (share * (1 - share) / number + z * z / (4 * number * number)) ** 0.5
    return Interval(share, max(0.0, middle - half), min(1.0, middle + half))


def _draws(groups: int, resamples: int, seed: int | tuple[int, ...]) -> Iterator[np.ndarray]:
    """How often each group is in each resample, in blocks: [c, G] float64, rows sum to G."""
    generator = np.random.default_rng(seed)
    block = max(1, CHUNK // groups)
    for start in range(0, resamples, block):
        c = min(block, resamples - start)
        index = generator.integers(0, groups, size=(c, groups)) + groups * np.arange(c)[:, None]
        yield np.bincount(index.ravel(), minlength=c * groups).reshape(c, groups).astype(np.float64)
