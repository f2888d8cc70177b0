"""Losses of local images and texts with those of all processes, as terms, and which texts are whose.

A `Pair` has vectors and ids of both sides. Ids alone say what belongs together, so that the number of
processes changes nothing.
"""

from collections.abc import Callable
from typing import Literal, NamedTuple, Protocol

import torch
from torch import Tensor

from grainline.distributed import rank
from grainline.losses.contrastive import sigmoid, soft_info_nce, touched, triplet
from grainline.types import Clock, Encoded, Mean, Pair, Term, same_image


def both_ways(
    score: Callable[[Encoded, Encoded], Tensor],
    local: Pair,
    gathered: Pair,
    weight: float = 1.0,
    smoothing: float = 0.0,
    detach_keys: bool = False,
) -> dict[str, Term]:
    """InfoNCE of local images against all texts and of local texts against all images, half each.

    Texts of the same image are positives of equal weight. Foils are candidates for every image and no
    queries; padding is no candidate.

    smoothing    share of each target that is spread over all candidates
    detach_keys  the vectors of candidates have no gradient
    """
    if detach_keys:
        gathered = Pair(*(side._replace(vector=side.vector.detach()) for side in gathered))
    i2t = score(local.images, gathered.texts)  # [n, M]
    alone = local.images is gathered.images and local.texts is gathered.texts  # one process: scored once
    t2i = (i2t if alone else score(gathered.images, local.texts)).T  # [m, N]
    i2t = i2t.masked_fill(gathered.texts.item < 0, -torch.inf)
    t2i = t2i.masked_fill(gathered.images.item < 0, -torch.inf)
    to_texts = same_image(local.images, gathered.texts).float()
    to_images = same_image(local.texts, gathered.images).float()
    return {
        "i2t": Term(weight / 2, soft_info_nce(i2t, to_texts, smoothing)),
        "t2i": Term(weight / 2, soft_info_nce(t2i, to_images, smoothing)),
    }


def sigmoid_loss(local: Pair, gathered: Pair, scale: Tensor, bias: Tensor) -> Mean:
    """Sigmoid loss of local images with all texts: scaled cosines plus a bias. Foils are negatives."""
    images, texts = local.images, gathered.texts
    logits = scale * (images.vector @ texts.vector.T) + bias  # [n, M]
    real = (images.item >= 0)[:, None] & (texts.item >= 0)
    return sigmoid(logits, same_image(images, texts), real)


ScoreFn = Callable[[Encoded, Encoded, Callable[[Tensor], Tensor]], Tensor]
"""Scores [N, M] of images and texts; the callable returns which of some scores need gradients."""

NEAR = 1e-4
"""Scores this close (times the greatest, if that is above 1) may change their order when computed again."""


class TripletSettings(Protocol):
    """The settings of a triplet loss in a config."""

    @property
    def margin(self) -> float: ...

    @property
    def warmup(self) -> float: ...

    @property
    def hardest_after(self) -> float | Literal["never"] | None: ...


class TripletSchedule(NamedTuple):
    """How a triplet loss counts at one time of a run."""

    margin: float
    hardest: bool  # else all negatives count
    weight: float

    @classmethod
    def at(cls, clock: Clock, cfg: TripletSettings) -> "TripletSchedule":
        """The settings at one time.

        >>> from types import SimpleNamespace
        >>> cfg = SimpleNamespace(margin=0.2, warmup=2.0, hardest_after=5.0)
        >>> [TripletSchedule.at(Clock(epoch=epoch), cfg)[1:] for epoch in (0.5, 2.0, 5.0)]
        [(False, 0.25), (False, 1.0), (True, 1.0)]
        """
        until = cfg.warmup if cfg.hardest_after is None else cfg.hardest_after
        hardest = until != "never" and clock.epoch >= until
        return cls(cfg.margin, hardest, min(1.0, clock.epoch / cfg.warmup) if cfg.warmup else 1.0)


