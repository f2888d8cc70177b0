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

from grainline.kernels import fused
from grainline.types import full

Parts = tuple[Tensor, ...]
"""Tensors that belong to the same rows: [n, ...] each. Shared parameters have any shape."""

Vjp = Callable[[Tensor, Sequence[Tensor | None]], None]
"""Adds gradients by rows, columns and shared parameters, from one by the logits of a tile, to sums of the
same shapes; None: not wanted."""

CACHED = 512  # rows and columns of a tile on a CPU, or pairs with a pooled image: it stays in the cache
LARGE = 4096  # elsewhere: a tile takes 64 MiB then, and a few are alive at a time
ROOM = 2**30  # bytes of what a tile of `ConditionedCosine` stores of its pairs there
TINY = 1e-24  # the square of what F.normalize divides by at least
LOG2E = 1.4426950408889634
"""Powers of 2 take a quarter of the time of torch's `exp` on processors that are not Intel's."""

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
        raise RuntimeError("pair_loss is differentiable once: create_graph cannot be used with it")


# The cosine of a text with what it pools of an image, for all pairs, without pooling one in full.
#
# Of a text: query q, u = W_o' t and c = b_o . t, with t at length 1. Of an image: keys and values V. With the
# weights a of a pair, by softmax over the segments and the empty slot, and z = a V of all heads side by side:
#
#     out . t = z . u + c
#     |out|^2 = z' S z + 2 w . z + |b_o|^2                S = W_o' W_o, w = W_o' b_o
#
# The empty slot has a logit of 0 and no value: it counts in the sum of exponentials alone.
#
# On a GPU a tile is some images with all texts, so that its products are large, and what is no product is
# compiled into single kernels. On a CPU it is one image with some hundred texts, and stays in the cache.
# r images, c texts, L segments, heads of width d; D = heads * d.


