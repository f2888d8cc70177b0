"""A comparison of models: a matrix of models and measures, paired differences, ranks, costs; its JSON file.

A `Column` is a suite with its options on one set, read in one way of captions. A `Cell` is a model in a
column: metrics, or the reason why there are none. `Gain` and `Rank` come from the same resamples of images
for all models of a column. Several seeds of a model are pooled; the value of each seed stands beside.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from pydantic import TypeAdapter, ValidationError

from grainline.config import plain
from grainline.errors import UserError
from grainline.evaluation.result import LESS_IS_BETTER, Metric
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
    peak_mb: float  # on the GPU what torch allocated, else all memory of the process

    @property
    def images_per_second(self) -> float:
        return 1000 / self.ms_image if self.ms_image else 0.0


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


# Statistics of differences and ranks.


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
    scaled = np.asarray(p, dtype=np.float64)[order] * np.arange(len(p), 0, -1)
    out = np.empty(len(p))
    out[order] = np.minimum(1.0, np.maximum.accumulate(scaled)) if len(p) else scaled
    return [float(x) for x in out]


def places(values: np.ndarray, unit: str) -> np.ndarray:
    """The places of models [M, R] by their values [M, R]; equal values share the mean of their places."""
    values = values if unit in LESS_IS_BETTER else -values
    ahead = (values[None] < values[:, None]).sum(1)
    equal = (values[None] == values[:, None]).sum(1)
    return np.asarray(1 + ahead + (equal - 1) / 2)
