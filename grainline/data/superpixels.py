"""Superpixels of a whole source, made once: `grainline data superpixels`, and `data.superpixels` of a recipe.

A folder, whole or not there; while it is made it is FOLDER.partial, and a run that was killed goes on in it.

    neighbours.npy    [N, S, S] uint8, which of nine cells each pixel belongs to, as in `nn.superpixel`
    keys.npy          [N] uint64, the first 8 bytes of the sha256 of each key; 0: a record without a picture
    superpixels.json  sealed: settings, side, transform and the fingerprint of the source
"""

import hashlib
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.lib.format import open_memmap
from torch import Tensor

from grainline.data.lines import as_line, require_same, resuming
from grainline.data.record import Damaged, Source
from grainline.data.transforms import EvalTransform
from grainline.errors import UserError
from grainline.files import Corrupt, read_sealed, reason, sealed, sync, write_text
from grainline.nn.superpixel import label_of, neighbour_of

FORMAT = "superpixels 1"
MANIFEST, CODES, KEYS = "superpixels.json", "neighbours.npy", "keys.npy"
LOG = "done.jsonl"
BATCH = 32  # pictures segmented at a time
AGAIN = "make them again with `grainline data superpixels`"


class Made(NamedTuple):
    """What is in the folder now."""

    pictures: int
    skipped: int  # records without a picture
    kept: int  # records that were there before


