"""Items of two pictures and two captions: does each caption find its picture?

A tie is wrong. The reverse question, whether each picture finds its caption, is another metric.
"""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from grainline.evaluate.probes import Choices
from grainline.evaluate.retrieval import refuse_nan
from grainline.evaluate.score import Scorer, pair_scores
from grainline.types import Encoded, rows


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
