"""The result of a suite: metrics with intervals and chance, where they come from, and its JSON file."""

import errno
import json
import platform
import re
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import torch

import grainline
from grainline.data.formats.common import divide, expand
from grainline.data.formats.joined import parts_of, split_skip
from grainline.data.other_texts import trained_paths
from grainline.data.record import Source
from grainline.errors import UserError, amount, checked, escape_controls
from grainline.files import STATE, is_stream, read_plain, reason, temporary_path
from grainline.hub import fingerprint
from grainline.loading import find_run
from grainline.model import Model
from grainline.model_card import training_facts
from grainline.report.page import render, write_page

DECIMALS = {"%": 1, "rank": 1, "sum": 1, "correlation": 3, "change": 2, "cosine": 3}
"""Digits of each unit of metrics. A suite may have other units: three digits, and more is better."""
LESS_IS_BETTER = "rank", "change"


class Metric(NamedTuple):
    """One number with its interval and chance."""

    name: str  # "text to image R@1"
    value: float  # in its unit, as it prints: 31.3 is 31.3 %
    low: float  # bootstrap interval over images
    high: float
    queries: int
    chance: float | None  # what a random ranking, or a coin, reaches; None: there is no such thing
    ties: int  # queries where an exact tie with a negative decided, counted as wrong
    unit: str  # "%", "rank", "sum" of percentages, "correlation", "change" in %, "cosine", or one of a suite
    wilson: tuple[float, float] | None = None  # Wilson's interval, of plain accuracies

    @property
    def label(self) -> str:
        return labelled(self.name, self.unit)

    def text(self, number: float | None) -> str:
        """A number in the unit of the metric.

        >>> recall = Metric("R@1", 31.26, 28.74, 40.0, 500, 0.2, 0, "%")
        >>> [recall.text(recall.value), recall.text(recall.chance), recall.ends()]
        ['31.3 %', '0.20 %', '28.7 to 40.0 %']
        >>> Metric("median rank", 3.5, 3.0, 4.0, 500, 250.5, 0, "rank").text(1250.5)
        '1,250.5'
        """
        if number is None:
            return "none"
        if self.unit == "%":
            return f"{number:.{2 if 0 < number < 1 else 1}f} %"
        return f"{number:,.{DECIMALS.get(self.unit, 3)}f}"

    def ends(self) -> str:
        """The interval as text."""
        return f"{self.text(self.low).removesuffix(' %')} to {self.text(self.high)}"


def labelled(name: str, unit: str) -> str:
    """The name of a metric for a table, with the better direction where it is not up."""
    if unit == "sum":
        return name.replace("rSum", "rSum (0 to 600)")
    return f"{name} (lower is better)" if unit in LESS_IS_BETTER else name


Table = tuple[str, list[str], list[list[str]]]
"""Title, head and rows of a table of text."""


class Result(NamedTuple):
    """The metrics of a suite on some data. `queries` has every outcome, so that seeds can be pooled later."""

    suite: str
    protocol: str
    metrics: tuple[Metric, ...]
    settings: dict[str, Any]
    data: dict[str, Any]  # path, fingerprint, what was there, what was skipped
    versions: dict[str, str]
    seed: int
    time: str  # UTC, ISO 8601
    notes: tuple[str, ...]
    queries: dict[str, Any]

    def metric(self, name: str) -> Metric:
        """The metric of a name. Raises KeyError that lists the names there are."""
        by_name = {metric.name: metric for metric in self.metrics}
        if name not in by_name:
            raise KeyError(f"no metric {name!r}; there are: {', '.join(by_name)}")
        return by_name[name]

    @property
    def size(self) -> str:
        """The numbers of images and texts in words, and the use of several captions of an image."""
        texts = f"{amount(self.data['images'], 'image')}, {amount(self.data['texts'], 'text')}"
        return str(self.data.get("counts", texts))

    def __getitem__(self, name: Any) -> Any:
        """The metric of a name: `result["text to image R@1"]`. A number is a place in the tuple."""
        return self.metric(name) if isinstance(name, str) else tuple.__getitem__(self, name)

    def __str__(self) -> str:
        """Value, interval, chance, queries and ties of every metric, as an aligned table."""
        return text_table(*self._table())

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        return html_table(*self._table())

    def _table(self) -> Table:
        level = self.settings["level"]
        head = ["metric", "value", f"{100 * level:g} % interval", "chance", "queries", "ties"]
        rows = [
            [m.label, m.text(m.value), m.ends(), m.text(m.chance), f"{m.queries:,}", f"{m.ties:,}"]
            for m in self.metrics
        ]
        return f"{self.suite}, protocol {self.protocol}: {self.size}, data {self.data['path']}", head, rows

    def to_dict(self) -> dict[str, Any]:
        """The result as plain values, the content of its JSON file."""
        return dict(json.loads(to_json(self)))

    @checked()
    def save(self, path: str | Path) -> Path:
        """Write the result as JSON, as `grainline evaluate --json` does. Returns the path."""
        write(self, path)
        return Path(path)

    @staticmethod
    @checked()
    def load(path: str | Path) -> "Result":
        """The result in a JSON file. Raises UserError if there is none."""
        return read(path)

    def compare(self, other: "Result | str | Path") -> Any:
        """The difference of every metric to an earlier result, or its file, on the same data: a list that
        prints as a table (`evaluation.compare.compare`). Raises UserError for a result on other data."""
        return grainline.compare(self, other)


