"""beta-CAL of beta-CLIP (arXiv 2512.12678): every text of an image with the image as that text sees it.

Row i of one side is an image pooled with text i, row i of the other is text i. Their own pair is a positive;
pairs of an image with another text of the same image count by beta, from 0 (apart) to 1 (alike). Rows are
compared within groups of a fixed number of images, as in the code of the authors, where a group is what one
GPU holds; here it does not depend on the number of processes.

The functions with `dense` in their names take the matrix of logits. The others never form it:
`losses/tiled/pair_loss.py`."""

from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from grainline.losses.tiled.pair_loss import SigmoidLoss, SoftmaxLoss, pair_loss
from grainline.losses.tiled.pair_mask import PairMatrix, RowIds
from grainline.losses.tiled.scores import Dot, Parts, Score, Vjp, add_products
from grainline.types import Mean, full


class Beta(NamedTuple):
    """The weights of pairs: 1 on the diagonal, beta * exp(-decay * |i - j|) beside it, by slot."""

    beta: float
    decay: float = 0.0

    def blocks(self, rows: RowIds, cols: RowIds) -> PairMatrix:
        return PairMatrix(rows, cols, 1.0, self.beta, self.decay)


def slot_keys(item: Tensor, image: Tensor, slots: int, images: int | None = None) -> RowIds:
    """Keys of the texts of everyone, `slots` rows for each image in turn, padding included.

    item, image  [M] as in Encoded
    images     in a group: the first so many of the batch, the next ones, ...; None: all are one group

    >>> slot_keys(torch.tensor([5, -1, 6, 7]), torch.tensor([0, -1, 1, 1]), 2, 1)[2:]
    (tensor([0, 0, 1, 1]), tensor([0, 1, 0, 1]))
    """
    place = torch.arange(len(item), device=item.device)
    group = torch.zeros_like(place) if images is None else place // (slots * images)
    return RowIds(item, image, group, place % slots)


def beta_ce(scaled: Tensor, others: Tensor, local: RowIds, gathered: RowIds, weights: Beta) -> Mean:
    """Cross-entropy of my rows against everyone's of the other side.

    scaled  [n, D] times [M, D] of the others are the logits; mine [n], everyone [M]: which rows they are

    for each group, with its candidates j (item[j] >= 0):
        for i with a positive:
            target = w[i] / w[i].sum()
            loss[i] = -(target * log_softmax(logits[i] over the candidates)).sum()
        value of the group = mean of loss[i]
    value = mean over the groups

    A row that is not padding but of no image (image = -1) is a candidate and asks for nothing: so padding
    stays in the denominators, as in the code of the authors, if it is given an item.
    """
    shares = (shares_of(local, gathered), torch.ones_like(gathered.item))
    found = pair_loss(
        Dot(), SoftmaxLoss(False), (scaled,), (others,), weights.blocks(local, gathered), shares=shares
    )
    return found[0]


def beta_ce_both(scaled: Tensor, others: Tensor, keys: RowIds, weights: Beta) -> tuple[Mean, Mean]:
    """`beta_ce` of all rows, and of all rows of the other side, out of one matrix: half of the products."""
    share = shares_of(keys, keys)
    found = pair_loss(
        Dot(), SoftmaxLoss(True), (scaled,), (others,), weights.blocks(keys, keys), shares=(share, share)
    )
    return found[0], found[1]


Divisor = Literal["rows", "pairs", "slots"]
"""What the sum over a group is divided by: its rows, their square, or the square with padding counted."""


