"""Pairs of rows of two lists, described by ids, never by a matrix of all pairs.

Pairs of one item and pairs of one image have weights; they lie in few tiles of the matrix, if rows of one
image are neighbours. All other pairs are negatives, or none: rows of padding, and rows of different groups.
"""

import itertools
from bisect import bisect
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from grainline.nn.hashing import hash_pairs
from grainline.types import Clock


class RowIds(NamedTuple):
    """The ids of the rows of one side."""

    item: Tensor  # [n] int64 id of the row itself; -1 = padding, in no pair
    image: Tensor  # [n] int64 id of the image behind it; -1 = none: the row is a negative of all
    group: Tensor  # [n] int64 in 0..M-1; only rows of one group are compared; -1 = in no pair
    slot: Tensor  # [n] int64 place of the row among those of its image

    def real(self) -> Tensor:
        """The rows that are in any pair: [n] bool."""
        return (self.item >= 0) & (self.group >= 0)


def row_ids(item: Tensor, image: Tensor) -> RowIds:
    """Ids of rows that are all compared with each other."""
    return RowIds(item, image, torch.zeros_like(item), torch.arange(len(item), device=item.device))


class PairMask(NamedTuple):
    """The pairs of one tile."""

    real: Tensor | None  # [r, c] bool, False = no pair; None = all are pairs
    same: Tensor  # [r, c] bool, True = rows of one image
    weight: Tensor  # [r, c] of pairs of one image; 0 elsewhere
    against: Tensor | None = None  # [c] weight of every other pair of a column; None: 1


class Tile(NamedTuple):
    """A part of the matrix of pairs."""

    rows: slice = slice(None)
    cols: slice = slice(None)
    whole: bool = False  # every row and column of it is a pair
    plain: bool = False  # all of them are negatives as well: `where` is not needed


EVERYTHING = Tile()
BEYOND = 2**40  # more than any number of a group or image


class PairMatrix(NamedTuple):
    """The pairs of rows and columns, with weights. The weight of row i with column j of the same group:

    own                                            if they are one item
    sibling * exp(-decay * |slot[i] - slot[j]|)    else, if they are of one image
    0                                              else: a negative, of weight against[j] in a SigmoidLoss
    """

    rows: RowIds  # n of them
    cols: RowIds  # M of them
    own: float = 1.0
    sibling: float = 1.0
    decay: float = 0.0
    against: Tensor | None = None  # [M] weight of each column as a negative; None: 1

    def where(self, tile: Tile = EVERYTHING, dtype: torch.dtype = torch.float32) -> PairMask:
        """The pairs of a tile, by default of the whole matrix, with weights of that type."""
        a = RowIds(*(x[tile.rows] for x in self.rows))
        b = RowIds(*(x[tile.cols] for x in self.cols))
        real = None
        if not tile.whole:
            real = (a.group[:, None] == b.group) & a.real()[:, None] & b.real()
        same = a.image.masked_fill(a.image < 0, -2)[:, None] == b.image
        if real is not None:
            same &= real
        weight = same.to(dtype).mul_(self.sibling)
        if self.decay:
            far = (a.slot[:, None] - b.slot).abs().to(dtype)
            weight *= torch.exp(-self.decay * far)
        weight.masked_fill_((a.item[:, None] == b.item) & same, self.own)
        against = None if self.against is None else self.against[tile.cols].to(dtype)
        return PairMask(real, same, weight, against)

    @property
    def wide(self) -> int:
        """How many columns a row has."""
        return len(self.cols.item)

    def take(self, x: Tensor, tile: Tile) -> Tensor:
        """The columns of a tile, of x [M, ...]: a view [c, ...]"""
        return x[tile.cols]

    def room(self, x: Tensor, tile: Tile) -> Tensor:
        """The same view, which gradients by these columns are added to"""
        return x[tile.cols]

    def put(self, part: Tensor, x: Tensor, tile: Tile) -> None:
        """Nothing: `room` is a view of x."""

    def tiles(self, height: int, width: int) -> Iterator[Tile]:
        """Tiles of at most `height` rows and `width` columns that may hold pairs, row by row.

        `whole` and `plain` may be False where they hold, never True where they do not. The host looks at the
        ids.
        """
        split = len(self.rows.item)
        sides = torch.stack(self.rows), torch.stack(self.cols)
        item, image, group, slot = torch.cat(sides, 1).cpu()
        keys = RowIds(item, torch.where(image >= 0, by_first_place(image), -1), group, slot)
        down = _stripes(RowIds(*(x[:split] for x in keys)), height)
        across = _stripes(RowIds(*(x[split:] for x in keys)), width)
        for row in down:
            for col in across:
                if _meet(row.group, col.group):
                    one_group = row.group == col.group and row.group[0] == row.group[1]
                    whole = row.full and col.full and one_group
                    plain = whole and self.against is None and not _meet(row.image, col.image)
                    yield Tile(row.part, col.part, whole, plain)


