"""One training step, and the same step for batches whose activations do not fit in memory.

`cached_step` is GradCache (Gao et al., arXiv 2101.06983): encode without keeping activations, compare the
whole batch, encode again chunk by chunk to pass the gradients on. Written as recomputation of each chunk, it
needs no second code path: autocast and losses of single rows are repeated as they were, the noise of layers
belongs to rows (`nn/noise.py`), and DistributedDataParallel sees one forward and one backward.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from grainline.dist import finish, gather
from grainline.methods.base import Method
from grainline.nn.noise import IMAGES, TEXTS, number_places, rows_of
from grainline.types import Clock, Encoded, Images, Mean, Pair, Term, Texts, concat, rows

T = TypeVar("T", Images, Texts)


class Loss(NamedTuple):
    """What a step minimises."""

    total: Tensor  # [] with a gradient; averaged over ranks it is the loss of the global batch
    terms: dict[str, Tensor]  # [] each, without gradients, for the log
    facts: dict[str, Tensor]  # [] each, without gradients: means over the global batch that no total counts


class Objective(nn.Module):
    """A method with its loss, from a batch to a number: what DistributedDataParallel wraps.

    Encoders run in `precision`, losses always in float32: a scale of 100 on cosines of 8 bits is off by 0.4.
    """

    def __init__(self, method: Method, precision: torch.dtype = torch.float32) -> None:
        super().__init__()
        number_places(method)
        self.method, self.precision = method, precision

    def forward(self, images: Images, texts: Texts, clock: Clock, chunk: int | None = None) -> Loss:
        """Encode, exchange, compare.

        images, texts  this rank's rows; every rank holds equally many
        chunk          rows whose activations are kept at a time; None keeps all
        """
        method = self.method

        def see(part: Images) -> Encoded:
            with rows_of(clock, IMAGES, part.image):
                return method.encode_images(part)

        def read_some(part: Texts) -> tuple[Encoded, dict[str, Term]]:
            with rows_of(clock, TEXTS, part.item):
                return self._read(part)

        with torch.autocast(images.pixels.device.type, self.precision, self.precision != torch.float32):
            seen = _in_chunks(see, images, len(images.image), chunk)
            read = _in_chunks(read_some, texts, len(texts.item), chunk)
            mine = method.meet(Pair(concat(seen), concat([encoded for encoded, _ in read])))
        alone = [terms for _, terms in read]
        everyone = Pair(gather(mine.images, method.gathers), gather(mine.texts, method.gathers))
        terms = method.loss(mine, everyone, clock) | {
            name: _summed([t[name] for t in alone]) for name in alone[0]
        }
        values = {
            name: term.weight * finish(term.mean) for name, term in terms.items() if term.weight is not None
        }
        facts = {name: finish(term.mean).detach() for name, term in terms.items() if term.weight is None}
        total = torch.stack(list(values.values())).sum()
        return Loss(total, {name: value.detach() for name, value in values.items()}, facts)

    def _read(self, texts: Texts) -> tuple[Encoded, dict[str, Term]]:
        encoded = self.method.encode_texts(texts)
        return encoded, self.method.row_loss(texts, encoded)


def step(method: Method, images: Images, texts: Texts, clock: Clock) -> dict[str, Tensor]:
    """Gradients of one batch, added to `.grad`. Returns the terms of the loss."""
    loss: Loss = Objective(method)(images, texts, clock)
    loss.total.backward()
    return loss.terms


def cached_step(method: Method, images: Images, texts: Texts, clock: Clock, chunk: int) -> dict[str, Tensor]:
    """The gradients of `step` with the activations of at most `chunk` images or texts at a time."""
    loss: Loss = Objective(method)(images, texts, clock, chunk)
    loss.total.backward()
    return loss.terms


def _in_chunks(encode: Callable[[T], Any], batch: T, length: int, chunk: int | None) -> list[Any]:
    if chunk is None:
        return [encode(batch)]
    parts = [rows(batch, slice(i, i + chunk)) for i in range(0, length, chunk)]
    return [checkpoint(encode, part, use_reentrant=False) for part in parts]


def _summed(terms: list[Term]) -> Term:
    total = torch.stack([term.mean.total for term in terms]).sum()
    number = torch.stack([term.mean.number for term in terms]).sum()
    return Term(terms[0].weight, Mean(total, number))