def beta_bce(
    scaled: Tensor, others: Tensor, local: RowIds, gathered: RowIds, weights: Beta, divisor: Divisor
) -> Mean:
    """Binary cross-entropy of my rows with everyone's of the other side; it is the same for both directions.

    for each group, with m its rows that are not padding, or with divisor = "slots" all its rows:
        for i, j that are not padding:
            same image: total += w[i, j] * log(1 + exp(-logits[i, j]))
            else:       total += log(1 + exp(logits[i, j]))
        value of the group = total / m for divisor = "rows", as in the paper, else total / m ** 2
    value = mean over the groups

    "slots" is the code of the authors. With beta = 0 texts of one image have no loss, rather than repel.
    """
    share, number = _divided(local, gathered, divisor)
    shares = (share, torch.ones_like(gathered.item))
    (found,) = pair_loss(
        Dot(), SigmoidLoss(), (scaled,), (others,), weights.blocks(local, gathered), shares=shares
    )
    return Mean(found.total, number.to(found.total.dtype))


def dense_beta_ce(logits: Tensor, local: RowIds, gathered: RowIds, weights: Beta) -> Mean:
    """`beta_ce` from the logits [n, M] of any score."""
    logits = full(logits)
    where = weights.blocks(local, gathered).where(dtype=logits.dtype)
    share = shares_of(local, gathered).to(logits.dtype)
    mass = where.weight.sum(1)
    asks = mass > 0
    target = where.weight / mass.clamp(min=1e-30)[:, None]
    # A row without positives may hold nothing but -inf: keep its NaN out of the gradient.
    assert where.real is not None
    logits = logits.masked_fill(~where.real & asks[:, None], -torch.inf)
    losses = -(target * logits.log_softmax(1).masked_fill(target == 0, 0.0)).sum(1)
    return Mean((share * losses).sum(), (share * asks).sum())


def dense_beta_bce(logits: Tensor, local: RowIds, gathered: RowIds, weights: Beta, divisor: Divisor) -> Mean:
    """`beta_bce` from the logits [n, M] of any score."""
    logits = full(logits)
    where = weights.blocks(local, gathered).where(dtype=logits.dtype)
    share, number = _divided(local, gathered, divisor)
    losses = share.to(logits.dtype)[:, None] * SigmoidLoss().losses(logits, where)
    return Mean(losses.sum(), number.to(logits.dtype))


def shares_of(local: RowIds, gathered: RowIds) -> Tensor:
    """1 / the rows of its group that ask for something, for each of mine: [n]; 0 where it asks for nothing"""
    return _one_over_group(
        local, local.real() & (local.image >= 0), gathered, gathered.real() & (gathered.image >= 0)
    )


def _divided(local: RowIds, gathered: RowIds, divisor: Divisor) -> tuple[Tensor, Tensor]:
    """What each of my rows [n] is multiplied by, and how many groups they are."""
    if divisor == "slots":
        one = _one_over_group(local, local.group >= 0, gathered, gathered.group >= 0)
    else:
        one = _one_over_group(local, local.real(), gathered, gathered.real())
    return one if divisor == "rows" else one.square(), one.sum()


def _one_over_group(local: RowIds, counted: Tensor, gathered: RowIds, among: Tensor) -> Tensor:
    size = torch.zeros_like(gathered.group).scatter_add(0, gathered.group.clamp(min=0), among.long())
    return counted.double() / size[local.group.clamp(min=0)].clamp(min=1)


# Images pooled by texts of other images, as further negatives of beta-CAL (arXiv 2512.12678, table 8).
#
# Binary: each such image is told apart from the text that pooled it. Cross-entropy: the texts join the
# candidates of pooled images once for each other image that they pool, which adds nothing new to them,
# and what they pooled joins the candidates of texts, which does.


See = Callable[[Tensor, Tensor, Parts], Tensor]
"""texts [1, K, D], patches [N, L, D] and parameters to scaled cosines of text and what it pooled: [N, K]."""

NOBODY = -2  # the owner of a text that every image may be compared with


class PooledNegatives(Score):
    """Scaled cosines of texts [M, D] with what they pool of patches [N, L, D]; the parameters are shared."""

    def __init__(self, see: See) -> None:
        self.see = see

    def sides(self, rows: Parts, cols: Parts, wide: int) -> tuple[int, int]:  # noqa: ARG002
        return 16, 256  # a pair holds four widths and more, several times

    def tile(self, rows: Parts, cols: Parts, shared: Parts) -> Tensor:
        return self.see(cols[0][None], rows[0], shared)


