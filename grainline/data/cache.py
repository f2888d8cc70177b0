"""Rows computed once for every image of a source and read in training: superpixels, features (`features`).

A folder, complete or absent; while it is written it is FOLDER.partial, and an interrupted run goes on in it.

    ROWS.npy    [N, ...] one row for each record, in the order of the source
    keys.npy    [N] uint64, the first 8 bytes of the sha256 of each key; 0: a record without an image
    NAME.json   settings, side, transform and the fingerprint of the source, with a checksum
"""

import hashlib
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from random import Random
from threading import Lock
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import torch
from numpy.lib.format import open_memmap
from torch import Tensor

from grainline.data.lines import Progress, Written, as_line, require_same, resuming
from grainline.data.record import CorruptSample, Record, Source, content_of
from grainline.data.transforms import CropConfig, EvalTransform, TrainTransform
from grainline.distributed import rank, usable_cores
from grainline.errors import UserError, amount
from grainline.files import Corrupt, InUse, one_writer, read_sealed, sealed_json, sync, write_text, writing
from grainline.nn.superpixels import label_of
from grainline.progress import in_order, progress
from grainline.system import open_regular, regular, user_cache

KEYS, LOG = "keys.npy", "done.jsonl"
BATCH = 32  # images that are read and computed at a time
ELSEWHERE = "set GRAINLINE_CACHE to another folder"


class Kind(NamedTuple):
    """A kind of folder: superpixels, features or states of texts."""

    name: str  # of the command that makes it, and of the field of `data` that names it
    format: str  # name and version, as the manifest says it
    rows: str  # name of the array
    dtype: Any  # of numpy
    home: Path | None = None  # the folder of the cache that holds it, where training makes it by itself

    @property
    def again(self) -> str:
        remedy = f"delete {self.home}, and training makes them again"
        return remedy if self.home else f"make them again with `grainline data {self.name}`"

    def content(self, record: Record) -> bytes:
        """The image by which a row belongs to a record, in the cache of training; else its key is enough."""
        return content_of(record.image) if self.home else b""


