"""`conditioned_cosine` on a GPU: a tile is a chunk of images with all texts, and its products are large.

A tile of some hundred texts is some 75 small kernels, more than the host can launch in the time that a GPU
runs them. Here all texts meet a chunk of images, one head at a time: [T, d] @ [d, r * L] and the like, in
half precision where training is (`operands.py`). What is no product is compiled into single kernels.

Formulas are those of `conditioned_cosine`. r images, T texts, L segments, heads of width d;
D = heads * d.
"""

import math
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from grainline.losses.tiled.conditioned_cosine import TINY, Dense
from grainline.losses.tiled.operands import Operands, Scaled, fused
from grainline.losses.tiled.pair_loss import LOG2E
from grainline.losses.tiled.scores import Parts, Score, Vjp
from grainline.types import full

ROOM = 2**30  # bytes of what a tile stores of its pairs; with less the host is the limit
MOST = 256  # images of a tile
LONG = 8192  # rows of a product that a processor adds up


class Chunk(NamedTuple):
    """The attention of all texts over a chunk of images."""

    weight: list[Tensor]  # of each head [T, r, L]; [] where a kernel computes them again
    key: Scaled  # [heads, r * L, d]
    query: Scaled  # [heads, T, d]
    value: Scaled  # [heads, r * L, d]


class Pooled(NamedTuple):
    """What texts pool of a chunk of images, in front of a cosine."""

    z: Tensor  # [r, T, D] operands
    y: Tensor  # [r, T, D] S z, operands
    u: Tensor  # [T, D] operands
    shift: Tensor  # [D] w
    units: tuple[Tensor, ...]  # of z, y and u