class Repeated(Score):
    """Inner products of rows ([n, D], owner [n]) with columns ([M, D], owner [M], log of how often [M]).

    A pair of one owner is no pair.
    """

    closed = True

    def tile(self, rows: Parts, cols: Parts, shared: Parts) -> Tensor:  # noqa: ARG002
        (v, image), (t, owner, often) = rows, cols
        return (v @ t.T + often).masked_fill(image[:, None] == owner, -torch.inf)

    def forward_with_vjp(
        self, rows: Parts, cols: Parts, shared: Parts, known: Tensor | None = None
    ) -> tuple[Tensor, Vjp]:
        def pull(by_logits: Tensor, sums: Sequence[Tensor | None]) -> None:
            add_products(by_logits, (rows[0], cols[0]), (sums[0], sums[2]))  # owners learn nothing

        return self.tile(rows, cols, shared) if known is None else known, pull


def cross_image_bce(
    see: See, shared: Parts, patches: Tensor, images: RowIds, texts: Tensor, keys: RowIds
) -> Mean:
    """The mean of log(1 + exp(logit)) over images and texts of other images of their group.

    patches  [n, L, D] of my images, with their keys [n]
    texts    [C, D] of everyone, with their keys [C]
    """
    (found,) = pair_loss(
        PooledNegatives(see),
        SigmoidLoss(),
        (patches,),
        (texts,),
        PairMatrix(images, keys, 0.0, 0.0),
        shared=shared,
    )
    met = (images.group[:, None] == keys.group) & images.real()[:, None] & keys.real()
    pairs = met & (images.image[:, None] != keys.image)
    return Mean(found.total, pairs.sum().to(found.total.dtype))


def repeated_ce(
    scaled: Tensor,
    others: Tensor,
    local: RowIds,
    gathered: RowIds,
    weights: Beta,
    *,
    chosen: Tensor,
    owner: Tensor,
    size: Tensor,
) -> Mean:
    """`beta_ce` of pooled images with texts, where chosen texts are candidates again for other images.

    chosen  [C] rows of everyone's texts; each stands there once more for every other image of its group
    owner   [C] ids of their own images, for which they do not count; NOBODY: they count for it too, as in the
            published code
    size    [groups] images

    With every text chosen and no owners the loss is higher by the log of the number of images, and its
    gradient is that of `beta_ce`.
    """
    group = gathered.group[chosen]
    often = (size[group.clamp(min=0)] - 1).to(scaled.dtype).log()
    nobody = torch.full_like(gathered.image, NOBODY)
    found = pair_loss(
        Repeated(),
        SoftmaxLoss(False),
        (scaled, local.image),
        (
            torch.cat([others, others[chosen]]),
            torch.cat([nobody, owner]),
            torch.cat([often.new_zeros(len(others)), often]),
        ),
        weights.blocks(local, and_negatives(gathered, group)),
        shares=(shares_of(local, gathered), torch.ones(len(others) + len(group), device=others.device)),
    )
    return found[0]


def further_ce(
    scaled: Tensor,
    others: Tensor,
    local: RowIds,
    gathered: RowIds,
    weights: Beta,
    further: Tensor,
    group: Tensor,
) -> Mean:
    """`beta_ce` of texts with pooled images; further ones [F, D] of groups [F] are negatives."""
    return beta_ce(scaled, torch.cat([others, further]), local, and_negatives(gathered, group), weights)


def and_negatives(keys: RowIds, group: Tensor) -> RowIds:
    """Keys with further rows behind them that are candidates of all rows of their groups [F]."""
    fresh = torch.arange(len(group), device=group.device)
    nothing = torch.full_like(fresh, -1)
    return RowIds(*(torch.cat(both) for both in zip(keys, (fresh, nothing, group, fresh), strict=True)))
