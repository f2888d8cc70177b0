"""Captions changed on purpose: cut to their first sentences, or with a sentence of noise put in.

Cumulative subtexts of a caption: its first sentences, then more of them, at last all of it.

An image should fit each of them better than the one before, because each says more that is true of it
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
from grainline.data.formats.common import digest
from grainline.data.texts import TokenizedParts
from grainline.types import Encoded

HALVES, THIRDS, EACH = "HiMo@2", "HiMo@3", "HiMo@K"
PARTS = {HALVES: 2, THIRDS: 3}


class Subtexts(NamedTuple):
    """The subtexts of N images, encoded."""

    strings: tuple[str, ...]  # [T] each once
    cut: tuple[bool, ...]  # [T] longer than the model reads
    row: Tensor  # [T] int64, row of `texts`; strings that the model reads alike share one, so they tie
    texts: Encoded  # [U] `image` is -1
    of: dict[str, tuple[tuple[int, ...], ...]]  # sequence -> for each image the places in `strings`


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
    """Subtexts of one image after the other, each queued for encoding once.

    read  what the model reads of texts
    add   queues a text for encoding; its row
    """

    def __init__(self, read: Callable[[Sequence[str]], TokenizedParts], add: Callable[[str], int]) -> None:
        self._read, self._add = read, add
        self._place: dict[str, int] = {}
        self._cut: list[bool] = []
        self._row: list[int] = []
        self._row_of: dict[tuple[tuple[int, ...], ...], int] = {}  # by what the model reads
        self._of: dict[str, list[tuple[int, ...]]] = {}
        self.spared = 0  # texts that are cut and need no encoding, because another one reads alike

    def add(self, told: Mapping[str, Sequence[str]]) -> None:
        """The sequences of the next image."""
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
        for text, ids, cut in zip(texts, found.ids, found.truncated, strict=True):
            read = tuple(map(tuple, ids))
            if read not in self._row_of:
                self._row_of[read] = self._add(text)
            else:
                self.spared += cut
            self._place[text] = len(self._place)
            self._row.append(self._row_of[read])
            self._cut.append(cut)


# Sentences that have nothing to do with any image, and where they are put into a text.
#
# Everything that is drawn depends on the seed, the key of the image and the subtext alone: not on the order
# of the images, nor on what else is measured.


PLAIN, NOISY = "without noise", "with noise"
START, MIDDLE, END = "at the start", "in the middle", "at the end"

SENTENCES = (
    "The committee postponed its decision until the second half of the year.",
    "Interest on the loan is calculated at the end of every quarter.",
    "Most verbs in this language take their ending from the subject.",
    "The password has to be changed at least once every six months.",
    "Nobody could remember who had proposed the rule in the first place.",
    "An even number is always the sum of two equal whole numbers.",
    "The contract ends unless one of the parties renews it in writing.",
    "Her answer was polite, but it left the question open.",
    "The second edition corrects several errors in the index.",
    "Inflation fell for the third month in a row.",
    "Please confirm your appointment by the end of the working day.",
    "The theory explains why the method fails on small samples.",
    "His pension will be reviewed when the new law takes effect.",
    "A refund can only be granted within thirty days of purchase.",
    "The translation keeps the rhythm of the original and loses its rhyme.",
    "Members vote on the budget by secret ballot every other year.",
    "The proof uses induction on the number of steps.",
    "She learned to play chess from an old manual.",
    "The deadline for applications was extended by ten days.",
    "Silence is often taken for agreement, which is a mistake.",
    "The server restarts by itself after each update.",
    "Their friendship began with a misunderstanding about the rent.",
    "The melody returns in a minor key before the end.",
    "Insurance does not cover damage that was caused on purpose.",
    "The price includes tax but not the cost of delivery.",
    "He promised to call back and then forgot about it.",
    "The survey was repeated because too few people had replied.",
    "Knowledge of a second language is an advantage for this position.",
    "The meeting started late and ended without a result.",
    "The court dismissed the appeal for lack of evidence.",
    "Every function must return a value or raise an error.",
    "The average hides large differences between the groups.",
    "Her grandfather disliked speeches of any kind.",
    "The warranty expires after two years of normal use.",
    "It took them a week to agree on the wording of the report.",
    "The word came into English through French in the twelfth century.",
    "Nothing in the minutes suggests that the vote was close.",
    "The recipe doubles well, although it needs more time.",
    "Unpaid invoices are passed on to a collection agency.",
    "The hypothesis was rejected at the usual level of significance.",
)
"""Written for this purpose: about what no image shows, so that no caption can profit from one."""


class Drawn(NamedTuple):
    """The subtexts of an image with its sentence of noise in each."""

    sentence: int  # which of SENTENCES
    at: tuple[int, ...]  # for each subtext the number of its sentences before the noise
    of: tuple[int, ...]  # for each subtext the number of its sentences
    texts: tuple[str, ...]


class Noise(NamedTuple):
    """The subtexts of N images without and with noise, encoded."""

    seed: int
    told: Subtexts  # sequences PLAIN and NOISY
    drawn: tuple[Drawn, ...]  # [N]


def drawn(seed: int, key: str, texts: Sequence[str]) -> Drawn:
    """One sentence for an image, and for each of its subtexts a place: any with equal chance.

    key  of the image
    """
    sentence = number_of([seed, "sentence", key]) % len(SENTENCES)
    pieces = [[piece.text for piece in sentences(text)] for text in texts]
    of = [len(one) for one in pieces]
    at = [number_of([seed, "place", key, text]) % (n + 1) for text, n in zip(texts, of, strict=True)]
    noisy = [inserted(one, SENTENCES[sentence], k) for one, k in zip(pieces, at, strict=True)]
    return Drawn(sentence, tuple(at), tuple(of), tuple(noisy))


def inserted(pieces: Sequence[str], noise: str, at: int) -> str:
    """Sentences as one text, with the noise after the first `at` of them.

    What stands before the noise gets a full stop if it lacks one, or the two would be one sentence.

    >>> inserted(["A dog runs.", "It is wet"], "Tax is due.", 1)
    'A dog runs. Tax is due. It is wet'
    >>> inserted(["A dog runs.", "It is wet"], "Tax is due.", 2)
    'A dog runs. It is wet. Tax is due.'
    """
    before = " ".join(pieces[:at])
    if before and sentences(f"{before} {noise}")[-1].text != noise:
        before += "."
    return " ".join(filter(None, [before, noise, *pieces[at:]]))


def place(at: int, of: int) -> str:
    """Where noise stands that has `at` of the `of` sentences of a text before it.

    >>> [place(at, 2) for at in range(3)]
    ['at the start', 'in the middle', 'at the end']
    """
    return START if at == 0 else END if at == of else MIDDLE


def pool() -> str:
    """A short digest of the sentences: results with others cannot be compared."""
    return digest(SENTENCES)[:8]


def number_of(parts: Sequence[str | int]) -> int:
    """A whole number below 2 ** 256 that looks random, and is the same wherever the parts are the same."""
    return int(digest(parts), 16)
