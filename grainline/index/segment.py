"""Rows that are written together: arrays as plain .npy files, memory-mapped when they are read.

A segment is written aside, sealed and renamed into place, and never changed. Rows of several segments are
taken together by `take`, whatever segment they lie in.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from grainline.files import STATE, Corrupt, check_files, read_sealed, sync
from grainline.index.store import NPY, Column, Part, inside, new_part, seal_of

VECTORS, TOKENS, MASK, NULL, ASIDES, SPANNED = "vectors", "tokens", "mask", "null", "asides", "spans"
ROWS = "rows.jsonl"


class Row(NamedTuple):
    """A picture as it was when it was encoded."""

    path: str  # below the root, with slashes
    sha256: str  # of its bytes
    size: int
    mtime_ns: int
    description: str | None = None  # what the model read beside its pixels; None: it reads none

    @property
    def content(self) -> tuple[str, str | None]:
        """All that its arrays come from: rows of one content have the same."""
        return self.sha256, self.description


class Segment(NamedTuple):
    """An open segment."""

    part: Part
    rows: tuple[Row, ...]
    arrays: Mapping[str, Column]  # memory-mapped, [R, ...] each

    @property
    def live(self) -> np.ndarray:
        """Rows that were not removed: [R] bool"""
        live = np.ones(len(self.rows), dtype=bool)
        live[list(self.part.dead)] = False
        return live


def write_segment(target: Path, rows: Sequence[Row], arrays: Mapping[str, np.ndarray]) -> Part:
    """Write a segment; it is whole and on the disk when this returns. OSError leaves nothing.

    arrays  [R, ...] by name
    """
    assert all(len(array) == len(rows) for array in arrays.values())
    with new_part(target, {"rows": len(rows)}) as folder:
        for name, array in arrays.items():
            save_array(folder / f"{name}.npy", array)
        _write_rows(folder / ROWS, rows)
    return Part(target.name, seal_of(target), len(rows))


def save_array(path: Path, array: np.ndarray) -> None:
    """A synced .npy file."""
    with path.open("wb") as file:
        np.save(file, np.ascontiguousarray(array), allow_pickle=False)
    sync(path)


def open_segment(target: Path, part: Part, *, thorough: bool = False) -> Segment:
    """Check and map a segment; raises Corrupt.

    thorough  read the arrays too, which may be many gigabytes; otherwise each page is checked when it is read
    """
    sealed = check_part(target, part, thorough=thorough)
    try:
        lines = (target / ROWS).read_text(encoding="utf-8").splitlines()
        rows = tuple(Row(**values) for values in json.loads(f"[{','.join(lines)}]"))  # at once: half the time
    except (OSError, ValueError, TypeError) as error:
        raise Corrupt(f"segment {part.name} cannot be read ({error})") from None
    large = [name for name in sorted(sealed["files"]) if name.endswith(NPY)]
    arrays = {name.removesuffix(NPY): Column(target / name, sealed) for name in large}
    for row in rows:
        inside(row.path)
    if {len(rows), *(len(array) for array in arrays.values())} != {part.rows} or VECTORS not in arrays:
        raise Corrupt(f"segment {part.name} does not hold {part.rows} rows")
    return Segment(part, rows, arrays)


def check_part(target: Path, part: Part, *, thorough: bool = False) -> dict[str, Any]:
    """Check a sealed folder against the manifest that names it; what is sealed. Raises Corrupt.

    thorough  read the arrays too; otherwise only their sizes are checked
    """
    name = f"{target.parent.name}/{part.name}"
    try:
        if seal_of(target) != part.sha256:
            raise Corrupt(f"{name} is not the one that was written ({STATE})")
    except OSError as error:
        raise Corrupt(f"{name} cannot be read ({error.strerror})") from None
    try:
        sealed = read_sealed(target / STATE)
        large = [file for file in sealed["files"] if file.endswith(NPY)]
        check_files(target, sealed["files"], () if thorough else large)
    except Corrupt as error:
        raise Corrupt(f"{name}/{error}") from None
    return sealed


def take(segments: Sequence[Segment], name: str, where: np.ndarray) -> np.ndarray:
    """Rows of one array, wherever they lie: [K, ...]

    where  [K, 2] number of the segment, and of the row in it
    """
    first = segments[int(where[0, 0])].arrays[name]
    out = np.empty((len(where), *first.shape[1:]), dtype=first.dtype)
    for number in np.unique(where[:, 0]):
        mine = where[:, 0] == number
        out[mine] = segments[number].arrays[name][where[mine, 1]]
    return out


def _write_rows(path: Path, rows: Sequence[Row]) -> None:
    told = [{name: value for name, value in row._asdict().items() if value is not None} for row in rows]
    path.write_text("".join(json.dumps(row) + "\n" for row in told), encoding="utf-8")
    sync(path)
