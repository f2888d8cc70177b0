"""Intervals: percentile bootstrap over images, and Wilson's interval for plain accuracies.

Queries that share an image are not independent: five captions of one image fail together. So whole
images are resampled, with all their queries (cluster bootstrap), wherever `groups` is given.
"""

from collections.abc import Callable, Iterator
from statistics import NormalDist
from typing import NamedTuple

import numpy as np

CHUNK = 2**22  # entries of a block of draws: 32 MiB of counts


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
    """Wilson's score interval of a share of independent trials; of use near 0 and 1, where a bootstrap fails.

    >>> [round(x, 4) for x in wilson(8, 10)]
    [0.8, 0.4902, 0.9433]
    >>> wilson(0, 20).high > 0.15
    True
    """
    assert number > 0, number
    assert 0 <= right <= number, (right, number)
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
