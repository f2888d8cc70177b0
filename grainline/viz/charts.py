"""Line charts and interval bars as inline SVG, in light and dark, without any library.

Colours come from CSS custom properties (viz/style.py), so one drawing serves both themes. Series also differ
in their dashes.
"""

import math
from collections.abc import Sequence
from html import escape
from typing import NamedTuple

import numpy as np

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


def line_chart(chart: Chart) -> str:
    """A chart with a legend as an HTML <figure>.

    Long series are drawn as means of neighbouring points, with a band from the lowest to the highest of
    them, so that no peak is hidden. All names and labels are escaped.
    """
    title, x_label, y_label, series, whole = chart
    assert 1 <= len(series) <= len(DASHES), len(series)
    clean = [_finite(one) for one in series]
    x = np.concatenate([one[0] for one in clean])
    y = np.concatenate([one[1] for one in clean])
    if len(x) == 0:
        return f"<figure><figcaption>{escape(title)}: no finite values</figcaption></figure>"
    x_ticks, y_ticks = ticks(x.min(), x.max(), about=12 if whole else 4), ticks(y.min(), y.max())
    if whole:
        x_ticks = [tick for tick in x_ticks if tick == round(tick)]
    ends = (x.min(), x.max()) if x.min() < x.max() else (x_ticks[0], x_ticks[-1])
    x_ticks = [tick for tick in x_ticks if ends[0] <= tick <= ends[1]]
    frame = _Frame(ends, (y_ticks[0], y_ticks[-1]))
    body = [_axes(frame, x_ticks, y_ticks, x_label, y_label)]
    body += [_line(frame, points, i) for i, points in enumerate(clean)]
    body += [_marks(frame, one, points, i) for i, (one, points) in enumerate(zip(series, clean, strict=True))]
    legend = "".join(_key(one, i, points) for i, (one, points) in enumerate(zip(series, clean, strict=True)))
    names = ", ".join(_spoken(one, points) for one, points in zip(series, clean, strict=True))
    label = escape(f"{title}: {y_label} over {x_label}. {names}", quote=True)
    return (
        f'<figure class="chart"><figcaption>{escape(title)}</figcaption>'
        f'<svg role="img" aria-label="{label}" viewBox="0 0 {frame.width} {frame.height}">'
        f"{''.join(body)}</svg>"
        f'<ul class="legend">{legend}</ul></figure>'
    )


def whisker(value: float, low: float, high: float, chance: float, span: tuple[float, float]) -> str:
    """A small drawing of a value with its interval, and chance as a thin upright line.

    span  the values at the left and right end of the drawing; what lies outside is drawn at the end

    Decoration beside numbers that say the same: hidden from screen readers.
    """
    width, height = 180, 16

    def px(number: float) -> float:
        share = (number - span[0]) / (span[1] - span[0])
        return round(4 + (width - 8) * min(max(share, 0.0), 1.0), 1)

    return (
        f'<svg class="whisker" aria-hidden="true" width="{width}" height="{height}">'
        f'<line class="grid" x1="4" x2="{width - 4}" y1="8" y2="8"/>'
        f'<line x1="{px(chance)}" x2="{px(chance)}" y1="2" y2="14" stroke="var(--s1)" stroke-width="2"/>'
        f'<line x1="{px(low)}" x2="{px(high)}" y1="8" y2="8" stroke="var(--s0)" stroke-width="2"/>'
        f'<line x1="{px(low)}" x2="{px(low)}" y1="5" y2="11" stroke="var(--s0)"/>'
        f'<line x1="{px(high)}" x2="{px(high)}" y1="5" y2="11" stroke="var(--s0)"/>'
        f'<circle cx="{px(value)}" cy="8" r="2.5" fill="var(--s0)"/></svg>'
    )


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


