"""The writer of an index: encodes images, writes segments, commits and compacts. Only one process may write.

A commit is a new manifest. New folders count only from then on, and old ones are removed only after it.
"""

from collections.abc import Collection, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image

from grainline.errors import UserError
from grainline.files import Corrupt, writing
from grainline.index import store
from grainline.index.calibration import read_encoded
from grainline.index.candidates import update_inverted
from grainline.index.reader import model_of, read_parts
from grainline.model import ImageLike, Model, given
from grainline.types import Encoded, finite, to, to_dtype

CHUNK = 512  # images that are committed together: what a kill can cost
MAX_DEAD = 0.25  # share of a segment; above it the segment is written again without them
MAX_SMALL = 16  # segments of less than half a chunk; if there are more they are made one

Arrays = dict[str, np.ndarray]


class NewImage(NamedTuple):
    """An image to be put into the index."""

    row: store.Row
    square: Image.Image | None  # the input crop of the model; None if this content is encoded already


class Writer:
    """An index that is being changed, under its lock."""

    def __init__(
        self, folder: Path, manifest: store.Manifest, model: Model | str | None = None, chunk: int = CHUNK
    ) -> None:
        """model  as for `reader.model_of`; it is loaded when something has to be encoded"""
        self.folder, self.manifest, self.chunk, self._model = folder, manifest, chunk, model
        store.clear(folder, manifest)
        try:
            self.calibration_texts, self.segments = read_parts(folder, manifest)
        except Corrupt as error:
            raise store.CorruptIndex(folder, error) from None
        self._number()

    @cached_property
    def model(self) -> Model:
        return model_of(self.folder, self.manifest, self._model)

    @cached_property
    def texts(self) -> dict[str, Encoded]:
        """The calibration texts, sentences and spans, encoded."""
        part = self.manifest.calibration
        try:
            return to(read_encoded(self.folder / store.CALIBRATION / part.name, part), self.model.device)
        except Corrupt as error:
            raise store.CorruptIndex(self.folder, error) from None

    def row(self, path: str) -> store.Row | None:
        """The row of an image that is in the index."""
        where = self.rows.get(path)
        return None if where is None else self.segments[where[0]].rows[where[1]]

    def commit(
        self,
        new: Sequence[NewImage] = (),
        removed: Sequence[str] = (),
        corrupt: Sequence[store.CorruptImage] = (),
        excluded: Sequence[str] = (),
    ) -> None:
        """Write the new images as a segment and replace the manifest. UserError if the disk refuses.

        removed   paths whose rows go
        excluded  paths that no refresh may bring back
        """
        over = {*removed, *(one.row.path for one in new)}
        manifest = self._without(over)
        if new:
            manifest = self._append(manifest, [one.row for one in new], self._arrays(new))
        images = {path: one for path, one in self.corrupt.items() if path not in over}
        images |= {one.path: one for one in corrupt}
        out = tuple(sorted({*manifest.excluded, *excluded}))
        self.put(manifest._replace(corrupt=tuple(images[path] for path in sorted(images)), excluded=out))

    def put(self, manifest: store.Manifest) -> None:
        """Write a manifest and open what it names."""
        with writing(self.folder, store.AGAIN):
            store.write_manifest(self.folder, manifest)
        opened = {segment.part.name: segment for segment in self.segments}
        self.manifest = manifest
        self.segments = [
            opened[part.name]._replace(part=part)
            if part.name in opened
            else store.open_segment(self.folder / store.SEGMENTS / part.name, part)
            for part in manifest.segments
        ]
        self._number()

    def finish(self) -> None:
        """After the last commit: compact, and update the inverted file."""
        self.compact()
        with writing(self.folder, store.AGAIN):
            update_inverted(self.folder, self.segments)

    def compact(self) -> None:
        """Write segments with many removed rows, and many small segments, again."""
        victims = {i for i, one in enumerate(self.segments) if len(one.part.dead) > MAX_DEAD * len(one.rows)}
        small = {i for i, one in enumerate(self.segments) if one.live.sum() < self.chunk / 2}
        if len(small) > MAX_SMALL:
            victims |= small
        if not victims:
            return
        where = np.array(
            [(i, row) for i in sorted(victims) for row in np.flatnonzero(self.segments[i].live)], np.int64
        ).reshape(-1, 2)
        others = tuple(part for i, part in enumerate(self.manifest.segments) if i not in victims)
        manifest = self.manifest._replace(segments=others)
        for start in range(0, len(where), self.chunk):
            block = where[start : start + self.chunk]
            arrays = {name: self._take(name, block) for name in self.segments[0].arrays}
            rows = [self.segments[i].rows[row] for i, row in block.tolist()]
            manifest = self._append(manifest, rows, arrays)
        self.put(manifest)
        with writing(self.folder, store.AGAIN):
            store.clear(self.folder, self.manifest)

    def _without(self, paths: Collection[str]) -> store.Manifest:
        """The manifest with the rows of these paths marked as dead."""
        dead: dict[int, set[int]] = {}
        for number, row in (self.rows[path] for path in paths if path in self.rows):
            dead.setdefault(number, set()).add(row)
        parts = [
            part._replace(dead=tuple(sorted({*part.dead, *dead.get(i, ())})))
            for i, part in enumerate(self.manifest.segments)
        ]
        return self.manifest._replace(segments=tuple(parts))

    def _number(self) -> None:
        self.rows: dict[str, tuple[int, int]] = {}  # path -> segment, and row in it; live rows only
        self.row_of_content: dict[tuple[str, str | None], tuple[int, int]] = {}  # removed rows too
        self.corrupt = {one.path: one for one in self.manifest.corrupt}
        for i, segment in enumerate(self.segments):
            live = segment.live
            for number, row in enumerate(segment.rows):
                self.row_of_content[row.content] = (i, number)
                if live[number]:
                    self.rows[row.path] = (i, number)

    def _take(self, name: str, where: np.ndarray) -> np.ndarray:
        return store.take([segment.arrays[name] for segment in self.segments], where)

    def _append(self, manifest: store.Manifest, rows: Sequence[store.Row], arrays: Arrays) -> store.Manifest:
        """The manifest with another segment, which is written first."""
        with writing(self.folder, store.AGAIN):
            part = store.write_segment(self.folder / store.SEGMENTS / f"{manifest.next:08d}", rows, arrays)
        return manifest._replace(segments=(*manifest.segments, part), next=manifest.next + 1)

    def _arrays(self, new: Sequence[NewImage]) -> Arrays:
        """Arrays of all rows: those of known content are copied, others are encoded once."""
        known = {x.row.content: self.row_of_content[x.row.content] for x in new if x.square is None}
        squares = {x.row.content: x.square for x in new if x.square is not None}
        images = [given(square, description) for (_, description), square in squares.items()]
        encoded = encode(self.model, images, self.texts)
        place = {content: i for i, content in enumerate([*known, *squares])}
        order = [place[x.row.content] for x in new]
        out: Arrays = {}
        for name in encoded or self.segments[0].arrays:
            parts = [self._take(name, np.array(list(known.values())))] if known else []
            parts += [encoded[name]] if encoded else []
            out[name] = np.concatenate(parts)[order]
        return out


