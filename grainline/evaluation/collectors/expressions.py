"""How well the heat of expressions covers what they speak of.

Every region with a mask is asked for (expressions.py). The heat of its phrase is spread over the pixels of
the picture and becomes a mask by Otsu's threshold: what is kept of it is two numbers."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from hashlib import sha256
from typing import Any, NamedTuple

import numpy as np
import torch

from grainline.data.chunks import Parted
from grainline.data.record import DAMAGED_REGION, Damaged, Record, content_of
from grainline.errors import UserError
from grainline.evaluation.collectors.overlaps import centred, marked, overlap
from grainline.evaluation.ranks import refuse_nan
from grainline.methods.base import Method
from grainline.types import Encoded, rows

# Expressions that speak of one thing in a picture, judged as soon as the picture is encoded.
#
# An expression is the phrase of a region. What is asked of it, a mask or a choice among boxes, and what is
# kept of the answer, say the subclasses: `expressions.py` and `choices.py`. Of a picture, numbers alone are
# kept.


PIXELS = 2**22
"""Of maps held at a time, unless a picture alone has more."""

Encode = Callable[[Sequence[str]], Encoded]
Read = Callable[[Sequence[str]], Parted]


class Asked(NamedTuple):
    """An expression."""

    region: int  # of its record
    text: str
    meant: Any  # what it speaks of: a mask, or a box


class Waiting(NamedTuple):
    """What is asked of a picture."""

    size: tuple[int, int]  # height and width
    asked: list[Asked]
    beside: Any  # what all its expressions share, such as the boxes to choose from


class Judging(ABC):
    """The expressions of one picture after the other. Abstract.

    encode  makes rows of texts
    read    what the model reads of them
    batch   pairs of picture and text that are compared at once
    """

    def __init__(self, method: Method, encode: Encode, read: Read, batch: int) -> None:
        self.method, self._encode, self._read, self._batch = method, encode, read, batch
        self.spared = 0  # texts that are cut and were not encoded; below zero where some were encoded again
        self.same: list[int] = []  # for each picture the first that is the same, byte by byte
        self._texts: set[str] = set()
        self._waiting: list[Waiting] = []
        self._first: dict[bytes, int] = {}
        self._encoded = 0

    @abstractmethod
    def ask(self, record: Record, size: tuple[int, int], index: int) -> Waiting:
        """What is asked of a picture. Raises Damaged, having counted nothing."""

    @abstractmethod
    def answer(self, images: Encoded, texts: Encoded, of: Waiting, picture: int) -> None:
        """Judge some expressions about one picture.

        images, texts  rows that belong together, one for each expression
        picture        its row among the pictures that were encoded
        """

    @abstractmethod
    def found(self, path: str) -> Any:
        """All of them. Raises UserError where there is none."""

    def add(self, record: Record, size: tuple[int, int], index: int) -> None:
        """The regions of the next picture.

        size   its width and height as it is decoded
        index  its position in the source

        Raises Damaged, having added nothing.
        """
        self._waiting.append(self.ask(record, (size[1], size[0]), index))
        content = sha256(content_of(record.image)).digest()
        self.same.append(self._first.setdefault(content, len(self.same)))

    def judge(self, images: Encoded) -> None:
        """All expressions about the next pictures that were added. images: N rows with tokens"""
        n = len(images.vector)
        waiting, self._waiting = self._waiting[:n], self._waiting[n:]
        place: dict[str, int] = {}
        for one in waiting:
            for asked in one.asked:
                place.setdefault(asked.text, len(place))
        told = self._told(list(place)) if place else None
        for i, one in enumerate(waiting):
            step = max(1, min(self._batch, PIXELS // (one.size[0] * one.size[1])))
            for start in range(0, len(one.asked), step):
                assert told is not None, "there are texts"
                few = one._replace(asked=one.asked[start : start + step])
                row = torch.tensor([place[asked.text] for asked in few.asked], device=images.vector.device)
                both = rows(images, torch.full_like(row, i)), rows(told, row)
                self.answer(*both, few, self._encoded)
            self._encoded += 1

    def _told(self, texts: list[str]) -> Encoded:
        """Rows of texts; those of earlier batches are not kept, but what is cut of them counts once."""
        known = [text for text in texts if text in self._texts]
        self.spared -= sum(self._read(known).cut) if known else 0
        self._texts.update(texts)
        return self._encode(texts)


def refuse_unplaced(method: Method, name: str) -> None:
    """Raise UserError where image tokens have no places in the picture, so that no map can be made."""
    if not method.placed:
        raise UserError(f"the image tokens of {name} have no places in the picture, so it has no heat there")


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
