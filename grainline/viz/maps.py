"""Heat maps as a PNG, with matplotlib (extra `figures`), which is loaded when it is needed.

A block for each picture: the picture with its colour scale, and beside it a map for each text. All maps of a
picture share one range, symmetric around zero.
"""

import textwrap
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from grainline.files import replacing
from grainline.viz.figure import DPI, INK, SMALL, SOFT
from grainline.viz.look import Look, Told
from grainline.viz.overlay import limit_of, scale_bar
from grainline.viz.page import Gone, short

MAPS = 5  # in a line, beside the picture
SIDE, SPACE, WORDS = 2.0, 0.2, 0.85  # in inches: a picture, between two of them, what is written above one
HEAD, FOOT = 0.3, 0.6
COLUMNS, LINES = 34, 5  # of what is written above a map
RULE = (
    "Orange: the patch speaks for the text, blue: against it; the strength of the colour is the size. All"
    " maps of a picture share one range, which stands below it."
)


def write_maps(path: str | Path, shown: Sequence[Look], title: str) -> None:
    """Write the figure, whole or not at all. Raises UserError if the place cannot be written."""
    from matplotlib.figure import Figure

    lines = [max(1, -(-len(one.told) // MAPS)) for one in shown]
    wide = SPACE + (MAPS + 1) * (SIDE + SPACE)
    tall = HEAD + sum(lines) * (SIDE + WORDS) + FOOT
    figure = Figure(figsize=(wide, tall), dpi=DPI, facecolor="white")
    figure.text(SPACE / wide, 1 - 0.12 / tall, title, va="top", fontsize=11, color=INK, parse_math=False)
    figure.text(SPACE / wide, 0.1 / tall, RULE, fontsize=SMALL, color=SOFT)

    def axes(line: int, column: int) -> Any:
        left, floor = SPACE + column * (SIDE + SPACE), tall - HEAD - (line + 1) * (SIDE + WORDS)
        found = figure.add_axes((left / wide, floor / tall, SIDE / wide, SIDE / tall))
        found.set_axis_off()
        return found

    for i, one in enumerate(shown):
        first = sum(lines[:i])
        _picture(axes(first, 0), one)
        if one.heat is None or isinstance(one.picture, Gone):
            continue
        limit = limit_of(one.heat)
        for k, (told, heat) in enumerate(zip(one.told, one.heat, strict=True)):
            place = axes(first + k // MAPS, 1 + k % MAPS)
            place.imshow(one.map(heat, limit), interpolation="nearest")
            _above(place, _words(told))
    with warnings.catch_warnings(), replacing(Path(path)) as beside:
        warnings.filterwarnings("ignore", "Glyph", UserWarning)  # a script that the font lacks shows as boxes
        figure.savefig(beside, format="png")


def _picture(axes: Any, one: Look) -> None:
    """The picture, and below it the scale of its maps."""
    _above(axes, textwrap.fill(short(one.alt, COLUMNS * LINES), COLUMNS))
    picture = one.shown()
    if isinstance(picture, Gone):
        axes.text(0.5, 0.5, textwrap.fill(picture.why, 28), ha="center", va="center", fontsize=SMALL,
                  color=SOFT, parse_math=False)  # fmt: skip
        return
    axes.imshow(picture.convert("RGB"), interpolation="nearest")
    if one.heat is not None:
        limit = limit_of(one.heat)
        bar = axes.inset_axes((0.28, -0.09, 0.44, 0.05))
        bar.imshow(scale_bar(), aspect="auto")
        bar.set_axis_off()
        for x, sign, side in ((0.26, "-", "right"), (0.74, "+", "left")):
            axes.text(x, -0.065, f"{sign}{limit:.2g}", transform=axes.transAxes, ha=side, va="center",
                      fontsize=SMALL, color=SOFT)  # fmt: skip


def _words(told: Told) -> str:
    role = f"{told.role}, " if told.role else ""
    wrapped = textwrap.wrap(told.text, COLUMNS, max_lines=LINES - 1, placeholder=" ...")
    return "\n".join([*wrapped, f"{role}score {told.score:.3f}"])


def _above(axes: Any, text: str) -> None:
    axes.text(0, 1.03, text, transform=axes.transAxes, va="bottom", fontsize=7.5, color=INK, linespacing=1.2,
              parse_math=False)  # fmt: skip
