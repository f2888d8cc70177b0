"""Losses over inner products whose operands are in half precision, as beta-CAL on a GPU, by kernels.

The first pass writes sums alone, the second slopes of a tile, which are operands of two products. The host
looks at no ids. Where a kernel is refused there is no result, and torch computes the loss
(`kernels/launch.py`).
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from grainline.kernels import launch
from grainline.losses.tiled.operands import Operands, power_above
from grainline.losses.tiled.pair_mask import PairMatrix, Tile, all_tiles, by_first_place, side_by_side
from grainline.losses.tiled.scores import Dot, Parts, Score

HIGH, WIDE = 4096, 8192  # rows and columns of a tile: 64 MiB of slopes
BEYOND = 2**31  # more than any number of a group
ROOM = 2.0**14
"""The largest slope that is stored; float16 has 2**2 above it and 2**38 below."""
LEAST = 2.0**-96  # of the largest slope: what is divided by it stays finite

Sums = list[Tensor | None]
"""Of gradients by rows and by columns; None: not wanted."""


class KernelDots(NamedTuple):
    """The pairs of a loss, and the precision of their products. n rows, m columns."""

    by: Operands
    weights: list[float]  # of one item, of one image, and the decay of that
    row_ids: Tensor  # [n, 4] int32
    col_ids: Tensor  # [m, 4]

    @classmethod
    def of(cls, score: Score, blocks: Any, tensors: Parts) -> "KernelDots | None":
        """None: other scores or pairs, or there are no kernels"""
        if not (isinstance(score, Dot) and isinstance(blocks, PairMatrix) and launch.use(tensors[0])):
            return None
        if score.by.dtype is None or blocks.against is not None or 0 in map(len, tensors):
            return None
        weights = [float(x) for x in (blocks.own, blocks.sibling, blocks.decay)]
        return cls(score.by, weights, *described(blocks))

    def operands(self, tensors: Parts) -> Parts:
        """Rows and columns in half precision, and their units."""
        rows, cols = (self.by.scaled(x.contiguous()) for x in tensors)
        return rows.x, cols.x, rows.unit, cols.unit

    def full(self, operands: Parts) -> Parts:
        """Rows and columns in float32 again."""
        rows, cols, of_rows, of_cols = operands
        return rows * of_rows, cols * of_cols

    def sums(self, operands: Parts, both: bool) -> list[Tensor] | None:
        """What cross-entropy needs (`kernels.dots.sums`): of rows [3, n] and, if `both`, of columns [3, m]"""
        rows, cols, unit = operands[0], operands[1], operands[2] * operands[3]

        def kernel() -> list[Tensor]:
            from grainline.kernels.dots import sums

            of_rows, of_cols = [], None
            for some, ids in zip(rows.split(HIGH), self.row_ids.split(HIGH), strict=True):
                here, across = sums(some, cols, ids, self.col_ids, unit, self.weights, both)
                of_rows.append(here)
                if both:
                    of_cols = across if of_cols is None else _joined(of_cols, across)
            return [torch.cat(of_rows, 1), *([] if of_cols is None else [of_cols])]

        return launch.run("sums", kernel, lambda: None)

    def gradients(self, operands: Parts, sides: Sequence[Tensor], wanted: Sequence[bool]) -> Sums | None:
        """Those of cross-entropy. sides: lse, force and pull of rows [n, 3], or of both, as of `_Second`"""
        unit = operands[2] * operands[3]
        scale = _scale(2 * power_above(torch.cat([side[:, 1] for side in sides])))  # two forces at most

        def kernel() -> Sums:
            from grainline.kernels.dots import slopes

            def one(tile: Tile) -> Tensor:
                of_cols = sides[1][tile.cols] if len(sides) > 1 else None
                facts = sides[0][tile.rows], of_cols, scale
                return slopes(*self.given(operands, tile), unit, self.weights, *facts)

            return self.passed(operands, one, scale, wanted)

        return launch.run("slopes", kernel, lambda: None)

    def binary(self, operands: Parts, share: Tensor, wanted: Sequence[bool]) -> tuple[Tensor, Sums] | None:
        """Losses of rows [n], and gradients of binary cross-entropy where each counts `share` [n]"""
        unit, learns = operands[2] * operands[3], any(wanted)
        scale = _scale(power_above(share) * max(1.0, *self.weights[:2]))
        share = share.contiguous()
        losses = torch.zeros_like(share)

        def kernel() -> tuple[Tensor, Sums]:
            from grainline.kernels.dots import binary

            def one(tile: Tile) -> Tensor:
                given, of_rows = self.given(operands, tile), share[tile.rows]
                here, by_logits = binary(*given, unit, self.weights, of_rows, scale, learns)
                losses[tile.rows] += here
                return by_logits

            return losses, self.passed(operands, one, scale, wanted)

        return launch.run("binary", kernel, lambda: None)

    def given(self, operands: Parts, tile: Tile) -> Parts:
        """Its rows and columns, and their ids."""
        ids = self.row_ids[tile.rows], self.col_ids[tile.cols]
        return operands[0][tile.rows], operands[1][tile.cols], *ids

    def passed(
        self, operands: Parts, one: Callable[[Tile], Tensor], scale: Tensor, wanted: Sequence[bool]
    ) -> Sums:
        """Gradients by rows and columns. one: scale times those by the logits of a tile"""
        rows, cols = operands[:2]
        sums: Sums = [
            torch.zeros_like(x, dtype=torch.float32) if want else None
            for x, want in zip(operands[:2], wanted, strict=True)
        ]
        for tile in all_tiles(len(rows), len(cols), HIGH, WIDE):
            by_logits = one(tile)
            if sums[0] is not None:
                self.by.add_product(sums[0][tile.rows], by_logits, cols[tile.cols])
            if sums[1] is not None:
                self.by.add_product(sums[1][tile.cols], by_logits.T, rows[tile.rows])
        for x, unit in zip(sums, (operands[3], operands[2]), strict=True):
            if x is not None:
                x *= unit / scale
        return sums


def _scale(largest: Tensor) -> Tensor:
    """What slopes are multiplied by, none of which is larger; finite for the least of numbers too"""
    return ROOM / largest.clamp(min=LEAST)


def _joined(a: Tensor, b: Tensor) -> Tensor:
    """The sums of two parts of the rows, over columns: [3, m]"""
    return torch.cat([torch.logaddexp(a[:1], b[:1]), a[1:] + b[1:]])


def described(blocks: PairMatrix) -> tuple[Tensor, Tensor]:
    """Group, image, item and slot of rows [n, 4] and columns [m, 4], int32

    Images and items are numbered by their first place, so that those of neighbours are near; an image that is
    in several groups has several numbers. What is in no pair, or has no image, has -1 there in rows and -2 in
    columns.
    """
    item, image, group, slot = side_by_side(*blocks.rows, *blocks.cols)
    number = len(blocks.rows.item)
    none = torch.where(torch.arange(len(item), device=item.device) < number, -1, -2)
    real = (item >= 0) & (group >= 0)
    of_group = by_first_place(by_first_place(image) * BEYOND + group)
    ids = [
        torch.where(real, group, none),
        torch.where(real & (image >= 0), of_group, none),
        by_first_place(item),
        slot,
    ]
    row_ids, col_ids = torch.stack(ids, 1).int().tensor_split([number])
    return row_ids, col_ids
