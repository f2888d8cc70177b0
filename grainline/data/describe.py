"""Descriptions of all pictures of a source, made once: `grainline data describe`.

A model says what is in each picture, and sees nothing but the picture; or texts that exist are taken. Lines
are written in the order of the records into FILE.partial, a batch at a time; a run that was killed goes on
behind its last whole line. FILE gets its name when it is complete.
"""

import hashlib
import json
import re
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from PIL import Image

from grainline.data.captions import sentences
from grainline.data.decode import decode
from grainline.data.descriptions import FORMAT, OWN, header
from grainline.data.formats.common import LONG_FIELDS, said
from grainline.data.formats.table import COLUMNS, Row, fields_of, read_rows
from grainline.data.lines import as_line, completing, require_same, told_of_skipped
from grainline.data.open_source import open_source
from grainline.data.record import MISSING_CAPTION, Damaged, Record, Source, as_sentences
from grainline.errors import UserError, amount
from grainline.files import reason, remedy

EMPTY = "nothing was said"
TABLES = (".jsonl", ".ndjson", ".jsonlines", ".csv", ".tsv", ".json")
KEYS = ("image_id", "key", *COLUMNS["image"])  # the names of a column of keys, best first


class Made(NamedTuple):
    """What is in the file now."""

    pictures: int
    words: int
    at_limit: int  # pictures of which more could have been said
    skipped: dict[str, int]  # cause -> records without a description
    kept: int  # records that an earlier run had done


class Describer(ABC):
    """Abstract: what says something of pictures."""

    by: Mapping[str, Any]
    """All that its texts depend on beside the records, as JSON."""

    batch: int = 1
    """Records that are described at a time."""

    @abstractmethod
    def describe(self, records: Sequence[Record]) -> list[dict[str, Any]]:
        """The fields of each record's line without image_id and file; `text` is blank where there is none."""

    def prepared(self, record: Record) -> Record:
        """A record as it is kept until its batch is full. Raises Damaged."""
        return record


class Says(Protocol):
    """A model that says what it sees."""

    name: str
    revision: str

    def describe(
        self, pictures: Sequence[Image.Image], seeds: Sequence[int], prompt: str, tokens: int
    ) -> Sequence[Any]:
        """Of each picture: text, n_tokens and hit_limit."""


class ByModel(Describer):
    """Descriptions by a model, which is shown each picture and a prompt, never a caption."""

    def __init__(self, model: Says, prompt: str, seed: int, tokens: int, batch: int) -> None:
        """
        seed    from which each picture has its own, by its key
        tokens  that are said of a picture at most
        """
        self.model, self.prompt, self.seed, self.tokens, self.batch = model, prompt, seed, tokens, batch
        self.by = {"model": model.name, "revision": model.revision, "prompt": prompt}
        self.by |= {"seed": seed, "tokens": tokens}

    def prepared(self, record: Record) -> Record:
        return Record(record.key, decode(record), ())

    def describe(self, records: Sequence[Record]) -> list[dict[str, Any]]:
        seeds = [seed_of(self.seed, record.key) for record in records]
        pictures = [record.image for record in records if isinstance(record.image, Image.Image)]
        found = self.model.describe(pictures, seeds, self.prompt, self.tokens)
        same = {"model": self.model.name, "revision": self.model.revision, "prompt": self.prompt}
        return [
            {"text": whole_sentences(one.text) if one.hit_limit else one.text}
            | same
            | {"seed": seed, "n_tokens": one.n_tokens, "hit_limit": one.hit_limit}
            for one, seed in zip(found, seeds, strict=True)
        ]


class ByTexts(Describer):
    """Descriptions that are texts which exist: of the records themselves, or of a file, by keys."""

    def __init__(self, texts: str) -> None:
        """texts  `long`, `captions`, `captions:0,1` (by numbers, from 0), or a table or source with keys"""
        chosen = re.fullmatch(r"captions(?::(\d+(?:,\d+)*))?", texts)
        self.by = {"texts": texts}
        self._text: Callable[[Record], str]
        if texts == OWN:
            self._text = lambda record: record.long or ""
        elif chosen:
            numbers = None if chosen[1] is None else [int(number) for number in chosen[1].split(",")]
            self._text = lambda record: captions_of(record, numbers)
        else:
            found = texts_by_key(texts)
            joined = json.dumps(found, sort_keys=True).encode()
            self.by = {"texts": texts, "sha256": hashlib.sha256(joined).hexdigest()}
            self._text = lambda record: found.get(record.key, "")

    def describe(self, records: Sequence[Record]) -> list[dict[str, Any]]:
        none = dict.fromkeys(("model", "revision", "prompt", "seed", "n_tokens"))
        return [{"text": self._text(record)} | none | {"hit_limit": False} for record in records]


def make(
    source: Source,
    describer: Describer,
    out: Path,
    progress: Callable[[int, int], None] | None = None,
) -> Made:
    """Write the descriptions of all pictures of a source, or what is missing of them.

    progress  is called with (records done, records to do)

    Raises UserError where `out`, whole or partial, was made from other data or in another way.
    """
    begun = {"grainline": FORMAT, "source": source.fingerprint(), "by": dict(describer.by)}
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        if out.exists():
            _require_same(out, begun)
            return _account(out, len(source))
        with completing(out, begun, lambda path: _require_same(path, begun)) as (file, done):
            for start in range(done, len(source), describer.batch):
                end = min(start + describer.batch, len(source))
                file.writelines(map(as_line, _lines(source, range(start, end), describer)))
                file.flush()
                if progress is not None:
                    progress(end, len(source))
    except OSError as error:
        raise UserError(
            f"cannot write {out}: {reason(error)}; {remedy(error, 'choose another --out')}"
        ) from None
    return _account(out, done)


