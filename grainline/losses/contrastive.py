"""Losses over a matrix of scores between local rows and gathered rows, with the slow program of each.

Cross-entropy of CLIP and binary cross-entropy of SigLIP; triplets with the hardest negatives of VSE++ (Faghri
et al., arXiv 1707.05612), and the share of patches of SEPS (Mao et al., arXiv 2511.01390, equation 7). Then
the same of a `Pair`, as terms. Ids alone say what belongs together, so that the number of processes changes
nothing.
"""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from grainline.distributed import rank
from grainline.types import Clock, Encoded, Mean, Pair, Term, full, same_image

Shares = Literal["joint", "apart"]
"""Whether both branches together keep a share of the patches, or each of them."""


def soft_info_nce(logits: Tensor, weight: Tensor, smoothing: float = 0.0) -> Mean:
    """Cross-entropy of every row against the weights of its positives.

    logits     [n, M]  row i scored against every candidate; -inf takes a candidate out
    weight     [n, M]  >= 0, normalised per row here; a row of zeros is padding and is skipped
    smoothing  share of the target that all candidates of a row have in common (label smoothing)

    for i in rows with weight[i].sum() > 0:
        candidates = logits[i] > -inf
        target = (1 - smoothing) * weight[i] / weight[i].sum() + smoothing * candidates / candidates.sum()
        total += -(target * log_softmax(logits[i])).sum()
        number += 1

    With one positive per row this is InfoNCE (van den Oord et al., arXiv 1807.03748, eq. 4; CLIP,
    arXiv 2103.00020, figure 3); with several of equal weight, its multi-positive form.
    """
    mass = weight.sum(1)
    real = mass > 0
    target = weight / mass.clamp(min=1e-8)[:, None]
    if smoothing:
        candidates = (logits > -torch.inf).to(target.dtype)
        even = candidates / candidates.sum(1, keepdim=True).clamp(min=1)
        target = ((1 - smoothing) * target + smoothing * even).masked_fill(~real[:, None], 0.0)
    # A row without positives may hold nothing but -inf (padding): keep its NaN out of the gradient.
    logits = full(logits).masked_fill(~real[:, None], 0.0)
    log_prob = F.log_softmax(logits, dim=1).masked_fill(target == 0, 0.0)
    return Mean(-(target * log_prob).sum(), real.sum())


def sigmoid(logits: Tensor, positive: Tensor, real: Tensor) -> Mean:
    """Binary classification of each pair. SigLIP, arXiv 2303.15343, eq. 1.

    logits    [n, M]  scaled and shifted scores
    positive  [n, M] bool
    real      [n, M] bool, False takes a pair out (padding)

    for i, j with real[i, j]:
        sign = +1 if positive[i, j] else -1
        total += log(1 + exp(-sign * logits[i, j]))
    number = rows with any real pair    (the loss is per image, not per pair: eq. 1 divides by |B|)
    """
    signed = full(torch.where(positive, logits, -logits))
    losses = F.softplus(-signed).masked_fill(~real, 0.0)
    return Mean(losses.sum(), real.any(1).sum())


def triplet(score: Tensor, positive: Tensor, against: Tensor, margin: float, hardest: bool) -> Tensor:
    """Sum over the positives of all rows of how far negatives violate their margin: []

    score     [n, M]
    positive  [n, M] bool, against [n, M] bool: the negatives of each row; the rest is neither

    for i, j with positive[i, j]:
        cost[k] = max(0, margin + score[i, k] - score[i, j]) for k with against[i, k]
        total += max(cost) if hardest else sum(cost)    (0 without negatives)
    """
    row, column = positive.nonzero(as_tuple=True)
    cost = (margin + score[row] - score[row, column][:, None]).clamp(min=0) * against[row]
    if not cost.shape[1]:
        return score.sum()
    return cost.max(1).values.sum() if hardest else cost.sum()


