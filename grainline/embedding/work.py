"""The work of one process of `grainline encode`: it claims units, encodes them, and writes their parts.

Processes know nothing of each other: started by hand, by torchrun or as a Slurm array, each claims what no
other has claimed, until all units are complete. A claim that was not renewed for five minutes is free again,
and so is one of a dead process of this machine.
"""

import json
import os
import random
import socket
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from threading import Event, Thread
from typing import Any, NamedTuple

from grainline.data.descriptions import Descriptions
from grainline.data.formats.common import digest
from grainline.data.formats.joined import SourceWrapper, prefetch
from grainline.data.formats.parsed import read_lines
from grainline.data.formats.storage import create, exists, forget, read_plain, remove, write
from grainline.data.lines import as_line
from grainline.data.open_source import SOURCES, open_source
from grainline.data.record import Record, Source
from grainline.data.vector_parts import FORMATS, Folder, Row, Unit, units_of
from grainline.errors import UserError
from grainline.evaluation.encode import Walk, text_rows
from grainline.hub import fingerprint
from grainline.model import Model
from grainline.progress import Progress

LEASE = 300.0  # seconds
MISSES = 8  # claims of others, after which their list is read again
PAUSE = 1.0  # seconds between two looks at the units of others


class Slice(SourceWrapper):
    """Some consecutive records of a source."""

    def __init__(self, source: Source, first: int, number: int) -> None:
        super().__init__(source)
        self._range = range(first, first + number)

    def __len__(self) -> int:
        return len(self._range)

    def __getitem__(self, index: int) -> Record:
        return self.source[self._range[index]]

    def prefetch(self, indices: Sequence[int]) -> None:
        prefetch(self.source, [self._range[index] for index in indices])

    def fingerprint(self) -> str:
        """Empty: the unit that these records are has a digest of its own."""
        return ""


class Lines:
    """The lines of a file of texts, which take the place of a source."""

    def __init__(self, path: str) -> None:
        self.path, self.lines = path, read_lines(path)

    def __len__(self) -> int:
        return len(self.lines)

    def fingerprint(self) -> str:
        """sha256 over the lines."""
        return digest(self.lines)


class Settings(NamedTuple):
    """The choices that vectors depend on, and how they are written."""

    source: str  # a data source, or a .txt file with one text a line
    images: str | None = None  # folder of the images, for files that name them by path
    captions: Any = "auto"  # texts of a source, as in `evaluate`: auto, whole, each or first
    batch: int = 64
    rows: int = 10_000  # of a unit at most
    format: str = "safetensors"
    half: bool = False  # half precision


