"""Pictures as `grainline show` draws them: their segments, and where the parts of texts look in them.

A map that is stretched to its own range hides that a text looks at nothing, so all maps are drawn on one
scale, and the weight of the empty slot stands below each.
"""

from collections.abc import Sequence

import numpy as np
import torch
from PIL import Image

from grainline.errors import UserError
from grainline.evaluate.attention import Part, attending, looks
from grainline.methods.base import Attending, Keeping
from grainline.model import ImageLike, Model
from grainline.types import Images, rows
from grainline.viz.overlay import overlay
from grainline.viz.segments import enlarged, segmented
from grainline.viz.shown import PIXELS, Panel, Shown

TIMES = 8
"""The end of the scale, as a multiple of the weight that all tokens would have if they shared alike."""


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


def refuse_unshown(model: Model, texts: Sequence[str]) -> None:
    """Raise UserError where nothing can be shown of a method, or of a text."""
    method, name = model.method, model.description.method
    blank = [i for i, text in enumerate(texts, 1) if not text.strip()]
    if blank:
        raise UserError(f"--text number {blank[0]} has no words; give words to look for")
    if isinstance(method, Keeping):
        if not texts:
            raise UserError(f"{name} keeps patches for a text; give --text, to show which ones")
        return
    if not isinstance(method, Attending) and not method.segmented:
        heat = "; its heat is drawn by `grainline evaluate MODEL --data DATA --png FILE`" * method.placed
        raise UserError(f"{name} has neither segments nor texts that look at image tokens{heat}")
    if texts:
        attending(method, name, "--text")
    elif not method.segmented:
        raise UserError(f"this {name} sees patches, not segments; give --text, to show where it looks")


def end_of_scale(model: Model, square: ImageLike) -> float:
    """The weight that has the full colour, the same for all pictures of a model."""
    grid = model.method.grid
    if isinstance(model.method, Keeping) and grid is not None:
        return min(1.0, TIMES / (grid[0] * grid[1]))
    return min(1.0, TIMES / model.encode(images=[square]).tokens.shape[1])


def shown(model: Model, name: str, square: Image.Image, texts: Sequence[str], limit: float) -> Shown:
    """A picture as its segments of all stages, and where each part of each text looks.

    square  as `model.seen` has it
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
    drawn = _texts(model, square, texts, limit) if texts else []
    if not stages and all(len(panels) == 1 for panels in drawn):
        drawn = [[panel for panels in drawn for panel in panels]]
    return Shown(name, square, ([stages] if stages else []) + drawn)


def mapped(model: Model, square: ImageLike, texts: Sequence[str]) -> list[list[tuple[Part, np.ndarray]]]:
    """Where the parts of each text look in a square: each with its weights over the pixels, [S, S]"""
    method, size = model.method, (model.method.size, model.method.size)
    images = model.encode(images=[square])
    same = rows(images, torch.zeros(len(texts), dtype=torch.int64, device=model.device))
    out = []
    for parts in looks(method, same, model.encode(texts=texts), texts):
        heat = [method.on_pixels(images, part.weight[None, :-1].to(model.device), size)[0] for part in parts]
        out.append([(part, one.cpu().numpy()) for part, one in zip(parts, heat, strict=True)])
    return out


def _texts(model: Model, square: Image.Image, texts: Sequence[str], limit: float) -> list[list[Panel]]:
    """The panels of each text, one for each of its parts."""
    out = []
    for i, found in enumerate(mapped(model, square, texts), 1):
        panels = []
        for part, heat in found:
            image = enlarged(np.asarray(overlay(square, heat, limit)), PIXELS)
            panels.append(Panel(part.words, Image.fromarray(image), f"empty {part.empty:.2f}"))
        out.append(_numbered(panels, i, len(texts)))
    return out


def _numbered(panels: list[Panel], number: int, texts: int) -> list[Panel]:
    """The panels of a text; the numbers of text and part stand in front of the words, where not alone."""
    whole = str(number) * (texts > 1)
    out = []
    for i, panel in enumerate(panels, 1):
        mark = ".".join(filter(None, (whole, str(i) * (len(panels) > 1))))
        out.append(panel._replace(words=f"{mark}  {panel.words}".strip()))
    return out
