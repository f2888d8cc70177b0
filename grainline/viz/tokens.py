"""What stands on a page about groups of tokens: captions with the share of each group in each token.

A caption is a map with a row for each group and a column for each token. Below it stand the group that takes
most of each token, the annotated phrases as brackets, and the tokens themselves. Drawings are inline SVG.
"""

from collections.abc import Sequence
from html import escape
from typing import NamedTuple

import numpy as np

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


class Tokened(NamedTuple):
    """A caption, its phrases and what groups take of its tokens."""

    name: str  # of its picture
    words: Sequence[str]  # [L] tokens
    soft: np.ndarray  # [K, L] columns sum to 1
    phrases: Sequence[tuple[int, ...]]  # the tokens of each
    tiou: float
    uniform: float  # tIoU of as many uniform chunks

    @property
    def taken(self) -> list[int]:
        """The group that takes most of each token, of equals the first."""
        return [int(group) for group in self.soft.argmax(0)]

    @property
    def told(self) -> str:
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


def tokened(shown: Sequence[Tokened]) -> str:
    """Captions one below the other."""
    return "".join(
        f'<article class="card"><h3>{escape(one.told)} <small>{escape(one.name)}</small></h3>'
        f"{_scrolled(_caption(one), one.told)}</article>"
        for one in shown
    )


def positions(mean: np.ndarray) -> str:
    """The mean share of each group along a caption. mean: [K, B]"""
    groups, bins = mean.shape
    foot = ROW * groups + 16
    words = (
        f'<text x="{LEFT}" y="{foot}">beginning</text>'
        f'<text x="{LEFT + CELL * bins}" y="{foot}" text-anchor="end">end</text>'
    )
    label = "mean share of each group by position"
    return _scrolled(_svg(bins, foot + 6, _map(mean) + words, label), label)


def _scrolled(body: str, label: str) -> str:
    """What may be wider than the page, for the arrow keys too."""
    return f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(label)}">{body}</div>'


def _caption(one: Tokened) -> str:
    groups, tokens = one.soft.shape
    strip = ROW * groups + GAP
    body = [_map(one.soft)]
    for token, group in enumerate(one.taken):
        said = f"{escape(one.words[token])}: group {group + 1}"
        body.append(
            f'<rect x="{LEFT + CELL * token}" y="{strip}" width="{CELL}" height="{ROW}"'
            f' fill="var(--s{group % COLOURS})"><title>{said}</title></rect>'
        )
    top = strip + ROW + GAP
    for phrase in one.phrases:
        for first, last in runs(phrase):
            left, right = LEFT + CELL * first + 2, LEFT + CELL * (last + 1) - 2
            line = f"M{left} {top}V{top + 6}H{right}V{top}"
            body.append(f'<path d="{line}" fill="none" stroke="var(--ink)" stroke-width="1.5"/>')
    for token, word in enumerate(one.words):
        x, y = LEFT + CELL * (token + 0.5), top + 16
        shown = word if len(word) <= LETTERS else word[: LETTERS - 1] + "…"
        body.append(
            f'<text x="{x}" y="{y}" transform="rotate(60 {x} {y})" dominant-baseline="middle">'
            f"{escape(shown)}</text>"
        )
    return _svg(tokens, top + TALL, "".join(body), f"groups of: {' '.join(one.words)}")


def _map(share: np.ndarray) -> str:
    """A row of cells for each group, with its name before it."""
    cells = []
    for group, row in enumerate(share):
        y = ROW * group
        cells.append(f'<text x="0" y="{y + 13}">group {group + 1}</text>')
        cells += [
            f'<rect x="{LEFT + CELL * i}" y="{y}" width="{CELL}" height="{ROW}" fill="var(--s0)"'
            f' fill-opacity="{value:.3f}" stroke="var(--line)" stroke-width=".5"/>'
            for i, value in enumerate(row.tolist())
        ]
    return "".join(cells)


def _svg(columns: int, tall: float, body: str, label: str) -> str:
    wide = LEFT + CELL * columns + 40
    return (
        f'<svg width="{wide}" height="{tall}" viewBox="0 0 {wide} {tall}" role="img"'
        f' aria-label="{escape(label)}">{body}</svg>'
    )
