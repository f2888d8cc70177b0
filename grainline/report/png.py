"""Figures as PNG with matplotlib (extra `figures`), which is imported when a figure is drawn.

Scores of subtexts (a row for each image: the image, a chart of all models, the subtexts), heat maps, and
groups of tokens.
"""

import textwrap
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

from grainline.errors import UserError
from grainline.files import replacing
from grainline.nn.upsample import NOTHING
from grainline.nn.upsample import place as where
from grainline.report.case import Case, Look, SentenceScore
from grainline.report.charts import RULES, SubtextScores, added, ties
from grainline.report.page import MissingImage, short
from grainline.report.tokens import LETTERS, POSITIONS, TokenGroups, runs
from grainline.report.tokens import RULES as STRIPS_RULES

COLOURS = ("#0062a3", "#b84a00", "#00765a", "#8d3f77", "#6b5c00", "#3a3f47")
STYLES = ("-", "--", ":", "-.", (0, (8, 2)), (0, (1, 2)))
# In inches: the whole, what stands above and below the rows, a row, and what of it lies below its axes.
WIDTH, HEAD, FOOT, ROW, GAP = 13.0, 1.0, 0.25, 2.9, 0.75
IMAGE, CHART, TEXT = (0.25, 2.4), (3.1, 7.4), (7.65, 12.9)  # from left to right
COLUMNS, LINES = 78, 15  # of the text beside a chart
DPI = 150
INK, SOFT, GRID = "#1d2129", "#596273", "#d5d9e0"
SMALL = 8.5  # points


