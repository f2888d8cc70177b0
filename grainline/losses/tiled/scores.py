"""Scores of tiles of pairs, and how gradients pass through them, for `pair_loss.py`."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import ClassVar

import torch
from torch import Tensor

from grainline.losses.tiled.operands import Operands

Parts = tuple[Tensor, ...]
"""Tensors that belong to the same rows: [n, ...] each. Shared parameters have any shape."""

Vjp = Callable[[Tensor, Sequence[Tensor | None]], None]
"""Adds gradients by rows, columns and shared parameters, from one by the logits of a tile, to sums of the
same shapes; None: not wanted."""

CACHED = 512  # rows and columns of a tile on a CPU: it stays in the cache of a core
LARGE = 4096  # elsewhere: a tile takes 64 MiB then, and a few are alive at a time


class Score(ABC):
    """The logits of tiles. Abstract."""

    closed: ClassVar[bool] = False
    """Whether `forward_with_vjp` can use known logits, rather than compute the tile again."""

    @abstractmethod
    def tile(self, rows: Parts, cols: Parts, shared: Parts) -> Tensor:
        """The logits of r rows with c columns: [r, c], differentiable"""

    def sides(self, rows: Parts, cols: Parts, wide: int) -> tuple[int, int]:  # noqa: ARG002
        """The most rows and columns of a tile. wide: how many columns each row has in all"""
        side = CACHED if rows[0].device.type == "cpu" else LARGE
        return side, side

    def forward_with_vjp(
        self,
        rows: Parts,
        cols: Parts,
        shared: Parts,
        known: Tensor | None = None,  # noqa: ARG002
    ) -> tuple[Tensor, Vjp]:
        """The logits of a tile, and how a gradient passes through it: here by autograd.

        known  [r, c] the logits, if they are there already; only where `closed`
        """
        everything = (*rows, *cols, *shared)
        with torch.enable_grad():
            leaves = [x.detach().requires_grad_(x.is_floating_point()) for x in everything]
            n, m = len(rows), len(rows) + len(cols)
            logits = self.tile(tuple(leaves[:n]), tuple(leaves[n:m]), tuple(leaves[m:]))

        def pull(by_logits: Tensor, sums: Sequence[Tensor | None]) -> None:
            wanted = [(x, into) for x, into in zip(leaves, sums, strict=True) if into is not None]
            grads = torch.autograd.grad(logits, [x for x, _ in wanted], by_logits, allow_unused=True)
            for (_, into), x in zip(wanted, grads, strict=True):
                if x is not None:
                    into += x

        return logits.detach(), pull


class Dot(Score):
    """Inner products of rows [n, D] with columns [M, D]; the caller scales the rows beforehand.

    Columns of a tile may be [r, c, D]: a list of its own for each row.
    """

    closed = True
    by = Operands(None)

    def __init__(self, operands: Operands | None = None) -> None:
        """operands: of products of rows with shared columns; None: as they are"""
        if operands is not None:
            self.by = operands

    def tile(self, rows: Parts, cols: Parts, shared: Parts) -> Tensor:  # noqa: ARG002
        if cols[0].dim() == 3:
            return (cols[0] @ rows[0][..., None])[..., 0]
        return self.by.product(rows[0], cols[0].T)

    def forward_with_vjp(
        self, rows: Parts, cols: Parts, shared: Parts, known: Tensor | None = None
    ) -> tuple[Tensor, Vjp]:
        def pull(by_logits: Tensor, sums: Sequence[Tensor | None]) -> None:
            if self.by.dtype is None or cols[0].dim() == 3:
                add_products(by_logits, (rows[0], cols[0]), (sums[0], sums[1]))
                return
            slopes = self.by.scaled(by_logits)
            for into, a, b in ((sums[0], slopes.x, cols[0]), (sums[1], slopes.x.T, rows[0])):
                if into is not None:
                    other = self.by.scaled(b)
                    into.addcmul_(self.by.wide(a, other.x), slopes.unit * other.unit)

        return self.tile(rows, cols, shared) if known is None else known, pull


def add_products(
    by_logits: Tensor, sides: tuple[Tensor, Tensor], sums: tuple[Tensor | None, Tensor | None]
) -> None:
    """Pass a gradient by inner products [r, c] on to rows [r, D] and columns [c, D] or [r, c, D]."""
    rows, cols = sides
    by_rows, by_cols = sums
    if cols.dim() == 3:
        if by_rows is not None:
            by_rows += (by_logits[:, None] @ cols)[:, 0]
        if by_cols is not None:
            by_cols.addcmul_(by_logits[..., None], rows[:, None])
        return
    if by_rows is not None:
        by_rows.addmm_(by_logits, cols)
    if by_cols is not None:
        by_cols.addmm_(by_logits.T, rows)


def only_once() -> None:
    """torch's once_differentiable ignores a second derivative in silence where the loss is a leaf."""
    if torch.is_grad_enabled():
        raise RuntimeError(
            "pair_loss is differentiable once: its gradient cannot be asked for with create_graph"
        )
