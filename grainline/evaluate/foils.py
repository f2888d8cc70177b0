"""Foils: does a picture score higher with its true caption than with one that is wrong in one thing?

A tie is wrong and counted: it shows, for instance, two texts that became one when they were cut.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from grainline.evaluate.retrieval import refuse_nan
from grainline.evaluate.score import Scorer, pair_scores
from grainline.types import Encoded, rows


class FoilPairs(NamedTuple):
    """P comparisons, each of one picture with a true text and a false one."""

    picture: Tensor  # [P] int64, row of the picture among the encoded images
    true: Tensor  # [P] int64, row of `texts`
    foil: Tensor  # [P] int64, row of `texts`
    texts: Encoded  # [T] true texts and foils; `image` is -1, they are no gallery
    kind: tuple[str, ...]  # [P] what is wrong with the foil
    strings: tuple[str, ...]  # [T] the texts as they were given to the model


class Choices(NamedTuple):
    """The outcome of every comparison."""

    right: Tensor  # [P] bool, the true text scores higher
    tied: Tensor  # [P] bool, both score the same; never right


def choices(true: Tensor, foil: Tensor) -> Choices:
    """Outcomes from the scores of the true texts [P] and of the foils [P].

    Raises UserError with their number if scores are NaN.

    >>> choices(torch.tensor([0.4, -0.2, 0.3]), torch.tensor([0.1, -0.1, 0.3]))
    Choices(right=tensor([ True, False, False]), tied=tensor([False, False,  True]))
    """
    refuse_nan(int(true.isnan().sum() + foil.isnan().sum()), true.numel() + foil.numel())
    return Choices(true > foil, true == foil)


def foil_choices(method: Scorer, images: Encoded, pairs: FoilPairs) -> Choices:
    """Score every picture with its true text and its foil, and compare."""
    true, foil = foil_scores(method, images, pairs)
    return choices(true, foil)


def foil_scores(method: Scorer, images: Encoded, pairs: FoilPairs) -> Tensor:
    """Scores of every picture with its true text and with its foil: [2, P]"""
    picture = pairs.picture.repeat(2)  # [2P]
    text = torch.cat([pairs.true, pairs.foil])  # [2P]
    # Foils of one caption share their true text: each pair is scored once.
    asked, back = torch.unique(torch.stack([picture, text]), dim=1, return_inverse=True)
    return pair_scores(method, images, rows(pairs.texts, asked[1]), asked[0])[back].view(2, -1)
