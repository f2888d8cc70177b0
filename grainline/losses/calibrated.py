"""beta-CAL of beta-CLIP (arXiv 2512.12678): every text of an image with the image pooled by that text.

Row i of one side is an image pooled with text i, row i of the other is text i. Their own pair is a positive;
pairs of an image with another text of the same image have the weight beta, from 0 to 1. Rows are compared
within groups of a fixed number of images, whatever the number of processes; in the code of the authors a
group is what one GPU holds. The matrix of logits is never formed (`losses/tiled/pair_loss.py`).
"""

from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from grainline.losses.contrastive import owner_of, row_by_position, slots_in, slots_of
from grainline.losses.tiled.pair_loss import SigmoidLoss, SoftmaxLoss, pair_loss
from grainline.losses.tiled.pair_mask import BEYOND, PairMatrix, RowIds
from grainline.losses.tiled.scores import Dot, Parts, Score, Vjp, add_product, half_operands
from grainline.nn.pooling import unit
from grainline.types import CAPTION, LEVELS, PHRASE, SENTENCE, Encoded, Mean, Pair, rows


def beta_ce(scaled: Tensor, others: Tensor, pairs: PairMatrix) -> Mean:
    """Cross-entropy of local rows against all rows of the other side.

    scaled [n, D] times others [M, D] are the logits; pairs of local rows [n] and gathered rows [M], with the
    weights w: 1 for one text, beta * exp(-decay * |i - j|) for slots i and j of one image

    for each group, with its candidates j (item[j] >= 0):
        for i with a positive:
            target = w[i] / w[i].sum()
            loss[i] = -(target * log_softmax(logits[i] over the candidates)).sum()
        value of the group = mean of loss[i]
    value = mean over the groups

    A row with an item but no image (image = -1) is a candidate and no query: so padding stays in the
    denominators, as in the code of the authors, if it is given an item.
    """
    shares = (shares_of(pairs.rows, pairs.cols), torch.ones_like(pairs.cols.item))
    dot = Dot(half_operands(scaled))
    return pair_loss(dot, SoftmaxLoss(False), (scaled,), (others,), pairs, shares=shares)[0]


def beta_ce_both(scaled: Tensor, others: Tensor, pairs: PairMatrix) -> tuple[Mean, Mean]:
    """`beta_ce` of all rows, and of all rows of the other side, out of one matrix: half of the products."""
    shares = (shares_of(pairs.rows, pairs.cols),) * 2
    dot = Dot(half_operands(scaled))
    rows, cols = pair_loss(dot, SoftmaxLoss(True), (scaled,), (others,), pairs, shares=shares)
    return rows, cols


def beta_ce_ways(
    scaled: tuple[Tensor, Tensor], every: tuple[Tensor, Tensor], pairs: PairMatrix, alone: bool
) -> tuple[Mean, Mean]:
    """`beta_ce` of pooled images over texts, and the other way.

    scaled  pooled images and texts of this process; every: those of all
    alone   there is one process, so both directions come out of one matrix
    """
    if alone:
        return beta_ce_both(scaled[0], every[1], pairs)
    return beta_ce(scaled[0], every[1], pairs), beta_ce(scaled[1], every[0], pairs)


Divisor = Literal["rows", "pairs", "slots"]
"""The divisor of the sum over a group: its rows, their square, or the square with padding counted."""


def beta_bce(scaled: Tensor, others: Tensor, pairs: PairMatrix, divisor: Divisor) -> Mean:
    """Binary cross-entropy of local rows with all rows of the other side; the same for both directions.

    for each group, with m its rows that are not padding, or with divisor = "slots" all its rows:
        for i, j that are not padding:
            same image: total += w[i, j] * log(1 + exp(-logits[i, j]))
            else:       total += log(1 + exp(logits[i, j]))
        value of the group = total / m for divisor = "rows", as in the paper, else total / m ** 2
    value = mean over the groups

    "slots" is the code of the authors. With beta = 0 texts of one image have no loss, rather than repel.
    """
    local, gathered = pairs.rows, pairs.cols
    if divisor == "slots":
        share = _one_over_group(local, local.group >= 0, gathered, gathered.group >= 0)
    else:
        share = _one_over_group(local, local.real(), gathered, gathered.real())
    number = share.sum()
    shares = (share if divisor == "rows" else share.square(), torch.ones_like(gathered.item))
    (mean,) = pair_loss(Dot(half_operands(scaled)), SigmoidLoss(), (scaled,), (others,), pairs, shares=shares)
    return Mean(mean.total, number.to(mean.total.dtype))


def shares_of(local: RowIds, gathered: RowIds) -> Tensor:
    """1 / the queries in the group of each local row: [n]; 0 for rows that are no queries"""
    queries, all_queries = (ids.real() & (ids.image >= 0) for ids in (local, gathered))
    return _one_over_group(local, queries, gathered, all_queries)


