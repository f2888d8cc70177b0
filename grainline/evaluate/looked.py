"""The weight of the empty slot for texts of a picture and for texts of others, picture by picture.

It is taken as soon as a picture is encoded, so that the tokens of one batch are held at a time.
"""

from collections.abc import Callable, Sequence
from random import Random
from typing import NamedTuple

import torch

from grainline.evaluate.attention import Part, Read, looks
from grainline.methods.base import Method
from grainline.types import Encoded, rows

SEED = 0  # of the order of texts: results that are compared or pooled must ask the same

Split = Callable[[str], list[str]]  # a text to its parts


class Looked(NamedTuple):
    """A picture, asked for its own text and for another one."""

    own: tuple[tuple[str, float], ...]  # its parts, each with the weight of the empty slot
    other: tuple[tuple[str, float], ...]
    foreign: str  # the whole of the other text


def partners(texts: Sequence[str], split: Split) -> dict[str, str]:
    """For each distinct text another one that has a part of its own: the next in an order fixed by SEED.

    A text without such another one is left out.

    >>> sorted(partners(["A dog.", "A cat.", "A dog."], lambda text: [text]).items())
    [('A cat.', 'A dog.'), ('A dog.', 'A cat.')]
    """
    order = sorted(set(texts))
    Random(SEED).shuffle(order)
    out = {}
    for i, text in enumerate(order):
        mine = set(map(_key, split(text)))
        behind = (order[(i + k) % len(order)] for k in range(1, len(order)))
        other = next((one for one in behind if not mine.issuperset(map(_key, split(one)))), None)
        if other is not None:
            out[text] = other
    return out


class Inactive:
    """The weights of one picture after the other, taken while its tokens are there.

    read   encodes the texts of pictures
    again  encodes them as texts of other pictures, where nothing is counted
    other  text -> the text of another picture
    """

    def __init__(self, method: Method, read: Read, again: Read, other: dict[str, str]) -> None:
        self._method, self._read, self._again, self._other = method, read, again, other
        self._found: list[Looked | None] = []

    def add(self, images: Encoded, texts: Sequence[str]) -> None:
        """The next pictures, with tokens, and the text of each."""
        own = looks(self._method, images, self._read(texts), texts)
        there = [i for i, text in enumerate(texts) if text in self._other]
        strings = [self._other[texts[i]] for i in there]
        other: dict[int, list[Part]] = {}
        if there:
            asked = rows(images, torch.tensor(there, device=images.vector.device))
            other = dict(zip(there, looks(self._method, asked, self._again(strings), strings), strict=True))
        self._found += [
            _looked(mine, other[i], self._other[texts[i]]) if i in other else None
            for i, mine in enumerate(own)
        ]

    def found(self) -> tuple[Looked | None, ...]:
        """That of every picture; None where no other text has a part of its own."""
        return tuple(self._found)


def _looked(own: Sequence[Part], other: Sequence[Part], foreign: str) -> Looked:
    """A part that both texts have is no foreign one."""
    known = {_key(part.words) for part in own}
    return Looked(
        tuple((part.words, part.empty) for part in own),
        tuple((part.words, part.empty) for part in other if _key(part.words) not in known),
        foreign,
    )


def _key(words: str) -> str:
    """What two parts have alike that say the same: only the last of a text may keep its period."""
    return words.rstrip(" .")
