"""Pictures with their segments and with where texts look, in rows of panels: as PNG and for a page.

The PNG is drawn with matplotlib (extra `figures`), which is loaded when it is needed.
"""

import textwrap
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from markupsafe import Markup
from PIL import Image

from grainline.files import replacing
from grainline.viz.figure import DPI, SMALL, SOFT
from grainline.viz.maps import COLUMNS, FOOT, GAP, HEAD, LINE, LONG, MAPS, SIDE, SPACE, Sheet
from grainline.viz.overlay import scale_bar
from grainline.viz.page import render, short

PIXELS = round(SIDE * DPI)  # of the side of a panel: lines of one pixel stay whole
# In inches: what is written below a panel, and a line of its legend below that.
UNDER, SIGN = 0.22, 0.17
WIDE = 200  # characters in a line below all panels
MOST, PART = 12, 4  # lines of what stands above a panel, and of a paragraph above a row


class Signed(NamedTuple):
    """A line of a legend."""

    sign: Image.Image
    alt: str  # what the sign looks like
    words: str


class Panel(NamedTuple):
    """A square with words above and below it."""

    words: str
    image: Image.Image
    below: str = ""
    legend: Sequence[Signed] = ()  # below that
    alt: str = ""  # what it shows, for readers who do not see it; "": what stands above and below

    @property
    def alternative(self) -> str:
        """What it shows, for readers who do not see it."""
        return self.alt or f"{self.words}, {self.below}".rstrip(", ")


class Shown(NamedTuple):
    """A picture and what is shown of it."""

    name: str
    picture: Image.Image  # the square that the model sees
    rows: Sequence[Sequence[Panel]]  # each begins in a line of its own
    heads: Sequence[str] = ()  # what stands above each of these rows; its lines are paragraphs

    def listed(self) -> list[tuple[list[str], list[Panel]]]:
        """The rows of a page, each below its paragraphs; the picture stands in the first one."""
        first, *more = self.rows or [()]
        rows = ([Panel("as the model sees it", self.picture), *first], *map(list, more))
        heads = self.heads or [""] * len(rows)
        return [(head.splitlines(), row) for head, row in zip(heads, rows, strict=True)]


def write_rows(path: str | Path, shown: Sequence[Shown], title: str, rule: str) -> None:
    """Write the figure, whole or not at all. Raises UserError if the place cannot be written.

    rule  how to read the colours; "" where there is no heat
    """
    lines = [line for one in shown for line in _lines(one)]
    heights = [_above(line) + SIDE + _below(line) for line in lines]
    sheet = Sheet(HEAD + sum(heights) + FOOT)
    sheet.write(SPACE, 0.28, title, 11)
    if rule:
        sheet.draw(SPACE, sheet.tall - 0.24, (0.5, 0.1), ramp())
        sheet.write(SPACE + 0.6, sheet.tall - 0.12, textwrap.fill(rule, WIDE), SMALL, color=SOFT)
    top = HEAD
    for line, height in zip(lines, heights, strict=True):
        sheet.write(SIDE + 2 * SPACE, top + SPACE + LINE * len(line.head), "\n".join(line.head))
        for column, panel in enumerate(line.panels):
            if panel is not None:
                _draw(sheet, SPACE + column * (SIDE + SPACE), top + _above(line), panel)
        top += height
    with warnings.catch_warnings(), replacing(Path(path)) as beside:
        warnings.filterwarnings("ignore", "Glyph", UserWarning)  # a script that the font lacks shows as boxes
        sheet.figure.savefig(beside, format="png")


def cards(shown: Sequence[Shown]) -> Markup:
    """The same as HTML, one picture below the other."""
    return render("shown.html", shown=shown)


def ramp(width: int = 120, height: int = 24) -> Image.Image:
    """The colours from no weight to the end of the scale."""
    return scale_bar(2 * width, height).crop((width, 0, 2 * width, height))


class _Line(NamedTuple):
    """What stands beside each other, and what is written above it."""

    head: list[str]
    panels: list[Panel | None]


def _lines(one: Shown) -> list[_Line]:
    """The lines of a picture: it stands in front of the first one, a gap in front of all others."""
    heads = one.heads or [""] * len(one.rows)
    rows = [
        ("" if i else head, list(row[i : i + MAPS]))
        for row, head in zip(one.rows, heads, strict=True)
        for i in range(0, len(row), MAPS)
    ] or [("", [])]
    return [
        _Line(_paragraphs(head), [None if i else Panel(one.name, one.picture), *row])
        for i, (head, row) in enumerate(rows)
    ]


def _paragraphs(head: str) -> list[str]:
    return [
        line
        for part in head.splitlines()
        for line in textwrap.wrap(part, LONG, max_lines=PART, placeholder=" ...")
    ]


def _wrapped(words: str) -> list[str]:
    return textwrap.wrap(short(words, COLUMNS * MOST), COLUMNS, max_lines=MOST, placeholder=" ...")


def _above(line: _Line) -> float:
    """Inches above the panels of a line, for its head, their words and a space."""
    most = max(len(_wrapped(panel.words)) for panel in line.panels if panel is not None)
    return 2 * SPACE + LINE * (len(line.head) + most)


def _below(line: _Line) -> float:
    """Inches below the panels of a line, for what stands there."""
    return UNDER + SIGN * max(len(panel.legend) for panel in line.panels if panel is not None)


def _draw(sheet: Sheet, left: float, top: float, panel: Panel) -> None:
    """top  of the square"""
    sheet.write(left, top - GAP, "\n".join(_wrapped(panel.words)))
    how = Image.Resampling.NEAREST if panel.image.width < PIXELS else Image.Resampling.LANCZOS
    sheet.draw(left, top, (SIDE, SIDE), panel.image.convert("RGB").resize((PIXELS, PIXELS), how))
    sheet.write(left, top + SIDE + 0.05, panel.below, SMALL, va="top", color=SOFT)
    for i, line in enumerate(panel.legend):
        high = top + SIDE + UNDER + i * SIGN
        sheet.draw(left, high, (0.8 * SIGN * line.sign.width / line.sign.height, 0.8 * SIGN), line.sign)
        sheet.write(left + 0.32, high, line.words, SMALL, va="top", color=SOFT)
