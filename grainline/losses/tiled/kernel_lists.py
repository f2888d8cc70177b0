"""`kernel_cosine` where each image is compared with a list of texts of its own: sampled negatives on a GPU.

With texts of many processes a list is a small part of all of them. It is made without a wait, so its length
is a number that the host knows beforehand: `max_pairs`. Kernels read texts by their places in it, and
gradients by a text are summed over the pairs that it is in. Where a kernel is refused, torch computes with
copies.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from grainline.kernels import launch
from grainline.losses.tiled.chunked_cosine import Pooled, add, add_alone, cosines, slopes
from grainline.losses.tiled.conditioned_cosine import Dense
from grainline.losses.tiled.kernel_cosine import KernelDense, attention, fits, lengths_by_kernel
from grainline.losses.tiled.operands import Operands, fused
from grainline.losses.tiled.pair_mask import SampledLists, SampledMask, Tile
from grainline.losses.tiled.scores import Parts, Score, Vjp

AT_ONCE = 2**22  # pairs that lists are made from at a time: 32 MiB in int64, and a few are alive
LESS = 4  # lists are worth their sorting and sums where they have so many times less pairs than all
NAMES = "lists", "unlists"


class Counts(NamedTuple):
    """Of captions."""

    own: int  # the most of an image
    images: int  # that have any
    foils: int


def count(item: Tensor, image: Tensor) -> Counts:
    """Of captions with these ids [M], which the host has."""
    real = item >= 0
    _, number = torch.unique(image[real & (image >= 0)], return_counts=True)
    own = int(number.max()) if len(number) else 0
    return Counts(own, len(number), int((real & (image < 0)).sum()))


def max_pairs(counts: Counts, ranks: int = 1) -> int:
    """No image has more pairs in `sample_negatives`. counts: of each rank these at most"""
    own, images, foils = (ranks * x for x in counts)
    return max(0, own + images - 1) + foils


def lists_of(mask: SampledMask) -> SampledLists:
    """The same pairs as lists of `mask.max_pairs` columns, in their order; the host waits for nothing.

    An error on the device where a row has more pairs.
    """
    wide = mask.wide
    width = wide if mask.max_pairs is None else min(mask.max_pairs, wide)
    step, number = max(1, AT_ONCE // max(1, wide)), len(mask.rows.item)
    parts = [_lists(mask, slice(top, top + step), width) for top in range(0, max(1, number), step)]
    return SampledLists(mask.rows, *(torch.cat(x) for x in zip(*parts, strict=True)))


def _lists(mask: SampledMask, rows: slice, width: int) -> tuple[Tensor, Tensor]:
    """Columns of some rows [r, C] int64, -1 = none, and which are captions of the image [r, C] bool"""
    real, same, *_ = mask.where(Tile(rows))
    assert real is not None
    torch._assert_async((real.sum(1) <= width).all(), "an image has more pairs than its list has places")
    to = (real.cumsum(1) - 1).masked_fill(~real, width)  # one place more, for what is no pair
    column = torch.arange(mask.wide, device=to.device).expand_as(to)
    places = to.new_full((len(to), width + 1), -1).scatter_(1, to, column)[:, :width]
    places = places.contiguous()
    return places, same.gather(1, places.clamp(min=0)) & (places >= 0)


def fits_lists(score: Score, mask: SampledMask, operands: Operands, key: Tensor) -> bool:
    """Whether kernels for lists are for these keys [n, heads, L, d], and all pairs were much more work."""
    less = mask.max_pairs is not None and mask.wide >= LESS * mask.max_pairs
    return less and isinstance(score, Dense) and fits(operands, key) and not launch.refused(*NAMES)


class KernelLists(KernelDense):
    """As `KernelDense`, for `SampledLists`.

    rows  key, value, places [n, C] int64, -1 = none; if segments are masked, [n, L]
    """

    fixed = 3

    def stored(self, points: int, width: int) -> int:  # noqa: ARG002
        return self.by.size * 4 * width  # z, y, w z and the gradient by queries

    def sides(self, rows: Parts, cols: Parts, wide: int) -> tuple[int, int]:
        """Some images with all their places."""
        return super().sides(rows, cols, wide)[0], max(1, wide)

    def forward_with_vjp(
        self,
        rows: Parts,
        cols: Parts,
        shared: Parts,
        known: Tensor | None = None,  # noqa: ARG002
    ) -> tuple[Tensor, Vjp]:
        places, (mix, shift, size, scale, bias) = rows[2], shared
        chunk, u, matrix = self.chunk(rows, cols), self.once(cols[1]), self.once(mix)
        of_fit, of_value = chunk.key.unit * chunk.query.unit, chunk.value.unit
        units, sides = (of_value, of_value * matrix.unit, u.unit), attention(chunk, len(places))

        def kernel() -> Any:
            from grainline.kernels.pooled import attend

            z = attend(*sides, self.mask(rows), of_fit, places)
            pooled = Pooled(z, self.product(z, matrix.x), u.x.flatten(1), shift, units)
            return pooled, *lengths_by_kernel(pooled, places)

        read = launch.run(NAMES[0], kernel, lambda: None)
        if read is None:
            return by_copies(rows, cols, shared)
        c = cols[2][places.clamp(min=0)]
        pooled, (along, square, logits) = read[0], fused(cosines)(*read[1:], c, size, scale, bias)

        def pull(by_logits: Tensor, sums: Sequence[Tensor | None]) -> None:
            by_along, by_square, facts = fused(slopes)(by_logits, along, square, scale)
            alive = tuple(self.alive(rows, x) for x in (by_along, by_square))
            unit = self.by.slopes(alive[0], u.unit)
            by_mix, by_shift, *alone = sums[-len(shared) :]

            def kernel() -> tuple[Tensor, ...]:
                from grainline.kernels.lists import collect, invert
                from grainline.kernels.pooled import unattend

                half, _, total, turn = self.weigh(pooled, alive, unit, places)
                by_text, *by_rows = unattend(*sides, self.mask(rows), pooled.y, of_fit, places)
                inverted = invert(places, len(cols[2]))
                by_query = collect(by_text, None, *inverted)[0]
                by_u = collect(pooled.z, by_along.contiguous(), *inverted)
                return (half, total, turn), *by_rows, by_query, *by_u

            back = launch.run(NAMES[1], kernel, lambda: None)
            if back is None:
                by_copies(rows, cols, shared)[1](by_logits, sums)
                return
            (half, total, turn), *back = back
            self.pull_square(pooled.z, half, total, turn * of_value, of_value, (by_mix, by_shift))
            of_pair = unit * of_value
            of_each = (
                of_pair * chunk.query.unit,
                unit,
                of_pair * chunk.key.unit,
                of_value,
                torch.ones_like(unit),
            )
            into = *sums[:2], *sums[len(rows) : -len(shared)]
            for one, x, of_x in zip(into, back, of_each, strict=True):
                if one is not None:
                    add(one, x.view_as(one), of_x)
            add_alone(None, alone, by_along, facts)

        return logits, pull


def by_copies(rows: Parts, cols: Parts, shared: Parts) -> tuple[Tensor, Vjp]:
    """As `KernelLists`, by torch: with a copy of the tensors of a text for each of its pairs."""
    index, number = rows[2].clamp(min=0), (len(rows), len(rows) + len(cols))
    copies = tuple(x[index] for x in cols)
    logits, pull = Dense().forward_with_vjp((*rows[:2], *rows[3:]), copies, shared)

    def pull_copies(by_logits: Tensor, sums: Sequence[Tensor | None]) -> None:
        into = sums[slice(*number)]
        parts = [None if x is None else torch.zeros_like(y) for x, y in zip(into, copies, strict=True)]
        pull(by_logits, [*sums[:2], *sums[3 : number[0]], *parts, *sums[number[1] :]])
        for x, part in zip(into, parts, strict=True):
            if x is not None and part is not None:
                x.index_add_(0, index.flatten(), part.flatten(0, 1))

    return logits, pull_copies
