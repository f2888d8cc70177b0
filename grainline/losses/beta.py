"""beta-CAL of beta-CLIP (arXiv 2512.12678): every text of a picture with the picture as that text sees it.

Row i of one side is a picture pooled with text i, row i of the other is text i. Their own pair is a positive;
pairs of a picture with another text of the same picture count by beta, from 0 (apart) to 1 (alike). Rows are
compared within groups of a fixed number of pictures, as in the code of the authors, where a group is what one
GPU holds; here it does not depend on the number of processes.

The functions with `dense` in their names take the matrix of logits. The others never form it: `pairs.py`.
"""

from typing import Literal, NamedTuple

import torch
from torch import Tensor

from grainline.losses.blocks import Blocks, Keys
from grainline.losses.normalised import Normalised
from grainline.losses.pairs import Logistic, pair_loss
from grainline.losses.scores import Dot
from grainline.types import Mean, full


class Beta(NamedTuple):
    """The weights of pairs: 1 on the diagonal, beta * exp(-decay * |i - j|) beside it, by slot."""

    beta: float
    decay: float = 0.0

    def blocks(self, rows: Keys, cols: Keys) -> Blocks:
        return Blocks(rows, cols, 1.0, self.beta, self.decay)


def slot_keys(item: Tensor, image: Tensor, slots: int, pictures: int | None = None) -> Keys:
    """Keys of the texts of everyone, `slots` rows for each picture in turn, padding included.

    item, image  [M] as in Encoded
    pictures     in a group: the first so many of the batch, the next ones, ...; None: all are one group

    >>> slot_keys(torch.tensor([5, -1, 6, 7]), torch.tensor([0, -1, 1, 1]), 2, 1)[2:]
    (tensor([0, 0, 1, 1]), tensor([0, 1, 0, 1]))
    """
    place = torch.arange(len(item), device=item.device)
    group = torch.zeros_like(place) if pictures is None else place // (slots * pictures)
    return Keys(item, image, group, place % slots)


def beta_ce(scaled: Tensor, others: Tensor, mine: Keys, everyone: Keys, weights: Beta) -> Mean:
    """Cross-entropy of my rows against everyone's of the other side.

    scaled  [n, D] times [M, D] of the others are the logits; mine [n], everyone [M]: which rows they are

    for each group, with its candidates j (item[j] >= 0):
        for i with a positive:
            target = w[i] / w[i].sum()
            loss[i] = -(target * log_softmax(logits[i] over the candidates)).sum()
        value of the group = mean of loss[i]
    value = mean over the groups

    A row that is not padding but of no picture (image = -1) is a candidate and asks for nothing: so padding
    stays in the denominators, as in the code of the authors, if it is given an item.
    """
    shares = (shares_of(mine, everyone), torch.ones_like(everyone.item))
    found = pair_loss(
        Dot(), Normalised(False), (scaled,), (others,), weights.blocks(mine, everyone), shares=shares
    )
    return found[0]


def beta_ce_both(scaled: Tensor, others: Tensor, keys: Keys, weights: Beta) -> tuple[Mean, Mean]:
    """`beta_ce` of all rows, and of all rows of the other side, out of one matrix: half of the products."""
    share = shares_of(keys, keys)
    found = pair_loss(
        Dot(), Normalised(True), (scaled,), (others,), weights.blocks(keys, keys), shares=(share, share)
    )
    return found[0], found[1]


Divisor = Literal["rows", "pairs", "slots"]
"""What the sum over a group is divided by: its rows, their square, or the square with padding counted."""


def beta_bce(
    scaled: Tensor, others: Tensor, mine: Keys, everyone: Keys, weights: Beta, divisor: Divisor
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
    share, number = _divided(mine, everyone, divisor)
    shares = (share, torch.ones_like(everyone.item))
    (found,) = pair_loss(
        Dot(), Logistic(), (scaled,), (others,), weights.blocks(mine, everyone), shares=shares
    )
    return Mean(found.total, number.to(found.total.dtype))


def dense_beta_ce(logits: Tensor, mine: Keys, everyone: Keys, weights: Beta) -> Mean:
    """`beta_ce` from the logits [n, M] of any score."""
    logits = full(logits)
    where = weights.blocks(mine, everyone).where(dtype=logits.dtype)
    share = shares_of(mine, everyone).to(logits.dtype)
    mass = where.weight.sum(1)
    asks = mass > 0
    target = where.weight / mass.clamp(min=1e-30)[:, None]
    # A row without positives may hold nothing but -inf: keep its NaN out of the gradient.
    assert where.real is not None
    logits = logits.masked_fill(~where.real & asks[:, None], -torch.inf)
    losses = -(target * logits.log_softmax(1).masked_fill(target == 0, 0.0)).sum(1)
    return Mean((share * losses).sum(), (share * asks).sum())


def dense_beta_bce(logits: Tensor, mine: Keys, everyone: Keys, weights: Beta, divisor: Divisor) -> Mean:
    """`beta_bce` from the logits [n, M] of any score."""
    logits = full(logits)
    where = weights.blocks(mine, everyone).where(dtype=logits.dtype)
    share, number = _divided(mine, everyone, divisor)
    losses = share.to(logits.dtype)[:, None] * Logistic().losses(logits, where)
    return Mean(losses.sum(), number.to(logits.dtype))


def shares_of(mine: Keys, everyone: Keys) -> Tensor:
    """1 / the rows of its group that ask for something, for each of mine: [n]; 0 where it asks for nothing"""
    return _one_over_group(
        mine, mine.real() & (mine.image >= 0), everyone, everyone.real() & (everyone.image >= 0)
    )


def _divided(mine: Keys, everyone: Keys, divisor: Divisor) -> tuple[Tensor, Tensor]:
    """What each of my rows [n] is multiplied by, and how many groups they are."""
    if divisor == "slots":
        one = _one_over_group(mine, mine.group >= 0, everyone, everyone.group >= 0)
    else:
        one = _one_over_group(mine, mine.real(), everyone, everyone.real())
    return one if divisor == "rows" else one.square(), one.sum()


def _one_over_group(mine: Keys, counted: Tensor, everyone: Keys, among: Tensor) -> Tensor:
    size = torch.zeros_like(everyone.group).scatter_add(0, everyone.group.clamp(min=0), among.long())
    return counted.double() / size[mine.group.clamp(min=0)].clamp(min=1)
