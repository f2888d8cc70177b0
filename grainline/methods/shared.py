"""Steps that several methods share, as functions."""

import math
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import torch
from pydantic import Field, field_validator
from torch import Tensor

from grainline.distributed import rank
from grainline.encoders.towers import TowersConfig
from grainline.losses.contrastive import soft_info_nce
from grainline.losses.tiled.pair_mask import Keys
from grainline.losses.triplet import touched, triplet
from grainline.types import Clock, Encoded, Mean, Pair, Term, same_image


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


# Which texts belong to which pictures, and which pictures are compared: by ids, as tensors.


def picture_keys(images: Encoded, group: int | None) -> Keys:
    """Keys of everyone's pictures [N]: the first `group` of them are a group, the next ones, ..."""
    place = torch.arange(len(images.image), device=images.image.device)
    return Keys(images.item, images.image, _group(place, group), torch.zeros_like(place))


def text_keys(everyone: Pair, group: int | None, padding: bool = False) -> Keys:
    """Keys of everyone's texts [M]. A foil is in no pair, nor is padding by itself.

    Padding has a group where any image of that group has a text in the same slot, as in a batch whose images
    all have as many slots as the longest. With `padding` it is a candidate there, which asks for nothing.
    """
    images, texts = everyone
    place, row = owner_of(texts.image, images.image), torch.arange(len(texts.item), device=texts.item.device)
    with_picture, empty = place >= 0, texts.item < 0
    item = texts.item.masked_fill(~with_picture, -1)
    if padding:
        item = torch.where(empty, texts.item.max() + 1 + row, item)
    of = _group(torch.where(with_picture, place, standing(texts.image, images.image)), group)
    slot = slots_of(texts.image, images.image)
    used = with_picture.new_zeros(max(1, len(images.image)), _slots(texts.image, images.image))
    used[of[with_picture], slot[with_picture]] = True
    return Keys(
        item,
        texts.image.masked_fill(~with_picture, -1),
        of.masked_fill(~(with_picture | (empty & used[of, slot])), -1),
        row,
    )


def _group(place: Tensor, size: int | None) -> Tensor:
    return torch.zeros_like(place) if size is None else place // size


def owner_of(image: Tensor, pictures: Tensor) -> Tensor:
    """Where the picture of each text [M] stands among some [N], by their ids: [M], -1 where it does not.

    A batch that lies across two epochs may hold a picture twice, cut out in two ways. A text belongs to the
    one among whose rows it stands, so that it does on any number of processes.

    >>> owner_of(torch.tensor([7, -1, 7, 7, 3, 5]), torch.tensor([7, 7, 3])).tolist()
    [0, -1, 1, 1, 2, -1]
    """
    ordered, order = pictures.sort(stable=True)
    found = torch.searchsorted(ordered, image).clamp(max=len(pictures) - 1)
    by_id = torch.where(ordered[found] == image, order[found], -1)
    beside = standing(image, pictures)
    return torch.where(pictures[beside] == image, beside, by_id)


def standing(texts: Tensor, pictures: Tensor) -> Tensor:
    """Among the rows of which picture each text stands: all pictures have equally many, padding included."""
    row = torch.arange(len(texts), device=texts.device)
    return (row // _slots(texts, pictures)).clamp(max=len(pictures) - 1)


def slots_of(texts: Tensor, pictures: Tensor) -> Tensor:
    """Which slot of its image each text has, padding included: [M]

    >>> slots_of(torch.tensor([7, -1, 7, 3, 3, -1]), torch.tensor([7, 3])).tolist()
    [0, 1, 2, 0, 1, 2]
    """
    return torch.arange(len(texts), device=texts.device) % _slots(texts, pictures)


def _slots(texts: Tensor, pictures: Tensor) -> int:
    return max(1, len(texts) // max(1, len(pictures)))


def rank_of(key: Tensor) -> Tensor:
    """How many rows with the same key stand before each row: [m].

    >>> rank_of(torch.tensor([7, 3, 7, 7, 3])).tolist()
    [0, 0, 1, 2, 1]
    """
    ordered, order = key.sort(stable=True)
    first = torch.searchsorted(ordered, ordered)
    return torch.empty_like(key).index_copy(0, order, torch.arange(len(key), device=key.device) - first)


# Triplet losses of a batch, both ways: which pairs are positives and negatives, over all processes.


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
