"""Samples to batches, made in processes of their own ahead of the steps that use them, and what was damaged.

A batch: images stacked, texts padded to the longest, equally many rows for each image.
"""

import sys
from collections import Counter
from collections.abc import Generator, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from grainline.data.dataset import Batches, Draw, Sample, TrainSet
from grainline.distributed import everyones
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


# The account of damaged samples and cut texts: counted by cause and shown at the end of every epoch.


NAMED = 5  # files that an error or a report names


class Seen(NamedTuple):
    """What one process saw since the processes last told each other."""

    samples: int = 0
    texts: int = 0
    cut: int = 0
    damage: tuple[tuple[str, str], ...] = ()


class Account:
    """What went wrong with the samples of a run so far, over all processes."""

    def __init__(self, pictures: int, allowed: float) -> None:
        """pictures in the data; `allowed` share of the samples may be damaged"""
        self.pictures, self.allowed = pictures, allowed
        self.samples, self.texts, self.cut = 0, 0, 0
        self.causes: Counter[str] = Counter()
        self.files: list[str] = []
        self._new = Seen()

    def add(self, batch: Batch) -> None:
        """Count one of this process's batches; `settle` brings it into the account."""
        new = self._new
        self._new = Seen(
            new.samples + len(batch.images.image),
            new.texts + int((batch.texts.item >= 0).sum()),
            new.cut + batch.cut,
            new.damage + batch.damage,
        )

    def settle(self) -> None:
        """Bring in what other processes saw; stop where too much is damaged. All processes must call it."""
        for seen in everyones(self._new):
            self.samples += seen.samples
            self.texts += seen.texts
            self.cut += seen.cut
            self.causes.update(cause for cause, _ in seen.damage)
            named = [*self.files, *(f"{where} ({cause})" for cause, where in seen.damage)]
            self.files = list(dict.fromkeys(named))[:NAMED]  # each once, however often it is drawn
        self._new = Seen()
        damaged = self.causes.total()
        drawn = max(self.samples + damaged, self.pictures)
        if damaged > self.allowed * drawn:
            raise UserError(
                f"{damaged} of {drawn} samples are damaged, more than data.damage={self.allowed} allows: "
                f"{', '.join(self.files)}; see `grainline data check`"
            )

    def report(self) -> dict[str, Any]:
        """Numbers for the log: samples, damaged by cause with the first files, texts and those cut."""
        return {
            "samples": self.samples,
            "damaged": dict(self.causes),
            "files": self.files,
            "texts": self.texts,
            "cut": self.cut,
        }

    def sentence(self) -> str:
        """The same for people; empty where all is well."""
        parts = []
        if self.causes:
            counts = ", ".join(f"{number} {cause}" for cause, number in self.causes.most_common())
            parts.append(f"damaged samples, replaced by others: {counts} (first: {'; '.join(self.files)})")
        if self.cut:
            parts.append(f"{self.cut} of {self.texts} texts were longer than the model reads and were cut")
        return ". ".join(parts)

    def state(self) -> dict[str, Any]:
        """For a checkpoint; `settle` first."""
        return {
            "samples": self.samples,
            "texts": self.texts,
            "cut": self.cut,
            "causes": dict(self.causes),
            "files": self.files,
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from a checkpoint."""
        self.samples, self.texts, self.cut = state["samples"], state["texts"], state["cut"]
        self.causes, self.files = Counter(state["causes"]), list(state["files"])
