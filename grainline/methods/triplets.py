"""Triplet losses of a batch, both ways: which pairs are positives and negatives, over all processes."""

import math
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import torch
from pydantic import Field, field_validator
from torch import Tensor

from grainline.dist import rank
from grainline.encoders.towers import TowersConfig
from grainline.losses.triplet import touched, triplet
from grainline.methods.belonging import owner_of
from grainline.types import Clock, Encoded, Mean, Pair, Term, same_image

Graded = Callable[[Encoded, Encoded, Callable[[Tensor], Tensor]], Tensor]
"""Scores [N, M] with gradients at least where a function of them says so, which gives [N, M] bool."""

NEAR = 1e-4
"""Scores that lie so close may stand in another order when they are computed again, in float32; times the
greatest of them, if that is above 1."""


class TripletsConfig(TowersConfig):
    """Encoders, and when the negatives of a triplet loss count. An epoch is a round over the images."""

    margin: float = Field(0.2, gt=0)
    warmup: float = Field(1.0, ge=0)  # epochs in which the weight of the loss rises from 0 to 1; 0: 1 at once
    # epochs in which all negatives count, before the hardest alone do; None: as long as the warm-up
    hardest_after: float | Literal["never"] | None = None

    @field_validator("hardest_after", mode="before")
    @classmethod
    def _time(cls, value: Any) -> Any:
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not ((number and 0 <= value < math.inf) or value in ("never", None)):
            raise ValueError("allowed are a number of epochs from 0, never, or null: as long as warmup")
        return value


class Rule(NamedTuple):
    """How a triplet loss counts at one time of a run."""

    margin: float
    hardest: bool  # else all negatives count
    weight: float

    @classmethod
    def at(cls, clock: Clock, cfg: TripletsConfig) -> "Rule":
        """What counts at one time.

        >>> cfg = TripletsConfig.model_construct(warmup=2.0, hardest_after=5.0)
        >>> [Rule.at(Clock(epoch=epoch), cfg)[1:] for epoch in (0.5, 2.0, 5.0)]
        [(False, 0.25), (False, 1.0), (True, 1.0)]
        """
        until = cfg.warmup if cfg.hardest_after is None else cfg.hardest_after
        hardest = until != "never" and clock.epoch >= until
        return cls(cfg.margin, hardest, min(1.0, clock.epoch / cfg.warmup) if cfg.warmup else 1.0)


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
