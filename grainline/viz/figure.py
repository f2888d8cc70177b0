"""Score against subtexts as a PNG, with matplotlib (extra `figures`), which is loaded when it is needed.

A row for each picture: the picture, the chart with all models, and what each subtext adds.
"""

import textwrap
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from grainline.errors import UserError
from grainline.files import replacing
from grainline.viz.page import Gone, short
from grainline.viz.rising import RULES, Rising, added, ties

COLOURS = ("#0062a3", "#b84a00", "#00765a", "#8d3f77", "#6b5c00", "#3a3f47")
STYLES = ("-", "--", ":", "-.", (0, (8, 2)), (0, (1, 2)))
# In inches: the whole, what stands above and below the rows, a row, and what of it lies below its axes.
WIDTH, HEAD, FOOT, ROW, GAP = 13.0, 1.0, 0.25, 2.9, 0.75
PICTURE, CHART, TEXT = (0.25, 2.4), (3.1, 7.4), (7.65, 12.9)  # from left to right
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


def write_png(path: str | Path, shown: Sequence[Rising], title: str) -> None:
    """Write the figure, whole or not at all. Raises UserError if the place cannot be written."""
    from matplotlib.figure import Figure

    tall = HEAD + ROW * len(shown) + FOOT
    figure = Figure(figsize=(WIDTH, tall), dpi=DPI, facecolor="white")
    for i, one in enumerate(shown):
        floor = tall - HEAD - ROW * (i + 1) + GAP
        picture, chart, texts = (
            figure.add_axes((left / WIDTH, floor / tall, (right - left) / WIDTH, (ROW - GAP) / tall))
            for left, right in (PICTURE, CHART, TEXT)
        )
        _picture(picture, one)
        drawn = _chart(chart, one)
        _texts(texts, one)
    names = [line.model for line in shown[0].lines]
    left = PICTURE[0] / WIDTH
    figure.text(left, 1 - 0.12 / tall, title, va="top", fontsize=11, color=INK, parse_math=False)
    figure.text(left, 0.1 / tall, textwrap.fill(RULES, 190), fontsize=SMALL, color=SOFT, parse_math=False)
    legend = figure.legend(
        drawn, names, loc="upper left", ncols=min(3, len(names)), frameon=False, fontsize=9, handlelength=3.2,
        bbox_to_anchor=(left - 0.007, 1 - 0.36 / tall), borderaxespad=0.0,
    )  # fmt: skip
    for text in legend.get_texts():
        text.set_parse_math(False)
    with warnings.catch_warnings(), replacing(Path(path)) as beside:
        warnings.filterwarnings("ignore", "Glyph", UserWarning)  # a script that the font lacks shows as boxes
        figure.savefig(beside, format="png")


def _picture(axes: Any, one: Rising) -> None:
    axes.set_axis_off()
    axes.set_title(short(one.name, 34), fontsize=SMALL, color=SOFT, loc="left", parse_math=False)
    if isinstance(one.picture, Gone):
        axes.text(0.5, 0.5, textwrap.fill(one.picture.why, 24), ha="center", va="center", fontsize=SMALL,
                  color=SOFT, parse_math=False)  # fmt: skip
        return
    axes.imshow(one.picture.convert("RGB"), interpolation="lanczos")


def _chart(axes: Any, one: Rising) -> list[Any]:
    """The lines of all models; their handles."""
    number = range(1, len(one.subtexts) + 1)
    drawn = []
    for i, line in enumerate(one.lines):
        colour = COLOURS[i]
        drawn += axes.plot(number, line.scores, color=colour, linestyle=STYLES[i], linewidth=1.6)
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
    return drawn


def _texts(axes: Any, one: Rising) -> None:
    axes.set_axis_off()
    axes.text(0.0, 1.0, "\n".join(_lines(added(one.subtexts))), va="top", fontsize=SMALL, color=INK,
              linespacing=1.25, parse_math=False)  # fmt: skip


def _lines(texts: Sequence[str]) -> list[str]:
    """Numbered texts in at most LINES lines: long ones are shortened, and the last of too many left out."""
    kept = list(texts) if len(texts) <= LINES else list(texts[: LINES - 1])
    wrapped = [
        textwrap.wrap(text, COLUMNS, initial_indent=f"{i}  ", subsequent_indent="    ")
        for i, text in enumerate(kept, 1)
    ]
    most = max(n for n in range(1, LINES + 1) if n == 1 or sum(min(n, len(w)) for w in wrapped) <= LINES)
    out = []
    for found in wrapped:
        whole = len(found) <= most
        out += (
            found
            if whole
            else [*found[: most - 1], found[most - 1][: COLUMNS - 4].rsplit(" ", 1)[0] + " ..."]
        )
    return out + [f"... and {len(texts) - len(kept)} more"] * (len(kept) < len(texts))
