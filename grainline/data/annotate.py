"""Texts made once for all records of a source: `grainline data describe` and `grainline data phrases`.

The files are those of data/descriptions.py and data/phrases/providers.py; an interrupted run goes on later.
"""

import hashlib
import json
import re
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.utils.data import Dataset

from grainline.data import descriptions
from grainline.data.batches import loader_of
from grainline.data.captions import remove_repetitions, sentences
from grainline.data.decode import decode
from grainline.data.descriptions import LONG_CAPTIONS
from grainline.data.formats.common import read_captions
from grainline.data.formats.table import choose_columns, fields_of, read_rows
from grainline.data.lines import Progress, Written, as_line, complete, read_header, require_same
from grainline.data.open_source import open_source
from grainline.data.phrases import providers
from grainline.data.phrases.patterns import Provider
from grainline.data.record import Cause, CorruptSample, Record, Source, as_sentences
from grainline.errors import UserError

CHUNK = 64  # records whose phrases a process makes at a time
TABLES = (".jsonl", ".ndjson", ".jsonlines", ".csv", ".tsv", ".json")


class Annotator(ABC):
    """Abstract: makes one line for each record of a source."""

    batch: int = 1  # records at a time
    format: ClassVar[str]  # of the file
    origin: Mapping[str, Any]  # in the header of the file: all that the lines depend on except the records

    @abstractmethod
    def differs(self, header: Mapping[str, Any]) -> dict[str, str]:
        """The origin in the header of another file, by its field, in words."""

    def prepare(self, record: Record) -> Record:
        """A record as it waits in its batch. Raises CorruptSample."""
        return record

    @abstractmethod
    def lines(self, source: Source, records: Mapping[int, Record]) -> Iterable[dict[str, Any]]:
        """The lines of records by their numbers, in the order of the records."""


class _Lines(Dataset[Tensor | UserError]):
    """The lines of a batch of records by the number of the first, or a UserError.

    They travel as a tensor, in shared memory: after the parent was killed, a loader ends only if nothing that
    it sent still waits for room in a pipe.
    """

    def __init__(self, source: Source, annotator: Annotator) -> None:
        self.source, self.annotator = source, annotator

    def __getitem__(self, first: int) -> Tensor | UserError:
        lines: dict[int, dict[str, Any]] = {}
        records: dict[int, Record] = {}
        try:
            for index in range(first, min(first + self.annotator.batch, len(self.source))):
                try:
                    records[index] = self.annotator.prepare(self.source[index])
                except CorruptSample as error:
                    lines[index] = {"record": index, "skipped": error.cause, "where": error.where}
            lines |= zip(records, self.annotator.lines(self.source, records), strict=True)
        except UserError as error:
            return error
        data = b"".join(as_line(lines[index]) for index in sorted(lines))
        return torch.frombuffer(bytearray(data), dtype=torch.uint8)


def _make(
    source: Source, annotator: Annotator, out: Path, processes: int, progress: Progress | None
) -> tuple[list[dict[str, Any]], dict[str, int], int]:
    """Result of `lines.complete`: all lines, how many are skipped records, by cause, and how many existed."""
    header = {"grainline": annotator.format, "source": source.fingerprint(), **annotator.origin}

    def check(path: Path) -> None:
        first = read_header(path, annotator.format, set(header), "choose another --out")
        require_same(path, first, header, {"source": "from other data"} | annotator.differs(first))

    def batches(first: int) -> Iterator[bytes]:
        starts = range(first, len(source), annotator.batch)
        workers = min(processes, len(starts)) if processes > 1 else 0
        for lines in loader_of(_Lines(source, annotator), starts, workers):
            if isinstance(lines, UserError):
                raise lines
            yield lines.numpy().tobytes()

    rows, resumed = complete(out, header, check, batches, len(source), progress)
    return rows, dict(Counter(row["skipped"] for row in rows if "skipped" in row)), resumed


# Phrases


