"""The account of damaged samples and cut texts: counted by cause and shown at the end of every epoch."""

from collections import Counter
from typing import Any

import torch.distributed as dist

from grainline.data.collate import Batch
from grainline.dist import world_size
from grainline.errors import UserError

NAMED = 5  # files that an error or a report names


class Account:
    """What went wrong with the samples of a run so far, over all processes."""

    def __init__(self, pictures: int, allowed: float) -> None:
        """pictures in the data; `allowed` share of the samples may be damaged"""
        self.pictures, self.allowed = pictures, allowed
        self.samples, self.texts, self.cut = 0, 0, 0
        self.causes: Counter[str] = Counter()
        self.files: list[str] = []
        self._new: list[tuple[str, str]] = []

    def add(self, batch: Batch) -> None:
        """Count one of this process's batches."""
        self.samples += len(batch.images.image)
        self.texts += int((batch.texts.item >= 0).sum())
        self.cut += batch.cut
        self._new += batch.damage

    def settle(self) -> None:
        """Bring in what other processes saw; stop where too much is damaged. All processes must call it."""
        heard = _everyones(self._new)
        self._new = []
        self.causes.update(cause for cause, _ in heard)
        self.files += [f"{where} ({cause})" for cause, where in heard][: NAMED - len(self.files)]
        drawn = max(self.samples * world_size(), self.pictures)
        damaged = self.causes.total()
        if damaged > self.allowed * drawn:
            raise UserError(
                f"{damaged} of {drawn} samples are damaged, more than data.damage={self.allowed} allows: "
                f"{', '.join(self.files)}; see `grainline data check`"
            )

    def report(self) -> dict[str, Any]:
        """Numbers for the log: samples, damaged by cause with the first files, texts and those cut."""
        return {
            "samples": self.samples * world_size(),
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
            parts.append(f"{self.cut} of {self.texts} texts were longer than the context and cut there")
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


def _everyones(mine: list[tuple[str, str]]) -> list[tuple[str, str]]:
    if world_size() == 1:
        return mine
    parts: list[list[tuple[str, str]]] = [[] for _ in range(world_size())]
    dist.all_gather_object(parts, mine)
    return [damage for part in parts for damage in part]
