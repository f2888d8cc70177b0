"""Results against each other: a later one against an earlier one, several seeds as one.

A result against an earlier one on the same data: paired differences with intervals, for every suite.

Both results are resampled with the same draws of pictures. What is hard or easy in a picture then cancels,
and the interval of the difference is narrower than those of its two sides. Run before and after a fine-tuning
on other data, a suite tells what was forgotten.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy.stats import ttest_rel

from grainline.errors import UserError
from grainline.evaluation.intervals import from_replicates
from grainline.evaluation.outcome import metrics_of, options_of
from grainline.evaluation.result import DECIMALS, Result, Unit, labelled, now, read, refuse_unlike, versions
from grainline.evaluation.shortlist import EXACT, LISTED
from grainline.evaluation.suites.registry import CELLS

FOUND = ("rank", "tied", "right", "predicted", "per_class", "confusions", "scores", "cut", LISTED, EXACT)
"""Fields of `Result.queries` that a model decides; all others say what it was asked."""


class Difference(NamedTuple):
    """After minus before, of one metric."""

    name: str
    before: float
    after: float
    value: float
    low: float  # bootstrap interval over pictures, the same ones on both sides
    high: float
    unit: Unit

    @property
    def label(self) -> str:
        """The name, with the better direction where it is not up."""
        return labelled(self.name, self.unit)

    def text(self, number: float, sign: str = "") -> str:
        """A number in the unit of the metric; of shares in points of a percent.

        >>> loss = Difference("top-1 accuracy", 0.5, 0.4876, -0.0124, -0.02, -0.004, "share")
        >>> loss.text(loss.before), loss.text(loss.value, "+"), loss.text(0.004, "+")
        ('50.0 %', '-1.2', '+0.4')
        """
        if self.unit != "share":
            return f"{number:{sign},.{DECIMALS[self.unit]}f}"
        return f"{100 * number:{sign}.1f}" + ("" if sign else " %")


def against(after: Result, before: Result, where: str = "the earlier result") -> list[Difference]:
    """The difference of every metric of both, with the seed, resamples and level of `after`.

    where  what to call `before` in an error

    Raises UserError unless both were asked the same, and for a pooled result, which keeps no outcomes.
    """
    refuse_other(after, before, where, "be compared")
    options = options_of(after)
    cells, earlier = (CELLS[after.suite]([result.queries], options) for result in (after, before))
    out = []
    for name, cell in ((name, cell) for name, cell in cells.items() if name in earlier):
        value = cell.value - earlier[name].value
        ends = from_replicates(value, cell.drawn - earlier[name].drawn, options.level)
        out.append(Difference(name, earlier[name].value, cell.value, *ends, cell.unit))
    return out


def refuse_other(one: Result, other: Result, where: str, what: str) -> None:
    """Raise UserError unless both were asked the same, so that they can {what}.

    where  what to call `other` in an error
    """
    refuse_unlike(one, other, f"{what} ({where})")
    _refuse_empty(other, where)
    if _asked(one.queries) != _asked(other.queries):
        raise UserError(
            f"{where} asks other pictures, texts or classes than this result; use the same data and options"
        )


def read_earlier(path: str, suite: str) -> Result:
    """A result to compare with. Raises UserError where it cannot be one, before the new one is measured."""
    found = read(path)
    if found.suite != suite:
        raise UserError(
            f"{path} is a result of --suite {found.suite}, not of {suite}; compare like with like"
        )
    _refuse_empty(found, path)
    return found


def noted(after: Result, before: Result, path: str) -> Result:
    """The result with its differences to an earlier one in `settings["against"]`."""
    found = against(after, before, path)
    model = {name: before.settings[name] for name in MODEL if name in before.settings}
    entry: dict[str, Any] = {
        "path": path,
        "time": before.time,
        **model,
        "differences": [difference._asdict() for difference in found],
    }
    notes = after.notes
    if after.settings.get("templates") != before.settings.get("templates"):
        notes += (f"{path} was made with other prompts",)
    if after.settings.get("scoring") != before.settings.get("scoring"):
        notes += (
            f"{path} was made with other scores of pairs: {before.settings.get('scoring', 'its only ones')}",
        )
    if after.settings.get("shortlist") != before.settings.get("shortlist"):
        notes += (f"{path} was made with another shortlist: {before.settings.get('shortlist') or 'none'}",)
    return after._replace(settings=after.settings | {"against": entry}, notes=notes)


MODEL = ("model", "method", "weights", "step", "fingerprint", "scoring")
"""Settings that say what was measured."""


def _refuse_empty(result: Result, where: str) -> None:
    if not result.queries:
        raise UserError(f"{where} keeps no outcomes, as pooled results do; compare results of single runs")


def _asked(value: Any) -> Any:
    """Outcomes without what the model decides."""
    if isinstance(value, dict):
        return {name: _asked(inner) for name, inner in value.items() if name not in FOUND}
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return [_asked(inner) for inner in value]
    return value


# Several runs of the same suite on the same data, such as three seeds: one result, and a test over seeds.


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
