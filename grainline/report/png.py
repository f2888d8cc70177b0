"""Figures as PNG with matplotlib (extra `figures`), which is imported when a figure is drawn.

Charts of the scores of subtexts, heat maps of cases, rows of panels, and groups of tokens. Places and sizes
are in inches.
"""

import textwrap
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from grainline.errors import UserError
from grainline.files import replacing
from grainline.nn.upsample import NOTHING, place
from grainline.report.case import Case, CaseImage, Panel, SentenceScore
from grainline.report.charts import (
    POSITION_RULES,
    SUBTEXT_RULES,
    TOKEN_RULES,
    SubtextScores,
    TokenGroups,
    added,
    ties,
)
from grainline.report.heatmap import scaled_pixels
from grainline.report.page import MissingImage, short

DPI = 150
INK, SOFT, GRID = "#1d2129", "#596273", "#d5d9e0"
SMALL = 8.5  # points
COLOURS = ("#0062a3", "#b84a00", "#00765a", "#8d3f77", "#6b5c00", "#3a3f47")
STYLES = ("-", "--", ":", "-.", (0, (8, 2)), (0, (1, 2)))


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

    def axes(self, left: float, top: float, wide: float, tall: float) -> Any:
        """Axes in a rectangle."""
        corner = left / self.wide, 1 - (top + tall) / self.tall
        return self.figure.add_axes((*corner, wide / self.wide, tall / self.tall))

    def draw(self, left: float, top: float, size: tuple[float, float], image: Image.Image) -> None:
        """An image, as large as it fits into a rectangle of that width and height."""
        axes = self.axes(left, top, *size)
        axes.set_axis_off()
        axes.imshow(image, interpolation="nearest")

    def write(self, left: float, foot: float, text: str, size: float = 7.5, **more: Any) -> None:
        """Words, the last line of which stands on `foot`; `more` as matplotlib has it."""
        at: dict[str, Any] = {"va": "bottom", "color": INK, "linespacing": 1.2, "parse_math": False} | more
        self.figure.text(left / self.wide, 1 - foot / self.tall, text, fontsize=size, **at)

    def save(self, path: str | Path) -> None:
        """Write the figure, whole or not at all. Raises UserError if the place cannot be written."""
        with warnings.catch_warnings(), replacing(Path(path)) as temporary:
            warnings.filterwarnings("ignore", "Glyph", UserWarning)  # scripts that the font lacks are boxes
            self.figure.savefig(temporary, format="png")


# Scores of subtexts: a row for each image with the image, a chart of all models, and the subtexts.

# The whole, above and below the rows, a row, and below the axes of a row.
WIDTH, HEAD, FOOT, ROW, GAP = 13.0, 1.0, 0.25, 2.9, 0.75
IMAGE, CHART, TEXT = (0.25, 2.15), (3.1, 4.3), (7.65, 5.25)  # left, width
COLUMNS, LINES = 78, 15  # of the texts


def write_charts(path: str | Path, images: Sequence[SubtextScores], title: str) -> None:
    """Write scores by subtexts. Raises UserError if the place cannot be written."""
    sheet = Sheet(WIDTH, HEAD + ROW * len(images) + FOOT)
    words: dict[str, Any] = {"fontsize": SMALL, "parse_math": False}
    for i, one in enumerate(images):
        image, chart, texts = (
            sheet.axes(left, HEAD + ROW * i, wide, ROW - GAP) for left, wide in (IMAGE, CHART, TEXT)
        )
        image.set_axis_off()
        image.set_title(short(one.name, 34), color=SOFT, loc="left", **words)
        if isinstance(one.image, MissingImage):
            why = textwrap.fill(one.image.why, 24)
            image.text(0.5, 0.5, why, ha="center", va="center", color=SOFT, **words)
        else:
            image.imshow(one.image.convert("RGB"), interpolation="lanczos")
        handles = _chart(chart, one)
        texts.set_axis_off()
        lines = "\n".join(_lines(added(one.subtexts)))
        texts.text(0.0, 1.0, lines, va="top", color=INK, linespacing=1.25, **words)
    sheet.write(IMAGE[0], 0.12, title, 11, va="top")
    sheet.write(IMAGE[0], sheet.tall - 0.1, textwrap.fill(SUBTEXT_RULES, 190), SMALL, color=SOFT)
    names = [line.model for line in images[0].lines]
    legend = sheet.figure.legend(
        handles, names, loc="upper left", ncols=min(3, len(names)), frameon=False, fontsize=9,
        handlelength=3.2, bbox_to_anchor=(IMAGE[0] / WIDTH - 0.007, 1 - 0.36 / sheet.tall), borderaxespad=0.0,
    )  # fmt: skip
    for text in legend.get_texts():
        text.set_parse_math(False)
    sheet.save(path)


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
        rho = f"rho {line.rho:.2f}"
        axes.text(0.17 * i, 1.03, rho, transform=axes.transAxes, fontsize=SMALL, color=colour)
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