def _one_over_group(local: RowIds, counted: Tensor, gathered: RowIds, among: Tensor) -> Tensor:
    # A GPU adds whole numbers to one place one by one, and waits for each: a group may be the whole batch.
    order = gathered.group.masked_fill(~among, BEYOND).sort().values
    first, end = (torch.searchsorted(order, local.group, right=side) for side in (False, True))
    return counted.double() / (end - first).clamp(min=1)


# Images pooled by texts of other images, as further negatives of beta-CAL (table 8). Binary: each such image
# is a negative of the text that pooled it. Cross-entropy: the texts join the candidates of pooled images once
# for each other image that they pool, which adds nothing new, and the images they pooled join those of texts.

PoolFn = Callable[[Tensor, Tensor, Parts], Tensor]
"""texts [1, K, D], patches [N, L, D] and parameters to scaled cosines of text and pooled image: [N, K]."""

NOBODY = -2  # the owner of a text that every image may be compared with


class PooledNegatives(Score):
    """Scaled cosines of texts [M, D] with what they pool of patches [N, L, D]; the parameters are shared."""

    def __init__(self, pool: PoolFn) -> None:
        self.pool = pool

    def sides(self, rows: Parts, cols: Parts, wide: int) -> tuple[int, int]:  # noqa: ARG002
        return 16, 256  # a pair holds four widths and more, several times

    def tile(self, rows: Parts, cols: Parts, shared: Parts) -> Tensor:
        return self.pool(cols[0][None], rows[0], shared)


class Repeated(Score):
    """Products of rows ([n, D], owner) with columns of other owners ([M, D], owner, log of how often)."""

    def tile(self, rows: Parts, cols: Parts, shared: Parts) -> Tensor:  # noqa: ARG002
        (v, image), (t, owner, often) = rows, cols
        return (v @ t.T + often).masked_fill(image[:, None] == owner, -torch.inf)

    def forward_with_vjp(self, rows: Parts, cols: Parts, shared: Parts) -> tuple[Tensor, Vjp]:
        def pull(by_logits: Tensor, sums: Sequence[Tensor | None]) -> None:
            add_product(sums[0], by_logits, cols[0])
            add_product(sums[2], by_logits.T, rows[0])  # owners learn nothing

        return self.tile(rows, cols, shared), pull


def cross_image_bce(
    pool: PoolFn, shared: Parts, patches: Tensor, images: RowIds, texts: Tensor, keys: RowIds
) -> Mean:
    """The mean of log(1 + exp(logit)) over images and texts of other images of their group.

    patches [n, L, D] of local images, with their keys [n]; texts [C, D] of all processes, with their keys [C]
    """
    blocks = PairMatrix(images, keys, 0.0, 0.0)
    (mean,) = pair_loss(PooledNegatives(pool), SigmoidLoss(), (patches,), (texts,), blocks, shared=shared)
    met = (images.group[:, None] == keys.group) & images.real()[:, None] & keys.real()
    pairs = met & (images.image[:, None] != keys.image)
    return Mean(mean.total, pairs.sum().to(mean.total.dtype))


def repeated_ce(
    scaled: Tensor, others: Tensor, pairs: PairMatrix, *, again: Tensor, owner: Tensor, size: Tensor
) -> Mean:
    """`beta_ce` of pooled images with texts, where some texts are candidates again for other images.

    again   [C] rows of texts; each is a candidate once more for every other image of its group
    owner   [C] ids of their own images, for which they do not count; NOBODY: they count for it too, as in the
            published code
    size    [groups] images

    With all texts and no owners the loss is higher by the log of the number of images; gradients are equal.
    """
    local, gathered = pairs.rows, pairs.cols
    group = gathered.group[again]
    often = (size[group.clamp(min=0)] - 1).to(scaled.dtype).log()
    owner = torch.cat([torch.full_like(gathered.image, NOBODY), owner])
    often = torch.cat([often.new_zeros(len(others)), often])
    cols = torch.cat([others, others[again]]), owner, often
    shares = shares_of(local, gathered), torch.ones(len(others) + len(group), device=others.device)
    blocks = pairs._replace(cols=and_negatives(gathered, group))
    return pair_loss(Repeated(), SoftmaxLoss(False), (scaled, local.image), cols, blocks, shares=shares)[0]


def and_negatives(keys: RowIds, group: Tensor) -> RowIds:
    """Keys with further rows behind them that are candidates of all rows of their groups [F]."""
    fresh = torch.arange(len(group), device=group.device)
    nothing = torch.full_like(fresh, -1)
    return RowIds(*(torch.cat(both) for both in zip(keys, (fresh, nothing, group, fresh), strict=True)))


