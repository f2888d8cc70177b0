"""Losses over all pairs of two lists of rows, in tiles: the matrix of their scores is never stored.

A loss is put together from two parts. A score says what the logits of a tile are and how a gradient passes
through them (`scores.py`): `Dot`, or any differentiable function of rows, columns and shared parameters.
A loss class says what becomes of the logits:

    Separable   each pair has a loss of its own: loss and gradient come out of one pass over the tiles
    Normalised  cross-entropy of rows, and of columns: a first pass finds the sums of exponentials, and the
                backward pass computes the tiles again

Which pairs are positives, negatives or none is described by `Blocks`. What is kept is linear in the number of
rows: the inputs, their gradients, and a few numbers for each row and column.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from grainline.losses.blocks import Blocks, Tile, Where
from grainline.losses.scores import Parts, Score
from grainline.types import Mean, full

TINY = 1e-30


class Separable(ABC):
    """A loss of every pair by itself. Abstract."""

    @abstractmethod
    def losses(self, logits: Tensor, where: Where | None) -> Tensor:
        """The losses of a tile [r, c]; without `where`, all its pairs are negatives"""

    @abstractmethod
    def slopes(self, logits: Tensor, where: Where | None) -> Tensor:
        """Their derivatives by the logits: [r, c]"""


class Logistic(Separable):
    """Binary cross-entropy; positives count by their weight, negatives by 1.

    same  : weight * log(1 + exp(-logit))
    else  : log(1 + exp(logit))
    """

    def losses(self, logits: Tensor, where: Where | None) -> Tensor:
        if where is None:
            return F.softplus(logits)
        each = F.softplus(torch.where(where.same, -logits, logits))
        return _kept(torch.where(where.same, where.weight * each, each), where, 0.0)

    def slopes(self, logits: Tensor, where: Where | None) -> Tensor:
        if where is None:
            return logits.sigmoid()
        towards = -where.weight * (-logits).sigmoid()
        return _kept(torch.where(where.same, towards, logits.sigmoid()), where, 0.0)


def _kept(x: Tensor, where: Where, other: float) -> Tensor:
    """x [r, c], but for what is no pair."""
    return x if where.real is None else x.masked_fill(~where.real, other)


class Normalised(NamedTuple):
    """Cross-entropy of every row over its columns and, if asked for, of every column over its rows.

    The target of a row are the weights of its pairs, divided by their sum; a row without any is skipped.
    """

    columns: bool


def pair_loss(
    score: Score,
    loss: Separable | Normalised,
    rows: Parts,
    cols: Parts,
    blocks: Blocks,
    *,
    shared: Parts = (),
    shares: tuple[Tensor, Tensor] | None = None,
) -> tuple[Mean, ...]:
    """A loss over all pairs of rows and columns that `blocks` describes.

    rows    tensors [n, ...] of my rows, cols tensors [M, ...] of everyone's columns, shared parameters of the
            score; gradients reach all that are floating-point
    shares  weight [n] of each row and [M] of each column in its mean; None: 1

    Separable: one mean, of a sum over columns for each row with any candidate
        for i with real[i]:
            total += shares[i] * (sum of loss(logits[i, j]) over its pairs j)
            number += shares[i]
    Normalised: the mean over rows, and with `columns` that over columns
        for i with weight[i].sum() > 0:
            target = weight[i] / weight[i].sum()
            total += shares[i] * -(target * log_softmax(logits[i] over its pairs)).sum()
            number += shares[i]

    Computed at least in float32, whatever autocast says; sums over rows in float64. Differentiable once.
    """
    rows, cols, shared = (tuple(_whole(x) for x in part) for part in (rows, cols, shared))
    weights = shares or tuple(full(x[0]).new_ones(len(x[0])) for x in (rows, cols))
    tiles = tuple(blocks.tiles(*score.sides(rows, cols)))
    job = _Job(score, loss, blocks, tiles, (len(rows), len(cols)), (weights[0], weights[1]))
    function = _TwoPasses if isinstance(loss, Normalised) else _OnePass
    found = function.apply(job, torch.is_grad_enabled(), *rows, *cols, *shared)
    return tuple(Mean(*pair) for pair in zip(found[::2], found[1::2], strict=True))


def _whole(x: Tensor) -> Tensor:
    return full(x) if x.is_floating_point() else x


class _Job(NamedTuple):
    """Everything about a loss that no gradient belongs to."""

    score: Score
    loss: Any
    blocks: Blocks
    tiles: tuple[Tile, ...]
    counts: tuple[int, int]  # tensors of rows, and of columns
    shares: tuple[Tensor, Tensor]

    def split(self, tensors: Parts) -> tuple[Parts, Parts, Parts]:
        n, m = self.counts[0], sum(self.counts)
        return tensors[:n], tensors[n:m], tensors[m:]

    def each(self, tensors: Parts) -> Iterator[tuple[Tile, tuple[Parts, Parts, Parts], Where | None]]:
        """Each tile with its rows, its columns, all shared parameters, and its pairs where they matter."""
        rows, cols, shared = self.split(tensors)
        for tile in self.tiles:
            here = tuple(x[tile.rows] for x in rows), tuple(x[tile.cols] for x in cols), shared
            yield tile, here, None if tile.plain else self.blocks.where(tile, rows[0].dtype)

    def add(self, sums: list[Tensor | None], tile: Tile, found: Sequence[Tensor | None]) -> None:
        """Put the gradients of a tile where they belong."""
        n, m = self.counts[0], sum(self.counts)
        for number, (into, x) in enumerate(zip(sums, found, strict=True)):
            if into is not None and x is not None:
                part = tile.rows if number < n else tile.cols if number < m else slice(None)
                into[part] += x


def _zeros(tensors: Parts, wanted: Sequence[bool]) -> list[Tensor | None]:
    return [torch.zeros_like(x) if want else None for x, want in zip(tensors, wanted, strict=True)]


def _total(shares: Tensor, losses: Tensor) -> Tensor:
    return (shares.double() * losses.double()).sum().to(losses.dtype)


def _exact(x: Tensor) -> torch.autocast:
    return torch.autocast(x.device.type, enabled=False)


def _only_once() -> None:
    """torch's once_differentiable would pass a second derivative over in silence where the loss is a leaf."""
    if torch.is_grad_enabled():
        raise RuntimeError(
            "pair_loss is differentiable once: its gradient cannot be asked for with create_graph"
        )


