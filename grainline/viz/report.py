"""One self-contained HTML page: summary, curves, tables with intervals, example retrievals.

Nothing is loaded from anywhere: pictures are data URLs, charts are inline SVG, and a content security
policy forbids the rest. Everything that comes from data or from a user is escaped. The page follows the
reader's light or dark theme and the width of the screen.
"""

import base64
import io
import os
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from PIL import Image

from grainline.errors import UserError
from grainline.viz.charts import STYLE, Chart, line_chart, whisker
from grainline.viz.overlay import scale_bar

THUMBNAIL = 224  # longest side in pixels: sharp at the largest size at which the page shows it


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
    page = render(title, summary, curves, tables, examples)
    path = Path(path)
    beside = path.with_name(path.name + ".part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        beside.write_text(page, encoding="utf-8")
        os.replace(beside, path)
    except OSError as error:
        raise UserError(
            f"cannot write {path}: {error.strerror}; name a file in a folder you may write to"
        ) from error


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
    policy = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f"<title>{escape(title)}</title><style>{STYLE}{PAGE}</style></head>\n"
        "<body><main>" + "\n".join(parts) + "</main></body></html>\n"
    )


def data_url(picture: Image.Image, side: int = THUMBNAIL) -> str:
    """A picture, shrunk to fit a square, as the text of a data URL (JPEG).

    >>> data_url(Image.new("RGB", (400, 300)))[:23]
    'data:image/jpeg;base64,'
    """
    small = picture.convert("RGB")
    small.thumbnail((side, side), Image.Resampling.LANCZOS)
    file = io.BytesIO()
    small.save(file, "jpeg", quality=88)
    return "data:image/jpeg;base64," + base64.b64encode(file.getvalue()).decode()


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
        query = _picture(example.query, f"query picture {number}", "query")
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
    return f'<li class="{kind}">{_picture(hit.what, alt)}{line}</li>'


def _heat(one: HeatMap) -> str:
    bar = _picture(scale_bar(), "colour scale from blue, against, to orange, for", "bar")
    return (
        f"<figure>{_picture(one.picture, 'heat of: ' + one.text)}<figcaption>{escape(one.text)}"
        f'<span class="scale">-{one.limit:.2g} {bar} +{one.limit:.2g}</span></figcaption></figure>'
    )


def _picture(picture: Image.Image, alt: str, kind: str = "") -> str:
    return f'<img class="{kind}" src="{data_url(picture)}" alt="{escape(alt, quote=True)}">'


PAGE = """
* { box-sizing: border-box; }
body { margin: 0; background: var(--ground); color: var(--ink);
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", sans-serif; }
main { max-width: 64rem; margin: 0 auto; padding: 1.5rem 1rem 4rem; }
h1 { font-size: 1.7rem; line-height: 1.2; margin: 0 0 1rem; }
h2 { font-size: 1.2rem; margin: 2.2rem 0 .8rem; }
h3 { font-size: 1rem; margin: 0 0 .6rem; }
small, .hint, .notes, figcaption, dt, details { color: var(--soft); font-size: .875rem; font-weight: 400; }
.summary { display: grid; grid-template-columns: repeat(auto-fit, minmax(9.5rem, 1fr)); gap: .75rem;
  margin: 0; }
.summary div { background: var(--panel); border-radius: .5rem; padding: .7rem .9rem; }
dd { margin: 0; font-size: 1.25rem; font-weight: 600; font-variant-numeric: tabular-nums;
  overflow-wrap: anywhere; }
.card { border: 1px solid var(--line); border-radius: .5rem; padding: 1rem; margin: 0 0 1rem; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; font-size: .94rem; }
caption { text-align: left; font-weight: 600; padding-bottom: .5rem; }
th, td { padding: .3rem .6rem; text-align: right; border-bottom: 1px solid var(--line); white-space: nowrap; }
th:first-child, .facts td { text-align: left; padding-left: 0; }
thead th { color: var(--soft); font-weight: 400; font-size: .875rem; }
tbody th { font-weight: 400; }
td.value { font-weight: 600; }
td.drawn, th.drawn { text-align: left; width: 192px; }
.whisker { display: block; }
.hint, .notes { margin: .5rem 0 0; }
.notes { padding-left: 1.1rem; }
details { margin-top: .6rem; }
summary { cursor: pointer; padding: .3rem 0; }
.facts td { white-space: normal; overflow-wrap: anywhere; }
.facts th { vertical-align: top; }
.charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(26rem, 100%), 1fr)); gap: 1rem; }
figure { margin: 0; }
.chart { border: 1px solid var(--line); border-radius: .5rem; padding: .8rem; }
.chart figcaption { color: var(--ink); font-weight: 600; margin-bottom: .4rem; }
.chart > svg { width: 100%; height: auto; display: block; }
.legend { list-style: none; display: flex; flex-wrap: wrap; gap: .2rem 1.2rem; padding: 0; margin: .4rem 0 0;
  font-size: .875rem; color: var(--soft); }
blockquote { margin: 0 0 .8rem; padding-left: .8rem; border-left: 3px solid var(--line); max-width: 46rem; }
img { display: block; max-width: 100%; border-radius: .25rem; }
img.query { width: 11rem; margin-bottom: .8rem; }
.hits { list-style: none; margin: 0; padding: 0; display: grid; gap: .7rem; }
.hits.pictures { grid-template-columns: repeat(auto-fill, minmax(8rem, 1fr)); }
.pictures li > img { width: 100%; aspect-ratio: 1; object-fit: contain; background: var(--panel); }
.hits li { border: 2px solid transparent; border-radius: .4rem; padding: .25rem; }
.hits li.right { border-color: var(--good); }
.hits p { margin: 0; max-width: 46rem; }
.score { font-size: .875rem; color: var(--soft); font-variant-numeric: tabular-nums; }
.good { color: var(--good); }
.heat { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(14rem, 100%), 1fr)); gap: 1rem;
  margin-top: 1rem; }
.heat figure > img { width: 100%; max-width: 18rem; }
.scale { display: flex; align-items: center; gap: .4rem; font-variant-numeric: tabular-nums; }
.bar { width: 90px; height: 8px; }
@media (max-width: 40rem) { .drawn, .extra { display: none; } th, td { padding: .3rem .35rem; }
  tbody th, caption { white-space: normal; } table { font-size: .875rem; } .card, .chart { padding: .7rem; }
  .hits.pictures { grid-template-columns: repeat(3, 1fr); gap: .3rem; } }
"""
