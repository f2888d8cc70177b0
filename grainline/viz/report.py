"""What stands on a page about measurements: curves, tables with intervals, example retrievals, comparisons.

Charts are inline SVG. Everything that comes from data or from a user is escaped.
"""

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any, NamedTuple, Protocol

from PIL import Image

from grainline.viz.charts import Chart, line_chart, whisker
from grainline.viz.look import Look, look
from grainline.viz.marked import marked
from grainline.viz.page import Gone, facts, folded, img, notes
from grainline.wording import amount


class Row(Protocol):
    """What a table shows of a metric."""

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

    what: Image.Image | Gone | str  # a picture, or a text
    score: float
    right: bool
    place: int  # among the candidates, 1 = best
    name: str = ""  # of the picture, for readers who do not see it


class Example(NamedTuple):
    """A query with the best candidates, best first."""

    query: Image.Image | Gone | str
    name: str  # of the picture that the query is or describes
    hits: Sequence[Hit]
    rank: int  # of the best right candidate among all, 1 = best
    tied: bool  # a wrong one scores the same
    candidates: int
    look: Look | None = None  # the right picture with the sentences of the query


class Rival(NamedTuple):
    """A picture that a text is false of."""

    picture: Image.Image | Gone
    name: str


class Comparison(NamedTuple):
    """A picture with a true text and one that is wrong in one thing, or with another picture."""

    picture: Image.Image | Gone
    name: str
    kind: str  # what is wrong
    true: str
    false: str
    scores: tuple[float, float]  # of the right pair and of the wrong one
    rival: Rival | None = None  # the picture that the true text is false of; the false text is the same then


def charts(drawn: Sequence[Chart]) -> str:
    """Charts side by side."""
    return f'<div class="charts">{"".join(line_chart(chart) for chart in drawn)}</div>'


