"""Cumulative subtexts of a caption: its first sentences, then more of them, at last all of it.

An image should fit each of them better than the one before, because each says more that is true of it
(HiMo-CLIP, arXiv 2511.06653). Three sequences are taken of a caption of n sentences:

    HiMo@2  two subtexts: the first half of the sentences, and all
    HiMo@3  three subtexts: a third, two thirds, and all
    HiMo@K  one sentence more each time; or the subtexts that the source has of its own
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch

from grainline.data.captions import sentences
from grainline.data.texts import TokenizedParts
from grainline.evaluation.encode import Collector, Encodings, Rows, Sample, text_rows
from grainline.evaluation.ranks import refuse_nan
from grainline.evaluation.score import Scorer, pair_scores
from grainline.model import Model
from grainline.types import Encoded, rows

HALVES, THIRDS, EACH = "HiMo@2", "HiMo@3", "HiMo@K"
PARTS = {HALVES: 2, THIRDS: 3}

IMAGES = 256  # scored at a time


class Subtexts(NamedTuple):
    """The subtexts of N images, encoded."""

    strings: tuple[str, ...]  # [T] each once
    cut: tuple[bool, ...]  # [T] longer than the model reads
    row: torch.Tensor  # [T] int64, row of `texts`; strings that the model reads alike share one, so they tie
    texts: Encoded  # [U] `image` is -1
    of: dict[str, tuple[tuple[int, ...], ...]]  # sequence -> for each image the places in `strings`


def boundaries(n: int, parts: int) -> list[int]:
    """How many of n sentences the subtexts hold: floor(k * n / parts) for k = 1 .. parts.

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
    pieces = sentences(caption)
    number = len(pieces) if parts is None else parts
    if not pieces or len(pieces) < number:
        return ()
    return tuple(" ".join(caption[: pieces[end - 1].end].split()) for end in boundaries(len(pieces), number))


def sequences(caption: str, own: Sequence[str] = ()) -> dict[str, tuple[str, ...]]:
    """The three sequences of a caption.

    own  subtexts that the source has of its own, for HiMo@K; none: sentence by sentence
    """
    prefixes = {name: cumulative(caption, parts) for name, parts in PARTS.items()}
    return prefixes | {EACH: tuple(own) or cumulative(caption)}


class SubtextQueue:
    """Collects the subtexts of each image in turn; of texts that the model reads alike, `rows` gets one."""

    def __init__(self, model: Model, rows: Rows) -> None:
        self.rows = rows
        self._model = model
        self._place: dict[str, int] = {}
        self._cut: list[bool] = []
        self._row: list[int] = []
        self._row_of: dict[tuple[tuple[int, ...], ...], int] = {}  # by the tokens that are read
        self._of: dict[str, list[tuple[int, ...]]] = {}

    def add(self, sequences: Mapping[str, Sequence[str]]) -> None:
        """The sequences of the next image."""
        for name, texts in sequences.items():
            self._of.setdefault(name, []).append(self.places(texts))

    def places(self, texts: Sequence[str]) -> tuple[int, ...]:
        """The places of texts in `Subtexts.strings`; new ones are queued."""
        new = [text for text in dict.fromkeys(texts) if text not in self._place]
        tokens = self._model.read(new) if new else TokenizedParts([], [])
        for text, ids, cut in zip(new, tokens.ids, tokens.truncated, strict=True):
            read = tuple(map(tuple, ids))
            if read not in self._row_of:
                self._row_of[read] = self.rows.add(text)
            self._place[text] = len(self._place)
            self._row.append(self._row_of[read])
            self._cut.append(cut)
        return tuple(self._place[text] for text in texts)

    @property
    def number_cut(self) -> int:
        """How many of the texts were cut, encoded or not."""
        return sum(self._cut)

    def encoded(self) -> Subtexts:
        """All of them."""
        of = {name: tuple(places) for name, places in self._of.items()}
        row, texts = torch.tensor(self._row), self.rows.of_no_image()
        return Subtexts(tuple(self._place), tuple(self._cut), row, texts, of)


class SubtextCollector(Collector):
    """Encodes the cumulative subtexts of the first text of each image, each distinct one once."""

    def __init__(self, model: Model, batch: int) -> None:
        self._queue = SubtextQueue(model, text_rows(model, batch))

    def add(self, sample: Sample) -> None:
        self._queue.add(sequences(sample.texts[0], sample.record.subtexts))

    def result(self, data: Encodings) -> Any:
        self.truncated = self._queue.number_cut
        return self._queue.encoded()


def sequence_scores(method: Scorer, images: Encoded, subtexts: Subtexts) -> dict[str, dict[str, list[Any]]]:
    """Every sequence of each image: the number of its subtexts, their scores, and which were cut.

    Scores are the shortest decimals that are these float32 numbers: equal stays equal, and files are half as
    long. Raises UserError for NaN scores.
    """
    row = subtexts.row.tolist()
    score: dict[tuple[int, int], float] = {}  # image and row
    for start in range(0, len(images.vector), IMAGES):
        block = range(start, min(start + IMAGES, len(images.vector)))
        pairs = list(dict.fromkeys((i, row[t]) for of in subtexts.of.values() for i in block for t in of[i]))
        if pairs:
            image, text = torch.tensor(pairs).T
            block_images = rows(images, slice(start, start + IMAGES))
            scores = pair_scores(method, block_images, rows(subtexts.texts, text), image - start)
            refuse_nan(int(scores.isnan().sum()), len(scores))
            score |= zip(pairs, (float(str(one)) for one in scores.cpu().numpy()), strict=True)
    return {
        name: {
            "subtexts": [len(places) for places in of],
            "scores": [[score[i, row[t]] for t in places] for i, places in enumerate(of)],
            "cut": [[int(subtexts.cut[t]) for t in places] for places in of],
        }
        for name, of in subtexts.of.items()
    }
