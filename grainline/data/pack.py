"""Any source as WebDataset tars that the tars source reads back, record by record: `grainline data pack`.

    data-000000.tar   KEY.jpg (or png, ...) as it was stored, KEY.json with all texts and regions
    pack.jsonl        what the tars were made from; a line for each tar with its counts

Every image is decoded; a corrupt record is left out and counted. An interrupted run goes on with the first
tar without a line. The lines stand in pack.jsonl.partial until the last tar is done.
"""

import io
import json
import os
import tarfile
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from grainline.data.decode import as_png, decode, kind_of
from grainline.data.formats.parsed import run_lengths
from grainline.data.formats.tar_index import HEADER, load_shard, quoted
from grainline.data.lines import Progress, Written, as_line, complete, read_header, require_same
from grainline.data.record import Cause, CorruptSample, Record, Region, Source
from grainline.errors import UserError
from grainline.files import drafted, writing
from grainline.system import open_regular


def write_shard(path: Path, files: Iterable[tuple[str, bytes]]) -> None:
    """Write names with their bytes, without times and owners. An OSError leaves the old file."""
    with drafted(path) as place, place.open("wb") as draft:
        with tarfile.open(fileobj=draft, mode="w", format=tarfile.PAX_FORMAT, pax_headers=HEADER) as tar:
            for name, data in files:
                member = tarfile.TarInfo(name)
                member.size = len(data)
                tar.addfile(member, io.BytesIO(data))
        draft.flush()
        os.fsync(draft.fileno())


FORMAT = 1
LOG = "pack.jsonl"
NAMED = 5  # corrupt records that a line names

_SUFFIXES = {b"\xff\xd8": "jpg", b"\x89PNG": "png", b"GIF8": "gif", b"RIFF": "webp", b"BM": "bmp"}


def pack(
    source: Source, out: Path, samples_per_shard: int = 1000, progress: Progress | None = None
) -> Written:
    """Write the records of a source into a folder, or those that an interrupted run left out.

    Raises UserError where the folder holds other data or cannot be written, and where a key comes twice.
    """
    expected = {"grainline": FORMAT, "source": source.fingerprint(), "samples": samples_per_shard}
    log = out / LOG
    with writing(out):
        out.mkdir(parents=True, exist_ok=True)
    tars = sorted(out.glob("*.tar"))
    if tars and not log.exists() and not (out / f"{LOG}.partial").exists():
        raise UserError(f"{out} already holds {tars[0].name}: name an empty folder, or delete the old tars")
    number = -(-len(source) // samples_per_shard)

    def lines(done: int) -> Iterator[bytes]:
        writer = _Writer(source, out, samples_per_shard, progress)
        for path in (_name(out, tar) for tar in range(done)):
            writer.keys.update(load_shard(str(path)).keys if path.exists() else ())
        return (as_line(writer.shard(tar)) for tar in range(done, number))

    _, resumed = complete(log, expected, lambda path: _check(path, expected), lines, number, None)
    rows = list(_lines(log))
    skipped = sum((Counter(row["skipped"]) for row in rows), Counter[str]())
    first = [place for row in rows for place in row["first"]][:NAMED]
    counts = {"tar": sum(row["bytes"] > 0 for row in rows), "sample": sum(row["samples"] for row in rows)}
    return Written(counts, dict(skipped), resumed, "tar", tuple(first))


class _Writer:
    """Writes the tars of a source."""

    def __init__(self, source: Source, out: Path, size: int, progress: Progress | None) -> None:
        self.source, self.out, self.size, self.progress = source, out, size, progress
        self.keys: set[str] = set()  # of all tars

    def shard(self, number: int) -> dict[str, Any]:
        """Write one tar, unless it would be empty; its line."""
        faults: list[CorruptSample] = []
        before = len(self.keys)
        path = _name(self.out, number)
        write_shard(path, self._files(number, faults))
        samples = len(self.keys) - before
        if not samples:
            path.unlink()
        line = {"tar": number, "bytes": path.stat().st_size if samples else 0, "samples": samples}
        first = [f"{fault.cause}: {fault.where}" for fault in faults[:NAMED]]
        return line | {"skipped": Counter(fault.cause for fault in faults), "first": first}

    def _files(self, number: int, faults: list[CorruptSample]) -> Iterator[tuple[str, bytes]]:
        first = number * self.size
        for index in range(first, min(first + self.size, len(self.source))):
            try:
                record = self.source[index]
                decode(record, draft=1).close()
                if not record.captions and not record.regions:
                    raise CorruptSample(Cause.MISSING_CAPTION, record.key)
            except CorruptSample as error:
                faults.append(error)
            else:
                yield from self._sample(record)
            if self.progress is not None:
                self.progress(index + 1, len(self.source))

    def _sample(self, record: Record) -> Iterator[tuple[str, bytes]]:
        if record.key in self.keys:
            raise UserError(f"{self.source.path} has the key {record.key} twice; a tar needs each once")
        self.keys.add(record.key)
        name = quoted(record.key)
        data = record.image if isinstance(record.image, bytes) else as_png(decode(record))
        kind = next((kind for start, kind in _SUFFIXES.items() if data.startswith(start)), None)
        kind = kind or kind_of(data).lower() or "tiff"
        yield f"{name}.{kind}", data
        # surrogatepass: JSON can hold halves of surrogate pairs, which are no UTF-8
        fields = json.dumps(fields_of(record), ensure_ascii=False)
        yield f"{name}.json", fields.encode("utf-8", "surrogatepass")


def fields_of(record: Record) -> dict[str, Any]:
    """The texts and regions of a record in the fields of grainline.data.formats.common."""
    fields: dict[str, Any] = {"captions": record.captions, "long": record.long, "longs": record.others}
    fields["regions"] = [_region(region) for region in record.regions]
    fields |= {"foils": [foil._asdict() for foil in record.foils], "subtexts": record.subtexts}
    return {name: value for name, value in fields.items() if value}


def _region(region: Region) -> dict[str, Any]:
    fields = region._asdict() | {"foils": [foil._asdict() for foil in region.foils]}
    fields |= {} if region.mask is None else {"mask": run_lengths(region.mask)}
    return {name: value for name, value in fields.items() if value is not None and value != []}


def _name(out: Path, number: int) -> Path:
    return out / f"data-{number:06d}.tar"


def _check(path: Path, expected: dict[str, Any]) -> None:
    """Raises UserError where the folder was made otherwise, or its tars are not as they were written."""
    header = read_header(path, FORMAT, set(expected), "delete it, or choose another --out")
    differences = {"source": "from other data", "samples": f"with {header['samples']} samples in a tar"}
    require_same(path, header, expected, differences)
    for line in _lines(path):
        tar = _name(path.parent, line["tar"])
        if line["bytes"] and not (tar.exists() and tar.stat().st_size == line["bytes"]):
            raise UserError(f"{tar} is not as it was written; delete {path}, or choose another --out")


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    """The lines of the tars."""
    with open_regular(path) as file:
        file.readline()
        for number, line in enumerate(file):
            try:
                yield {"bytes": 0, "samples": 0, "skipped": {}, "first": (), **json.loads(line)}
            except (ValueError, TypeError):
                raise UserError(f"{path}: line {number + 2} cannot be read; delete it and the tars") from None
