"""Samples that cannot be used: counted by cause, the first ones named, too many refused."""

from collections import Counter

from grainline.data.record import Damaged
from grainline.errors import UserError

NAMED = 3  # damaged samples that an error or a result names


class Skipped:
    """Damage of one walk over a source.

    samples  in the source
    share    of them that may be skipped
    path     of the source, for errors
    """

    def __init__(self, samples: int, share: float, path: str) -> None:
        self._samples, self._share, self._path = samples, share, path
        self._failed: list[tuple[str, str]] = []  # cause, text: an exception would keep its picture in memory

    def add(self, error: Damaged) -> None:
        """The next one. Raises UserError where it is one too many, naming the first of them."""
        self._failed.append((error.cause, str(error)))
        if len(self._failed) > self._share * self._samples:
            raise UserError(
                f"at least {len(self._failed)} of {self._samples} samples in {self._path} are damaged;"
                f" allowed are {self._share:.0%} of them (--damage, or data.damage of a recipe); the first: "
                f"{'; '.join(self.first())}"
            )

    def refuse_all(self) -> None:
        """Raise UserError where nothing else is left."""
        if len(self._failed) == self._samples:
            first = self._failed[0][1]
            raise UserError(f"no sample of {self._path} can be used; the first of {self._samples}: {first}")

    def causes(self) -> dict[str, int]:
        """How many there are of each cause."""
        return dict(Counter(cause for cause, _ in self._failed))

    def first(self) -> tuple[str, ...]:
        """The first of them: cause and place."""
        return tuple(text for _, text in self._failed[:NAMED])
