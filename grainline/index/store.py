"""An index on disk: layout, manifest and commit, and arrays that are checked before they are read.

    INDEX/
      manifest.json          what belongs to the index now; carries its own sha256
      segments/00000003/     rows that were written together, never changed afterwards
        rows.jsonl           {"path", "sha256", "size", "mtime_ns"} of every row, in order, and "description"
                             where the method reads one beside the picture
        vectors.npy          [R, D] float32, unit length
        tokens.npy, mask.npy [R, L, D] float16 and [R, L] bool, for methods whose score needs tokens: as they
                             hold pictures for it (`Method.held`), such as keys and values, [R, L, 2 D]
        null.npy             [R, Q] float16, scores with the texts of the null distribution
        asides.npy           [R, Q] float16, scores with a sentence of each of them
        spans.npy            [R, Q] float16, scores with a few sentences of each of them
        state.json           size and sha256 of each of these, and of itself; "pages": the crc32 of each page
                             of the arrays (store.py)
      nulls/00000000/        texts.json: the texts of the null distribution; state.json
        null-vector.npy ...  the texts, and as asides-... and spans-... their sentences, encoded
      near/00000001/         an inverted file for many pictures, derived from the segments (inverted.py)
      lock                   held by the process that writes; the system frees it when that process ends

The manifest holds: `version` of this layout; `model` (path, method, fingerprint of weights and tokenizer);
`root`, the folder of the pictures; `null` and `segments`, each by name and by the sha256 of its state.json,
with the numbers of its removed rows (`dead`); `next`, the number that the next folder gets; `damaged`, the
pictures that could not be used; `left_out`, those that were removed on request; `descriptions`, the files
that were read last, for a method that reads descriptions.

A change writes new folders first and then replaces the manifest, in one rename. A process that dies before
that leaves the old index and some folders that no manifest names; the next writer clears them away.
"""

import hashlib
import io
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from grainline.errors import UserError
from grainline.files import (
    LOCK,
    PAGE,
    STATE,
    WRITE_ERRORS,
    Corrupt,
    aside,
    clear_leftovers,
    crc32,
    discard,
    page_sums,
    put,
    read_sealed,
    reason,
    seal,
    sealed,
    write_text,
)

VERSION = 4
NPY = ".npy"  # the arrays, checked page by page; all other files are read and checked whole
MANIFEST, SEGMENTS, NULLS, NEAR = "manifest.json", "segments", "nulls", "near"
OURS = (MANIFEST, SEGMENTS, NULLS, NEAR, LOCK)


class ModelMark(NamedTuple):
    """The model that an index was made with."""

    path: str
    method: str
    fingerprint: str


class Part(NamedTuple):
    """A sealed folder that belongs to the index."""

    name: str
    sha256: str  # of its state.json, which holds those of its files
    rows: int
    dead: tuple[int, ...] = ()  # rows that were removed or replaced


class Spoilt(NamedTuple):
    """A picture that could not be used, as it was then: it is tried again when it has changed."""

    path: str
    cause: str
    sha256: str
    size: int
    mtime_ns: int


class Manifest(NamedTuple):
    """What belongs to an index now."""

    model: ModelMark
    root: str
    null: Part
    segments: tuple[Part, ...] = ()
    next: int = 1
    damaged: tuple[Spoilt, ...] = ()
    left_out: tuple[str, ...] = ()
    descriptions: tuple[str, ...] = ()  # files, where the method reads them


