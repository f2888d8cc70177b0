"""Expressions that speak of one thing in a picture, and how well their heat covers it.

An expression is the phrase of a region with a mask. Its heat is spread over the pixels of the picture and
becomes a mask by Otsu's threshold as soon as the picture is encoded: what is kept of it is two numbers.
"""

from collections.abc import Callable, Sequence
from hashlib import sha256
from typing import NamedTuple

import numpy as np
import torch

from grainline.data.causes import DAMAGED_REGION
from grainline.data.parts import Parted
from grainline.data.record import Damaged, Record
from grainline.errors import UserError
from grainline.evaluate.marks import centred, marked, overlap
from grainline.evaluate.retrieval import refuse_nan
from grainline.methods.base import Method
from grainline.types import Encoded, rows

PIXELS = 2**22
"""Of maps held at a time, unless a picture alone has more."""

HEAT, WHOLE, BOX = "heat", "whole picture", "centred box"
MARKED_BY = (HEAT, WHOLE, BOX)
NEEDED = "expressions are measured with masks, as in RefCOCO's files, in `scenes` or own data (docs/data.md)"

Encode = Callable[[Sequence[str]], Encoded]
Read = Callable[[Sequence[str]], Parted]


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


class _Waiting(NamedTuple):
    """What is asked of a picture that is not encoded yet."""

    size: tuple[int, int]  # height and width
    asked: list[tuple[int, str, np.ndarray]]  # region, text, mask [H, W] bool


class Covering:
    """The expressions of one picture after the other, judged as soon as the picture is encoded.

    encode  makes rows of texts
    read    what the model reads of them
    batch   pairs of picture and text that are compared at once
    """

    def __init__(self, method: Method, encode: Encode, read: Read, batch: int) -> None:
        self._method, self._encode, self._read, self._batch = method, encode, read, batch
        self.spared = 0  # texts that are cut and were not encoded; below zero where some were encoded again
        self._texts: set[str] = set()
        self._waiting: list[_Waiting] = []
        self._done: list[Expression] = []
        self._same: list[int] = []
        self._first: dict[bytes, int] = {}
        self._encoded = self._maskless = self._empty = self._flat = 0

    def add(self, record: Record, size: tuple[int, int]) -> None:
        """The regions of the next picture.

        size  its width and height as it is decoded

        Raises Damaged, having added nothing, for a mask of another size.
        """
        width, height = size
        for region in record.regions:
            if region.mask is not None and region.mask.shape != (height, width):
                down, across = region.mask.shape
                told = f"{width} x {height} pixels, a mask has {across} x {down}"
                raise Damaged(DAMAGED_REGION, f"{record.key} ({told})")
        asked = []
        for i, region in enumerate(record.regions):
            if region.mask is None:
                self._maskless += 1
            elif not region.mask.any():
                self._empty += 1
            else:
                asked.append((i, region.phrase, region.mask))
        self._waiting.append(_Waiting((height, width), asked))
        image = record.image
        content = image if isinstance(image, bytes) else b"%d %d " % image.size + image.tobytes()
        self._same.append(self._first.setdefault(sha256(content).digest(), len(self._same)))

    def judge(self, images: Encoded) -> None:
        """All expressions about the next pictures that were added. images: N rows with tokens"""
        n = len(images.vector)
        waiting, self._waiting = self._waiting[:n], self._waiting[n:]
        place: dict[str, int] = {}
        for one in waiting:
            for _, text, _ in one.asked:
                place.setdefault(text, len(place))
        told = self._told(list(place)) if place else None
        for i, one in enumerate(waiting):
            step = max(1, min(self._batch, PIXELS // (one.size[0] * one.size[1])))
            for start in range(0, len(one.asked), step):
                assert told is not None, "there are texts"
                few = _Waiting(one.size, one.asked[start : start + step])
                row = torch.tensor([place[text] for _, text, _ in few.asked], device=images.vector.device)
                self._judge(rows(images, torch.full_like(row, i)), rows(told, row), few)
            self._encoded += 1

    def found(self, path: str) -> Expressions:
        """All of them. Raises UserError where there is none."""
        if not self._done:
            raise UserError(f"no region of {path} has a mask; {NEEDED}")
        return Expressions(tuple(self._done), tuple(self._same), self._maskless, self._empty, self._flat)

    def _told(self, texts: list[str]) -> Encoded:
        """Rows of texts; those of earlier batches are not kept, but what is cut of them counts once."""
        known = [text for text in texts if text in self._texts]
        self.spared -= sum(self._read(known).cut) if known else 0
        self._texts.update(texts)
        return self._encode(texts)

    def _judge(self, images: Encoded, texts: Encoded, of: _Waiting) -> None:
        """Some expressions about one picture. images, texts: rows that belong together, one for each"""
        with torch.no_grad():
            heat = self._method.on_pixels(images, self._method.heat(images, texts), of.size)
        refuse_nan(int(heat.isnan().any(2).any(1).sum()), len(heat))
        self._flat += int((heat.amax((1, 2)) == heat.amin((1, 2))).sum())
        true = torch.from_numpy(np.stack([mask for _, _, mask in of.asked])).to(heat.device)
        box = torch.from_numpy(centred(*of.size)).to(heat.device)
        masks = {HEAT: marked(heat), WHOLE: torch.ones_like(true), BOX: box.expand_as(true)}
        counted = {name: [x.tolist() for x in overlap(mask, true)] for name, mask in masks.items()}
        for k, (region, text, _) in enumerate(of.asked):
            pixels = {name: Pixels(both[k], either[k]) for name, (both, either) in counted.items()}
            self._done.append(Expression(self._encoded, region, text, pixels))
