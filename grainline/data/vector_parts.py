"""The folder of `grainline encode`, here or at a URL: units of work, their parts, and the manifest.

    job.json                     what vectors depend on: model, captions, precision, rows of a unit, ...
    claims/UNIT.json             the process that encodes a unit, and when it renewed its claim
    parts/UNIT-SUM.safetensors   images [n, D] and texts [m, D], unit length; UNIT-SUM.jsonl names the rows
    parts/UNIT-SUM.parquet       in place of both: a row for each vector, with side, row, key, text and vector
    parts/UNIT.failed.jsonl      cause and place of the samples that could not be encoded
    done/UNIT.json               the part of a unit, its numbers, and the sum of its bytes: it is complete
    manifest.json                all parts in the order of the source: the folder is complete

A unit is some rows of a file. Its name is a digest of the job, of the content of the file, and of the rows: a
unit whose file is as before is not encoded again when others come to the source. A part is named by its
content and written before its done-record, which only the first process can write: a killed process leaves
nothing that counts, and two processes that encode one unit leave one part that counts.
"""

import hashlib
import io
import json
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from safetensors.torch import load, save
from torch import Tensor

from grainline.data.formats.joined import shards
from grainline.data.formats.storage import create, exists, forget, names_in, read_plain, remove, write
from grainline.data.lines import as_line
from grainline.errors import UserError
from grainline.files import writing
from grainline.progress import in_order

FORMAT = "vectors 1"
FORMATS = ("safetensors", "parquet")
JOB, MANIFEST = "job.json", "manifest.json"
SIDES = ("images", "texts")
LARGEST = 2**40  # bytes of a file that is read
READERS = 16  # records that are read at a time

Row = dict[str, Any]


class Unit(NamedTuple):
    """Some rows of a source that are encoded together."""

    name: str
    first: int  # of its rows in the source
    rows: int


def units_of(job: Mapping[str, Any], source: Any, rows: int) -> list[Unit]:
    """The units of a source, in its order.

    rows  of a unit, at most; files are not mixed in one
    """
    start = json.dumps(dict(job), sort_keys=True)
    units, first = list[Unit](), 0
    for content, number in shards(source):
        for row in range(0, number, rows):
            some = min(rows, number - row)
            name = hashlib.sha256(f"{start}\n{content}\n{row} {some}".encode()).hexdigest()[:24]
            units.append(Unit(name, first + row, some))
        first += number
    return units


class Folder:
    """The folder of one job, which several processes use."""

    def __init__(self, out: str, job: Mapping[str, Any]) -> None:
        """Begin the job, or go on with it. Raises UserError where the folder holds anything else."""
        self.out, self.job = out.rstrip("/"), {"grainline": FORMAT, **job}
        with writing(Path(out)):
            if not exists(self.path(JOB)):
                if names := [name for name in self.names("") if not name.startswith(".")]:
                    raise UserError(
                        f"{out} is not an empty folder: it holds {min(names)}; choose another --out"
                    )
                if create(self.path(JOB), as_line(self.job)):
                    return
        before = self.read(JOB)
        differs = [name for name in {**before, **self.job} if before.get(name) != self.job.get(name)]
        if differs:
            one = differs[0]
            was = f"{one} {before.get(one)!r}, and {self.job.get(one)!r} now"
            raise UserError(f"{out} holds vectors of another job, with {was}; choose another --out")

    def path(self, *names: str) -> str:
        return "/".join((self.out, *filter(None, names)))

    def names(self, folder: str) -> list[str]:
        """The names in a folder of it, as they are now."""
        try:
            return names_in(self.path(folder))
        except OSError:
            return []

    def read(self, *names: str) -> Row:
        """The content of a JSON file of it. Raises UserError."""
        return read_object(self.path(*names))

    def done(self) -> set[str]:
        """The names of units that are complete."""
        return {name.removesuffix(".json") for name in self.names("done")}

    def put(
        self, unit: Unit, vectors: Mapping[str, Tensor], rows: Sequence[Row], failed: Sequence[Row], cut: int
    ) -> None:
        """Write the part of a unit, then its done-record."""
        files = files_of_part(vectors, rows, self.job["format"])
        total = hashlib.sha256(b"".join(files.values())).hexdigest()
        names = {kind: f"{unit.name}-{total[:8]}.{kind}" for kind in files}
        counts = {side: len(vectors.get(side, ())) for side in SIDES} | {"failed": len(failed), "cut": cut}
        record = {"unit": unit.name, "files": list(names.values()), "sha256": total, **counts}
        with writing(Path(self.out)):
            for kind, data in files.items():
                write(self.path("parts", names[kind]), data)
            if failed:
                write(self.path("parts", f"{unit.name}.failed.jsonl"), b"".join(map(as_line, failed)))
            create(self.path("done", f"{unit.name}.json"), as_line(record))

    def failures(self, unit: Unit) -> list[Row]:
        """Cause and place of the samples of a unit that could not be encoded."""
        path = self.path("parts", f"{unit.name}.failed.jsonl")
        return [json.loads(line) for line in read_plain(path).splitlines()] if exists(path) else []

    def retry(self) -> None:
        """Remove the done-records and lists of units with failed samples, and the manifest."""
        for name in sorted(self.done()):
            if self.read("done", f"{name}.json")["failed"]:
                for path in (("done", f"{name}.json"), ("parts", f"{name}.failed.jsonl"), (MANIFEST,)):
                    remove(self.path(*path))

    def complete(self, units: Sequence[Unit], notes: Sequence[str]) -> Row:
        """Write the manifest of a folder whose units are all complete; its content."""
        path, names = self.path(MANIFEST), [unit.name for unit in units]
        if exists(path):
            written = read_object(path)
            if [part["unit"] for part in written["parts"]] == names:  # another process was faster
                return written
        records = (f"{name}.json" for name in names)
        parts = list(in_order(partial(self.read, "done"), records, READERS, ahead=4 * READERS))
        totals = {name: sum(part[name] for part in parts) for name in (*SIDES, "failed", "cut")}
        manifest = {**self.job, **totals, "notes": list(notes), "parts": parts}
        write(path, as_line(manifest))
        return manifest


