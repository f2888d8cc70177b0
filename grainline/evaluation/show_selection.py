"""The figure of SEPS and LAPS: which patches stay for a text, and what its words find."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from PIL import Image

from grainline.evaluation.show_panels import Photo, weights_bar
from grainline.evaluation.suites.phrases import pieces
from grainline.model import Model, given
from grainline.nn.patch_selection.selector import CLASS, PATCH, REST, SLOT, Selection, SelectsPatches
from grainline.nn.upsample import place
from grainline.report.case import Case, Panel, Row
from grainline.report.heatmap import patch_count, selected_patches, shares
from grainline.report.png import PIXELS
from grainline.types import each, rows

WORDS = 40  # of a caption, from its start
CAPTION, DESCRIPTION = "caption", "description"


class Match(NamedTuple):
    """A token of the image, and the words of a caption that find it."""

    token: str  # its name
    words: list[tuple[str, float]]  # with their cosines
    share: np.ndarray  # [G, G] of each patch in the token; zeros where it has no place


def selection_panels(model: Model, photo: Photo, texts: Sequence[str], limit: float) -> Case:
    """An image with the patches that stay for each of some captions, and the tokens that their words find.

    limit  the share of a patch in a token that has the full colour
    """
    square, description = photo.square, photo.description
    selection, grid = selection_of(model, square, texts, description), model.method.grid
    out = []
    for i, text in enumerate(texts):
        one = rows(selection, slice(i, i + 1))
        number = f" {i + 1}" if len(texts) > 1 else ""
        before = f"Description: {description}\n" if description and not i else ""
        panels = stays(one, square, grid, joint=model.method.reads_descriptions)
        head = f"{before}Caption{number}, score {float(one.score[0]):.3f}: {text}"
        out.append(Row(panels if i else [photo.panel(weights_bar(limit)), *panels], head, large=True))
        words = pieces(model, text, one.words[0].nonzero()[:, 0].tolist())
        panels = []
        for match in matches(one, words, grid):
            of = ", ".join(f"{word}\N{NO-BREAK SPACE}{cosine:.2f}" for word, cosine in match.words)
            where = place(match.share) if match.share.any() else "without a place"
            image = shares(square, match.share, limit, PIXELS)
            panels.append(Panel(of, image, match.token, alt=f"{of}: {match.token}, {where}"))
        out.append(Row(panels, summed(one, len(words)), large=True))
    return Case(photo.name, rows=out)


def selection_of(
    model: Model, square: Image.Image, texts: Sequence[str], description: str | None
) -> Selection:
    """The patches of a square that stay for each text, and the tokens of words: [M] rows, on the CPU"""
    method = model.method
    assert isinstance(method, SelectsPatches), "ask `check_texts` first"
    image = model.encode(images=[given(square, description)])
    same = rows(image, torch.zeros(len(texts), dtype=torch.int64, device=model.device))
    return each(lambda x: x.cpu(), method.select_patches(same, model.encode(texts=texts)))


def stays(
    selection: Selection, square: Image.Image, grid: tuple[int, int] | None, *, joint: bool
) -> list[Panel]:
    """The image with the patches that stay, for each choice that there is, and for either of both.

    selection  one row
    joint      whether a lone choice of the caption knows the description too
    """
    masks = {CAPTION: selection.by_text, DESCRIPTION: selection.by_description}
    maps = {what: _on_grid(one[0], grid) for what, one in masks.items() if one is not None}
    names = {what: f"kept for the {what}" for what in maps}
    if joint and DESCRIPTION not in maps:
        names[CAPTION] = "kept for caption and description, which choose by one score"
    if len(maps) == 2:
        maps["both"], names["both"] = maps[CAPTION] | maps[DESCRIPTION], "kept for either of both"
    return [
        Panel(
            names[what],
            selected_patches(square, one, PIXELS),
            patch_count(one),
            alt=f"{names[what]}: {place(one * 1.0)}",
        )
        for what, one in maps.items()
    ]


def matches(selection: Selection, words: Sequence[str], grid: tuple[int, int] | None) -> list[Match]:
    """The tokens that the first WORDS words find, in the order of the words, each token once.

    selection  one row
    words      all words that it compares
    """
    real = selection.words[0]
    out: dict[int, Match] = {}
    tokens, cosines = selection.token[0][real].tolist(), selection.cosine[0][real].tolist()
    for word, token, cosine in list(zip(words, tokens, cosines, strict=True))[:WORDS]:
        share = _on_grid(selection.shares[0, token], grid)
        match = out.setdefault(token, Match(_token_name(selection.kind, token, share), [], share))
        match.words.append((word, cosine))
    return list(out.values())


def summed(selection: Selection, number: int) -> str:
    """The line above the tokens that words find. number: of words"""
    mean = float(selection.cosine[0][selection.words[0]].mean())
    left = f", of which the first {WORDS} are shown" if number > WORDS else ""
    return (
        f"What its words and pieces of words find: cosines, whose mean over all {number} is {mean:.3f}{left}"
    )


def _token_name(kinds: Sequence[str], token: int, share: np.ndarray) -> str:
    kind = kinds[token]
    if kind == PATCH:
        row, column = divmod(token, share.shape[1])
        return f"patch in row {row + 1}, column {column + 1}"
    return {
        SLOT: f"aggregated token {token + 1} of {kinds.count(SLOT)}",
        REST: "one token of what is dropped",
        CLASS: "the class token, without a place",
    }[kind]


def _on_grid(values: torch.Tensor, grid: tuple[int, int] | None) -> np.ndarray:
    """Values of patches [L] where the patches lie: [G, G]"""
    assert grid is not None, "selected patches lie on a grid"
    return values.view(grid).numpy()
