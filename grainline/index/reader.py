"""An index, opened for reading: its live rows numbered from 0, their arrays, and what null texts score.

A reader takes no lock. Segments never change, and one that a writer clears away stays readable where it is
mapped. Only between reading the manifest and mapping the files can one vanish; then both are read again.
"""

from collections.abc import Iterator
from functools import cached_property
from pathlib import Path

import numpy as np
import torch

from grainline.errors import UserError
from grainline.files import Corrupt
from grainline.fingerprint import fingerprint
from grainline.index.calibration import (
    SAME,
    Best,
    Calibration,
    Known,
    Own,
    Standard,
    background,
    best_hits,
    owned,
    shown,
    standard,
)
from grainline.index.calibration_texts import NullTexts, read_null
from grainline.index.candidates import Exact
from grainline.index.segment import (
    ASIDES,
    MASK,
    NULL,
    SPANNED,
    TOKENS,
    VECTORS,
    Row,
    Segment,
    check_part,
    open_segment,
    take,
)
from grainline.index.store import NULLS, SEGMENTS, Manifest, ModelMark, corrupt, read_manifest
from grainline.model import Model, load
from grainline.types import Encoded

TRIES = 3
NEIGHBOURS = 4  # of a picture, itself included


class Opened:
    """Live rows of an index."""

    def __init__(self, folder: Path, *, thorough: bool = False) -> None:
        """thorough  check the arrays too, which reads all there is. Raises UserError."""
        self.folder = folder
        self.manifest, self.segments, self.null = _read(folder, thorough)
        self.live = [segment.live for segment in self.segments]
        self.where = np.array(
            [(i, row) for i, live in enumerate(self.live) for row in np.flatnonzero(live)], dtype=np.int64
        ).reshape(-1, 2)  # [N, 2]
        self.rows: list[Row] = [self.segments[i].rows[row] for i, row in self.where.tolist()]
        self.hashes = [row.sha256 for row in self.rows]
        self.numbers = {row.path: i for i, row in enumerate(self.rows)}
        self._best: dict[str, Best] = {}

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def vectors(self) -> list[np.ndarray]:
        """[R, D] of each segment, removed rows included"""
        return [segment.arrays[VECTORS].whole() for segment in self.segments]

    def take(self, name: str, rows: np.ndarray) -> np.ndarray:
        """An array of some live rows: [K, ...]"""
        return take(self.segments, name, self.where[rows])

    def encoded(self, rows: np.ndarray) -> Encoded:
        """Some live rows as the method reads them; tokens only where the index holds some."""
        vector = torch.from_numpy(self.take(VECTORS, rows))
        number = torch.from_numpy(np.ascontiguousarray(rows))
        if TOKENS not in self.segments[0].arrays:
            tokens, mask = vector.new_zeros(len(rows), 0, vector.shape[1]), torch.zeros(len(rows), 0).bool()
        else:
            tokens = torch.from_numpy(self.take(TOKENS, rows)).float()
            mask = torch.from_numpy(self.take(MASK, rows))
        return Encoded(vector, tokens, mask, number, number)

    @cached_property
    def ground(self) -> np.ndarray:
        """The background: [B] live rows"""
        return background(self.hashes)

    @cached_property
    def null_texts(self) -> np.ndarray:
        """Standardised best scores of the null texts, sorted: [Q]"""
        return np.sort(self._standard(NULL).apply(self._hits(NULL).score))

    @cached_property
    def null_sentences(self) -> np.ndarray:
        """The same of single sentences, for queries of one sentence: [P]"""
        return np.sort(self._standard(ASIDES).apply(self._hits(ASIDES).score))

    def null_of(self, count: int) -> np.ndarray:
        """What queries of so many sentences reach without a match, sorted.

        The fewer sentences, the wilder their scores: those of null texts of about as many.
        """
        if count == 1:
            return self.null_sentences
        best = self.calibration.best(count)
        return best if len(best) else self.null_texts

    @cached_property
    def null_images(self) -> np.ndarray:
        """What background pictures score with their nearest neighbours, sorted: [B]

        Copies are no neighbours: rows of the same bytes, and those that the model cannot tell apart.
        """
        queries = self.take(VECTORS, self.ground)
        exact, hashes = Exact(self.vectors, self.live), np.array(self.hashes)
        for k in (NEIGHBOURS, len(self.ground) + 1):  # few will do, but where a picture has many copies
            near = exact.top(queries, k)
            own = hashes[near.row] == hashes[self.ground][:, None]  # [B, k]
            best = np.where(own | (near.score >= 1 - SAME), -np.inf, near.score).max(1)
            if np.isfinite(best).all():
                break
        return np.sort(best)

    @cached_property
    def calibration(self) -> Calibration:
        """What judges the sentences of a query in its hits."""
        score = self.take(ASIDES, self.ground).astype(np.float64)
        level = shown(score, ~self._own_ground)
        pool = np.sort((score - level)[~self._own_ground])
        hits = [self._hits(name) for name in (NULL, SPANNED)]
        of = [self._standard(name) for name in (NULL, SPANNED)]
        place = np.arange(len(level))
        tested = [self.take(ASIDES, one.row)[place, place] - level for one in hits]
        known = Known(
            np.array([*self.null.counts, *self.null.span_counts]),
            np.concatenate([one.apply(hit.score) for one, hit in zip(of, hits, strict=True)]),
            Standard(*map(np.concatenate, zip(*of, strict=True))),
            np.concatenate(tested),
            pool,
        )
        return Calibration(known, self._own(level))

    def _own(self, level: np.ndarray) -> Own:
        """The null texts with images of their own, as if these stood in the index. level: [Q] of asides"""
        which = np.array([i for i, one in enumerate(self.null.own) if one is not None], dtype=np.int64)
        score, tested = np.array([self.null.own[i] for i in which], dtype=np.float64).reshape(-1, 2).T
        rank = np.zeros(len(which), dtype=np.int64)
        for block, own in self._blocks(NULL):
            rank += ((block[:, which] > score) & ~own[:, which]).sum(0)
        return Own(which, rank, score, tested - level[which])

    @cached_property
    def _own_ground(self) -> np.ndarray:
        """Which image of the background a null text describes: [B, Q] bool"""
        return owned([self.hashes[row] for row in self.ground], self.null.owners)

    def _standard(self, name: str) -> Standard:
        return standard(self.take(name, self.ground), ~self._own_ground)

    def _hits(self, name: str) -> Best:
        """The best hits of the null texts, without their own images."""
        if name not in self._best:
            self._best[name] = best_hits(self._blocks(name))
        return self._best[name]

    def _blocks(self, name: str) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Segment by segment what null texts score, and whether with their own image: [R, Q] both"""
        for segment, live in zip(self.segments, self.live, strict=True):
            hashes = [segment.rows[i].sha256 for i in np.flatnonzero(live)]
            yield segment.arrays[name][live], owned(hashes, self.null.owners)


def read_parts(
    folder: Path, manifest: Manifest, *, thorough: bool = False
) -> tuple[NullTexts, list[Segment]]:
    """The null texts and the segments that a manifest names; raises Corrupt."""
    where = folder / NULLS / manifest.null.name
    check_part(where, manifest.null, thorough=thorough)
    null = read_null(where)
    parts = manifest.segments
    return null, [open_segment(folder / SEGMENTS / part.name, part, thorough=thorough) for part in parts]


def _read(folder: Path, thorough: bool) -> tuple[Manifest, list[Segment], NullTexts]:
    for attempt in range(TRIES):
        manifest = read_manifest(folder)
        try:
            null, segments = read_parts(folder, manifest, thorough=thorough)
        except Corrupt as error:
            if attempt == TRIES - 1 or read_manifest(folder) == manifest:
                raise corrupt(folder, error) from None
        else:
            return manifest, segments, null
    raise AssertionError("unreachable")


# Which model an index belongs to: vectors of other weights cannot be compared with those of the index.


def mark_of(model: Model, path: str) -> ModelMark:
    """The mark of a model that was loaded from a path ("" if it is only in memory)."""
    place = str(Path(path).resolve()) if path and Path(path).exists() else path  # what is not here is a name
    return ModelMark(place, model.description.method, fingerprint(model))


def model_of(folder: Path, manifest: Manifest, given: Model | str | None, device: str | None = None) -> Model:
    """The model of an index: the given one, or the one that it was made with. UserError if it is another."""
    path = given if isinstance(given, str) else manifest.model.path
    if not isinstance(given, Model) and not path:
        raise UserError(f"index {folder} was made with a model in memory; name its folder with --model")
    model = given if isinstance(given, Model) else load(path, device=device)
    if fingerprint(model) != manifest.model.fingerprint:
        which = f"the model {path}" if not isinstance(given, Model) else "this model"
        raise UserError(
            f"index {folder} was made with other weights than {which} has now: "
            f"give the {manifest.model.method} it was made with (--model), or build an index anew"
        )
    return model