_Span = tuple[int, int]  # least and greatest of some numbers; of none, the first is larger


def _meet(a: _Span, b: _Span) -> bool:
    return max(a[0], b[0]) <= min(a[1], b[1])


class _Stripe(NamedTuple):
    """Neighbouring rows of one side."""

    part: slice
    full: bool  # without padding
    group: _Span  # of the rows that are in any pair
    image: _Span


def _stripes(keys: RowIds, size: int) -> list[_Stripe]:
    real, stripes = keys.real(), []
    for start, end in itertools.pairwise(_cuts(keys, size)):
        part = slice(start, end)
        group, image, some = keys.group[part], keys.image[part], real[part]
        spans = _span(group[some]), _span(image[some & (image >= 0)])
        stripes.append(_Stripe(part, bool(some.all()), *spans))
    return stripes


def _span(values: Tensor) -> _Span:
    return (int(values.min()), int(values.max())) if len(values) else (BEYOND, -1)


def _cuts(keys: RowIds, size: int) -> list[int]:
    """The starts of stripes of at most so many rows, and the end of the last one.

    Between groups or else between images, if that fills half of a stripe: fewer tiles then hold several
    groups or positives.
    """
    number = len(keys.item)
    borders = [[0, *((x[1:] != x[:-1]).nonzero().flatten() + 1).tolist(), number] for x in keys[2:0:-1]]
    cuts = [0]
    while cuts[-1] < number:
        limit = cuts[-1] + size
        last = [places[bisect(places, limit) - 1] for places in borders]
        cuts.append(next((x for x in last if 2 * (x - cuts[-1]) >= size), min(limit, number)))
    return cuts


def by_first_place(ids: Tensor) -> Tensor:
    """The first place of each id, so that neighbours have near numbers: [n]; nothing waits for the device"""
    order = ids.argsort(stable=True)
    ordered, place, fresh = ids[order], torch.arange(len(ids), device=ids.device), ids == ids
    fresh[1:] = ordered[1:] != ordered[:-1]
    first = torch.where(fresh, place, 0).cummax(0).values if len(ids) else place
    return torch.empty_like(order).scatter_(0, order, order[first])


