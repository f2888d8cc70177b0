"""The cosine of a text with what it pools of an image, for all pairs, without pooling one in full.

Of a text: query q, u = W_o' t and c = b_o . t, with t at length 1. Of an image: keys and values V. With the
weights a of a pair, by softmax over the segments and the empty slot, and z = a V of all heads side by side:

    out . t = z . u + c
    |out|^2 = z' S z + 2 w . z + |b_o|^2                S = W_o' W_o, w = W_o' b_o

The empty slot has a logit of 0 and no value: it counts in the sum of exponentials alone.

On a GPU a tile is some images with all texts, so that its products are large, and what is no product is
compiled into single kernels. On a CPU it is one image with some hundred texts, and stays in the cache.
r images, c texts, L segments, heads of width d; D = heads * d.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from torch import Tensor

from grainline.kernels.launch import fused
from grainline.losses.tiled.pair_loss import LOG2E
from grainline.losses.tiled.scores import Parts, Score, Vjp, add_product, on_gpu, product
from grainline.types import full

CACHED = 512  # pairs of a tile on a CPU
ROOM = 2**30
"""Bytes of what a tile elsewhere stores of its pairs; with less the host is the limit."""
TINY = 1e-24  # the square of what F.normalize divides by at least


class TilePools(NamedTuple):
    """The vectors that texts pool in a tile, and the two products of them that a cosine needs."""

    weight: Tensor  # [r, heads, c, L] attention; 1 minus the sum is that of the empty slot
    z: Tensor  # [r, c, D]
    y: Tensor  # [r, c, D] S z
    along: Tensor  # [r, c] out . t
    square: Tensor  # [r, c] |out|^2


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
        read = self.read(rows, cols, shared)
        return shared[3] * (read.along * read.square.clamp(min=TINY).rsqrt()) + shared[4]

    def read(self, rows: Parts, cols: Parts, shared: Parts) -> TilePools:
        """The vectors that the texts of a tile pool of its images."""
        key, value, *masks = rows
        query, u, c = cols
        fit = self.product(by_head(query), key.mT)
        weight = self.narrow(fused(weights)(fit, *(mask[:, None, None] for mask in masks)))
        z = self.narrow(self.product(weight, value)).transpose(1, 2).flatten(2)
        y = self.narrow(self.product(z, shared[0]))
        along, square = fused(lengths)(z, y, u.flatten(-2), shared[1])
        return TilePools(weight, z, y, along + c, square + shared[2])

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
            for one, by in zip(alone, (by_square, by_logits * cosine, by_logits), strict=True):
                _add(one, by.sum)

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


def _as(cols: Tensor, by: Tensor) -> Tensor:
    """A gradient [r, c, ...] in the shape of columns: over all rows, if all have the same ones"""
    return by if cols.dim() == by.dim() else by.sum(0)


def _add(into: Tensor | None, by: Callable[[], Tensor]) -> None:
    """Add a gradient that is computed only if it is wanted."""
    if into is not None:
        into += by()


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
    by = by_weight * full(weight)
    return by.addcmul_(full(weight), by.sum(-1, keepdim=True), value=-1)


def times(x: Tensor, by: Tensor) -> Tensor:
    """x [r, c, D] times a number for each pair [r, c]"""
    return full(x) * by[..., None]
