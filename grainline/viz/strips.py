"""Groups of tokens as a PNG, with matplotlib (extra `figures`), which is loaded when it is needed.

On top the mean share of each group along a caption, below it some captions: the share of each group in each
token, the group that takes most, and brackets for the annotated phrases.
"""

import textwrap
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from grainline.files import replacing
from grainline.viz.figure import COLOURS, DPI, GRID, INK, SMALL, SOFT
from grainline.viz.tokens import LETTERS, POSITIONS, RULES, Tokened, runs

# In inches: the room for names on the left, and a token.
LEFT, TOKEN, LEAST = 0.8, 0.24, 7.0
HEAD, FOOT, ABOVE, BELOW, ROW = 0.5, 0.6, 0.35, 1.0, 0.2
STRIP = 0.35  # height of the strip, in rows of the map; it stands below the last one
BRACKET = 1.35  # where brackets stand below the map, in rows


def write_strips(path: str | Path, shown: Sequence[Tokened], mean: np.ndarray, title: str) -> None:
    """Write the figure, whole or not at all. Raises UserError if the place cannot be written.

    mean  [K, B] the share of each group along a caption, mean over captions
    """
    from matplotlib.figure import Figure

    columns = max(mean.shape[1], *(len(one.words) for one in shown))
    wide = max(LEAST, LEFT + TOKEN * columns + 0.3)
    maps = [mean, *(one.soft for one in shown)]
    below = [0.1, *(BELOW for _ in shown)]  # room for the tokens, which are turned
    heights = [ABOVE + ROW * (len(one) + 2) + foot for one, foot in zip(maps, below, strict=True)]
    tall = HEAD + sum(heights) + FOOT
    figure = Figure(figsize=(wide, tall), dpi=DPI, facecolor="white")
    top = HEAD
    for share, height, foot, one in zip(maps, heights, below, (None, *shown), strict=True):
        box = (LEFT, tall - top - height + foot, TOKEN * share.shape[1], ROW * (len(share) + 2))
        axes = figure.add_axes((box[0] / wide, box[1] / tall, box[2] / wide, box[3] / tall))
        _share(axes, share)
        if one is None:
            _positions(axes, share)
        else:
            _tokens(axes, one)
        top += height
    left = 0.15 / wide
    figure.text(left, 1 - 0.12 / tall, title, va="top", fontsize=11, color=INK, parse_math=False)
    told = textwrap.fill(f"{RULES} {POSITIONS}", int(wide * 16))
    figure.text(left, 0.1 / tall, told, fontsize=SMALL, color=SOFT, parse_math=False)
    with warnings.catch_warnings(), replacing(Path(path)) as beside:
        warnings.filterwarnings("ignore", "Glyph", UserWarning)  # a script that the font lacks shows as boxes
        figure.savefig(beside, format="png")


def _share(axes: Any, share: np.ndarray) -> None:
    """The map, with two rows left free below it."""
    groups, columns = share.shape
    axes.imshow(share, cmap="Blues", vmin=0, vmax=1, aspect="auto", interpolation="nearest",
                extent=(0, columns, groups, 0))  # fmt: skip
    axes.set_xlim(0, columns)
    axes.set_ylim(groups + 2, 0)
    axes.set_yticks(np.arange(groups) + 0.5, [f"group {i + 1}" for i in range(groups)])
    axes.tick_params(labelsize=SMALL, colors=SOFT, length=0)
    for side in axes.spines.values():
        side.set_visible(False)
    axes.hlines(np.arange(groups + 1), 0, columns, color=GRID, linewidth=0.5)


def _positions(axes: Any, share: np.ndarray) -> None:
    groups, columns = share.shape
    axes.set_title("mean over all captions", fontsize=SMALL, color=INK, loc="left", parse_math=False)
    axes.set_xticks([])
    for x, word, side in ((0, "beginning", "left"), (columns, "end", "right")):
        axes.text(x, groups + 0.2, word, ha=side, va="top", fontsize=SMALL, color=SOFT)


def _tokens(axes: Any, one: Tokened) -> None:
    groups = len(one.soft)
    axes.set_title(f"{one.told}, {one.name}", fontsize=SMALL, color=INK, loc="left", parse_math=False)
    for token, group in enumerate(one.taken):
        colour = COLOURS[group % len(COLOURS)]
        axes.barh(groups + 0.25 + STRIP, 1, 2 * STRIP, token, color=colour)
    for phrase in one.phrases:
        for first, last in runs(phrase):
            corners = (first + 0.1, first + 0.1, last + 0.9, last + 0.9)
            heights = [
                groups + level for level in (BRACKET - 0.2, BRACKET + 0.2, BRACKET + 0.2, BRACKET - 0.2)
            ]
            axes.plot(corners, heights, color=INK, linewidth=1.2)
    words = [word if len(word) <= LETTERS else word[: LETTERS - 1] + "…" for word in one.words]
    axes.set_xticks(np.arange(len(words)) + 0.5, words, rotation=60, ha="right", rotation_mode="anchor")
    for label in axes.get_xticklabels():
        label.set_parse_math(False)
