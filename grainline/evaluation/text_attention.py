"""Attention of the parts of a text over image tokens and an empty slot: the weights of a part sum to 1.

A part that has nothing to do with an image should attend to the empty slot.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from grainline.data.transforms import Box
from grainline.methods.base import HasAttention, Method, parts_of
from grainline.methods.heat import over_image
from grainline.model import ImageLike, Model
from grainline.nn.patch_selection.selector import SelectsPatches
from grainline.types import Encoded, rows

TIMES = 8  # end of the scale of maps, as a multiple of the weight of each token if all had the same


class Part(NamedTuple):
    """A part of a text, in an image."""

    words: str
    weight: Tensor  # [L + 1] float32 on the CPU, sums to 1; the last is the empty slot

    @property
    def empty(self) -> float:
        return float(self.weight[-1])


def attention_of(method: Method, images: Encoded, texts: Encoded, strings: Sequence[str]) -> list[list[Part]]:
    """The attention of text i in image i, part by part. A part that a short text repeats comes once.

    images   [N] with tokens; texts [N]
    strings  [N] these texts
    """
    assert isinstance(method, HasAttention), "ask `require_attention` first"
    with torch.no_grad():
        weight = method.attention(images, texts).cpu()  # [N, S, L + 1]
    out = []
    for one, real, text in zip(weight, texts.mask.cpu(), strings, strict=True):
        unique: dict[str, Part] = {}
        for words, row, there in zip(parts_of(method, text, len(one)), one, real, strict=True):
            if there:
                unique.setdefault(words, Part(words, row))
        out.append(list(unique.values()))
    return out


def end_of_scale(model: Model, square: ImageLike) -> float:
    """The weight that has the full colour, the same for all images of a model."""
    grid = model.method.grid
    if isinstance(model.method, SelectsPatches) and grid is not None:
        return min(1.0, TIMES / (grid[0] * grid[1]))
    return min(1.0, TIMES / model.encode(images=[square]).tokens.shape[1])


def attention_maps(
    model: Model,
    image: ImageLike,
    texts: Sequence[str],
    area: Box,
    size: tuple[int, int],
) -> list[list[tuple[Part, np.ndarray]]]:
    """The attention of the parts of each text in an image: each with its weights over the pixels, [H, W]

    area, size  what is read of the image, and its width and height, as in `methods.heat.over_image`
    """
    method, images = model.method, model.encode(images=[image])
    same = rows(images, torch.zeros(len(texts), dtype=torch.int64, device=model.device))

    def on_image(part: Part) -> np.ndarray:
        return over_image(method, images, part.weight[:-1].to(model.device), area, size)

    parts_of_texts = attention_of(method, same, model.encode(texts=texts), texts)
    return [[(part, on_image(part)) for part in parts] for parts in parts_of_texts]
