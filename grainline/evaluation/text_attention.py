"""Attention of the parts of a text over image tokens and an empty slot.

The weights of a part sum to 1. A part that has nothing to do with an image should attend to the empty slot.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from grainline.data.texts import balanced_chunks
from grainline.errors import UserError
from grainline.methods.base import HasAttention, Method
from grainline.methods.patch_selection.types import SelectsPatches
from grainline.model import ImageLike, Model, on_pixels
from grainline.types import Encoded, rows

TIMES = 8  # end of the scale of maps, as a multiple of the weight of each token if all had the same


class Part(NamedTuple):
    """A part of a text, in an image."""

    words: str
    weight: Tensor  # [L + 1] float32 on the CPU, sums to 1; the last is the empty slot

    @property
    def empty(self) -> float:
        return float(self.weight[-1])


def require_attention(method: object, name: str, what: str) -> HasAttention:
    """The method, if its texts attend to image tokens; else UserError with its name and what needs it."""
    if not isinstance(method, HasAttention):
        raise UserError(
            f"texts of {name} look at no image tokens, with an empty slot beside them; {what} is for methods "
            "whose texts do, caft and flair"
        )
    return method


def parts_of(method: Method, text: str, number: int) -> list[str]:
    """The words of the parts of a text, as `HasAttention.attention` has them.

    number  of parts that have weights: 1 is the whole text, however it was read
    """
    if number == 1 or method.chunking is None:
        return [text]
    return balanced_chunks(text, number, method.chunking)


def attention_of(method: Method, images: Encoded, texts: Encoded, strings: Sequence[str]) -> list[list[Part]]:
    """Where text i attends in image i, part by part. A part that a short text repeats comes once.

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
    model: Model, square: ImageLike, texts: Sequence[str]
) -> list[list[tuple[Part, np.ndarray]]]:
    """Where the parts of each text attend in a square: each with its weights over the pixels, [S, S]"""
    method, size = model.method, (model.method.size, model.method.size)
    images = model.encode(images=[square])
    same = rows(images, torch.zeros(len(texts), dtype=torch.int64, device=model.device))
    out = []
    for parts in attention_of(method, same, model.encode(texts=texts), texts):
        heat = [on_pixels(method, images, part.weight[None, :-1].to(model.device), size)[0] for part in parts]
        out.append([(part, one.cpu().numpy()) for part, one in zip(parts, heat, strict=True)])
    return out
