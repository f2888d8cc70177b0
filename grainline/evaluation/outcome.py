"""From outcomes to a result: what all suites share.

A suite finds the outcome of every query. Cells are its metrics with all their resamples, so that results can
be summed, pooled over runs and compared with others of the same data.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from grainline.errors import UserError, amount
from grainline.evaluation.encode import Encodings
from grainline.evaluation.intervals import from_replicates
from grainline.evaluation.ranks import coco_split
from grainline.evaluation.result import Metric, Result, Unit, now, versions
from grainline.evaluation.score import MEMORY


class Options(NamedTuple):
    """How a suite is run."""

    protocol: str = "plain"
    seed: int = 0  # of the bootstrap
    resamples: int = 1000
    level: float = 0.95
    memory: int = MEMORY  # bytes of a tile of scores
    shortlist: int | None = None  # candidates by vector that are scored pair by pair; None: all
    exact: bool = False  # beside a shortlist, ranks by the scores of all pairs too


class Cell(NamedTuple):
    """One metric of one set of queries."""

    value: float
    drawn: np.ndarray  # [R] its value in every resample
    queries: int
    chance: float | None  # None: there is no such thing
    ties: int
    unit: Unit
    wilson: tuple[float, float] | None = None


def only_plain(options: Options, suite: str) -> None:
    """Raise UserError for a protocol of retrieval, which another suite does not know."""
    if options.protocol != "plain":
        raise UserError(f"protocol is {options.protocol!r}; the {suite} suite knows only 'plain'")


def options_of(result: Result) -> Options:
    """The options that a result was made with."""
    names = Options._fields
    return Options(**{name: value for name, value in result.settings.items() if name in names})


def metrics_of(cells: Mapping[str, Cell], options: Options) -> tuple[Metric, ...]:
    """Metrics with their intervals."""
    out = []
    for name, cell in cells.items():
        ends = from_replicates(cell.value, cell.drawn, options.level)
        out.append(Metric(name, *ends, cell.queries, cell.chance, cell.ties, cell.unit, cell.wilson))
    return tuple(out)


def notes_of(data: Encodings, options: Options) -> tuple[str, ...]:
    """What a reader of the numbers has to know."""
    notes = list(data.remarks)
    if data.damaged:
        causes = ", ".join(f"{number} {cause}" for cause, number in sorted(data.damaged.items()))
        skipped = sum(data.damaged.values())
        first = "; ".join(data.damaged_first)
        notes.append(f"{skipped} of {data.samples} samples were skipped: {causes}; the first: {first}")
    if data.blank:
        notes.append(f"{data.blank} blank captions were skipped")
    if data.cut:
        notes.append(f"{amount(data.cut, 'text')} longer than the model reads and cut")
    if options.protocol.startswith("coco"):
        notes.append(f"pictures of {coco_split(data.keys)}")
    return tuple(notes)


def result_of(
    suite: str,
    data: Encodings,
    options: Options,
    cells: Mapping[str, Cell],
    queries: dict[str, Any],
    notes: tuple[str, ...] = (),
) -> Result:
    """The result of a suite, with the notes that all of them make and its own."""
    metrics = metrics_of(cells, options)
    notes = notes_of(data, options) + notes
    if any(metric.low == metric.high for metric in metrics if metric.unit == "share"):
        notes += (
            "an interval of width zero means that all outcomes were alike, not that the value is certain",
        )
    settings: dict[str, Any] = {**options._asdict(), "captions": data.captions}
    if options.protocol.startswith("coco"):
        settings["split"] = coco_split(data.keys)
    found = {
        "path": data.path,
        "fingerprint": data.fingerprint,
        "samples": data.samples,
        "pictures": len(data.keys),
        "texts": len(data.strings),
        "damaged": data.damaged,
        "damaged_first": list(data.damaged_first),
        "blank_captions": data.blank,
        "cut_texts": data.cut,
    }
    return Result(
        suite, options.protocol, metrics, settings, found, versions(), options.seed, now(), notes, queries
    )