class SampledPairs(NamedTuple):
    """The columns that each row is compared with: in a tile [r, c, ...], others for each row."""

    rows: RowIds  # n of them
    places: Tensor  # [n, C] int64 columns, -1 = none
    own: int  # so many of the first are positives, all others negatives, of weight 1

    @property
    def wide(self) -> int:
        """How many columns a row has."""
        return self.places.shape[1]

    def tiles(self, height: int, width: int) -> Iterator[Tile]:
        """Parts of the lists with so many rows and places at most."""
        number, places = self.places.shape
        for top, left in itertools.product(range(0, number, height), range(0, places, width)):
            yield Tile(slice(top, top + height), slice(left, left + width))

    def where(self, tile: Tile = EVERYTHING, dtype: torch.dtype = torch.float32) -> PairMask:
        """The pairs of a tile: [r, c]"""
        real = self.places[tile.rows, tile.cols] >= 0
        place = torch.arange(self.places.shape[1], device=self.places.device)[tile.cols]
        same = real & (place < self.own)
        return PairMask(real, same, same.to(dtype))

    def take(self, x: Tensor, tile: Tile) -> Tensor:
        """The columns in the places of a tile, of x [M, ...]: a copy [r, c, ...]"""
        index = self.places[tile.rows, tile.cols]
        return x.index_select(0, index.clamp(min=0).flatten()).unflatten(0, index.shape)

    def room(self, x: Tensor, tile: Tile) -> Tensor:
        """Zeros for the gradients by these columns, which `put` adds to x [M, ...]"""
        return x.new_zeros(*self.places[tile.rows, tile.cols].shape, *x.shape[1:])

    def put(self, part: Tensor, x: Tensor, tile: Tile) -> None:
        """Add the gradients [r, c, ...] of a tile to those of the columns; 0 where there is no pair."""
        index, part = self.places[tile.rows, tile.cols].clamp(min=0).flatten(), part.flatten(0, 1)
        if x.is_cuda:  # index_add_ has other bits in each run there
            x.index_put_((index,), part, accumulate=True)
        else:
            x.index_add_(0, index, part)


Pairs = PairMatrix | SampledPairs


def sample_negatives(rows: RowIds, cols: RowIds, clock: Clock) -> SampledPairs:
    """Each image with its own captions, with one caption of every other image, and with all foils.

    rows [n] local images, cols [M] all captions: no item = padding, no image = a foil

    for i, and every image j that captions of the group of i describe:
        captions = the captions of j, ordered by item
        if j == image[i]: all of them are positives
        else:             captions[hash(seed, step, image[i], j) % len(captions)] is a negative
    """
    by_image = _images(cols)
    foils = (cols.real() & (cols.image < 0)).nonzero().flatten()  # [F]
    real = rows.real()[:, None]
    met = real & (rows.group[:, None] == by_image.group)  # [n, G]
    same = met & (rows.image[:, None] == by_image.image)
    lot = hash_pairs(clock, rows.image, by_image.image) % by_image.number
    others = by_image.columns[by_image.first + lot].masked_fill(~met | same, -1)
    against = torch.where(real & (rows.group[:, None] == cols.group[foils]), foils, -1)  # [n, F]
    limit = int(by_image.number.max()) if len(by_image.number) else 0
    own_number = (same * by_image.number).sum(1, keepdim=True)  # [n, 1] own captions
    first = (same * by_image.first).sum(1, keepdim=True)
    place = torch.arange(limit, device=first.device)
    own = by_image.columns[(first + place).clamp(max=len(by_image.columns) - 1)]
    own = own.masked_fill(place >= own_number, -1)
    return SampledPairs(rows, torch.cat([own, others, against], 1), limit)


def all_negatives(rows: RowIds, cols: RowIds) -> PairMatrix:
    """The expectation of `sample_negatives`: captions of another image share the weight of one negative."""
    by_image = _images(cols)
    share = torch.ones_like(cols.item, dtype=torch.float64)
    share[by_image.columns] = by_image.number.repeat_interleave(by_image.number).double().reciprocal()
    return PairMatrix(rows, cols, against=share)


class _Images(NamedTuple):
    """The images that some columns describe."""

    columns: Tensor  # [C] the columns, by group, image and item
    group: Tensor  # [G]
    image: Tensor  # [G]
    first: Tensor  # [G] where in `columns` the captions of an image begin
    number: Tensor  # [G] of its captions


def _images(cols: RowIds) -> _Images:
    columns = (cols.real() & (cols.image >= 0)).nonzero().flatten()
    for ids in (cols.item, cols.image, cols.group):  # stable: the last one counts most
        columns = columns[ids[columns].argsort(stable=True)]
    group, image = cols.group[columns], cols.image[columns]
    fresh = torch.ones_like(group, dtype=torch.bool)
    fresh[1:] = (group[1:] != group[:-1]) | (image[1:] != image[:-1])
    first = fresh.nonzero().flatten()
    count = torch.diff(first, append=first.new_tensor([len(columns)]))
    return _Images(columns, group[first], image[first], first, count)
