"""Scores of tiles of pairs, how gradients pass through them, and the precision of their products.

Losses are computed at least in float32. In training in half precision on a GPU the operands of large products
are bfloat16, with the range of float32, and sums stay float32: gradients are right to about 4e-3 then.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

import torch
from torch import Tensor

Parts = tuple[Tensor, ...]
"""Tensors that belong to the same rows: [n, ...] each. Shared parameters have any shape."""

Vjp = Callable[[Tensor, Sequence[Tensor | None]], None]
"""Adds gradients by rows, columns and shared parameters, from one by the logits of a tile, to sums of the
same shapes; None: not wanted."""

CACHED = 512  # rows and columns of a tile on a CPU: it stays in the cache of a core
LARGE = 4096  # elsewhere: a tile takes 64 MiB then, and a few are alive at a time

_HALF: ContextVar[bool] = ContextVar("_HALF", default=False)


@contextmanager
def half_products(allowed: bool) -> Iterator[None]:
    """A block whose losses may have operands in half precision. Training puts its losses, which stand outside
    autocast, into one."""
    before = _HALF.set(allowed)
    try:
        yield
    finally:
        _HALF.reset(before)


@contextmanager
def exact(x: Tensor) -> Iterator[None]:
    """A block in which autocast lowers no precision; where it was on, `half_operands` may all the same."""
    kind = x.device.type
    with half_products(_HALF.get() or torch.is_autocast_enabled(kind)), torch.autocast(kind, enabled=False):
        yield


def on_gpu(x: Tensor) -> bool:
    """Whether products are to be few and large, rather than stay in a cache."""
    return x.device.type == "cuda"


def half_operands(x: Tensor) -> bool:
    """Whether products of tensors like this one have operands in bfloat16."""
    return _HALF.get() and x.dtype == torch.float32 and on_gpu(x)


def product(a: Tensor, b: Tensor, half: bool = False) -> Tensor:
    """a @ b over the last two axes; half: of operands in bfloat16, with sums in float32"""
    if not half:
        return a @ b
    a, b = a.bfloat16(), b.bfloat16()
    if not (a.is_cuda and "dtype" in torch.ops.aten.bmm.overloads()):  # torch 2.8 and newer
        return a.float() @ b.float()
    lead = torch.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    a, b = (x.expand(*lead, *x.shape[-2:]).reshape(lead.numel(), *x.shape[-2:]) for x in (a, b))
    return torch.bmm(a, b, out_dtype=torch.float32).view(*lead, a.shape[1], b.shape[2])


def add_product(into: Tensor | None, a: Tensor, b: Tensor, half: bool = False) -> None:
    """into += a @ b, of two axes each, if that is wanted."""
    if into is None:
        return
    if half:
        into += product(a, b, half)
    else:
        into.addmm_(a, b)


class Score(ABC):
    """The logits of tiles. Abstract."""

    @abstractmethod
    def tile(self, rows: Parts, cols: Parts, shared: Parts) -> Tensor:
        """The logits of r rows with c columns: [r, c], differentiable"""

    def sides(self, rows: Parts, cols: Parts, wide: int) -> tuple[int, int]:  # noqa: ARG002
        """The most rows and columns of a tile. wide: how many columns each row has in all"""
        side = LARGE if on_gpu(rows[0]) else CACHED
        return side, side

    def forward_with_vjp(self, rows: Parts, cols: Parts, shared: Parts) -> tuple[Tensor, Vjp]:
        """The logits of a tile, and how a gradient passes through it: here by autograd."""
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
    """Inner products of rows [n, D] with columns [M, D]; the caller scales the rows beforehand."""

    def __init__(self, half: bool = False) -> None:
        """half: operands of products in bfloat16"""
        self.half = half

    def tile(self, rows: Parts, cols: Parts, shared: Parts) -> Tensor:  # noqa: ARG002
        return product(rows[0], cols[0].T, self.half)

    def forward_with_vjp(self, rows: Parts, cols: Parts, shared: Parts) -> tuple[Tensor, Vjp]:
        def pull(by_logits: Tensor, sums: Sequence[Tensor | None]) -> None:
            add_product(sums[0], by_logits, cols[0], self.half)
            add_product(sums[1], by_logits.T, rows[0], self.half)

        return self.tile(rows, cols, shared), pull


def only_once() -> None:
    """torch's once_differentiable ignores a second derivative in silence where the loss is a leaf."""
    if torch.is_grad_enabled():
        raise RuntimeError(
            "pair_loss is differentiable once: its gradient cannot be asked for with create_graph"
        )