def text_table(title: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in plain text: the first column is aligned left, all others right."""
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    lines = [
        "  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]) for row in (head, *rows)
    ]
    return "\n".join(map(escape_controls, [title, *lines]))


def html_table(title: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """The same table for a notebook, in whatever colours this has."""
    return render("result.html", title=title, head=head, rows=rows)


def versions() -> dict[str, str]:
    """The software that the numbers were computed with."""
    return {
        "grainline": grainline.__version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": version("numpy"),
        "pillow": version("pillow"),
        "platform": platform.platform(),
    }


def now() -> str:
    """UTC to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def to_json(result: Result) -> str:
    """The result as JSON text: one metric a line, long lists not broken."""
    dumps = partial(json.dumps, allow_nan=False)  # ASCII: file names need not be valid Unicode
    metrics = ",\n".join("    " + dumps(metric._asdict()) for metric in result.metrics)
    lines = [
        f'  "metrics": [\n{metrics}\n  ]' if k == "metrics" else f"  {dumps(k)}: {dumps(v)}"
        for k, v in result._asdict().items()
    ]
    return "{\n" + ",\n".join(lines) + "\n}\n"


def from_json(text: str, where: str = "the text") -> Result:
    """The result that `to_json` wrote. Raises UserError if the text is no JSON or not a result."""
    try:
        fields = json.loads(text)
        fields["metrics"] = tuple(
            Metric(**one | {"wilson": one["wilson"] and tuple(one["wilson"])}) for one in fields["metrics"]
        )
        fields["notes"] = tuple(fields["notes"])
        fields |= {name: dict(fields[name]) for name in ("settings", "data", "versions", "queries")}
        if any(one.unit == "share" for one in fields["metrics"]):
            raise ValueError("an older one, in shares of 1 where per cent are now; evaluate again")
        return Result(**fields)
    except (ValueError, TypeError, KeyError) as error:
        raise UserError(f"{where} is not a result of `grainline evaluate` ({error})") from error


def write(result: Result, path: str | Path) -> None:
    """Write a result whole or not at all, making folders on the way. Raises UserError if it cannot be."""
    write_page(path, to_json(result))


def read(path: str | Path) -> Result:
    """Read a result from a file. Raises UserError if there is none."""
    try:
        text = read_plain(path).decode()
    except (OSError, UnicodeDecodeError) as error:
        wanted = "a file of `grainline evaluate --json`"
        raise UserError(f"cannot read {path}: {reason(error)}; expected {wanted}") from error
    return from_json(text, str(path))


def writable(path: Path) -> None:
    """Raise UserError if a file could not be written there, before its content costs minutes to make."""
    try:
        if path.is_dir():
            raise OSError(errno.EEXIST, "it is a folder")
        path.parent.mkdir(parents=True, exist_ok=True)
        if not is_stream(path):
            temporary_path(path).touch()
            temporary_path(path).unlink()
    except OSError as error:
        where = "a file in a folder you may write to"
        raise UserError(f"cannot write {path}: {reason(error)}; name {where}") from None


def origin(model: Model, path: str) -> dict[str, Any]:
    """The fields of a result about its model: its path, the folder of its weights, its step, its scoring."""
    run = find_run(path)
    weights = Path(path) if run is None else run[1]
    values = model.description.config.model_dump()
    way = {"scoring": values["scoring"]} if "scoring" in values else {}
    if way.get("scoring") == "conditioned" and "alpha" in values:
        way["scoring"] += f":{values['alpha']:g}"  # as `--scoring` takes it
    step = None
    with suppress(OSError, ValueError, KeyError, TypeError):
        step = json.loads(read_plain(weights / STATE))["state"]["step"]
    return {
        "model": path,
        "method": model.description.method,
        "weights": str(weights),
        "step": step,
        "fingerprint": fingerprint(model),
        **way,
    }


def notes_on_training(run: Path | None, source: Source) -> tuple[str, ...]:
    """Notes where data, by their paths, are those that a run was trained or validated on, and on averages."""
    words = {
        "paths": "the run was trained on {}, so the values say nothing about other data",
        "validation": "the run was validated on {}, by which it chose the weights in best/",
    }
    parts, notes = parts_of(source), []
    for field, text in words.items():
        theirs = list(map(_places, trained_paths(run, field) or ()))
        known = [
            part.path
            for part, (ours, above) in ((part, _places(part.path)) for part in parts)
            if any(ours & (places | folders) or above & places for places, folders in theirs)
        ]
        if known:
            notes.append(text.format("these data" if len(known) == len(parts) else ", ".join(known)))
    if run is not None and (weights := training_facts(run).get("weights")):
        notes.append(f"the weights are {weights}")
    return tuple(notes)


def _places(path: str) -> tuple[set[Any], set[Any]]:
    """The files and folders of a source, else its name less its number of records; and the folders above."""
    base, places = divide(split_skip(path)[0])[0], set()
    for name in filter(None, (base, base.partition(":")[2])):  # behind a kind, as in classes:birds/
        with suppress(UserError):  # nothing is there any more
            places |= {Path(file).resolve() for file in expand(name) if Path(file).exists()}
    packed = (place for place in places if place.suffix in ("", ".tar", ".parquet"))
    name = re.sub(r"(?<=[?&])(count|size|skip)=[^&]*&?", "", path).rstrip("?&")
    return places or {name}, {folder for place in packed for folder in place.parents}
