"""What every walk over a source needs: inputs collected to rows, and samples that cannot be used.

Inputs that are collected, encoded in batches and stacked to rows with ids of their own.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from grainline.data.record import CorruptSample
from grainline.errors import UserError
from grainline.types import Encoded, concat


class Rows:
    """Collects inputs and encodes them in batches."""

    def __init__(self, encode: Callable[[list[Any]], Encoded], batch: int) -> None:
        self.encode = encode
        self.batch = batch
        self.waiting: list[Any] = []
        self.done: list[Encoded] = []
        self.number = 0

    def add(self, item: Any) -> int:
        """Queue one input; its row."""
        self.waiting.append(item)
        self.number += 1
        if len(self.waiting) == self.batch:
            self._flush()
        return self.number - 1

    def stacked(self) -> Encoded:
        self._flush()
        return stack(self.done)

    def _flush(self) -> None:
        if self.waiting:
            with torch.no_grad():
                self.done.append(self.encode(self.waiting))
            self.waiting = []


def stack(parts: Sequence[Encoded]) -> Encoded:
    """Rows of several batches; tokens are padded to the longest, because texts are trimmed batch by batch.

    >>> def some(n: int, length: int) -> Encoded:
    ...     return Encoded(torch.ones(n, 2), torch.ones(n, length, 2), torch.ones(n, length).bool(),
    ...                    torch.arange(n), torch.arange(n))
    >>> stack([some(1, 3), some(2, 1)]).mask.int().tolist()
    [[1, 1, 1], [1, 0, 0], [1, 0, 0]]
    """
    longest = max(part.mask.shape[1] for part in parts)
    return concat([_padded(part, longest) for part in parts])


def _padded(part: Encoded, length: int) -> Encoded:
    more = length - part.mask.shape[1]
    return part._replace(tokens=F.pad(part.tokens, (0, 0, 0, more)), mask=F.pad(part.mask, (0, more)))


def numbered(encoded: Encoded, owner: Sequence[int] | None = None) -> Encoded:
    """The rows with ids of their own: 0, 1, ... and the image that each belongs to."""
    item = torch.arange(len(encoded.vector), device=encoded.vector.device)
    image: Tensor = item if owner is None else torch.tensor(owner, device=item.device)
    return encoded._replace(item=item, image=image)


# Samples that cannot be used: counted by cause, the first ones named, too many refused.


NAMED = 3  # damaged samples that an error or a result names


class Skipped:
    """Damage of one walk over a source.

    samples  in the source
    share    of them that may be skipped
    path     of the source, for errors
    """

    def __init__(self, samples: int, share: float, path: str) -> None:
        self._samples, self._share, self._path = samples, share, path
        self._failed: list[tuple[str, str]] = []  # cause, text: an exception would keep its image in memory

    def add(self, error: CorruptSample) -> None:
        """The next one. Raises UserError where it is one too many, naming the first of them."""
        self._failed.append((error.cause, str(error)))
        if len(self._failed) > self._share * self._samples:
            raise UserError(
                f"at least {len(self._failed)} of {self._samples} samples in {self._path} are corrupt;"
                f" allowed are {self._share:.0%} of them (--max-corrupt, or data.max_corrupt of a recipe);"
                f" the first: "
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
