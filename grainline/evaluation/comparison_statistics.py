"""Statistics of a comparison: paired differences with Holm's correction, ranks over resamples, verdicts.

All models of a column answer the same queries, and every resample draws the same images for all of them: what
is hard in an image cancels. Models that answered other queries are left out, with a note.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from grainline.errors import UserError, amount
from grainline.evaluation.compare import pooled, refuse_other_queries
from grainline.evaluation.comparison import Cell, Column, Comparison, Entrant, Gain, Rank
from grainline.evaluation.paper_numbers import published
from grainline.evaluation.result import LESS_IS_BETTER, Result, now, versions
from grainline.evaluation.statistics import from_replicates
from grainline.evaluation.suite import MetricSamples, Settings, settings_of, suite_of

RESAMPLES = 40  # for each difference, at least: the smallest p, Holm-adjusted, is then below 0.025


class Outcome(NamedTuple):
    """The results of a model in a column, one for each seed, or the reason why there are none."""

    results: tuple[Result, ...] = ()
    files: tuple[str, ...] = ()
    reason: str = ""

    def cell(self, model: str, column: int) -> Cell:
        if not self.results:
            return Cell(model, column, reason=self.reason)
        whole = self.results[0] if len(self.results) == 1 else pooled(self.results)
        seeds = {m.name: tuple(one.metric(m.name).value for one in self.results) for m in whole.metrics}
        return Cell(model, column, whole.metrics, seeds, "", whole.notes, self.files)

    def samples(self, resamples: int) -> dict[str, MetricSamples]:
        """Every metric in at least so many resamples, over the queries of all seeds."""
        settings = settings_of(self.results[0])
        settings = settings._replace(resamples=max(settings.resamples, resamples))
        metrics = suite_of(self.results[0]).metrics([one.queries for one in self.results], settings)
        return {name: one.in_unit() for name, one in metrics.items()}


Row = Mapping[str, Outcome]
"""The outcomes of all models in a column."""


def assembled(
    models: Sequence[Entrant],
    columns: Sequence[Column],
    rows: Sequence[Row],
    base: str,
    measures: Sequence[str],
) -> Comparison:
    """The comparison of all outcomes. Raises UserError for a name in `measures` that no result has.

    columns   with what is known before anything is measured
    measures  metrics of differences and ranks; none: those on top of each suite's page, and rSum
    """
    cells = [one.cell(name, i) for i, row in enumerate(rows) for name, one in row.items()]
    notes, full, alike = list[str](), list[Column](), list[list[str]]()
    for column, row in zip(columns, rows, strict=True):
        names, others = same_queries(row, base)
        notes += [f"{column.title}: {note}" for note in others]
        alike.append(names)
        full.append(_full(column, row[names[0]].results[0], measures) if names else column)
    refuse_unknown(measures, cells)
    number = sum(
        (len(names) - 1) * len(one.measures) for names, one in zip(alike, full, strict=True) if base in names
    )
    level, resamples = Settings().level, max(Settings().resamples, RESAMPLES * number)
    gains, ranks = list[Gain](), list[Rank]()
    for i, (row, names) in enumerate(zip(rows, alike, strict=True)):
        some = {name: row[name].samples(resamples) for name in names if len(names) > 1}
        for measure in full[i].measures if some else ():
            one = {name: metrics[measure] for name, metrics in some.items()}
            ranks += ranks_of(i, measure, one, level)
            for name in names if base in names else ():
                if name != base:
                    gain = gain_of(i, measure, name, one, base, level)
                    gains.append(gain._replace(seeds=_by_seed(row[name].results, row[base].results, measure)))
    if gains:
        notes.append(
            f"verdicts use p after Holm over {amount(len(gains), 'difference')} to {base}, from"
            f" {resamples:,} resamples of images; intervals are for one difference alone"
        )
    about = {"level": level, "resamples": resamples}
    return Comparison(
        tuple(models), tuple(full), tuple(cells), base, judged(gains, level), tuple(ranks), (), tuple(notes),
        about, versions(), now(),
    )  # fmt: skip


def refuse_unknown(measures: Sequence[str], measured: Sequence[Cell | Result]) -> None:
    """Raise UserError for a measure that nothing has, where something has any."""
    known = dict.fromkeys(metric.name for one in measured for metric in one.metrics)
    if known and (unknown := set(measures) - {*known}):
        raise UserError(f"no metric {', '.join(sorted(unknown))}; there are {', '.join(known)}")


def same_queries(row: Row, base: str) -> tuple[list[str], list[str]]:
    """The models whose results have the queries of the base, or of the first one; notes on the others."""
    names = [name for name, one in row.items() if one.results]
    leader, alike, notes = base if base in names else next(iter(names), ""), list[str](), list[str]()
    for name in names:
        try:
            refuse_other_queries(row[leader].results[0], row[name].results[0], name)
            alike.append(name)
        except UserError as error:
            notes.append(f"{error}; no difference and no rank")
    return alike, notes


def _full(column: Column, result: Result, measures: Sequence[str]) -> Column:
    """The column with what its results have."""
    names, data = [metric.name for metric in result.metrics], result.data
    wanted = measures or [*suite_of(result).headlines(result), "rSum"]
    ours = tuple(name for name in wanted if name in names) or (() if measures else (names[0],))
    numbers = published(result.protocol, names)
    return column._replace(
        captions=result.settings["captions"], images=data["images"], texts=data["texts"], measures=ours,
        published=numbers,
    )  # fmt: skip


def _by_seed(results: Sequence[Result], base: Sequence[Result], measure: str) -> tuple[float, ...]:
    """The difference of each seed to that of the base in its place, else to the mean of the base."""
    ours, theirs = (np.array([one.metric(measure).value for one in some]) for some in (results, base))
    differences = ours - (theirs if len(ours) in (1, len(theirs)) else theirs.mean())
    return tuple(map(float, differences)) if len(differences) > 1 else ()


def two_sided(samples: np.ndarray) -> float:
    """The p of a difference from its resamples [R]: twice the share on the smaller side of 0, 0 included.

    >>> two_sided(np.array([1.0, 2.0, 3.0, -1.0])), two_sided(np.array([1.0, 2.0, 3.0]))
    (0.5, 0.25)
    """
    share = min((samples <= 0).mean(), (samples >= 0).mean())
    return float(min(1.0, max(2 * share, 1 / (len(samples) + 1))))


def holm(p: Sequence[float]) -> list[float]:
    """Adjusted p values (Holm 1979): the chance of any wrong verdict among all stays below the level.

    >>> [round(x, 3) for x in holm([0.01, 0.04, 0.03, 0.005])]
    [0.03, 0.06, 0.06, 0.02]
    """
    order = np.argsort(p, kind="stable")
    scaled = np.asarray(p, np.float64)[order] * np.arange(len(p), 0, -1)
    out = np.empty(len(p))
    out[order] = np.minimum(1.0, np.maximum.accumulate(scaled))
    return [float(x) for x in out]


def places(values: np.ndarray, unit: str) -> np.ndarray:
    """The places [M, R] of M models by their values [M, R]; equal values share the mean of their places."""
    values = values if unit in LESS_IS_BETTER else -values
    ahead = (values[None] < values[:, None]).sum(1)
    equal = (values[None] == values[:, None]).sum(1)
    return np.asarray(1 + ahead + (equal - 1) / 2)


def ranks_of(column: int, measure: str, samples: Mapping[str, MetricSamples], level: float) -> list[Rank]:
    """The ranks of all models by a measure, whose resamples draw the same images for each of them."""
    some = list(samples.values())
    now_place = places(np.array([[one.value] for one in some]), some[0].unit)[:, 0]
    place = places(np.array([one.samples for one in some]), some[0].unit)
    best = place == place.min(0)
    first = (best / best.sum(0)).mean(1)
    out = []
    for i, name in enumerate(samples):
        value, low, high = from_replicates(now_place[i], place[i], level)
        out.append(Rank(name, column, measure, value, float(place[i].mean()), low, high, float(first[i])))
    return out


def gain_of(
    column: int, measure: str, model: str, samples: Mapping[str, MetricSamples], base: str, level: float
) -> Gain:
    """The difference of a model to the base, without the seeds and before Holm."""
    one, other = samples[model], samples[base]
    paired = one.samples - other.samples
    ends = from_replicates(one.value - other.value, paired, level)
    return Gain(model, column, measure, *ends, one.unit, two_sided(paired), 1.0, (), "undecided")


def judged(gains: Sequence[Gain], level: float) -> tuple[Gain, ...]:
    """The differences with Holm's p over all of them, and a verdict."""
    out = []
    for one, adjusted in zip(gains, holm([gain.p for gain in gains]), strict=True):
        sure = adjusted <= 1 - level and not one.low <= 0 <= one.high
        sure = sure and all(x * one.value > 0 for x in one.seeds)
        better = (one.value > 0) != (one.unit in LESS_IS_BETTER)
        out.append(
            one._replace(adjusted=adjusted, verdict=("worse", "better")[better] if sure else "undecided")
        )
    return tuple(out)