class Work:
    """A model, a source and a folder: all that a process needs to encode units."""

    def __init__(
        self, model: Model, out: str | Path, settings: Settings, descriptions: Descriptions | None = None
    ) -> None:
        """descriptions: of the images, for a model that reads them. Raises UserError."""
        source, images = settings.source, settings.images
        lines = source.endswith(".txt") and source.partition(":")[0] not in SOURCES
        if lines and images is not None:
            raise UserError(f"--images {images} does not go with {source}, a file of texts")
        if settings.format not in FORMATS:
            raise UserError(f"--format is {settings.format!r}; allowed: {', '.join(FORMATS)}")
        if settings.format == "parquet" and find_spec("pyarrow") is None:
            raise UserError("--format parquet needs pyarrow: pip install 'grainline[data]'")
        if settings.rows < 1:
            raise UserError(f"--rows is {settings.rows}; allowed are numbers from 1 on")
        self.model, self.settings, self.descriptions = model, settings, descriptions
        options: Any = {"images": images, "size": model.method.size, "allow_bare": True, "trust_code": True}
        self.source: Any = Lines(source) if lines else open_source(source, **options)
        job = {name: getattr(settings, name) for name in ("captions", "batch", "rows", "format", "half")}
        job |= {"model": fingerprint(model), "method": model.description.method}
        if descriptions is not None:
            job |= {"descriptions": [str(descriptions), *descriptions.sha256]}
        self.units = units_of(job, self.source, settings.rows)
        self.folder = Folder(str(out), job | {"source": source})

    def encode(self, unit: Unit) -> None:
        """Write the part of a unit, and its done-record."""
        failed = list[Row]()
        if isinstance(self.source, Lines):
            encoded = text_rows(self.model, self.settings.batch, keep_tokens=False)
            lines = self.source.lines[unit.first : unit.first + unit.rows]
            rows: list[Row] = [{"side": "texts", "row": encoded.add(x), "text": x} for x in lines]
            vectors, cut = {"texts": encoded.stacked().vector}, encoded.cut
        else:
            some = Slice(self.source, unit.first, unit.rows)
            walk = Walk(
                self.model, some, self.settings.captions, need_text=False, keep_tokens=False,
                descriptions=self.descriptions, batch=self.settings.batch, max_corrupt=1.0, may_be_empty=True,
            )  # fmt: skip
            data = walk.encodings()
            rows = [{"side": "images", "row": i, "key": key} for i, key in enumerate(data.keys)]
            for i, (text, owner) in enumerate(zip(data.strings, data.texts.image.tolist(), strict=True)):
                rows.append({"side": "texts", "row": i, "key": data.keys[owner], "text": text})
            vectors, cut = {"images": data.images.vector, "texts": data.texts.vector}, data.cut
            failed = [{"cause": cause, "where": where} for cause, where in walk.read.failed]
        if self.settings.half:
            vectors = {side: x.half() for side, x in vectors.items()}
        self.folder.put(unit, vectors, rows, failed, cut)

    def notes(self) -> list[str]:
        """Remarks on the source, and a warning about vectors of a method that compares tokens."""
        name = self.model.description.method
        pairwise = f"{name} scores pairs by their tokens; by these vectors it only finds candidates"
        return [*getattr(self.source, "remarks", ()), *[pairwise] * self.model.method.pairwise]

    def finish(self) -> Row:
        """Write the manifest; its content. Raises UserError where nothing could be encoded."""
        manifest = self.folder.complete(self.units, self.notes())
        if not manifest["images"] + manifest["texts"]:
            first = self.folder.failures(self.units[0])[0]
            raise UserError(f"no sample of {self.source.path} can be used; the first: {first['where']}")
        return manifest


def work_through(work: Work, progress: Progress | None = None) -> int:
    """Encode what is not claimed, until all units are complete. Returns how many were encoded here."""
    me = {"host": socket.gethostname(), "process": os.getpid()}
    number = 0
    while True:
        done = work.folder.done()
        left = [unit for unit in work.units if unit.name not in done]
        if progress is not None:
            progress(len(work.units) - len(left), len(work.units))
        if not left:
            return number
        claimed = {name.removesuffix(".json") for name in work.folder.names("claims")}
        free = [unit for unit in left if unit.name not in claimed]
        start = random.randrange(len(free)) if claimed and free else 0  # not where others are
        before, misses = number, 0
        for unit in (*free[start:], *free[:start], *(unit for unit in left if unit.name in claimed)):
            if misses == MISSES:
                break
            path = work.folder.path("claims", f"{unit.name}.json")
            if not _claim(path, me, known=unit.name in claimed):
                misses += 1
                continue
            record = work.folder.path("done", f"{unit.name}.json")
            forget(record)
            if not exists(record):
                with _renewed(path, me):
                    work.encode(unit)
                number += 1
            remove(path)
            if progress is not None:
                progress(len(work.units) - len(left) + number - before, len(work.units))
        if number == before:
            time.sleep(PAUSE)


def _claim(path: str, me: Row, known: bool) -> bool:
    """Whether the unit of this claim is this process's to encode."""
    if not known:
        return create(path, as_line(me | {"time": time.time()}))
    forget(path)
    try:
        other = json.loads(read_plain(path))
        dead = other["host"] == me["host"] and not _alive(other["process"])
        free = dead or time.time() - other["time"] > LEASE
    except OSError:  # removed just now
        return False
    except (ValueError, KeyError, TypeError):  # claims are written whole: this is none
        free = True
    if free:  # two processes may see that at once: both encode the unit, and the part of one counts
        write(path, as_line(me | {"time": time.time()}))
    return free


def _alive(process: int) -> bool:
    if sys.platform == "win32":  # where this call would end it
        return True
    try:
        os.kill(process, 0)
    except OSError as error:
        return not isinstance(error, ProcessLookupError)
    return True


@contextmanager
def _renewed(path: str, me: Row) -> Iterator[None]:
    """Renew a claim during the block."""
    end = Event()

    def renew() -> None:
        while not end.wait(LEASE / 4):
            write(path, as_line(me | {"time": time.time()}))

    thread = Thread(target=renew, daemon=True)
    thread.start()
    try:
        yield
    finally:
        end.set()
        thread.join()