def square(model: Model, data: bytes, path: str) -> Image.Image:
    """The input crop of the model, which may be smaller than the image. Raises CorruptSample."""
    pixels = model.transform(data, path)
    return Image.fromarray(pixels.permute(1, 2, 0).contiguous().numpy())


@torch.no_grad()
def encode(model: Model, images: Sequence[ImageLike], texts: dict[str, Encoded]) -> Arrays:
    """The arrays of some images, as a segment holds them; {} for none. texts: calibration texts, encoded"""
    parts = []
    for start in range(0, len(images), model.batch):  # batch by batch: tokens are large
        encoded = model.encode(images=images[start : start + model.batch])
        out: dict[str, Any] = {store.VECTORS: encoded.vector.float()}
        if model.method.pairwise:
            encoded = model.method.precompute(encoded)
            if encoded.precomputed is not None:
                halves = to_dtype(encoded.precomputed, torch.half)
                out |= {f"{store.PRECOMPUTED}{name}": x for name, x in halves._asdict().items()}
                encoded = encoded._replace(precomputed=to_dtype(halves, torch.float32))  # as a search does
            else:
                out |= {store.TOKENS: encoded.tokens.half(), store.MASK: encoded.mask}
                encoded = encoded._replace(tokens=encoded.tokens.half().to(encoded.tokens.dtype))
        out |= {name: model.method.score(encoded, rows).half() for name, rows in texts.items()}
        if wrong := [name for name, x in out.items() if not finite(x)]:
            raise UserError(f"{wrong[0]} of an image overflow in half precision, as an index has them")
        parts.append({name: tensor.cpu().numpy() for name, tensor in out.items()})
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]} if parts else {}