def seed_of(seed: int, key: str) -> int:
    """The seed of one picture: 48 bits of a sha256, whatever stands beside it."""
    data = f"{seed}/{key}".encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.sha256(data).digest()[:6], "big")


def whole_sentences(text: str) -> str:
    """A text that was broken off, without the half sentence at its end; a lone half sentence stays.

    >>> whole_sentences("A dog runs. The sand is"), whole_sentences("A dog runs on")
    ('A dog runs.', 'A dog runs on')
    """
    found = sentences(text)
    if len(found) < 2 or re.search(r"[.!?][\"')\]]*$", text):
        return text
    return text[: found[-2].end]


def captions_of(record: Record, numbers: Sequence[int] | None) -> str:
    """All captions of a record, or those of some numbers, as sentences of one text; "" where one is missing.

    >>> captions_of(Record("a", b"", ("A dog runs .", "It is wet", "Sand.")), [0, 2])
    'A dog runs. Sand.'
    """
    if numbers is None:
        numbers = range(len(record.captions))
    if not numbers or max(numbers) >= len(record.captions):
        return ""
    return as_sentences([record.captions[number] for number in numbers])


def texts_by_key(path: str) -> dict[str, str]:
    """The texts of a table with a column of keys, or of a source, by the keys of their pictures.

    Several rows of one key are the sentences of one text. Raises UserError for a table without such columns.
    """
    told: dict[str, list[str]] = {}
    for key, text in _of_table(path) if path.lower().endswith(TABLES) else _of_source(path):
        told.setdefault(key, []).append(text)
    if not told:
        raise UserError(f"--texts {path} holds no text of any picture")
    return {key: as_sentences(texts) for key, texts in told.items()}


def _of_table(path: str) -> Iterator[tuple[str, str]]:
    rows = [row for row in read_rows(path) if not row.error]
    names = {name.lower(): name for row in rows for name in row.fields}
    key = next((names[name] for name in KEYS if name in names), None)
    columns = {
        role: next((names[name] for name in known if name in names), "")
        for role, known in (("caption", COLUMNS["caption"]), ("long", LONG_FIELDS))
    }
    if key is None or not any(columns.values()):
        raise UserError(
            f"--texts {path} needs a column of keys ({', '.join(KEYS[:4])}, ...) and one of texts "
            f"({', '.join((*COLUMNS['caption'][:3], *LONG_FIELDS))}), and has {', '.join(names) or 'none'}"
        )
    yield from _of_rows(path, rows, key, columns)


def _of_rows(
    path: str, rows: Sequence[Row], key: str, columns: Mapping[str, str]
) -> Iterator[tuple[str, str]]:
    for row in rows:
        found = said(fields_of(row.fields, columns), f"{path}: row {row.number}")
        name = row.fields.get(key)
        if isinstance(name, str) and name.strip() and not found.silent:
            yield name.strip(), found.long or as_sentences(found.captions)


def _of_source(path: str) -> Iterator[tuple[str, str]]:
    source = open_source(path)
    for index in range(len(source)):
        try:
            record = source[index]
        except Damaged:  # its picture, or that of another source of these keys, will say so
            continue
        if record.captions:
            yield record.key, record.whole


def _lines(source: Source, places: Sequence[int], describer: Describer) -> Iterator[dict[str, Any]]:
    """The lines of some records, in their order."""
    lines: dict[int, dict[str, Any]] = {}
    records: dict[int, Record] = {}
    for place in places:
        try:
            records[place] = describer.prepared(source[place])
        except Damaged as error:
            lines[place] = {"record": place, "skipped": error.cause, "where": error.where}
    found = describer.describe(list(records.values())) if records else []
    for (place, record), fields in zip(records.items(), found, strict=True):
        if fields["text"].strip():
            lines[place] = {"image_id": record.key, "file": source.path, **fields}
        else:
            cause = MISSING_CAPTION if fields["model"] is None else EMPTY
            lines[place] = {"record": place, "skipped": cause, "where": record.key}
    return (lines[place] for place in places)


def _require_same(path: Path, begun: dict[str, Any]) -> None:
    found = header(path)
    by = ", ".join(f"{name} {value}" for name, value in found["by"].items())
    require_same(path, found, begun, {"source": "from other data", "by": f"with {by}"})


def _account(out: Path, kept: int) -> Made:
    """What a whole file holds, counted."""
    pictures = words = at_limit = 0
    skipped: Counter[str] = Counter()
    with out.open("rb") as file:
        file.readline()
        for line in file:
            row = json.loads(line)
            if "skipped" in row:
                skipped[row["skipped"]] += 1
                continue
            pictures += 1
            words += len(row["text"].split())
            at_limit += row["hit_limit"]
    return Made(pictures, words, at_limit, dict(skipped), kept)


def told(made: Made) -> str:
    """The account in words.

    >>> told(Made(10, 905, 1, {"missing caption": 2}, kept=4))
    '10 pictures, 90 words each; 1 broken off; 4 records were there before; 2 skipped: 2 missing caption'
    """
    parts = [f"{amount(made.pictures, 'picture')}, {made.words // max(1, made.pictures)} words each"]
    parts += [f"{made.at_limit} broken off"] if made.at_limit else []
    return "; ".join(parts + told_of_skipped(made.kept, made.skipped))
