"""Tables of metrics with their intervals, as a part of a page."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from markupsafe import Markup

from grainline.errors import amount
from grainline.report.charts import whisker
from grainline.report.page import render


class Row(Protocol):
    """The fields of a metric that a table shows."""

    @property
    def label(self) -> str:
        """The name, with the better direction where it is not up."""

    @property
    def value(self) -> float: ...
    @property
    def low(self) -> float: ...
    @property
    def high(self) -> float: ...
    @property
    def queries(self) -> int: ...
    @property
    def chance(self) -> float | None: ...
    @property
    def ties(self) -> int: ...
    @property
    def unit(self) -> str: ...
    def text(self, number: float | None) -> str:
        """A number in the unit of the metric."""

    def ends(self) -> str:
        """The interval in the unit of the metric."""


class Tabled(Protocol):
    """The fields of a result of `grainline.evaluation` that a table shows."""

    @property
    def suite(self) -> str: ...
    @property
    def protocol(self) -> str: ...
    @property
    def metrics(self) -> Sequence[Row]: ...
    @property
    def settings(self) -> Mapping[str, Any]: ...
    @property
    def data(self) -> Mapping[str, Any]: ...
    @property
    def versions(self) -> Mapping[str, str]: ...
    @property
    def time(self) -> str: ...
    @property
    def notes(self) -> Sequence[str]: ...


def tables(results: Iterable[Tabled]) -> Markup:
    """One table below the other."""
    return Markup().join(map(table, results))


def table(result: Tabled) -> Markup:
    """Metrics with intervals, chance and counts; settings, data and versions folded away."""
    shares = [m for m in result.metrics if m.unit == "share"]
    top = max((max(m.high, m.chance or 0.0) for m in shares), default=1.0) or 1.0
    end = min(1.0, -(-top * 10 // 1) / 10)  # up to the next ten per cent
    size = f"{amount(result.data['images'], 'image')}, {amount(result.data['texts'], 'text')}"
    return render(
        "table.html",
        caption=f"{result.suite}, protocol {result.protocol}: {size}",
        result=result,
        rows=[(metric, _whisker(metric, end)) for metric in result.metrics],
        end=f"0 to {100 * end:.0f} %" if shares else "",
        about={"time": result.time, **result.settings, **result.data, **result.versions},
    )


def _whisker(metric: Row, end: float) -> Markup:
    if metric.unit != "share" or metric.chance is None:
        return Markup()
    return whisker(metric.value, metric.low, metric.high, metric.chance, (0.0, end))
