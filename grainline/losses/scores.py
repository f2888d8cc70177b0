"""Scores of pairs by tiles, and how gradients pass through them: one half of a loss in `pairs.py`."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

Parts = tuple[Tensor, ...]
"""Tensors that belong to the same rows: [n, ...] each. Shared parameters have any shape."""

Pull = Callable[[Tensor], Sequence[Tensor | None]]
"""From the gradient by the logits of a tile to that by its rows, its columns and the shared parameters."""

CACHED = 512
"""Rows and columns of a tile on a CPU: it stays in the cache of a core."""
LARGE = 4096
"""The same elsewhere: a tile takes 64 MiB then, and a few are alive at a time."""


class Score(ABC):
    """The logits of tiles. Abstract."""

    @abstractmethod
    def tile(self, rows: Parts, cols: Parts, shared: Parts) -> Tensor:
        """The logits of r rows with c columns: [r, c], differentiable"""

    def sides(self, rows: Parts, cols: Parts) -> tuple[int, int]:  # noqa: ARG002
        """How many rows and columns a tile has at most."""
        side = CACHED if rows[0].device.type == "cpu" else LARGE
        return side, side

    def pulled(self, rows: Parts, cols: Parts, shared: Parts) -> tuple[Tensor, Pull]:
        """The logits of a tile, and how a gradient passes through it: here by autograd."""
        everything = (*rows, *cols, *shared)
        with torch.enable_grad():
            leaves = [x.detach().requires_grad_(x.is_floating_point()) for x in everything]
            n, m = len(rows), len(rows) + len(cols)
            logits = self.tile(tuple(leaves[:n]), tuple(leaves[n:m]), tuple(leaves[m:]))
        wanted = [x for x in leaves if x.requires_grad]

        def pull(by_logits: Tensor) -> Sequence[Tensor | None]:
            found = iter(torch.autograd.grad(logits, wanted, by_logits, allow_unused=True))
            return [next(found) if x.requires_grad else None for x in leaves]

        return logits.detach(), pull


class Dot(Score):
    """Inner products of rows [n, D] with columns [M, D]; a scale is put on the rows beforehand."""

    def tile(self, rows: Parts, cols: Parts, shared: Parts) -> Tensor:  # noqa: ARG002
        return rows[0] @ cols[0].T

    def pulled(self, rows: Parts, cols: Parts, shared: Parts) -> tuple[Tensor, Pull]:
        def pull(by_logits: Tensor) -> Sequence[Tensor | None]:
            return by_logits @ cols[0], by_logits.T @ rows[0]

        return self.tile(rows, cols, shared), pull