def _lines(texts: Sequence[str]) -> list[str]:
    """Numbered texts in at most LINES lines: long ones are shortened, and the last of too many left out."""
    first = texts if len(texts) <= LINES else texts[: LINES - 1]

    def wrapped(limit: int) -> list[str]:
        return [
            line
            for i, text in enumerate(first, 1)
            for line in _wrap(text, COLUMNS, limit, initial_indent=f"{i}  ", subsequent_indent="    ")
        ]

    limit = max(n for n in range(1, LINES + 1) if n == 1 or len(wrapped(n)) <= LINES)
    return wrapped(limit) + [f"... and {len(texts) - len(first)} more"] * (len(first) < len(texts))


def _wrap(text: str, columns: int, lines: int, **indents: Any) -> list[str]:
    return textwrap.wrap(text, columns, max_lines=lines, placeholder=" ...", **indents)


# Heat maps: a block for each case, the image with its colour scale and a map for each text. A sentence with
# phrases is a row: its words, its map, and smaller maps of its phrases. All maps of an image share one range.

MAPS = 5  # in a line, beside the image
SIDE, SPACE, WORDS = 2.0, 0.2, 0.85  # of an image, between two of them, and of the words above one
MAPS_HEAD, MAPS_FOOT = 0.3, 0.6
MAPS_GAP = 0.06  # between words and the map below them
MAPS_COLUMNS, MAPS_LINES = 34, 5  # of the words above a map
# In a row with phrases: a line of its sentence, the map of a phrase, above and beside such a map, and below
# the row. The map of the sentence is as high as a map of a phrase with its words.
LINE, SMALLER, ABOVE, BESIDE, BELOW = 0.14, 1.15, 0.57, 0.2, 0.2
LARGE = SMALLER + ABOVE
LONG, NARROW = 170, 22  # characters in a line of a sentence, and above the map of a phrase
IN_LINE = int((MAPS * (SIDE + SPACE) - LARGE) / (SMALLER + BESIDE))  # phrases
RULE = (
    "Orange: the image fits the text there, blue: it does not. Where there are enough other texts, colours"
    " begin at the heat that one in five of them reaches. Their range stands below each image."
)

Place = tuple[float, float, float, Callable[[str], str]]
"""Left, top and side of a map, from the corner of its block; its words, given a note behind the score."""


def write_maps(path: str | Path, cases: Sequence[Case], title: str) -> None:
    """Write the heat of cases. Raises UserError if the place cannot be written."""
    looks = [(case, case.look) for case in cases if case.look is not None]
    blocks = [_places(one.sentences) for _, one in looks]
    heights = [max(height, WORDS + SIDE) for _, height in blocks]
    sheet = _maps_sheet(sum(heights), title)
    sheet.write(SPACE, sheet.tall - 0.1, RULE, SMALL, color=SOFT)
    top = MAPS_HEAD
    for (case, one), (places, _), height in zip(looks, blocks, heights, strict=True):
        _maps_image(sheet, top, one, ", ".join(filter(None, (case.title, case.detail))))
        if one.heat is not None and not isinstance(one.image, MissingImage):
            limit = one.range()
            for (x, y, side, words), heat in zip(places, one.heat, strict=True):
                left = 2 * SPACE + SIDE + x
                sheet.draw(left, top + y, (side, side), one.map(heat, limit))
                flat = f", {NOTHING}" * (place(heat, one.floor) == NOTHING)
                sheet.write(left, top + y - MAPS_GAP, words(flat))
        top += height
    sheet.save(path)


def _maps_sheet(tall: float, title: str, dpi: int = DPI) -> Sheet:
    sheet = Sheet(SPACE + (MAPS + 1) * (SIDE + SPACE), MAPS_HEAD + tall + MAPS_FOOT, dpi)
    sheet.write(SPACE, 0.28, title, 11)
    return sheet


