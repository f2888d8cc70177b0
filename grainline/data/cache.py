"""What is made once of every image of a source and read in training: rows, such as superpixels and features.

A folder, whole or not there; while it is made it is FOLDER.partial, and a run that was killed goes on in it.

    ROWS.npy    [N, ...] one row for each record, in the order of the source
    keys.npy    [N] uint64, the first 8 bytes of the sha256 of each key; 0: a record without a picture
    NAME.json   sealed: settings, side, transform and the fingerprint of the source
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
from grainline.data.record import DAMAGED_IMAGE, Damaged, Source
from grainline.data.transforms import DRAWS, Draws, EvalTransform, Picture
from grainline.errors import UserError, amount, there_before
from grainline.files import Corrupt, read_sealed, reason, remedy, sealed, sync, write_text
from grainline.nn.superpixels import label_of, neighbour_of

KEYS, LOG = "keys.npy", "done.jsonl"
BATCH = 32  # pictures that are read and computed at a time


class Kind(NamedTuple):
    """What tells one kind of folder from another."""

    name: str  # of the command that makes it, and of the field of `data` that names it
    format: str  # name and version, as the manifest says it
    rows: str  # name of the array
    dtype: Any  # of numpy

    @property
    def manifest(self) -> str:
        return f"{self.name}.json"

    @property
    def again(self) -> str:
        return f"make them again with `grainline data {self.name}`"


class Made(NamedTuple):
    """What is in the folder now."""

    pictures: int
    skipped: int  # records without a picture
    kept: int  # records that were there before


def make(
    kind: Kind,
    source: Source,
    compute: Callable[[Tensor], Tensor],
    out: Path,
    transform: EvalTransform,
    *,
    row: tuple[int, ...],
    settings: Mapping[str, Any],
    progress: Callable[[int, int], None] | None = None,
) -> Made:
    """Write the rows of all pictures of a source, or what is missing of them.

    compute    [n, 3, S, S] uint8 -> [n, *row], of numbers that fit into the kind's dtype
    transform  how a square of side S is made of a picture
    settings   what `compute` depends on
    progress   is called with (records done, records to do)

    Raises UserError where `out`, whole or partial, was made from other data or with other settings.
    """
    begun = {"grainline": kind.format, "source": source.fingerprint(), "size": transform.size}
    begun |= {"settings": dict(settings), "records": len(source), "transform": settings_of(transform)}
    partial = out.with_name(out.name + ".partial")
    try:
        if out.is_dir():
            _require_same(out, manifest(kind, out), begun)
            return _account(out, len(source))
        partial.mkdir(parents=True, exist_ok=True)
        check = _checker(out)
        with resuming(partial / LOG, begun, lambda path: check(path, begun)) as (log, batches):
            writer = _Writer(source, compute, transform)
            writer.open(partial, kind, row, "r+" if batches else "w+")
            for number in range(batches, -(-len(source) // BATCH)):
                log.write(as_line(writer.batch(number)))
                log.flush()
                if progress is not None:
                    progress(min((number + 1) * BATCH, len(source)), len(source))
            writer.close()
            write_text(partial / kind.manifest, sealed(begun))
        (partial / LOG).unlink()
        os.rename(partial, out)
        sync(out.parent)
    except OSError as error:
        raise UserError(
            f"cannot write {out}: {reason(error)}; {remedy(error, 'choose another --out')}"
        ) from None
    return _account(out, min(batches * BATCH, len(source)))


class _Writer:
    """The arrays of a folder, open for writing."""

    def __init__(self, source: Source, compute: Callable[[Tensor], Tensor], transform: EvalTransform) -> None:
        self.source, self.compute, self.transform = source, compute, transform
        self.arrays: dict[str, np.memmap[Any, Any]] = {}

    def open(self, folder: Path, kind: Kind, row: tuple[int, ...], mode: Literal["r+", "w+"]) -> None:
        """w+ begins anew, whatever stands there."""
        number = len(self.source)
        self.arrays["rows"] = open_memmap(folder / kind.rows, mode, kind.dtype, (number, *row))
        self.arrays["keys"] = open_memmap(folder / KEYS, mode, np.uint64, (number,))

    def batch(self, number: int) -> dict[str, Any]:
        """Compute some records, and wait until they are on the disk; their line."""
        places, pixels = [], []
        first = number * BATCH
        for index in range(first, min(first + BATCH, len(self.source))):
            try:
                record = self.source[index]
                pixels.append(self.transform(record.image, record.key))
            except Damaged:
                continue
            places.append(index)
            self.arrays["keys"][index] = digest(record.key)
        if places:
            self.arrays["rows"][places] = self.compute(torch.stack(pixels)).cpu().numpy()
        for array in self.arrays.values():
            array.flush()
        return {"batch": number, "pictures": len(places)}

    def close(self) -> None:
        self.arrays.clear()


class Stored:
    """The rows of a source, read from the disk picture by picture."""

    def __init__(
        self,
        kind: Kind,
        folder: Path,
        source: Source,
        transform: EvalTransform,
        settings: Mapping[str, Any],
    ) -> None:
        """
        source, transform  what training reads, and how it makes a square of a picture
        settings           what the model itself would make rows with; others in the folder are not compared

        Raises UserError where the folder was made from other data or in another way.
        """
        asked = {"source": source.fingerprint(), "size": transform.size, "settings": dict(settings)}
        asked |= {"transform": settings_of(transform)}
        self.kind, self.folder = kind, folder
        self.found = manifest(kind, folder)
        _require_fit(kind, folder, self.found, asked)
        self.rows: np.ndarray | None = None
        self.keys: np.ndarray | None = None

    def open(self, row: tuple[int, ...]) -> None:
        """Look at the rows, which have this shape. UserError where they do not."""
        records = self.found["records"]
        self.rows = self._opened(self.kind.rows, (records, *row))
        self.keys = self._opened(KEYS, (records,))

    def lacks(self, index: int) -> bool:
        """Whether the record at a position had no picture when the rows were made."""
        assert self.keys is not None, "not opened"
        return int(self.keys[index]) == 0

    def row(self, index: int, key: str) -> np.ndarray:
        """That of the record at a position. UserError where there is none, or that of another."""
        assert self.rows is not None, "not opened"
        assert self.keys is not None, "not opened"
        if int(self.keys[index]) != digest(key):
            name = self.kind.name
            lost = f"has the {name} of another picture" if self.keys[index] else f"has no {name}"
            raise UserError(f"{self.folder}: {key} {lost}: the data has changed; {self.kind.again}")
        found: np.ndarray = self.rows[index]
        return found

    def _opened(self, name: str, shape: tuple[int, ...]) -> np.ndarray:
        path = self.folder / name
        try:
            array: np.ndarray = np.load(path, mmap_mode="r")
        except (OSError, ValueError) as error:
            raise UserError(f"{path} cannot be read ({error}); {self.kind.again}") from None
        if array.shape != shape:
            raise UserError(f"{path} holds {array.shape}, not {shape}; {self.kind.again}")
        return array


def digest(key: str) -> int:
    """What a key is known by, never 0: 8 bytes of its sha256."""
    name = hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()[:8]
    return max(1, int.from_bytes(name, "big"))


def settings_of(transform: EvalTransform) -> dict[str, Any]:
    """How a square is made of a picture, as JSON."""
    filter = transform.filter.name.lower()
    return {"resize": transform.resize, "filter": filter, "larger": transform.larger}


def manifest(kind: Kind, folder: Path) -> dict[str, Any]:
    """What a folder was made from. UserError where it is none of this kind."""
    try:
        found = read_sealed(folder / kind.manifest)
    except Corrupt as error:
        raise UserError(f"{folder} holds no {kind.name}: {error}; {kind.again}") from None
    if found.get("grainline") != kind.format:
        raise UserError(f"{folder} holds {found.get('grainline')!r}, not {kind.format!r}; {kind.again}")
    return found


def _checker(out: Path) -> Callable[[Path, dict[str, Any]], None]:
    """Compares the first line of a partial folder with what is to be made."""

    def check(path: Path, begun: dict[str, Any]) -> None:
        with path.open("rb") as file:
            _require_same(out.with_name(out.name + ".partial"), json.loads(file.readline()), begun)

    return check


def _require_same(folder: Path, found: Mapping[str, Any], begun: Mapping[str, Any]) -> None:
    told = {"source": "from other data", "size": f"at {found['size']} pixels"}
    told |= {"settings": f"with {_short(found['settings'])}", "records": "from other data"}
    told |= {"transform": "of other squares of the pictures"}
    require_same(folder, found, begun, told)


def _require_fit(kind: Kind, folder: Path, found: Mapping[str, Any], asked: Mapping[str, Any]) -> None:
    theirs = {name: found["settings"].get(name) for name in asked["settings"]}
    wrong = {
        "size": f"are of pictures of {found['size']} pixels, and the model sees {asked['size']}",
        "settings": f"were made with {_short(theirs)}, and the model has {_short(asked['settings'])}",
        "transform": "were made of other squares of the pictures than training reads",
        "source": "were made from other data than data.paths names",
    }
    for name, words in wrong.items():
        there = theirs if name == "settings" else found[name]
        if there != asked[name]:
            raise UserError(f"data.{kind.name}: those in {folder} {words}; {kind.again}, or leave them out")


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
    parts = [amount(made.pictures, "picture")]
    parts += [there_before(made.kept, "record")] if made.kept else []
    parts += [f"{amount(made.skipped, 'record')} without a picture"] if made.skipped else []
    return "; ".join(parts)


# Superpixels of a whole source, made once: `grainline data superpixels`, and `data.superpixels` of a recipe.
#
# A folder as `data/cache.py` has it, with which of nine cells each pixel belongs to, as in `nn.superpixels`:
# neighbours.npy [N, S, S] uint8.


KIND = Kind("superpixels", "superpixels 1", "neighbours.npy", np.uint8)


def make_superpixels(
    source: Source,
    segment: Callable[[Tensor], Tensor],
    out: Path,
    *,
    size: int,
    settings: Mapping[str, Any],
    progress: Callable[[int, int], None] | None = None,
) -> Made:
    """Write the superpixels of all pictures of a source, or what is missing of them, as `make` does.

    segment   [n, 3, S, S] uint8 -> labels [n, S, S] under the contract of `nn.superpixels`
    size      side of the square that evaluation sees, S
    settings  what `segment` was made with, `cell` among it
    """
    cell = int(settings["cell"])
    return make(
        KIND,
        source,
        lambda pixels: neighbour_of(segment(pixels).cpu(), cell).to(torch.uint8),
        out,
        EvalTransform(size),
        row=(size, size),
        settings=settings,
        progress=progress,
    )


class StoredSuperpixels:
    """The superpixels of a source, read from the disk picture by picture: the labels of a `SameTransform`."""

    def __init__(
        self, folder: Path, source: Source, transform: EvalTransform, settings: Mapping[str, Any]
    ) -> None:
        """Arguments and errors as `Stored` has them; settings are all that the model has."""
        self.stored, self.cell = Stored(KIND, folder, source, transform, settings), int(settings["cell"])
        self.stored.open((transform.size, transform.size))

    def label(self, index: int, key: str) -> Tensor:
        """[S, S] int64 of the record at a position. UserError where there are none, or those of another."""
        code = torch.from_numpy(self.stored.row(index, key).astype(np.int64))
        return label_of(code, self.cell)


# What a frozen image encoder makes of a whole source, made once: `grainline data features`, and
# `data.features` of a recipe, which then neither decodes pictures nor runs the encoder in training.
#
# A folder as `data/cache.py` has it: features.npy [N, 1 + L, W] float16, the summary of each picture and
# behind it its L image tokens, where they were asked for (L is 0 elsewhere), at the encoder's own width W.


FEATURES_KIND = Kind("features", "features 1", "features.npy", np.float16)


def make_features(
    source: Source,
    encode: Callable[[Tensor], Tensor],
    out: Path,
    transform: EvalTransform,
    *,
    encoder: str,
    row: tuple[int, int],
    progress: Callable[[int, int], None] | None = None,
) -> Made:
    """Write the features of all pictures of a source, or what is missing of them, as `make` does.

    encode   [n, 3, S, S] uint8 -> [n, 1 + L, W]
    encoder  fingerprint of its settings and weights
    row      (1 + L, W)

    Raises UserError for features that half precision cannot hold, too.
    """

    def halved(pixels: Tensor) -> Tensor:
        half = encode(pixels).half()
        if not bool(half.isfinite().all()):
            raise UserError("the image encoder gives numbers above 65504, or none, so they cannot be kept")
        return half

    settings = {"encoder": encoder, "tokens": row[0] - 1, "width": row[1]}
    return make(FEATURES_KIND, source, halved, out, transform, row=row, settings=settings, progress=progress)


class KeptFeatures:
    """In the place of a crop: no pixels, and the features of a picture. Draws what a crop would draw."""

    def __init__(
        self, folder: Path, source: Source, transform: EvalTransform, encoder: str, *, tokens: bool
    ) -> None:
        """
        transform  how the model makes a square of a picture
        encoder    fingerprint of the image encoder that training begins with
        tokens     whether the loss reads image tokens; else only summaries are read

        Raises UserError where the folder was made from other data, with another encoder or without tokens.
        """
        self.stored = Stored(FEATURES_KIND, folder, source, transform, {"encoder": encoder})
        held = self.stored.found["settings"]
        if tokens and not held["tokens"]:
            raise UserError(
                f"data.features: those in {folder} are summaries alone, and this method learns from image "
                f"tokens; {FEATURES_KIND.again} --tokens"
            )
        self.stored.open((1 + held["tokens"], held["width"]))
        self.rows = slice(None) if tokens else slice(1)

    def __call__(self, _image: Picture, rng: Draws, _where: str = "picture") -> Tensor:
        """[3, 0, 0]: nothing is decoded."""
        for _ in range(DRAWS):
            rng.random()
        return torch.empty(3, 0, 0, dtype=torch.uint8)

    def regions(self, _index: int, _key: str) -> None:
        """No superpixels: the encoder has read them already."""

    def features(self, index: int, key: str) -> Tensor:
        """[1 + L, W] half precision, [1, W] without tokens, of the record at a position.

        Raises Damaged for a picture that could not be used when they were made, and UserError where they are
        those of another picture.
        """
        if self.stored.lacks(index):
            raise Damaged(DAMAGED_IMAGE, f"{key} (it has no features in {self.stored.folder})")
        return torch.from_numpy(self.stored.row(index, key)[self.rows].astype(np.float16))
