"""Line charts, interval bars and groups of tokens as inline SVG, in light and dark.

Colours come from CSS custom properties (templates/style.css), so one drawing serves both themes. Series
also differ in their dashes.
"""

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from markupsafe import Markup
from PIL import Image

from grainline.report.case import Case, Table, table_html
from grainline.report.page import MissingImage, render

DASHES = ("", "6 3", "2 3", "8 3 2 3", "12 3", "1 3")
FEW = 30  # so many points are drawn as dots as well: they are measurements, not a curve
POINTS = 120  # a chart is about four times as many pixels wide


class Series(NamedTuple):
    """One line of a chart; points that are not finite are left out and counted in the legend."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    hollow: Sequence[bool] = ()  # points that are drawn as rings; () for none
    signs: Sequence[tuple[float, float, str]] = ()  # x, y and a character that is set just above


class Chart(NamedTuple):
    """At most six series over common axes."""

    title: str
    x_label: str
    y_label: str
    series: Sequence[Series]
    whole: bool = False  # x counts: its ticks are whole numbers


class _Frame(NamedTuple):
    """Where the data lie in the drawing."""

    x: tuple[float, float]
    y: tuple[float, float]
    width: int = 420  # close to the width it is shown at, so that its text keeps its size
    height: int = 230
    left: int = 54
    right: int = 14
    top: int = 10
    bottom: int = 42

    def px(self, x: float) -> float:
        inner = self.width - self.left - self.right
        return self.left + (x - self.x[0]) / (self.x[1] - self.x[0]) * inner

    def py(self, y: float) -> float:
        inner = self.height - self.top - self.bottom
        return self.top + (self.y[1] - y) / (self.y[1] - self.y[0]) * inner


class _Curve(NamedTuple):
    """A series as the template needs it; points are "x,y" in pixels."""

    words: str  # in the legend
    dash: str
    line: str = ""  # points of the curve; "": there are none
    band: str = ""  # points of the rim of the band around it
    dots: Sequence[tuple[str, str, bool]] = ()  # x, y, whether it is a ring
    signs: Sequence[tuple[str, str, str]] = ()  # x, y, character


def charts(charts_: Sequence[Chart]) -> Markup:
    """Charts side by side."""
    return Markup('<div class="charts">{}</div>').format(Markup().join(map(line_chart, charts_)))


def line_chart(chart: Chart) -> Markup:
    """A chart with a legend as an HTML <figure>.

    Long series are drawn as means of neighbouring points, with a band from the lowest to the highest of
    them, so that no peak is hidden.
    """
    series, whole = chart.series, chart.whole
    assert 1 <= len(series) <= len(DASHES), len(series)
    clean = [_finite(one) for one in series]
    x = np.concatenate([one[0] for one in clean])
    y = np.concatenate([one[1] for one in clean])
    if len(x) == 0:
        return render("chart.html", chart=chart, frame=None)
    x_ticks, y_ticks = ticks(x.min(), x.max(), about=12 if whole else 4), ticks(y.min(), y.max())
    if whole:
        x_ticks = [tick for tick in x_ticks if tick == round(tick)]
    ends = (x.min(), x.max()) if x.min() < x.max() else (x_ticks[0], x_ticks[-1])
    frame = _Frame(ends, (y_ticks[0], y_ticks[-1]))
    return render(
        "chart.html",
        chart=chart,
        frame=frame,
        right=frame.width - frame.right,
        floor=frame.height - frame.bottom,
        x_ticks=[(round(frame.px(x), 1), number(x)) for x in x_ticks if ends[0] <= x <= ends[1]],
        y_ticks=[(round(frame.py(y), 1), number(y)) for y in y_ticks],
        drawn=[_curve(frame, *pair) for pair in zip(series, clean, DASHES, strict=False)],
    )


def whisker(value: float, low: float, high: float, chance: float, span: tuple[float, float]) -> Markup:
    """A small drawing of a value with its interval, and chance as a thin upright line.

    span  the values at the left and right end of the drawing; what lies outside is drawn at the end

    Decoration beside numbers that say the same: hidden from screen readers.
    """
    width = 180

    def px(number: float) -> float:
        share = (number - span[0]) / (span[1] - span[0])
        return round(4 + (width - 8) * min(max(share, 0.0), 1.0), 1)

    x = [px(number) for number in (value, low, high, chance)]
    return render("whisker.html", width=width, value=x[0], low=x[1], high=x[2], chance=x[3])


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


def _curve(frame: _Frame, series: Series, points: tuple[np.ndarray, np.ndarray], dash: str) -> _Curve:
    x, y = points
    assert not series.hollow or len(series.hollow) == len(x), "hollow points are all finite"
    words = _spoken(series, points)
    if len(x) == 0:
        return _Curve(words, dash)
    blocks = np.array_split(np.arange(len(x)), min(len(x), POINTS))
    middle = [(x[b].mean(), y[b].mean()) for b in blocks]
    edge = []
    if len(x) > POINTS:
        edge = [(x[b].mean(), y[b].max()) for b in blocks] + [(x[b].mean(), y[b].min()) for b in blocks[::-1]]
    few = zip(x, y, series.hollow or [False] * len(x), strict=True) if len(x) <= FEW else ()
    return _Curve(
        words,
        dash,
        _path(frame, middle),
        _path(frame, edge),
        [(f"{frame.px(x):.1f}", f"{frame.py(y):.1f}", hollow) for x, y, hollow in few],
        [(f"{frame.px(x):.1f}", f"{frame.py(y) - 5:.1f}", sign) for x, y, sign in series.signs],
    )


def _path(frame: _Frame, points: Sequence[tuple[float, float]]) -> str:
    return " ".join(f"{frame.px(x):.1f},{frame.py(y):.1f}" for x, y in points)


def _spoken(series: Series, points: tuple[np.ndarray, np.ndarray]) -> str:
    """The legend entry: name, last value, number of missing points."""
    missing = len(series.x) - len(points[0])
    last = f", last {points[1][-1]:.3g}" if len(points[1]) else ""
    return series.name + last + (f", {missing} not finite" if missing else "")


def number(value: float) -> str:
    """A tick label.

    >>> [number(x) for x in (0.0, 0.25, 4.0, 12000.0, 0.00001)]
    ['0', '0.25', '4', '12,000', '1e-05']
    """
    if value != 0 and abs(value) < 1e-4:
        return f"{value:.2g}"
    return f"{round(value, 10):,.10g}"


# Score against the number of sentences that are read, for single images and several models.


TIE = "="  # set over two neighbours of equal score
SUBTEXT_RULES = (
    "Every point is the score of the image with one subtext: the caption from its beginning to there. "
    "rho is Pearson's correlation of score and number. A ring: the subtext was longer than the model reads, "
    f"and cut. {TIE}: exactly the same score twice."
)


class Line(NamedTuple):
    """The scores that one model gives the subtexts of an image."""

    model: str
    scores: Sequence[float]  # [K]
    cut: Sequence[bool]  # [K] the subtext is longer than the model reads
    rho: float

    def tied(self, place: int) -> bool:
        """Whether the score at a place is exactly that of the place before; places count from 0."""
        return place > 0 and self.scores[place] == self.scores[place - 1]


class SubtextScores(NamedTuple):
    """An image, its subtexts, and the scores of models."""

    image: Image.Image | MissingImage
    name: str
    subtexts: Sequence[str]  # [K]
    lines: Sequence[Line]


def subtext_case(one: SubtextScores) -> Case:
    """Image and chart side by side, and below them a table of the words that each subtext adds."""
    rows = [
        (str(i + 1), text, *(_score(line, i) for line in one.lines))
        for i, text in enumerate(added(one.subtexts))
    ]
    head = ("", "added", *(line.model for line in one.lines))
    table = Table("What each subtext adds, and the score of all up to it", head, rows, words=(1,))
    alt = f"image {one.name}"
    return Case(one.name, image=one.image, alt=alt, chart=line_chart(chart(one)), table=table)


def _score(line: Line, place: int) -> str:
    notes = ["cut"] * line.cut[place] + ["tie"] * line.tied(place)
    score = f"{line.scores[place]:.4f}"
    return Markup("{} <small>{}</small>").format(score, ", ".join(notes)) if notes else score


def models(rows: Sequence[tuple[str, Mapping[str, str]]]) -> Markup:
    """A table of models and their metrics, as texts."""
    names = list(dict.fromkeys(name for _, values in rows for name in values))
    cells = [(model, *(values.get(name, "") for name in names)) for model, values in rows]
    return table_html(Table("Models side by side", ("Model", *names), cells))


def chart(one: SubtextScores) -> Chart:
    """The lines of all models."""
    number = list(range(1, len(one.subtexts) + 1))
    series = [
        Series(f"{line.model}: rho {line.rho:.2f}", number, line.scores, line.cut, ties(line))
        for line in one.lines
    ]
    return Chart("Score by subtexts read", "subtext", "score", series, whole=True)


def ties(line: Line) -> list[tuple[float, float, str]]:
    """The places between neighbours of equal score, with the sign."""
    return [(i + 0.5, a, TIE) for i, (a, b) in enumerate(pairwise(line.scores), 1) if a == b]


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
        old, words = before.split(), after.split()
        pairs = enumerate(zip(old, words, strict=False))
        same = next((i for i, (a, b) in pairs if a != b), min(len(old), len(words)))
        out.append(" ".join(["...", *words[same:]] if same else words))
    return out


# Groups of tokens: a map with a row for each group and a column for each token. Below it are the strongest
# group of each token, the annotated phrases as brackets, and the tokens.

CELL, ROW, LEFT, GAP = 24, 18, 64, 4  # in pixels: a token, a group, room for names, between map and strip
TALL = 84  # room for the tokens, which are turned
COLOURS = 6  # of groups in the strip; more groups begin again
LETTERS = 12  # of a token that are shown
TOKEN_RULES = (
    "A row is a group, a column a token; the darker, the more of the token the group takes. The strip below"
    " has the group that takes most, brackets are the annotated phrases."
)
POSITION_RULES = (
    "The mean over all captions of what each group takes, from their first token to their last. Rows that are"
    " dark in one place alone say that groups are places in a caption, whatever it says."
)


class TokenGroups(NamedTuple):
    """A caption, its phrases and the soft assignment of its tokens to groups."""

    name: str  # of its image
    words: Sequence[str]  # [L] tokens
    soft: np.ndarray  # [K, L] columns sum to 1
    phrases: Sequence[tuple[int, ...]]  # the tokens of each
    tiou: float
    uniform: float  # tIoU of as many uniform chunks

    @property
    def top_group(self) -> list[int]:
        """The strongest group of each token; the first of equal ones."""
        return [int(group) for group in self.soft.argmax(0)]

    @property
    def brackets(self) -> list[tuple[int, int]]:
        """The first and the last token of each stretch of a phrase."""
        return [ends for phrase in self.phrases for ends in runs(phrase)]

    @property
    def shortened(self) -> list[str]:
        """The tokens as they are drawn."""
        return [word if len(word) <= LETTERS else word[: LETTERS - 1] + "…" for word in self.words]

    @property
    def summary(self) -> str:
        """Both tIoU in words."""
        return f"tIoU {100 * self.tiou:.1f} %, uniform chunks {100 * self.uniform:.1f} %"


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
    label = f"groups of: {' '.join(one.words)}"
    drawing = render(
        "tokens.html",
        **_SIZES
        | {
            "share": one.soft.tolist(),
            "words": one.words,
            "top_group": one.top_group,
            "brackets": one.brackets,
        }
        | {"shortened": one.shortened, "name": one.summary, "label": label},
    )
    return Case(one.summary, one.name, chart=drawing)


def positions(mean: np.ndarray) -> Markup:
    """The mean share of each group along a caption. mean: [K, B]"""
    name = "mean share of each group by position"
    return render("tokens.html", share=mean.tolist(), words=(), name=name, label=name, **_SIZES)


_SIZES: dict[str, Any] = {
    "cell": CELL, "row": ROW, "left": LEFT, "gap": GAP, "tall": TALL, "colours": COLOURS,
    "top_group": (), "brackets": (), "shortened": (),
}  # fmt: skip