class _ByProvider(Annotator):
    """Phrases of all texts."""

    batch, format = CHUNK, providers.FORMAT

    def __init__(self, provider: Provider) -> None:
        self.provider, self.origin = provider, {"provider": provider.name}

    def differs(self, header: Mapping[str, Any]) -> dict[str, str]:
        return {"provider": f"by {header['provider']}, not {self.provider.name}"}

    def prepare(self, record: Record) -> Record:
        return record._replace(image=b"")

    def lines(self, source: Source, records: Mapping[int, Record]) -> Iterator[dict[str, Any]]:  # noqa: ARG002
        for index, record in records.items():
            texts = {providers.digest(text): self.provider.phrases(text) for text in texts_of(record)}
            yield {"record": index, "key": record.key, "texts": texts}


def make_phrases(
    source: Source, provider: Provider, out: Path, processes: int, progress: Progress | None = None
) -> Written:
    """Write the phrases of all texts of a source, or those that an interrupted run left out.

    Raises UserError where `out`, whole or partial, was made from other data or by another provider.
    """
    rows, skipped, resumed = _make(source, _ByProvider(provider), out, processes, progress)
    texts = [text for row in rows for text in row.get("texts", {}).values()]
    counts = {"record": len(rows), "text": len(texts), "phrase": sum(map(len, texts))}
    return Written(counts, skipped, resumed)


def texts_of(record: Record) -> list[str]:
    """The texts that training may split into phrases, cleaned as training cleans them."""
    texts = (record.whole, *record.captions, *(foil.true for foil in record.foils))
    return list(dict.fromkeys(map(remove_repetitions, texts)))


# Descriptions


class Describer(Annotator):
    """Abstract: gives the descriptions of images."""

    format = descriptions.FORMAT

    def differs(self, header: Mapping[str, Any]) -> dict[str, str]:
        how = ", ".join(f"{name} {value}" for name, value in header["by"].items())
        return {"by": f"with {how}"}

    @abstractmethod
    def describe(self, records: Sequence[Record]) -> list[dict[str, Any]]:
        """The fields of each record's line without image_id and file; `text` is blank where there is none."""

    def lines(self, source: Source, records: Mapping[int, Record]) -> Iterator[dict[str, Any]]:
        described = self.describe([*records.values()]) if records else []
        for (index, record), fields in zip(records.items(), described, strict=True):
            if fields["text"].strip():
                yield {"image_id": record.key, "file": source.path, **fields}
            else:
                cause = Cause.MISSING_CAPTION if fields["model"] is None else "empty description"
                yield {"record": index, "skipped": cause, "where": record.key}


class ByModel(Describer):
    """Descriptions by a model, which reads each image and a prompt, never a caption."""

    def __init__(self, model: Any, prompt: str, seed: int, tokens: int, batch: int) -> None:
        """
        model   such as LLaVA: name, revision, and `describe`: text, n_tokens and hit_limit of each image
        seed    of which each image has its own, by its key
        tokens  of a description at most
        """
        self.model, self.prompt, self.seed, self.tokens, self.batch = model, prompt, seed, tokens, batch
        self.settings = {"model": model.name, "revision": model.revision, "prompt": prompt}
        self.origin = {"by": {**self.settings, "seed": seed, "tokens": tokens}}

    def prepare(self, record: Record) -> Record:
        return Record(record.key, decode(record), ())

    def describe(self, records: Sequence[Record]) -> list[dict[str, Any]]:
        seeds = [seed_of(self.seed, record.key) for record in records]
        outputs = self.model.describe([record.image for record in records], seeds, self.prompt, self.tokens)
        texts = [whole_sentences(one.text) if one.hit_limit else one.text for one in outputs]
        cut = [{"n_tokens": one.n_tokens, "hit_limit": one.hit_limit} for one in outputs]
        rows = zip(texts, seeds, cut, strict=True)
        return [{"text": text, **self.settings, "seed": seed, **fields} for text, seed, fields in rows]


