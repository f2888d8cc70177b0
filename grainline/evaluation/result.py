"""The result of a suite: metrics with intervals and chance, and where they come from."""

import json
import os
import platform
from collections.abc import Mapping
from datetime import UTC, datetime
from errno import EISDIR
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch

import grainline
from grainline.errors import UserError

Unit = Literal["share", "rank", "sum", "correlation", "change", "cosine"]
DECIMALS: dict[Unit, int] = {"share": 1, "rank": 1, "sum": 1, "correlation": 3, "change": 2, "cosine": 3}
LESS_IS_BETTER: tuple[Unit, ...] = ("rank", "change")


class Metric(NamedTuple):
    """One number with what it has to be judged by."""

    name: str  # "text to image R@1"
    value: float
    low: float  # bootstrap interval over images
    high: float
    queries: int
    chance: float | None  # what a random ranking, or a coin, reaches; None: there is no such thing
    ties: int  # queries where an exact tie with a negative decided, counted as wrong
    unit: Unit  # share of 1, a rank, a sum of percentages, a correlation, a change in percent, or a cosine
    wilson: tuple[float, float] | None = None  # second interval, of plain accuracies

    @property
    def label(self) -> str:
        """The name, with the better direction where it is not up."""
        return labelled(self.name, self.unit)

    def text(self, number: float | None) -> str:
        """A number in the unit of the metric.

        >>> share = Metric("R@1", 0.3126, 0.2, 0.4, 500, 0.002, 0, "share")
        >>> [share.text(x) for x in (share.value, share.chance, 1.0)]
        ['31.3 %', '0.20 %', '100.0 %']
        >>> Metric("median rank", 3.5, 3.0, 4.0, 500, 250.5, 0, "rank").text(1250.5)
        '1,250.5'
        >>> Metric("HiMo@K", 0.8841, 0.8, 0.9, 500, 0.0, 0, "correlation").text(0.8841)
        '0.884'
        """
        if number is None:
            return "none"
        if self.unit == "share":
            return f"{100 * number:.{2 if 0 < number < 0.01 else 1}f} %"
        return f"{number:,.{DECIMALS[self.unit]}f}"

    def ends(self) -> str:
        """The interval as text.

        >>> Metric("R@1", 0.3126, 0.2874, 0.4, 500, 0.002, 0, "share").ends()
        '28.7 to 40.0 %'
        """
        return f"{self.text(self.low).removesuffix(' %')} to {self.text(self.high)}"


def labelled(name: str, unit: Unit) -> str:
    """The name of a metric for a table.

    >>> labelled("SSI", "change"), labelled("rSum", "sum")
    ('SSI (lower is better)', 'rSum')
    """
    return f"{name} (lower is better)" if unit in LESS_IS_BETTER else name


class Result(NamedTuple):
    """What a suite found. `queries` holds every single outcome, so that seeds can be pooled later."""

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
        """The metric of a name.

        Raises KeyError that lists the names there are.
        """
        for metric in self.metrics:
            if metric.name == name:
                return metric
        raise KeyError(f"no metric {name!r}; there are: {', '.join(metric.name for metric in self.metrics)}")


def versions() -> dict[str, str]:
    """What the numbers were computed with."""
    return {
        "grainline": grainline.__version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": version("numpy"),
        "pillow": version("pillow"),
        "platform": platform.platform(),
    }


def now() -> str:
    """Time stamp in UTC to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def to_json(result: Result) -> str:
    """The result as JSON text: one metric a line, long lists not broken."""
    fields: dict[str, Any] = result._asdict()
    metrics = ",\n".join("    " + _dumps(metric._asdict()) for metric in result.metrics)
    lines = [
        f'  "metrics": [\n{metrics}\n  ]' if k == "metrics" else f"  {_dumps(k)}: {_dumps(v)}"
        for k, v in fields.items()
    ]
    return "{\n" + ",\n".join(lines) + "\n}\n"


def from_json(text: str, where: str = "the text") -> Result:
    """The result that `to_json` wrote.

    Raises UserError if the text is no JSON or not a result.
    """
    try:
        fields = json.loads(text)
        fields["metrics"] = tuple(_metric(metric) for metric in fields["metrics"])
        fields["notes"] = tuple(fields["notes"])
        return Result(**fields)
    except (ValueError, TypeError, KeyError) as error:
        raise UserError(f"{where} is not a result of `grainline evaluate` ({error})") from error


def write(result: Result, path: str | Path) -> None:
    """Write a result whole or not at all, making folders on the way.

    Raises UserError if the place cannot be written.
    """
    path = Path(path)
    writable(path)
    beside = _part(path)
    try:
        beside.write_text(to_json(result), encoding="utf-8")
        os.replace(beside, path)
    except OSError as error:
        beside.unlink(missing_ok=True)
        raise _unwritable(path, error) from error


def writable(path: Path) -> None:
    """Raise UserError if a result could not be written there, before it costs minutes to make."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _part(path).touch()
        _part(path).unlink()
        if path.is_dir():
            raise IsADirectoryError(EISDIR, "it is a folder")
    except OSError as error:
        raise _unwritable(path, error) from error


def _part(path: Path) -> Path:
    return path.with_name(path.name + ".part")


def _unwritable(path: Path, error: OSError) -> UserError:
    return UserError(f"cannot write {path}: {error.strerror}; name a file in a folder you may write to")


def read(path: str | Path) -> Result:
    """Read a result from a file.

    Raises UserError if there is none.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(
            f"cannot read {path}: {error}; expected a file of `grainline evaluate --json`"
        ) from error
    return from_json(text, str(path))


def _metric(fields: Mapping[str, Any]) -> Metric:
    wilson = fields["wilson"]
    return Metric(**{**fields, "wilson": None if wilson is None else tuple(wilson)})


def _dumps(value: Any) -> str:
    return json.dumps(value, allow_nan=False)  # ASCII: file names need not be valid Unicode