# Images pooled by their own texts, and the ids of rows, which do not depend on the number of processes.


def own_images(texts: Encoded, images: Encoded, padding: bool) -> Tensor:
    """The row of the image of each text, -1 = none: [M]. padding: an empty slot has the image of the slot"""
    by_id = owner_of(texts.image, images.image)
    if not padding:
        return by_id
    return torch.where(texts.item < 0, row_by_position(texts.image, images.image), by_id)


def pooled_by_own(
    pool: Callable[[Tensor, Tensor], Tensor], texts: Tensor, place: Tensor, patches: Tensor
) -> Tensor:
    """Equation 1: the image of each text as that text pools it: [M, D], unit length; 0 without an image

    pool     texts [N, K, D] and patches [N, L, D] of unit length to [N, K, D]
    texts    [M, D]
    place    [M] the row of the image of each text, -1 = none
    patches  [N, L, D] of any length
    """
    with_image = (place >= 0).nonzero()[:, 0]
    row = place[with_image]
    order = rank_of(row)
    table = row.new_zeros(len(patches), int(order.max()) + 1 if len(row) else 0)
    table[row, order] = with_image
    by_slot = pool(texts[table], unit(patches))  # [n, K, D]
    return torch.zeros_like(texts).index_copy(0, with_image, unit(by_slot[row, order]))


def image_ids(images: Encoded, group: int | None) -> RowIds:
    """Ids of all images [N]: each `group` images in turn are a group; None: all of them are one."""
    place = torch.arange(len(images.image), device=images.image.device)
    return RowIds(images.item, images.image, _group(place, group), torch.zeros_like(place))


def text_ids(gathered: Pair, group: int | None, padding: bool = False) -> RowIds:
    """Ids of all texts [M]. Foils are in no pair, and neither is padding, unless `padding` says so.

    Padding belongs to a group where any image of that group has a text in the same slot, as in a batch whose
    images all have as many slots as the longest. With `padding` it is a candidate there and no query.
    """
    item, image, images = gathered.texts.item, gathered.texts.image, gathered.images.image
    place, row = owner_of(image, images), torch.arange(len(item), device=item.device)
    with_image, empty = place >= 0, item < 0
    ids = item.masked_fill(~with_image, -1)
    if padding:
        ids = torch.where(empty, item.max() + 1 + row, ids)
    number = _group(torch.where(with_image, place, row_by_position(image, images)), group)
    slot, slots = slots_of(image, images), slots_in(image, images)
    places = max(1, len(images)) * slots
    index = torch.where(with_image, number * slots + slot, places)
    used = torch.zeros(places + 1, dtype=torch.bool, device=row.device).index_fill(0, index, True)
    group_of = number.masked_fill(~(with_image | (empty & used[number * slots + slot])), -1)
    return RowIds(ids, image.masked_fill(~with_image, -1), group_of, row)


class PoolingTexts(NamedTuple):
    """Texts of a batch that pool images other than their own."""

    row: Tensor  # [C] among all texts
    ids: RowIds  # [C] with the image that each belongs to, of empty slots too


def first_texts(
    gathered: Pair, group: int | None, padding: bool, sentences: int, phrases: int
) -> PoolingTexts:
    """The caption of each image, and its first sentences and phrases. group, padding: as in `text_ids`"""
    images, texts = gathered
    ids = text_ids(gathered, group, padding)
    limit = torch.zeros(LEVELS, dtype=torch.int64, device=texts.item.device)
    limit[CAPTION], limit[SENTENCE], limit[PHRASE] = 1, sentences, phrases
    place, level = owner_of(texts.image, images.image), texts.extra.level
    if padding:  # an empty slot has the level of the texts in that slot of other images
        slot, empty = slots_of(texts.image, images.image), texts.item < 0
        of_slot = torch.zeros_like(level).scatter_reduce(0, slot, level.masked_fill(place < 0, 0), "amax")
        level = torch.where(empty, of_slot[slot], level)
        place = own_images(texts, images, padding)
    counts = ids.real() & (place >= 0)
    order = rank_of(torch.where(counts, place * LEVELS + level, -1))
    row = (counts & (order < limit[level])).nonzero()[:, 0]
    return PoolingTexts(row, rows(ids, row)._replace(image=images.image[place[row]]))


def _group(place: Tensor, size: int | None) -> Tensor:
    return torch.zeros_like(place) if size is None else place // size


def rank_of(key: Tensor) -> Tensor:
    """The number of rows with the same key before each row: [m]

    >>> rank_of(torch.tensor([7, 3, 7, 7, 3])).tolist()
    [0, 0, 1, 2, 1]
    """
    ordered, order = key.sort(stable=True)
    first = torch.searchsorted(ordered, ordered)
    return torch.empty_like(key).index_copy(0, order, torch.arange(len(key), device=key.device) - first)
