"""Groups of tokens as inline SVG: captions with the assignment of each token to groups.

A caption is a map with a row for each group and a column for each token. Below it are the strongest group of
each token, the annotated phrases as brackets, and the tokens.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from markupsafe import Markup

from grainline.report.case import Case
from grainline.report.page import render

CELL, ROW, LEFT, GAP = 24, 18, 64, 4  # in pixels: a token, a group, room for names, between map and strip
TALL = 84  # room for the tokens, which are turned
COLOURS = 6  # of groups in the strip; more groups begin again
LETTERS = 12  # of a token that are shown
RULES = (
    "A row is a group, a column a token; the darker, the more of the token the group takes. The strip below"
    " has the group that takes most, brackets are the annotated phrases."
)
POSITIONS = (
    "The mean over all captions of what each group takes, from their first token to their last. Rows that are"
    " dark in one place alone say that groups are places in a caption, whatever it says."
)


class TokenGroups(NamedTuple):
    """A caption, its phrases and the soft assignment of its tokens to groups."""

    name: str  # of its image
    words: Sequence[str]  # [L] tokens
    soft: np.ndarray  # [K, L] columns sum to 1
    phrases: Sequence[tuple[int, ...]]  # the tokens of each
    tiou: float
    uniform: float  # tIoU of as many uniform chunks

    @property
    def top_group(self) -> list[int]:
        """The strongest group of each token; the first of equal ones."""
        return [int(group) for group in self.soft.argmax(0)]

    @property
    def brackets(self) -> list[tuple[int, int]]:
        """The first and the last token of each stretch of a phrase."""
        return [ends for phrase in self.phrases for ends in runs(phrase)]

    @property
    def shortened(self) -> list[str]:
        """The tokens as they are drawn."""
        return [word if len(word) <= LETTERS else word[: LETTERS - 1] + "…" for word in self.words]

    @property
    def summary(self) -> str:
        """Both tIoU in words."""
        return f"tIoU {100 * self.tiou:.1f} %, uniform chunks {100 * self.uniform:.1f} %"


def runs(tokens: Sequence[int]) -> list[tuple[int, int]]:
    """Neighbours as first and last.

    >>> runs([1, 2, 5])
    [(1, 2), (5, 5)]
    """
    out: list[tuple[int, int]] = []
    for token in sorted(tokens):
        if out and out[-1][1] == token - 1:
            out[-1] = (out[-1][0], token)
        else:
            out.append((token, token))
    return out


def token_groups(one: TokenGroups) -> Case:
    """A caption on a page."""
    label = f"groups of: {' '.join(one.words)}"
    drawing = render(
        "tokens.html",
        **_SIZES
        | {
            "share": one.soft.tolist(),
            "words": one.words,
            "top_group": one.top_group,
            "brackets": one.brackets,
        }
        | {"shortened": one.shortened, "name": one.summary, "label": label},
    )
    return Case(one.summary, one.name, chart=drawing)


def positions(mean: np.ndarray) -> Markup:
    """The mean share of each group along a caption. mean: [K, B]"""
    name = "mean share of each group by position"
    return render("tokens.html", share=mean.tolist(), words=(), name=name, label=name, **_SIZES)


_SIZES: dict[str, Any] = {
    "cell": CELL, "row": ROW, "left": LEFT, "gap": GAP, "tall": TALL, "colours": COLOURS,
    "top_group": (), "brackets": (), "shortened": (),
}  # fmt: skip
