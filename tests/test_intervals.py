"""Bootstrap intervals against slow resampling, and their coverage on simulated data."""

from collections.abc import Callable

import numpy as np
import pytest

from grainline.evaluation import statistics
from grainline.evaluation.statistics import Interval, from_replicates, replicates, wilson


def interval(
    values: np.ndarray,
    groups: np.ndarray | None = None,
    statistic: Callable[[np.ndarray], float] | None = None,
    *,
    resamples: int = 1000,
    seed: int = 0,
    level: float = 0.95,
) -> Interval:
    """The bootstrap interval of a statistic, around its value.

    >>> hits = np.array([1, 1, 1, 0, 0, 0, 1, 0, 1, 1], float)
    >>> interval(hits)
    Interval(value=0.6, low=0.3, high=0.9)
    >>> images = np.array([0, 0, 0, 1, 1, 1, 2, 3, 4, 4])
    >>> [round(end, 2) for end in interval(hits, images)]
    [0.6, 0.14, 1.0]
    """
    value = (statistic or np.mean)(values)
    samples = replicates(values, groups, statistic, resamples=resamples, seed=seed)
    return from_replicates(float(value), samples, level)


def slow_replicates(
    values: np.ndarray,
    groups: np.ndarray,
    statistic: Callable[[np.ndarray], float],
    resamples: int,
    seed: int,
) -> np.ndarray:
    """The definition: draw groups, write out their values, compute."""
    unique = np.unique(groups)
    generator = np.random.default_rng(seed)
    out = []
    for _ in range(resamples):
        drawn = unique[generator.integers(0, len(unique), len(unique))]
        sample = np.concatenate([values[groups == group] for group in drawn])
        out.append(statistic(sample))
    return np.array(out)


@pytest.mark.parametrize("statistic", [None, np.mean, np.median])
@pytest.mark.parametrize("grouped", [False, True])
def test_replicates_equal_the_slow_resampling(
    statistic: Callable[[np.ndarray], float] | None, grouped: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    generator = np.random.default_rng(1)
    values = generator.integers(0, 9, 40).astype(float)
    groups = generator.integers(5, 18, 40) if grouped else np.arange(40)
    wanted = slow_replicates(values, groups, statistic or np.mean, 60, 3)
    for size in (statistics.CHUNK, 170):
        monkeypatch.setattr(statistics, "CHUNK", size)
        fast = replicates(values, groups if grouped else None, statistic, resamples=60, seed=3)
        np.testing.assert_allclose(fast, wanted, rtol=1e-12)


def coverage(make: object, truth: float, trials: int, **settings: object) -> float:
    """Share of simulated data sets whose interval holds the truth."""
    inside = 0
    for trial in range(trials):
        values, groups = make(np.random.default_rng(trial))  # type: ignore[operator]
        got = interval(values, groups, resamples=300, seed=trial, **settings)  # type: ignore[arg-type]
        inside += got.low <= truth <= got.high
    return inside / trials


def test_intervals_of_a_mean_hold_the_truth_as_often_as_they_say() -> None:
    share = coverage(lambda g: ((g.random(200) < 0.3).astype(float), None), 0.3, 300)
    assert 0.91 <= share <= 0.98
    narrow = coverage(lambda g: (g.standard_normal(200), None), 0.0, 300, level=0.8)
    assert 0.74 <= narrow <= 0.86


def test_intervals_of_a_median_hold_the_truth_as_often_as_they_say() -> None:
    assert (
        0.91
        <= coverage(lambda g: (g.exponential(1.0, 151), None), np.log(2), 300, statistic=np.median)
        <= 0.985
    )


def test_five_captions_of_a_image_are_not_five_independent_queries() -> None:
    def captions(generator: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        hard = generator.random(80)  # every image has its own difficulty
        return (generator.random((80, 5)) < hard[:, None]).astype(float).ravel(), np.repeat(np.arange(80), 5)

    assert coverage(captions, 0.5, 200) >= 0.9
    assert coverage(lambda g: (captions(g)[0], None), 0.5, 200) < 0.85


def test_wilson_agrees_with_the_roots_of_its_equation() -> None:
    # The ends are the shares p at which the observed share lies z standard errors away.
    for right, number in ((0, 20), (3, 20), (10, 20), (20, 20), (480, 500)):
        got = wilson(right, number)
        for end in (got.low, got.high):
            p = right / number
            if 0 < end < 1:
                assert abs(p - end) == pytest.approx(1.959964 * (end * (1 - end) / number) ** 0.5, rel=1e-5)
        assert 0 <= got.low <= p <= got.high <= 1