def table(result: Tabled) -> str:
    """Metrics with intervals, chance and counts; settings, data and versions folded away."""
    shares = [m for m in result.metrics if m.unit == "share"]
    top = max((max(m.high, m.chance or 0.0) for m in shares), default=1.0) or 1.0
    end = min(1.0, -(-top * 10 // 1) / 10)  # up to the next ten per cent
    size = f"{amount(result.data['pictures'], 'picture')}, {amount(result.data['texts'], 'text')}"
    caption = f"{result.suite}, protocol {result.protocol}: {size}"
    heads = "".join(
        f'<th scope="col" class="{kind}">{escape(name)}</th>'
        for name, kind in (
            ("Metric", "name"),
            ("Value", ""),
            (f"{100 * result.settings['level']:g} % interval", ""),
            (f"0 to {100 * end:.0f} %" if shares else "", "drawn"),
            ("Chance", ""),
            ("Queries", "extra"),
            ("Ties", "extra"),
        )
    )
    body = "".join(_row(metric, end) for metric in result.metrics)
    said = (
        "Ties count as wrong." + '<span class="drawn"> The upright line is chance.</span>' if shares else ""
    )
    about = {"time": result.time, **result.settings, **result.data, **result.versions}
    return (
        f'<div class="card"><div class="scroll" tabindex="0" role="region" aria-label="{escape(caption)}">'
        f"<table><caption>{escape(caption)}</caption><thead><tr>{heads}</tr></thead>"
        f"<tbody>{body}</tbody></table>"
        f'</div><p class="hint">{said}</p>{notes(result.notes)}'
        + folded("Settings, data, versions", facts(about, "Settings, data, versions"))
        + "</div>"
    )


def examples(shown: Sequence[Example], name: str) -> str:
    """Retrievals one below the other.

    name  letters and digits, another one for each list on a page
    """
    return "".join(_example(one, i, f"{name}{i}") for i, one in enumerate(shown, 1))


def comparisons(shown: Sequence[Comparison]) -> str:
    """True text against false text, one picture below the other; the words that differ are marked."""
    return "".join(_comparison(one) for one in shown)


def _row(metric: Row, end: float) -> str:
    drawn = ""
    if metric.unit == "share" and metric.chance is not None:
        drawn = whisker(metric.value, metric.low, metric.high, metric.chance, (0.0, end))
    value, chance = escape(metric.text(metric.value)), escape(metric.text(metric.chance))
    return (
        f'<tr><th scope="row">{escape(metric.label)}</th><td class="value">{value}</td>'
        f'<td>{escape(metric.ends())}</td><td class="drawn">{drawn}</td><td>{chance}</td>'
        f'<td class="extra">{metric.queries:,}</td><td class="extra">{metric.ties:,}</td></tr>'
    )


def _example(example: Example, number: int, name: str) -> str:
    found = f"right one at rank {example.rank:,} of {example.candidates:,}"
    found += ", tied with a wrong one" if example.tied else ""
    if isinstance(example.query, str):
        query = f"<blockquote>{escape(example.query)}</blockquote>"
    else:
        query = img(example.query, f"query picture {example.name}", "query")
    hits = "".join(_hit(hit) for hit in example.hits)
    kind = "pictures" if isinstance(example.query, str) else "texts"
    shown = f"<h4>{_WHERE}</h4>{look(example.look, name)}" if example.look is not None else ""
    return (
        f'<article class="card example"><h3>Example {number} <small>{escape(found)}</small></h3>'
        f'<p class="hint">{escape(example.name)}</p>{query}'
        f'<ol class="hits {kind}">{hits}</ol>{shown}</article>'
    )


_WHERE = "The sentences in the right picture"


def _hit(hit: Hit) -> str:
    mark = '<b class="good"><span aria-hidden="true">&#10003;</span> right</b>' if hit.right else "wrong"
    line = f'<span class="score">{hit.place:,}. <span>{hit.score:.3f}</span> {mark}</span>'
    kind = "right" if hit.right else "wrong"
    if isinstance(hit.what, str):
        return f'<li class="{kind}">{line}<p>{escape(hit.what)}</p></li>'
    name = f"{hit.name}, " if hit.name else ""
    alt = f"{name}rank {hit.place}, {'the right picture' if hit.right else 'a wrong picture'}"
    return f'<li class="{kind}">{img(hit.what, alt)}{line}</li>'


def _comparison(one: Comparison) -> str:
    true, false = one.scores
    outcome = "wrong, tied" if true == false else "right" if true > false else "wrong"
    outcome += f" by {abs(true - false):.3f}"
    sign = "&#10003;" if true > false else "&#10007;"
    what = "foil" if one.rival is None else "wrong picture"
    return (
        f'<article class="card"><h3><span aria-hidden="true">{sign}</span> {outcome}'
        f" <small>{what} of kind {escape(one.kind)}, {escape(one.name)}</small></h3>"
        f"{_two_texts(one) if one.rival is None else _two_pictures(one, one.rival)}</article>"
    )


def _two_texts(one: Comparison) -> str:
    true, false = one.scores
    first, second = marked(one.true, one.false)
    return (
        f'<div class="pair">{img(one.picture, f"picture {one.name}")}<dl>'
        f"<div><dt>True text, score {true:.3f}</dt><dd>{first}</dd></div>"
        f"<div><dt>False text, score {false:.3f}</dt><dd>{second}</dd></div></dl></div>"
    )


def _two_pictures(one: Comparison, rival: Rival) -> str:
    sides = zip(("Right", "Wrong"), ((one.picture, one.name), rival), one.scores, strict=True)
    figures = "".join(
        f"<figure>{img(picture, f'{which.lower()} picture {name}')}<figcaption>{escape(name)}</figcaption>"
        f'<p class="score">{which} picture, score {score:.3f}</p></figure>'
        for which, (picture, name), score in sides
    )
    return f'<p>{escape(one.true)}</p><div class="sides">{figures}</div>'
