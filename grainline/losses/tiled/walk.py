"""The walk over tiles and the sums of gradients that all losses of `pair_loss.py` share."""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from grainline.losses.tiled.pair_mask import PairMask, PairMatrix, Tile
from grainline.losses.tiled.sampled_pairs import SampledPairs
from grainline.losses.tiled.scores import Parts, Score


class TileWalk(NamedTuple):
    """A loss over pairs, but for the tensors with gradients."""

    score: Score
    loss: Any
    blocks: PairMatrix | SampledPairs
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

    def room(self, tensors: Parts) -> int:
        """The bytes of all rows and columns."""
        return sum(x.nbytes for x in tensors[: sum(self.counts)])


def zeros(tensors: Parts, wanted: Sequence[bool]) -> list[Tensor | None]:
    """Sums of gradients; None where none is wanted"""
    return [torch.zeros_like(x) if want else None for x, want in zip(tensors, wanted, strict=True)]


def total(shares: Tensor, losses: Tensor) -> Tensor:
    """The weighted sum of the losses of rows [n], in float64: []"""
    return (shares.double() * losses.double()).sum().to(losses.dtype)


def fill_others(x: Tensor, where: PairMask, other: float) -> Tensor:
    """x [r, c], with another value where there is no pair."""
    return x if where.real is None else x.masked_fill(~where.real, other)


def exact(x: Tensor) -> torch.autocast:
    """A block in which autocast lowers no precision."""
    return torch.autocast(x.device.type, enabled=False)


def only_once() -> None:
    """torch's once_differentiable ignores a second derivative in silence where the loss is a leaf."""
    if torch.is_grad_enabled():
        raise RuntimeError(
            "pair_loss is differentiable once: its gradient cannot be asked for with create_graph"
        )


def scaled(ctx: Any, grad: Tensor) -> list[Tensor | None]:
    """The sums of a backward pass times the gradient of the loss; without a copy, if it is the last pass."""
    if ctx.sums is None:
        raise RuntimeError("the gradient of pair_loss was asked for again without retain_graph")
    if torch._C._autograd._get_current_graph_task_keep_graph():
        return [None if x is None else grad * x for x in ctx.sums]
    sums, ctx.sums = ctx.sums, None
    return [None if x is None else x.mul_(grad) for x in sums]
