"""Several runs of the same suite on the same data, such as three seeds: one result, and a test over seeds."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy.stats import ttest_rel

from grainline.errors import UserError
from grainline.evaluate.outcome import metrics_of, options_of
from grainline.evaluate.result import Result, now, refuse_unlike, versions
from grainline.evaluate.suite import CELLS


class SeedTest(NamedTuple):
    """A paired t-test over seeds: two-sided, with as many degrees of freedom as seeds less one."""

    t: float
    degrees: int
    p: float

    def __str__(self) -> str:
        """
        >>> str(SeedTest(3.821, 4, 0.01876)), str(SeedTest(-41.2, 2, 0.0000589))
        ('t(4) = 3.82, p = 0.019', 't(2) = -41.20, p < 0.001')
        """
        p = "p < 0.001" if self.p < 0.001 else f"p = {self.p:.2g}"
        return f"t({self.degrees}) = {self.t:.2f}, {p}"


def paired_test(after: Sequence[float], before: Sequence[float]) -> SeedTest | None:
    """Whether a metric differs between two settings, each trained with the same seeds in the same order.

    None where nothing can be said: fewer than two seeds, or differences that are all alike. The interval of
    `pooled` speaks of other images for these runs; this test speaks of other seeds for these images.

    >>> print(paired_test([0.62, 0.66, 0.61], [0.60, 0.61, 0.60]))
    t(2) = 2.22, p = 0.16
    """
    differences = np.subtract(after, before, dtype=float)
    if len(differences) < 2 or np.allclose(differences, differences[0], rtol=1e-9, atol=1e-12):
        return None
    found = ttest_rel(after, before)
    return SeedTest(float(found.statistic), int(found.df), float(found.pvalue))


def pooled(results: Sequence[Result]) -> Result:
    """Metrics over all runs together.

    Recalls and accuracies are means over the runs, medians are taken over the queries of all runs. The
    bootstrap draws pictures, each with its queries of all runs: the interval speaks of other pictures, for
    these runs. How far the runs lie apart is in `settings["runs"]`: metric -> value of every run.

    Raises UserError unless suite, protocol, data and captions are the same.
    """
    assert results, "nothing to pool"
    first = results[0]
    for other in results[1:]:
        refuse_unlike(first, other, "be pooled")
        short = [result.settings.get("shortlist") for result in (first, other)]
        if short[0] != short[1]:
            raise UserError(f"results with shortlist {short[0]} and {short[1]} cannot be pooled")
    options = options_of(first)
    metrics = metrics_of(CELLS[first.suite]([result.queries for result in results], options), options)
    runs = {m.name: [result.metric(m.name).value for result in results] for m in metrics}
    note = f"pooled over {len(results)} runs; intervals are over pictures"
    return first._replace(
        metrics=metrics,
        settings={**first.settings, "runs": runs},
        versions=versions(),
        time=now(),
        notes=(*dict.fromkeys(note for result in results for note in result.notes), note),
        queries={},
    )
