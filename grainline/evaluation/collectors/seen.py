"""Pictures as texts see them, for methods whose image vectors depend on a text.

A picture is pooled by its texts as soon as it is encoded, so that the tokens of one batch are held at a time.
"""

from collections.abc import Callable, Sequence
from random import Random
from sys import maxsize
from typing import NamedTuple

import torch
from torch import Tensor

from grainline.data.phrases.base import Provider
from grainline.data.phrases.providers import Rules
from grainline.data.texts import PhrasesConfig, grains
from grainline.errors import UserError
from grainline.evaluation.collectors.collecting import numbered, stack
from grainline.methods.base import Seeing
from grainline.types import Encoded, Pair, rows, vectors_only

MOST_SENTENCES, MOST_PHRASES = 5, 30
"""Of a caption, as many as beta-CLIP trains with (K = 36), so that values speak of the kinds of texts that a
model learnt from. The first ones, where training draws some: a measurement has to be repeatable.
"""

SENTENCES, PHRASES, ALL_TEXTS = "sentences", "phrases", "all texts"
KINDS = (SENTENCES, PHRASES, ALL_TEXTS)

Read = Callable[[Sequence[str]], Encoded]  # texts to rows


class Alike(NamedTuple):
    """Mean cosine between two of some texts of a picture."""

    features: float  # of the picture as the one and as the other sees it
    texts: float  # of the texts themselves


class Likeness(NamedTuple):
    """How alike a picture looks to its texts."""

    texts: tuple[str, ...]  # K, each once: the caption, its sentences, its phrases
    number: dict[str, int]  # kind -> its texts, each once
    alike: dict[str, Alike]  # of the kinds that have two texts at least
    each: tuple[
        float, ...
    ]  # [K] mean cosine of the picture as this text sees it with all others; () if K < 2


def seeing(method: object, name: str, suite: str) -> Seeing:
    """The method, once it is known to pool pictures by texts. Raises UserError where it does not.

    name, suite  what to call the method, and what asks, in the error
    """
    if not isinstance(method, Seeing):
        raise UserError(
            f"{name} gives no vector of a picture as a text sees it; --suite {suite} measures methods that "
            "do, such as beta_clip"
        )
    return method


class Likenesses:
    """The likeness of one picture after the other.

    read   encodes texts
    batch  texts, and pairs of picture and text, that are held at once
    """

    def __init__(self, method: Seeing, read: Read, batch: int) -> None:
        self._method, self._read, self._batch = method, read, batch
        self._provider = Rules()
        self._found: list[Likeness] = []

    def add(self, images: Encoded, texts: Sequence[str]) -> None:
        """The next pictures, with tokens, and the caption of each."""
        parts = [taken_apart(text, self._provider) for text in texts]
        place = {text: i for i, text in enumerate(dict.fromkeys(x for of in parts for x in of[ALL_TEXTS]))}
        told = self._read_all(list(place))
        picture = torch.tensor([i for i, of in enumerate(parts) for _ in of[ALL_TEXTS]])
        row = torch.tensor([place[text] for of in parts for text in of[ALL_TEXTS]])
        size = [len(of[ALL_TEXTS]) for of in parts]
        seen = self._seen(images, told, picture, row).split(size)
        own = told.vector.cpu()[row].split(size)
        self._found += [_likeness(*one) for one in zip(parts, seen, own, strict=True)]

    def found(self) -> tuple[Likeness, ...]:
        """That of every picture."""
        return tuple(self._found)

    def _read_all(self, texts: Sequence[str]) -> Encoded:
        starts = range(0, len(texts), self._batch)
        return stack([vectors_only(self._read(texts[i : i + self._batch])) for i in starts])

    def _seen(self, images: Encoded, texts: Encoded, picture: Tensor, row: Tensor) -> Tensor:
        """Pictures as texts see them, pair by pair: [P, D]; few at a time, because each brings all tokens"""
        device = images.vector.device
        pairs = zip(picture.to(device).split(self._batch), row.to(device).split(self._batch), strict=True)
        return torch.cat([self._method.see(rows(images, i), rows(texts, j)).cpu() for i, j in pairs])


class Owned:
    """One picture after the other, each as its own text sees it: a gallery that is made from the answers."""

    def __init__(self, method: Seeing, read: Read) -> None:
        self._method, self._read = method, read
        self._images: list[Encoded] = []
        self._texts: list[Encoded] = []

    def add(self, images: Encoded, texts: Sequence[str]) -> None:
        """The next pictures, with tokens, and the text of each."""
        told = vectors_only(self._read(texts))
        self._images.append(vectors_only(images)._replace(vector=self._method.see(images, told)))
        self._texts.append(told)

    def pair(self) -> Pair:
        """All pictures and all texts, vectors alone; picture i and text i belong together."""
        return Pair(numbered(stack(self._images)), numbered(stack(self._texts)))


def taken_apart(caption: str, provider: Provider) -> dict[str, list[str]]:
    """Kind -> its texts, each once, in order; all of them begin with the caption.

    >>> taken_apart("A dog runs. It is wet. A dog barks.", Rules())[ALL_TEXTS]
    ['A dog runs. It is wet. A dog barks.', 'A dog runs.', 'It is wet.', 'A dog barks.', 'A dog']
    """
    cfg = PhrasesConfig(most=MOST_PHRASES)
    found = grains(caption, maxsize, cfg, provider, Random(0), splitter="rules", sampled=False)
    sentences = list(dict.fromkeys(found.sentences))[:MOST_SENTENCES]
    phrases = list(dict.fromkeys(found.phrases))
    every = list(dict.fromkeys([found.caption, *sentences, *phrases]))
    return {SENTENCES: sentences, PHRASES: phrases, ALL_TEXTS: every}


def likeness(vectors: Tensor) -> Tensor:
    """The mean cosine of each row with all others: [K] float64. vectors: [K, D] unit length, K > 1

    >>> likeness(torch.tensor([[1.0, 0.0], [0.6, 0.8], [0.0, 1.0]])).round(decimals=6).tolist()
    [0.3, 0.7, 0.4]
    """
    cosine = vectors.double() @ vectors.double().T
    return (cosine.sum(1) - cosine.diagonal()) / (len(vectors) - 1)


def _likeness(of: dict[str, list[str]], seen: Tensor, told: Tensor) -> Likeness:
    """seen  [K, D] the picture as all its texts see it; told [K, D] these texts"""
    place = {text: i for i, text in enumerate(of[ALL_TEXTS])}
    alike = {}
    for kind, texts in of.items():
        mine = [place[text] for text in texts]
        if len(mine) > 1:
            alike[kind] = Alike(float(likeness(seen[mine]).mean()), float(likeness(told[mine]).mean()))
    each = likeness(seen).tolist() if len(seen) > 1 else []
    return Likeness(tuple(place), {kind: len(texts) for kind, texts in of.items()}, alike, tuple(each))