def _axes(frame: _Frame, x_ticks: list[float], y_ticks: list[float], x_label: str, y_label: str) -> str:
    right, floor = frame.width - frame.right, frame.height - frame.bottom
    out = []
    for y in y_ticks:
        p = round(frame.py(y), 1)
        out.append(f'<line class="grid" x1="{frame.left}" x2="{right}" y1="{p}" y2="{p}"/>')
        out.append(f'<text x="{frame.left - 6}" y="{p + 4}" text-anchor="end">{number(y)}</text>')
    for x in x_ticks:
        p = round(frame.px(x), 1)
        anchor = "end" if p > right - 16 else "middle"
        out.append(f'<text x="{p}" y="{floor + 17}" text-anchor="{anchor}">{number(x)}</text>')
    middle = (frame.top + floor) / 2
    out.append(
        f'<text x="{(frame.left + right) / 2}" y="{frame.height - 6}" text-anchor="middle">'
        f"{escape(x_label)}</text>"
    )
    out.append(
        f'<text transform="translate(12 {middle}) rotate(-90)" text-anchor="middle">{escape(y_label)}</text>'
    )
    return "".join(out)


def _line(frame: _Frame, points: tuple[np.ndarray, np.ndarray], order: int) -> str:
    x, y = points
    if len(x) == 0:
        return ""
    blocks = np.array_split(np.arange(len(x)), min(len(x), POINTS))
    middle = [(x[b].mean(), y[b].mean()) for b in blocks]
    band = ""
    if len(x) > POINTS:
        edge = [(x[b].mean(), y[b].max()) for b in blocks] + [(x[b].mean(), y[b].min()) for b in blocks[::-1]]
        band = f'<polygon points="{_path(frame, edge)}" fill="var(--s{order})" opacity="0.18"/>'
    style = f'stroke="var(--s{order})" stroke-dasharray="{DASHES[order]}"'
    return f'{band}<polyline class="series" points="{_path(frame, middle)}" {style}/>'


def _marks(frame: _Frame, series: Series, points: tuple[np.ndarray, np.ndarray], order: int) -> str:
    """The points of a short series, and the signs over it."""
    assert not series.hollow or len(series.hollow) == len(points[0]), "hollow points are all finite"
    few = zip(*points, series.hollow or [False] * len(points[0]), strict=True)
    solid, ring = f'fill="var(--s{order})"', f'class="ring" stroke="var(--s{order})"'
    dots = "".join(
        f'<circle cx="{frame.px(x):.1f}" cy="{frame.py(y):.1f}" r="2.5" {ring if hollow else solid}/>'
        for x, y, hollow in (few if len(points[0]) <= FEW else ())
    )
    return dots + "".join(
        f'<text x="{frame.px(x):.1f}" y="{frame.py(y) - 5:.1f}" text-anchor="middle">{escape(sign)}</text>'
        for x, y, sign in series.signs
    )


def _path(frame: _Frame, points: Sequence[tuple[float, float]]) -> str:
    return " ".join(f"{frame.px(x):.1f},{frame.py(y):.1f}" for x, y in points)


def _key(series: Series, order: int, points: tuple[np.ndarray, np.ndarray]) -> str:
    swatch = (
        '<svg aria-hidden="true" width="28" height="10"><line x1="0" x2="28" y1="5" y2="5" '
        f'stroke="var(--s{order})" stroke-width="2" stroke-dasharray="{DASHES[order]}"/></svg>'
    )
    return f"<li>{swatch} {escape(_spoken(series, points))}</li>"


def _spoken(series: Series, points: tuple[np.ndarray, np.ndarray]) -> str:
    """The name with what can be read off the end of the line."""
    lost = len(series.x) - len(points[0])
    last = f", last {points[1][-1]:.3g}" if len(points[1]) else ""
    return series.name + last + (f", {lost} not finite" if lost else "")


def number(value: float) -> str:
    """A tick label.

    >>> [number(x) for x in (0.0, 0.25, 4.0, 12000.0, 0.00001)]
    ['0', '0.25', '4', '12,000', '1e-05']
    """
    if value != 0 and abs(value) < 1e-4:
        return f"{value:.2g}"
    return f"{round(value, 10):,.10g}"
