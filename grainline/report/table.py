"""Parts of a page about results: curves, tables with intervals, example retrievals, comparisons.

Charts are inline SVG. All text from data and users is escaped.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from markupsafe import Markup
from PIL import Image

from grainline.errors import amount
from grainline.report.case import Look, marked
from grainline.report.charts import Chart, line_chart, whisker
from grainline.report.page import MissingImage, render


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


class Hit(NamedTuple):
    """One retrieved candidate."""

    what: Image.Image | MissingImage | str  # an image, or a text
    score: float
    right: bool
    place: int  # among the candidates, 1 = best
    name: str = ""  # of the image, for readers who do not see it


class Example(NamedTuple):
    """A query with the best candidates, best first."""

    query: Image.Image | MissingImage | str
    name: str  # of the image that the query is or describes
    hits: Sequence[Hit]
    rank: int  # of the best right candidate among all, 1 = best
    tied: bool  # a wrong one scores the same
    candidates: int
    look: Look | None = None  # the right image with the sentences of the query


class Rival(NamedTuple):
    """An image that a text is false of."""

    image: Image.Image | MissingImage
    name: str


class Comparison(NamedTuple):
    """An image with a true text and one that is wrong in one thing, or with another image."""

    image: Image.Image | MissingImage
    name: str
    kind: str  # what is wrong
    true: str
    false: str
    scores: tuple[float, float]  # of the right pair and of the wrong one
    rival: Rival | None = None  # the image that the true text is false of; the false text is the same then

    @property
    def marked(self) -> tuple[Markup, Markup]:
        """Both texts, the words marked that only one of them has."""
        return marked(self.true, self.false)


def charts(charts_: Sequence[Chart]) -> Markup:
    """Charts side by side."""
    return render("charts.html", drawn=map(line_chart, charts_))


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


def examples(rows: Sequence[Example], name: str) -> Markup:
    """Retrievals one below the other.

    name  letters and digits, another one for each list on a page
    """
    return render("examples.html", shown=rows, name=name)


def comparisons(rows: Sequence[Comparison]) -> Markup:
    """True text against false text, one image below the other; the words that differ are marked."""
    return render("comparisons.html", shown=rows)


def _whisker(metric: Row, end: float) -> Markup:
    if metric.unit != "share" or metric.chance is None:
        return Markup()
    return whisker(metric.value, metric.low, metric.high, metric.chance, (0.0, end))
