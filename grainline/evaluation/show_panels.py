"""The figure of an image in `grainline show`: its segments, attention of texts, heat of sentences."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from PIL import Image

from grainline.data.pairs import original
from grainline.data.transforms import Box
from grainline.evaluation.examples import scored_parts
from grainline.evaluation.text_attention import attention_maps
from grainline.methods.heat import heat_overlay, over_image, read_area, token_heat
from grainline.model import ImageLike, Model, given
from grainline.nn.upsample import FLOOR, FULL, NOTHING, place
from grainline.report.case import Case, Panel, Row
from grainline.report.heatmap import LegendEntry, dark_outside, ramp, ruled, scale_bar, segmented
from grainline.report.png import PIXELS
from grainline.types import Encoded, Images

BAR = 90, 18  # pixels of a colour scale
LONGEST = 720  # pixels of the longer side of an image in a figure; larger ones are shrunk first
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
    """The segments of a square as the model sees it, from fine to coarse: [S, S] integers each

    [] where image tokens are no segments, and for patches of images of any shape.
    """
    if model.transform.square.patches is not None:
        return []
    pixels = torch.from_numpy(np.array(square)).permute(2, 0, 1)[None].to(model.device)
    with torch.no_grad():
        maps = model.method.towers.segmentations(
            Images(pixels, torch.zeros(1, dtype=torch.int64, device=model.device))
        )
    return [one[0].cpu().numpy() for one in maps]


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
            panels.append(Panel(f"{mark}  {part.words}".strip(), image, f"empty slot {part.empty:.2f}"))
        lines.append(panels)
    if not stages and all(len(panels) == 1 for panels in lines):
        lines = [[panel for panels in lines for panel in panels]] if lines else []
    first, *more = ([stages] if stages else []) + lines or [[]]
    scales = [weights_bar(limit)] if texts else []
    whole = [Row([photo.panel(*scales), *first], large=True), *(Row(panels, large=True) for panels in more)]
    return Case(photo.name, rows=whole)


def weights_bar(limit: float) -> LegendEntry:
    return colour_bar(ramp(*BAR), "from none to orange", f"0 to {limit:.3g}")


def colour_bar(colours: Image.Image, how: str, words: str) -> LegendEntry:
    """A colour scale in a thin frame, since its middle is as white as the page."""
    return LegendEntry(ruled(colours, [(0, 0, *BAR)]), f"colour scale {how}", words)


def contrast_bar() -> LegendEntry:
    """The colours of contrast with other texts."""
    return colour_bar(scale_bar(*BAR, FLOOR / FULL), "from blue to orange", "fits less, fits more")


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
