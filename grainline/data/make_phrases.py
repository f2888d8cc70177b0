"""Phrases of all texts of a source: `grainline data phrases`. The file is that of data/phrases/stored.py."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from grainline.data.batches import START, unchanged
from grainline.data.captions import remove_repetitions
from grainline.data.lines import (
    Progress,
    Written,
    as_line,
    complete,
    count_skipped,
    require_same,
    skipped_line,
)
from grainline.data.phrases.patterns import Provider
from grainline.data.phrases.stored import FORMAT, digest, read_header
from grainline.data.record import CorruptSample, Record, Source
from grainline.errors import UserError

CHUNK = 64  # records that a process takes at a time


def make(
    source: Source, provider: Provider, out: Path, processes: int, progress: Progress | None = None
) -> Written:
    """Write the phrases of all texts of a source, or those that an interrupted run left out.

    Raises UserError where `out`, whole or partial, was made from other data or by another provider.
    """
    expected = {"grainline": FORMAT, "provider": provider.name, "source": source.fingerprint()}

    def check(path: Path) -> None:
        header = read_header(path)
        provider_differs = f"by {header['provider']}, not {expected['provider']}"
        require_same(path, header, expected, {"provider": provider_differs, "source": "from other data"})

    def batches(first: int) -> Iterator[bytes]:
        return _lines(_PhraseLines(source, provider), range(first, len(source), CHUNK), processes)

    rows, resumed = complete(out, expected, check, batches, len(source), progress)
    texts = [text for row in rows for text in row.get("texts", {}).values()]
    counts = {"record": len(rows), "text": len(texts), "phrase": sum(map(len, texts))}
    return Written(counts, count_skipped(rows), resumed)


def texts_of(record: Record) -> list[str]:
    """The texts that training may split into phrases, cleaned as training cleans them."""
    texts = (record.whole, *record.captions, *(foil.true for foil in record.foils))
    return list(dict.fromkeys(map(remove_repetitions, texts)))


class _PhraseLines(Dataset[Tensor | UserError]):
    """Lines of CHUNK records by the number of the first, or a UserError.

    They travel as a tensor, in shared memory: after the parent was killed, a loader ends only if nothing that
    it sent still waits for room in a pipe.
    """

    def __init__(self, source: Source, provider: Provider) -> None:
        self.source, self.provider = source, provider

    def __getitem__(self, first: int) -> Tensor | UserError:
        try:
            lines = [self.line(i) for i in range(first, min(first + CHUNK, len(self.source)))]
            return torch.frombuffer(bytearray(b"".join(lines)), dtype=torch.uint8)
        except UserError as error:
            return error

    def line(self, index: int) -> bytes:
        try:
            record = self.source[index]
        except CorruptSample as error:
            return as_line(skipped_line(index, error.cause, error.where))
        texts = {digest(text): self.provider.phrases(text) for text in texts_of(record)}
        return as_line({"record": index, "key": record.key, "texts": texts})


def _lines(data: _PhraseLines, starts: range, processes: int) -> Iterator[bytes]:
    workers = min(processes, len(starts)) if processes > 1 else 0
    loader: DataLoader[Any] = DataLoader(
        data,
        batch_size=None,
        sampler=starts,
        num_workers=workers,
        multiprocessing_context=START if workers else None,
        collate_fn=unchanged,
        generator=torch.Generator(),
    )
    for lines in loader:
        if isinstance(lines, UserError):
            raise lines
        yield lines.numpy().tobytes()