class Chunked(Score):
    """Abstract. Columns are the same for all images: no lists."""

    fixed: ClassVar[int] = Dense.fixed
    """Tensors of rows before the mask."""

    def __init__(self, operands: Operands) -> None:
        self.by = operands
        self.shared: dict[tuple[int, torch.Size], Scaled] = {}

    @abstractmethod
    def stored(self, points: int, width: int) -> int:
        """The bytes that a tile stores of a pair. points: heads * L, width: heads * d"""

    def sides(self, rows: Parts, cols: Parts, wide: int) -> tuple[int, int]:  # noqa: ARG002
        """Some images with all texts, or if these are too many for a tile, one image with some."""
        heads, slots, width = rows[0].shape[1:]
        pairs, wide = max(1, ROOM // self.stored(heads * slots, heads * width)), max(1, wide)
        return max(1, min(MOST, pairs // wide)), min(wide, pairs)

    def once(self, x: Tensor, heads: bool = False) -> Scaled:
        """Operands that many tiles share, made once. heads: of texts, [T, heads, d] -> [heads, T, d]"""
        key = x.data_ptr(), x.shape
        if key not in self.shared:
            self.shared[key] = self.by.scaled(x.transpose(0, 1).contiguous() if heads else x)
        return self.shared[key]

    def attend(self, rows: Parts, cols: Parts) -> Chunk:
        """Softmax over the segments and the empty slot."""
        chunk, mask = self.chunk(rows, cols), self.mask(rows)
        unit = chunk.key.unit * chunk.query.unit
        for q, k in zip(chunk.query.x, chunk.key.x, strict=True):
            fit = self.by.wide(q, k.mT).unflatten(1, (len(rows[0]), -1))
            chunk.weight.append(self.by.cast(fused(weights)(fit, unit, mask)))
        return chunk

    def chunk(self, rows: Parts, cols: Parts) -> Chunk:
        """The operands of attention, without weights."""
        key, value = (self.by.scaled(x.transpose(0, 1).flatten(1, 2)) for x in rows[:2])
        return Chunk([], key, self.once(cols[0], heads=True), value)

    def mask(self, rows: Parts) -> Tensor | None:
        """[r, L] of 0, and -inf where there is no segment"""
        return rows[-1] if len(rows) > self.fixed else None

    def alive(self, rows: Parts, by: Tensor) -> Tensor:
        """A gradient [r, T] without images that have no segment: it reaches none of their weights, and where
        b_o is small it is so large that those of all others would be zeros of float16 beside it.
        """
        mask = self.mask(rows)
        return by if mask is None else by.masked_fill((mask == -torch.inf).all(-1, keepdim=True), 0)

    def pool(self, rows: Parts, cols: Parts) -> tuple[Chunk, Tensor]:
        """What each text pools: [r, T, D] in units of values"""
        chunk = self.attend(rows, cols)
        heads = zip(chunk.weight, chunk.value.x, strict=True)
        return chunk, torch.cat([self.by.narrow(a.transpose(0, 1), by_image(v, a)) for a, v in heads], -1)

    def pull_product(
        self, head: int, by: Tensor, sides: tuple[Scaled, Scaled], unit: Tensor, sums: Sequence[Any]
    ) -> None:
        """Add the gradients by rows [heads, r * L, d] and columns [heads, T, d], keys and queries or values
        and u, from those by the products of a head [T, r, L], in units."""
        flat, (row, col), (by_row, by_col) = by.flatten(1), sides, sums
        if by_row is not None:
            add(by_row[:, head], by_image(self.by.wide(flat.mT, col.x[head]), by), unit * col.unit)
        if by_col is not None:
            add(by_col[:, head], self.by.wide(flat, row.x[head]), unit * row.unit)

    def tile(self, rows: Parts, cols: Parts, shared: Parts) -> Tensor:
        return self.forward_with_vjp(rows, cols, shared)[0]


def by_image(x: Tensor, weight: Tensor) -> Tensor:
    """[r * L, d] -> [r, L, d], for weights [T, r, L]"""
    return x.unflatten(0, weight.shape[1:])


def add(into: Tensor, x: Tensor, unit: Tensor) -> None:
    """Add a product of operands, in its unit, to a sum of gradients of the same shape."""
    into.addcmul_(x, unit)


class ChunkedDense(Chunked):
    """Through S [D, D] and w [D], shared by all pairs, as `Dense`."""

    def stored(self, points: int, width: int) -> int:
        # weights and the gradient by logits; z, y and the gradient by z
        return self.by.size * (2 * points + 3 * width)

    def forward_with_vjp(
        self,
        rows: Parts,
        cols: Parts,
        shared: Parts,
        known: Tensor | None = None,  # noqa: ARG002
    ) -> tuple[Tensor, Vjp]:
        (mix, shift, size, scale, bias) = shared
        (chunk, z), u, matrix = self.pool(rows, cols), self.once(cols[1]), self.once(mix)
        units = chunk.value.unit, chunk.value.unit * matrix.unit, u.unit
        pooled = Pooled(z, self.product(z, matrix.x), u.x.flatten(1), shift, units)
        along, square, logits = fused(cosines)(*self.lengths(pooled), cols[2], size, scale, bias)

        def pull(by_logits: Tensor, sums: Sequence[Tensor | None]) -> None:
            by_rows, (by_query, by_u, by_c) = sums[:2], sums[len(rows) : -len(shared)]
            by_mix, by_shift, *alone = sums[-len(shared) :]
            by_along, by_square, facts = fused(slopes)(by_logits, along, square, scale)
            add_alone(by_c, alone, by_along, facts)
            by = tuple(self.alive(rows, x) for x in (by_along, by_square))
            by_z, unit = self.pull_lengths(pooled, by, (by_u, by_mix, by_shift))
            self.pull_pool((rows, cols), chunk, by_z, unit, (*by_rows, by_query))

        return logits, pull

    def product(self, z: Tensor, matrix: Tensor) -> Tensor:
        """y = S z, as operands"""
        return self.by.narrow(z.flatten(0, 1), matrix).view_as(z)

    def lengths(self, pooled: Pooled) -> tuple[Tensor, Tensor]:
        """z . u and z . (y + 2 w): [r, T] each"""
        return tuple(fused(products)(*pooled))

    def pull_lengths(self, pooled: Pooled, by: Parts, sums: Sequence[Tensor | None]) -> tuple[Tensor, Tensor]:
        """Add the gradients by u, S and w, from those by along and square [r, T]. Returns that by z,
        as operands, and its unit."""
        (z, y, u, shift, (of_z, of_y, of_u)), (by_along, by_square), (by_u, *others) = pooled, by, sums
        if by_u is not None:
            by_u += (fused(over_images)(z, by_along) * of_z).view_as(by_u)
        weight, unit = self.by.scaled(by_square), self.by.slopes(by_along, of_u)
        total = self.by.wide(weight.x.reshape(1, -1), z.flatten(0, 1))[0]
        self.pull_square(
            z, self.by.cast(fused(weighted)(z, weight.x)), total, weight.unit * of_z, of_z, others
        )
        of_z_in_unit = by_along / unit, by_square / unit, of_u, of_y
        return self.by.cast(fused(by_pooled)(u, y, shift, *of_z_in_unit)), unit

    def pull_square(
        self,
        z: Tensor,
        weighted: Tensor,
        total: Tensor,
        unit: Tensor,
        of_z: Tensor,
        sums: Sequence[Tensor | None],
    ) -> None:
        """Add the gradients by S and w, from w z [r, T, D] and its sum [D] in a unit."""
        by_mix, by_shift = sums
        if by_mix is not None:
            self.add_symmetric(by_mix, weighted.flatten(0, 1), z.flatten(0, 1), unit * of_z)
        if by_shift is not None:
            add(by_shift, total, 2 * unit)

    def pull_pool(
        self,
        tile: tuple[Parts, Parts],  # noqa: ARG002
        chunk: Chunk,
        by_z: Tensor,
        unit: Tensor,
        sums: Sequence[Any],
    ) -> None:
        """Add the gradients by keys, values and queries, from that by what is pooled, in a unit."""
        by, (by_key, by_value, by_query) = self.by, sums
        sides = chunk.key, chunk.query
        parts_of = by_z.tensor_split(len(chunk.key.x), -1)
        for head, (a, here) in enumerate(zip(chunk.weight, parts_of, strict=True)):
            value = by_image(chunk.value.x[head], a)
            if by_value is not None:
                add(by_value[:, head], by.wide(a.permute(1, 2, 0), here), unit)
            by_fit = fused(by_logit)(a, by.wide(here, value.mT).transpose(0, 1))
            self.pull_product(head, by.cast(by_fit), sides, unit * chunk.value.unit, (by_key, by_query))

    def add_symmetric(self, into: Tensor, a: Tensor, b: Tensor, unit: Tensor) -> None:
        """Add a' b [D, D] of many rows, which is symmetric: in parts, or few processors would have work."""
        parts = math.gcd(len(a), 2 ** max(0, (len(a) // LONG).bit_length() - 1))
        left, right = (x.view(parts, -1, x.shape[1]) for x in (a, b))
        add(into, self.by.wide(left.mT, right).sum(0), unit)


def add_alone(
    by_c: Tensor | None, alone: Sequence[Tensor | None], by_along: Tensor, facts: tuple[Tensor, ...]
) -> None:
    """Add the gradients by c of texts, and by |b_o|^2, scale and bias. facts: of `slopes`"""
    if by_c is not None:
        by_c += by_along.sum(0)
    for one, by in zip(alone, facts, strict=True):
        if one is not None:
            one += by.sum()


# What is no product: on a GPU one or two kernels each. Operands are in units, all other tensors as they are.


def weights(fit: Tensor, unit: Tensor, mask: Tensor | None) -> Tensor:
    """Softmax of [T, r, L] with an empty slot of logit 0; mask [r, L] of 0, and -inf where masked"""
    fit = fit * unit if mask is None else fit * unit + mask
    top = fit.amax(-1, keepdim=True).clamp(min=0)
    grown = ((fit - top) * LOG2E).exp2()
    return grown / (grown.sum(-1, keepdim=True) + (-top * LOG2E).exp2())


def products(z: Tensor, y: Tensor, u: Tensor, shift: Tensor, units: tuple[Tensor, ...]) -> Any:
    """z, y [r, T, D], u [T, D] -> z . u and z . (y + 2 w): [r, T] each"""
    of_z, of_y, of_u = units
    z = full(z) * of_z
    return (z * (full(u) * of_u)).sum(-1), (z * (full(y) * of_y + 2 * shift)).sum(-1)


def inner(a: Tensor, b: Tensor) -> Tensor:
    """Inner products over the last axis."""
    return (full(a) * full(b)).sum(-1)


def cosine(along: Tensor, square: Tensor, c: Tensor, scale: Tensor, bias: Tensor) -> Tensor:
    """Logits [r, T] from those products of what is pooled that differ from pair to pair; c of texts [T]"""
    return scale * ((along + c) * square.clamp(min=TINY).rsqrt()) + bias


def cosines(
    along: Tensor, square: Tensor, c: Tensor, size: Tensor, scale: Tensor, bias: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """The same with |b_o|^2 in front of the squares, and the sums that gradients need."""
    square = square + size
    return along + c, square, cosine(along, square, c, scale, bias)


def slopes(by_logits: Tensor, along: Tensor, square: Tensor, scale: Tensor) -> Any:
    """Gradients by along and square [r, T]; by |b_o|^2, scale and bias, not summed over texts: [T] each.

    A sum over everything would be compiled for a single processor.
    """
    inverse = square.clamp(min=TINY).rsqrt()
    near = along * inverse
    by_along = scale * by_logits * inverse
    by_square = -0.5 * by_along * near * inverse * (square > TINY)
    return by_along, by_square, (by_square.sum(0), (by_logits * near).sum(0), by_logits.sum(0))


def by_pooled(
    u: Tensor, y: Tensor, shift: Tensor, by_along: Tensor, by_square: Tensor, of_u: Tensor, of_y: Tensor
) -> Tensor:
    """The gradient by z: by_along u + 2 by_square (y + w), [r, T, D]"""
    return by_along[..., None] * (full(u) * of_u) + 2 * by_square[..., None] * (full(y) * of_y + shift)


def by_logit(weight: Tensor, by_weight: Tensor) -> Tensor:
    """The gradient by the logits of a softmax, from that by its weights; the empty slot takes the rest."""
    weight = full(weight)
    by = by_weight * weight
    return by - weight * by.sum(-1, keepdim=True)


def weighted(x: Tensor, weight: Tensor) -> Tensor:
    """x [a, b, c] times weight [a, b]"""
    return x * weight[..., None]


def over_images(x: Tensor, weight: Tensor) -> Tensor:
    """The sum over images of x [r, T, D] with weights [r, T]: [T, D]"""
    return (full(x) * weight[..., None]).sum(0)
