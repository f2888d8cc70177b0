"""Intervals: percentile bootstrap over images, and Wilson's interval for plain accuracies.

Queries that share an image are not independent: five captions of one image fail together. So whole
images are drawn again, with all their queries (cluster bootstrap), wherever `groups` is given.
"""

from collections.abc import Callable, Iterator
from statistics import NormalDist
from typing import Literal, NamedTuple

import numpy as np

Statistic = Literal["mean", "median"] | Callable[[np.ndarray], float]

CHUNK = 2**22  # entries of a block of draws: 32 MiB of counts


class Interval(NamedTuple):
    """A value and the two ends of its interval."""

    value: float
    low: float
    high: float


def interval(
    values: np.ndarray,
    groups: np.ndarray | None = None,
    statistic: Statistic = "mean",
    *,
    resamples: int = 1000,
    seed: int = 0,
    level: float = 0.95,
) -> Interval:
    """Percentile bootstrap interval of a statistic.

    values     [Q] one number per query
    groups     [Q] id of the image behind each query; whole groups are drawn. None: each query alone
    statistic  "mean", "median", or a function from [K] values to a number (slower: called per resample)

    Values that are all equal give an interval of width zero; for shares near 0 or 1 look at `wilson` too.

    >>> hits = np.array([1, 1, 1, 0, 0, 0, 1, 0, 1, 1], float)
    >>> interval(hits)
    Interval(value=0.6, low=0.3, high=0.9)
    >>> images = np.array([0, 0, 0, 1, 1, 1, 2, 3, 4, 4])
    >>> [round(end, 2) for end in interval(hits, images)]
    [0.6, 0.14, 1.0]
    """
    drawn = replicates(values, groups, statistic, resamples=resamples, seed=seed)
    return from_replicates(point(values, statistic), drawn, level)


def from_replicates(value: float, drawn: np.ndarray, level: float = 0.95) -> Interval:
    """The middle `level` of the replicates [R], around the value of the data themselves."""
    low, high = np.quantile(drawn, [(1 - level) / 2, (1 + level) / 2])
    return Interval(float(value), float(low), float(high))


def point(values: np.ndarray, statistic: Statistic = "mean") -> float:
    """The statistic of the values as they are.

    >>> point(np.array([1.0, 5.0, 3.0, 10.0]), "median")
    4.0
    """
    if callable(statistic):
        return float(statistic(values))
    return float(np.median(values) if statistic == "median" else np.mean(values))


def replicates(
    values: np.ndarray,
    groups: np.ndarray | None = None,
    statistic: Statistic = "mean",
    *,
    resamples: int = 1000,
    seed: int | tuple[int, ...] = 0,
) -> np.ndarray:
    """The statistic of every resample.

    values  [Q], or [Q, F] for F means at once
    groups  [Q] or None

    Returns [R], or [R, F]. Equal seeds and equal numbers of groups mean equal draws, in the order of the
    group ids: sums of replicates from two sets of queries over the same images are a joint bootstrap.
    """
    values = np.asarray(values, np.float64)
    assert len(values) > 0, "no values to resample"
    ids = np.arange(len(values)) if groups is None else np.asarray(groups)
    assert ids.shape == values.shape[:1], (ids.shape, values.shape)
    unique, code = np.unique(ids, return_inverse=True)
    draws = _draws(len(unique), resamples, seed)
    if callable(statistic):
        return np.array([_of_resample(values, code, row, statistic) for block in draws for row in block])
    if statistic == "median":
        return np.concatenate([_medians(values, code, block) for block in draws])
    size = np.bincount(code).astype(np.float64)  # [G]
    total = np.zeros((len(unique), *values.shape[1:]))
    np.add.at(total, code, values)
    parts = []
    for block in draws:
        weight = block @ size
        parts.append((block @ total) / weight.reshape(-1, *[1] * (values.ndim - 1)))
    return np.concatenate(parts)


def replicates_of_classes(
    values: np.ndarray, classes: np.ndarray, *, resamples: int = 1000, seed: int = 0
) -> np.ndarray:
    """The mean over classes of the mean inside each, of every resample: [R]

    values   [Q] one number per query
    classes  [Q] id of the class of each query

    Queries are drawn from all, as they are elsewhere, and a class of which none is drawn does not count in
    that resample. Drawing inside each class would say that a class of one query is certain, and with one
    query a class give an interval of width zero. For large classes both come to the same; for small ones this
    interval is the wider one, since classes differ from each other as well.

    Equal seeds and classes mean equal draws.
    """
    values = np.asarray(values, np.float64)
    assert len(values) > 0, "no values to resample"
    order = np.argsort(classes, kind="stable")
    _, first = np.unique(np.asarray(classes)[order], return_index=True)  # of each class in that order
    parts = []
    for block in _draws(len(values), resamples, seed):
        times = block[:, order]
        drawn = np.add.reduceat(times, first, axis=1)  # [c, C] queries of each class
        total = np.add.reduceat(times * values[order], first, axis=1)
        there = drawn > 0
        parts.append((total / np.where(there, drawn, 1.0)).sum(1) / there.sum(1))
    return np.concatenate(parts)


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
    """How often each group is drawn, in blocks of resamples: [c, G] float64, rows sum to G."""
    generator = np.random.default_rng(seed)
    block = max(1, CHUNK // groups)
    for start in range(0, resamples, block):
        c = min(block, resamples - start)
        drawn = generator.integers(0, groups, size=(c, groups)) + groups * np.arange(c)[:, None]
        yield np.bincount(drawn.ravel(), minlength=c * groups).reshape(c, groups).astype(np.float64)


def _of_resample(
    values: np.ndarray, code: np.ndarray, row: np.ndarray, statistic: Callable[[np.ndarray], float]
) -> float:
    """The statistic of one resample, whose queries are written out as often as their group was drawn."""
    return float(statistic(np.repeat(values, row[code].astype(np.int64), axis=0)))


def _medians(values: np.ndarray, code: np.ndarray, block: np.ndarray) -> np.ndarray:
    """Medians of resamples without sorting each: counts summed up along the values sorted once. [c]"""
    order = np.argsort(values, kind="stable")
    ordered = values[order]
    out = np.empty(len(block))
    step = max(1, CHUNK // len(values))
    for start in range(0, len(block), step):
        seen = np.cumsum(block[start : start + step][:, code[order]], axis=1)  # [c, Q]
        number = seen[:, -1:]
        lower = (seen <= (number - 1) // 2).sum(1)
        upper = (seen <= number // 2).sum(1)
        out[start : start + step] = (ordered[lower] + ordered[upper]) / 2
    return out
