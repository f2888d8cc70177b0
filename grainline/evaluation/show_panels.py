"""The figure of an image in `grainline show`: segments, attention, heat of sentences, or selected patches."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from grainline.data.pairs import original
from grainline.data.transforms import Box
from grainline.evaluation.examples import Part, attention_of, scored_parts
from grainline.evaluation.suites.phrases import pieces
from grainline.methods.heat import heat_overlay, over_image, read_area, token_heat
from grainline.model import ImageLike, Model, given
from grainline.nn.patch_selection.selector import CLASS, PATCH, REST, SLOT, Selection, SelectsPatches
from grainline.nn.upsample import FLOOR, FULL, NOTHING, place
from grainline.report.case import Case, Panel, Row
from grainline.report.heatmap import (
    LegendEntry,
    dark_outside,
    patch_count,
    ramp,
    ruled,
    scale_bar,
    segmented,
    selected_patches,
    shares,
)
from grainline.report.png import PIXELS
from grainline.types import Encoded, Images, each, rows

BAR = 90, 18  # pixels of a colour scale
LONGEST = 720  # pixels of the longer side of an image in a figure; larger ones are shrunk first
OPEN, CLOSE = "\N{LEFT DOUBLE QUOTATION MARK}", "\N{RIGHT DOUBLE QUOTATION MARK}"  # around a phrase
SQUARE, WHOLE = "the image; what is dark is not read", "the image"
TIMES = 8  # end of the scale of maps, as a multiple of the weight of each token if all had the same
WORDS = 40  # of a caption, from its start
CAPTION, DESCRIPTION = "caption", "description"


class Photo(NamedTuple):
    """An image of a figure."""

    name: str
    image: Image.Image  # whole, at most LONGEST pixels high and wide
    square: Image.Image  # as `model.cropped` gives it
    area: Box  # of the image, in the square
    description: str | None = None  # where the method reads one

    @property
    def input(self) -> ImageLike:
        """The input of the model."""
        return given(self.name, self.description)

    def panel(self, *scales: LegendEntry) -> Panel:
        """The image alone, with the scales of its maps."""
        all_read = self.area == (0, 0, *self.image.size)
        return Panel(WHOLE if all_read else SQUARE, dark_outside(self.image, self.area), legend=scales)


def photo_of(model: Model, name: str, description: str | None = None) -> Photo:
    """An image file for a figure. Raises UserError where it is none."""
    whole, square = original(name), model.cropped(name)
    whole.thumbnail((LONGEST, LONGEST), Image.Resampling.LANCZOS)
    return Photo(name, whole, square, read_area(model.transform, whole.size), description)


def segmentations(model: Model, square: Image.Image) -> list[np.ndarray]:
    """The segments of a square as the model sees it, from fine to coarse: [S, S] integers each, if any."""
    if model.transform.square.patches is not None:
        return []
    pixels = torch.from_numpy(np.array(square)).permute(2, 0, 1)[None].to(model.device)
    image = torch.zeros(1, dtype=torch.int64, device=model.device)
    with torch.no_grad():
        return [one[0].cpu().numpy() for one in model.method.towers.segmentations(Images(pixels, image))]


def end_of_scale(model: Model, square: ImageLike) -> float:
    """The weight that has the full colour, the same for all images of a model."""
    grid = model.method.grid
    if isinstance(model.method, SelectsPatches) and grid is not None:
        return min(1.0, TIMES / (grid[0] * grid[1]))
    return min(1.0, TIMES / model.encode(images=[square]).tokens.shape[1])


def attention_maps(
    model: Model, image: ImageLike, texts: Sequence[str], area: Box, size: tuple[int, int]
) -> list[list[tuple[Part, np.ndarray]]]:
    """The parts of each text in an image, with their weights over the pixels [H, W]; see `over_image`."""
    method, images = model.method, model.encode(images=[image])
    same = rows(images, torch.zeros(len(texts), dtype=torch.int64, device=model.device))
    parts_of_texts = attention_of(method, same, model.encode(texts=texts), texts)
    return [
        [(part, over_image(method, images, part.weight[:-1].to(model.device), area, size)) for part in parts]
        for parts in parts_of_texts
    ]


def segment_panels(model: Model, photo: Photo, texts: Sequence[str], limit: float) -> Case:
    """An image as its segments of all stages, and where each part of each text looks, up to full colour."""
    maps = segmentations(model, photo.square)
    stages = [
        Panel(
            f"{len(np.unique(label))} {'segments' if i or len(maps) == 1 else 'superpixels'}",
            segmented(photo.square, maps[i:], PIXELS),
        )
        for i, label in enumerate(maps)
    ]
    lines = []
    looks = attention_maps(model, photo.input, texts, photo.area, photo.image.size) if texts else ()
    for i, parts in enumerate(looks, 1):
        panels = []
        for j, (part, heat) in enumerate(parts, 1):
            # The numbers of text and part, where there are several.
            mark = ".".join(filter(None, (str(i) * (len(texts) > 1), str(j) * (len(parts) > 1))))
            image = heat_overlay(photo.image, heat, photo.area, limit, floor=0.0)
            panels.append(Panel(f"{mark}  {part.words}".strip(), image, f"empty slot {part.empty:.2f}"))
        lines.append(panels)
    if not stages and all(len(panels) == 1 for panels in lines):
        lines = [[panel for panels in lines for panel in panels]] if lines else []
    first, *more = ([stages] if stages else []) + lines or [[]]
    scales = [weights_bar(limit)] if texts else []
    whole = [Row([photo.panel(*scales), *first], large=True), *(Row(panels, large=True) for panels in more)]
    return Case(photo.name, rows=whole)


def weights_bar(limit: float) -> LegendEntry:
    """The colours of weights up to a limit."""
    return colour_bar(ramp(*BAR), "from none to orange", f"0 to {limit:.3g}")


def colour_bar(colours: Image.Image, how: str, words: str) -> LegendEntry:
    """A colour scale in a thin frame, since its middle is as white as the page."""
    return LegendEntry(ruled(colours, [(0, 0, *BAR)]), f"colour scale {how}", words)


def contrast_bar() -> LegendEntry:
    """The colours of contrast with other texts."""
    return colour_bar(scale_bar(*BAR, FLOOR / FULL), "from blue to orange", "fits less, fits more")


def heat_rows(model: Model, photo: Photo, texts: Sequence[str], null: Encoded) -> list[Row]:
    """A row for each sentence of each text, with its phrases: contrast with other texts, and scores."""
    image, out = model.encode(images=[photo.input]), []
    for i, text in enumerate(texts, 1):
        scored, strings, left_out = scored_parts(model, photo.input, text)
        with torch.no_grad():
            heat = iter(token_heat(model.method, image, model.encode(texts=strings), null))
        number = f"Text {i}." if len(texts) > 1 else ""
        head = " ".join(filter(None, (number, left_out)))
        for sentence in scored:
            panels = []
            for part in (sentence, *sentence.phrases):
                over = over_image(model.method, image, next(heat), photo.area, photo.image.size)
                words = part.text if part is sentence else f"{OPEN}{part.text}{CLOSE}"
                where = place(over, FLOOR)
                below = f"score {part.score:.3f}{f', {NOTHING}' * (where == NOTHING)}"
                image_with_heat = heat_overlay(photo.image, over, photo.area)
                panels.append(Panel(words, image_with_heat, below, alt=f"heat of '{part.text}': {where}"))
            out.append(Row(panels, head, large=True))
            head = ""
    return out


class Match(NamedTuple):
    """A token of the image, and the words of a caption that find it."""

    token: str  # its name
    words: list[tuple[str, float]]  # with their cosines
    share: np.ndarray  # [G, G] of each patch in the token; zeros where it has no place


def selection_panels(model: Model, photo: Photo, texts: Sequence[str], limit: float) -> Case:
    """An image with the patches that stay for each of some captions, and the tokens that their words find."""
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
            cosines = ", ".join(f"{word}\N{NO-BREAK SPACE}{cosine:.2f}" for word, cosine in match.words)
            where = place(match.share) if match.share.any() else "without a place"
            image = shares(square, match.share, limit, PIXELS)
            panels.append(Panel(cosines, image, match.token, alt=f"{cosines}: {match.token}, {where}"))
        left = f", of which the first {WORDS} are shown" if len(words) > WORDS else ""
        mean = f"{float(one.cosine[0][one.words[0]].mean()):.3f}{left}"
        what = f"What its words and pieces of words find: cosines, whose mean over all {len(words)} is {mean}"
        out.append(Row(panels, what, large=True))
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

    selection: one row; joint: whether a lone choice of the caption knows the description too
    """
    masks = {CAPTION: selection.by_text, DESCRIPTION: selection.by_description}
    maps = {f"kept for the {what}": _on_grid(x[0], grid) for what, x in masks.items() if x is not None}
    if joint and selection.by_description is None:
        maps = {"kept for caption and description, which choose by one score": next(iter(maps.values()))}
    if len(maps) == 2:
        maps["kept for either of both"] = np.logical_or(*maps.values())
    return [
        Panel(what, selected_patches(square, x, PIXELS), patch_count(x), alt=f"{what}: {place(x * 1.0)}")
        for what, x in maps.items()
    ]


def matches(selection: Selection, words: Sequence[str], grid: tuple[int, int] | None) -> list[Match]:
    """The tokens that the first WORDS words find, in the order of the words, each once. selection: one row"""
    real = selection.words[0]
    out: dict[int, Match] = {}
    tokens, cosines = selection.token[0][real].tolist(), selection.cosine[0][real].tolist()
    for word, token, cosine in list(zip(words, tokens, cosines, strict=True))[:WORDS]:
        share = _on_grid(selection.shares[0, token], grid)
        match = out.setdefault(token, Match(_token_name(selection.kind, token, share), [], share))
        match.words.append((word, cosine))
    return list(out.values())


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


def _on_grid(values: Tensor, grid: tuple[int, int] | None) -> np.ndarray:
    """Values of patches [L] where the patches lie: [G, G]"""
    assert grid is not None, "selected patches lie on a grid"
    return values.view(grid).numpy()
