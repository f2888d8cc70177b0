"""Rows of panels as a PNG with matplotlib (extra `figures`), which is imported when a figure is drawn.

Places and sizes are in inches.
"""

import textwrap
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from PIL import Image

from grainline.errors import UserError
from grainline.files import replacing
from grainline.report.case import Case, Panel
from grainline.report.heatmap import scaled_pixels
from grainline.report.page import short

DPI = 150
INK, SOFT = "#1d2129", "#596273"
SMALL = 8.5  # points
MAPS = 5  # in a line, beside the image
SIDE, SPACE = 2.0, 0.2  # of an image, and between two of them
HEAD, FOOT = 0.3, 0.6
GAP = 0.06  # between words and the panel below them
COLUMNS = 34  # of the words above a panel
LINE, LONG = 0.14, 170  # of words above a row: the height of a line, and its characters
PIXELS = round(SIDE * DPI)  # of the side of a panel: lines of one pixel stay whole
UNDER, LEGEND = 0.22, 0.17  # of the words below a panel, and of a line of its legend below these
RULE_COLUMNS = 200
PANEL_LINES, HEAD_LINES = 12, 4  # above a panel, and of a paragraph above a row


def require_matplotlib() -> None:
    """Raise UserError where it is missing."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise UserError("a PNG needs matplotlib: pip install 'grainline[figures]'") from None


class Sheet:
    """A figure; places are distances from its upper left corner."""

    def __init__(self, wide: float, tall: float, dpi: int = DPI) -> None:
        from matplotlib.figure import Figure

        self.wide, self.tall, self.dpi = wide, tall, dpi
        self.figure = Figure(figsize=(wide, tall), dpi=dpi, facecolor="white")

    def draw(self, left: float, top: float, size: tuple[float, float], image: Image.Image) -> None:
        """An image, as large as it fits into a rectangle of that width and height."""
        wide, tall = size
        corner = left / self.wide, 1 - (top + tall) / self.tall
        axes = self.figure.add_axes((*corner, wide / self.wide, tall / self.tall))
        axes.set_axis_off()
        axes.imshow(image, interpolation="nearest")

    def write(self, left: float, foot: float, text: str, size: float = 7.5, **more: Any) -> None:
        """Words, the last line of which stands on `foot`; `more` as matplotlib has it."""
        style: dict[str, Any] = {"va": "bottom", "color": INK, "linespacing": 1.2, "parse_math": False} | more
        self.figure.text(left / self.wide, 1 - foot / self.tall, text, fontsize=size, **style)

    def save(self, path: str | Path) -> None:
        """Write the figure, whole or not at all. Raises UserError if the place cannot be written."""
        with warnings.catch_warnings(), replacing(Path(path)) as temporary:
            warnings.filterwarnings("ignore", "Glyph", UserWarning)  # scripts that the font lacks are boxes
            self.figure.savefig(temporary, format="png")


def _wrap(text: str, columns: int, lines: int) -> list[str]:
    return textwrap.wrap(text, columns, max_lines=lines, placeholder=" ...")


def write_panels(path: str | Path, cases: Sequence[Case], title: str, rule: str) -> None:
    """Write rows of panels. Raises UserError if the place cannot be written.

    cases  the first panel of each is its image, which begins its first line; the others begin with a gap
    rule   how to read the colours; "" where there is no heat

    The longest image has a pixel of the file for each of its own, if it has 300 pixels or more.
    """
    lines: list[tuple[list[str], list[Panel | None]]] = []
    for case in cases:
        image, *panels = case.rows[0].panels
        for row in (case.rows[0]._replace(panels=panels), *case.rows[1:]):
            for i in range(0, max(1, len(row.panels)), MAPS):
                first = image._replace(words=case.title) if row.panels is panels and not i else None
                head = [] if i else row.head.splitlines()
                paragraphs = [line for part in head for line in _wrap(part, LONG, HEAD_LINES)]
                lines.append((paragraphs, [first, *row.panels[i : i + MAPS]]))
    filled = [[panel for panel in panels if panel is not None] for _, panels in lines]
    above = [
        2 * SPACE + LINE * (len(head) + max(len(_wrapped(panel.words)) for panel in real))
        for (head, _), real in zip(lines, filled, strict=True)
    ]
    below = [UNDER + LEGEND * max(len(panel.legend) for panel in real) for real in filled]
    high = [SIDE * max(_shape(panel)[1] for panel in real) for real in filled]
    longest = max(max(_image(panel).size) for real in filled for panel in real)
    tall = HEAD + sum(above) + sum(high) + sum(below) + FOOT
    sheet = Sheet(SPACE + (MAPS + 1) * (SIDE + SPACE), tall, max(DPI, round(longest / SIDE)))
    sheet.write(SPACE, 0.28, title, 11)
    if rule:
        sheet.write(SPACE, sheet.tall - 0.12, textwrap.fill(rule, RULE_COLUMNS), SMALL, color=SOFT)
    top = HEAD
    for (head, line), over, side, under in zip(lines, above, high, below, strict=True):
        sheet.write(SIDE + 2 * SPACE, top + SPACE + LINE * len(head), "\n".join(head))
        for column, panel in enumerate(line):
            if panel is not None:
                _panel(sheet, SPACE + column * (SIDE + SPACE), top + over, side, panel)
        top += over + side + under
    sheet.save(path)


def _wrapped(words: str) -> list[str]:
    return _wrap(short(words, COLUMNS * PANEL_LINES), COLUMNS, PANEL_LINES)


def _image(panel: Panel) -> Image.Image:
    assert isinstance(panel.image, Image.Image), "every panel of `show` has an image"
    return panel.image


def _shape(panel: Panel) -> tuple[float, float]:
    """Width and height of the image of a panel, as shares of its longer side."""
    wide, tall = _image(panel).size
    return wide / max(wide, tall), tall / max(wide, tall)


def _panel(sheet: Sheet, left: float, top: float, tall: float, panel: Panel) -> None:
    """top, tall: of the image, where the highest one of the row has its height"""
    sheet.write(left, top - GAP, "\n".join(_wrapped(panel.words)))
    across, down = _shape(panel)
    pixels = scaled_pixels(_image(panel), round(SIDE * sheet.dpi))
    sheet.draw(left, top, (SIDE * across, SIDE * down), Image.fromarray(pixels))
    sheet.write(left, top + tall + 0.05, panel.below, SMALL, va="top", color=SOFT)
    for i, line in enumerate(panel.legend):
        foot = top + tall + UNDER + i * LEGEND
        size = 0.8 * LEGEND * line.swatch.width / line.swatch.height, 0.8 * LEGEND
        sheet.draw(left, foot, size, line.swatch)
        sheet.write(left + size[0] + 0.08, foot, line.words, SMALL, va="top", color=SOFT)