class ByTexts(Describer):
    """Descriptions that are existing texts: of the records themselves, or of a file, by keys."""

    def __init__(self, texts: str) -> None:
        """texts  `long`, `captions`, `captions:0,1` (by numbers, from 0), or a table or source with keys"""
        captions = re.fullmatch(r"captions(?::(\d{1,18}(?:,\d{1,18})*))?", texts)
        self.origin = {"by": {"texts": texts}}
        self._text: Callable[[Record], str]
        if texts == LONG_CAPTIONS:
            self._text = lambda record: record.long or ""
        elif captions:
            numbers = [int(number) for number in captions[1].split(",")] if captions[1] else None
            self._text = lambda record: captions_of(record, numbers)
        else:
            by_key = texts_by_key(texts)
            content = json.dumps(by_key, sort_keys=True).encode()
            self.origin = {"by": {"texts": texts, "sha256": hashlib.sha256(content).hexdigest()}}
            self._text = lambda record: by_key.get(record.key, "")

    def describe(self, records: Sequence[Record]) -> list[dict[str, Any]]:
        none = dict.fromkeys(("model", "revision", "prompt", "seed", "n_tokens"))
        return [{"text": self._text(record)} | none | {"hit_limit": False} for record in records]


def make_descriptions(
    source: Source, describer: Describer, out: Path, progress: Progress | None = None
) -> Written:
    """Write the descriptions of all images of a source, or those that an interrupted run left out.

    Raises UserError where `out`, whole or partial, was made from other data or in another way.
    """
    rows, skipped, resumed = _make(source, describer, out, 1, progress)
    texts = [row for row in rows if "skipped" not in row]
    counts = {"image": len(texts), "word": sum(len(row["text"].split()) for row in texts)}
    if truncated := sum(row["hit_limit"] for row in texts):
        counts["truncated description"] = truncated
    return Written(counts, skipped, resumed)


def seed_of(seed: int, key: str) -> int:
    """The seed of one image: 48 bits of a sha256 of the seed and its key."""
    data = f"{seed}/{key}".encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.sha256(data).digest()[:6], "big")


def whole_sentences(text: str) -> str:
    """A text without the incomplete sentence at its end; a single incomplete sentence stays."""
    pieces = sentences(text)
    if len(pieces) < 2 or re.search(r"[.!?][\"')\]]*$", text):
        return text
    return text[: pieces[-2].end]


def captions_of(record: Record, numbers: Sequence[int] | None) -> str:
    """The captions of a record, or those of some numbers, as sentences of one text; "" if one is missing."""
    if numbers is None:
        numbers = range(len(record.captions))
    if not numbers or max(numbers) >= len(record.captions):
        return ""
    return as_sentences([record.captions[number] for number in numbers])


def texts_by_key(path: str) -> dict[str, str]:
    """The texts of a table with a column of keys, or of a source; all of one key as sentences of one text."""
    by_key: dict[str, list[str]] = {}
    for key, text in _of_table(path) if path.lower().endswith(TABLES) else _of_source(path):
        by_key.setdefault(key, []).append(text)
    if not by_key:
        raise UserError(f"--texts {path} holds no text of any image")
    return {key: as_sentences(texts) for key, texts in by_key.items()}


def _of_table(path: str) -> Iterator[tuple[str, str]]:
    rows = [row for row in read_rows(path) if not row.error]
    names = {name for row in rows for name in row.fields}
    key = next((name for name in ("image_id", "key") if name in names), "")
    columns = choose_columns(names, {"image": key} if key else {}, path)
    for row in rows:
        try:
            captions = read_captions(fields_of(row.fields, columns), f"{path}: row {row.number}")
        except CorruptSample as error:
            raise UserError(f"--texts {error.where}: {error.cause}") from None
        name = row.fields.get(columns["image"])
        if isinstance(name, str) and name.strip() and not captions.silent:
            yield name.strip(), captions.long or as_sentences(captions.captions)


def _of_source(path: str) -> Iterator[tuple[str, str]]:
    source = open_source(path, trust_code=True)
    for index in range(len(source)):
        with suppress(CorruptSample):  # the source that is described reports it
            record = source[index]
            if record.captions:
                yield record.key, record.whole
