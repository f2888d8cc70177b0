"""The account of damaged samples and cut texts: counted by cause and shown at the end of every epoch."""

from collections import Counter
from typing import Any, NamedTuple

from grainline.data.collate import Batch
from grainline.dist import everyones
from grainline.errors import UserError

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
