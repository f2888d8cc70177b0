"""`chunked_cosine` with kernels for its large parts: attention, the way back through it, lengths of scores.

Weights are never stored: the kernels of the way back compute them again while what is of an image stays where
it is. Where a kernel is refused, torch computes its part (`kernels/launch.py`).
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
    ChunkedGram,
    ChunkedOutward,
    add,
    add_alone,
    cosine,
    slopes,
)
from grainline.losses.tiled.operands import Operands, fused
from grainline.losses.tiled.scores import Parts, Vjp

LEAST_WIDTH, MOST_WIDTH = 16, 128  # of a head, for the kernels
MOST_POINTS = 128


def fits(operands: Operands, key: Tensor) -> bool:
    """Whether the kernels are for these keys [n, heads, L, d], and their registers suffice."""
    _, _, slots, width = key.shape
    if operands.dtype is None or not LEAST_WIDTH <= width <= MOST_WIDTH or not launch.use(key):
        return False
    return slots <= (64 if launch.is_older(key) else 128)


def fits_gram(operands: Operands, key: Tensor) -> bool:
    """As `fits`, for `KernelGram`: all segments of all heads are one block of a product."""
    _, heads, slots, _ = key.shape
    points = 1 << (heads - 1).bit_length() + (slots - 1).bit_length()  # both in full powers of two
    return operands.dtype is not None and points <= MOST_POINTS and launch.use(key)


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
        return self.by.size * (points + 2 * width)  # the gradient by logits; z and y

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
        u, of_value = self.once(cols[1]), chunk.value.unit

        def kernel() -> tuple[Tensor, Tensor, Tensor]:
            from grainline.kernels.pooled import unattend

            units = torch.stack([chunk.key.unit * chunk.query.unit, of_y, u.unit])
            by = u.x.flatten(1), y, shift, by_along.contiguous(), by_square.contiguous()
            return unattend(*attention(chunk, len(rows[0])), self.mask(rows), *by, units)

        read = None if chunk.weight else launch.run("unattend", kernel, lambda: None)
        if read is None:  # a kernel was refused
            whole = chunk if chunk.weight else self.attend(rows, cols)
            super().pull_pool(tile, whole, y, by_z, sums)
            return
        by_fit, parts_of_key, parts_of_value = read
        by_key, by_value, by_query = sums
        if by_key is not None:
            add(by_key, parts_of_key, unit * of_value * chunk.query.unit)
        if by_value is not None:
            add(by_value, parts_of_value, unit)
        if by_query is not None:
            by_each = self.by.wide(by_fit.flatten(2), chunk.key.x)
            add(by_query.transpose(0, 1), by_each, unit * of_value * chunk.key.unit)

    def pull_square(
        self, z: Tensor, by_square: Tensor, of_value: Tensor, sums: Sequence[Tensor | None]
    ) -> None:
        unit = self.by.slopes(by_square, of_value)

        def kernel() -> tuple[Tensor, Tensor]:
            from grainline.kernels.pooled import outer

            return outer(z.flatten(0, 1), (by_square / (unit / of_value)).flatten())

        read = launch.run("outer", kernel, lambda: None)
        if read is None:
            super().pull_square(z, by_square, of_value, sums)
            return
        for into, x, one in zip(sums, read, (unit * of_value, 2 * unit), strict=True):
            if into is not None:
                add(into, x, one)


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


class KernelGram(ChunkedGram):
    """As `ChunkedGram`."""

    def stored(self, points: int, width: int) -> int:  # noqa: ARG002
        return points * (8 + 2 * self.by.size)  # logits and V u; two gradients

    def forward_with_vjp(
        self,
        rows: Parts,
        cols: Parts,
        shared: Parts,
        known: Tensor | None = None,  # noqa: ARG002
    ) -> tuple[Tensor, Vjp]:
        by, (size, scale, bias) = self.by, shared
        chunk, u, matrix = self.chunk(rows, cols), self.once(cols[1], heads=True), by.scaled(rows[2])
        sides = (chunk.key, chunk.query), (chunk.value, u)
        of_fit, of_along = (row.unit * col.unit for row, col in sides)

        def kernel() -> Any:
            from grainline.kernels.gram import gram

            products = (by.wide(col.x, row.x.mT).unflatten(2, (len(rows[0]), -1)) for row, col in sides)
            given = *products, self.mask(rows), matrix.x, rows[3]
            return given, *gram(*given, torch.stack([of_fit, of_along, matrix.unit]))

        read = launch.run("gram", kernel, lambda: None)
        if read is None:
            return super().forward_with_vjp(rows, cols, shared)
        given, along, square = read[0], read[1] + cols[2], read[2] + size

        def pull(by_logits: Tensor, sums: Sequence[Tensor | None]) -> None:
            (*by_rows, by_gram, by_middle), (by_query, by_u, by_c) = sums[:4], sums[len(rows) : -len(shared)]
            by_along, by_square, facts = fused(slopes)(by_logits, along, square, scale)
            alive = [self.alive(rows, x) for x in (by_along, by_square)]
            turn, weight = (by.slopes(x, torch.ones_like(of_along)) for x in alive)
            unit = turn * of_along

            def kernel() -> tuple[Tensor, ...]:
                from grainline.kernels.gram import ungram

                both = (alive[0] / turn).contiguous(), (alive[1] / weight).contiguous()
                return ungram(*given, *both, torch.stack([of_fit, matrix.unit, 2 * weight / unit]))

            back = launch.run("ungram", kernel, lambda: None)
            if back is None:
                super(KernelGram, self).forward_with_vjp(rows, cols, shared)[1](by_logits, sums)
                return
            add_alone(by_c, sums[-3:], by_along, facts)
            for head, (by_fit, turned) in enumerate(zip(*back[:2], strict=True)):
                self.pull_product(head, by_fit, sides[0], unit, (by_rows[0], by_query))
                self.pull_product(head, turned, sides[1], turn, (by_rows[1], by_u))
            if by_gram is not None:
                add(by_gram, back[2], weight)
            if by_middle is not None:
                add(by_middle, back[3], weight)

        return scale * fused(cosine)(along, square) + bias, pull
