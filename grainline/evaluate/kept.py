"""What methods that choose patches keep of a picture, as `grainline show` draws it: for a caption, for the
description, and together; and for each word of the caption the token of the picture that it finds.

All of it is what scores are made of (`Keeping.keeps`): nothing is chosen here.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from PIL import Image

from grainline.evaluate.tokened import pieces
from grainline.methods.base import Keeping
from grainline.methods.chosen import CLASS, PATCH, REST, SLOT, Kept
from grainline.model import Model, given
from grainline.types import each, rows
from grainline.viz.heat import place
from grainline.viz.kept import alone, counted, legend, shares, together
from grainline.viz.shown import PIXELS, Panel, Shown

WORDS = 40  # of a caption whose finds are shown: the first ones
CAPTION, DESCRIPTION = "caption", "description"


class Match(NamedTuple):
    """A token of the picture, and the words of a caption that find it."""

    token: str  # what it is
    words: list[tuple[str, float]]  # with their cosines
    share: np.ndarray  # [G, G] of each patch in the token; zeros where it has no place


def kept(
    model: Model, name: str, square: Image.Image, told: tuple[Sequence[str], str | None], limit: float
) -> Shown:
    """A picture with what stays of it for each of some captions, and what their words find.

    square  as `model.seen` has it
    told    captions, and the description of the picture where the method reads one
    limit   the share of a patch in a token that has the full colour
    """
    texts, description = told
    found = kept_of(model, square, texts, description)
    heads, lines = [], []
    for i, text in enumerate(texts):
        one = rows(found, slice(i, i + 1))
        number = f" {i + 1}" if len(texts) > 1 else ""
        before = f"Description: {description}\n" if description and not i else ""
        heads.append(f"{before}Caption{number}, score {float(one.score[0]):.3f}: {text}")
        lines.append(stays(one, square, model.method.grid, joint=model.method.describes))
        words = pieces(model, text, one.told[0].nonzero()[:, 0].tolist())
        heads.append(summed(one, len(words)))
        lines.append([drawn(match, square, limit) for match in matches(one, words, model.method.grid)])
    return Shown(name, square, lines, heads)


def kept_of(model: Model, square: Image.Image, texts: Sequence[str], description: str | None) -> Kept:
    """What stays of a square for each text, and what words find: [M] rows, on the CPU"""
    method = model.method
    assert isinstance(method, Keeping), "ask `refuse_unshown` first"
    image = model.encode(images=[given(square, description)])
    same = rows(image, torch.zeros(len(texts), dtype=torch.int64, device=model.device))
    return each(lambda x: x.cpu(), method.keeps(same, model.encode(texts=texts)))


def stays(found: Kept, square: Image.Image, grid: tuple[int, int] | None, *, joint: bool) -> list[Panel]:
    """The picture with the patches that stay, for each choice that there is, and for both together.

    found  one row
    joint  whether a lone choice of the caption knows the description too
    """
    chosen = {CAPTION: found.by_text, DESCRIPTION: found.by_description}
    maps = {what: _laid(one[0], grid) for what, one in chosen.items() if one is not None}
    names = {what: f"kept for the {what}" for what in maps}
    if joint and DESCRIPTION not in maps:
        names[CAPTION] = "kept for caption and description, which choose by one score"
    panels = [
        Panel(names[what], alone(square, one, PIXELS), counted(one), alt=f"{names[what]}: {place(one * 1.0)}")
        for what, one in maps.items()
    ]
    if len(maps) == 2:
        first, second = maps.values()
        image = together(square, first, second, PIXELS)
        lines = legend(first, second, (CAPTION, DESCRIPTION))
        panels.append(Panel("kept for both together", image, counted(first | second), legend=lines))
    return panels


def matches(found: Kept, words: Sequence[str], grid: tuple[int, int] | None) -> list[Match]:
    """The tokens that the first WORDS words find, in the order of the words, each token once.

    found  one row
    words  all words that it compares
    """
    real = found.told[0]
    out: dict[int, Match] = {}
    each_word = zip(words, found.token[0][real].tolist(), found.found[0][real].tolist(), strict=True)
    for word, token, cosine in list(each_word)[:WORDS]:
        share = _laid(found.made_of[0, token, :-1], grid)
        match = out.setdefault(token, Match(_named(found.kind, token, share), [], share))
        match.words.append((word, cosine))
    return list(out.values())


def summed(found: Kept, number: int) -> str:
    """What stands above the tokens that words find. number: of words"""
    mean = float(found.found[0][found.told[0]].mean())
    left = f", of which the first {WORDS} are shown" if number > WORDS else ""
    return (
        f"What its words and pieces of words find: cosines, whose mean over all {number} is {mean:.3f}{left}"
    )


def drawn(match: Match, square: Image.Image, limit: float) -> Panel:
    """A token with its words, and where it is made of."""
    words = ", ".join(f"{word}\N{NO-BREAK SPACE}{cosine:.2f}" for word, cosine in match.words)
    where = place(match.share) if match.share.any() else "without a place"
    image = shares(square, match.share, limit, PIXELS)
    return Panel(words, image, match.token, alt=f"{words}: {match.token}, {where}")


def _named(kinds: Sequence[str], token: int, share: np.ndarray) -> str:
    kind = kinds[token]
    if kind == PATCH:
        row, column = divmod(token, share.shape[1])
        return f"patch in row {row + 1}, column {column + 1}"
    return {
        SLOT: f"aggregated token {token + 1} of {kinds.count(SLOT)}",
        REST: "one token of what is dropped",
        CLASS: "the class token, without a place",
    }[kind]


def _laid(values: torch.Tensor, grid: tuple[int, int] | None) -> np.ndarray:
    """Values of patches [L] where the patches lie: [G, G]"""
    assert grid is not None, "patches that are chosen lie on a grid"
    return values.view(grid).numpy()