def files_of_part(vectors: Mapping[str, Tensor], rows: Sequence[Row], form: str) -> dict[str, bytes]:
    """The files of a part, by their endings. The same vectors and rows give the same bytes."""
    if form == "safetensors":
        arrays = {name: x.cpu().contiguous() for name, x in vectors.items() if len(x)}
        return {form: save(arrays), "jsonl": b"".join(map(as_line, rows))}
    import pyarrow as pa
    from pyarrow.parquet import write_table

    numbers = torch.cat([vectors[side].cpu() for side in SIDES if side in vectors]).numpy()
    columns = {name: [row.get(name) for row in rows] for name in ("side", "row", "key", "text")}
    types = {"side": pa.string(), "row": pa.int64(), "key": pa.string(), "text": pa.string()}
    table = {name: pa.array(values, types[name]) for name, values in columns.items()}
    table["vector"] = pa.FixedSizeListArray.from_arrays(pa.array(numbers.ravel()), numbers.shape[1])
    file = io.BytesIO()
    write_table(pa.table(table), file)
    return {form: file.getvalue()}


def read_part(
    folder: str, names: Sequence[str], total: str, unit: str
) -> tuple[dict[str, np.ndarray], list[Row]]:
    """The vectors of a part by side, [n, D], and what their rows are. Raises UserError where it was changed.

    names, total, unit  its files, their sum and its unit, as in the manifest
    """
    paths = [f"{folder}/parts/{name}" for name in names]
    try:
        files = [read_plain(path, LARGEST) for path in paths]
    except OSError as error:
        raise UserError(f"{paths[0]} cannot be read ({error.strerror}); encode with --retry") from None
    if hashlib.sha256(b"".join(files)).hexdigest() != total:
        raise UserError(
            f"{paths[0]} is not as it was written: delete it and done/{unit}.json, and encode again"
        )
    if paths[0].endswith(".safetensors"):
        rows = [json.loads(line) for line in files[1].splitlines()]
        return {name: x.numpy() for name, x in load(files[0]).items()}, rows
    import pyarrow as pa
    from pyarrow.parquet import read_table

    table = read_table(pa.BufferReader(files[0]))
    column = table.column("vector").combine_chunks()
    numbers = column.values.to_numpy(zero_copy_only=False).reshape(len(table), column.type.list_size)
    rows = table.drop_columns(["vector"]).to_pylist()
    sides = np.array([row["side"] for row in rows])
    return {side: numbers[sides == side] for side in SIDES if (sides == side).any()}, rows


def read_vectors(folder: str) -> tuple[dict[str, np.ndarray], list[Row]]:
    """All vectors of a complete folder by side, [N, D], and what their rows are. Raises UserError."""
    arrays: dict[str, list[np.ndarray]] = {side: [] for side in SIDES}
    rows, first = list[Row](), dict.fromkeys(SIDES, 0)
    path = f"{folder}/{MANIFEST}"
    try:
        parts = [(part["files"], part["sha256"], part["unit"]) for part in read_object(path)["parts"]]
    except (KeyError, TypeError) as error:
        raise UserError(f"{path} is not as `grainline encode` writes it ({error}); encode again") from None
    for part in parts:
        vectors, described = read_part(folder, *part)
        rows += [row | {"row": row["row"] + first[row["side"]]} for row in described]
        for side, array in vectors.items():
            arrays[side].append(array)
            first[side] += len(array)
    return {side: np.concatenate(some) for side, some in arrays.items() if some}, rows


def read_object(path: str) -> Row:
    """The content of a JSON file, as it is now. Raises UserError."""
    forget(path)
    try:
        return dict(json.loads(read_plain(path, LARGEST)))
    except OSError as error:
        raise UserError(
            f"{path} cannot be read ({error.strerror}); is it a folder of `grainline encode`?"
        ) from None
    except (ValueError, TypeError) as error:
        raise UserError(f"{path} is not as `grainline encode` writes it ({error}); encode again") from None
