"""Some pairs of two sides: for each row a list of columns, with one random caption of every other image.

The random choice depends on seed, step and the ids of both images alone.
"""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from grainline.losses.tiled.pair_mask import EVERYTHING, PairMask, PairMatrix, RowIds, Tile
from grainline.nn.hashing import hash_pairs
from grainline.types import Clock


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
        for top in range(0, number, height):
            for left in range(0, places, width):
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
        x.index_add_(0, self.places[tile.rows, tile.cols].clamp(min=0).flatten(), part.flatten(0, 1))


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
    most = int(by_image.number.max()) if len(by_image.number) else 0
    own_number = (same * by_image.number).sum(1, keepdim=True)  # [n, 1] own captions
    first = (same * by_image.first).sum(1, keepdim=True)
    place = torch.arange(most, device=first.device)
    own = by_image.columns[(first + place).clamp(max=len(by_image.columns) - 1)].masked_fill(
        place >= own_number, -1
    )
    return SampledPairs(rows, torch.cat([own, others, against], 1), most)


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
