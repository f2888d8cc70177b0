"""Batches: stacked images and padded texts, equally many rows for each image. Counts of corrupt samples."""

import sys
import warnings
from collections import Counter
from collections.abc import Generator, Iterable, Iterator
from itertools import chain
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from grainline.data.dataset import Batches, Draw, Sample, TrainSet
from grainline.data.formats.joined import prefetch
from grainline.distributed import all_gather_objects
from grainline.errors import UserError
from grainline.stop import outlive_first
from grainline.types import FOIL, Images, Texts, description_texts, padded


class Batch(NamedTuple):
    """The samples of one process in one step."""

    images: Images
    texts: Texts
    truncated: int  # texts longer than the method reads
    corrupt: tuple[tuple[str, str], ...]  # (cause, where) of samples that were replaced


class Batched(Dataset[Batch | UserError]):
    """The data set of a loader. A UserError is returned: raised, it would carry the worker's traceback."""

    def __init__(self, data: TrainSet) -> None:
        self.data = data

    def __getitem__(self, draws: list[Draw]) -> Batch | UserError:
        try:
            prefetch(self.data.source, [draw.image for draw in draws])
            return collate([self.data[draw] for draw in draws])
        except UserError as error:
            return error


def collate(samples: list[Sample]) -> Batch:
    """Samples -> Batch. Every sample takes `slots` text rows, so that all ranks have equally many.

    The id of a text follows from its position in the run, so that ids are unique in a global batch.
    """
    image = torch.tensor([sample.draw.image for sample in samples])
    dense = [sample.dense for sample in samples if sample.dense is not None]
    pixels = torch.stack([sample.pixels for sample in samples])
    regions, features = (_stack([getattr(x, name) for x in samples]) for name in ("regions", "features"))
    images = Images(pixels, image, regions, description_texts(dense, image) if dense else None, features)
    truncated = sum(sample.truncated for sample in samples)
    return Batch(images, _texts(samples), truncated, tuple(d for sample in samples for d in sample.corrupt))


def _stack(tensors: list[Tensor | None]) -> Tensor | None:
    present = [tensor for tensor in tensors if tensor is not None]
    return torch.stack(present) if present else None


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
    return Texts(*padded(rows), item, owner, level)


def load_batches(
    data: TrainSet, plan: Batches, workers: int, *, pin: bool = False
) -> Generator[Batch, None, None]:
    """The batches of a plan in order, the same with any number of workers. No global random state is used.

    workers  number of worker processes; 0 makes the batches in this process
    pin      copy batches to pinned memory, which a GPU reads faster

    Close the generator to end the workers. Raises the UserError of a worker.
    """
    with warnings.catch_warnings():  # more workers than cores are no mistake; `require_workers` has a limit
        warnings.filterwarnings("ignore", message="This DataLoader will create")
        more = {"prefetch_factor": 4, "worker_init_fn": outlive_first} if workers else {}
        batches = iter(loader_of(Batched(data), plan, workers, pin_memory=pin, **more))
    return _whole(batches)


def loader_of(data: Dataset[Any], sampler: Iterable[Any], workers: int, **more: Any) -> DataLoader[Any]:
    """A loader of whole batches, which uses no global random state."""
    # children of this process notice that it died; children of a fork server do not
    start = ("fork" if sys.platform == "linux" else "spawn") if workers else None
    own: Any = {"batch_size": None, "num_workers": workers, "multiprocessing_context": start}
    return DataLoader(data, sampler=sampler, collate_fn=_same, generator=torch.Generator(), **own, **more)


def _same(batch: Any) -> Any:
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


class CorruptStats:
    """Counts of corrupt samples by cause and of truncated texts, over all processes of a run."""

    def __init__(self, images: int, max_corrupt: float) -> None:
        """images: number of images in the data; max_corrupt: largest share of corrupt samples"""
        self.images, self.max_corrupt = images, max_corrupt
        self.samples, self.texts, self.truncated = 0, 0, 0
        self.causes: Counter[str] = Counter()
        self.files: list[str] = []
        # of batches not yet gathered: samples, texts, truncated texts, corrupt samples
        self._local: list[tuple[int, int, int, tuple[tuple[str, str], ...]]] = []

    def add(self, batch: Batch) -> None:
        """Count one local batch; `settle` adds it to the counts of all processes."""
        texts = int((batch.texts.item >= 0).sum())
        self._local.append((len(batch.images.image), texts, batch.truncated, batch.corrupt))

    def settle(self) -> None:
        """Gather the counts of all processes; all must call it. UserError for too many corrupt samples."""
        for samples, texts, truncated, corrupt in chain.from_iterable(all_gather_objects(self._local)):
            self.samples += samples
            self.texts += texts
            self.truncated += truncated
            self.causes.update(cause for cause, _ in corrupt)
            named = [*self.files, *(f"{where} ({cause})" for cause, where in corrupt)]
            self.files = list(dict.fromkeys(named))[:MAX_FILES]  # each file once
        self._local = []
        number = self.causes.total()
        samples = max(self.samples + number, self.images)
        if number > self.max_corrupt * samples:
            limit = f"more than data.max_corrupt={self.max_corrupt} allows"
            files = f"{', '.join(self.files)}; see `grainline data check`"
            raise UserError(f"{number} of {samples} samples are corrupt, {limit}: {files}")

    def report(self) -> dict[str, Any]:
        """The counts as JSON, for the log and for checkpoints."""
        counts = {"samples": self.samples, "texts": self.texts, "truncated": self.truncated}
        return {"corrupt": dict(self.causes), "files": self.files, **counts}

    def sentence(self) -> str:
        """The corrupt samples and truncated texts in words; empty without any."""
        counts = ", ".join(f"{number} {cause}" for cause, number in self.causes.most_common())
        corrupt = f"corrupt samples, replaced by others: {counts} (first: {'; '.join(self.files)})"
        cut = f"{self.truncated} of {self.texts} texts were truncated: longer than the model reads"
        return ". ".join([corrupt] * bool(self.causes) + [cut] * bool(self.truncated))

    def restore(self, report: dict[str, Any]) -> None:
        """Continue from the `report` in a checkpoint."""
        self.samples, self.texts, self.truncated = report["samples"], report["texts"], report["truncated"]
        self.causes, self.files = Counter(report["corrupt"]), list(report["files"])
