"""Right pairs against wrong ones: probes of one image or text, and items of two images and two captions.

Probes: does a right pair of picture and text score higher than a wrong one that shares one of the two?

Where the text is another one, that is a foil: a caption that is wrong in one thing. Where the picture is, the
text is true of the first and false of the second. A tie is wrong and counted: it shows, for instance, two
texts that became one when they were cut.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from grainline.data.benchmarks.contests import origins
from grainline.data.record import Foil, Source
from grainline.errors import UserError
from grainline.evaluation.collectors.collecting import Rows, numbered
from grainline.evaluation.ranks import refuse_nan
from grainline.evaluation.score import Scorer, pair_scores
from grainline.types import Encoded, rows


class Probes(NamedTuple):
    """P comparisons of a right pair of picture and text, which stands first, with a wrong one."""

    pictures: Tensor  # [P, 2] int64, rows of the encoded images; twice the same where the texts differ
    told: Tensor  # [P, 2] int64, rows of `texts`; twice the same where the pictures differ
    texts: Encoded  # [T] `image` is -1, they are no gallery
    kind: tuple[str, ...]  # [P] what is wrong with the wrong pair
    benchmark: tuple[str, ...]  # [P] which set the comparison is of
    strings: tuple[str, ...]  # [T] the texts as they were given to the model
    left_out: int = 0  # comparisons that lack a picture which cannot be used


class Choices(NamedTuple):
    """The outcome of every comparison."""

    right: Tensor  # [P] bool, the right pair scores higher
    tied: Tensor  # [P] bool, both score the same; never right


def choices(right: Tensor, wrong: Tensor) -> Choices:
    """Outcomes from the scores of the right pairs [P] and of the wrong ones [P].

    Raises UserError with their number if scores are NaN.

    >>> choices(torch.tensor([0.4, -0.2, 0.3]), torch.tensor([0.1, -0.1, 0.3]))
    Choices(right=tensor([ True, False, False]), tied=tensor([False, False,  True]))
    """
    refuse_nan(int(right.isnan().sum() + wrong.isnan().sum()), right.numel() + wrong.numel())
    return Choices(right > wrong, right == wrong)


def probe_choices(method: Scorer, images: Encoded, probes: Probes) -> Choices:
    """Score every right pair and every wrong one, and compare."""
    right, wrong = probe_scores(method, images, probes)
    return choices(right, wrong)


def probe_scores(method: Scorer, images: Encoded, probes: Probes) -> Tensor:
    """Scores of the right pairs and of the wrong ones: [2, P]"""
    pairs = torch.stack([probes.pictures.T.reshape(-1), probes.told.T.reshape(-1)])  # [2, 2P]
    # Comparisons that share a pair, as foils of one caption do, score it once.
    asked, back = torch.unique(pairs, dim=1, return_inverse=True)
    return pair_scores(method, images, rows(probes.texts, asked[1]), asked[0])[back].view(2, -1)


class Probing:
    """Collects the comparisons of a source while its pictures are encoded, and has their texts encoded."""

    def __init__(self, source: Source, texts: Rows) -> None:
        self._origins = origins(source)
        self._texts = texts
        self._strings: list[str] = []
        self._pairs: list[tuple[int, int, int, int]] = []  # picture, other picture, text, other text
        self._kind: list[str] = []
        self._benchmark: list[str] = []

    def add(self, foils: Sequence[Foil], index: int, row: int) -> None:
        """The foils of a picture.

        index  its place in the source; row  among the encoded pictures
        """
        seen: dict[str, int] = {}
        name = next(one.benchmark for one in reversed(self._origins) if one.start <= index)
        for foil in foils:
            true, false = (self._row(text, seen) for text in (foil.true, foil.text))
            self._append((row, row, true, false), foil.kind, name)

    def found(self, positions: Sequence[int], path: str) -> Probes:
        """All comparisons, once all pictures are in.

        positions  place in the source of each encoded picture

        Raises UserError where there is none.
        """
        row_of = {place: row for row, place in enumerate(positions)}
        seen: dict[str, int] = {}
        lost = 0
        for name, one in ((origin.benchmark, one) for origin in self._origins for one in origin.contests):
            if one.right in row_of and one.wrong in row_of:
                text = self._row(one.text, seen)
                self._append((row_of[one.right], row_of[one.wrong], text, text), one.kind, name)
            else:
                lost += 1
        if not self._pairs:
            raise UserError(
                f"no probes in {path}; this suite needs samples with foils, as in `scenes`, or a benchmark of"
                " pairs"
            )
        pairs = torch.tensor(self._pairs)
        texts = numbered(self._texts.stacked(), [-1] * self._texts.number)
        told = tuple(self._kind), tuple(self._benchmark), tuple(self._strings)
        return Probes(pairs[:, :2], pairs[:, 2:], texts, *told, lost)

    def _row(self, text: str, seen: dict[str, int]) -> int:
        if text not in seen:
            seen[text] = self._texts.add(text)
            self._strings.append(text)
        return seen[text]

    def _append(self, pair: tuple[int, int, int, int], kind: str, benchmark: str) -> None:
        self._pairs.append(pair)
        self._kind.append(kind)
        self._benchmark.append(benchmark)


# Items of two pictures and two captions: does each caption find its picture?
#
# A tie is wrong. The reverse question, whether each picture finds its caption, is another metric.


class Items(NamedTuple):
    """P items whose pictures are both there."""

    number: tuple[int, ...]  # [P] place in the file, 0 .. all - 1
    pictures: Tensor  # [P, 2] int64, rows of the encoded pictures
    texts: Tensor  # [P, 2] int64, rows of the encoded texts: caption i describes picture i
    all: int  # items in the file


def item_scores(method: Scorer, images: Encoded, texts: Encoded, items: Items) -> Tensor:
    """Scores of both pictures of every item with both of its captions: [P, picture 2, caption 2]."""
    picture = items.pictures[:, :, None].expand(-1, 2, 2).reshape(-1)  # [4P]
    text = items.texts[:, None, :].expand(-1, 2, 2).reshape(-1)  # [4P]
    return pair_scores(method, images, rows(texts, text), picture).view(-1, 2, 2)


def matched(score: Tensor) -> Choices:
    """Outcome of every item from its scores [P, picture 2, caption 2]: both captions prefer their picture.

    Tied are those that a tie alone made wrong. Raises UserError with their number if scores are NaN.

    >>> score = [[[0.3, 0.2], [0.25, 0.4]], [[0.3, 0.5], [0.25, 0.4]], [[0.3, 0.2], [0.3, 0.4]]]
    >>> matched(torch.tensor(score))
    Choices(right=tensor([ True, False, False]), tied=tensor([False, False,  True]))
    """
    refuse_nan(int(score.isnan().sum()), score.numel())
    margin = margins(score)
    return Choices(margin > 0, margin == 0)


def margins(score: Tensor) -> Tensor:
    """By how much the caption that is surer of the wrong picture prefers its own: [P], right above zero."""
    first, second = score[:, 0, 0] - score[:, 1, 0], score[:, 1, 1] - score[:, 0, 1]
    return torch.minimum(first, second)


def apart(pictures: np.ndarray) -> np.ndarray:
    """Groups of items [P] such that no two groups share a picture.

    pictures  [P, 2] number of each picture

    >>> apart(np.array([[0, 1], [2, 3], [4, 1], [4, 5]])).tolist()
    [0, 2, 0, 0]
    """
    label = np.arange(pictures.max() + 1)  # of each picture: the lowest that it is linked with
    while True:
        lowest = label.copy()
        np.minimum.at(lowest, pictures, label[pictures].min(1, keepdims=True))
        if np.array_equal(lowest, label):
            return label[pictures[:, 0]]
        label = lowest
