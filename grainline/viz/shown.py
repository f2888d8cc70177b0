"""Pictures with their segments and with where texts look, in rows of panels: as PNG and for a page.

The PNG is drawn with matplotlib (extra `figures`), which is loaded when it is needed.
"""

import textwrap
import warnings
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import NamedTuple

from PIL import Image

from grainline.files import replacing
from grainline.viz.figure import DPI, SMALL, SOFT
from grainline.viz.maps import COLUMNS, FOOT, GAP, HEAD, LINE, LINES, MAPS, SIDE, SPACE, Sheet
from grainline.viz.overlay import scale_bar
from grainline.viz.page import img, short

PIXELS = round(SIDE * DPI)  # of the side of a panel: lines of one pixel stay whole
UNDER = 0.22  # in inches: what is written below a panel


class Panel(NamedTuple):
    """A square with words above and below it."""

    words: str
    image: Image.Image
    below: str = ""


class Shown(NamedTuple):
    """A picture and what is shown of it."""

    name: str
    picture: Image.Image  # the square that the model sees
    rows: Sequence[Sequence[Panel]]  # each begins in a line of its own


def write_rows(path: str | Path, shown: Sequence[Shown], title: str, rule: str) -> None:
    """Write the figure, whole or not at all. Raises UserError if the place cannot be written.

    rule  how to read the colours; "" where there is no heat
    """
    lines = [line for one in shown for line in _lines(one)]
    heights = [_above(line) + SIDE + UNDER for line in lines]
    sheet = Sheet(HEAD + sum(heights) + FOOT)
    sheet.write(SPACE, 0.28, title, 11)
    if rule:
        sheet.draw(SPACE, sheet.tall - 0.24, (0.5, 0.1), ramp())
        sheet.write(SPACE + 0.6, sheet.tall - 0.12, rule, SMALL, color=SOFT)
    top = HEAD
    for line, height in zip(lines, heights, strict=True):
        for column, panel in enumerate(line):
            if panel is not None:
                _draw(sheet, SPACE + column * (SIDE + SPACE), top + _above(line), panel)
        top += height
    with warnings.catch_warnings(), replacing(Path(path)) as beside:
        warnings.filterwarnings("ignore", "Glyph", UserWarning)  # a script that the font lacks shows as boxes
        sheet.figure.savefig(beside, format="png")


def cards(shown: Sequence[Shown]) -> str:
    """The same as HTML, one picture below the other."""
    return "".join(map(_card, shown))


def ramp(width: int = 120, height: int = 24) -> Image.Image:
    """The colours from no weight to the end of the scale."""
    return scale_bar(2 * width, height).crop((width, 0, 2 * width, height))


def _lines(one: Shown) -> list[list[Panel | None]]:
    """What stands beside each other: the picture in front of the first line, a gap in front of all others."""
    rows = [list(row[i : i + MAPS]) for row in one.rows for i in range(0, len(row), MAPS)] or [[]]
    return [[None if i else Panel(one.name, one.picture), *row] for i, row in enumerate(rows)]


def _wrapped(words: str) -> list[str]:
    return textwrap.wrap(short(words, COLUMNS * LINES), COLUMNS, max_lines=LINES, placeholder=" ...")


def _above(line: Sequence[Panel | None]) -> float:
    """Inches above the panels of a line, for their words and a space."""
    return 2 * SPACE + LINE * max(len(_wrapped(panel.words)) for panel in line if panel is not None)


def _draw(sheet: Sheet, left: float, top: float, panel: Panel) -> None:
    """top  of the square"""
    sheet.write(left, top - GAP, "\n".join(_wrapped(panel.words)))
    how = Image.Resampling.NEAREST if panel.image.width < PIXELS else Image.Resampling.LANCZOS
    sheet.draw(left, top, (SIDE, SIDE), panel.image.convert("RGB").resize((PIXELS, PIXELS), how))
    sheet.write(left, top + SIDE + 0.05, panel.below, SMALL, va="top", color=SOFT)


def _card(one: Shown) -> str:
    seen = Panel("as the model sees it", one.picture)
    first, *more = one.rows or [()]
    rows = ((seen, *first), *more)
    lists = "".join(f'<ul class="hits pictures">{"".join(map(_item, row))}</ul>' for row in rows)
    return f'<article class="card"><h3>{escape(one.name)}</h3>{lists}</article>'


def _item(panel: Panel) -> str:
    below = f'<span class="score">{escape(panel.below)}</span>' if panel.below else ""
    alt = f"{panel.words}, {panel.below}".rstrip(", ")
    return f"<li>{img(panel.image, alt)}<p>{escape(panel.words)}</p>{below}</li>"
