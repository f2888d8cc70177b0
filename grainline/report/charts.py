"""Line charts, interval bars and groups of tokens as inline SVG, in light and dark.

Colours come from CSS custom properties (templates/style.css), so one drawing serves both themes. Series
also differ in their dashes.
"""

import math
from collections.abc import Sequence
from itertools import pairwise, takewhile
from typing import Any, NamedTuple

import numpy as np
from markupsafe import Markup
from PIL import Image

from grainline.report.case import Case, Table
from grainline.report.page import MissingImage, render

DASHES = ("", "6 3", "2 3", "8 3 2 3", "12 3", "12 2 2 2 2 2")
FEW = 30  # points at most that are dots as well: they are measurements, not a curve
POINTS = 120  # a chart is about four times as many pixels wide


class Series(NamedTuple):
    """One line of a chart; points that are not finite are left out and counted in the legend."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    chance: float | None = None  # a dotted line across the chart


class Chart(NamedTuple):
    """Up to six series over common axes."""

    title: str
    x_label: str
    y_label: str
    series: Sequence[Series]
    whole: bool = False  # x counts: its ticks are whole numbers


class _Frame(NamedTuple):
    """The place of the data in the drawing, in pixels."""

    x: tuple[float, float]
    y: tuple[float, float]
    left: int
    width: int = 420  # close to its width on the page, so that its text keeps its size
    height: int = 230
    right: int = 14
    top: int = 10
    bottom: int = 42

    def px(self, x: float) -> float:
        inner = self.width - self.left - self.right
        return self.left + (x - self.x[0]) / (self.x[1] - self.x[0]) * inner

    def py(self, y: float) -> float:
        inner = self.height - self.top - self.bottom
        return self.top + (self.y[1] - y) / (self.y[1] - self.y[0]) * inner


def charts(charts_: Sequence[Chart]) -> Markup:
    """Charts side by side."""
    return Markup('<div class="charts">{}</div>').format(Markup().join(map(line_chart, charts_)))


def line_chart(chart: Chart) -> Markup:
    """A chart with a legend as an HTML <figure>.

    A long series becomes means of neighbouring points, with a band from the lowest to the highest of them,
    so that no peak is hidden.
    """
    assert 1 <= len(chart.series) <= len(DASHES), len(chart.series)
    points = [_finite(one) for one in chart.series]
    x, y = (np.concatenate(values) for values in zip(*points, strict=True))
    if len(x) == 0:
        return render("chart.html", chart=chart, frame=None)
    y = np.append(y, [one.chance for one in chart.series if one.chance is not None])
    x_ticks, y_ticks = ticks(x.min(), x.max(), about=12 if chart.whole else 6), ticks(y.min(), y.max())
    if chart.whole:
        x_ticks = [tick for tick in x_ticks if tick == round(tick)]
    ends = (x.min(), x.max()) if x.min() < x.max() else (x_ticks[0], x_ticks[-1])
    longest = max(len(number(tick)) for tick in y_ticks)  # the name of the axis stands left of the numbers
    frame = _Frame(ends, (y_ticks[0], y_ticks[-1]), left=max(54, 28 + 7 * longest))
    return render(
        "chart.html",
        chart=chart,
        frame=frame,
        right=frame.width - frame.right,
        floor=frame.height - frame.bottom,
        x_ticks=[(round(frame.px(x), 1), number(x)) for x in x_ticks if ends[0] <= x <= ends[1]],
        y_ticks=[(round(frame.py(y), 1), number(y)) for y in y_ticks],
        curves=[_curve(frame, *one) for one in zip(chart.series, points, DASHES, strict=False)],
    )


def whisker(
    value: float, low: float, high: float, chance: float | None, span: tuple[float, float], width: int = 180
) -> Markup:
    """A small drawing of a value with its interval, and chance as a thin upright line.

    span  the values at the left and right end of the drawing; values outside stand at the end

    The numbers stand next to it, so it is hidden from screen readers.
    """

    def px(number: float) -> float:
        share = (number - span[0]) / ((span[1] - span[0]) or 1.0)
        return round(4 + (width - 8) * min(max(share, 0.0), 1.0), 1)

    x, line = [px(number) for number in (value, low, high)], None if chance is None else px(chance)
    return render("whisker.html", width=width, value=x[0], low=x[1], high=x[2], chance=line)


def ticks(low: float, high: float, about: int = 5) -> list[float]:
    """Round numbers that cover a range, in steps of 1, 2 or 5 times a power of ten.

    >>> ticks(0.13, 3.9)
    [0.0, 1.0, 2.0, 3.0, 4.0]
    >>> ticks(1200, 1200)
    [1080.0, 1200.0, 1320.0]
    """
    if high - low <= 1e-9 * max(abs(low), abs(high)):  # alike, up to rounding
        step = abs(low) / 10 or 1.0
        return [low - step, float(low), low + step]
    raw = (high - low) / about
    power = 10.0 ** math.floor(math.log10(raw))
    step = power * next(factor for factor in (1, 2, 5, 10) if factor * power >= raw * (1 - 1e-9))
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    digits = 12 - math.floor(math.log10(step))
    return [round(i * step, digits) for i in range(first, last + 1)]


def _finite(series: Series) -> tuple[np.ndarray, np.ndarray]:
    x, y = np.asarray(series.x, np.float64), np.asarray(series.y, np.float64)
    assert x.shape == y.shape, (x.shape, y.shape)
    keep = np.isfinite(x) & np.isfinite(y)
    return x[keep], y[keep]


def _curve(frame: _Frame, series: Series, points: tuple[np.ndarray, np.ndarray], dash: str) -> dict[str, Any]:
    """A series as the template needs it: words of the legend, and points in pixels."""
    x, y = points

    def path(places: Sequence[tuple[float, float]]) -> str:
        return " ".join(f"{frame.px(x):.1f},{frame.py(y):.1f}" for x, y in places)

    missing = len(series.x) - len(x)
    last = f", last {number(y[-1], 3)}" if len(y) else ""
    words = series.name + last + (f", {missing} not finite" if missing else "")
    words += "" if series.chance is None else f", chance {number(series.chance, 3)} (dotted)"
    blocks = np.array_split(np.arange(len(x)), min(len(x), POINTS)) if len(x) else []
    band = []
    if len(x) > POINTS:
        band = [(x[b].mean(), y[b].max()) for b in blocks] + [(x[b].mean(), y[b].min()) for b in blocks[::-1]]
    return {
        "words": words,
        "dash": dash,
        "line": path([(x[b].mean(), y[b].mean()) for b in blocks]),
        "chance": "" if series.chance is None else f"{frame.py(series.chance):.1f}",
        "band": path(band),
        "dots": [path([place]).split(",") for place in zip(x, y, strict=True)] if len(x) <= FEW else [],
    }


def number(value: float, digits: int = 10) -> str:
    """A tick label, or the last value of a legend.

    >>> [number(x) for x in (0.0, 0.25, 4.0, 12000.0, 0.00001)], number(1334.6, 3)
    (['0', '0.25', '4', '12,000', '1e-05'], '1,330')
    """
    if value != 0 and abs(value) < 1e-4:
        return f"{value:.2g}"
    return f"{round(float(f'{value:.{digits}g}'), 10):,.10g}"


# Scores by the number of sentences that are read, for single images.

SUBTEXT_RULES = (
    "Every point is the score of the image with one subtext: the caption from its beginning to there. "
    "rho is Pearson's correlation of score and number. cut: the subtext was longer than the model reads. "
    "tie: exactly the same score twice."
)


def subtext_case(
    image: Image.Image | MissingImage,
    name: str,
    subtexts: Sequence[str],
    scores: Sequence[float],
    cut: Sequence[bool],
    rho: float,
) -> Case:
    """Image and chart side by side, and below them a table of the words that each subtext adds.

    cut  whether each subtext is longer than the model reads
    """
    rows = []
    for i, text in enumerate(added(subtexts)):
        notes = ["cut"] * bool(cut[i]) + ["tie"] * (i > 0 and scores[i] == scores[i - 1])
        score = Markup("{:.4f} <small>{}</small>").format(scores[i], ", ".join(notes))
        rows.append((str(i + 1), text, score))
    head = ("", "added", "score")
    table = Table("What each subtext adds, and the score of all up to it", head, rows, words=(1,))
    series = [Series(f"rho {rho:.2f}", range(1, len(rows) + 1), scores)]
    chart = line_chart(Chart("Score by subtexts read", "subtext", "score", series, whole=True))
    return Case(name, image=image, alt=f"image {name}", chart=chart, table=table)


def added(subtexts: Sequence[str]) -> list[str]:
    """The words that each subtext adds to the one before; dots where it does not continue it.

    >>> added(["A dog.", "A dog. It is wet.", "A dog, it is wet, and old."])
    ['A dog.', 'It is wet.', '... dog, it is wet, and old.']
    """
    out = list(subtexts[:1])
    for before, after in pairwise(subtexts):
        if after.startswith(before):
            out.append(after[len(before) :].strip())
            continue
        words = after.split()
        pairs = zip(before.split(), words, strict=False)
        same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
        out.append(" ".join(["...", *words[same:]] if same else words))
    return out


# Groups of tokens: a map with a row for each group and a column for each token. Below it are the strongest
# group of each token, the annotated phrases as brackets, and the tokens.

LETTERS = 12  # of a token in a drawing
TOKEN_RULES = (
    "A row is a group, a column a token; more colour: the group takes more of the token. The strip below"
    " has the group that takes most, brackets are the annotated phrases."
)
POSITION_RULES = (
    "The mean over all captions of what each group takes, from their first token to their last. Rows with"
    " colour in one place alone say that groups are places in a caption, whatever it says."
)


class TokenGroups(NamedTuple):
    """A caption, its phrases and the soft assignment of its tokens to groups."""

    name: str  # of its image
    words: Sequence[str]  # [L] tokens
    soft: np.ndarray  # [K, L] columns sum to 1
    phrases: Sequence[tuple[int, ...]]  # the tokens of each
    tiou: float
    uniform: float  # tIoU of as many uniform chunks


def runs(tokens: Sequence[int]) -> list[tuple[int, int]]:
    """Neighbours as first and last.

    >>> runs([1, 2, 5])
    [(1, 2), (5, 5)]
    """
    out: list[tuple[int, int]] = []
    for token in sorted(tokens):
        if out and out[-1][1] == token - 1:
            out[-1] = (out[-1][0], token)
        else:
            out.append((token, token))
    return out


def token_groups(one: TokenGroups) -> Case:
    """A caption on a page."""
    title = f"tIoU {100 * one.tiou:.1f} %, uniform chunks {100 * one.uniform:.1f} %"
    tokens = {
        "words": one.words,
        "cut": [word if len(word) <= LETTERS else word[: LETTERS - 1] + "…" for word in one.words],
        "top": one.soft.argmax(0).tolist(),  # the strongest group of each; the first of equal ones
        "brackets": [ends for phrase in one.phrases for ends in runs(phrase)],
    }
    return Case(title, one.name, chart=_groups(one.soft, title, f"groups of: {' '.join(one.words)}", tokens))


def positions(mean: np.ndarray) -> Markup:
    """The mean share of each group along a caption. mean: [K, B]"""
    name = "mean share of each group by position"
    return _groups(mean, name, name)


def _groups(share: np.ndarray, name: str, label: str, tokens: dict[str, Any] | None = None) -> Markup:
    return render("tokens.html", share=share.tolist(), tokens=tokens, name=name, label=label)