def _places(texts: Sequence[SentenceScore]) -> tuple[list[Place], float]:
    """The places of the maps of an image, and how high they are."""
    places: list[Place] = []
    if not any(sentence.phrases for sentence in texts):
        for i, sentence in enumerate(texts):
            line, column = divmod(i, MAPS)
            words = partial(_words, sentence, MAPS_COLUMNS, MAPS_LINES)
            places.append((column * (SIDE + SPACE), WORDS + line * (SIDE + WORDS), SIDE, words))
        return places, -(-len(texts) // MAPS) * (SIDE + WORDS)
    top = 0.0
    for sentence in texts:
        words = partial(_words, sentence, LONG, 3)
        head = MAPS_GAP + LINE * (words("").count("\n") + 1)
        if not places:
            head = max(head, WORDS)  # as high as the image
        places.append((0, top + head, LARGE, words))
        for i, phrase in enumerate(sentence.phrases):
            line, column = divmod(i, IN_LINE)
            left = LARGE + SPACE + column * (SMALLER + BESIDE)
            above = partial(_words, phrase, NARROW, 4)
            places.append((left, top + head + line * LARGE + ABOVE, SMALLER, above))
        top += head + max(1, -(-len(sentence.phrases) // IN_LINE)) * LARGE + BELOW
    return places, top


def _maps_image(sheet: Sheet, top: float, one: CaseImage, title: str) -> None:
    """The image below its title, and below it the scale of its maps and what is left out."""
    title = textwrap.fill(short(title, MAPS_COLUMNS * MAPS_LINES), MAPS_COLUMNS)
    sheet.write(SPACE, top + WORDS - MAPS_GAP, title)
    image = one.with_boxes()
    if isinstance(image, MissingImage):
        middle = {"ha": "center", "va": "center", "color": SOFT}
        sheet.write(SPACE + SIDE / 2, top + WORDS + SIDE / 2, textwrap.fill(image.why, 28), SMALL, **middle)
        return
    sheet.draw(SPACE, top + WORDS, (SIDE, SIDE), image.convert("RGB"))
    foot = top + WORDS + SIDE + 0.13
    if one.heat is not None:
        low, bar, high = one.scale()
        low = low.removesuffix(" than other texts")  # wider than the image
        sheet.draw(SPACE + 0.28 * SIDE, foot - 0.05, (0.44 * SIDE, 0.1), bar)
        for x, words, side in ((0.26, low, "right"), (0.74, high, "left")):
            sheet.write(SPACE + x * SIDE, foot, words, SMALL, ha=side, va="center", color=SOFT)
    sheet.write(SPACE, foot + 0.15, textwrap.fill(one.left_out, MAPS_COLUMNS), va="top", color=SOFT)


def _words(sentence: SentenceScore, columns: int, lines: int, note: str = "") -> str:
    """The text of a map, shortened, and its score with a note: so many lines together."""
    role = f"{sentence.role}, " if sentence.role else ""
    score = textwrap.wrap(f"{role}{sentence.words}{note}", columns) or [""]
    return "\n".join([*_wrap(sentence.text, columns, max(1, lines - len(score))), *score])


# Rows of panels, as `grainline show` has them.

PIXELS = round(SIDE * DPI)  # of the side of a panel: lines of one pixel stay whole
UNDER, LEGEND = 0.22, 0.17  # of the words below a panel, and of a line of its legend below these
RULE_COLUMNS = 200
PANEL_LINES, HEAD_LINES = 12, 4  # above a panel, and of a paragraph above a row


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
    longest = max(_longer(panel) for real in filled for panel in real)
    sheet = _maps_sheet(sum(above) + sum(high) + sum(below), title, max(DPI, round(longest / SIDE)))
    if rule:
        sheet.write(SPACE, sheet.tall - 0.12, textwrap.fill(rule, RULE_COLUMNS), SMALL, color=SOFT)
    top = MAPS_HEAD
    for (head, line), over, tall, under in zip(lines, above, high, below, strict=True):
        sheet.write(SIDE + 2 * SPACE, top + SPACE + LINE * len(head), "\n".join(head))
        for column, panel in enumerate(line):
            if panel is not None:
                _panel(sheet, SPACE + column * (SIDE + SPACE), top + over, tall, panel)
        top += over + tall + under
    sheet.save(path)


def _wrapped(words: str) -> list[str]:
    return _wrap(short(words, MAPS_COLUMNS * PANEL_LINES), MAPS_COLUMNS, PANEL_LINES)


def _shape(panel: Panel) -> tuple[float, float]:
    """Width and height of the image of a panel, as shares of its longer side."""
    assert isinstance(panel.image, Image.Image), "every panel of `show` has an image"
    return panel.image.width / _longer(panel), panel.image.height / _longer(panel)


def _longer(panel: Panel) -> int:
    assert isinstance(panel.image, Image.Image), "every panel of `show` has an image"
    return max(panel.image.size)


def _panel(sheet: Sheet, left: float, top: float, tall: float, panel: Panel) -> None:
    """top, tall: of the image, where the highest one of the row has its height"""
    sheet.write(left, top - MAPS_GAP, "\n".join(_wrapped(panel.words)))
    assert isinstance(panel.image, Image.Image), "every panel of `show` has an image"
    across, down = _shape(panel)
    pixels = scaled_pixels(panel.image, round(SIDE * sheet.dpi))
    sheet.draw(left, top, (SIDE * across, SIDE * down), Image.fromarray(pixels))
    sheet.write(left, top + tall + 0.05, panel.below, SMALL, va="top", color=SOFT)
    for i, line in enumerate(panel.legend):
        foot = top + tall + UNDER + i * LEGEND
        size = 0.8 * LEGEND * line.swatch.width / line.swatch.height, 0.8 * LEGEND
        sheet.draw(left, foot, size, line.swatch)
        sheet.write(left + size[0] + 0.08, foot, line.words, SMALL, va="top", color=SOFT)


# Groups of tokens: the mean share of each group along a caption, then captions with the share of each group
# in each token, the strongest group, and brackets for the annotated phrases.

LEFT, TOKEN, MIN_WIDTH = 0.8, 0.24, 7.0  # the names on the left, a token, the whole
TOKENS_HEAD, TOKENS_FOOT, TOKENS_ABOVE, TOKENS_ROW = 0.5, 0.6, 0.35, 0.2
TOKENS_BELOW = 1.0  # the tokens, which are turned
STRIP = 0.35  # half the height of the strip below the map, in rows of the map
BRACKET = 1.35  # from the map to the brackets, in rows


def write_tokens(path: str | Path, captions: Sequence[TokenGroups], mean: np.ndarray, title: str) -> None:
    """Write groups of tokens. Raises UserError if the place cannot be written.

    mean  [K, B] the share of each group along a caption, mean over captions
    """
    wide = max(MIN_WIDTH, LEFT + TOKEN * max(mean.shape[1], *(len(one.words) for one in captions)) + 0.3)
    maps = [(mean, 0.1, None), *((one.soft, TOKENS_BELOW, one) for one in captions)]
    heights = [TOKENS_ABOVE + TOKENS_ROW * (len(share) + 2) + foot for share, foot, _ in maps]
    sheet = Sheet(wide, TOKENS_HEAD + sum(heights) + TOKENS_FOOT)
    top = TOKENS_HEAD
    for (share, _, one), height in zip(maps, heights, strict=True):
        groups, columns = share.shape
        axes = sheet.axes(LEFT, top + TOKENS_ABOVE, TOKEN * columns, TOKENS_ROW * (groups + 2))
        axes.imshow(share, cmap="Blues", vmin=0, vmax=1, aspect="auto", interpolation="nearest",
                    extent=(0, columns, groups, 0))  # fmt: skip
        axes.set_xlim(0, columns)
        axes.set_ylim(groups + 2, 0)
        axes.set_yticks(np.arange(groups) + 0.5, [f"group {i + 1}" for i in range(groups)])
        axes.tick_params(labelsize=SMALL, colors=SOFT, length=0)
        axes.spines[:].set_visible(False)
        axes.hlines(np.arange(groups + 1), 0, columns, color=GRID, linewidth=0.5)
        name = "mean over all captions" if one is None else f"{one.summary}, {one.name}"
        axes.set_title(name, fontsize=SMALL, color=INK, loc="left", parse_math=False)
        if one is None:
            axes.set_xticks([])
            for x, word, side in ((0, "beginning", "left"), (columns, "end", "right")):
                axes.text(x, groups + 0.2, word, ha=side, va="top", fontsize=SMALL, color=SOFT)
        else:
            _tokens(axes, one)
        top += height
    sheet.write(0.15, 0.12, title, 11, va="top")
    rules = textwrap.fill(f"{TOKEN_RULES} {POSITION_RULES}", int(wide * 16))
    sheet.write(0.15, sheet.tall - 0.1, rules, SMALL, color=SOFT)
    sheet.save(path)


def _tokens(axes: Any, one: TokenGroups) -> None:
    """What stands below the map of a caption."""
    groups = len(one.soft)
    for token, group in enumerate(one.top_group):
        axes.barh(groups + 0.25 + STRIP, 1, 2 * STRIP, token, color=COLOURS[group % len(COLOURS)])
    low, high = groups + BRACKET - 0.2, groups + BRACKET + 0.2
    for first, last in one.brackets:
        corners = (first + 0.1, first + 0.1, last + 0.9, last + 0.9)
        axes.plot(corners, (low, high, high, low), color=INK, linewidth=1.2)
    at = np.arange(len(one.words)) + 0.5
    axes.set_xticks(at, one.shortened, rotation=60, ha="right", rotation_mode="anchor")
    for label in axes.get_xticklabels():
        label.set_parse_math(False)
