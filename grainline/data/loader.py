"""Batches made in processes of their own, ahead of the steps that use them."""

import sys
from collections.abc import Generator, Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader

from grainline.data.collate import Batch, Batched
from grainline.data.dataset import TrainSet
from grainline.data.sampler import Batches
from grainline.errors import UserError
from grainline.stop import outlive_first

START = "fork" if sys.platform == "linux" else "spawn"
"""How loaders start: as children of this process, so that they see it die. Those of a fork server do not."""


def load_batches(
    data: TrainSet, plan: Batches, workers: int, *, pin: bool = False
) -> Generator[Batch, None, None]:
    """The batches of a plan in order, however many workers; no global random number is used.

    Close it to end the workers.

    workers  processes that make batches; 0 makes them here
    pin      copy them to pinned memory, from where a GPU fetches them faster

    Raises the UserError that a worker met instead of a batch.
    """
    loader: DataLoader[Any] = DataLoader(
        Batched(data),
        batch_size=None,
        sampler=plan,
        num_workers=workers,
        multiprocessing_context=START if workers else None,
        collate_fn=_unchanged,
        pin_memory=pin,
        generator=torch.Generator(),
        prefetch_factor=4 if workers else None,
        worker_init_fn=outlive_first if workers else None,
    )
    return _whole(iter(loader))


def _unchanged(batch: Any) -> Any:
    """What the loader is to do to a batch."""
    return batch


def _whole(batches: Iterator[Batch | UserError]) -> Generator[Batch, None, None]:
    """The batches, or the user's error that a worker met instead of one."""
    try:
        for batch in batches:
            if isinstance(batch, UserError):
                raise batch
            yield batch
    finally:
        del batches  # nobody else has it, so that its workers end here
