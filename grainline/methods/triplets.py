"""Triplet losses of a batch, both ways: which pairs are positives and negatives, over all processes."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from grainline.dist import rank
from grainline.losses.triplet import touched, triplet
from grainline.methods.belonging import owner_of
from grainline.types import Clock, Encoded, Mean, Pair, Term, same_image

Graded = Callable[[Encoded, Encoded, Callable[[Tensor], Tensor]], Tensor]
"""Scores [N, M] with gradients at least where a function of them says so, which gives [N, M] bool."""

NEAR = 1e-4
"""Scores that lie so close may stand in another order when they are computed again, in float32; times the
greatest of them, if that is above 1."""


class Rule(NamedTuple):
    """How a triplet loss counts at one time of a run."""

    margin: float
    hardest: bool  # else all negatives count
    weight: float

    @classmethod
    def at(cls, clock: Clock, margin: float, warmup: float) -> "Rule":
        """All negatives for the first `warmup` epochs, with a weight that grows to 1; then the hardest.

        >>> Rule.at(Clock(epoch=0.5), 0.2, 2.0), Rule.at(Clock(epoch=2.0), 0.2, 2.0)
        (Rule(margin=0.2, hardest=False, weight=0.25), Rule(margin=0.2, hardest=True, weight=1.0))
        """
        if clock.epoch >= warmup:
            return cls(margin, True, 1.0)
        return cls(margin, False, clock.epoch / warmup)


class _Ends(NamedTuple):
    """Which pairs of rows and columns are positives, and which negatives of a row: [n, M] bool."""

    positive: Tensor
    against: Tensor

    def loss(self, score: Tensor, rule: Rule) -> Tensor:
        return triplet(score, self.positive, self.against, rule.margin, rule.hardest)

    def touched(self, score: Tensor, rule: Rule) -> Tensor:
        near = NEAR * max(1.0, float(score.abs().amax())) if score.numel() else 0.0
        return touched(score, self.positive, self.against, rule.margin, rule.hardest, near)


def both_triplets(graded: Graded, mine: Pair, everyone: Pair, rule: Rule, weight: float) -> dict[str, Term]:
    """The loss of my pictures against all texts, and of my texts against all pictures, summed over the batch.

    A text has one positive, the picture among whose rows it stands; texts and pictures of one image are never
    negatives of each other. Foils are negatives of every picture. Terms are sums over all
    processes, not means, as in the papers.
    """
    owner = owner_of(everyone.texts.image, everyone.images.image)  # [M]
    down = _ends(mine.images, everyone.texts, owner == _mine(mine.images)[:, None])
    across = _ends(
        mine.texts, everyone.images, owner[_mine(mine.texts)][:, None] == _all(everyone.images.image)
    )
    if mine.images is everyone.images and mine.texts is everyone.texts:  # one process: scored once
        score = graded(mine.images, mine.texts, lambda s: down.touched(s, rule) | across.touched(s.T, rule).T)
        scores = score, score.T
    else:
        scores = (
            graded(mine.images, everyone.texts, lambda s: down.touched(s, rule)),
            graded(everyone.images, mine.texts, lambda s: across.touched(s.T, rule).T).T,
        )
    real = owner >= 0
    share = real[_mine(mine.texts)].sum() / real.sum().clamp(min=1)
    return {
        name: Term(rule.weight * weight, Mean(ends.loss(score, rule), share))
        for name, ends, score in zip(("i2t", "t2i"), (down, across), scores, strict=True)
    }


def _ends(rows: Encoded, columns: Encoded, positive: Tensor) -> _Ends:
    real = (rows.item >= 0)[:, None] & (columns.item >= 0)
    return _Ends(positive & real, real & ~same_image(rows, columns))


def _all(ids: Tensor) -> Tensor:
    return torch.arange(len(ids), device=ids.device)


def _mine(side: Encoded) -> Tensor:
    """Where my rows stand among everyone's, which are in the order of processes: [n]"""
    return _all(side.item) + rank() * len(side.item)
