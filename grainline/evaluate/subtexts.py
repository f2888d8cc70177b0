"""Cumulative subtexts of a caption: its first sentences, then more of them, at last all of it.

A picture should fit each of them better than the one before, because each says more that is true of it
(HiMo-CLIP, arXiv 2511.06653). Three sequences are taken of a caption of n sentences:

    HiMo@2  two subtexts: the first half of the sentences, and all
    HiMo@3  three subtexts: a third, two thirds, and all
    HiMo@K  one sentence more each time; or the subtexts that the source has of its own
"""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from grainline.data.captions import sentences
from grainline.data.parts import Parted
from grainline.types import Encoded

HALVES, THIRDS, EACH = "HiMo@2", "HiMo@3", "HiMo@K"
PARTS = {HALVES: 2, THIRDS: 3}


class Subtexts(NamedTuple):
    """The subtexts of N pictures, encoded."""

    strings: tuple[str, ...]  # [T] each once
    cut: tuple[bool, ...]  # [T] longer than the model reads
    row: Tensor  # [T] int64, row of `texts`; strings that the model reads alike share one, so they tie
    texts: Encoded  # [U] `image` is -1
    of: dict[str, tuple[tuple[int, ...], ...]]  # sequence -> for each picture the places in `strings`


def boundaries(n: int, parts: int) -> list[int]:
    """How many of n sentences the subtexts hold: floor(k * n / parts) for k = 1 .. parts.

    The parts are about equal, and what is left over goes to the later ones.

    >>> boundaries(5, 3), boundaries(6, 2), boundaries(8, 3)
    ([1, 3, 5], [3, 6], [2, 5, 8])
    """
    assert n >= parts >= 1, (n, parts)
    return [k * n // parts for k in range(1, parts + 1)]


def cumulative(caption: str, parts: int | None = None) -> tuple[str, ...]:
    """The subtexts of a caption, shortest first; none where it has fewer sentences than parts.

    parts  None: as many as there are sentences

    Every subtext is the beginning of the caption with each run of blanks as one, and the last one all of it.

    >>> cumulative("A dog runs.  It is wet. The sea\\nis grey.", 2)
    ('A dog runs.', 'A dog runs. It is wet. The sea is grey.')
    >>> cumulative("A dog runs. It is wet.")
    ('A dog runs.', 'A dog runs. It is wet.')
    >>> cumulative("A dog runs.", 2)
    ()
    """
    found = sentences(caption)
    number = len(found) if parts is None else parts
    if not found or len(found) < number:
        return ()
    return tuple(" ".join(caption[: found[end - 1].end].split()) for end in boundaries(len(found), number))


def sequences(caption: str, own: Sequence[str] = ()) -> dict[str, tuple[str, ...]]:
    """The three sequences of a caption.

    own  subtexts that the source has beside the caption, for HiMo@K; none: sentence by sentence
    """
    found = {name: cumulative(caption, parts) for name, parts in PARTS.items()}
    return found | {EACH: tuple(own) or cumulative(caption)}


class Gathered:
    """Subtexts of one picture after the other, each queued for encoding once.

    read  what the model reads of texts
    add   queues a text for encoding; its row
    """

    def __init__(self, read: Callable[[Sequence[str]], Parted], add: Callable[[str], int]) -> None:
        self._read, self._add = read, add
        self._place: dict[str, int] = {}
        self._cut: list[bool] = []
        self._row: list[int] = []
        self._row_of: dict[tuple[tuple[int, ...], ...], int] = {}  # by what the model reads
        self._of: dict[str, list[tuple[int, ...]]] = {}
        self.spared = 0  # texts that are cut and need no encoding, because another one reads alike

    def add(self, told: Mapping[str, Sequence[str]]) -> None:
        """The sequences of the next picture."""
        every = dict.fromkeys(text for texts in told.values() for text in texts)
        self._queue([text for text in every if text not in self._place])
        for name, texts in told.items():
            self._of.setdefault(name, []).append(tuple(self._place[text] for text in texts))

    def encoded(self, texts: Encoded) -> Subtexts:
        """All of them. `texts` holds the rows that were queued."""
        of = {name: tuple(places) for name, places in self._of.items()}
        return Subtexts(tuple(self._place), tuple(self._cut), torch.tensor(self._row), texts, of)

    def _queue(self, texts: Sequence[str]) -> None:
        if not texts:
            return
        found = self._read(texts)
        for text, ids, cut in zip(texts, found.ids, found.cut, strict=True):
            read = tuple(map(tuple, ids))
            if read not in self._row_of:
                self._row_of[read] = self._add(text)
            else:
                self.spared += cut
            self._place[text] = len(self._place)
            self._row.append(self._row_of[read])
            self._cut.append(cut)
