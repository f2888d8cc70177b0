"""Where the parts of texts look in a picture: at image tokens, or at an empty slot beside them.

A part of a text spreads a weight of 1 over both. What has nothing to do with a picture should look at the
empty slot.
"""

from collections.abc import Callable, Sequence
from random import Random
from typing import NamedTuple

import torch
from torch import Tensor

from grainline.data.chunks import balanced_chunks
from grainline.errors import UserError
from grainline.methods.base import Attending, Method
from grainline.types import Encoded, rows

Read = Callable[[Sequence[str]], Encoded]  # texts to rows


class Part(NamedTuple):
    """A part of a text, in a picture."""

    words: str
    weight: Tensor  # [L + 1] float32 on the CPU, sums to 1; the last is the empty slot

    @property
    def empty(self) -> float:
        return float(self.weight[-1])


def attending(method: object, name: str, what: str) -> Attending:
    """The method, once it is known to look at image tokens. Raises UserError where it does not.

    name, what  what to call the method, and what asks, in the error
    """
    if not isinstance(method, Attending):
        raise UserError(
            f"texts of {name} look at no image tokens, with an empty slot beside them; {what} is for methods "
            "whose texts do, caft and flair"
        )
    return method


def parts_of(method: Method, text: str, number: int) -> list[str]:
    """The words of the parts of a text that `attend` tells of.

    number  of parts that it tells of: 1 is the whole text, however it was read
    """
    if number == 1 or method.chunking is None:
        return [text]
    return balanced_chunks(text, number, method.chunking)


def looks(method: Method, images: Encoded, texts: Encoded, strings: Sequence[str]) -> list[list[Part]]:
    """Where text i looks in image i, part by part. A part that a short text repeats comes once.

    images   [N] with tokens; texts [N]
    strings  [N] these texts
    """
    assert isinstance(method, Attending), "ask `attending` first"
    with torch.no_grad():
        weight = method.attend(images, texts).cpu()  # [N, S, L + 1]
    out = []
    for one, real, text in zip(weight, texts.mask.cpu(), strings, strict=True):
        found: dict[str, Part] = {}
        for words, mine, there in zip(parts_of(method, text, len(one)), one, real, strict=True):
            if there:
                found.setdefault(words, Part(words, mine))
        out.append(list(found.values()))
    return out


# The weight of the empty slot for texts of a picture and for texts of others, picture by picture.
#
# It is taken as soon as a picture is encoded, so that the tokens of one batch are held at a time.


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
