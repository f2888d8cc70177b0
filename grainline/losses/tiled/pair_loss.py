"""Losses over all pairs of two lists of rows, in tiles: the matrix of their scores is never stored.

A loss has two parts. A `Score` has the logits of a tile and their gradient (`scores.py`). The loss is a

    SigmoidLoss  each pair has a loss of its own: loss and gradient come out of one pass over the tiles
    SoftmaxLoss  cross-entropy of rows, and of columns, in two passes

`vocabulary_loss` is cross-entropy of tokens over all entries of a table, in one pass. `PairMatrix` or
`SampledPairs` says which pairs are positives, negatives or neither. Memory is linear in the number of rows:
the inputs, their gradients, and a few numbers for each row and column.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from grainline.kernels import fused
from grainline.losses.tiled.pair_mask import PairMask, Pairs, Tile
from grainline.losses.tiled.scores import (
    LOG2E,
    Parts,
    Score,
    add_product,
    exact,
    half_operands,
    only_once,
    product,
)
from grainline.types import Mean, full

TINY = 1e-30


class TileWalk(NamedTuple):
    """A loss over pairs, but for the tensors with gradients."""

    score: Score
    loss: Any
    blocks: Pairs
    tiles: tuple[Tile, ...]
    counts: tuple[int, int]  # tensors of rows, and of columns
    shares: tuple[Tensor, Tensor]

    def each(self, tensors: Parts) -> Iterator[tuple[Tile, tuple[Parts, Parts, Parts], PairMask | None]]:
        """Each tile; its rows, columns and all shared parameters; its pairs, or None if `tile.plain`."""
        n, m = self.counts[0], sum(self.counts)
        for tile in self.tiles:
            rows = tuple(x[tile.rows] for x in tensors[:n])
            cols = tuple(self.blocks.take(x, tile) for x in tensors[n:m])
            where = None if tile.plain else self.blocks.where(tile, tensors[0].dtype)
            yield tile, (rows, cols, tensors[m:]), where

    def part(self, sums: Sequence[Tensor | None], tile: Tile) -> list[Tensor | None]:
        """The sums that the gradients of a tile are added to, of sums for all tensors."""
        n, m = self.counts[0], sum(self.counts)
        rows = [None if x is None else x[tile.rows] for x in sums[:n]]
        cols = [None if x is None else self.blocks.room(x, tile) for x in sums[n:m]]
        return [*rows, *cols, *sums[m:]]

    def put(self, parts: Sequence[Tensor | None], sums: Sequence[Tensor | None], tile: Tile) -> None:
        """Add the sums of `part` to the sums of all, where they are no views of them."""
        columns = slice(self.counts[0], sum(self.counts))
        for part, x in zip(parts[columns], sums[columns], strict=True):
            if part is not None and x is not None:
                self.blocks.put(part, x, tile)


def zeros(tensors: Parts, wanted: Sequence[bool]) -> list[Tensor | None]:
    """Sums of gradients; None where none is wanted"""
    return [torch.zeros_like(x) if want else None for x, want in zip(tensors, wanted, strict=True)]


def total(shares: Tensor, losses: Tensor) -> Tensor:
    """The weighted sum of the losses of rows [n], in float64: []"""
    return (shares.double() * losses.double()).sum().to(losses.dtype)


def fill_others(x: Tensor, where: PairMask, other: float) -> Tensor:
    """x [r, c], with another value where there is no pair."""
    return x if where.real is None else x.masked_fill(~where.real, other)


def scaled(ctx: Any, grad: Tensor) -> list[Tensor | None]:
    """The sums of gradients of a forward pass times the gradient of the loss."""
    return [None if x is None else grad * x for x in ctx.sums]


class SoftmaxLoss(NamedTuple):
    """Cross-entropy of every row over its columns and, with `columns`, of every column over its rows.

    The target of a row is the weights of its pairs, divided by their sum; a row without any is skipped.
    """

    columns: bool


class TwoPasses(torch.autograd.Function):
    """The sums of exponentials first; the backward pass goes over the tiles again."""

    @staticmethod
    def forward(ctx: Any, walk: TileWalk, _: bool, *tensors: Tensor) -> tuple[Tensor, ...]:
        sides = [_Side(walk, axis, tensors[0].dtype) for axis in range(1 + walk.loss.columns)]
        with exact(tensors[0]):
            for tile, part, where in walk.each(tensors):
                logits = walk.score.tile(*part)
                for side in sides:
                    side.add(logits, tile, where)
        ctx.walk, ctx.sides = walk, sides
        ctx.save_for_backward(*tensors)
        out = [x for side in sides for x in side.mean()]
        ctx.mark_non_differentiable(*out[1::2])
        return tuple(out)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        only_once()
        walk, tensors = ctx.walk, ctx.saved_tensors
        slopes = [side.slopes(grad) for side, grad in zip(ctx.sides, grads[::2], strict=True)]
        sums = zeros(tensors, ctx.needs_input_grad[2:])
        with exact(tensors[0]):
            for tile, part, where in walk.each(tensors):
                logits, pull = walk.score.forward_with_vjp(*part)
                pull(_by_logits(slopes, logits, tile, where), walk.part(sums, tile))
        return None, None, *sums


class _Slopes(NamedTuple):
    """The numbers of rows, or of columns, that a gradient by logits is computed from."""

    lse: Tensor  # infinite for no queries, of which no exponential is more than 0 then
    force: Tensor  # gradient by the loss of each row
    pull: Tensor  # gradient by that loss for a weight of 1


class _Side:
    """Sums over the columns of each row (axis 0), or over the rows of each column (1), of the first pass."""

    def __init__(self, walk: TileWalk, axis: int, dtype: torch.dtype) -> None:
        self.axis, self.shares = axis, walk.shares[axis].to(dtype)
        self.lse = torch.full_like(self.shares, -torch.inf)  # log of the sum of exponentials
        self.hit = torch.zeros_like(self.shares)  # sum of weight * logit
        self.mass = torch.zeros_like(self.shares)  # sum of weight

    def add(self, logits: Tensor, tile: Tile, where: PairMask | None) -> None:
        """Add the sums of a tile."""
        part, other = tile[self.axis], 1 - self.axis
        if where is not None:
            hits = torch.where(where.weight > 0, where.weight * logits, 0.0)  # a score may give -inf
            self.hit[part] += hits.sum(other)
            self.mass[part] += where.weight.sum(other)
            logits = fill_others(logits, where, -torch.inf)
        self.lse[part] = torch.logaddexp(self.lse[part], fused(log_sum)(logits, other))

    def mean(self) -> tuple[Tensor, Tensor]:
        asks = self.mass > 0
        losses = torch.where(asks, self.lse - self.hit / self.mass.clamp(min=TINY), 0.0)
        return total(self.shares, losses), (self.shares * asks).sum()

    def slopes(self, grad: Tensor) -> _Slopes:
        asks = self.mass > 0
        force = torch.where(asks, self.shares * grad.to(self.shares.dtype), 0.0)
        return _Slopes(self.lse.masked_fill(~asks, torch.inf), force, force / self.mass.clamp(min=TINY))


def log_sum(logits: Tensor, axis: int) -> Tensor:
    """The log of the sum of exponentials over an axis."""
    top = logits.amax(axis)
    zero = top.masked_fill(top.abs() == torch.inf, 0.0)
    return exp_from(logits, zero.unsqueeze(axis)).sum(axis).log() + zero


def exp_from(logits: Tensor, zero: Tensor) -> Tensor:
    """exp(logits - zero)"""
    return torch.add(-LOG2E * zero, logits, alpha=LOG2E).exp2_()


def _by_logits(sides: list[_Slopes], logits: Tensor, tile: Tile, where: PairMask | None) -> Tensor:
    """The gradient by the logits of a tile."""
    # [r, 1] of rows and [1, c] of columns
    parts = [[x[tile[i]].unsqueeze(1 - i) for x in side] for i, side in enumerate(sides)]
    lse, force, pull = (list(x) for x in zip(*parts, strict=True))
    out = fused(forced)(logits, lse, force)
    return (
        out if where is None else fill_others(out, where, 0.0).addcmul_(where.weight, _added(pull), value=-1)
    )


def forced(logits: Tensor, lse: list[Tensor], force: list[Tensor]) -> Tensor:
    """The sum over the sides of exp(logits - lse) * force"""
    return _added([exp_from(logits, y).mul_(x) for y, x in zip(lse, force, strict=True)])


def _added(sides: list[Tensor]) -> Tensor:
    return sides[0] if len(sides) == 1 else sides[0] + sides[1]


class SigmoidLoss:
    """Binary cross-entropy; positives count by their weight, negatives by that of their column, or by 1.

    same  : weight * log(1 + exp(-logit))
    else  : against * log(1 + exp(logit))

    Without `where`, all pairs of a tile are negatives.
    """

    def losses(self, logits: Tensor, where: PairMask | None) -> Tensor:
        """The losses of a tile: [r, c]"""
        return F.softplus(logits) if where is None else fused(binary)(logits, *where)

    def slopes(self, logits: Tensor, where: PairMask | None) -> Tensor:
        """Their derivatives by the logits: [r, c]"""
        return logits.sigmoid() if where is None else fused(binary_slopes)(logits, *where)


def binary(
    logits: Tensor, real: Tensor | None, same: Tensor, weight: Tensor, against: Tensor | None
) -> Tensor:
    """The losses of `SigmoidLoss` from logits [r, c] and the fields of a `PairMask`: [r, c]"""
    sign, size = _sign_and_size(same, weight, against)
    losses = F.softplus(sign * logits).mul_(size)
    return losses if real is None else losses.masked_fill(~real, 0.0)


def binary_slopes(
    logits: Tensor, real: Tensor | None, same: Tensor, weight: Tensor, against: Tensor | None
) -> Tensor:
    """The derivatives of `binary` by the logits."""
    sign, size = _sign_and_size(same, weight, against)
    slopes = (sign * logits).sigmoid_().mul_(sign.mul_(size))
    return slopes if real is None else slopes.masked_fill(~real, 0.0)


def _sign_and_size(same: Tensor, weight: Tensor, against: Tensor | None) -> tuple[Tensor, Tensor]:
    """-1 and the weight of positives, 1 and that of all others: [r, c]; torch.where takes far more time"""
    other = (~same).to(weight.dtype)
    sign = 2 * other - 1
    return sign, weight + (other if against is None else other.mul_(against))


def pair_loss(
    score: Score,
    loss: SigmoidLoss | SoftmaxLoss,
    rows: Parts,
    cols: Parts,
    blocks: Pairs,
    *,
    shared: Parts = (),
    shares: tuple[Tensor, Tensor] | None = None,
) -> tuple[Mean, ...]:
    """A loss over all pairs of rows and columns that `blocks` describes.

    rows    tensors [n, ...] of local rows, cols tensors [M, ...] of all columns, shared parameters of the
            score; gradients reach all that are floating-point
    shares  weight [n] of each row and [M] of each column in its mean; None: 1

    SigmoidLoss: one mean, of a sum over columns for each row with any candidate
        for i with real[i]:
            total += shares[i] * (sum of loss(logits[i, j]) over its pairs j)
            number += shares[i]
    SoftmaxLoss: the mean over rows, and with `columns` that over columns; no `SampledPairs`, no `against`
        for i with weight[i].sum() > 0:
            target = weight[i] / weight[i].sum()
            total += shares[i] * -(target * log_softmax(logits[i] over its pairs)).sum()
            number += shares[i]

    Computed at least in float32, whatever autocast says; sums over rows in float64. Differentiable once.
    """
    rows, cols, shared = (tuple(full(x) for x in part) for part in (rows, cols, shared))
    weights = shares or tuple(full(x[0]).new_ones(len(x[0])) for x in (rows, cols))
    tensors = (*rows, *cols, *shared)
    tiles = tuple(blocks.tiles(*score.sides(rows, cols, blocks.wide)))
    walk = TileWalk(score, loss, blocks, tiles, (len(rows), len(cols)), (weights[0], weights[1]))
    function = TwoPasses if isinstance(loss, SoftmaxLoss) else _OnePass
    sums = function.apply(walk, torch.is_grad_enabled(), *tensors)
    return tuple(Mean(*pair) for pair in zip(sums[::2], sums[1::2], strict=True))


class _OnePass(torch.autograd.Function):
    """Losses of single pairs: their gradient is computed with the logits."""

    @staticmethod
    def forward(ctx: Any, walk: TileWalk, learns: bool, *tensors: Tensor) -> tuple[Tensor, Tensor]:
        shares = walk.shares[0]
        ctx.sums = sums = zeros(tensors, [learns and want for want in ctx.needs_input_grad[2:]])
        losses = shares.new_zeros(len(shares), dtype=tensors[0].dtype)
        with exact(tensors[0]):
            for tile, part, where in walk.each(tensors):
                if any(x is not None for x in sums):
                    logits, pull = walk.score.forward_with_vjp(*part)
                    sums_of_tile, share = walk.part(sums, tile), shares[tile.rows].to(losses.dtype)
                    pull(walk.loss.slopes(logits, where).mul_(share[:, None]), sums_of_tile)
                    walk.put(sums_of_tile, sums, tile)
                    del pull, sums_of_tile  # what the next tile stores takes its place
                else:
                    logits = walk.score.tile(*part)
                losses[tile.rows] += walk.loss.losses(logits, where).sum(1)
        number = (shares * walk.blocks.rows.real()).sum().to(losses.dtype)
        ctx.mark_non_differentiable(number)
        return total(shares, losses), number

    @staticmethod
    def backward(ctx: Any, grad: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
        only_once()
        return None, None, *scaled(ctx, grad)


# Cross-entropy over a large vocabulary. The logits of a token are its products with all rows of a table,
# often word vectors; for 4,096 captions of 16 tokens and 49,408 entries they would take 12 GB. Here the
# logits of some tokens at a time become losses and gradients at once, in the forward pass.

TILE = {"cpu": 2**22}
"""Logits of a tile: 16 MiB in float32 on a CPU, and ELSEWHERE 256 MiB, where there is more to keep busy."""
ELSEWHERE = 2**26


def vocabulary_loss(hidden: Tensor, table: Tensor, target: Tensor) -> Mean:
    """The sum of the cross-entropies of tokens over a vocabulary, and their number.

    hidden  [T, W] what is known of each token
    table   [V, W] the vectors of all entries; no bias
    target  [T] int64 in 0..V-1; a token with another one is left out

    for i with 0 <= target[i] < V:
        total += -log_softmax(hidden[i] @ table.T)[target[i]]
        number += 1

    Computed at least in float32, whatever autocast says, but for operands of products on a GPU; sums over
    tokens in float64. Differentiable once.
    """
    entries = len(table)
    counts = ((target >= 0) & (target < entries)).nonzero()[:, 0]
    hidden, target = full(hidden)[counts], target[counts]
    if hidden.dtype != table.dtype:
        table = table.to(hidden.dtype)
    total: Tensor = _Vocabulary.apply(torch.is_grad_enabled(), hidden, table, target)
    return Mean(total, counts.new_full((), len(counts)))


class _Vocabulary(torch.autograd.Function):
    """Losses and gradients out of one walk over the tokens."""

    @staticmethod
    def forward(ctx: Any, learns: bool, hidden: Tensor, table: Tensor, target: Tensor) -> Tensor:
        sums = zeros((hidden, table), [learns and want for want in ctx.needs_input_grad[1:3]])
        size = max(1, TILE.get(hidden.device.type, ELSEWHERE) // len(table))
        with exact(hidden):
            losses = _losses(hidden, table, target, sums, size)
        ctx.sums = sums
        return losses.double().sum().to(losses.dtype)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        only_once()
        return None, *scaled(ctx, grads[0]), None


def _losses(
    hidden: Tensor, table: Tensor, target: Tensor, sums: Sequence[Tensor | None], size: int
) -> Tensor:
    """The losses of all tokens, `size` at a time; their gradients are added to the sums.

    The gradient by the logits is exp(logit - top) / rest, less 1 at the target. It is never formed: its
    factors are scaled by 1 / rest, and the target is subtracted by itself.
    """
    losses, half, (by_hidden, by_table) = hidden.new_zeros(len(hidden)), half_operands(hidden), sums
    entries = table.bfloat16() if half else table
    for start in range(0, len(hidden), size):
        part = slice(start, start + size)
        logits = product(hidden[part], entries.T, half)
        exps, top, rest = fused(exponentials)(logits)
        losses[part] = rest.log() + top - logits.gather(1, target[part, None])[:, 0]
        del logits
        if by_hidden is not None:
            by_hidden[part] = product(exps, entries, half) / rest[:, None] - table[target[part]]
        add_product(by_table, exps.T, hidden[part] / rest[:, None], half)
    if by_table is not None:  # index_add_ has other bits in each run on a GPU
        by_table.index_put_((target,), -hidden, accumulate=True)
    return losses


def exponentials(logits: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """exp(logit - top) of rows of logits; top, and the sum: [t, V], [t], [t]"""
    top = logits.amax(1)
    exps = exp_from(logits, top[:, None])
    return exps, top, exps.sum(1)