def read_manifest(folder: Path) -> Manifest:
    """The manifest of an index. UserError where there is none, or one that cannot be used."""
    path = folder / MANIFEST
    if not path.is_file():
        raise UserError(
            f"no index at {folder}; make one with `grainline index build IMAGES --model MODEL --out {folder}`"
        )
    try:
        body = read_sealed(path)
        version = body.pop("version")
        if version != VERSION:
            raise UserError(
                f"index {folder} has layout {version}, this grainline reads layout {VERSION}; build it anew "
                "in another folder"
            )
        return _parsed(body)
    except Corrupt as error:
        raise corrupt(folder, error) from None
    except (KeyError, TypeError, ValueError) as error:
        if isinstance(error, UserError):
            raise
        raise corrupt(folder, f"{MANIFEST} does not hold what it should ({error!r})") from None


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Replace the manifest: after this a change is there, before it is not. OSError leaves the old one."""
    body = {
        "version": VERSION,
        **manifest._asdict(),
        "model": manifest.model._asdict(),
        "null": manifest.null._asdict(),
        "segments": [part._asdict() for part in manifest.segments],
        "damaged": [spoilt._asdict() for spoilt in manifest.damaged],
    }
    write_text(folder / MANIFEST, sealed(body) + "\n")


@contextmanager
def new_part(target: Path, body: Mapping[str, Any]) -> Iterator[Path]:
    """A folder to fill; when the block ends it is sealed and on the disk at target. OSError leaves nothing.

    body  what `seal` writes beside the digests
    """
    folder = aside(target)
    discard(folder)
    discard(target)  # no manifest names it, else it would have another number
    folder.mkdir(parents=True)
    try:
        yield folder
        seal(
            folder, {**body, "pages": {path.name: page_sums(path) for path in sorted(folder.glob(f"*{NPY}"))}}
        )
        put(target)
    except OSError:
        discard(folder)
        raise


def seal_of(folder: Path) -> str:
    """sha256 of the state.json of a sealed folder."""
    return hashlib.sha256((folder / STATE).read_bytes()).hexdigest()


def clear(folder: Path, manifest: Manifest) -> None:
    """Drop the folders that no manifest names: of changes that never came to be, or that are over."""
    kept = {manifest.null.name, *(part.name for part in manifest.segments)}
    for below in (folder / SEGMENTS, folder / NULLS):
        if below.is_dir():
            clear_leftovers(below)
            for path in below.iterdir():
                if path.name not in kept:
                    discard(path)
    discard(aside(folder / MANIFEST))


class CorruptIndex(UserError):
    """What is on disk is not what was written."""


def corrupt(folder: Path, error: object) -> CorruptIndex:
    """The error that says that an index cannot be trusted."""
    return CorruptIndex(
        f"index {folder} is corrupt: {error}; build it anew from its pictures in another folder"
    )


def cannot_write(folder: Path, error: Exception) -> UserError:
    """The error of a disk that is full or closed to us."""
    assert isinstance(error, WRITE_ERRORS)
    return UserError(
        f"cannot write into {folder}: {reason(error)}; the index is whole, give the command again when mended"
    )


def inside(path: str) -> str:
    """A path of a row, once it is known to stay below the root. Raises Corrupt."""
    if not path or path.startswith("/") or ".." in path.split("/") or "\0" in path:  # Path takes 5 us more
        raise Corrupt(f"a row has the path {path!r}, which leaves the folder of pictures")
    return path


def _parsed(body: dict[str, Any]) -> Manifest:
    return Manifest(
        model=ModelMark(**body["model"]),
        root=str(body["root"]),
        null=_part(body["null"]),
        segments=tuple(_part(part) for part in body["segments"]),
        next=int(body["next"]),
        damaged=tuple(Spoilt(**spoilt) for spoilt in body["damaged"]),
        left_out=tuple(body["left_out"]),
        descriptions=tuple(body.get("descriptions", ())),  # indexes of before have none
    )


def _part(values: dict[str, Any]) -> Part:
    part = Part(**{**values, "dead": tuple(values["dead"])})
    if not re.fullmatch(r"[0-9]{8}", part.name):
        raise ValueError(f"part {part.name!r}")
    return part


# Arrays on disk of which no byte is used before it was checked, page by page.
#
# To compare all files of an index with their sha256 takes longer than to search it. So a sealed folder also
# holds a crc32 of each PAGE bytes of its arrays ("pages" in state.json). A reader compares a page with it
# when it first uses a byte of that page, once for each opening. A crc32 finds every flipped bit of a page and
# every burst of up to 32 bits; of other damage it misses one page in 4 billion. The checksums themselves are
# part of state.json, whose sha256 is in the manifest, and the manifest carries its own.


class Column:
    """An array of a sealed folder, [R, ...]. Only `[]` and `whole` read it, and they check what they read."""

    def __init__(self, path: Path, sealed: Mapping[str, Any]) -> None:
        """
        path    INDEX/segments/00000003/vectors.npy, of the size that is sealed
        sealed  the body of the state.json beside it

        Raises Corrupt where there is no array, and UserError where the page with its shape is damaged.
        """
        self.path = path
        size = sealed["files"][path.name]["bytes"]
        self._sums = sealed["pages"][path.name]
        self._bytes = _mapped(path, size)
        self._unchecked = np.ones(-(-size // PAGE), bool)
        self._check(np.arange(1))
        try:
            start = io.BytesIO(self._bytes[:PAGE].tobytes())
            assert np.lib.format.read_magic(start) == (1, 0)
            self.shape, _, self.dtype = np.lib.format.read_array_header_1_0(start)
            self._first = start.tell()
            self._array = self._bytes[self._first :].view(self.dtype).reshape(self.shape)
        except (ValueError, AssertionError) as error:
            raise Corrupt(f"{path.name} holds no array ({error})") from None

    def __len__(self) -> int:
        return int(self.shape[0])

    def __getitem__(self, rows: Any) -> Any:
        """Some rows, by numbers, by a mask or as a slice, as numpy takes them. UserError for damage."""
        if self._unchecked.any():
            width = self._array.dtype.itemsize * int(np.prod(self.shape[1:]))
            first = self._first + np.atleast_1d(np.arange(len(self))[rows]) * width
            last = first + max(width - 1, 0)
            most = int((last // PAGE - first // PAGE).max(initial=0))
            pages = first[:, None] // PAGE + np.arange(most + 1)
            self._check(np.unique(np.minimum(pages, last[:, None] // PAGE)))
        return self._array[rows]

    def whole(self) -> np.ndarray:
        """All of it, memory-mapped. UserError for damage."""
        self._check(np.arange(len(self._unchecked)))
        return self._array

    def _check(self, pages: np.ndarray) -> None:
        width = len(crc32(b""))
        for page in pages[self._unchecked[pages]].tolist():
            start = page * PAGE
            piece = self._bytes[start : start + PAGE]
            if crc32(piece) != self._sums[page * width : (page + 1) * width]:
                place = "/".join(self.path.parts[-3:])
                end = start + len(piece) - 1
                raise corrupt(
                    self.path.parents[2],
                    f"{place} is not what was written, somewhere in bytes {start:,} to {end:,}",
                )
            self._unchecked[page] = False


def _mapped(path: Path, size: int) -> np.ndarray:
    """The bytes of a file. Raises Corrupt.

    Python's mmap keeps each file open, and an index of 100,000 images has a thousand of them; torch does not.
    """
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
