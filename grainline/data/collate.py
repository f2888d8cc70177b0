"""Samples to batches: pictures stacked, texts padded to the longest, equally many rows for each picture."""

from typing import NamedTuple

import torch
from torch.utils.data import Dataset

from grainline.data.dataset import Sample, TrainSet
from grainline.data.sampler import Draw
from grainline.errors import UserError
from grainline.types import FOIL, Images, Texts


class Batch(NamedTuple):
    """One rank's share of a step, and the account of it."""

    images: Images
    texts: Texts
    cut: int  # texts longer than the context
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
    images = Images(torch.stack([sample.pixels for sample in samples]), image)
    cut = sum(sample.cut for sample in samples)
    return Batch(images, _texts(samples), cut, tuple(d for sample in samples for d in sample.damage))


def _texts(samples: list[Sample]) -> Texts:
    slots = samples[0].slots
    length = max(len(text.ids) for sample in samples for text in sample.texts)
    count = len(samples) * slots
    ids = torch.zeros(count, 1, length, dtype=torch.int64)
    mask = torch.zeros(count, 1, length, dtype=torch.bool)
    item, owner = torch.full((count,), -1), torch.full((count,), -1)
    level = torch.zeros(count, dtype=torch.int64)
    for place, sample in enumerate(samples):
        for slot, text in enumerate(sample.texts):
            row = place * slots + slot
            ids[row, 0, : len(text.ids)] = torch.tensor(text.ids)
            mask[row, 0, : len(text.ids)] = True
            item[row], level[row] = sample.draw.position * slots + slot, text.level
            owner[row] = -1 if text.level == FOIL else sample.draw.picture
    return Texts(ids, mask, item, owner, level)


def texts_of(encoded: list[list[int]]) -> Texts:
    """Tokenised texts as rows of their own, numbered from 0, describing no particular image."""
    length = max((len(ids) for ids in encoded), default=1)
    ids = torch.zeros(len(encoded), 1, length, dtype=torch.int64)
    mask = torch.zeros(len(encoded), 1, length, dtype=torch.bool)
    for row, text in enumerate(encoded):
        ids[row, 0, : len(text)] = torch.tensor(text)
        mask[row, 0, : len(text)] = True
    number = torch.arange(len(encoded))
    return Texts(ids, mask, number, torch.full_like(number, -1), torch.zeros_like(number))
