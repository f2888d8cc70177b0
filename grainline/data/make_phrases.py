"""Phrases of all texts of a source, made once: `grainline data phrases`.

Lines are written in the order of the records into FILE.partial; a run that was killed goes on behind its last
whole line. FILE gets its name when it is complete.
"""

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from grainline.data.batches import START
from grainline.data.lines import as_line, completing, require_same, told_of_skipped
from grainline.data.phrases.base import Provider
from grainline.data.phrases.stored import FORMAT, digest, header
from grainline.data.record import Damaged, Record, Source
from grainline.data.texts import unrepeated
from grainline.errors import UserError, amount
from grainline.files import reason, remedy

CHUNK = 64  # records that a process takes at a time


class Made(NamedTuple):
    """What is in the file now."""

    records: int
    texts: int
    phrases: int
    skipped: dict[str, int]  # cause -> records without phrases
    kept: int  # records that an earlier run had done


def make(
    source: Source,
    provider: Provider,
    out: Path,
    processes: int,
    progress: Callable[[int, int], None] | None = None,
) -> Made:
    """Write the phrases of all texts of a source, or what is missing of them.

    progress  is called with (records done, records to do)

    Raises UserError where `out`, whole or partial, was made from other data or by another provider.
    """
    begun = {"grainline": FORMAT, "provider": provider.name, "source": source.fingerprint()}
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        if out.exists():
            _require_same(out, begun)
            return _account(out, len(source))
        with completing(out, begun, lambda path: _require_same(path, begun)) as (file, done):
            _fill(file, source, provider, done, processes, progress)
    except OSError as error:
        raise UserError(
            f"cannot write {out}: {reason(error)}; {remedy(error, 'choose another --out')}"
        ) from None
    return _account(out, done)


def texts_of(record: Record) -> list[str]:
    """The texts that training may take apart, as it takes them apart."""
    said = (record.whole, *record.captions, *(foil.true for foil in record.foils))
    return list(dict.fromkeys(unrepeated(text) for text in said))


class _Lines(Dataset[Tensor | UserError]):
    """Lines of CHUNK records by the number of the first; a user's error is handed over like lines.

    They travel as a tensor, in shared memory: a loader whose parent was killed ends only if nothing that it
    has sent still waits for room in a pipe.
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
        except Damaged as damaged:
            return as_line({"record": index, "skipped": damaged.cause, "where": damaged.where})
        texts = {digest(text): self.provider.phrases(text) for text in texts_of(record)}
        return as_line({"record": index, "key": record.key, "texts": texts})


def _fill(
    file: BinaryIO,
    source: Source,
    provider: Provider,
    done: int,
    processes: int,
    progress: Callable[[int, int], None] | None,
) -> None:
    """Append the lines of all records from `done` on, in order."""
    starts = range(done, len(source), CHUNK)
    workers = min(processes, len(starts)) if processes > 1 else 0
    loader: DataLoader[Any] = DataLoader(
        _Lines(source, provider),
        batch_size=None,
        sampler=starts,
        num_workers=workers,
        multiprocessing_context=START if workers else None,
        collate_fn=_unchanged,
        generator=torch.Generator(),
    )
    for lines in loader:
        if isinstance(lines, UserError):
            raise lines
        written = lines.numpy().tobytes()
        file.write(written)
        file.flush()
        done += written.count(b"\n")
        if progress is not None:
            progress(done, len(source))


def _unchanged(lines: Any) -> Any:
    """What the loader is to do to lines."""
    return lines


def _require_same(path: Path, begun: dict[str, str]) -> None:
    found = header(path)
    told = {"provider": f"by {found['provider']}, not {begun['provider']}", "source": "from other data"}
    require_same(path, found, begun, told)


def _account(out: Path, kept: int) -> Made:
    """What a whole file holds, counted."""
    records = texts = phrases = 0
    skipped: Counter[str] = Counter()
    with out.open("rb") as file:
        file.readline()
        for line in file:
            row = json.loads(line)
            records += 1
            skipped.update([row["skipped"]] if "skipped" in row else [])
            found = row.get("texts", {}).values()
            texts += len(found)
            phrases += sum(len(rows) for rows in found)
    return Made(records, texts, phrases, dict(skipped), kept)


def told(made: Made) -> str:
    """The account in words.

    >>> told(Made(10, 12, 90, {"missing-caption": 2}, kept=4))
    '10 records, 12 texts, 90 phrases; 4 records were there before; 2 skipped: 2 missing-caption'
    """
    parts = [
        f"{amount(made.records, 'record')}, {amount(made.texts, 'text')}, {amount(made.phrases, 'phrase')}"
    ]
    return "; ".join(parts + told_of_skipped(made.kept, made.skipped))
