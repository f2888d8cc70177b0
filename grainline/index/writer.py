"""The one process that changes an index: encodes, writes segments, commits, compacts.

A commit is a new manifest. Whatever was written before it does not count until then, and whatever it replaces
is removed only after it.
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
from grainline.index.image_files import Read
from grainline.index.inverted import keep
from grainline.index.reader import read_parts
from grainline.index.segment import MASK, TOKENS, VECTORS, Row, open_segment, take, write_segment
from grainline.index.store import (
    NULLS,
    SEGMENTS,
    Manifest,
    Part,
    Spoilt,
    cannot_write,
    clear,
    corrupt,
    write_manifest,
)
from grainline.model import ImageLike, Model, given
from grainline.types import Encoded, to

CHUNK = 512  # pictures that are committed together: what a kill can cost
MOST_DEAD = 0.25  # share of a segment; beyond it the segment is written again without them
MOST_SMALL = 16  # segments of less than half a chunk; beyond it they are made one

Arrays = dict[str, np.ndarray]


class Fresh(NamedTuple):
    """A picture to be put into the index."""

    row: Row
    square: Image.Image | None  # what the model sees of it; None where its bytes are known already


class Change(NamedTuple):
    """What one commit takes in."""

    fresh: Sequence[Fresh] = ()
    gone: Sequence[str] = ()  # paths whose rows go
    damaged: Sequence[Spoilt] = ()
    left_out: Sequence[str] = ()  # paths that no refresh may bring back


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
            self.null, self.segments = read_parts(folder, manifest)
        except Corrupt as error:
            raise corrupt(folder, error) from None
        self.rows: dict[str, tuple[int, int]] = {}
        self.known: dict[tuple[str, str | None], tuple[int, int]] = {}  # content -> a row, removed ones too
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
                kept = read_encoded(self.folder / NULLS / self.manifest.null.name, self.manifest.null)
            except Corrupt as error:
                raise corrupt(self.folder, error) from None
            self._texts = to(kept, self.model.device)
        return self._texts

    def spoilt(self, path: str) -> Spoilt | None:
        """What is remembered of a picture that could not be used."""
        return self._spoilt.get(path)

    def row(self, path: str) -> Row | None:
        """The row of a picture that is in the index."""
        where = self.rows.get(path)
        return None if where is None else self.segments[where[0]].rows[where[1]]

    def commit(self, change: Change) -> None:
        """Write the fresh pictures as a segment and replace the manifest. UserError if the disk refuses."""
        over = {*change.gone, *(one.row.path for one in change.fresh)}
        manifest = self._buried(over)
        if change.fresh:
            arrays = self._arrays(change.fresh)
            with self._guarded():
                part = self._write([one.row for one in change.fresh], arrays, manifest.next)
            manifest = manifest._replace(segments=(*manifest.segments, part), next=manifest.next + 1)
        spoilt = {path: one for path, one in self._spoilt.items() if path not in over}
        spoilt |= {one.path: one for one in change.damaged}
        left_out = tuple(sorted({*manifest.left_out, *change.left_out}))
        damaged = tuple(spoilt[path] for path in sorted(spoilt))
        self.put(manifest._replace(damaged=damaged, left_out=left_out))

    def put(self, manifest: Manifest) -> None:
        """Make a manifest the one that counts, and take it up."""
        with self._guarded():
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
        """What follows the last commit: compact, and bring what is derived up to date."""
        self.compact()
        with self._guarded():
            keep(self.folder, self.segments)

    def compact(self) -> bool:
        """Write segments with many removed rows, and many small segments, again; whether any was."""
        victims = self._victims()
        if not victims:
            return False
        where = np.array(
            [(i, row) for i in victims for row in np.flatnonzero(self.segments[i].live)], dtype=np.int64
        ).reshape(-1, 2)
        manifest = self.manifest
        kept = [part for i, part in enumerate(manifest.segments) if i not in victims]
        with self._guarded():
            for start in range(0, len(where), self.chunk):
                mine = where[start : start + self.chunk]
                arrays = {name: take(self.segments, name, mine) for name in self.segments[0].arrays}
                rows = [self.segments[i].rows[row] for i, row in mine.tolist()]
                kept.append(self._write(rows, arrays, manifest.next))
                manifest = manifest._replace(next=manifest.next + 1)
            self.put(manifest._replace(segments=tuple(kept)))
            clear(self.folder, self.manifest)
        return True

    def _victims(self) -> list[int]:
        live = [int(segment.live.sum()) for segment in self.segments]
        dead = [
            i
            for i, segment in enumerate(self.segments)
            if len(segment.rows) - live[i] > MOST_DEAD * len(segment.rows)
        ]
        small = [i for i, number in enumerate(live) if number < self.chunk / 2]
        return sorted({*dead, *small}) if len(small) > MOST_SMALL else dead

    def _buried(self, paths: Iterable[str]) -> Manifest:
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
        self.rows, self.known = {}, {}
        self._spoilt = {one.path: one for one in self.manifest.damaged}
        for i, segment in enumerate(self.segments):
            live = segment.live
            for number, row in enumerate(segment.rows):
                self.known[row.content] = (i, number)
                if live[number]:
                    self.rows[row.path] = (i, number)

    def _write(self, rows: Sequence[Row], arrays: Arrays, number: int) -> Part:
        return write_segment(self.folder / SEGMENTS / f"{number:08d}", rows, arrays)

    def _arrays(self, fresh: Sequence[Fresh]) -> Arrays:
        """Arrays of all rows; what is known by its content is copied, and only the rest is encoded, once."""
        new = {one.row.content: one.square for one in fresh if one.square is not None}
        asked = [given(square, content[1]) for content, square in new.items()]
        encoded = encode(self.model, asked, self.texts)
        place = {content: i for i, content in enumerate(new)}
        mine = np.array([place.get(one.row.content, -1) for one in fresh])
        known = mine < 0
        old = np.array([self.known[one.row.content] for one in fresh if one.square is None])
        out: Arrays = {}
        for name in encoded or self.segments[0].arrays:
            copied = take(self.segments, name, old) if len(old) else encoded[name][:0]
            made = encoded[name] if encoded else copied[:0]
            out[name] = np.empty((len(fresh), *copied.shape[1:]), dtype=copied.dtype)
            out[name][known], out[name][~known] = copied, made[mine[~known]]
        return out

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        try:
            yield
        except WRITE_ERRORS as error:
            raise cannot_write(self.folder, error) from None


def square(model: Model, read: Read) -> Image.Image:
    """The square that the model sees of a picture: small, where the picture may be large. Raises Damaged."""
    seen = model.transform(read.data, read.row.path)
    return Image.fromarray(seen.permute(1, 2, 0).contiguous().numpy())


@torch.no_grad()
def encode(model: Model, images: Sequence[ImageLike], texts: dict[str, Encoded]) -> Arrays:
    """The arrays of some pictures, as a segment holds them; {} for none.

    texts  the null texts and single sentences, encoded
    """
    parts = [_encode(model, images[i : i + model.batch], texts) for i in range(0, len(images), model.batch)]
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]} if parts else {}


def _encode(model: Model, images: Sequence[ImageLike], texts: dict[str, Encoded]) -> Arrays:
    encoded = model.encode(images=images)
    out: dict[str, Any] = {VECTORS: encoded.vector.float()}
    if model.method.pairwise:
        encoded = model.method.held(encoded)
        out |= {TOKENS: encoded.tokens.half(), MASK: encoded.mask}
        encoded = encoded._replace(tokens=encoded.tokens.half().to(encoded.tokens.dtype))  # as a search reads
    out |= {name: model.method.score(encoded, rows).half() for name, rows in texts.items()}
    return {name: tensor.cpu().numpy() for name, tensor in out.items()}
