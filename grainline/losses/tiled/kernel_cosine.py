"""`chunked_cosine` with kernels for its large parts: attention, lengths, and the way back through attention.

Weights are never stored: the kernel of the way back computes them again while keys and values stay where they
are. Where a kernel is refused, torch computes its part (`kernels/launch.py`).
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from grainline.kernels import launch
from grainline.losses.tiled.chunked_cosine import (
    ByPooled,
    Chunk,
    Chunked,
    ChunkedDense,
    ChunkedOutward,
    add,
)
from grainline.losses.tiled.operands import Operands
from grainline.losses.tiled.scores import Parts

LEAST_WIDTH, MOST_WIDTH = 16, 128  # of a head, for the kernels


def fits(operands: Operands, key: Tensor) -> bool:
    """Whether the kernels are for these keys [n, heads, L, d], and their registers suffice."""
    _, _, slots, width = key.shape
    if operands.dtype is None or not LEAST_WIDTH <= width <= MOST_WIDTH or not launch.use(key):
        return False
    large = not key.is_cuda or torch.cuda.get_device_capability(key.device)[0] > 8
    return slots <= (128 if large else 64)


class _Pools(Chunked):
    """Attention by a kernel. Abstract."""

    def pool(self, rows: Parts, cols: Parts) -> tuple[Chunk, Tensor]:
        def kernel() -> tuple[Chunk, Tensor]:
            from grainline.kernels.pooled import attend

            chunk = self.chunk(rows, cols)
            unit = chunk.units[0] * chunk.units[1]
            return chunk, attend(*_attention(chunk, len(rows[0])), self.mask(rows), unit)

        return launch.run("attend", kernel, lambda: super(_Pools, self).pool(rows, cols))


def _attention(chunk: Chunk, images: int) -> tuple[Tensor, Tensor, Tensor]:
    """Queries [heads, T, d], keys and values [heads, r, L, d]"""
    return chunk.query, *(x.unflatten(1, (images, -1)).contiguous() for x in (chunk.key, chunk.value))


class KernelDense(_Pools, ChunkedDense):
    """As `ChunkedDense`."""

    def stored(self, points: int, width: int) -> int:
        return self.by.size * (points + 2 * width)  # the gradient by logits; z and y

    def lengths(
        self, z: Tensor, matrix: Tensor, shift: Tensor, u: Tensor, units: tuple[Tensor, ...]
    ) -> tuple[Tensor, Tensor, Tensor]:
        def kernel() -> Any:
            from grainline.kernels.pooled import lengths

            return lengths(z, matrix, shift, u, torch.stack(units), True, False)

        return launch.run(
            "lengths", kernel, lambda: super(KernelDense, self).lengths(z, matrix, shift, u, units)
        )

    def pull_pool(
        self,
        tile: tuple[Parts, Parts],
        chunk: Chunk,
        y: Tensor,
        by_z: ByPooled,
        sums: Sequence[Tensor | None],
    ) -> None:
        rows, cols = tile
        by_along, by_square, shift, (unit, of_y) = by_z
        u, (of_key, of_query, of_value) = self.once(cols[1]), chunk.units

        def kernel() -> tuple[Tensor, Tensor, Tensor]:
            from grainline.kernels.pooled import unattend

            attention, units = _attention(chunk, len(rows[0])), torch.stack([of_key * of_query, of_y, u.unit])
            sides = u.x.flatten(1), y, shift, by_along.contiguous(), by_square.contiguous()
            return unattend(*attention, self.mask(rows), *sides, units)

        read = None if chunk.weight else launch.run("unattend", kernel, lambda: None)
        if read is None:  # a kernel was refused
            whole = chunk if chunk.weight else self.attend(rows, cols)
            super().pull_pool(tile, whole, y, by_z, sums)
            return
        by_fit, parts_of_key, parts_of_value = read
        by_key, by_value, by_query = sums
        if by_key is not None:
            add(by_key, parts_of_key, unit * of_value * of_query)
        if by_value is not None:
            add(by_value, parts_of_value, unit)
        for head, by in enumerate(by_fit):
            self.pull_fit(chunk, head, by, unit * of_value, (None, by_query))


class KernelOutward(_Pools, ChunkedOutward):
    """As `ChunkedOutward`."""

    def lengths(
        self, z: Tensor, matrix: Tensor, shift: Tensor, u: Tensor, units: tuple[Tensor, ...]
    ) -> tuple[Tensor, Tensor]:
        def kernel() -> tuple[Tensor, Tensor]:
            from grainline.kernels.pooled import lengths

            turned = matrix.T.contiguous()
            return lengths(z, turned, shift, u, torch.stack(units), False, self.blocks > 1)[1:]

        return launch.run(
            "lengths", kernel, lambda: super(KernelOutward, self).lengths(z, matrix, shift, u, units)
        )
