"""An index on disk: its layout, the manifest, and arrays that are checked before they are read.

    INDEX/
      manifest.json          the contents of the index, with its own sha256
      segments/00000003/     rows that were written together, never changed afterwards
        rows.jsonl           a `Row` a line
        vectors.npy          [R, D] float32, unit length
        tokens.npy, mask.npy [R, L, D] float16 and [R, L] bool, for methods whose score needs tokens
        precomputed-X.npy    instead of tokens: field X of what `Method.precompute` returns, floats as float16
        null_texts.npy       [R, Q] float16, scores with the calibration texts (calibration.py);
                             also null_sentences.npy and null_spans.npy
        state.json           size and sha256 of each of these, and of itself; "pages": crc32 of each page
      calibration/00000000/  texts.json: the calibration texts; null_texts-X.npy: field X of them encoded
      ann/00000001/          an inverted file for many images, derived from the segments (candidates.py)
      lock                   locked by the process that writes; the system frees it when that process ends

A change writes new folders first and then replaces the manifest, in one rename. A process killed before that
leaves the old index and some folders that no manifest names; the next writer removes them.
"""

import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
import torch
from pydantic import Field, TypeAdapter, ValidationError

from grainline.errors import UserError
from grainline.files import (
    PAGE,
    STATE,
    Corrupt,
    check_files,
    clear_leftovers,
    crc32,
    discard,
    drafted,
    page_sums,
    read_sealed,
    seal,
    sealed_json,
    sync,
    temporary_path,
    write_text,
)
from grainline.system import read_plain

VERSION = 6
NPY = ".npy"  # the arrays, checked page by page; all other files are read and checked whole
MANIFEST, SEGMENTS, CALIBRATION, ANN, ROWS = "manifest.json", "segments", "calibration", "ann", "rows.jsonl"
VECTORS, TOKENS, MASK = "vectors", "tokens", "mask"
PRECOMPUTED = "precomputed-"  # before the name of a field of `Encoded.precomputed`
NULL_TEXTS, NULL_SENTENCES, NULL_SPANS = "null_texts", "null_sentences", "null_spans"


class ModelId(NamedTuple):
    """The model of an index."""

    path: str
    method: str
    fingerprint: str


class Part(NamedTuple):
    """A sealed folder that belongs to the index."""

    name: Annotated[str, Field(pattern=r"^[0-9]{8}$")]
    sha256: str  # of its state.json, which holds those of its files
    rows: int
    dead: tuple[int, ...] = ()  # rows that were removed or replaced


class CorruptImage(NamedTuple):
    """An image that could not be decoded; it is tried again when its file changes."""

    path: str
    cause: str
    sha256: str
    size: int
    mtime_ns: int


class Manifest(NamedTuple):
    """The contents of an index."""

    model_id: ModelId
    root: str  # the folder of the images
    calibration: Part
    segments: tuple[Part, ...] = ()
    next: int = 1  # number of the next folder
    corrupt: tuple[CorruptImage, ...] = ()
    excluded: tuple[str, ...] = ()  # paths that the user removed
    descriptions: tuple[str, ...] = ()  # files that were read last, where the method reads descriptions
    exclude: tuple[str, ...] = ()  # patterns of images that are left out


class CorruptIndex(UserError):
    """A file of an index does not have the bytes that were written."""

    def __init__(self, folder: Path, error: object) -> None:
        super().__init__(f"index {folder} is corrupt: {error}; build it anew in another folder")


AGAIN = "run the command again: the index has not changed"  # where the disk is full or read-only
_MANIFESTS = TypeAdapter(Manifest)


