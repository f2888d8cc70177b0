"""`chunked_cosine` with kernels for all of a tile but its products: attention, lengths, and the way back.

Weights are never stored: the kernels of the way back compute them again while what is of an image stays where
it is. Where a kernel is refused, torch computes its part (`kernels/launch.py`).
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from grainline.kernels import launch
from grainline.losses.tiled.chunked_cosine import Chunk, Chunked, ChunkedDense, Pooled, add
from grainline.losses.tiled.operands import Operands
from grainline.losses.tiled.scores import Parts

LEAST_WIDTH, MOST_WIDTH = 16, 128  # of a head, for the kernels


def fits(operands: Operands, key: Tensor) -> bool:
    """Whether the kernels are for these keys [n, heads, L, d], and their registers suffice."""
    _, _, slots, width = key.shape
    if operands.dtype is None or not LEAST_WIDTH <= width <= MOST_WIDTH or not launch.use(key):
        return False
    return slots <= (64 if launch.is_older(key) else 128)


class _Pools(Chunked):
    """Attention by a kernel. Abstract."""

    def pool(self, rows: Parts, cols: Parts) -> tuple[Chunk, Tensor]:
        def kernel() -> tuple[Chunk, Tensor]:
            from grainline.kernels.pooled import attend

            chunk = self.chunk(rows, cols)
            unit = chunk.key.unit * chunk.query.unit
            return chunk, attend(*attention(chunk, len(rows[0])), self.mask(rows), unit)

        return launch.run("attend", kernel, lambda: super(_Pools, self).pool(rows, cols))


def attention(chunk: Chunk, images: int) -> tuple[Tensor, Tensor, Tensor]:
    """Queries [heads, T, d], keys and values [heads, r, L, d]"""
    sides = (x.x.unflatten(1, (images, -1)).contiguous() for x in (chunk.key, chunk.value))
    return chunk.query.x, *sides


class KernelDense(_Pools, ChunkedDense):
    """As `ChunkedDense`."""

    def stored(self, points: int, width: int) -> int:
        return self.by.size * (points + 3 * width)  # the gradient by logits; z, y and w z

    def lengths(self, pooled: Pooled) -> tuple[Tensor, Tensor]:
        return launch.run(
            "lengths",
            lambda: lengths_by_kernel(pooled),
            lambda: super(KernelDense, self).lengths(pooled),
        )

    def pull_lengths(self, pooled: Pooled, by: Parts, sums: Sequence[Tensor | None]) -> tuple[Tensor, Tensor]:
        unit, of_z = self.by.slopes(by[0], pooled.units[2]), pooled.units[0]
        read = launch.run("weigh", lambda: self.weigh(pooled, by, unit), lambda: None)
        if read is None:
            return super().pull_lengths(pooled, by, sums)
        (half, by_u, total, turn), (of_u, *others) = read, sums
        if of_u is not None:
            of_u += by_u.view_as(of_u)
        self.pull_square(pooled.z, half, total, turn * of_z, of_z, others)
        return pooled.y, unit

    def weigh(
        self, pooled: Pooled, by: Parts, unit: Tensor, places: Tensor | None = None
    ) -> tuple[Tensor, ...]:
        """Of `kernels/pooled.py`, which puts the gradient by z where y is; and the unit of w."""
        from grainline.kernels.pooled import weigh

        turn = self.by.slopes(by[1], torch.ones_like(unit))
        units = torch.stack([*pooled.units, unit, turn])
        return *weigh(*pooled[:4], *(x.contiguous() for x in by), units, places), turn

    def pull_pool(
        self, tile: tuple[Parts, Parts], chunk: Chunk, by_z: Tensor, unit: Tensor, sums: Sequence[Any]
    ) -> None:
        (rows, cols), of_fit = tile, chunk.key.unit * chunk.query.unit

        def kernel() -> tuple[Tensor, Tensor, Tensor]:
            from grainline.kernels.pooled import unattend

            return unattend(*attention(chunk, len(rows[0])), self.mask(rows), by_z, of_fit)

        read = None if chunk.weight else launch.run("unattend", kernel, lambda: None)
        if read is None:  # a kernel was refused
            whole = chunk if chunk.weight else self.attend(rows, cols)
            super().pull_pool(tile, whole, by_z, unit, sums)
            return
        by_fit, parts_of_key, parts_of_value = read
        (by_key, by_value, by_query), of_value = sums, chunk.value.unit
        if by_key is not None:
            add(by_key, parts_of_key, unit * of_value * chunk.query.unit)
        if by_value is not None:
            add(by_value, parts_of_value, unit)
        if by_query is not None:
            by_each = self.by.wide(by_fit.flatten(2), chunk.key.x)
            add(by_query.transpose(0, 1), by_each, unit * of_value * chunk.key.unit)


def lengths_by_kernel(pooled: Pooled, places: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """The inner products of `kernels/pooled.py`."""
    from grainline.kernels.pooled import lengths

    return lengths(*pooled[:4], torch.stack(pooled.units), places)
