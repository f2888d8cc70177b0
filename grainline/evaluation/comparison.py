"""A comparison of models: a matrix of models and measures, paired differences, ranks, costs; its JSON file.

A `Column` is a suite with its options on one set, read in one way of captions. A `Cell` is a model in a
column: metrics, or the reason why there are none. `Gain` and `Rank` come from the same resamples of images
for all models of a column. Several seeds of a model are pooled; the value of each seed stands beside.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import TypeAdapter, ValidationError

from grainline.config import plain
from grainline.errors import UserError, amount, escape_controls
from grainline.evaluation.result import DECIMALS, Metric, Table, html_table, text_table
from grainline.files import read_plain, reason
from grainline.report.page import write_page


class Cost(NamedTuple):
    """Time and memory of a model, measured while its results were; the first batch of each is left out."""

    device: str  # "cpu, 2 threads", or the name of the GPU
    images: int  # that were encoded, and timed
    ms_image: float  # to encode one, without reading and resizing it
    texts: int
    ms_text: float
    ms_query: float | None  # to score one text against all images of the gallery
    gallery: int  # images
    peak_mb: float  # on the GPU what torch allocated, else the whole process, with what earlier models left


class Entrant(NamedTuple):
    """A model of the comparison, or vectors of another program."""

    name: str
    paths: tuple[str, ...]  # one for each seed, as `grainline.load` takes them; of vectors their files
    kind: str  # "model" or "vectors"
    facts: dict[str, str]  # `Model.facts` of the first seed; {} for vectors
    fingerprints: tuple[str, ...]  # of each path
    parameters: dict[str, int]  # "image", "text", "all"; {} for vectors
    trained_on: tuple[str, ...] | None  # sources in the recipe of the run; None: not known
    cost: Cost | None = None  # None: nothing was measured

    def costs(self) -> list[str]:
        """A row of the table of costs."""
        count, cost = self.parameters.get("all"), self.cost
        row = [self.name, "" if count is None else f"{count:,}"]
        if cost is None:
            return [*row, *[""] * 6]
        times = ("" if x is None else f"{x:.2f}" for x in (cost.ms_image, cost.ms_text, cost.ms_query))
        return [*row, *times, f"{cost.gallery:,}", f"{cost.peak_mb:,.0f}", cost.device]


class Published(NamedTuple):
    """A number of a paper, by the protocol of the column."""

    model: str
    measure: str  # the name of the metric here
    value: float  # in the unit of the metric
    source: str  # paper and table


class Column(NamedTuple):
    """A suite on a set; `Comparison.columns` has them in order, and cells name them by their number."""

    title: str  # "flickr, retrieval, each"
    set: str  # the name of the set
    data: str  # its path, as `open_data` takes it
    suite: str
    options: dict[str, Any]  # of the suite
    captions: str  # that were read
    images: int  # 0: no model could be measured
    texts: int
    measures: tuple[str, ...]  # metrics that differences and ranks are about; cells have all others too
    published: tuple[Published, ...] = ()


class Cell(NamedTuple):
    """A model in a column."""

    model: str
    column: int
    metrics: tuple[Metric, ...] = ()  # pooled over the seeds
    seeds: Mapping[str, tuple[float, ...]] = {}  # metric -> its value for each path of the model
    reason: str = ""  # why there are no metrics
    notes: tuple[str, ...] = ()  # of the results
    files: tuple[str, ...] = ()  # results, one for each path, as `evaluate --json` writes them

    def metric(self, name: str) -> Metric | None:
        return next((one for one in self.metrics if one.name == name), None)

    def text(self, name: str) -> str:
        """The value of a metric with its interval and, where there are several, the value of each seed."""
        one, seeds = self.metric(name), self.seeds.get(name, ())
        if one is None:
            return "-"
        single = f"; seeds {', '.join(map(one.text, seeds))}" if len(seeds) > 1 else ""
        return f"{one.text(one.value)} ({one.ends()}{single})"


class Gain(NamedTuple):
    """A model minus the base, of one measure, over the same resamples of images."""

    model: str
    column: int
    measure: str
    value: float
    low: float  # ends of the paired interval, for this difference alone
    high: float
    unit: str
    p: float  # two-sided: twice the share of resamples on the other side of 0, at least 1 / (resamples + 1)
    adjusted: float  # p after Holm over all differences of the comparison
    seeds: tuple[float, ...]  # the difference of each seed, to the same seed of the base if it has as many
    verdict: str  # "better", "worse" or "undecided": adjusted p, interval and all seeds agree


class Rank(NamedTuple):
    """The place of a model among all of a column that answer the same queries; 1 is the best."""

    model: str
    column: int
    measure: str
    rank: float  # by the values themselves; equal values share the mean of their places
    mean: float  # over the resamples
    low: float  # interval over the resamples
    high: float
    first: float  # share of the resamples in which it is first; models with equal values share it


class Overlaps(NamedTuple):
    """Images of a set that are images of the training data of a model, too."""

    model: str
    set: str
    images: int  # of the set
    exact: int  # the same bytes or pixels
    near: int  # that look the same
    note: str = ""  # what could not be compared


class Comparison(NamedTuple):
    """Models against each other on several sets and suites."""

    models: tuple[Entrant, ...]
    columns: tuple[Column, ...]
    cells: tuple[Cell, ...]  # one for each model and column
    base: str  # the model that gains are measured from
    gains: tuple[Gain, ...]
    ranks: tuple[Rank, ...]
    overlaps: tuple[Overlaps, ...]
    notes: tuple[str, ...]
    settings: dict[str, Any]  # level, seed, resamples of the differences
    versions: dict[str, str]
    time: str  # UTC, ISO 8601

    def cell(self, model: str, column: int) -> Cell:
        return next(one for one in self.cells if (one.model, one.column) == (model, column))

    def gain(self, model: str, column: int, measure: str) -> Gain | None:
        """The difference of a model to the base; None where there is none."""
        own = (model, column, measure)
        return next((one for one in self.gains if own == (one.model, one.column, one.measure)), None)

    def rank(self, model: str, column: int, measure: str) -> Rank | None:
        own = (model, column, measure)
        return next((one for one in self.ranks if own == (one.model, one.column, one.measure)), None)

    def __str__(self) -> str:
        """Values, ranks with differences, and costs as tables; reasons of empty cells, and notes."""
        empty = [x for x in self.cells if x.reason]
        reasons = (f"{x.model} on {self.columns[x.column].title}: {x.reason}" for x in empty)
        copies = (
            f"{x.model} and {x.set}: {x.exact:,} of {amount(x.images, 'image')} are in the training data, "
            f"{x.near:,} look like one there{x.note and f'; {x.note}'}"
            for x in self.overlaps
        )
        lines = map(escape_controls, (*reasons, *copies, *self.notes))
        return "\n".join([*(text_table(*table) + "\n" for table in self.tables()), *lines])

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        return "".join(html_table(*table) for table in self.tables())

    def tables(self) -> list[Table]:
        """A table for each column, one of ranks and differences, and one of costs."""
        out = [self._values(i) for i, one in enumerate(self.columns) if one.images]
        level = f"{self.settings['level']:.0%}"
        if self.ranks:
            head = ["measure, model", "rank", level, "first", "difference", level, "Holm's p", "verdict"]
            rows = [self._standing(one) for one in self.ranks]
            out.append((f"mean ranks, and differences to {self.base}", head, rows))
        head = ["model", "parameters", "ms/image", "ms/text", "ms/query", "gallery", "MiB", "device"]
        return [*out, ("costs", head, [one.costs() for one in self.models])]

    def _values(self, number: int) -> Table:
        """The values of a column, and what papers have."""
        column, rows, papers = self.columns[number], list[list[str]](), dict[str, dict[str, str]]()
        for model in self.models:
            cell = self.cell(model.name, number)
            rows.append([model.name, *map(cell.text, column.measures)])
        for one in column.published:
            papers.setdefault(f"{one.model} ({one.source})", {})[one.measure] = f"{one.value:g}"
        rows += [[name, *(x.get(measure, "") for measure in column.measures)] for name, x in papers.items()]
        size = f"{amount(column.images, 'image')}, {amount(column.texts, 'text')}"
        return f"{column.title}: {size}", ["model", *column.measures], rows

    def _standing(self, rank: Rank) -> list[str]:
        gain, title = self.gain(rank.model, rank.column, rank.measure), self.columns[rank.column].title
        row = [f"{title}, {rank.measure}, {rank.model}", f"{rank.mean:.1f}"]
        row += [f"{rank.low:g} to {rank.high:g}", f"{rank.first:.0%}"]
        if gain is None:
            return [*row, *[""] * 4]
        value, low, high = (f"{x:+.{DECIMALS.get(gain.unit, 3)}f}" for x in (gain.value, gain.low, gain.high))
        return [*row, value, f"{low} to {high}", f"{gain.adjusted:.3f}", gain.verdict]

    def save(self, path: str | Path) -> Path:
        """Write the comparison as JSON. Returns the path."""
        write_page(path, json.dumps(_plain(self), allow_nan=False, indent=1) + "\n")
        return Path(path)

    @staticmethod
    def load(path: str | Path) -> "Comparison":
        """The comparison in a JSON file. Raises UserError if there is none."""
        try:
            return TypeAdapter(Comparison).validate_json(read_plain(path))
        except OSError as error:
            raise UserError(f"cannot read {path}: {reason(error)}") from error
        except ValidationError as error:
            wrong = plain(error.errors()[0])
            raise UserError(f"{path} is not a comparison of `grainline compare --json` ({wrong})") from error


def _plain(value: Any) -> Any:
    """NamedTuples as dicts of their fields, all the way down."""
    if hasattr(value, "_asdict"):
        return {name: _plain(x) for name, x in value._asdict().items()}
    if isinstance(value, Mapping):
        return {name: _plain(x) for name, x in value.items()}
    return [_plain(x) for x in value] if isinstance(value, tuple | list) else value