def read_manifest(folder: Path) -> Manifest:
    """The manifest of an index. UserError where there is none, or one that cannot be used."""
    path = folder / MANIFEST
    if not path.is_file():
        raise UserError(f"no index at {folder}; make one with `grainline index build`")
    try:
        body = read_sealed(path)
        version = body.pop("version", None)
        if version == VERSION:
            return _MANIFESTS.validate_python(body)
    except Corrupt as error:
        raise CorruptIndex(folder, error) from None
    except ValidationError as error:
        where = ".".join(map(str, error.errors()[0]["loc"]))
        raise CorruptIndex(folder, f"{MANIFEST} does not hold what it should ({where})") from None
    raise UserError(f"index {folder} has layout {version}, this grainline reads {VERSION}; build it anew")


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Replace the manifest, which commits a change. OSError leaves the old one."""
    body = {
        "version": VERSION,
        **manifest._asdict(),
        "model_id": manifest.model_id._asdict(),
        "calibration": manifest.calibration._asdict(),
        "segments": [part._asdict() for part in manifest.segments],
        "corrupt": [image._asdict() for image in manifest.corrupt],
    }
    write_text(folder / MANIFEST, sealed_json(body) + "\n")


@contextmanager
def new_part(target: Path, body: Mapping[str, Any]) -> Iterator[Path]:
    """A folder to fill; after the block it is sealed, with `body`, on the disk. OSError leaves nothing."""
    discard(temporary_path(target))
    discard(target)  # no manifest names it, else it would have another number
    with drafted(target) as folder:
        folder.mkdir(parents=True)
        yield folder
        pages = {path.name: page_sums(path) for path in sorted(folder.glob(f"*{NPY}"))}
        seal(folder, {**body, "pages": pages})


def seal_of(folder: Path) -> str:
    """sha256 of the state.json of a sealed folder."""
    return hashlib.sha256(read_plain(folder / STATE)).hexdigest()


def clear(folder: Path, manifest: Manifest) -> None:
    """Remove the folders that the manifest does not name."""
    names = {manifest.calibration.name, *(part.name for part in manifest.segments)}
    for below in (folder / SEGMENTS, folder / CALIBRATION):
        if below.is_dir():
            clear_leftovers(below)
            for path in below.iterdir():
                if path.name not in names:
                    discard(path)
    discard(temporary_path(folder / MANIFEST))


def require_inside(path: str) -> None:
    """Raise Corrupt where the path of a row leaves the folder of images."""
    if not path or path.startswith("/") or ".." in path.split("/") or "\0" in path:  # Path takes 5 us more
        raise Corrupt(f"a row has the path {path!r}, which leaves the folder of images")


# Comparing all files with their sha256 takes longer than a search, so a reader compares each PAGE bytes of an
# array with a crc32 in state.json when it first uses them. A crc32 finds every flipped bit of a page and any
# burst of up to 32 bits; of other damage it misses one page in 4 billion.


class Column:
    """An array of a sealed folder, [R, ...]. Only `[]` and `whole` read it, and they check what they read."""

    def __init__(self, path: Path, sealed: Mapping[str, Any]) -> None:
        """sealed: the state.json of its folder. Raises Corrupt, and CorruptIndex for a damaged header."""
        self.path = path
        size = sealed["files"][path.name]["bytes"]
        self._sums = sealed["pages"][path.name]
        self._bytes, self._inode = _mapped(path, size), path.stat().st_ino
        self._unchecked = np.ones(-(-size // PAGE), bool)
        self._check(np.arange(1))
        try:
            header = np.load(path, mmap_mode="r")  # for these three alone: it keeps the file open
            self.shape, self.dtype, self._first = header.shape, header.dtype, header.offset
            self._array = self._bytes[self._first :].view(self.dtype).reshape(self.shape)
        except (OSError, ValueError) as error:
            raise Corrupt(f"{path.name} holds no array ({error})") from None

    def __len__(self) -> int:
        return int(self.shape[0])

    def __getitem__(self, rows: Any) -> Any:
        """Some rows, by numbers, by a mask or as a slice, as numpy takes them. CorruptIndex for damage."""
        self.require_size()
        if self._unchecked.any():
            width = self._array.dtype.itemsize * int(np.prod(self.shape[1:]))
            first = self._first + np.atleast_1d(np.arange(len(self))[rows]) * width
            last = first + max(width - 1, 0)
            pages_each = int((last // PAGE - first // PAGE).max(initial=0)) + 1
            pages = first[:, None] // PAGE + np.arange(pages_each)
            self._check(np.unique(np.minimum(pages, last[:, None] // PAGE)))
        return self._array[rows]

    def whole(self) -> np.ndarray:
        """All of it, memory-mapped. CorruptIndex for damage."""
        self.require_size()
        self._check(np.arange(len(self._unchecked)))
        return self._array

    def require_size(self) -> None:
        """Raise CorruptIndex where the file was cut in place: a read behind its end is a SIGBUS."""
        with suppress(OSError):  # a file that was removed can be read as long as it is mapped
            now = os.stat(self.path)
            if now.st_ino == self._inode and now.st_size < len(self._bytes):
                raise self._corrupt(f"has {now.st_size:,} bytes instead of {len(self._bytes):,}")

    def _corrupt(self, why: str) -> CorruptIndex:
        return CorruptIndex(self.path.parents[2], f"{'/'.join(self.path.parts[-3:])} {why}")

    def _check(self, pages: np.ndarray) -> None:
        width = len(crc32(b""))
        for page in pages[self._unchecked[pages]].tolist():
            start = page * PAGE
            piece = self._bytes[start : start + PAGE]
            if crc32(piece) != self._sums[page * width : (page + 1) * width]:
                end = start + len(piece) - 1
                raise self._corrupt(f"is not what was written, somewhere in bytes {start:,} to {end:,}")
            self._unchecked[page] = False


def _mapped(path: Path, size: int) -> np.ndarray:
    """The bytes of a file, by torch: numpy would keep each of a thousand files open. Raises Corrupt."""
    try:
        str(path).encode()
    except UnicodeEncodeError:  # names that torch does not take
        return np.memmap(path, np.uint8, mode="r")
    try:
        mapped: np.ndarray = torch.from_file(str(path), shared=False, size=size, dtype=torch.uint8).numpy()
    except RuntimeError as error:
        raise Corrupt(f"{path.name} cannot be read ({error})") from None
    mapped.flags.writeable = False
    return mapped


class Row(NamedTuple):
    """An image as it was when it was encoded."""

    path: str  # below the root, with slashes
    sha256: str  # of its bytes
    size: int
    mtime_ns: int
    description: str | None = None  # read with its pixels; None: the model reads none

    @property
    def content(self) -> tuple[str, str | None]:
        """Rows of the same content have the same arrays."""
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
    """Write a segment; it is on the disk when this returns. OSError leaves nothing. arrays: [R, ...] each"""
    with new_part(target, {"rows": len(rows)}) as folder:
        for name, array in arrays.items():
            save_array(folder / f"{name}{NPY}", array)
        bodies = ({name: x for name, x in row._asdict().items() if x is not None} for row in rows)
        (folder / ROWS).write_text("".join(json.dumps(body) + "\n" for body in bodies), encoding="utf-8")
        sync(folder / ROWS)
    return Part(target.name, seal_of(target), len(rows))


def save_array(path: Path, array: np.ndarray) -> None:
    """A synced .npy file."""
    with path.open("wb") as file:
        np.save(file, np.ascontiguousarray(array), allow_pickle=False)
    sync(path)


def open_segment(target: Path, part: Part, *, thorough: bool = False) -> Segment:
    """Check and map a segment; raises Corrupt. thorough: as in `check_part`"""
    sealed = check_part(target, part, thorough=thorough)
    try:
        lines = read_plain(target / ROWS).decode().splitlines()
        rows = tuple(Row(**values) for values in json.loads(f"[{','.join(lines)}]"))  # at once: half the time
    except (OSError, ValueError, TypeError) as error:
        raise Corrupt(f"segment {part.name} cannot be read ({error})") from None
    names = [name for name in sorted(sealed["files"]) if name.endswith(NPY)]
    arrays = {name.removesuffix(NPY): Column(target / name, sealed) for name in names}
    for row in rows:
        require_inside(row.path)
    if {len(rows), *(len(array) for array in arrays.values())} != {part.rows} or VECTORS not in arrays:
        raise Corrupt(f"segment {part.name} does not hold {part.rows} rows")
    return Segment(part, rows, arrays)


def check_part(target: Path, part: Part, *, thorough: bool = False) -> dict[str, Any]:
    """Compare a sealed folder with the manifest that names it, and return its state.json. Raises Corrupt.

    thorough  read the arrays too, which may be many gigabytes; otherwise only their sizes are checked
    """
    name = f"{target.parent.name}/{part.name}"
    try:
        if seal_of(target) != part.sha256:
            raise Corrupt(f"{STATE} is not the one that was written")
        sealed = read_sealed(target / STATE)
        large = [file for file in sealed["files"] if file.endswith(NPY)]
        check_files(target, sealed["files"], () if thorough else large)
    except OSError as error:
        raise Corrupt(f"{name} cannot be read ({error.strerror})") from None
    except Corrupt as error:
        raise Corrupt(f"{name}/{error}") from None
    return sealed


def take(arrays: Sequence[Any], where: np.ndarray) -> np.ndarray:
    """Rows of some arrays of one kind: [K, ...]. where: [K, 2] number of the array, and of the row in it"""
    first = arrays[int(where[0, 0])]
    if (where[:, 0] == where[0, 0]).all():  # without a second copy
        return np.asarray(first[where[:, 1]])
    out = np.empty((len(where), *first.shape[1:]), dtype=first.dtype)
    for number in np.unique(where[:, 0]):
        some = where[:, 0] == number
        out[some] = arrays[number][where[some, 1]]
    return out