class ConditionedCosine(Score):
    """scale * cosine + bias, with an explicit gradient, no dearer than the logits.

    rows    key, value [n, heads, L, d]; if segments are masked, [n, L] of 0, and -inf at masked ones
    cols    query [M, heads, d], divided by sqrt(d); u [M, heads, d]; c [M]
    shared  S [D, D], w [D]; |b_o|^2, scale and bias, of one element each

    Columns of a tile may be [r, c, ...]: others for each row.
    """

    def __init__(self, half: bool = False) -> None:
        """half: operands of products in bfloat16"""
        self.half = half

    def sides(self, rows: Parts, cols: Parts, wide: int) -> tuple[int, int]:  # noqa: ARG002
        """Some images with all texts, or if these are too many for a tile, one image with some."""
        heads, slots, width = rows[0].shape[1:]
        pairs = CACHED
        if on_gpu(rows[0]):  # weights and their gradients, z, y and the gradient by z
            pairs = ROOM // (4 * heads * (2 * slots + 3 * width))
        width = max(1, min(pairs, wide))
        return max(1, pairs // width), width

    def tile(self, rows: Parts, cols: Parts, shared: Parts) -> Tensor:
        *_, along, square = self.read(rows, cols, shared)
        return shared[3] * (along * square.clamp(min=TINY).rsqrt()) + shared[4]

    def read(self, rows: Parts, cols: Parts, shared: Parts) -> Parts:
        """The attention of a tile [r, heads, c, L], and what texts pool of images: z, S z [r, c, D]; out . t
        and |out|^2 [r, c]"""
        key, value, *masks = rows
        query, u, c = cols
        fit = self.product(by_head(query), key.mT)
        weight = self.narrow(fused(weights)(fit, *(mask[:, None, None] for mask in masks)))
        z = self.narrow(self.product(weight, value)).transpose(1, 2).flatten(2)
        y = self.narrow(self.product(z, shared[0]))
        along, square = fused(lengths)(z, y, u.flatten(-2), shared[1])
        return weight, z, y, along + c, square + shared[2]

    def forward_with_vjp(self, rows: Parts, cols: Parts, shared: Parts) -> tuple[Tensor, Vjp]:
        key, value = rows[:2]
        (query, u, c), (_, shift, _, scale, bias) = cols, shared
        weight, z, y, along, square = self.read(rows, cols, shared)
        inverse = square.clamp(min=TINY).rsqrt()
        cosine = along * inverse

        def pull(by_logits: Tensor, sums: Sequence[Tensor | None]) -> None:
            by_query, by_u, by_c, by_mix, by_shift, *alone = sums[len(rows) :]
            by_along = scale * by_logits * inverse
            by_square = -0.5 * by_along * cosine * inverse * (square > TINY)
            by_z = self.narrow(fused(by_pooled)(u.flatten(-2), y, shift, by_along, by_square))
            by_out = by_z.unflatten(-1, query.shape[-2:]).transpose(1, 2)  # [r, heads, c, d]
            by_fit = self.narrow(fused(by_logit)(weight, self.product(by_out, value.mT)))
            weighted = self.narrow(fused(times)(z, by_square)).flatten(0, 1)
            _add(sums[0], lambda: self.product(by_fit.mT, by_head(query)))
            _add(sums[1], lambda: self.product(weight.mT, by_out))
            _add(by_query, lambda: _as(query, self.product(by_fit, key).transpose(1, 2)))
            _add(by_u, lambda: _as(u, fused(times)(z, by_along).view(*z.shape[:2], *u.shape[-2:])))
            _add(by_c, lambda: _as(c, by_along))
            add_product(by_mix, weighted.T, z.flatten(0, 1), self.half)
            _add(by_shift, lambda: 2 * full(weighted).sum(0))
            for one, slope in zip(alone, (by_square, by_logits * cosine, by_logits), strict=True):
                _add(one, slope.sum)

        return scale * cosine + bias, pull

    def narrow(self, x: Tensor) -> Tensor:
        """x as an operand of further products."""
        return x.bfloat16() if self.half else x

    def product(self, a: Tensor, b: Tensor) -> Tensor:
        """a @ b, at least in float32"""
        return product(a, b, True) if self.half else full(a) @ full(b)


def by_head(cols: Tensor) -> Tensor:
    """[c, heads, d] or [r, c, heads, d] -> [1 or r, heads, c, d]"""
    return (cols if cols.dim() == 4 else cols[None]).transpose(1, 2)


def _as(cols: Tensor, slope: Tensor) -> Tensor:
    """A gradient [r, c, ...] in the shape of columns: over all rows, if all have the same ones"""
    return slope if cols.dim() == slope.dim() else slope.sum(0)


def _add(into: Tensor | None, slope: Callable[[], Tensor]) -> None:
    """Add a gradient that is computed only if it is wanted."""
    if into is not None:
        into += slope()


# What is no product: on a GPU one or two kernels each.


def weights(fit: Tensor, mask: Tensor | None = None) -> Tensor:
    """Softmax of [r, heads, c, L] with an empty slot of logit 0; mask of 0, and -inf where masked"""
    fit = fit if mask is None else fit + mask
    top = fit.detach().amax(-1, keepdim=True).clamp(min=0)
    grown = (fit - top).mul_(LOG2E).exp2_()
    return grown / (grown.sum(-1, keepdim=True) + (-top).exp())


def lengths(z: Tensor, y: Tensor, u: Tensor, shift: Tensor) -> tuple[Tensor, Tensor]:
    """z . u and z . (y + 2 w): [r, c] each"""
    z = full(z)
    return (z * u).sum(-1), (z * full(y)).sum(-1) + 2 * (z * shift).sum(-1)


def by_pooled(u: Tensor, y: Tensor, shift: Tensor, by_along: Tensor, by_square: Tensor) -> Tensor:
    """The gradient by z: by_along u + 2 by_square (y + w), [r, c, D]"""
    return (full(y) + shift).mul_(2 * by_square[..., None]).addcmul_(by_along[..., None], u)


def by_logit(weight: Tensor, by_weight: Tensor) -> Tensor:
    """The gradient by the logits of a softmax, from that by its weights; the empty slot takes the rest."""
    slope = by_weight * full(weight)
    return slope.addcmul_(full(weight), slope.sum(-1, keepdim=True), value=-1)


def times(x: Tensor, factor: Tensor) -> Tensor:
    """x [r, c, D] times a number for each pair [r, c]"""
    return full(x) * factor[..., None]
