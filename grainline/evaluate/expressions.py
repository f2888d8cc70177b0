"""How well the heat of expressions covers what they speak of.

Every region with a mask is asked for (judging.py). The heat of its phrase is spread over the pixels of the
picture and becomes a mask by Otsu's threshold: what is kept of it is two numbers.
"""

from typing import NamedTuple

import numpy as np
import torch

from grainline.data.causes import DAMAGED_REGION
from grainline.data.record import Damaged, Record
from grainline.errors import UserError
from grainline.evaluate.judging import Asked, Encode, Judging, Read, Waiting
from grainline.evaluate.marks import centred, marked, overlap
from grainline.evaluate.retrieval import refuse_nan
from grainline.methods.base import Method
from grainline.types import Encoded

HEAT, WHOLE, BOX = "heat", "whole picture", "centred box"
MARKED_BY = (HEAT, WHOLE, BOX)
NEEDED = "expressions are measured with masks, as in RefCOCO's files, in `scenes` or own data (docs/data.md)"


class Pixels(NamedTuple):
    """Of one mask against the right one."""

    intersection: int
    union: int


class Expression(NamedTuple):
    """An expression and how far masks agree with the right one."""

    picture: int  # row among the pictures that were encoded
    region: int  # of that record
    text: str
    overlap: dict[str, Pixels]  # what marked -> its pixels


class Expressions(NamedTuple):
    """E expressions about N pictures, judged."""

    found: tuple[Expression, ...]
    same: tuple[int, ...]  # [N] the first picture that is the same, byte by byte
    maskless: int  # regions without a mask: skipped
    empty: int  # regions whose mask has no pixel: skipped
    flat: int  # maps that are the same everywhere, so that they mark nothing


class Covering(Judging):
    """Expressions with masks, one picture after the other."""

    def __init__(self, method: Method, encode: Encode, read: Read, batch: int) -> None:
        super().__init__(method, encode, read, batch)
        self._done: list[Expression] = []
        self._maskless = self._empty = self._flat = 0

    def ask(self, record: Record, size: tuple[int, int], index: int) -> Waiting:  # noqa: ARG002
        """Raises Damaged for a mask of another size."""
        for region in record.regions:
            if region.mask is not None and region.mask.shape != size:
                down, across = region.mask.shape
                told = f"{size[1]} x {size[0]} pixels, a mask has {across} x {down}"
                raise Damaged(DAMAGED_REGION, f"{record.key} ({told})")
        asked = []
        for i, region in enumerate(record.regions):
            if region.mask is None:
                self._maskless += 1
            elif not region.mask.any():
                self._empty += 1
            else:
                asked.append(Asked(i, region.phrase, region.mask))
        return Waiting(size, asked, None)

    def answer(self, images: Encoded, texts: Encoded, of: Waiting, picture: int) -> None:
        """By Otsu's threshold of the heat, and by two masks that know nothing."""
        with torch.no_grad():
            heat = self.method.on_pixels(images, self.method.heat(images, texts), of.size)
        refuse_nan(int(heat.isnan().any(2).any(1).sum()), len(heat))
        self._flat += int((heat.amax((1, 2)) == heat.amin((1, 2))).sum())
        true = torch.from_numpy(np.stack([one.meant for one in of.asked])).to(heat.device)
        box = torch.from_numpy(centred(*of.size)).to(heat.device)
        masks = {HEAT: marked(heat), WHOLE: torch.ones_like(true), BOX: box.expand_as(true)}
        counted = {name: [x.tolist() for x in overlap(mask, true)] for name, mask in masks.items()}
        for k, one in enumerate(of.asked):
            pixels = {name: Pixels(both[k], either[k]) for name, (both, either) in counted.items()}
            self._done.append(Expression(picture, one.region, one.text, pixels))

    def found(self, path: str) -> Expressions:
        """All of them. Raises UserError where there is none."""
        if not self._done:
            raise UserError(f"no region of {path} has a mask; {NEEDED}")
        return Expressions(tuple(self._done), tuple(self.same), self._maskless, self._empty, self._flat)
