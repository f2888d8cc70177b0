"""Ranks from scores, what a random ranking reaches, and which rows a protocol compares.

Two rules hold everywhere:
  1. ties are wrong: a negative that scores exactly as high as the best positive stands before it;
  2. a query with several positives (an image with five captions) is judged by its best one, and its
     other positives are no competitors.
"""

import re
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from grainline.errors import UserError
from grainline.types import Encoded


class Ranks(NamedTuple):
    """The place of the best positive of every query."""

    rank: Tensor  # [Q] int64, 1 = best
    tied: Tensor  # [Q] bool, a negative has exactly the score of the best positive


def ranks(score: Tensor, positive: Tensor) -> Ranks:
    """Rank of the best positive of every query, ties counted as wrong.

    score     [Q, C] any real numbers, negative ones and -inf included
    positive  [Q, C] bool, at least one per row

    Raises UserError with their number if scores are NaN.

    >>> score = torch.tensor([[0.9, 0.2, 0.5], [0.1, 0.7, 0.7], [-0.3, -0.1, -0.2]])
    >>> positive = torch.tensor([[False, True, True], [False, True, False], [False, True, False]])
    >>> ranks(score, positive)
    Ranks(rank=tensor([2, 2, 1]), tied=tensor([False,  True, False]))
    """
    assert score.shape == positive.shape, (score.shape, positive.shape)
    assert bool(positive.any(1).all()), "a query without a positive has no rank"
    refuse_nan(int(score.isnan().sum()), score.numel())
    best = score.masked_fill(~positive, -torch.inf).amax(1, keepdim=True)
    ahead = ((score >= best) & ~positive).sum(1)
    tied = ((score == best) & ~positive).any(1)
    return Ranks(ahead + 1, tied)


def refuse_nan(number: int, total: int) -> None:
    """Raise UserError if any score is NaN: it would compare as neither higher nor lower."""
    if number:
        raise UserError(
            f"{number} of {total} scores are not a number; every score must be one: "
            "look for inf or NaN in the weights of the model"
        )


def chance_recall(positives: Sequence[int] | np.ndarray, candidates: int, k: int) -> float:
    """Expected recall at k of a random ranking: the mean of 1 - C(C - m, k) / C(C, k).

    positives   [Q] number m of positives of every query
    candidates  C, positives included

    >>> chance_recall([1, 1], candidates=64, k=16)
    0.25
    >>> round(chance_recall([5], candidates=1000, k=10), 6)
    0.049106
    """
    m = np.asarray(positives, np.float64)
    assert m.min() >= 1, "a query without a positive has no rank"
    assert m.max() <= candidates, "positives are among the candidates"
    miss = np.ones_like(m)  # no positive among k candidates, as a product that cannot overflow: [Q]
    for step in range(min(k, candidates)):
        miss = miss * np.clip((candidates - m - step) / (candidates - step), 0, 1)
    return float(1 - np.mean(miss))


def chance_median(positives: Sequence[int] | np.ndarray, candidates: int) -> float:
    """Median rank of a random ranking over all queries together.

    positives   [Q] number of positives of every query
    candidates  C, positives included

    >>> chance_median([1, 1], candidates=50)
    25.5
    >>> chance_median([5, 5, 5], candidates=1000)
    130.0
    """
    number, share = np.unique(np.asarray(positives, np.float64), return_counts=True)
    step = np.arange(candidates)[None]
    miss = np.clip((candidates - number[:, None] - step) / (candidates - step), 0, 1)  # [kinds, C]
    reached = 1 - (share / share.sum()) @ np.cumprod(miss, axis=1)  # [C], P(rank <= 1), P(rank <= 2), ...
    lower = np.argmax(reached >= 0.5 - 1e-12) + 1
    upper = np.argmax(reached > 0.5 + 1e-12) + 1
    return float(lower + upper) / 2


# Protocols: which rows of a dataset are compared with which.
#
# plain         every image and every caption
# coco-5k       5,000 images with the first five captions of each
# coco-1k       the same, cut into five folds of 1,000 images in file order; metrics are means over the folds
# flickr30k-1k  1,000 images with the first five captions of each, as in the test split of Karpathy
#
# Two sets of 5,000 COCO images are in use: the test split of Karpathy (from val2014) and val2017. Their
# numbers cannot be compared, so a result says which of them the names of the images point to.

IMAGES, CAPTIONS, FOLD = 5000, 5, 1000
FLICKR = 1000  # images of Flickr30k


class Fold(NamedTuple):
    """Rows that are compared with each other and with nothing else."""

    images: Tensor  # [n] int64, rows of the images
    texts: Tensor  # [m] int64, rows of the texts


def folds(protocol: str, images: Encoded, texts: Encoded, where: str = "the data") -> list[Fold]:
    """The folds of a protocol, in the order of the rows.

    images  N rows in file order; texts  M rows in file order

    Raises UserError if the data lack the images or captions that the protocol needs.
    """
    n, m = len(images.image), len(texts.image)
    if protocol == "plain":
        return [Fold(torch.arange(n), torch.arange(m))]
    number = FLICKR if protocol == "flickr30k-1k" else IMAGES
    if n != number:
        raise UserError(f"{n} images in {where}; {protocol} needs exactly {number}")
    captions: Counter[int] = Counter()
    first = []  # rows of the first captions of every image
    for row, image in enumerate(texts.image.tolist()):
        captions[image] += 1
        if image >= 0 and captions[image] <= CAPTIONS:
            first.append(row)
    short = sum(captions[image] < CAPTIONS for image in images.image.tolist())
    if short:
        raise UserError(
            f"{short} images in {where} have fewer than {CAPTIONS} captions; {protocol} needs {CAPTIONS} "
            "of each, as separate texts (captions: each)"
        )
    size = FOLD if protocol == "coco-1k" else number
    text = torch.tensor(first)
    return [
        Fold(torch.arange(i, i + size), text[torch.isin(texts.image[text], images.image[i : i + size])])
        for i in range(0, n, size)
    ]


def coco_split(keys: Sequence[str]) -> str:
    """The 5,000 images of COCO that the names point to.

    >>> coco_split(["COCO_val2014_000000391895", "COCO_val2014_000000060623"])
    'coco-karpathy'
    >>> coco_split(["000000000139", "000000000285"])
    'coco-val2017'
    >>> coco_split(["a", "b"])
    'unknown: the names of the images are not those of COCO'
    """
    if all(re.search(r"COCO_val2014_\d{12}", key) for key in keys):
        return "coco-karpathy"
    if all(re.search(r"(^|/)\d{12}(\.\w+)?$", key) for key in keys):
        return "coco-val2017"
    return "unknown: the names of the images are not those of COCO"