def make(
    source: Source,
    segment: Callable[[Tensor], Tensor],
    out: Path,
    *,
    size: int,
    settings: Mapping[str, Any],
    progress: Callable[[int, int], None] | None = None,
) -> Made:
    """Write the superpixels of all pictures of a source, or what is missing of them.

    segment   [n, 3, S, S] uint8 -> labels [n, S, S] under the contract of `nn.superpixel`
    size      side of the square that evaluation sees, S
    settings  what `segment` was made with, `cell` among it
    progress  is called with (records done, records to do)

    Raises UserError where `out`, whole or partial, was made from other data or with other settings.
    """
    begun = {"grainline": FORMAT, "source": source.fingerprint(), "size": size, "settings": dict(settings)}
    begun |= {"records": len(source), "transform": settings_of(EvalTransform(size))}
    partial = out.with_name(out.name + ".partial")
    try:
        if out.is_dir():
            _require_same(out, manifest(out), begun)
            return _account(out, len(source))
        partial.mkdir(parents=True, exist_ok=True)
        check = _checker(out)
        with resuming(partial / LOG, begun, lambda path: check(path, begun)) as (log, batches):
            writer = _Writer(source, segment, size, int(settings["cell"]))
            writer.open(partial, "r+" if batches else "w+")
            for number in range(batches, -(-len(source) // BATCH)):
                log.write(as_line(writer.batch(number)))
                log.flush()
                if progress is not None:
                    progress(min((number + 1) * BATCH, len(source)), len(source))
            writer.close()
            write_text(partial / MANIFEST, sealed(begun))
        (partial / LOG).unlink()
        os.rename(partial, out)
        sync(out.parent)
    except OSError as error:
        raise UserError(
            f"cannot write {out}: {reason(error)}; free some space, or choose another --out"
        ) from None
    return _account(out, min(batches * BATCH, len(source)))


class _Writer:
    """The arrays of a folder, open for writing."""

    def __init__(self, source: Source, segment: Callable[[Tensor], Tensor], size: int, cell: int) -> None:
        self.source, self.segment, self.cell = source, segment, cell
        self.transform = EvalTransform(size)
        self.arrays: dict[str, np.memmap[Any, Any]] = {}

    def open(self, folder: Path, mode: Literal["r+", "w+"]) -> None:
        """w+ begins anew, whatever stands there."""
        number, size = len(self.source), self.transform.size
        self.arrays[CODES] = open_memmap(folder / CODES, mode, np.uint8, (number, size, size))
        self.arrays[KEYS] = open_memmap(folder / KEYS, mode, np.uint64, (number,))

    def batch(self, number: int) -> dict[str, Any]:
        """Segment some records, and wait until they are on the disk; their line."""
        places, pixels = [], []
        first = number * BATCH
        for index in range(first, min(first + BATCH, len(self.source))):
            try:
                record = self.source[index]
                pixels.append(self.transform(record.image, record.key))
            except Damaged:
                continue
            places.append(index)
            self.arrays[KEYS][index] = digest(record.key)
        if places:
            labels = self.segment(torch.stack(pixels)).cpu()
            self.arrays[CODES][places] = neighbour_of(labels, self.cell).to(torch.uint8).numpy()
        for array in self.arrays.values():
            array.flush()
        return {"batch": number, "pictures": len(places)}

    def close(self) -> None:
        self.arrays.clear()


class StoredSuperpixels:
    """The superpixels of a source, read from the disk picture by picture: the labels of a `SameTransform`."""

    def __init__(
        self, folder: Path, source: Source, transform: EvalTransform, settings: Mapping[str, Any]
    ) -> None:
        """
        source, transform  what training reads, and how it makes a square of a picture
        settings           what the model itself makes superpixels with

        Raises UserError where the folder was made from other data or in another way.
        """
        asked = {"source": source.fingerprint(), "size": transform.size, "settings": dict(settings)}
        asked |= {"transform": settings_of(transform)}
        found = manifest(folder)
        _require_fit(folder, found, asked)
        self.folder, self.cell = folder, int(settings["cell"])
        shape = (found["records"], transform.size, transform.size)
        self.codes = _opened(folder / CODES, shape)
        self.keys = _opened(folder / KEYS, shape[:1])

    def label(self, index: int, key: str) -> Tensor:
        """[S, S] int64 of the record at a position. UserError where there are none, or those of another."""
        if int(self.keys[index]) != digest(key):
            lost = "has no superpixels" if not self.keys[index] else "has the superpixels of another picture"
            raise UserError(f"{self.folder}: {key} {lost}: the data has changed; {AGAIN}")
        code = torch.from_numpy(self.codes[index].astype(np.int64))
        return label_of(code, self.cell)


def digest(key: str) -> int:
    """What a key is known by, never 0: 8 bytes of its sha256."""
    name = hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()[:8]
    return max(1, int.from_bytes(name, "big"))


def settings_of(transform: EvalTransform) -> dict[str, Any]:
    """How a square is made of a picture, as JSON."""
    filter = transform.filter.name.lower()
    return {"resize": transform.resize, "filter": filter, "larger": transform.larger}


def manifest(folder: Path) -> dict[str, Any]:
    """What a folder was made from. UserError where it is none of ours."""
    try:
        found = read_sealed(folder / MANIFEST)
    except Corrupt as error:
        raise UserError(f"{folder} holds no superpixels: {error}; {AGAIN}") from None
    if found.get("grainline") != FORMAT:
        raise UserError(f"{folder} holds {found.get('grainline')!r}, not {FORMAT!r}; {AGAIN}")
    return found


def _opened(path: Path, shape: tuple[int, ...]) -> np.ndarray:
    try:
        array: np.ndarray = np.load(path, mmap_mode="r")
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read ({error}); {AGAIN}") from None
    if array.shape != shape:
        raise UserError(f"{path} holds {array.shape}, not {shape}; {AGAIN}")
    return array


def _checker(out: Path) -> Callable[[Path, dict[str, Any]], None]:
    """Compares the first line of a partial folder with what is to be made."""

    def check(path: Path, begun: dict[str, Any]) -> None:
        with path.open("rb") as file:
            _require_same(out.with_name(out.name + ".partial"), json.loads(file.readline()), begun)

    return check


def _require_same(folder: Path, found: Mapping[str, Any], begun: Mapping[str, Any]) -> None:
    told = {"source": "from other data", "size": f"at {found['size']} pixels"}
    told |= {"settings": f"with {_short(found['settings'])}", "records": "from other data"}
    require_same(folder, found, begun, told)


def _require_fit(folder: Path, found: Mapping[str, Any], asked: Mapping[str, Any]) -> None:
    theirs, ours = _short(found["settings"]), _short(asked["settings"])
    wrong = {
        "size": f"are of pictures of {found['size']} pixels, and the model sees {asked['size']}",
        "settings": f"were made with {theirs}, and the model has {ours}",
        "transform": "were made of other squares of the pictures than training reads",
        "source": "were made from other data than data.paths names",
    }
    for name, words in wrong.items():
        if found[name] != asked[name]:
            raise UserError(f"data.superpixels: those in {folder} {words}; {AGAIN}, or leave them out")


def _short(settings: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in settings.items())


def _account(out: Path, kept: int) -> Made:
    keys = np.load(out / KEYS, mmap_mode="r")
    pictures = int((keys != 0).sum())
    return Made(pictures, len(keys) - pictures, kept)


def told(made: Made) -> str:
    """The account in words.

    >>> told(Made(10, 2, kept=4))
    '10 pictures; 4 records were there before; 2 records without a picture'
    """
    parts = [f"{made.pictures} pictures"]
    parts += [f"{made.kept} records were there before"] if made.kept else []
    parts += [f"{made.skipped} records without a picture"] if made.skipped else []
    return "; ".join(parts)