class _OnePass(torch.autograd.Function):
    """Losses of single pairs: their gradient is known as soon as the logit is."""

    @staticmethod
    def forward(ctx: Any, job: _Job, learns: bool, *tensors: Tensor) -> tuple[Tensor, Tensor]:
        sums = _zeros(tensors, [learns and want for want in ctx.needs_input_grad[2:]])
        shares = job.shares[0]
        losses = shares.new_zeros(len(shares), dtype=tensors[0].dtype)
        with _exact(tensors[0]):
            for tile, here, where in job.each(tensors):
                share = shares[tile.rows].to(losses.dtype)
                if any(x is not None for x in sums):
                    logits, pull = job.score.pulled(*here)
                    job.add(sums, tile, pull(job.loss.slopes(logits, where).mul_(share[:, None])))
                else:
                    logits = job.score.tile(*here)
                losses[tile.rows] += job.loss.losses(logits, where).sum(1)
        ctx.sums = sums
        number = (shares * job.blocks.rows.real()).sum().to(losses.dtype)
        ctx.mark_non_differentiable(number)
        return _total(shares, losses), number

    @staticmethod
    def backward(ctx: Any, grad: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
        _only_once()
        return None, None, *(None if x is None else grad * x for x in ctx.sums)


class _TwoPasses(torch.autograd.Function):
    """Cross-entropies: the sums of exponentials first, the gradient over tiles that are computed again."""

    @staticmethod
    def forward(ctx: Any, job: _Job, learns: bool, *tensors: Tensor) -> tuple[Tensor, ...]:  # noqa: ARG004
        sides = [_Side(job, side, tensors[0].dtype) for side in range(1 + job.loss.columns)]
        with _exact(tensors[0]):
            for tile, here, where in job.each(tensors):
                logits = job.score.tile(*here)
                if where is not None:
                    for side in sides:
                        side.meet(tile, where.weight, logits)
                    logits = _kept(logits, where, -torch.inf)
                for side in sides:
                    side.add(tile, logits)
        ctx.job, ctx.sides = job, sides
        ctx.save_for_backward(*tensors)
        out = [x for side in sides for x in side.mean()]
        ctx.mark_non_differentiable(*out[1::2])
        return tuple(out)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        _only_once()
        job, tensors = ctx.job, ctx.saved_tensors
        sums = _zeros(tensors, ctx.needs_input_grad[2:])
        with _exact(tensors[0]):
            learn = [side.learn(grad) for side, grad in zip(ctx.sides, grads[::2], strict=True)]
            for tile, here, where in job.each(tensors):
                logits, pull = job.score.pulled(*here)
                slopes = [side.slopes(logits, tile, where) for side in learn]
                job.add(sums, tile, pull(slopes[0] if len(slopes) == 1 else slopes[0].add_(slopes[1])))
        return None, None, *sums


class _Side:
    """What is known of the rows (0), or of the columns (1), after the first pass."""

    def __init__(self, job: _Job, number: int, dtype: torch.dtype) -> None:
        self.number, self.shares = number, job.shares[number].to(dtype)
        self.lse = torch.full_like(self.shares, -torch.inf)  # log of the sum of exponentials
        self.hit = torch.zeros_like(self.shares)  # sum of weight * logit
        self.mass = torch.zeros_like(self.shares)  # sum of weight

    def part(self, tile: Tile) -> slice:
        return tile.cols if self.number else tile.rows

    def meet(self, tile: Tile, weight: Tensor, logits: Tensor) -> None:
        """Take in the positives of a tile."""
        self.hit[self.part(tile)] += torch.where(weight > 0, weight * logits, 0.0).sum(1 - self.number)
        self.mass[self.part(tile)] += weight.sum(1 - self.number)

    def add(self, tile: Tile, logits: Tensor) -> None:
        """Take in the candidates of a tile; -inf is none."""
        here = self.part(tile)
        self.lse[here] = torch.logaddexp(self.lse[here], logits.logsumexp(1 - self.number))

    def mean(self) -> tuple[Tensor, Tensor]:
        asks = self.mass > 0
        losses = torch.where(asks, self.lse - self.hit / self.mass.clamp(min=TINY), 0.0)
        return _total(self.shares, losses), (self.shares * asks).sum()

    def learn(self, grad: Tensor) -> "_Learn":
        asks = self.mass > 0
        force = torch.where(asks, self.shares * grad.to(self.shares.dtype), 0.0)
        lse = self.lse.masked_fill(~asks, torch.inf)  # no exponential of such a row is more than 0 then
        return _Learn(self, lse, force, force / self.mass.clamp(min=TINY))


class _Learn(NamedTuple):
    """The second pass over a side."""

    side: _Side
    lse: Tensor
    force: Tensor  # gradient by the loss of each row
    pull: Tensor  # the same for a weight of 1

    def slopes(self, logits: Tensor, tile: Tile, where: Where | None) -> Tensor:
        """The gradient by the logits of a tile."""
        lse, force, pull = (
            x[self.side.part(tile)].unsqueeze(1 - self.side.number) for x in (self.lse, self.force, self.pull)
        )
        out = (logits - lse).exp_()
        if where is None:
            return out.mul_(force)
        return _kept(out.mul_(force), where, 0.0).sub_(where.weight * pull)
