"""Pictures with their segments and with where texts look, in rows of panels: as PNG and for a page.

The PNG is drawn with matplotlib (extra `figures`), which is loaded when it is needed.
"""

import textwrap
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from markupsafe import Markup
from PIL import Image

from grainline.files import replacing
from grainline.report.heatmap import AGAINST, FOR, enlarged, framed, outlined, overlay, scale_bar
from grainline.report.page import render, short
from grainline.report.png import (
    DPI,
    LINE,
    LONG,
    MAPS,
    MAPS_COLUMNS,
    MAPS_FOOT,
    MAPS_GAP,
    MAPS_HEAD,
    SIDE,
    SMALL,
    SOFT,
    SPACE,
    Sheet,
)

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
    sheet = Sheet(MAPS_HEAD + sum(heights) + MAPS_FOOT)
    sheet.write(SPACE, 0.28, title, 11)
    if rule:
        sheet.draw(SPACE, sheet.tall - 0.24, (0.5, 0.1), ramp())
        sheet.write(SPACE + 0.6, sheet.tall - 0.12, textwrap.fill(rule, WIDE), SMALL, color=SOFT)
    top = MAPS_HEAD
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
    return textwrap.wrap(short(words, MAPS_COLUMNS * MOST), MAPS_COLUMNS, max_lines=MOST, placeholder=" ...")


def _above(line: _Line) -> float:
    """Inches above the panels of a line, for its head, their words and a space."""
    most = max(len(_wrapped(panel.words)) for panel in line.panels if panel is not None)
    return 2 * SPACE + LINE * (len(line.head) + most)


def _below(line: _Line) -> float:
    """Inches below the panels of a line, for what stands there."""
    return UNDER + SIGN * max(len(panel.legend) for panel in line.panels if panel is not None)


def _draw(sheet: Sheet, left: float, top: float, panel: Panel) -> None:
    """top  of the square"""
    sheet.write(left, top - MAPS_GAP, "\n".join(_wrapped(panel.words)))
    how = Image.Resampling.NEAREST if panel.image.width < PIXELS else Image.Resampling.LANCZOS
    sheet.draw(left, top, (SIDE, SIDE), panel.image.convert("RGB").resize((PIXELS, PIXELS), how))
    sheet.write(left, top + SIDE + 0.05, panel.below, SMALL, va="top", color=SOFT)
    for i, line in enumerate(panel.legend):
        high = top + SIDE + UNDER + i * SIGN
        sheet.draw(left, high, (0.8 * SIGN * line.sign.width / line.sign.height, 0.8 * SIGN), line.sign)
        sheet.write(left + 0.32, high, line.words, SMALL, va="top", color=SOFT)


# Patches that stay, over their picture: the others are dark, and stripes say who alone keeps a patch.
#
# Nothing is told by colour alone: stripes rise for the text and fall for the description, a line runs around
# all that stays, and the counts stand beside the signs.


DIM = 0.3  # brightness that is left to a dropped patch, in grey
PERIOD, STRIPE = (
    10,
    3,
)  # pixels from stripe to stripe, and of a stripe, of which one more on each side is white
SWATCH = (36, 20)  # pixels
LIGHT = (225, 225, 225)  # what swatches are drawn over


def over(picture: Image.Image, side: int) -> np.ndarray:
    """A square picture in so many pixels: [side, side, 3] uint8; small ones keep their pixels as squares."""
    how = Image.Resampling.NEAREST if picture.width < side else Image.Resampling.LANCZOS
    return np.array(picture.convert("RGB").resize((side, side), how))


def alone(picture: Image.Image, kept: np.ndarray, side: int) -> Image.Image:
    """The picture with the patches dark that do not stay, and a line around the others.

    kept  [G, G] bool
    """
    return _lined(_dimmed(over(picture, side), enlarged(kept, side)), enlarged(kept, side))


def together(picture: Image.Image, first: np.ndarray, second: np.ndarray, side: int) -> Image.Image:
    """The picture with what two choices keep: stripes over what only one of them does, dark what none does.

    first, second  [G, G] bool; the stripes of the first rise, those of the second fall
    """
    pixels = over(picture, side)
    a, b = enlarged(first, side), enlarged(second, side)
    pixels = _striped(_striped(pixels, a & ~b, rises=True), b & ~a, rises=False)
    return _lined(_dimmed(pixels, a | b), a | b)


def shares(picture: Image.Image, share: np.ndarray, limit: float, side: int) -> Image.Image:
    """The image with shares of patches in orange, and a frame around the greatest one.

    share  [G, G] >= 0; limit: the share that has the full colour
    """
    image = overlay(Image.fromarray(over(picture, side)), enlarged(share, side), limit)
    if not share.any():
        return image
    row, column = np.unravel_index(share.argmax(), share.shape)
    where = enlarged(np.arange(share.size).reshape(share.shape), side) == row * share.shape[1] + column
    rows, columns = where.any(1).nonzero()[0], where.any(0).nonzero()[0]
    return framed(image, (float(columns[0]), float(rows[0]), float(columns[-1] + 1), float(rows[-1] + 1)))


def legend(first: np.ndarray, second: np.ndarray, names: tuple[str, str]) -> list[Signed]:
    """How many patches both choices keep, each of them alone, and none; their shares add up to all.

    first, second  [G, G] bool; names: what they are kept for
    """
    white = np.full((SWATCH[1], SWATCH[0], 3), LIGHT, np.uint8)
    every = np.ones(white.shape[:2], bool)
    looks = (
        (white, "clear", "both", first & second),
        (_striped(white, every, rises=True), "rising stripes", f"{names[0]} alone", first & ~second),
        (_striped(white, every, rises=False), "falling stripes", f"{names[1]} alone", second & ~first),
        (_dimmed(white, ~every), "dark", "neither", ~first & ~second),
    )
    return [
        Signed(Image.fromarray(x), alt, f"{name} {of.sum()}, {100 * of.mean():.0f}\N{NO-BREAK SPACE}%")
        for x, alt, name, of in looks
    ]


def counted(kept: np.ndarray) -> str:
    """How many patches that is, and which share.

    >>> counted(np.array([[True, False], [True, True]]))
    '3 of 4 patches, 75 %'
    """
    return f"{kept.sum()} of {kept.size} patches, {100 * kept.mean():.0f} %"


def _dimmed(pixels: np.ndarray, kept: np.ndarray) -> np.ndarray:
    """pixels [H, W, 3], kept [H, W]: where it is False, dark and grey"""
    grey = DIM * (pixels @ np.array([0.299, 0.587, 0.114]))[..., None]
    return np.where(kept[..., None], pixels, np.rint(grey)).astype(np.uint8)


def _striped(pixels: np.ndarray, where: np.ndarray, *, rises: bool) -> np.ndarray:
    """Stripes of a colour between lines of white: orange ones that rise, or blue ones that fall."""
    y, x = np.indices(where.shape)
    at = np.asarray((x + y if rises else x - y) % PERIOD)
    inside = (at >= 1) & (at <= STRIPE)
    stripe = np.where(inside[..., None], FOR if rises else AGAINST, 255)
    return np.where((where & (at <= STRIPE + 1))[..., None], stripe, pixels).astype(np.uint8)


def _lined(pixels: np.ndarray, kept: np.ndarray) -> Image.Image:
    return outlined(Image.fromarray(pixels), kept)
