"""Samples to batches, made in processes of their own ahead of the steps that use them.

Samples to batches: pictures stacked, texts padded to the longest, equally many rows for each picture.
"""

import sys
from collections.abc import Generator, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from grainline.data.dataset import Batches, Draw, Sample, TrainSet
from grainline.errors import UserError
from grainline.stop import outlive_first
from grainline.types import FOIL, Images, Texts


class Batch(NamedTuple):
    """One rank's share of a step, and the account of it."""

    images: Images
    texts: Texts
    cut: int  # texts longer than the method reads
    damage: tuple[tuple[str, str], ...]  # (cause, where) of samples that were replaced


class Batched(Dataset[Batch | UserError]):
    """Batches by their draws: what a loader's processes make.

    A user's error is handed over like a batch: raised in a worker, it would carry that process's traceback.
    """

    def __init__(self, data: TrainSet) -> None:
        self.data = data

    def __getitem__(self, draws: list[Draw]) -> Batch | UserError:
        try:
            return collate([self.data[draw] for draw in draws])
        except UserError as error:
            return error


def collate(samples: list[Sample]) -> Batch:
    """Samples -> Batch; every sample takes `slots` text rows, so that all ranks hold equally many.

    Ids of texts come from the position in the run: no two texts of a global batch share one.
    """
    image = torch.tensor([sample.draw.picture for sample in samples])
    regions = [sample.regions for sample in samples if sample.regions is not None]
    pixels = torch.stack([sample.pixels for sample in samples])
    features = [sample.features for sample in samples if sample.features is not None]
    dense = [sample.dense for sample in samples if sample.dense is not None]
    images = Images(
        pixels,
        image,
        torch.stack(regions) if regions else None,
        described(dense, image) if dense else None,
        torch.stack(features) if features else None,
    )
    cut = sum(sample.cut for sample in samples)
    return Batch(images, _texts(samples), cut, tuple(d for sample in samples for d in sample.damage))


def _texts(samples: list[Sample]) -> Texts:
    slots = samples[0].slots
    count = len(samples) * slots
    rows: list[list[list[int]]] = [[] for _ in range(count)]
    item, owner = torch.full((count,), -1), torch.full((count,), -1)
    level = torch.zeros(count, dtype=torch.int64)
    for place, sample in enumerate(samples):
        for slot, text in enumerate(sample.texts):
            if text is None:
                continue
            row = place * slots + slot
            rows[row] = text.parts
            item[row], level[row] = sample.draw.position * slots + slot, text.level
            owner[row] = -1 if text.level == FOIL else sample.draw.picture
    return Texts(*_padded(rows), item, owner, level)


def described(windows: list[list[list[int]]], image: Tensor) -> Texts:
    """Ids of the descriptions of pictures, window by window, as `Images.dense`.

    image  [N] int64, ids of the pictures
    """
    return Texts(*_padded(windows), image, image, torch.zeros_like(image))


def texts_of(encoded: list[list[list[int]]]) -> Texts:
    """Ids of texts, part by part, as rows of their own, numbered from 0, describing no particular image."""
    number = torch.arange(len(encoded))
    return Texts(*_padded(encoded), number, torch.full_like(number, -1), torch.zeros_like(number))


def _padded(texts: list[list[list[int]]]) -> tuple[Tensor, Tensor]:
    """Ids and mask [M, S, L] of texts, parts and tokens, with padding on the right of each."""
    parts = max((len(text) for text in texts), default=1)
    length = max((len(part) for text in texts for part in text), default=1)
    numbers = [[part + [0] * (length - len(part)) for part in text] for text in texts]
    lengths = [[len(part) for part in text] + [0] * (parts - len(text)) for text in texts]
    ids = torch.tensor([text + [[0] * length] * (parts - len(text)) for text in numbers], dtype=torch.int64)
    mask = torch.arange(length) < torch.tensor(lengths, dtype=torch.int64).view(len(texts), parts, 1)
    return ids.view(len(texts), parts, length), mask


# Batches made in processes of their own, ahead of the steps that use them.


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
