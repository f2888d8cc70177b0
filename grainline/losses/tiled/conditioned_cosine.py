"""The cosine of a text with what it pools of an image, for all pairs, without pooling one in full.

Of a text: query q, u = W_o' t and c = b_o . t, with t at length 1. Of an image: keys and values V. With the
weights a of a pair, by softmax over the segments and the empty slot, and z = a V of all heads side by side:

    out . t = z . u + c
    |out|^2 = z' S z + 2 w . z + |b_o|^2                S = W_o' W_o, w = W_o' b_o                (dense)

or, with M the values behind W_o [heads * L, D] and G = M M', which is faster where heads * L < D:

    out . t = sum over heads of a . (V u) + c
    |out|^2 = a' G a + 2 a . (M b_o) + |b_o|^2                                                    (gram)

Both are exact. The empty slot has a logit of 0 and no value: it counts in the sum of exponentials alone.
"""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from grainline.losses.tiled.pair_loss import LOG2E
from grainline.losses.tiled.scores import Parts, Score, Vjp
from grainline.types import full

CACHED = 512  # pairs of a tile on a CPU
ROOM = 2**25
"""Numbers in the largest tensor of a tile elsewhere: 128 MiB in float32, and a few are alive at a time. With
2**24 an H100 waited for the host."""
WIDE = 2048  # the most texts of a tile
BLOCKS = 4  # rows and columns of blocks of a symmetric matrix
TINY = 1e-24  # the square of what F.normalize divides by at least


class Dots(NamedTuple):
    """Products of a tile: c pairs for each of r images."""

    along: Tensor  # [r, c] inner product of the pooled image and the unit text
    square: Tensor  # [r, c] squared length of the pooled image
    state: Parts  # what the gradient needs


class TileInputs(NamedTuple):
    """The rows, columns and shared parameters of a tile, or the sums of their gradients."""

    rows: Sequence[Any]
    cols: Sequence[Any]
    shared: Sequence[Any]