class _Direction(NamedTuple):
    """One direction of the loss: positive and negative pairs, [n, M] bool."""

    positive: Tensor
    negative: Tensor

    def loss(self, score: Tensor, rule: TripletSchedule) -> Tensor:
        return triplet(score, self.positive, self.negative, rule.margin, rule.hardest)

    def touched(self, score: Tensor, rule: TripletSchedule) -> Tensor:
        near = NEAR * score.abs().amax().clamp(min=1.0) if score.numel() else 0.0
        return touched(score, self.positive, self.negative, rule.margin, rule.hardest, near)


def both_triplets(
    score_fn: ScoreFn, local: Pair, gathered: Pair, rule: TripletSchedule, weight: float
) -> dict[str, Term]:
    """Triplet losses of local images against all texts, and of local texts against all images.

    A text has one positive, its image by `owner_of`; texts and images of the same image are never negatives
    of each other. Foils are negatives of every image. Terms are sums over all processes, as in the papers.
    """
    alone = local.images is gathered.images and local.texts is gathered.texts  # one process: scored once
    first_image, first_text = (0 if alone else rank() * len(side.item) for side in local)

    owner = owner_of(gathered.texts.image, gathered.images.image)  # [M]
    own_image = owner[_all(local.texts.item) + first_text]  # [m]
    i2t_pairs = _direction(
        local.images, gathered.texts, owner == _all(local.images.item)[:, None] + first_image
    )
    t2i_pairs = _direction(local.texts, gathered.images, own_image[:, None] == _all(gathered.images.item))
    if alone:
        score = score_fn(
            local.images, local.texts, lambda s: i2t_pairs.touched(s, rule) | t2i_pairs.touched(s.T, rule).T
        )
        scores = score, score.T
    else:
        scores = (
            score_fn(local.images, gathered.texts, lambda s: i2t_pairs.touched(s, rule)),
            score_fn(gathered.images, local.texts, lambda s: t2i_pairs.touched(s.T, rule).T).T,
        )
    real = owner >= 0
    share = (own_image >= 0).sum() / real.sum().clamp(min=1)
    return {
        name: Term(rule.weight * weight, Mean(direction.loss(score, rule), share))
        for name, direction, score in zip(("i2t", "t2i"), (i2t_pairs, t2i_pairs), scores, strict=True)
    }


def _direction(rows: Encoded, columns: Encoded, positive: Tensor) -> _Direction:
    """The pairs of rows with columns. positive  [n, M] bool, padding included"""
    real = (rows.item >= 0)[:, None] & (columns.item >= 0)
    return _Direction(positive & real, real & ~same_image(rows, columns))


def _all(ids: Tensor) -> Tensor:
    return torch.arange(len(ids), device=ids.device)


# Which texts belong to which images of a batch, by ids: the number of processes changes nothing.


def owner_of(image: Tensor, images: Tensor) -> Tensor:
    """The row of the image of each text [M] among images [N], by their ids: [M], -1 where there is none.

    A batch across two epochs may hold an image twice, cropped differently. A text belongs to the one whose
    slots it has, on any number of processes.

    >>> owner_of(torch.tensor([7, -1, 7, 7, 3, 5]), torch.tensor([7, 7, 3])).tolist()
    [0, -1, 1, 1, 2, -1]
    """
    ordered, order = images.sort(stable=True)
    place = torch.searchsorted(ordered, image).clamp(max=len(images) - 1)
    by_id = torch.where(ordered[place] == image, order[place], -1)
    by_position = row_by_position(image, images)
    return torch.where(images[by_position] == image, by_position, by_id)


def row_by_position(texts: Tensor, images: Tensor) -> Tensor:
    """The row of the image in whose slots each text is. All images have equally many slots."""
    row = torch.arange(len(texts), device=texts.device)
    return (row // slots_in(texts, images)).clamp(max=len(images) - 1)


def slots_of(texts: Tensor, images: Tensor) -> Tensor:
    """The slot of each text among those of its image, padding included: [M]

    >>> slots_of(torch.tensor([7, -1, 7, 3, 3, -1]), torch.tensor([7, 3])).tolist()
    [0, 1, 2, 0, 1, 2]
    """
    return torch.arange(len(texts), device=texts.device) % slots_in(texts, images)


def slots_in(texts: Tensor, images: Tensor) -> int:
    """How many slots each image has."""
    return max(1, len(texts) // max(1, len(images)))
