"""Cross-entropies of rows and of columns over tiles of pairs: one half of the losses in `pairs.py`.

A first pass finds the sum of exponentials of each row, and of each column. The backward pass goes over the
tiles again. Logits of the first pass are kept for it where the score can use them, as long as all of them
together are no larger than the rows and columns themselves: so a tile is computed once in small groups, twice
in large ones, and memory stays linear in the number of rows.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from grainline.losses.blocks import Tile, Where
from grainline.losses.job import Job, exact, kept, only_once, total, zeros

TINY = 1e-30
NEAR = 30.0
"""So far apart may logits be for rows and columns to share their exponentials: in float32 even those of e-25
of the largest one of their row are not lost then."""
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
                    hits = torch.where(where.weight > 0, where.weight * logits, 0.0)  # a score may give -inf
                    for side in sides:
                        side.meet(tile, where.weight, hits)
                    logits = kept(logits, where, -torch.inf)
                for side, lse in zip(sides, _log_sums(logits, len(sides)), strict=True):
                    side.add(tile, lse)
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
            second = _second(ctx.sides, grads[::2])
            for number, (tile, here, where) in enumerate(job.each(tensors)):
                logits, pull = job.score.pulled(*here, ctx.known[number] if number < len(ctx.known) else None)
                pull(second.slopes(logits, tile, where), job.part(sums, tile))
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

    def add(self, tile: Tile, lse: Tensor) -> None:
        """Take in the candidates of a tile: the logs of their sums of exponentials; -inf is none."""
        here = self.part(tile)
        self.lse[here] = torch.logaddexp(self.lse[here], lse)

    def mean(self) -> tuple[Tensor, Tensor]:
        asks = self.mass > 0
        losses = torch.where(asks, self.lse - self.hit / self.mass.clamp(min=TINY), 0.0)
        return total(self.shares, losses), (self.shares * asks).sum()


def _log_sums(logits: Tensor, sides: int) -> list[Tensor]:
    """The logs of the sums of exponentials of rows [r] and, with two sides, of columns [c]

    With two sides the host waits for the device, to read whether they can share the exponentials.
    """
    tops = [logits.amax(1 - side) for side in range(sides)]
    if (zero := _near(tops)) is not None:
        exps = _exp_from(logits, zero)
        return [exps.sum(1 - side).log_().add_(zero) for side in range(sides)]
    found = []
    for side, top in enumerate(tops):
        zero = top.masked_fill(top.abs() == torch.inf, 0.0)
        exps = _exp_from(logits, zero.unsqueeze(1 - side))
        found.append(exps.sum(1 - side).log_().add_(zero))
    return found


def _near(sides: list[Tensor]) -> Tensor | None:
    """The largest number of two sides if all are near to it, but for those that are -inf; else None"""
    if len(sides) == 1:
        return None
    both = torch.cat(sides)
    top, least = both.amax(), both.masked_fill(both == -torch.inf, torch.inf).amin()
    return top if 0 <= float(top - least) <= NEAR else None


def _exp_from(logits: Tensor, zero: Tensor) -> Tensor:
    """exp(logits - zero)"""
    return torch.add(-LOG2E * zero, logits, alpha=LOG2E).exp2_()


class _Second(NamedTuple):
    """The second pass; of each list the first tensor is about rows, a second one about columns."""

    near: Tensor | None  # [] what all of lse is near to, if they share the exponentials
    lse: list[Tensor]
    force: list[Tensor]  # gradient by the loss of each row; with `near` times exp(near - lse)
    pull: list[Tensor]  # gradient by that loss for a weight of 1

    def slopes(self, logits: Tensor, tile: Tile, where: Where | None) -> Tensor:
        """The gradient by the logits of a tile."""
        if self.near is not None:
            out = _exp_from(logits, self.near).mul_(_added(_across(self.force, tile)))
        else:
            pairs = zip(_across(self.lse, tile), _across(self.force, tile), strict=True)
            out = _added([_exp_from(logits, lse).mul_(force) for lse, force in pairs])
        if where is None:
            return out
        return kept(out, where, 0.0).addcmul_(where.weight, _added(_across(self.pull, tile)), value=-1)


def _across(sides: list[Tensor], tile: Tile) -> list[Tensor]:
    """Of each side what belongs to a tile: [r, 1], [1, c]"""
    parts = (tile.rows, tile.cols)[: len(sides)]
    return [x[part].unsqueeze(1 - side) for side, (x, part) in enumerate(zip(sides, parts, strict=True))]


def _added(sides: list[Tensor]) -> Tensor:
    return sides[0] if len(sides) == 1 else sides[0] + sides[1]


def _second(sides: list[_Side], grads: Sequence[Tensor]) -> _Second:
    asks = [side.mass > 0 for side in sides]
    force = [
        torch.where(ask, side.shares * grad.to(side.shares.dtype), 0.0)
        for ask, side, grad in zip(asks, sides, grads, strict=True)
    ]
    pull = [x / side.mass.clamp(min=TINY) for x, side in zip(force, sides, strict=True)]
    # No exponential of a row that asks for nothing is more than 0.
    lse = [side.lse.masked_fill(~ask, torch.inf) for ask, side in zip(asks, sides, strict=True)]
    if (near := _near([side.lse for side in sides])) is not None:
        force = [x * torch.exp(near - y) for x, y in zip(force, lse, strict=True)]
    return _Second(near, lse, force, pull)
