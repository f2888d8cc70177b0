"""The writer of an index: encodes images, writes segments, commits and compacts. Only one process may write.

A commit is a new manifest. New folders count only from then on, and old ones are removed only after it.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image

from grainline.files import WRITE_ERRORS, Corrupt
from grainline.index.calibration_texts import read_encoded
from grainline.index.image_files import LoadedImage
from grainline.index.inverted import update_inverted
from grainline.index.reader import read_parts
from grainline.index.store import (
    CALIBRATION,
    MASK,
    PRECOMPUTED,
    SEGMENTS,
    TOKENS,
    VECTORS,
    CorruptImage,
    Manifest,
    Part,
    Row,
    cannot_write,
    clear,
    corrupt,
    open_segment,
    take,
    write_manifest,
    write_segment,
)
from grainline.model import ImageLike, Model, given
from grainline.types import Encoded, to, to_dtype

CHUNK = 512  # images that are committed together: what a kill can cost
MOST_DEAD = 0.25  # share of a segment; beyond it the segment is written again without them
MOST_SMALL = 16  # segments of less than half a chunk; beyond it they are made one

Arrays = dict[str, np.ndarray]


class NewImage(NamedTuple):
    """An image to be put into the index."""

    row: Row
    square: Image.Image | None  # the input crop of the model; None if these bytes are encoded already


class Change(NamedTuple):
    """The changes of one commit."""

    new: Sequence[NewImage] = ()
    removed: Sequence[str] = ()  # paths whose rows go
    corrupt: Sequence[CorruptImage] = ()
    excluded: Sequence[str] = ()  # paths that no refresh may bring back


class Writer:
    """An index that is being changed, under its lock.

    rows  path -> number of the segment and of the row in it, live rows only
    """

    def __init__(
        self, folder: Path, manifest: Manifest, model: Model | None = None, chunk: int = CHUNK
    ) -> None:
        """model  not needed where nothing is encoded"""
        self.folder, self.manifest, self.chunk = folder, manifest, chunk
        self._model, self._texts = model, dict[str, Encoded]()
        clear(folder, manifest)
        try:
            self.calibration_texts, self.segments = read_parts(folder, manifest)
        except Corrupt as error:
            raise corrupt(folder, error) from None
        self.rows: dict[str, tuple[int, int]] = {}
        self.row_of_content: dict[
            tuple[str, str | None], tuple[int, int]
        ] = {}  # content -> a row, removed ones too
        self._number()

    @property
    def model(self) -> Model:
        assert self._model is not None, "nothing to encode with"
        return self._model

    @property
    def texts(self) -> dict[str, Encoded]:
        """The null texts and single sentences, encoded."""
        if not self._texts:
            try:
                encoded = read_encoded(
                    self.folder / CALIBRATION / self.manifest.calibration.name, self.manifest.calibration
                )
            except Corrupt as error:
                raise corrupt(self.folder, error) from None
            self._texts = to(encoded, self.model.device)
        return self._texts

    def corrupt_image(self, path: str) -> CorruptImage | None:
        """The record of a corrupt image, by path."""
        return self._corrupt.get(path)

    def row(self, path: str) -> Row | None:
        """The row of an image that is in the index."""
        where = self.rows.get(path)
        return None if where is None else self.segments[where[0]].rows[where[1]]

    def commit(self, change: Change) -> None:
        """Write the fresh images as a segment and replace the manifest. UserError if the disk refuses."""
        over = {*change.removed, *(one.row.path for one in change.new)}
        manifest = self._without(over)
        if change.new:
            arrays = self._arrays(change.new)
            with self._disk_errors():
                part = self._write([one.row for one in change.new], arrays, manifest.next)
            manifest = manifest._replace(segments=(*manifest.segments, part), next=manifest.next + 1)
        corrupt = {path: one for path, one in self._corrupt.items() if path not in over}
        corrupt |= {one.path: one for one in change.corrupt}
        left_out = tuple(sorted({*manifest.excluded, *change.excluded}))
        images = tuple(corrupt[path] for path in sorted(corrupt))
        self.put(manifest._replace(corrupt=images, excluded=left_out))

    def put(self, manifest: Manifest) -> None:
        """Write a manifest and load what it names."""
        with self._disk_errors():
            write_manifest(self.folder, manifest)
        before = {segment.part.name: segment for segment in self.segments}
        self.manifest = manifest
        self.segments = [
            before[part.name]._replace(part=part)
            if part.name in before
            else open_segment(self.folder / SEGMENTS / part.name, part)
            for part in manifest.segments
        ]
        self._number()

    def finish(self) -> None:
        """After the last commit: compact, and update the inverted file."""
        self.compact()
        with self._disk_errors():
            update_inverted(self.folder, self.segments)

    def compact(self) -> bool:
        """Write segments with many removed rows, and many small segments, again; whether any was."""
        victims = self._to_compact()
        if not victims:
            return False
        where = np.array(
            [(i, row) for i in victims for row in np.flatnonzero(self.segments[i].live)], dtype=np.int64
        ).reshape(-1, 2)
        manifest = self.manifest
        parts = [part for i, part in enumerate(manifest.segments) if i not in victims]
        with self._disk_errors():
            for start in range(0, len(where), self.chunk):
                block = where[start : start + self.chunk]
                arrays = {name: take(self.segments, name, block) for name in self.segments[0].arrays}
                rows = [self.segments[i].rows[row] for i, row in block.tolist()]
                parts.append(self._write(rows, arrays, manifest.next))
                manifest = manifest._replace(next=manifest.next + 1)
            self.put(manifest._replace(segments=tuple(parts)))
            clear(self.folder, self.manifest)
        return True

    def _to_compact(self) -> list[int]:
        live = [int(segment.live.sum()) for segment in self.segments]
        dead = [
            i
            for i, segment in enumerate(self.segments)
            if len(segment.rows) - live[i] > MOST_DEAD * len(segment.rows)
        ]
        small = [i for i, number in enumerate(live) if number < self.chunk / 2]
        return sorted({*dead, *small}) if len(small) > MOST_SMALL else dead

    def _without(self, paths: Iterable[str]) -> Manifest:
        """The manifest with the rows of these paths marked as dead."""
        dead: dict[int, set[int]] = {}
        for path in paths:
            if path in self.rows:
                number, row = self.rows[path]
                dead.setdefault(number, set()).add(row)
        parts = [
            part._replace(dead=tuple(sorted({*part.dead, *dead.get(i, ())})))
            for i, part in enumerate(self.manifest.segments)
        ]
        return self.manifest._replace(segments=tuple(parts))

    def _number(self) -> None:
        self.rows, self.row_of_content = {}, {}
        self._corrupt = {one.path: one for one in self.manifest.corrupt}
        for i, segment in enumerate(self.segments):
            live = segment.live
            for number, row in enumerate(segment.rows):
                self.row_of_content[row.content] = (i, number)
                if live[number]:
                    self.rows[row.path] = (i, number)

    def _write(self, rows: Sequence[Row], arrays: Arrays, number: int) -> Part:
        return write_segment(self.folder / SEGMENTS / f"{number:08d}", rows, arrays)

    def _arrays(self, fresh: Sequence[NewImage]) -> Arrays:
        """Arrays of all rows: known contents are copied, others are encoded once."""
        new = {one.row.content: one.square for one in fresh if one.square is not None}
        images = [given(square, content[1]) for content, square in new.items()]
        encoded = encode(self.model, images, self.texts)
        place = {content: i for i, content in enumerate(new)}
        places = np.array([place.get(one.row.content, -1) for one in fresh])
        is_known = places < 0
        old = np.array([self.row_of_content[one.row.content] for one in fresh if one.square is None])
        out: Arrays = {}
        for name in encoded or self.segments[0].arrays:
            copied = take(self.segments, name, old) if len(old) else encoded[name][:0]
            new_values = encoded[name] if encoded else copied[:0]
            out[name] = np.empty((len(fresh), *copied.shape[1:]), dtype=copied.dtype)
            out[name][is_known], out[name][~is_known] = copied, new_values[places[~is_known]]
        return out

    @contextmanager
    def _disk_errors(self) -> Iterator[None]:
        try:
            yield
        except WRITE_ERRORS as error:
            raise cannot_write(self.folder, error) from None


def square(model: Model, read: LoadedImage) -> Image.Image:
    """The square that the model sees of an image, which may be larger. Raises CorruptSample."""
    pixels = model.transform(read.data, read.row.path)
    return Image.fromarray(pixels.permute(1, 2, 0).contiguous().numpy())


@torch.no_grad()
def encode(model: Model, images: Sequence[ImageLike], texts: dict[str, Encoded]) -> Arrays:
    """The arrays of some images, as a segment holds them; {} for none.

    texts  the null texts and single sentences, encoded
    """
    parts = [_encode(model, images[i : i + model.batch], texts) for i in range(0, len(images), model.batch)]
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]} if parts else {}


def _encode(model: Model, images: Sequence[ImageLike], texts: dict[str, Encoded]) -> Arrays:
    encoded = model.encode(images=images)
    out: dict[str, Any] = {VECTORS: encoded.vector.float()}
    if model.method.pairwise:
        encoded = model.method.precompute(encoded)
        if encoded.precomputed is not None:
            halves = to_dtype(encoded.precomputed, torch.half)
            out |= {f"{PRECOMPUTED}{name}": x for name, x in halves._asdict().items()}
            encoded = encoded._replace(precomputed=to_dtype(halves, torch.float32))  # as a search reads it
        else:
            out |= {TOKENS: encoded.tokens.half(), MASK: encoded.mask}
            encoded = encoded._replace(tokens=encoded.tokens.half().to(encoded.tokens.dtype))
    out |= {name: model.method.score(encoded, rows).half() for name, rows in texts.items()}
    return {name: tensor.cpu().numpy() for name, tensor in out.items()}
