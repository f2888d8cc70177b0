"""Heat maps as a PNG, with matplotlib (extra `figures`), which is loaded when it is needed.

A block for each picture: the picture with its colour scale, and beside it a map for each text. Where
sentences have phrases, a sentence is a row: its words, its own map, and smaller maps of its phrases. All maps
of a picture share one range, symmetric around zero.
"""

import textwrap
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from PIL import Image

from grainline.files import replacing
from grainline.viz.figure import DPI, INK, SMALL, SOFT
from grainline.viz.heat import NOTHING
from grainline.viz.heat import place as where
from grainline.viz.look import Look, Told
from grainline.viz.page import Gone, short

MAPS = 5  # in a line, beside the picture
SIDE, SPACE, WORDS = 2.0, 0.2, 0.85  # in inches: a picture, between two of them, what is written above one
HEAD, FOOT = 0.3, 0.6
GAP = 0.06  # between words and the map below them
TEXT = 7.5  # points
COLUMNS, LINES = 34, 5  # of what is written above a map
# In a row with phrases, in inches: a line of its sentence, the map of a phrase, what is written above one and
# stays free beside it, and what stays free below the row. The map of the sentence is as high as both.
LINE, SMALLER, ABOVE, BESIDE, BELOW = 0.14, 1.15, 0.57, 0.2, 0.2
LARGE = SMALLER + ABOVE
LONG, NARROW = 170, 22  # characters in a line of a sentence, and above the map of a phrase
IN_LINE = int((MAPS * (SIDE + SPACE) - LARGE) / (SMALLER + BESIDE))  # phrases
RULE = (
    "Orange: the patch speaks for the text, blue: against it; the strength of the colour is the size, from"
    " the reach of other texts on where there are enough of them. The range of colours stands below each"
    " image."
)


class Place(NamedTuple):
    """Where a map stands beside a picture, and what is written above it."""

    left: float  # in inches from what is free beside the picture,
    top: float  # and from the upper edge of the block
    side: float
    words: str


class Sheet:
    """A figure on which places are inches from the upper left corner."""

    def __init__(self, tall: float) -> None:
        from matplotlib.figure import Figure

        self.wide, self.tall = SPACE + (MAPS + 1) * (SIDE + SPACE), tall
        self.figure = Figure(figsize=(self.wide, tall), dpi=DPI, facecolor="white")

    def draw(self, left: float, top: float, size: tuple[float, float], image: Image.Image) -> None:
        """A picture, as large as it fits into a rectangle of that width and height."""
        wide, tall = size
        place = (left / self.wide, 1 - (top + tall) / self.tall, wide / self.wide, tall / self.tall)
        axes = self.figure.add_axes(place)
        axes.set_axis_off()
        axes.imshow(image, interpolation="nearest")

    def write(self, left: float, foot: float, text: str, size: float = TEXT, **more: Any) -> None:
        """Words, the last line of which stands on `foot`; `more` as matplotlib has it."""
        at: dict[str, Any] = {"va": "bottom", "color": INK, "linespacing": 1.2, "parse_math": False} | more
        self.figure.text(left / self.wide, 1 - foot / self.tall, text, fontsize=size, **at)


def write_maps(path: str | Path, shown: Sequence[Look], title: str) -> None:
    """Write the figure, whole or not at all. Raises UserError if the place cannot be written."""
    blocks = [
        _rows(one.told) if any(told.phrases for told in one.told) else _cells(one.told) for one in shown
    ]
    heights = [max(height, WORDS + SIDE) for _, height in blocks]
    sheet = Sheet(HEAD + sum(heights) + FOOT)
    sheet.write(SPACE, 0.28, title, 11)
    sheet.write(SPACE, sheet.tall - 0.1, RULE, SMALL, color=SOFT)
    top = HEAD
    for one, (places, _), height in zip(shown, blocks, heights, strict=True):
        _picture(sheet, top, one)
        if one.heat is not None and not isinstance(one.picture, Gone):
            limit = one.range()
            for place, heat in zip(places, one.heat, strict=True):
                left = 2 * SPACE + SIDE + place.left
                sheet.draw(left, top + place.top, (place.side, place.side), one.map(heat, limit))
                flat = f", {NOTHING}" * (where(heat, one.floor) == NOTHING)
                sheet.write(left, top + place.top - GAP, place.words + flat)
        top += height
    with warnings.catch_warnings(), replacing(Path(path)) as beside:
        warnings.filterwarnings("ignore", "Glyph", UserWarning)  # a script that the font lacks shows as boxes
        sheet.figure.savefig(beside, format="png")


def _cells(texts: Sequence[Told]) -> tuple[list[Place], float]:
    """Texts without phrases, some in a line, and how high they are."""
    places = [
        Place(
            i % MAPS * (SIDE + SPACE), WORDS + i // MAPS * (SIDE + WORDS), SIDE, _words(told, COLUMNS, LINES)
        )
        for i, told in enumerate(texts)
    ]
    return places, -(-len(texts) // MAPS) * (SIDE + WORDS)


def _rows(texts: Sequence[Told]) -> tuple[list[Place], float]:
    """Sentences one below the other, each with its phrases behind it, and how high they are."""
    places: list[Place] = []
    top = 0.0
    for told in texts:
        words = _words(told, LONG, 3)
        head = GAP + LINE * (words.count("\n") + 1)
        if not places:
            head = max(head, WORDS)  # as high as the picture
        places.append(Place(0, top + head, LARGE, words))
        for i, phrase in enumerate(told.phrases):
            line, column = divmod(i, IN_LINE)
            left = LARGE + SPACE + column * (SMALLER + BESIDE)
            places.append(Place(left, top + head + line * LARGE + ABOVE, SMALLER, _words(phrase, NARROW, 4)))
        top += head + max(1, -(-len(told.phrases) // IN_LINE)) * LARGE + BELOW
    return places, top


def _picture(sheet: Sheet, top: float, one: Look) -> None:
    """The picture, and below it the scale of its maps and what is left out."""
    sheet.write(SPACE, top + WORDS - GAP, textwrap.fill(short(one.alt, COLUMNS * LINES), COLUMNS))
    picture = one.shown()
    if isinstance(picture, Gone):
        middle = {"ha": "center", "va": "center", "color": SOFT}
        sheet.write(SPACE + SIDE / 2, top + WORDS + SIDE / 2, textwrap.fill(picture.why, 28), SMALL, **middle)
        return
    sheet.draw(SPACE, top + WORDS, (SIDE, SIDE), picture.convert("RGB"))
    foot = top + WORDS + SIDE + 0.13
    if one.heat is not None:
        low, bar, high = one.scale()
        sheet.draw(SPACE + 0.28 * SIDE, foot - 0.05, (0.44 * SIDE, 0.1), bar)
        for x, words, side in ((0.26, low, "right"), (0.74, high, "left")):
            sheet.write(SPACE + x * SIDE, foot, words, SMALL, ha=side, va="center", color=SOFT)
    left_out = textwrap.fill(one.left_out, COLUMNS)
    sheet.write(SPACE, foot + 0.15, left_out, TEXT, va="top", color=SOFT)


def _words(told: Told, columns: int, lines: int) -> str:
    """What stands above a map: the text, shortened to so many lines less one, and its score in a line."""
    role = f"{told.role}, " if told.role else ""
    wrapped = textwrap.wrap(told.text, columns, max_lines=lines - 1, placeholder=" ...")
    return "\n".join([*wrapped, f"{role}score {told.score:.3f}"])
