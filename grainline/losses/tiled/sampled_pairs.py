"""Some pairs of two sides: for each row a list of columns. And one caption of every other picture, by lot.

How a lot falls depends on seed, step and the ids of both pictures alone: neither on their order in the batch
nor on how they are spread over processes, and no generator has a state to keep.
"""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from grainline.losses.tiled.pair_mask import EVERYTHING, Blocks, Keys, Tile, Where
from grainline.nn.hashing import lots
from grainline.types import Clock


class Lists(NamedTuple):
    """The columns that each row is compared with; nothing else is computed.

    A score finds its columns as [r, c, ...] then, others for each row.
    """

    rows: Keys  # n of them
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

    def where(self, tile: Tile = EVERYTHING, dtype: torch.dtype = torch.float32) -> Where:
        """The pairs of a tile: [r, c]"""
        real = self.places[tile.rows, tile.cols] >= 0
        place = torch.arange(self.places.shape[1], device=self.places.device)[tile.cols]
        same = real & (place < self.own)
        return Where(real, same, same.to(dtype))

    def take(self, x: Tensor, tile: Tile) -> Tensor:
        """What stands in the places of a tile, of x [M, ...]: a copy [r, c, ...]"""
        index = self.places[tile.rows, tile.cols]
        return x.index_select(0, index.clamp(min=0).flatten()).unflatten(0, index.shape)

    def room(self, x: Tensor, tile: Tile) -> Tensor:
        """Where gradients by these columns are added up before `put` adds them to x [M, ...]: zeros"""
        return x.new_zeros(*self.places[tile.rows, tile.cols].shape, *x.shape[1:])

    def put(self, part: Tensor, x: Tensor, tile: Tile) -> None:
        """Add the gradients [r, c, ...] of a tile to those of the columns; of what is no pair they are 0."""
        x.index_add_(0, self.places[tile.rows, tile.cols].clamp(min=0).flatten(), part.flatten(0, 1))


def drawn(rows: Keys, cols: Keys, clock: Clock) -> Lists:
    """Each picture with its own captions, with one caption of every other picture, and with all foils.

    rows  [n] my pictures, cols [M] everyone's captions: no item = padding, no image = a foil

    for i, and every image j that captions of the group of i describe:
        mine = the captions of j, ordered by item
        if j == image[i]: all of mine are positives
        else:             mine[lot(seed, step, image[i], j) % len(mine)] is a negative
    """
    found = _pictures(cols)
    foils = (cols.real() & (cols.image < 0)).nonzero().flatten()  # [F]
    real = rows.real()[:, None]
    met = real & (rows.group[:, None] == found.group)  # [n, G]
    same = met & (rows.image[:, None] == found.image)
    lot = lots(clock, rows.image, found.image) % found.number
    others = found.columns[found.first + lot].masked_fill(~met | same, -1)
    against = torch.where(real & (rows.group[:, None] == cols.group[foils]), foils, -1)  # [n, F]
    most = int(found.number.max()) if len(found.number) else 0
    own_number = (same * found.number).sum(1, keepdim=True)  # [n, 1] own captions
    first = (same * found.first).sum(1, keepdim=True)
    place = torch.arange(most, device=first.device)
    own = found.columns[(first + place).clamp(max=len(found.columns) - 1)].masked_fill(
        place >= own_number, -1
    )
    return Lists(rows, torch.cat([own, others, against], 1), most)


def every(rows: Keys, cols: Keys) -> Blocks:
    """What `drawn` gives in expectation: captions of another picture share the weight of one negative."""
    found = _pictures(cols)
    share = torch.ones_like(cols.item, dtype=torch.float64)
    share[found.columns] = found.number.repeat_interleave(found.number).double().reciprocal()
    return Blocks(rows, cols, against=share)


class _Pictures(NamedTuple):
    """The pictures that some columns describe."""

    columns: Tensor  # [C] the columns, by group, image and item
    group: Tensor  # [G]
    image: Tensor  # [G]
    first: Tensor  # [G] where in `columns` the captions of a picture begin
    number: Tensor  # [G] of its captions


def _pictures(cols: Keys) -> _Pictures:
    columns = (cols.real() & (cols.image >= 0)).nonzero().flatten()
    for ids in (cols.item, cols.image, cols.group):  # stable: the last one counts most
        columns = columns[ids[columns].argsort(stable=True)]
    group, image = cols.group[columns], cols.image[columns]
    fresh = torch.ones_like(group, dtype=torch.bool)
    fresh[1:] = (group[1:] != group[:-1]) | (image[1:] != image[:-1])
    first = fresh.nonzero().flatten()
    count = torch.diff(first, append=first.new_tensor([len(columns)]))
    return _Pictures(columns, group[first], image[first], first, count)
