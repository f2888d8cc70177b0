"""Batches of samples, made by a data loader, and the counts of corrupt samples.

A batch holds stacked images, and texts padded to the longest, with equally many rows for each image.
"""

import sys
from collections import Counter
from collections.abc import Generator, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from grainline.data.dataset import Batches, Draw, Sample, TrainSet
from grainline.distributed import all_gather_objects
from grainline.errors import UserError
from grainline.stop import outlive_first
from grainline.types import FOIL, Images, Texts


class Batch(NamedTuple):
    """The samples of one process in one step."""

    images: Images
    texts: Texts
    truncated: int  # texts longer than the method reads
    corrupt: tuple[tuple[str, str], ...]  # (cause, where) of samples that were replaced


class Batched(Dataset[Batch | UserError]):
    """The data set of a loader: a batch for each list of draws.

    A UserError is returned, not raised: raised in a worker, it would carry the traceback of that process.
    """

    def __init__(self, data: TrainSet) -> None:
        self.data = data

    def __getitem__(self, draws: list[Draw]) -> Batch | UserError:
        try:
            return collate([self.data[draw] for draw in draws])
        except UserError as error:
            return error


def collate(samples: list[Sample]) -> Batch:
    """Samples -> Batch. Every sample takes `slots` text rows, so that all ranks have equally many.

    The id of a text follows from its position in the run, so that ids are unique in a global batch.
    """
    image = torch.tensor([sample.draw.image for sample in samples])
    regions = [sample.regions for sample in samples if sample.regions is not None]
    pixels = torch.stack([sample.pixels for sample in samples])
    features = [sample.features for sample in samples if sample.features is not None]
    dense = [sample.dense for sample in samples if sample.dense is not None]
    images = Images(
        pixels,
        image,
        torch.stack(regions) if regions else None,
        description_texts(dense, image) if dense else None,
        torch.stack(features) if features else None,
    )
    truncated = sum(sample.truncated for sample in samples)
    return Batch(images, _texts(samples), truncated, tuple(d for sample in samples for d in sample.corrupt))


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
            owner[row] = -1 if text.level == FOIL else sample.draw.image
    return Texts(*_padded(rows), item, owner, level)


def description_texts(windows: list[list[list[int]]], image: Tensor) -> Texts:
    """`Images.dense` from the token ids [image][window][token]. image: [N] int64, ids of the images"""
    return Texts(*_padded(windows), image, image, torch.zeros_like(image))


def texts_of(encoded: list[list[list[int]]]) -> Texts:
    """Texts from token ids [text][part][token]: numbered from 0, and captions of no particular image."""
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


START = "fork" if sys.platform == "linux" else "spawn"
"""Start method of workers: children of this process notice that it died; children of a fork server do not."""


def load_batches(
    data: TrainSet, plan: Batches, workers: int, *, pin: bool = False
) -> Generator[Batch, None, None]:
    """The batches of a plan in order, the same with any number of workers. No global random state is used.

    workers  number of worker processes; 0 makes the batches in this process
    pin      copy batches to pinned memory, which a GPU reads faster

    Close the generator to end the workers. Raises the UserError of a worker.
    """
    loader: DataLoader[Any] = DataLoader(
        Batched(data),
        batch_size=None,
        sampler=plan,
        num_workers=workers,
        multiprocessing_context=START if workers else None,
        collate_fn=unchanged,
        pin_memory=pin,
        generator=torch.Generator(),
        prefetch_factor=4 if workers else None,
        worker_init_fn=outlive_first if workers else None,
    )
    return _whole(iter(loader))


def unchanged(batch: Any) -> Any:
    """The collate function of a loader whose data set yields whole batches."""
    return batch


def _whole(batches: Iterator[Batch | UserError]) -> Generator[Batch, None, None]:
    """The batches; raises a UserError that stands in place of one."""
    try:
        for batch in batches:
            if isinstance(batch, UserError):
                raise batch
            yield batch
    finally:
        del batches  # the last reference: its workers end here


# Corrupt samples and truncated texts: counted by cause, and logged at the end of every epoch.

MAX_FILES = 5  # files that an error or a report names


class BatchCounts(NamedTuple):
    """Counts of the local batches since the processes last gathered them."""

    samples: int = 0
    texts: int = 0
    truncated: int = 0
    corrupt: tuple[tuple[str, str], ...] = ()  # cause, where


class CorruptStats:
    """Counts of corrupt samples by cause and of truncated texts, over all processes of a run."""

    def __init__(self, images: int, max_corrupt: float) -> None:
        """
        images       number of images in the data
        max_corrupt  largest share of the samples that may be corrupt
        """
        self.images, self.max_corrupt = images, max_corrupt
        self.samples, self.texts, self.truncated = 0, 0, 0
        self.causes: Counter[str] = Counter()
        self.files: list[str] = []
        self._new = BatchCounts()

    def add(self, batch: Batch) -> None:
        """Count one local batch; `settle` adds it to the counts of all processes."""
        new = self._new
        self._new = BatchCounts(
            new.samples + len(batch.images.image),
            new.texts + int((batch.texts.item >= 0).sum()),
            new.truncated + batch.truncated,
            new.corrupt + batch.corrupt,
        )

    def settle(self) -> None:
        """Gather the counts of all processes; all must call it. UserError for too many corrupt samples."""
        for local in all_gather_objects(self._new):
            self.samples += local.samples
            self.texts += local.texts
            self.truncated += local.truncated
            self.causes.update(cause for cause, _ in local.corrupt)
            named = [*self.files, *(f"{where} ({cause})" for cause, where in local.corrupt)]
            self.files = list(dict.fromkeys(named))[:MAX_FILES]  # each file once
        self._new = BatchCounts()
        corrupt = self.causes.total()
        samples = max(self.samples + corrupt, self.images)
        if corrupt > self.max_corrupt * samples:
            raise UserError(
                f"{corrupt} of {samples} samples are corrupt, more than data.max_corrupt={self.max_corrupt}"
                f" allows: {', '.join(self.files)}; see `grainline data check`"
            )

    def report(self) -> dict[str, Any]:
        """The counts as JSON, for the log and for checkpoints."""
        return {
            "samples": self.samples,
            "corrupt": dict(self.causes),
            "files": self.files,
            "texts": self.texts,
            "truncated": self.truncated,
        }

    def sentence(self) -> str:
        """The corrupt samples and truncated texts in words; empty without any."""
        parts = []
        if self.causes:
            counts = ", ".join(f"{number} {cause}" for cause, number in self.causes.most_common())
            parts.append(f"corrupt samples, replaced by others: {counts} (first: {'; '.join(self.files)})")
        if self.truncated:
            parts.append(
                f"{self.truncated} of {self.texts} texts were truncated: longer than the model reads"
            )
        return ". ".join(parts)

    def restore(self, report: dict[str, Any]) -> None:
        """Continue from the `report` in a checkpoint."""
        self.samples, self.texts, self.truncated = report["samples"], report["texts"], report["truncated"]
        self.causes, self.files = Counter(report["corrupt"]), list(report["files"])