def make(  # noqa: PLR0913 - each is a choice of the caller; long, for its steps share the state of a batch
    kind: Kind,
    source: Source,
    compute: Callable[[Tensor], Tensor],
    out: Path,
    views: "Views",
    *,
    row: tuple[int, ...],
    settings: Mapping[str, Any],
    one_each: bool = False,
    progress: Progress | None = None,
) -> Written:
    """Write the rows of all images of a source, or those that an interrupted run left out.

    compute   [n, 3, S, S] uint8 -> [n, *row], of numbers that fit into the kind's dtype
    views     makes squares of side S of an image
    settings  what `compute` depends on
    one_each  as for `all_cores`; without it this thread computes, while others decode ahead

    Raises UserError where `out`, whole or partial, was made from other data or with other settings.
    """
    number, records, reading = views.number, len(source), Lock()
    header = {"grainline": kind.format, "records": records} | _origin(source, views.transform, settings)

    def read(batch: int) -> tuple[dict[int, int], list[Tensor]]:
        """The digests of the keys of records, and their squares."""
        digests: dict[int, int] = {}
        squares: list[Tensor] = []
        for index in range(batch * BATCH, min((batch + 1) * BATCH, records)):
            with suppress(CorruptSample):
                with reading:  # a source may have one position in its file
                    record = source[index]
                squares += views(record)
                digests[index] = digest(record.key, kind.content(record))
        return digests, squares

    def computed(digests: dict[int, int], squares: list[Tensor]) -> tuple[dict[int, int], dict[int, Any]]:
        output = compute(torch.stack(squares)).cpu().numpy() if squares else ()
        places = (index * number + view for index in digests for view in range(number))
        return digests, dict(zip(places, output, strict=True))

    with all_cores(one_each) as threads, completing(kind, out, header) as folder:
        if folder is not None:
            mode: Any = "r+" if folder.batches else "w+"
            rows = _Rows(open_memmap(folder.path / kind.rows, mode, kind.dtype, (records * number, *row)))
            keys = _Rows(open_memmap(folder.path / KEYS, mode, np.uint64, (records,)))
            left, together = range(folder.batches, -(-records // BATCH)), threads > 1
            work: Any = (lambda batch: computed(*read(batch))) if together else read
            pool = threads if together else max(2, min(8, usable_cores()))
            with closing(in_order(work, left, pool, ahead=pool)) as results:
                for batch, result in zip(left, results, strict=True):
                    digests, some = result if together else computed(*result)
                    rows.write(some)
                    keys.write(digests)
                    folder.log.write(as_line({"batch": batch, "images": len(digests)}))
                    folder.log.flush()
                    if progress is not None:
                        progress(min((batch + 1) * BATCH, records), records)
    resumed = records if folder is None else min(folder.batches * BATCH, records)
    images = int((np.load(out / KEYS) != 0).sum())
    skipped = {"without an image": records - images} if images < records else {}
    return Written({"image": images}, skipped, resumed)


class Partial(NamedTuple):
    """A folder that is being written."""

    path: Path
    log: BinaryIO  # a line for each batch whose numbers are on the disk
    batches: int  # that were there before


@contextmanager
def completing(kind: Kind, out: Path, header: Mapping[str, Any]) -> Iterator[Partial | None]:
    """The partial folder, which is complete and in its place when the block ends; None where it is already.

    header  what the content depends on. UserError where `out`, whole or partial, has another
    """
    partial = out.with_name(out.name + ".partial")

    def check(path: Path) -> None:
        with open_regular(path) as file:
            _require_same(partial, json.loads(file.readline()), header)

    with writing(out, ELSEWHERE if kind.home else "choose another --out"):
        if out.is_dir():
            _require_same(out, _manifest(kind, out), header)
            yield None
            return
        partial.mkdir(parents=True, exist_ok=True)
        with resuming(partial / LOG, header, check) as (log, batches):
            yield Partial(partial, log, batches)
            write_text(partial / f"{kind.name}.json", sealed_json(header))
        (partial / LOG).unlink()
        os.rename(partial, out)
        sync(out.parent)


class Views(NamedTuple):
    """The squares of an image that are cached: that of evaluation, then random crops, always the same."""

    transform: EvalTransform
    number: int = 1
    crop: CropConfig | None = None

    def __call__(self, record: Record) -> list[Tensor]:
        squares = [self.transform(record.image, record.key)]
        if self.number > 1:
            crop = TrainTransform(self.transform.size, self.crop, self.transform.square.patches)
            draws = (Random(f"{record.key}/{view}") for view in range(1, self.number))
            squares += [crop(record.image, draw, record.key) for draw in draws]
        return squares


class _Rows:
    """The rows of a .npy file, not mapped: on a full disk, or where it was cut, a map ends in a SIGBUS."""

    def __init__(self, array: np.memmap) -> None:
        self.path, self.start, self.dtype = str(array.filename), array.offset, array.dtype
        self.shape, self.size = array.shape, array.strides[0]  # bytes of a row

    def write(self, rows: Mapping[int, Any]) -> None:
        """Write some rows, to the disk."""
        with open(self.path, "r+b") as file:
            for index, row in rows.items():
                file.seek(self.start + index * self.size)
                file.write(np.asarray(row, self.dtype).tobytes())
            file.flush()
            os.fsync(file.fileno())

    def read(self, index: int, first: int) -> np.ndarray:
        """The first parts of a row. ValueError where the file has been cut."""
        shape, start = (first, *self.shape[2:]), self.start + index * self.size
        return np.fromfile(self.path, self.dtype, int(np.prod(shape)), offset=start).reshape(shape)


class CachedRows:
    """The rows of a source, which are read when they are used."""

    def __init__(
        self, kind: Kind, folder: Path, source: Source, transform: EvalTransform, settings: Mapping[str, Any]
    ) -> None:
        """Raises UserError where the folder was made from other data or in another way than training reads.

        settings  those of the model; other settings in the folder are not compared
        """
        self.kind, self.folder, self.manifest = kind, folder, _manifest(kind, folder)
        compared = {name: self.manifest["settings"].get(name) for name in settings}
        stored, model = self.manifest | {"settings": compared}, _origin(source, transform, settings)
        wrong = {
            "size": f"are of images of {stored['size']} pixels, and the model sees {model['size']}",
            "settings": f"were made with {_short(compared)}, and the model has {_short(settings)}",
            "transform": "were made of other squares of the images than training reads",
            "source": "were made from other data than data.paths names",
        }
        for name, words in wrong.items():
            if stored[name] != model[name]:
                where = f"data.{kind.name}: those in {folder}"
                raise UserError(f"{where} {words}; {kind.again}, or leave them out")

    def open(self, row: tuple[int, ...]) -> None:
        """Open the rows, which have this shape. Raises UserError where they do not."""
        records, self.views = self.manifest["records"], self.manifest["settings"].get("views", 1)
        self.rows = _Rows(self._map(self.kind.rows, (records * self.views, *row)))
        self.keys = np.array(self._map(KEYS, (records,)))

    def row(
        self, index: int, key: str, first: int | None = None, view: int = 0, content: bytes = b""
    ) -> np.ndarray:
        """The row, or its first parts, of a view of a record. UserError where it is that of another."""
        if int(self.keys[index]) != digest(key, content):
            name = self.kind.name
            wrong = f"has the {name} of another image" if self.keys[index] else f"has no {name}"
            raise UserError(f"{self.folder}: {key} {wrong}: the data has changed; {self.kind.again}")
        try:
            return self.rows.read(index * self.views + view, first or self.rows.shape[1])
        except (OSError, ValueError) as error:
            raise UserError(f"{self.rows.path} was changed or cut ({error}); {self.kind.again}") from None

    def _map(self, name: str, shape: tuple[int, ...]) -> np.memmap:
        path = self.folder / name
        try:
            regular(path)
            array: np.memmap = np.lib.format.open_memmap(path, mode="r")
        except (OSError, ValueError) as error:
            raise UserError(f"{path} cannot be read ({error}); {self.kind.again}") from None
        if array.shape != shape:
            raise UserError(f"{path} holds {array.shape}, not {shape}; {self.kind.again}")
        return array


def digest(key: str, image: bytes = b"") -> int:
    """The id of a key and an image, never 0: 8 bytes of a sha256."""
    name = hashlib.sha256(key.encode("utf-8", "surrogatepass") + image).digest()[:8]
    return max(1, int.from_bytes(name, "big"))


def _origin(source: Source, transform: EvalTransform, settings: Mapping[str, Any]) -> dict[str, Any]:
    """The data and the settings that rows are made from, as JSON."""
    square = {"resize": transform.resize, "filter": transform.filter.name.lower(), "larger": transform.larger}
    square |= {"patches": repr(patches)} if (patches := transform.square.patches) else {}
    origin = {"source": source.fingerprint(), "size": transform.size, "settings": dict(settings)}
    return origin | {"transform": square}


def _manifest(kind: Kind, folder: Path) -> dict[str, Any]:
    """The origin of the rows in a folder. Raises UserError where it is none of this kind."""
    try:
        content = read_sealed(folder / f"{kind.name}.json")
    except Corrupt as error:
        raise UserError(f"{folder} holds no {kind.name}: {error}; {kind.again}") from None
    if content.get("grainline") != kind.format:
        raise UserError(f"{folder} holds {content.get('grainline')!r}, not {kind.format!r}; {kind.again}")
    return content


def _require_same(folder: Path, header: Mapping[str, Any], expected: Mapping[str, Any]) -> None:
    differences = {"source": "from other data", "size": f"at {header['size']} pixels"}
    differences |= {"settings": f"with {_short(header['settings'])}", "records": "from other data"}
    require_same(folder, header, expected, differences | {"transform": "of other squares of the images"})


def _short(settings: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in settings.items())


# Superpixels: `grainline data superpixels`, and `data.superpixels` of a recipe. neighbours.npy [N, S, S]
# uint8: which of nine cells each pixel belongs to, as in `nn.superpixels`.

SUPERPIXELS = Kind("superpixels", "superpixels 2", "neighbours.npy", np.uint8)


class CachedSuperpixels(CachedRows):
    """The superpixels of a source: the labels of a `SameTransform`."""

    def __init__(
        self, folder: Path, source: Source, transform: EvalTransform, settings: Mapping[str, Any]
    ) -> None:
        """settings: all those of the model"""
        super().__init__(SUPERPIXELS, folder, source, transform, settings)
        self.cell = int(settings["cell"])
        self.open((transform.size, transform.size))

    def label(self, index: int, key: str) -> Tensor:
        """[S, S] int64 of the record at a position. Raises UserError without them."""
        return label_of(torch.from_numpy(self.row(index, key).astype(np.int64)), self.cell)


# The cache of training, for data.features: auto. What belongs to one key is in a folder of its own.


def place(kind: Kind, source: Source, *facts: Any) -> tuple[Kind, Path]:
    """The folder in the cache for what depends on a source and some facts, and the kind with its home."""
    content = json.dumps([kind.format, source.fingerprint(), *facts], sort_keys=True)
    home = user_cache() / "features" / hashlib.sha256(content.encode()).hexdigest()[:16]
    return kind._replace(home=home), home / kind.name


def write_once(out: Path, write: Callable[[Progress], Written], records: int) -> None:
    """Write a folder of the cache if it is not there; where another process does, wait for it."""
    what, begin, quiet = f"{out.name} of {amount(records, 'image')}", time.monotonic(), rank() > 0
    last = [begin]
    while not out.is_dir():
        try:
            with writing(out.parent, ELSEWHERE):
                out.parent.mkdir(parents=True, exist_ok=True)
            with one_writer(out.parent, f"the cache {out.parent}", "waiting for it"), progress(what) as bar:
                if out.is_dir():
                    return

                def step(done: int, total: int) -> None:
                    bar(done, total)
                    if not sys.stderr.isatty() and time.monotonic() - last[0] > 30:
                        last[0] = time.monotonic()
                        print(f"{what}: {done:,} are done", flush=True)

                print(f"computing the {what} once, into {out}", flush=True)
                begin = time.monotonic()
                written, seconds = write(step), time.monotonic() - begin
                speed = (records - written.resumed) / max(seconds, 1e-3)
                print(f"{written}; {seconds:.0f} s, {speed:.1f} images a second", flush=True)
        except InUse as error:
            if not quiet:
                print(error, flush=True)
            quiet = True
            time.sleep(1)


@contextmanager
def all_cores(one_each: bool = False) -> Iterator[int]:
    """Compute on all cores; gives the number of threads that compute a batch of their own.

    one_each  each thread computes on a core: convolutions on several cores wait for each other
    """
    before = torch.get_num_threads()
    by_user = any(name in os.environ for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"))
    cores = before if by_user else min(usable_cores(), 16)
    torch.set_num_threads(1 if one_each else cores)
    try:
        yield cores if one_each else 1
    finally:
        torch.set_num_threads(before)
