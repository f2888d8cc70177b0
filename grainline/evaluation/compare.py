"""Results against each other: a later one against an earlier one, several seeds as one.

Two results on the same data are resampled with the same draws of images. What is hard or easy in an image
then cancels, and the interval of the difference is narrower than those of its two sides.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from grainline.config import flatten
from grainline.errors import UserError, amount, checked, shorten_words
from grainline.evaluation.result import (
    DECIMALS,
    Result,
    html_table,
    labelled,
    now,
    read,
    text_table,
    versions,
)
from grainline.evaluation.statistics import from_replicates
from grainline.evaluation.suite import Suite, metrics_of, settings_of, suite_of
from grainline.loading import recipe_of

FIELDS = 6  # of two recipes are named in a note
MODEL = ("model", "method", "weights", "step", "fingerprint", "scoring")  # settings that identify a model


class Difference(NamedTuple):
    """After minus before, of one metric."""

    name: str
    before: float
    after: float
    value: float
    low: float  # bootstrap interval over images, the same ones on both sides
    high: float
    unit: str

    @property
    def label(self) -> str:
        return labelled(self.name, self.unit)

    def text(self, number: float, sign: str = "") -> str:
        """A number in the unit of the metric; with a sign it is a difference, of percentages in points."""
        return f"{number:{sign},.{DECIMALS.get(self.unit, 3)}f}" + " %" * (self.unit == "%" and not sign)


class Differences(list[Difference]):
    """Differences of metrics, which print as a table."""

    def __str__(self) -> str:
        return text_table("after minus before", *self.cells())

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return html_table("after minus before", *self.cells())

    def cells(self, interval: str = "paired interval") -> tuple[list[str], list[list[str]]]:
        """Head and rows of a table. A difference is sure where 0 lies outside of its interval, a column."""
        rows = [
            [
                *(one.label, one.text(one.before), one.text(one.after), one.text(one.value, "+")),
                f"{one.text(one.low, '+')} to {one.text(one.high, '+')}",
                "no" if one.low <= 0 <= one.high else "yes",
            ]
            for one in self
        ]
        return ["metric", "before", "after", "difference", interval, "sure"], rows


@checked()
def compare(
    after: Result | str | Path, before: Result | str | Path, where: str = "the earlier result"
) -> Differences:
    """The difference of every metric of two results, or files, with the seed and resamples of `after`.

    where  the name of `before` in an error

    Raises UserError unless both have the same queries, and for a pooled result, which has no outcomes.
    """
    where = where if isinstance(before, Result) else str(before)
    after, before = (one if isinstance(one, Result) else read(one) for one in (after, before))
    refuse_other_queries(after, before, where)
    suite, settings = suite_of(after), settings_of(after)
    metrics, earlier = (
        {name: one.in_unit() for name, one in suite.metrics([result.queries], settings).items()}
        for result in (after, before)
    )
    out = Differences()
    for name in filter(earlier.__contains__, metrics):
        one = metrics[name]
        value = one.value - earlier[name].value
        ends = from_replicates(value, one.samples - earlier[name].samples, settings.level)
        out.append(Difference(name, earlier[name].value, one.value, *ends, one.unit))
    return out


def read_earlier(path: str, suite: Suite[Any]) -> Result:
    """A result to compare with. Raises UserError where it cannot be one, before the new one is measured."""
    if Path(path).is_dir():
        raise UserError(f"{path} is a folder; give the file that `grainline evaluate --json FILE` wrote")
    result = read(path)
    if result.suite != suite.key:
        raise UserError(f"{path} is a result of --suite {result.suite}, not of {suite.key}")
    _refuse_empty(result, path)
    options, others = suite.options.model_dump(mode="json"), _facts(result)
    for name in suite.must_match:
        if name in options and options[name] != (other := others.get(name)):
            raise UserError(f"{path} was made with {name}={other}, not {options[name]}; use the same")
    return result


def with_comparison(after: Result, before: Result, path: str) -> Result:
    """The result with its differences to an earlier one in `settings["compared_to"]`."""
    differences = [difference._asdict() for difference in compare(after, before, path)]
    model = {name: before.settings[name] for name in MODEL if name in before.settings}
    entry = {"path": path, "time": before.time, **model, "differences": differences}
    notes = after.notes
    for name in suite_of(after).noted_if_other:
        one, other = (_facts(result).get(name) for result in (after, before))
        if one != other:
            notes += (f"{path} was made with other {name}: {'none' if other is None else other}",)
    scoring = before.settings.get("scoring")
    if after.settings.get("scoring") != scoring:
        notes += (f"{path} was made with other scores of pairs: {scoring or 'its only ones'}",)
    notes += other_recipe(after, before)
    return after._replace(settings=after.settings | {"compared_to": entry}, notes=notes)


def other_recipe(after: Result, before: Result) -> tuple[str, ...]:
    """A note on the fields in which the recipes of two runs differ; none where one is not at hand."""
    ours, theirs = (flatten(recipe_of(str(result.settings.get("model", "")))) for result in (after, before))
    if not (ours and theirs):
        return ()
    names = [name for name in {**ours, **theirs} if ours.get(name) != theirs.get(name)]
    values = [
        [shorten_words(json.dumps(one[name])) if name in one else "left out" for one in (ours, theirs)]
        for name in names[:FIELDS]
    ]
    fields = [f"{name} {a} (before {b})" for name, (a, b) in zip(names, values, strict=False)]
    more = f" and {len(names) - FIELDS} more fields" if len(names) > FIELDS else ""
    return (f"the recipes differ in {', '.join(fields)}{more}",) if names else ("the recipes are the same",)


def _refuse_empty(result: Result, where: str) -> None:
    if not result.queries:
        raise UserError(f"{where} keeps no outcomes, as pooled results do; compare results of single runs")


def refuse_other_queries(after: Result, before: Result, where: str) -> None:
    """Raise UserError unless both results have the same queries. where: the name of `before`"""
    refuse_unlike(after, before, "be compared", where)
    _refuse_empty(before, where)
    fields = suite_of(after).model_fields
    if _questions(after.queries, fields) != _questions(before.queries, fields):
        what = "other images, texts or classes than this result"
        raise UserError(f"{where} asks {what}; use the same data and options")


def refuse_unlike(one: Result, other: Result, what: str, where: str, *, pooled: bool = False) -> None:
    """Raise UserError unless two results are of one suite on the same data. where: the name of `other`"""
    names = suite_of(one).must_match + (suite_of(one).pooled_must_match if pooled else ())
    facts, others = _facts(one), _facts(other)
    for name, a, b in (
        ("suite", one.suite, other.suite),
        ("protocol", one.protocol, other.protocol),
        ("data", one.data["fingerprint"], other.data["fingerprint"]),
        ("captions", one.settings["captions"], other.settings["captions"]),
        ("number of images", one.data["images"], other.data["images"]),
        *((name.replace("_", " "), facts.get(name), others.get(name)) for name in names),
    ):
        if a != b and name in ("data", "number of images"):
            ours, theirs = (f"{x.data['path']} ({amount(x.data['images'], 'image')})" for x in (one, other))
            changed = "; it has changed since" * (ours == theirs)
            words = f"{where} was measured on {theirs}, this result on {ours}{changed}: they cannot {what}"
            raise UserError(f"{words}; measure both on the same data")
        if a != b:
            raise UserError(f"{where} has {name} {b}, this result {a}: they cannot {what}; use the same")


def _facts(result: Result) -> dict[str, Any]:
    """The data, settings and options of a result by their names."""
    return {**result.data, **result.settings, **result.settings.get("options", {})}


def _questions(value: Any, fields: frozenset[str]) -> Any:
    """Outcomes without the fields that the model decides."""
    if isinstance(value, dict):
        return {name: _questions(inner, fields) for name, inner in value.items() if name not in fields}
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return [_questions(inner, fields) for inner in value]
    return value


def pooled(results: Sequence[Result]) -> Result:
    """Metrics over all runs together; `settings["runs"]` has the value of every run by metric.

    Recalls and accuracies are means over the runs, medians are over the queries of all runs. The bootstrap
    draws images, each with its queries of all runs: the interval is about other images, for these runs.
    Raises UserError unless suite, protocol, data and captions are the same.
    """
    assert results, "nothing to pool"
    first = results[0]
    for other in results[1:]:
        refuse_unlike(first, other, "be pooled", "another result", pooled=True)
    settings = settings_of(first)
    metrics = metrics_of(suite_of(first).metrics([one.queries for one in results], settings), settings)
    runs = {m.name: [result.metric(m.name).value for result in results] for m in metrics}
    note = f"pooled over {len(results)} runs; intervals are over images"
    return first._replace(
        metrics=metrics,
        settings={**first.settings, "runs": runs},
        versions=versions(),
        time=now(),
        notes=(*dict.fromkeys(note for result in results for note in result.notes), note),
        queries={},
    )
