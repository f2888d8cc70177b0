"""Cross-entropies of rows and of columns over tiles of pairs: one half of the losses in `pairs.py`.

A first pass finds the sum of exponentials of each row, and of each column. The backward pass goes over the
tiles again. Logits of the first pass are kept for it where the score can use them, as long as all of them
together are no larger than the rows and columns themselves: so a tile is computed once in small groups, twice
in large ones, and memory stays linear in the number of rows.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from grainline.losses.blocks import Tile, Where
from grainline.losses.job import Job, exact, kept, only_once, total, zeros

TINY = 1e-30
LOG2E = 1.4426950408889634
"""Powers of 2 take a quarter of the time of torch's `exp` on processors that are not Intel's."""


class Normalised(NamedTuple):
    """Cross-entropy of every row over its columns and, if asked for, of every column over its rows.

    The target of a row are the weights of its pairs, divided by their sum; a row without any is skipped.
    """

    columns: bool


class TwoPasses(torch.autograd.Function):
    """The sums of exponentials first, the gradient over tiles that are met again."""

    @staticmethod
    def forward(ctx: Any, job: Job, learns: bool, *tensors: Tensor) -> tuple[Tensor, ...]:
        sides = [_Side(job, side, tensors[0].dtype) for side in range(1 + job.loss.columns)]
        known: list[Tensor] = []  # the logits of the first tiles
        room = job.room(tensors) if learns and job.score.closed else 0
        with exact(tensors[0]):
            for tile, here, where in job.each(tensors):
                logits = job.score.tile(*here)
                room -= logits.nbytes
                if room >= 0:
                    known.append(logits)
                if where is not None:
                    hits = where.weight * logits
                    for side in sides:
                        side.meet(tile, where.weight, hits)
                    logits = kept(logits, where, -torch.inf)
                for side in sides:
                    side.add(tile, logits)
        ctx.job, ctx.sides, ctx.known = job, sides, known
        ctx.save_for_backward(*tensors)
        out = [x for side in sides for x in side.mean()]
        ctx.mark_non_differentiable(*out[1::2])
        return tuple(out)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        only_once()
        job, tensors = ctx.job, ctx.saved_tensors
        sums = zeros(tensors, ctx.needs_input_grad[2:])
        with exact(tensors[0]):
            learn = [side.learn(grad) for side, grad in zip(ctx.sides, grads[::2], strict=True)]
            for number, (tile, here, where) in enumerate(job.each(tensors)):
                logits, pull = job.score.pulled(*here, ctx.known[number] if number < len(ctx.known) else None)
                slopes = [side.slopes(logits, tile, where) for side in learn]
                pull(slopes[0] if len(slopes) == 1 else slopes[0].add_(slopes[1]), job.part(sums, tile))
        return None, None, *sums


class _Side:
    """What is known of the rows (0), or of the columns (1), after the first pass."""

    def __init__(self, job: Job, number: int, dtype: torch.dtype) -> None:
        self.number, self.shares = number, job.shares[number].to(dtype)
        self.lse = torch.full_like(self.shares, -torch.inf)  # log of the sum of exponentials
        self.hit = torch.zeros_like(self.shares)  # sum of weight * logit
        self.mass = torch.zeros_like(self.shares)  # sum of weight

    def part(self, tile: Tile) -> slice:
        return tile.cols if self.number else tile.rows

    def meet(self, tile: Tile, weight: Tensor, hits: Tensor) -> None:
        """Take in the positives of a tile: their weights, and those times the logits."""
        self.hit[self.part(tile)] += hits.sum(1 - self.number)
        self.mass[self.part(tile)] += weight.sum(1 - self.number)

    def add(self, tile: Tile, logits: Tensor) -> None:
        """Take in the candidates of a tile; -inf is none."""
        here = self.part(tile)
        self.lse[here] = torch.logaddexp(self.lse[here], _log_sum_exp(logits, 1 - self.number))

    def mean(self) -> tuple[Tensor, Tensor]:
        asks = self.mass > 0
        losses = torch.where(asks, self.lse - self.hit / self.mass.clamp(min=TINY), 0.0)
        return total(self.shares, losses), (self.shares * asks).sum()

    def learn(self, grad: Tensor) -> "_Learn":
        asks = self.mass > 0
        force = torch.where(asks, self.shares * grad.to(self.shares.dtype), 0.0)
        lse = self.lse.masked_fill(~asks, torch.inf)  # no exponential of such a row is more than 0 then
        return _Learn(self, lse, force, force / self.mass.clamp(min=TINY))


def _log_sum_exp(logits: Tensor, dim: int) -> Tensor:
    """As torch.logsumexp."""
    top = logits.amax(dim, keepdim=True)
    top = top.masked_fill(top.abs() == torch.inf, 0.0)
    return _exp_from(logits, top).sum(dim).log_().add_(top.squeeze(dim))


def _exp_from(logits: Tensor, zero: Tensor) -> Tensor:
    """exp(logits - zero)"""
    return torch.add(-LOG2E * zero, logits, alpha=LOG2E).exp2_()


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
        out = _exp_from(logits, lse)
        if where is None:
            return out.mul_(force)
        return kept(out.mul_(force), where, 0.0).sub_(where.weight * pull)
