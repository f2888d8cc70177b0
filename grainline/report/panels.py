"""Rows of panels for `grainline show`: segments, attention of texts, selected patches; as PNG and HTML.

The PNG is drawn with matplotlib (extra `figures`), which is loaded when it is needed.
"""

import textwrap
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image

from grainline.files import replacing
from grainline.report.case import Case, LegendEntry, Panel
from grainline.report.heatmap import AGAINST, FOR, enlarged, framed, outlined, overlay, scale_bar
from grainline.report.page import short
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


def write_rows(path: str | Path, images: Sequence[Case], title: str, rule: str) -> None:
    """Write the figure, whole or not at all. Raises UserError if the place cannot be written.

    images  cases whose first panel is the image
    rule    how to read the colours; "" where there is no heat
    """
    lines = [line for one in images for line in _lines(one)]
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


def ramp(width: int = 120, height: int = 24) -> Image.Image:
    """The colours from no weight to the end of the scale."""
    return scale_bar(2 * width, height).crop((width, 0, 2 * width, height))


class _Line(NamedTuple):
    """A line of panels and the text above it."""

    head: list[str]
    panels: list[Panel | None]


def _lines(one: Case) -> list[_Line]:
    """The lines of a case. The first one begins with the image, the others with a gap."""
    image, *panels = one.rows[0].panels
    rows = [one.rows[0]._replace(panels=panels), *one.rows[1:]]
    lines = [
        ("" if i else row.head, list(row.panels[i : i + MAPS]))
        for row in rows
        for i in range(0, max(1, len(row.panels)), MAPS)
    ]
    return [
        _Line(_paragraphs(head), [None if i else image._replace(words=one.title), *panels])
        for i, (head, panels) in enumerate(lines)
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
    assert isinstance(panel.image, Image.Image), "every panel of `show` has an image"
    image = Image.fromarray(enlarged_image(panel.image, PIXELS))
    sheet.draw(left, top, (SIDE, SIDE), image)
    sheet.write(left, top + SIDE + 0.05, panel.below, SMALL, va="top", color=SOFT)
    for i, line in enumerate(panel.legend):
        high = top + SIDE + UNDER + i * SIGN
        sheet.draw(left, high, (0.8 * SIGN * line.swatch.width / line.swatch.height, 0.8 * SIGN), line.swatch)
        sheet.write(left + 0.32, high, line.words, SMALL, va="top", color=SOFT)


# Selected patches over their image: dropped patches are dark, and stripes mark patches that only one branch
# selects. Colour is never the only sign: stripes rise for the text and fall for the description, a line
# surrounds the selected patches, and the legend has their counts.

DIM = 0.3  # brightness that is left to a dropped patch, in grey
PERIOD, STRIPE = (
    10,
    3,
)  # pixels from stripe to stripe, and of a stripe, of which one more on each side is white
SWATCH = (36, 20)  # pixels
LIGHT = (225, 225, 225)  # what swatches are drawn over


def enlarged_image(image: Image.Image, side: int) -> np.ndarray:
    """A square image in so many pixels: [side, side, 3] uint8; small ones keep their pixels as squares."""
    how = Image.Resampling.NEAREST if image.width < side else Image.Resampling.LANCZOS
    return np.array(image.convert("RGB").resize((side, side), how))


def selected_patches(image: Image.Image, mask: np.ndarray, side: int) -> Image.Image:
    """The image with dropped patches dark, and a line around the selected ones.

    kept  [G, G] bool
    """
    return _lined(_dimmed(enlarged_image(image, side), enlarged(mask, side)), enlarged(mask, side))


def two_selections(image: Image.Image, first: np.ndarray, second: np.ndarray, side: int) -> Image.Image:
    """The image with two selections: stripes over patches that only one has, dark where none has.

    first, second  [G, G] bool; the stripes of the first rise, those of the second fall
    """
    pixels = enlarged_image(image, side)
    a, b = enlarged(first, side), enlarged(second, side)
    pixels = _striped(_striped(pixels, a & ~b, rises=True), b & ~a, rises=False)
    return _lined(_dimmed(pixels, a | b), a | b)


def shares(image: Image.Image, share: np.ndarray, limit: float, side: int) -> Image.Image:
    """The image with shares of patches in orange, and a frame around the greatest one.

    share  [G, G] >= 0; limit: the share that has the full colour
    """
    canvas = overlay(Image.fromarray(enlarged_image(image, side)), enlarged(share, side), limit)
    if not share.any():
        return canvas
    row, column = np.unravel_index(share.argmax(), share.shape)
    where = enlarged(np.arange(share.size).reshape(share.shape), side) == row * share.shape[1] + column
    rows, columns = where.any(1).nonzero()[0], where.any(0).nonzero()[0]
    return framed(canvas, (float(columns[0]), float(rows[0]), float(columns[-1] + 1), float(rows[-1] + 1)))


def legend(first: np.ndarray, second: np.ndarray, names: tuple[str, str]) -> list[LegendEntry]:
    """Counts of patches in both selections, in one alone, and in none; the shares sum to 1.

    first, second  [G, G] bool; names: of the selections
    """
    white = np.full((SWATCH[1], SWATCH[0], 3), LIGHT, np.uint8)
    whole = np.ones(white.shape[:2], bool)
    looks = (
        (white, "clear", "both", first & second),
        (_striped(white, whole, rises=True), "rising stripes", f"{names[0]} alone", first & ~second),
        (_striped(white, whole, rises=False), "falling stripes", f"{names[1]} alone", second & ~first),
        (_dimmed(white, ~whole), "dark", "neither", ~first & ~second),
    )
    return [
        LegendEntry(Image.fromarray(x), alt, f"{name} {of.sum()}, {100 * of.mean():.0f}\N{NO-BREAK SPACE}%")
        for x, alt, name, of in looks
    ]


def patch_count(mask: np.ndarray) -> str:
    """The number of selected patches and their share, in words.

    >>> patch_count(np.array([[True, False], [True, True]]))
    '3 of 4 patches, 75 %'
    """
    return f"{mask.sum()} of {mask.size} patches, {100 * mask.mean():.0f} %"


def _dimmed(pixels: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """pixels [H, W, 3], kept [H, W]: where it is False, dark and grey"""
    grey = DIM * (pixels @ np.array([0.299, 0.587, 0.114]))[..., None]
    return np.where(mask[..., None], pixels, np.rint(grey)).astype(np.uint8)


def _striped(pixels: np.ndarray, where: np.ndarray, *, rises: bool) -> np.ndarray:
    """Stripes of a colour between lines of white: orange ones that rise, or blue ones that fall."""
    y, x = np.indices(where.shape)
    at = np.asarray((x + y if rises else x - y) % PERIOD)
    inside = (at >= 1) & (at <= STRIPE)
    stripe = np.where(inside[..., None], FOR if rises else AGAINST, 255)
    return np.where((where & (at <= STRIPE + 1))[..., None], stripe, pixels).astype(np.uint8)


def _lined(pixels: np.ndarray, mask: np.ndarray) -> Image.Image:
    return outlined(Image.fromarray(pixels), mask)
