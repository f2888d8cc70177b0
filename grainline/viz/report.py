"""What stands on a page about measurements: summary, curves, tables with intervals, example retrievals.

Charts are inline SVG. Everything that comes from data or from a user is escaped.
"""

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from PIL import Image

from grainline.viz.charts import Chart, line_chart, whisker
from grainline.viz.overlay import scale_bar
from grainline.viz.page import img, render_page, write_page


class Row(Protocol):
    """What a table shows of a metric."""

    @property
    def name(self) -> str: ...
    @property
    def value(self) -> float: ...
    @property
    def low(self) -> float: ...
    @property
    def high(self) -> float: ...
    @property
    def queries(self) -> int: ...
    @property
    def chance(self) -> float: ...
    @property
    def ties(self) -> int: ...
    @property
    def unit(self) -> str: ...
    def text(self, number: float) -> str:
        """A number in the unit of the metric."""

    def ends(self) -> str:
        """The interval in the unit of the metric."""


class Tabled(Protocol):
    """What a table shows of a result of `grainline.evaluate`."""

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

    what: Image.Image | str  # a picture, or a text
    score: float
    right: bool
    name: str = ""  # of the picture, for readers who do not see it


class HeatMap(NamedTuple):
    """A picture with the heat of a text laid over it."""

    picture: Image.Image  # from viz.overlay.overlay
    text: str
    limit: float  # end of the symmetric range of the colours


class Example(NamedTuple):
    """A query with the best candidates, best first."""

    query: Image.Image | str
    hits: Sequence[Hit]
    rank: int  # of the best right candidate among all, 1 = best
    candidates: int
    heat: Sequence[HeatMap] = ()


def write_report(
    path: str | Path,
    title: str,
    summary: Mapping[str, str],
    curves: Sequence[Chart] = (),
    tables: Sequence[Tabled] = (),
    examples: Sequence[Example] = (),
) -> None:
    """Write the page, whole or not at all.

    summary  what -> value, the most important first; shown large

    Raises UserError if the place cannot be written.
    """
    write_page(path, render(title, summary, curves, tables, examples))


def render(
    title: str,
    summary: Mapping[str, str],
    curves: Sequence[Chart] = (),
    tables: Sequence[Tabled] = (),
    examples: Sequence[Example] = (),
) -> str:
    """The page as text; arguments as in write_report."""
    parts = [f"<h1>{escape(title)}</h1>", _summary(summary)]
    if tables:
        parts += ["<h2>Metrics</h2>", *(_table(result) for result in tables)]
    if curves:
        parts += ["<h2>Training</h2>", f'<div class="charts">{"".join(line_chart(c) for c in curves)}</div>']
    if examples:
        parts += ["<h2>Examples</h2>", *(_example(example, i) for i, example in enumerate(examples, 1))]
    return render_page(title, "\n".join(parts))


def _summary(summary: Mapping[str, str]) -> str:
    items = (f"<div><dt>{escape(what)}</dt><dd>{escape(value)}</dd></div>" for what, value in summary.items())
    return f'<dl class="summary">{"".join(items)}</dl>'


def _table(result: Tabled) -> str:
    shares = [m for m in result.metrics if m.unit == "share"]
    top = max((max(m.high, m.chance) for m in shares), default=1.0) or 1.0
    end = min(1.0, -(-top * 10 // 1) / 10)  # up to the next ten per cent
    size = f"{result.data['pictures']:,} pictures, {result.data['texts']:,} texts"
    caption = f"{result.suite}, protocol {result.protocol}: {size}"
    heads = "".join(
        f'<th scope="col" class="{kind}">{escape(name)}</th>'
        for name, kind in (
            ("Metric", "name"),
            ("Value", ""),
            (f"{100 * result.settings['level']:g} % interval", ""),
            (f"0 to {100 * end:.0f} %", "drawn"),
            ("Chance", ""),
            ("Queries", "extra"),
            ("Ties", "extra"),
        )
    )
    body = "".join(_row(metric, end) for metric in result.metrics)
    notes = "".join(f"<li>{escape(note)}</li>" for note in result.notes)
    label = escape(caption, quote=True)
    return (
        f'<section class="card"><div class="scroll" tabindex="0" role="region" aria-label="{label}">'
        f"<table><caption>{escape(caption)}</caption><thead><tr>{heads}</tr></thead>"
        f"<tbody>{body}</tbody></table>"
        '</div><p class="hint">Ties count as wrong.<span class="drawn"> The upright line is chance.</span>'
        "</p>" + (f'<ul class="notes">{notes}</ul>' if notes else "") + _details(result) + "</section>"
    )


def _row(metric: Row, end: float) -> str:
    drawn = ""
    if metric.unit == "share":
        drawn = whisker(metric.value, metric.low, metric.high, metric.chance, (0.0, end))
    value, chance = escape(metric.text(metric.value)), escape(metric.text(metric.chance))
    return (
        f'<tr><th scope="row">{escape(metric.name)}</th><td class="value">{value}</td>'
        f'<td>{escape(metric.ends())}</td><td class="drawn">{drawn}</td><td>{chance}</td>'
        f'<td class="extra">{metric.queries:,}</td><td class="extra">{metric.ties:,}</td></tr>'
    )


def _details(result: Tabled) -> str:
    """Settings, data and versions, folded away."""
    facts = {"time": result.time, **result.settings, **result.data, **result.versions}
    rows = "".join(
        f'<tr><th scope="row">{escape(str(what))}</th><td>{escape(str(value))}</td></tr>'
        for what, value in facts.items()
    )
    return (
        f'<details><summary>Settings, data, versions</summary><table class="facts">{rows}</table></details>'
    )


def _example(example: Example, number: int) -> str:
    found = f"right one at rank {example.rank:,} of {example.candidates:,}"
    if isinstance(example.query, str):
        query = f"<blockquote>{escape(example.query)}</blockquote>"
    else:
        query = img(example.query, f"query picture {number}", "query")
    hits = "".join(_hit(hit, place) for place, hit in enumerate(example.hits, 1))
    kind = "pictures" if all(isinstance(hit.what, Image.Image) for hit in example.hits) else "texts"
    heat = "".join(_heat(one) for one in example.heat)
    return (
        f'<section class="card example"><h3>Example {number} <small>{escape(found)}</small></h3>{query}'
        f'<ol class="hits {kind}">{hits}</ol>'
        + (f'<div class="heat">{heat}</div>' if heat else "")
        + "</section>"
    )


def _hit(hit: Hit, place: int) -> str:
    mark = '<b class="good">right</b>' if hit.right else ""
    line = f'<span class="score">{place}. <span>{hit.score:.3f}</span> {mark}</span>'
    kind = "right" if hit.right else "wrong"
    if isinstance(hit.what, str):
        return f'<li class="{kind}">{line}<p>{escape(hit.what)}</p></li>'
    name = f"{hit.name}, " if hit.name else ""
    alt = f"{name}rank {place}, {'the right picture' if hit.right else 'a wrong picture'}"
    return f'<li class="{kind}">{img(hit.what, alt)}{line}</li>'


def _heat(one: HeatMap) -> str:
    bar = img(scale_bar(), "colour scale from blue, against, to orange, for", "bar")
    return (
        f"<figure>{img(one.picture, 'heat of: ' + one.text)}<figcaption>{escape(one.text)}"
        f'<span class="scale">-{one.limit:.2g} {bar} +{one.limit:.2g}</span></figcaption></figure>'
    )
