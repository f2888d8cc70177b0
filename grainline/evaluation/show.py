"""`grainline show`: where texts show in images, over the whole images.

Methods have a map of contrast for each sentence and phrase of a text; those with segments, attention or a
choice of patches have figures of their own. A map that is stretched to its own range hides that a text looks
at nothing, so all maps are on one scale, and the weight of the empty slot stands below each.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from PIL import Image

from grainline.data.descriptions import Descriptions
from grainline.data.image_inputs import original
from grainline.data.other_texts import OtherTexts, other_texts
from grainline.data.transforms import Box
from grainline.errors import UserError
from grainline.evaluation.examples import attention_maps, end_of_scale, scored_parts
from grainline.evaluation.result import writable
from grainline.evaluation.suites.phrases import pieces
from grainline.loading import load
from grainline.methods.base import HasAttention, Method
from grainline.methods.heat import heat_overlay, over_image, read_area, token_heat
from grainline.model import ImageLike, Model, given
from grainline.nn.patch_selection.types import CLASS, PATCH, REST, SLOT, Selection, SelectsPatches
from grainline.nn.upsample import FLOOR, FULL, NOTHING, place
from grainline.report.case import Case, Panel, Row, cases_html
from grainline.report.heatmap import (
    LegendEntry,
    dark_outside,
    legend,
    patch_count,
    ramp,
    ruled,
    scale_bar,
    segmented,
    selected_patches,
    shares,
    two_selections,
)
from grainline.report.page import Section, hint, render_page, write_page
from grainline.report.png import PIXELS, require_matplotlib, write_panels
from grainline.types import Encoded, Images, each, rows

BAR = 90, 18  # pixels of a colour scale
LONGEST = 720  # pixels of the longer side of an image in a figure; larger ones are shrunk first
SCALE = (
    "No colour: no weight, full orange: {limit:.3g} or more of the weight of a text, in all maps alike."
    " The weights of all segments or patches and of the empty slot sum to 1."
)
SELECTION_SCALE = (
    "Dark: patches that are dropped. Below them stands each token that words find, with the shares of patches"
    " that it is made of. No colour: no share, full orange: {limit:.3g} or more of the token, in all maps"
    " alike; a frame is around the largest."
)
CONTRAST = (
    "Heat is orange where the image shows more of a text than of other texts and blue where less; 1 is what"
    " one of five of these reaches, and less has no colour. The others: {number} {source}."
)
COSINES = "It is the cosine of each patch with the text; the score of {name} compares whole images."
UNREAD = "What is dark outside the line is not read by the model."
LINES = "Lines are heavier, the more stages keep them."
OPEN, CLOSE = "\N{LEFT DOUBLE QUOTATION MARK}", "\N{RIGHT DOUBLE QUOTATION MARK}"  # around a phrase
SQUARE, WHOLE = "the image; what is dark is not read", "the image"


class Photo(NamedTuple):
    """An image of a figure."""

    name: str
    image: Image.Image  # whole, at most LONGEST pixels high and wide
    square: Image.Image  # as `model.cropped` gives it
    area: Box  # of the image, in the square
    description: str | None = None  # where the method reads one

    @property
    def input(self) -> ImageLike:
        """What the model encodes."""
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


def show(
    model: str | Path,
    images: Sequence[str],
    texts: Sequence[str] = (),
    *,
    out: Sequence[Path] = (),
    scale: float | None = None,
    others: str | None = None,
    descriptions: Callable[[Model], Descriptions | None] = lambda model: None,  # noqa: ARG005
) -> None:
    """Write figures and pages that show images as a model reads them, for some texts.

    out           files, which end in .png for a figure or in .html for a page
    scale         weight of a token that has the full colour; by default 8 times an even share
    others        a .txt file or a data source: texts that heat is measured against (`other_texts`)
    descriptions  of the images, for a method that reads them

    Raises UserError where the method has nothing to show, or an image has no description.
    """
    check_options(out, texts, scale, others)
    if any(file.suffix == ".png" for file in out):
        require_matplotlib()
    for file in out:
        writable(file)
    loaded = load(model)
    check_texts(loaded, texts)
    null = None
    if texts and not isinstance(loaded.method, HasAttention):
        null = other_texts(others, loaded.run, texts)
    elif others is not None:
        raise UserError("--others is for maps of contrast, and this method has maps of weights; leave it out")
    weighs = isinstance(loaded.method, HasAttention | SelectsPatches)
    if scale is not None and not weighs:
        raise UserError("--scale is for maps of weights, and this method has maps of contrast; leave it out")
    known = descriptions(loaded)
    described = [description_of(known, image) for image in images]
    photos = [photo_of(loaded, *one) for one in zip(images, described, strict=True)]
    limit = scale or (end_of_scale(loaded, photos[0].input) if weighs else 1.0)
    encoded = loaded.encode(texts=null.sentences) if null else None
    panels = [panels_of(loaded, photo, texts, limit, encoded) for photo in photos]
    title = f"{loaded.description.method}, {model}"
    rule = how_to_read(loaded, photos, texts, limit, null)
    for file in out:
        if file.suffix == ".png":
            write_panels(file, panels, title, rule)
        else:
            lines = LINES if loaded.method.segmented else ""
            body = hint(lines) * bool(lines) + cases_html(panels, "image") + hint(rule)
            write_page(file, render_page(title, "", [Section("Images", body)]))


def check_options(out: Sequence[Path], texts: Sequence[str], scale: float | None, others: str | None) -> None:
    """Raise UserError for options of `show` that do not go together."""
    if not out:
        raise UserError("nothing to write; give --out FILE.png, --out FILE.html or both")
    for file in out:
        if file.suffix not in (".png", ".html"):
            raise UserError(f"--out {file} must end in .png, for a figure, or in .html, for a page")
    if scale is not None and not (texts and 0 < scale <= 1):
        raise UserError(f"--scale is {scale:g}; it is a weight above 0 and at most 1, and goes with --text")
    if others is not None and not texts:
        raise UserError(f"--others {others} has texts to compare those of --text with; give --text")


def description_of(known: Descriptions | None, image: str) -> str | None:
    """The description of an image file; None where the method reads none. Raises UserError for none."""
    description = None if known is None else known.of_file(image)
    if known is not None and description is None:
        raise UserError(
            f"the method reads a description of each image, and {image} has none in {known}: name"
            " a file of `grainline data describe` with --descriptions"
        )
    return description


def panels_of(model: Model, photo: Photo, texts: Sequence[str], limit: float, null: Encoded | None) -> Case:
    """All that is shown of an image: what the method has of its own, and contrast with other texts.

    limit  the weight that has the full colour
    null   the other texts; None: no contrast
    """
    if isinstance(model.method, SelectsPatches):
        case = selection_panels(model, photo, texts, limit)
    else:
        attends = isinstance(model.method, HasAttention)
        case = segment_panels(model, photo, texts if attends else (), limit)
    if null is None:
        return case
    more = heat_rows(model, photo, texts, null)
    image = case.rows[0].panels[0]
    bar = _bar(scale_bar(*BAR, FLOOR / FULL), "from blue to orange", f"-{FULL:g} to +{FULL:g}")
    image = image._replace(legend=[*image.legend, bar])
    alone = len(case.rows) == 1 and len(case.rows[0].panels) == 1
    if alone:
        first = more[0]._replace(panels=[image, *more[0].panels])
        return case._replace(rows=[first, *more[1:]])
    first = case.rows[0]._replace(panels=[image, *case.rows[0].panels[1:]])
    return case._replace(rows=[first, *case.rows[1:], *more])


def how_to_read(
    model: Model, photos: Sequence[Photo], texts: Sequence[str], limit: float, null: OtherTexts | None
) -> str:
    """What stands below a figure: its scales, what is not read of images, and how many texts are cut."""
    method, parts = model.method, []
    if isinstance(method, SelectsPatches):
        parts.append(SELECTION_SCALE.format(limit=limit))
    elif texts and isinstance(method, HasAttention):
        parts.append(SCALE.format(limit=limit))
    if null is not None:
        parts.append(CONTRAST.format(number=len(null.sentences), source=null.source))
        if type(method).heat is Method.heat and not method.pairwise:
            parts.append(COSINES.format(name=model.description.method))
    if any(photo.area != (0, 0, *photo.image.size) for photo in photos):
        parts.append(UNREAD)
    cut = sum(model.read(texts).truncated) if texts else 0
    if cut:
        parts.append(f"{cut} of {len(texts)} texts are longer than the model reads, and were cut.")
    return " ".join(parts)


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
    model.require_layout()
    if not texts and not method.segmented:
        raise UserError(f"this {name} sees patches, not segments; give --text, to show where it looks")


def segment_panels(model: Model, photo: Photo, texts: Sequence[str], limit: float) -> Case:
    """An image as its segments of all stages, and where each part of each text looks.

    limit  the weight that has the full colour
    """
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
            panels.append(Panel(f"{mark}  {part.words}".strip(), image, f"empty {part.empty:.2f}"))
        lines.append(panels)
    if not stages and all(len(panels) == 1 for panels in lines):
        lines = [[panel for panels in lines for panel in panels]] if lines else []
    first, *more = ([stages] if stages else []) + lines or [[]]
    scales = [_weights(limit)] if texts else []
    whole = [Row([photo.panel(*scales), *first], large=True), *(Row(panels, large=True) for panels in more)]
    return Case(photo.name, rows=whole)


def _weights(limit: float) -> LegendEntry:
    return _bar(ramp(*BAR), "from none to orange", f"0 to {limit:.3g}")


def _bar(colours: Image.Image, how: str, words: str) -> LegendEntry:
    """A colour scale in a thin frame, since its middle is as white as the page."""
    return LegendEntry(ruled(colours, [(0, 0, *BAR)]), f"colour scale {how}", words)


def heat_rows(model: Model, photo: Photo, texts: Sequence[str], null: Encoded) -> list[Row]:
    """The sentences of each text, a row for each with its phrases: contrast over the whole image, and scores.

    null  the other texts
    """
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


# The patches that a method selects of an image for a caption, for the description, and together; and for each
# word of the caption the token of the image that it finds. All of it is in `SelectsPatches.select_patches`.

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
        out.append(Row(panels if i else [photo.panel(_weights(limit)), *panels], head, large=True))
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
