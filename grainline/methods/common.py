"""Steps that several methods share, as functions."""

from collections.abc import Callable

import torch
from torch import Tensor

from grainline.losses.contrastive import soft_info_nce
from grainline.types import Encoded, Pair, Term, same_image


def both_ways(
    score: Callable[[Encoded, Encoded], Tensor],
    mine: Pair,
    everyone: Pair,
    weight: float = 1.0,
    smoothing: float = 0.0,
) -> dict[str, Term]:
    """InfoNCE of my images against all texts and of my texts against all images, half each.

    Texts of the same image are positives of equal weight. Foils are candidates for every image and ask for
    none themselves; padding is no candidate.

    smoothing  share of each target that is spread over all candidates
    """
    i2t = score(mine.images, everyone.texts)  # [n, M]
    alone = mine.images is everyone.images and mine.texts is everyone.texts  # one process: scored once
    t2i = (i2t if alone else score(everyone.images, mine.texts)).T  # [m, N]
    i2t = i2t.masked_fill(everyone.texts.item < 0, -torch.inf)
    t2i = t2i.masked_fill(everyone.images.item < 0, -torch.inf)
    to_texts = same_image(mine.images, everyone.texts).float()
    to_images = same_image(mine.texts, everyone.images).float()
    return {
        "i2t": Term(weight / 2, soft_info_nce(i2t, to_texts, smoothing)),
        "t2i": Term(weight / 2, soft_info_nce(t2i, to_images, smoothing)),
    }


def constant(side: Encoded) -> Encoded:
    """The side with summaries through which no gradient passes."""
    return side._replace(vector=side.vector.detach())
