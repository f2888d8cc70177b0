"""Which pictures stand in which batch: a pure function of (seed, step), so that resuming costs nothing."""

from collections.abc import Iterator
from random import Random
from typing import NamedTuple

import torch


class Draw(NamedTuple):
    """One place in the endless stream of shuffled epochs."""

    position: int  # in the whole run, over all ranks
    epoch: int
    picture: int  # its place in the source


class Batches:
    """This rank's share of every global batch from one step of the run to another.

    Epochs follow one another without a gap, each a permutation of its own (without `reshuffle` all the same
    one), and no picture is left out at their ends: a batch that lies across two epochs may hold a picture
    twice, which losses tell by its id.
    A rank takes a contiguous share of each batch, so W processes of B / W pictures see what one of B sees.
    """

    def __init__(
        self,
        length: int,
        batch: int,
        seed: int,
        steps: range,
        *,
        rank: int = 0,
        world_size: int = 1,
        reshuffle: bool = True,
    ) -> None:
        """length pictures in all, `batch` of them a step over all ranks, for each step in `steps`."""
        if batch % world_size:
            raise ValueError(f"a batch of {batch} cannot be shared by {world_size} processes")
        self.length, self.batch, self.seed, self.steps = length, batch, seed, steps
        self.rank, self.share, self.reshuffle = rank, batch // world_size, reshuffle
        self._epoch, self._order = -1, torch.empty(0, dtype=torch.int64)

    def __len__(self) -> int:
        return len(self.steps)

    def __iter__(self) -> Iterator[list[Draw]]:
        for step in self.steps:
            first = step * self.batch + self.rank * self.share
            yield [self._draw(position) for position in range(first, first + self.share)]

    def _draw(self, position: int) -> Draw:
        epoch, place = divmod(position, self.length)
        if epoch != self._epoch:
            order = permutation(self.length, self.seed, epoch if self.reshuffle else 0)
            self._epoch, self._order = epoch, order
        return Draw(position, epoch, int(self._order[place]))


def permutation(length: int, seed: int, epoch: int) -> torch.Tensor:
    """The order of one epoch: [length] int64.

    >>> first, later, other = (permutation(9, seed, epoch) for seed, epoch in ((1, 0), (1, 1), (2, 0)))
    >>> torch.equal(first, later), torch.equal(first, other)
    (False, False)
    """
    # Mixed into 32 bits here: of a larger seed torch's generator would drop the upper ones without a word.
    mixed = Random(f"{seed}/{epoch}").getrandbits(32)
    generator = torch.Generator().manual_seed(mixed)
    return torch.randperm(length, generator=generator)