@torch.no_grad()
def touched(
    score: Tensor, positive: Tensor, against: Tensor, margin: float, hardest: bool, near: float | Tensor = 0.0
) -> Tensor:
    """The scores that `triplet` has a gradient by: [n, M] bool

    near  also those by which it could have one if each score were off by half of this at most, as by
          rounding: costs just below 0 then count too, and with `hardest` all that nearly reach the greatest
    """
    row, column = positive.nonzero(as_tuple=True)
    out = torch.zeros_like(score)
    if not score.shape[1]:
        return out > 0
    cost = margin + score[row] - score[row, column][:, None]
    cost = cost.masked_fill(~against[row], -torch.inf)
    counts = cost >= -near
    if hardest:
        counts &= cost >= cost.amax(1, keepdim=True) - near
    out.index_add_(0, row, counts.to(out.dtype))
    out[row, column] += counts.any(1).to(out.dtype)
    return out > 0


def keep_ratio(
    keep: float, means: tuple[Tensor, ...], weights: tuple[float, ...], shares: Shares = "joint"
) -> Tensor:
    """The squared distance of the share of patches that stay from `keep`: the shape of the means

    means  of the decisions over all patches, of one branch or two, that broadcast; weights of each of them

    joint  `(keep - sum of weight * mean)**2`
    apart  the sum of `(keep - mean)**2`, without weights
    """
    if shares == "apart":
        return torch.stack(torch.broadcast_tensors(*((keep - mean) ** 2 for mean in means))).sum(0)
    weighted = [weight * mean for weight, mean in zip(weights, means, strict=True)]
    return (keep - torch.stack(torch.broadcast_tensors(*weighted)).sum(0)) ** 2


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


class TripletSchedule(NamedTuple):
    """How a triplet loss counts at one time of a run."""

    margin: float
    hardest: bool  # else all negatives count
    weight: float

    @classmethod
    def at(cls, clock: Clock, cfg: Any) -> "TripletSchedule":
        """The settings of a `TripletsConfig` at one time."""
        until = cfg.warmup if cfg.hardest_after is None else cfg.hardest_after
        hardest = until != "never" and clock.epoch >= until
        return cls(cfg.margin, hardest, min(1.0, clock.epoch / cfg.warmup) if cfg.warmup else 1.0)


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
    own_image = owner[_numbers(local.texts) + first_text]  # [m]
    i2t = _pairs(local.images, gathered.texts, owner == _numbers(local.images)[:, None] + first_image)
    t2i = _pairs(local.texts, gathered.images, own_image[:, None] == _numbers(gathered.images))

    def counts(score: Tensor, pairs: tuple[Tensor, Tensor]) -> Tensor:
        near = NEAR * score.abs().amax().clamp(min=1.0) if score.numel() else 0.0
        return touched(score, *pairs, rule.margin, rule.hardest, near)

    if alone:
        score = score_fn(local.images, local.texts, lambda s: counts(s, i2t) | counts(s.T, t2i).T)
        scores = score, score.T
    else:
        scores = (
            score_fn(local.images, gathered.texts, lambda s: counts(s, i2t)),
            score_fn(gathered.images, local.texts, lambda s: counts(s.T, t2i).T).T,
        )
    share = (own_image >= 0).sum() / (owner >= 0).sum().clamp(min=1)
    return {
        name: Term(rule.weight * weight, Mean(triplet(s, *pairs, rule.margin, rule.hardest), share))
        for name, s, pairs in zip(("i2t", "t2i"), scores, (i2t, t2i), strict=True)
    }


def _pairs(rows: Encoded, columns: Encoded, positive: Tensor) -> tuple[Tensor, Tensor]:
    """Positive and negative pairs [n, M], without padding, from those of a text and its image."""
    real = (rows.item >= 0)[:, None] & (columns.item >= 0)
    return positive & real, real & ~same_image(rows, columns)


def _numbers(side: Encoded) -> Tensor:
    return torch.arange(len(side.item), device=side.item.device)


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
    """The slot of each text among those of its image, padding included: [M]"""
    return torch.arange(len(texts), device=texts.device) % slots_in(texts, images)


def slots_in(texts: Tensor, images: Tensor) -> int:
    """How many slots each image has."""
    return max(1, len(texts) // max(1, len(images)))