def require_matplotlib() -> None:
    """Raise UserError where it is missing."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise UserError("--png needs matplotlib: pip install 'grainline[figures]'") from None


def write_png(path: str | Path, images: Sequence[SubtextScores], title: str) -> None:
    """Write the figure, whole or not at all. Raises UserError if the place cannot be written."""
    from matplotlib.figure import Figure

    tall = HEAD + ROW * len(images) + FOOT
    figure = Figure(figsize=(WIDTH, tall), dpi=DPI, facecolor="white")
    for i, one in enumerate(images):
        floor = tall - HEAD - ROW * (i + 1) + GAP
        image, chart, texts = (
            figure.add_axes((left / WIDTH, floor / tall, (right - left) / WIDTH, (ROW - GAP) / tall))
            for left, right in (IMAGE, CHART, TEXT)
        )
        _image(image, one)
        handles = _chart(chart, one)
        _texts(texts, one)
    names = [line.model for line in images[0].lines]
    left = IMAGE[0] / WIDTH
    figure.text(left, 1 - 0.12 / tall, title, va="top", fontsize=11, color=INK, parse_math=False)
    figure.text(left, 0.1 / tall, textwrap.fill(RULES, 190), fontsize=SMALL, color=SOFT, parse_math=False)
    legend = figure.legend(
        handles, names, loc="upper left", ncols=min(3, len(names)), frameon=False, fontsize=9,
        handlelength=3.2, bbox_to_anchor=(left - 0.007, 1 - 0.36 / tall), borderaxespad=0.0,
    )  # fmt: skip
    for text in legend.get_texts():
        text.set_parse_math(False)
    with warnings.catch_warnings(), replacing(Path(path)) as beside:
        warnings.filterwarnings("ignore", "Glyph", UserWarning)  # a script that the font lacks shows as boxes
        figure.savefig(beside, format="png")


def _image(axes: Any, one: SubtextScores) -> None:
    axes.set_axis_off()
    axes.set_title(short(one.name, 34), fontsize=SMALL, color=SOFT, loc="left", parse_math=False)
    if isinstance(one.image, MissingImage):
        axes.text(0.5, 0.5, textwrap.fill(one.image.why, 24), ha="center", va="center", fontsize=SMALL,
                  color=SOFT, parse_math=False)  # fmt: skip
        return
    axes.imshow(one.image.convert("RGB"), interpolation="lanczos")


def _chart(axes: Any, one: SubtextScores) -> list[Any]:
    """The lines of all models; their handles."""
    number = range(1, len(one.subtexts) + 1)
    handles = []
    for i, line in enumerate(one.lines):
        colour = COLOURS[i]
        handles += axes.plot(number, line.scores, color=colour, linestyle=STYLES[i], linewidth=1.6)
        for x, y, cut in zip(number, line.scores, line.cut, strict=True):
            axes.plot(x, y, "o", markersize=5, color=colour, markerfacecolor="white" if cut else colour)
        for at, level, sign in ties(line):
            axes.annotate(sign, (at, level), (0, 2), textcoords="offset points", ha="center", color=colour)
        axes.text(
            0.17 * i, 1.03, f"rho {line.rho:.2f}", transform=axes.transAxes, fontsize=SMALL, color=colour
        )
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.set_xlim(0.7, len(one.subtexts) + 0.3)
    axes.margins(y=0.12)
    axes.set_xlabel("subtext", fontsize=SMALL, color=SOFT, labelpad=2)
    axes.set_ylabel("score", fontsize=SMALL, color=SOFT)
    axes.tick_params(labelsize=SMALL, colors=SOFT)
    axes.grid(color=GRID, linewidth=0.7)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    return handles


def _texts(axes: Any, one: SubtextScores) -> None:
    axes.set_axis_off()
    axes.text(0.0, 1.0, "\n".join(_lines(added(one.subtexts))), va="top", fontsize=SMALL, color=INK,
              linespacing=1.25, parse_math=False)  # fmt: skip


def _lines(texts: Sequence[str]) -> list[str]:
    """Numbered texts in at most LINES lines: long ones are shortened, and the last of too many left out."""
    texts_ = list(texts) if len(texts) <= LINES else list(texts[: LINES - 1])
    wrapped = [
        textwrap.wrap(text, COLUMNS, initial_indent=f"{i}  ", subsequent_indent="    ")
        for i, text in enumerate(texts_, 1)
    ]
    most = max(n for n in range(1, LINES + 1) if n == 1 or sum(min(n, len(w)) for w in wrapped) <= LINES)
    out = []
    for block in wrapped:
        whole = len(block) <= most
        out += (
            block
            if whole
            else [*block[: most - 1], block[most - 1][: COLUMNS - 4].rsplit(" ", 1)[0] + " ..."]
        )
    return out + [f"... and {len(texts) - len(texts_)} more"] * (len(texts_) < len(texts))


# Heat maps. A block for each image: the image with its colour scale, and beside it a map for each text. A
# sentence with phrases is a row: its words, its map, and smaller maps of its phrases. All maps of an image
# share one range.

MAPS = 5  # in a line, beside the image
SIDE, SPACE, WORDS = 2.0, 0.2, 0.85  # in inches: an image, between two of them, what is written above one
MAPS_HEAD, MAPS_FOOT = 0.3, 0.6
MAPS_GAP = 0.06  # between words and the map below them
MAPS_TEXT = 7.5  # points
MAPS_COLUMNS, MAPS_LINES = 34, 5  # of what is written above a map
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
    """Where a map stands beside an image, and what is written above it."""

    left: float  # in inches from what is free beside the image,
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
        """An image, as large as it fits into a rectangle of that width and height."""
        wide, tall = size
        place = (left / self.wide, 1 - (top + tall) / self.tall, wide / self.wide, tall / self.tall)
        axes = self.figure.add_axes(place)
        axes.set_axis_off()
        axes.imshow(image, interpolation="nearest")

    def write(self, left: float, foot: float, text: str, size: float = MAPS_TEXT, **more: Any) -> None:
        """Words, the last line of which stands on `foot`; `more` as matplotlib has it."""
        at: dict[str, Any] = {"va": "bottom", "color": INK, "linespacing": 1.2, "parse_math": False} | more
        self.figure.text(left / self.wide, 1 - foot / self.tall, text, fontsize=size, **at)


def write_maps(path: str | Path, cases: Sequence[Case], title: str) -> None:
    """Write the figure, whole or not at all. Raises UserError if the place cannot be written."""
    looks = [(case, case.look) for case in cases if case.look is not None]
    blocks = [
        _rows(one.sentences) if any(sentence.phrases for sentence in one.sentences) else _cells(one.sentences)
        for _, one in looks
    ]
    heights = [max(height, WORDS + SIDE) for _, height in blocks]
    sheet = Sheet(MAPS_HEAD + sum(heights) + MAPS_FOOT)
    sheet.write(SPACE, 0.28, title, 11)
    sheet.write(SPACE, sheet.tall - 0.1, RULE, SMALL, color=SOFT)
    top = MAPS_HEAD
    for (case, one), (places, _), height in zip(looks, blocks, heights, strict=True):
        _maps_image(sheet, top, one, ", ".join(filter(None, (case.title, case.detail))))
        if one.heat is not None and not isinstance(one.image, MissingImage):
            limit = one.range()
            for place, heat in zip(places, one.heat, strict=True):
                left = 2 * SPACE + SIDE + place.left
                sheet.draw(left, top + place.top, (place.side, place.side), one.map(heat, limit))
                flat = f", {NOTHING}" * (where(heat, one.floor) == NOTHING)
                sheet.write(left, top + place.top - MAPS_GAP, place.words + flat)
        top += height
    with warnings.catch_warnings(), replacing(Path(path)) as beside:
        warnings.filterwarnings("ignore", "Glyph", UserWarning)  # a script that the font lacks shows as boxes
        sheet.figure.savefig(beside, format="png")


def _cells(texts: Sequence[SentenceScore]) -> tuple[list[Place], float]:
    """Texts without phrases, some in a line, and how high they are."""
    places = [
        Place(
            i % MAPS * (SIDE + SPACE),
            WORDS + i // MAPS * (SIDE + WORDS),
            SIDE,
            _words(sentence, MAPS_COLUMNS, MAPS_LINES),
        )
        for i, sentence in enumerate(texts)
    ]
    return places, -(-len(texts) // MAPS) * (SIDE + WORDS)


def _rows(texts: Sequence[SentenceScore]) -> tuple[list[Place], float]:
    """Sentences one below the other, each with its phrases behind it, and how high they are."""
    places: list[Place] = []
    top = 0.0
    for sentence in texts:
        words = _words(sentence, LONG, 3)
        head = MAPS_GAP + LINE * (words.count("\n") + 1)
        if not places:
            head = max(head, WORDS)  # as high as the image
        places.append(Place(0, top + head, LARGE, words))
        for i, phrase in enumerate(sentence.phrases):
            line, column = divmod(i, IN_LINE)
            left = LARGE + SPACE + column * (SMALLER + BESIDE)
            places.append(Place(left, top + head + line * LARGE + ABOVE, SMALLER, _words(phrase, NARROW, 4)))
        top += head + max(1, -(-len(sentence.phrases) // IN_LINE)) * LARGE + BELOW
    return places, top


def _maps_image(sheet: Sheet, top: float, one: Look, title: str) -> None:
    """The image below its title, and below it the scale of its maps and what is left out."""
    sheet.write(
        SPACE, top + WORDS - MAPS_GAP, textwrap.fill(short(title, MAPS_COLUMNS * MAPS_LINES), MAPS_COLUMNS)
    )
    image = one.shown()
    if isinstance(image, MissingImage):
        middle = {"ha": "center", "va": "center", "color": SOFT}
        sheet.write(SPACE + SIDE / 2, top + WORDS + SIDE / 2, textwrap.fill(image.why, 28), SMALL, **middle)
        return
    sheet.draw(SPACE, top + WORDS, (SIDE, SIDE), image.convert("RGB"))
    foot = top + WORDS + SIDE + 0.13
    if one.heat is not None:
        low, bar, high = one.scale()
        sheet.draw(SPACE + 0.28 * SIDE, foot - 0.05, (0.44 * SIDE, 0.1), bar)
        for x, words, side in ((0.26, low, "right"), (0.74, high, "left")):
            sheet.write(SPACE + x * SIDE, foot, words, SMALL, ha=side, va="center", color=SOFT)
    left_out = textwrap.fill(one.left_out, MAPS_COLUMNS)
    sheet.write(SPACE, foot + 0.15, left_out, MAPS_TEXT, va="top", color=SOFT)


def _words(sentence: SentenceScore, columns: int, lines: int) -> str:
    """What stands above a map: the text, shortened to so many lines less one, and its score in a line."""
    role = f"{sentence.role}, " if sentence.role else ""
    wrapped = textwrap.wrap(sentence.text, columns, max_lines=lines - 1, placeholder=" ...")
    return "\n".join([*wrapped, f"{role}score {sentence.score:.3f}"])


# Groups of tokens: the mean share of each group along a caption, then captions with the share of each group
# in each token, the strongest group, and brackets for the annotated phrases.

# In inches: the room for names on the left, and a token.
LEFT, TOKEN, LEAST = 0.8, 0.24, 7.0
STRIPS_HEAD, STRIPS_FOOT, STRIPS_ABOVE, STRIPS_BELOW, STRIPS_ROW = 0.5, 0.6, 0.35, 1.0, 0.2
STRIP = 0.35  # height of the strip, in rows of the map; it stands below the last one
BRACKET = 1.35  # where brackets stand below the map, in rows


def write_strips(path: str | Path, captions: Sequence[TokenGroups], mean: np.ndarray, title: str) -> None:
    """Write the figure, whole or not at all. Raises UserError if the place cannot be written.

    mean  [K, B] the share of each group along a caption, mean over captions
    """
    from matplotlib.figure import Figure

    columns = max(mean.shape[1], *(len(one.words) for one in captions))
    wide = max(LEAST, LEFT + TOKEN * columns + 0.3)
    maps = [mean, *(one.soft for one in captions)]
    below = [0.1, *(STRIPS_BELOW for _ in captions)]  # room for the tokens, which are turned
    heights = [
        STRIPS_ABOVE + STRIPS_ROW * (len(one) + 2) + foot for one, foot in zip(maps, below, strict=True)
    ]
    tall = STRIPS_HEAD + sum(heights) + STRIPS_FOOT
    figure = Figure(figsize=(wide, tall), dpi=DPI, facecolor="white")
    top = STRIPS_HEAD
    for share, height, foot, one in zip(maps, heights, below, (None, *captions), strict=True):
        box = (LEFT, tall - top - height + foot, TOKEN * share.shape[1], STRIPS_ROW * (len(share) + 2))
        axes = figure.add_axes((box[0] / wide, box[1] / tall, box[2] / wide, box[3] / tall))
        _share(axes, share)
        if one is None:
            _positions(axes, share)
        else:
            _tokens(axes, one)
        top += height
    left = 0.15 / wide
    figure.text(left, 1 - 0.12 / tall, title, va="top", fontsize=11, color=INK, parse_math=False)
    caption = textwrap.fill(f"{STRIPS_RULES} {POSITIONS}", int(wide * 16))
    figure.text(left, 0.1 / tall, caption, fontsize=SMALL, color=SOFT, parse_math=False)
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


def _tokens(axes: Any, one: TokenGroups) -> None:
    groups = len(one.soft)
    axes.set_title(f"{one.summary}, {one.name}", fontsize=SMALL, color=INK, loc="left", parse_math=False)
    for token, group in enumerate(one.top_group):
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
