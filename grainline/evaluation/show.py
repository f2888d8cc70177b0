"""`grainline show`: the segments of images, where the parts of texts attend, or the patches that stay.

A map that is stretched to its own range hides that a text looks at nothing, so all maps are drawn on one
scale, and the weight of the empty slot stands below each.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from PIL import Image

from grainline.data.descriptions import Descriptions
from grainline.errors import UserError
from grainline.evaluation.examples import attention_maps, end_of_scale
from grainline.evaluation.result import writable
from grainline.evaluation.suites.phrases import pieces
from grainline.loading import load
from grainline.methods.base import HasAttention, require_attention
from grainline.model import Model, given
from grainline.nn.patch_selection.types import CLASS, PATCH, REST, SLOT, Selection, SelectsPatches
from grainline.nn.upsample import place
from grainline.report.case import Case, Panel, Row, cases_html
from grainline.report.heatmap import (
    enlarged,
    legend,
    overlay,
    patch_count,
    segmented,
    selected_patches,
    shares,
    two_selections,
)
from grainline.report.page import Section, hint, render_page, write_page
from grainline.report.png import PIXELS, require_matplotlib, write_panels
from grainline.types import Images, each, rows

SCALE = (
    "No colour: no weight, full orange: {limit:.3g} or more of the weight of a text, in all maps alike."
    " The weights of all segments or patches and of the empty slot sum to 1."
)
SELECTION_SCALE = (
    "Dark: patches that are dropped. Below them stands each token that words find, with the shares of patches"
    " that it is made of. No colour: no share, full orange: {limit:.3g} or more of the token, in all maps"
    " alike; a frame is around the largest."
)
LINES = "Lines are heavier, the more stages keep them."
SQUARE = "as the model sees it"


def show(
    model: str | Path,
    images: Sequence[str],
    texts: Sequence[str] = (),
    *,
    scale: float | None = None,
    png: Path | None = None,
    html: Path | None = None,
    descriptions: Callable[[Model], Descriptions | None] = lambda model: None,  # noqa: ARG005
) -> None:
    """Write a figure and a page that show images as a model reads them, for some texts.

    scale         weight of a token that has the full colour; by default 8 times an even share
    descriptions  of the images, for a method that reads them

    Raises UserError where the method has nothing to show, or an image has no description.
    """
    if not (png or html):
        raise UserError("nothing to write; give --png FILE or --html FILE")
    if scale is not None and not (texts and 0 < scale <= 1):
        raise UserError(f"--scale is {scale:g}; it is a weight above 0 and at most 1, and goes with --text")
    if png:
        require_matplotlib()
    for file in filter(None, (png, html)):
        writable(file)
    loaded = load(model)
    check_texts(loaded, texts)
    selects = isinstance(loaded.method, SelectsPatches)
    known = descriptions(loaded)
    described = [None if known is None else known.of_file(image) for image in images]
    for image, description in zip(images, described, strict=True):
        if known is not None and description is None:
            raise UserError(
                f"the method reads a description of each image, and {image} has none in {known}: name"
                " a file of `grainline data describe` with --descriptions"
            )
    squares = [loaded.cropped(image) for image in images]
    limit = scale or end_of_scale(loaded, squares[0])
    panels = [
        selection_panels(loaded, image, square, texts, description, limit)
        if selects
        else segment_panels(loaded, image, square, texts, limit)
        for image, square, description in zip(images, squares, described, strict=True)
    ]
    cut = sum(loaded.read(texts).truncated) if texts else 0
    note = f" {cut} of {len(texts)} texts are longer than the model reads, and were cut." if cut else ""
    rule = (SELECTION_SCALE if selects else SCALE).format(limit=limit) + note if texts else ""
    title = f"{loaded.description.method}, {model}"
    if png:
        write_panels(png, panels, title, rule)
    if html:
        lines = LINES if loaded.method.segmented else ""
        body = hint(f"{lines} {rule}".strip()) + cases_html(panels, "image")
        write_page(html, render_page(title, "", [Section("Images", body)]))


def segmentations(model: Model, square: Image.Image) -> list[np.ndarray]:
    """The segments of a square as the model sees it, from fine to coarse: [S, S] integers each

    [] where image tokens are no segments.
    """
    pixels = torch.from_numpy(np.array(square)).permute(2, 0, 1)[None].to(model.device)
    with torch.no_grad():
        maps = model.method.towers.segmentations(
            Images(pixels, torch.zeros(1, dtype=torch.int64, device=model.device))
        )
    return [one[0].cpu().numpy() for one in maps]


def check_texts(model: Model, texts: Sequence[str]) -> None:
    """Raise UserError where nothing can be shown of a method, or of a text."""
    method, name = model.method, model.description.method
    blank = [i for i, text in enumerate(texts, 1) if not text.strip()]
    if blank:
        raise UserError(f"--text number {blank[0]} has no words; give words to look for")
    if isinstance(method, SelectsPatches):
        if not texts:
            raise UserError(f"{name} keeps patches for a text; give --text, to show which ones")
        return
    if not isinstance(method, HasAttention) and not method.segmented:
        heat = "; its heat is drawn by `grainline evaluate MODEL --data DATA --png FILE`" * method.has_layout
        raise UserError(f"{name} has neither segments nor texts that look at image tokens{heat}")
    if texts:
        require_attention(method, name, "--text")
    elif not method.segmented:
        raise UserError(f"this {name} sees patches, not segments; give --text, to show where it looks")


def segment_panels(model: Model, name: str, square: Image.Image, texts: Sequence[str], limit: float) -> Case:
    """An image as its segments of all stages, and where each part of each text looks.

    square  as `model.cropped` gives it
    limit   the weight that has the full colour
    """
    maps = segmentations(model, square)
    stages = [
        Panel(
            f"{len(np.unique(label))} {'segments' if i or len(maps) == 1 else 'superpixels'}",
            segmented(square, maps[i:], PIXELS),
        )
        for i, label in enumerate(maps)
    ]
    lines = []
    for i, parts in enumerate(attention_maps(model, square, texts) if texts else (), 1):
        panels = []
        for j, (part, heat) in enumerate(parts, 1):
            # The numbers of text and part, where there are several.
            mark = ".".join(filter(None, (str(i) * (len(texts) > 1), str(j) * (len(parts) > 1))))
            image = Image.fromarray(enlarged(np.asarray(overlay(square, heat, limit)), PIXELS))
            panels.append(Panel(f"{mark}  {part.words}".strip(), image, f"empty {part.empty:.2f}"))
        lines.append(panels)
    if not stages and all(len(panels) == 1 for panels in lines):
        lines = [[panel for panels in lines for panel in panels]]
    first, *more = ([stages] if stages else []) + lines
    return Case(name, rows=[Row([Panel(SQUARE, square), *first]), *map(Row, more)])


# The patches that a method selects of an image for a caption, for the description, and together; and for each
# word of the caption the token of the image that it finds. All of it is in `SelectsPatches.select_patches`.

WORDS = 40  # of a caption, from its start
CAPTION, DESCRIPTION = "caption", "description"


class Match(NamedTuple):
    """A token of the image, and the words of a caption that find it."""

    token: str  # its name
    words: list[tuple[str, float]]  # with their cosines
    share: np.ndarray  # [G, G] of each patch in the token; zeros where it has no place


def selection_panels(
    model: Model,
    name: str,
    square: Image.Image,
    texts: Sequence[str],
    description: str | None,
    limit: float,
) -> Case:
    """An image with the patches that stay for each of some captions, and the tokens that their words find.

    square       as `model.cropped` gives it
    description  of the image, where the method reads one
    limit        the share of a patch in a token that has the full colour
    """
    selection, grid = selection_of(model, square, texts, description), model.method.grid
    out = []
    for i, text in enumerate(texts):
        one = rows(selection, slice(i, i + 1))
        number = f" {i + 1}" if len(texts) > 1 else ""
        before = f"Description: {description}\n" if description and not i else ""
        panels = stays(one, square, grid, joint=model.method.reads_descriptions)
        head = f"{before}Caption{number}, score {float(one.score[0]):.3f}: {text}"
        out.append(Row(panels if i else [Panel(SQUARE, square), *panels], head, large=True))
        words = pieces(model, text, one.words[0].nonzero()[:, 0].tolist())
        panels = []
        for match in matches(one, words, grid):
            of = ", ".join(f"{word}\N{NO-BREAK SPACE}{cosine:.2f}" for word, cosine in match.words)
            where = place(match.share) if match.share.any() else "without a place"
            image = shares(square, match.share, limit, PIXELS)
            panels.append(Panel(of, image, match.token, alt=f"{of}: {match.token}, {where}"))
        out.append(Row(panels, summed(one, len(words)), large=True))
    return Case(name, rows=out)


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
    """The image with the patches that stay, for each choice that there is, and for both together.

    selection  one row
    joint      whether a lone choice of the caption knows the description too
    """
    masks = {CAPTION: selection.by_text, DESCRIPTION: selection.by_description}
    maps = {what: _on_grid(one[0], grid) for what, one in masks.items() if one is not None}
    names = {what: f"kept for the {what}" for what in maps}
    if joint and DESCRIPTION not in maps:
        names[CAPTION] = "kept for caption and description, which choose by one score"
    panels = [
        Panel(
            names[what],
            selected_patches(square, one, PIXELS),
            patch_count(one),
            alt=f"{names[what]}: {place(one * 1.0)}",
        )
        for what, one in maps.items()
    ]
    if len(maps) == 2:
        first, second = maps.values()
        image = two_selections(square, first, second, PIXELS)
        lines = legend(first, second, (CAPTION, DESCRIPTION))
        panels.append(Panel("kept for both together", image, patch_count(first | second), legend=lines))
    return panels


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
