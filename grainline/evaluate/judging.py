"""Expressions that speak of one thing in a picture, judged as soon as the picture is encoded.

An expression is the phrase of a region. What is asked of it, a mask or a choice among boxes, and what is kept
of the answer, say the subclasses: `expressions.py` and `choices.py`. Of a picture, numbers alone are kept.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from hashlib import sha256
from typing import Any, NamedTuple

import torch

from grainline.data.parts import Parted
from grainline.data.record import Record, content_of
from grainline.errors import UserError
from grainline.methods.base import Method
from grainline.types import Encoded, rows

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