class PooledCosine(Score):
    """scale * cosine + bias. Abstract: the ways to compute it are its subclasses.

    rows    key, value [n, heads, L, d]; those of the way; if segments are masked, [n, L], -inf at masked ones
    cols    query [M, heads, d], divided by sqrt(d); u [M, heads, d]; c [M]
    shared  those of the way; |b_o|^2, scale and bias, of one element each

    Columns of a tile may be [r, c, ...]: others for each row.
    """

    fixed: ClassVar[int] = 2
    """Tensors of rows before the mask."""
    pooled: ClassVar[bool] = True
    """Whether a pair stores what it pools, in heads * d numbers, besides its heads * L weights."""

    def sides(self, rows: Parts, cols: Parts, wide: int) -> tuple[int, int]:
        """One image with some hundred texts, or several if there are few texts."""
        pairs = CACHED
        if cols[0].device.type != "cpu":
            heads, slots, width = rows[0].shape[1:]
            pairs = max(1, ROOM // (heads * max(slots, width * self.pooled)))
        width = max(1, min(pairs, WIDE, wide))
        return max(1, pairs // width), width

    def weights(self, here: TileInputs) -> Tensor:
        """Attention of each segment: [r, heads, c, L]; 1 minus the sum is that of the empty slot."""
        key = here.rows[0]
        fit = full(by_head(here.cols[0]).to(key.dtype) @ key.transpose(-1, -2))
        if len(here.rows) > self.fixed:
            fit = fit + here.rows[-1][:, None, None]
        top = fit.detach().amax(-1, keepdim=True).clamp_(min=0)
        grown = (fit - top).mul_(LOG2E).exp2_()
        return grown / (grown.sum(-1, keepdim=True) + (-top).exp())

    @abstractmethod
    def read(self, weight: Tensor, here: TileInputs) -> Dots:
        """Products from the weights of a tile."""

    def tile(self, rows: Parts, cols: Parts, shared: Parts) -> Tensor:
        here = TileInputs(rows, cols, shared)
        read = self.read(self.weights(here), here)
        return shared[-2] * (read.along * read.square.clamp(min=TINY).rsqrt()) + shared[-1]


class ByHand(PooledCosine):
    """With an explicit gradient, no dearer than the logits. Abstract."""

    @abstractmethod
    def unread(
        self, weight: Tensor, state: Parts, by: tuple[Tensor, Tensor], here: TileInputs, sums: TileInputs
    ) -> Tensor:
        """The backward of `read`: returns the gradient by the weights, adds the others to `sums`.

        by  the gradients by `along` and `square`: [r, c] each
        """

    def forward_with_vjp(
        self,
        rows: Parts,
        cols: Parts,
        shared: Parts,
        known: Tensor | None = None,  # noqa: ARG002
    ) -> tuple[Tensor, Vjp]:
        here = TileInputs(rows, cols, shared)
        weight = self.weights(here)
        read = self.read(weight, here)
        inverse = read.square.clamp(min=TINY).rsqrt()
        cosine = read.along * inverse

        def pull(by_logits: Tensor, sums: Sequence[Tensor | None]) -> None:
            n, m = len(rows), len(rows) + len(cols)
            into = TileInputs(sums[:n], sums[n:m], sums[m:])
            by_cosine = shared[-2] * by_logits
            by_along = by_cosine * inverse
            by_square = -0.5 * by_along * cosine * inverse * (read.square > TINY)
            by_weight = self.unread(weight, read.state, (by_along, by_square), here, into)
            by_fit = by_weight.mul_(weight)
            by_fit.addcmul_(weight, by_fit.sum(-1, keepdim=True), value=-1)
            _add(into.rows[0], lambda: by_fit.transpose(-1, -2) @ by_head(cols[0]))
            _add(into.cols[0], lambda: over_rows(by_fit, rows[0], cols[0]))
            _add(into.cols[2], lambda: by_along if cols[2].dim() == 2 else by_along.sum(0))
            alone = by_square, by_logits * cosine, by_logits
            for one, by in zip(into.shared[-3:], alone, strict=True):
                _add(one, by.sum)

        return shared[-2] * cosine + shared[-1], pull


class Dense(ByHand):
    """Through S [D, D] and w [D], shared by all pairs."""

    def read(self, weight: Tensor, here: TileInputs) -> Dots:
        mix, shift, size = here.shared[:3]
        z = (weight @ here.rows[1]).transpose(1, 2).flatten(2)  # [r, c, D]
        y = torch.addmm(shift, z.flatten(0, 1), mix).view_as(z)
        along = (z * here.cols[1].flatten(-2)).sum(-1) + here.cols[2]
        return Dots(along, (z * y).sum(-1) + z @ shift + size, (z, y))

    def unread(
        self, weight: Tensor, state: Parts, by: tuple[Tensor, Tensor], here: TileInputs, sums: TileInputs
    ) -> Tensor:
        z, y = state
        by_along, by_square = (x[..., None] for x in by)  # [r, c, 1]
        u = here.cols[1]
        by_z = (by_along * u.flatten(-2)).addcmul_(y, by_square, value=2)
        half, all_z = (by_square * z).flatten(0, 1), z.flatten(0, 1)
        by_heads = by_z.unflatten(-1, u.shape[-2:]).transpose(1, 2)  # [r, heads, c, d]
        _add(sums.rows[1], lambda: weight.transpose(-1, -2) @ by_heads)
        _add(sums.cols[1], lambda: by_text((by_along * z).unflatten(-1, u.shape[-2:]).transpose(1, 2), u))
        if sums.shared[0] is not None:
            _add_symmetric(sums.shared[0], half, all_z)
        if sums.shared[1] is not None:
            sums.shared[1].addmv_(all_z.T, by[1].flatten(), alpha=2)
        return by_heads @ here.rows[1].transpose(-1, -2)


class Gram(ByHand):
    """Through G [n, P, P] and M b_o [n, P] of each image, P = heads * L."""

    fixed = 4
    pooled = False

    def read(self, weight: Tensor, here: TileInputs) -> Dots:
        value, gram, middle = here.rows[1:4]
        flat = weight.transpose(1, 2).flatten(2)  # [r, c, P]
        y = torch.baddbmm(middle[:, None], flat, gram)
        by_value = by_head(here.cols[1]) @ value.transpose(-1, -2)  # [r, heads, c, L]
        along = (weight * by_value).sum(-1).sum(1) + here.cols[2]
        square = (flat * y).sum(-1) + (flat @ middle[..., None])[..., 0] + here.shared[0]
        return Dots(along, square, (flat, y, by_value))

    def unread(
        self, weight: Tensor, state: Parts, by: tuple[Tensor, Tensor], here: TileInputs, sums: TileInputs
    ) -> Tensor:
        flat, y, by_value = state
        u, value = here.cols[1], here.rows[1]
        by_along, by_square = by[0][:, None, :, None], by[1][..., None]
        turned = by_along * weight
        half = by_square * flat
        _add(sums.rows[1], lambda: turned.transpose(-1, -2) @ by_head(u))
        _add(sums.cols[1], lambda: over_rows(turned, value, u))
        _add(sums.rows[2], lambda: half.transpose(-1, -2) @ flat)
        _add(sums.rows[3], lambda: 2 * half.sum(1))
        by_y = (2 * by_square * y).unflatten(-1, (value.shape[1], -1)).transpose(1, 2)
        return (by_along * by_value).add_(by_y)


class Outward(PooledCosine):
    """Through a matrix A [D, D] and a [D] with |out| = |A z + a|: W_o itself, or the triangle of its QR.

    For scores alone: its gradient is autograd's. Products with keys and values in half precision are in half
    precision, and nothing else.
    """

    def __init__(self, blocks: int) -> None:
        """blocks: rows of A in so many blocks, each without the zeros left of the diagonal; 1: any A"""
        self.blocks = blocks

    def read(self, weight: Tensor, here: TileInputs) -> Dots:
        value, (matrix, shift) = here.rows[1], here.shared[:2]
        z = (weight.to(value.dtype) @ value).transpose(1, 2).flatten(2)  # [r, c, D]
        flat, step = z.flatten(0, 1), -(-len(matrix) // self.blocks)
        square = torch.zeros(len(flat), dtype=weight.dtype, device=z.device)
        for start in range(0, len(matrix), step):
            part = slice(start, start + step)
            left = start if self.blocks > 1 else 0
            out = full(flat[:, left:] @ matrix[part, left:].T) + shift[part]
            square = square + out.square().sum(-1)
        along = (z * here.cols[1].flatten(-2)).sum(-1) + here.cols[2]
        return Dots(along, square.view_as(along), ())


def by_head(cols: Tensor) -> Tensor:
    """[c, heads, d] or [r, c, heads, d] -> [1 or r, heads, c, d]"""
    return (cols if cols.dim() == 4 else cols[None]).transpose(1, 2)


def over_rows(by: Tensor, rows: Tensor, cols: Tensor) -> Tensor:
    """by [r, heads, c, L] @ rows [r, heads, L, d]: the gradient by columns, in their shape.

    If all rows share the columns, it is summed over rows, in one product.
    """
    if cols.dim() == 4 or len(by) == 1:
        return by_text(by @ rows, cols)
    return torch.einsum("rhcl,rhld->chd", by, rows)


def by_text(by: Tensor, cols: Tensor) -> Tensor:
    """A gradient [r, heads, c, d] in the shape of columns: over all rows, if all have the same ones"""
    by = by.transpose(1, 2)
    if cols.dim() == 4:
        return by
    return by[0] if len(by) == 1 else by.sum(0)


def _add_symmetric(into: Tensor, a: Tensor, b: Tensor) -> None:
    """Add a' b [D, D], which is symmetric, a, b [R, D]: blocks above the diagonal twice and none below it.

    The gradient of a symmetric matrix stays right, with 5/8 of the products.
    """
    step = -(-len(into) // BLOCKS)
    for start in range(0, len(into), step):
        end = start + step
        into[start:end, start:end].addmm_(a[:, start:end].T, b[:, start:end])
        if end < len(into):
            into[start:end, end:].addmm_(a[:, start:end].T, b[:, end:], alpha=2)


def _add(into: Tensor | None, by: Callable[[], Tensor]) -> None:
    """Add a gradient that is computed only if it is wanted."""
    if into is not None:
        into += by()
