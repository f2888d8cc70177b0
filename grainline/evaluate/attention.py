"""Where the parts of texts look in a picture: at image tokens, or at an empty slot beside them.

A part of a text spreads a weight of 1 over both. What has nothing to do with a picture should look at the
empty slot.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from grainline.data.chunks import balanced_chunks
from grainline.errors import UserError
from grainline.methods.base import Attending, Method
from grainline.types import Encoded

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
