"""Losses over all pairs of two lists of rows, in tiles: the matrix of their scores is never stored.

A loss is put together from two parts. A score says what the logits of a tile are and how a gradient passes
through them (`scores.py`): `Dot`, or any differentiable function of rows, columns and shared parameters.
A loss class says what becomes of the logits:

    Separable   each pair has a loss of its own: loss and gradient come out of one pass over the tiles
    Normalised  cross-entropy of rows, and of columns, in two passes (`normalised.py`)

Which pairs are positives, negatives or none is described by `Blocks`. What is kept is linear in the number of
rows: the inputs, their gradients, a few numbers for each row and column, and for `Normalised` logits of tiles
that take no more than the inputs.
"""

from abc import ABC, abstractmethod
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from grainline.losses.blocks import Blocks, Where
from grainline.losses.job import Job, exact, kept, only_once, scaled, total, zeros
from grainline.losses.lists import Lists
from grainline.losses.normalised import Normalised, TwoPasses
from grainline.losses.scores import Parts, Score
from grainline.types import Mean, full


class Separable(ABC):
    """A loss of every pair by itself. Abstract."""

    @abstractmethod
    def losses(self, logits: Tensor, where: Where | None) -> Tensor:
        """The losses of a tile [r, c]; without `where`, all its pairs are negatives"""

    @abstractmethod
    def slopes(self, logits: Tensor, where: Where | None) -> Tensor:
        """Their derivatives by the logits: [r, c]"""


class Logistic(Separable):
    """Binary cross-entropy; positives count by their weight, negatives by that of their column, or by 1.

    same  : weight * log(1 + exp(-logit))
    else  : against * log(1 + exp(logit))
    """

    def losses(self, logits: Tensor, where: Where | None) -> Tensor:
        if where is None:
            return F.softplus(logits)
        sign, size = _sign_and_size(where)
        return kept(F.softplus(sign * logits).mul_(size), where, 0.0)

    def slopes(self, logits: Tensor, where: Where | None) -> Tensor:
        if where is None:
            return logits.sigmoid()
        sign, size = _sign_and_size(where)
        return kept((sign * logits).sigmoid_().mul_(sign.mul_(size)), where, 0.0)


def _sign_and_size(where: Where) -> tuple[Tensor, Tensor]:
    """-1 and the weight of positives, 1 and that of all others: [r, c]; torch.where takes far more time"""
    other = (~where.same).to(where.weight.dtype)
    sign = 2 * other - 1
    return sign, where.weight + (other if where.against is None else other.mul_(where.against))


def pair_loss(
    score: Score,
    loss: Separable | Normalised,
    rows: Parts,
    cols: Parts,
    blocks: Blocks | Lists,
    *,
    shared: Parts = (),
    shares: tuple[Tensor, Tensor] | None = None,
) -> tuple[Mean, ...]:
    """A loss over all pairs of rows and columns that `blocks` describes, or `Lists` of some of them.

    rows    tensors [n, ...] of my rows, cols tensors [M, ...] of everyone's columns, shared parameters of the
            score; gradients reach all that are floating-point
    shares  weight [n] of each row and [M] of each column in its mean; None: 1

    Separable: one mean, of a sum over columns for each row with any candidate
        for i with real[i]:
            total += shares[i] * (sum of loss(logits[i, j]) over its pairs j)
            number += shares[i]
    Normalised: the mean over rows, and with `columns` that over columns; no lists, no `against`
        for i with weight[i].sum() > 0:
            target = weight[i] / weight[i].sum()
            total += shares[i] * -(target * log_softmax(logits[i] over its pairs)).sum()
            number += shares[i]

    Computed at least in float32, whatever autocast says; sums over rows in float64. Differentiable once.
    """
    rows, cols, shared = (tuple(_whole(x) for x in part) for part in (rows, cols, shared))
    weights = shares or tuple(full(x[0]).new_ones(len(x[0])) for x in (rows, cols))
    tiles = tuple(blocks.tiles(*score.sides(rows, cols, blocks.wide)))
    job = Job(score, loss, blocks, tiles, (len(rows), len(cols)), (weights[0], weights[1]))
    function = TwoPasses if isinstance(loss, Normalised) else _OnePass
    found = function.apply(job, torch.is_grad_enabled(), *rows, *cols, *shared)
    return tuple(Mean(*pair) for pair in zip(found[::2], found[1::2], strict=True))


def _whole(x: Tensor) -> Tensor:
    return full(x) if x.is_floating_point() else x


class _OnePass(torch.autograd.Function):
    """Losses of single pairs: their gradient is known as soon as the logit is."""

    @staticmethod
    def forward(ctx: Any, job: Job, learns: bool, *tensors: Tensor) -> tuple[Tensor, Tensor]:
        sums = zeros(tensors, [learns and want for want in ctx.needs_input_grad[2:]])
        shares = job.shares[0]
        losses = shares.new_zeros(len(shares), dtype=tensors[0].dtype)
        with exact(tensors[0]):
            for tile, here, where in job.each(tensors):
                share = shares[tile.rows].to(losses.dtype)
                if any(x is not None for x in sums):
                    logits, pull = job.score.pulled(*here)
                    parts = job.part(sums, tile)
                    pull(job.loss.slopes(logits, where).mul_(share[:, None]), parts)
                    job.put(parts, sums, tile)
                else:
                    logits = job.score.tile(*here)
                losses[tile.rows] += job.loss.losses(logits, where).sum(1)
        ctx.sums = sums
        number = (shares * job.blocks.rows.real()).sum().to(losses.dtype)
        ctx.mark_non_differentiable(number)
        return total(shares, losses), number

    @staticmethod
    def backward(ctx: Any, grad: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
        only_once()
        return None, None, *scaled(ctx, grad)
