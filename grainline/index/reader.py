"""An index opened for reading: its live rows, numbered from 0, their arrays, and the scores of null texts.

A reader takes no lock. Segments never change, and one that a writer clears away stays readable where it is
mapped. Only between reading the manifest and mapping the files can one vanish; then both are read again.
"""

from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from grainline.errors import UserError
from grainline.files import Corrupt
from grainline.fingerprint import fingerprint
from grainline.index.calibration import (
    DUPLICATE,
    BestHits,
    Calibration,
    NullSample,
    Standard,
    TrueSample,
    background,
    best_hits,
    described_images,
    sentence_level,
    standard,
)
from grainline.index.calibration_texts import CalibrationTexts, read_calibration
from grainline.index.candidates import Exact
from grainline.index.store import (
    CALIBRATION,
    MASK,
    NULL_SENTENCES,
    NULL_SPANS,
    NULL_TEXTS,
    PRECOMPUTED,
    SEGMENTS,
    TOKENS,
    VECTORS,
    Manifest,
    ModelId,
    Row,
    Segment,
    check_part,
    corrupt,
    open_segment,
    read_manifest,
    take,
)
from grainline.model import Model, load
from grainline.types import Encoded, to_dtype

TRIES = 3
NEIGHBOURS = 4  # of an image, itself included


class IndexReader:
    """Live rows of an index."""

    def __init__(self, folder: Path, *, thorough: bool = False) -> None:
        """thorough  check the arrays too, which reads all there is. Raises UserError."""
        self.folder = folder
        self.manifest, self.segments, self.calibration_texts = _read(folder, thorough)
        self.live = [segment.live for segment in self.segments]
        self.locations = np.array(
            [(i, row) for i, live in enumerate(self.live) for row in np.flatnonzero(live)], dtype=np.int64
        ).reshape(-1, 2)  # [N, 2]
        self.rows: list[Row] = [self.segments[i].rows[row] for i, row in self.locations.tolist()]
        self.hashes = [row.sha256 for row in self.rows]
        self.numbers = {row.path: i for i, row in enumerate(self.rows)}
        self._best: dict[str, BestHits] = {}

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def vectors(self) -> list[np.ndarray]:
        """[R, D] of each segment, removed rows included"""
        return [segment.arrays[VECTORS].whole() for segment in self.segments]

    def take(self, name: str, rows: np.ndarray) -> np.ndarray:
        """An array of some live rows: [K, ...]"""
        return take(self.segments, name, self.locations[rows])

    def encoded(self, rows: np.ndarray, precomputed_class: Any = None) -> Encoded:
        """Some live rows as the method scores them, with tokens or `precomputed` where the index holds them.

        precomputed_class  that of the method
        """
        vector = torch.from_numpy(self.take(VECTORS, rows))
        number = torch.from_numpy(np.ascontiguousarray(rows))
        tokens, mask = vector.new_zeros(len(rows), 0, vector.shape[1]), torch.zeros(len(rows), 0).bool()
        arrays, precomputed = self.segments[0].arrays, None
        if TOKENS in arrays:
            tokens = torch.from_numpy(self.take(TOKENS, rows)).float()
            mask = torch.from_numpy(self.take(MASK, rows))
        elif any(name.startswith(PRECOMPUTED) for name in arrays):
            names = [f"{PRECOMPUTED}{field}" for field in precomputed_class._fields]
            stored = precomputed_class(*(torch.from_numpy(self.take(name, rows)) for name in names))
            precomputed = to_dtype(stored, torch.float32)
        return Encoded(vector, tokens, mask, number, number, precomputed=precomputed)

    @cached_property
    def background(self) -> np.ndarray:
        """The background: [B] live rows"""
        return background(self.hashes)

    @cached_property
    def null_text_scores(self) -> np.ndarray:
        """Standardised best scores of the null texts, sorted: [Q]"""
        return np.sort(self._standard(NULL_TEXTS).apply(self._hits(NULL_TEXTS).score))

    @cached_property
    def null_sentence_scores(self) -> np.ndarray:
        """The same of single sentences, for queries of one sentence: [P]"""
        return np.sort(self._standard(NULL_SENTENCES).apply(self._hits(NULL_SENTENCES).score))

    def null_scores(self, count: int) -> np.ndarray:
        """Sorted best scores of queries of so many sentences without a match.

        From null texts of about as many sentences: scores of fewer sentences vary more.
        """
        if count == 1:
            return self.null_sentence_scores
        best = self.calibration.best(count)
        return best if len(best) else self.null_text_scores

    @cached_property
    def null_image_scores(self) -> np.ndarray:
        """Sorted similarities of background images with their nearest neighbours: [B]

        Copies do not count: rows of the same bytes, and of vectors that are equal up to rounding.
        """
        queries = self.take(VECTORS, self.background)
        exact, hashes = Exact(self.vectors, self.live), np.array(self.hashes)
        for k in (NEIGHBOURS, len(self.background) + 1):  # few will do, but where an image has many copies
            near = exact.top(queries, k)
            same = hashes[near.row] == hashes[self.background][:, None]  # [B, k]
            best = np.where(same | (near.score >= 1 - DUPLICATE), -np.inf, near.score).max(1)
            if np.isfinite(best).all():
                break
        return np.sort(best)

    @cached_property
    def calibration(self) -> Calibration:
        """Computes p of the sentences of a query in its hits."""
        score = self.take(NULL_SENTENCES, self.background).astype(np.float64)
        level = sentence_level(score, ~self._described_background)
        pool = np.sort((score - level)[~self._described_background])
        hits = [self._hits(name) for name in (NULL_TEXTS, NULL_SPANS)]
        of = [self._standard(name) for name in (NULL_TEXTS, NULL_SPANS)]
        place = np.arange(len(level))
        tested = [self.take(NULL_SENTENCES, one.row)[place, place] - level for one in hits]
        sample = NullSample(
            np.array([*self.calibration_texts.counts, *self.calibration_texts.span_counts]),
            np.concatenate([one.apply(hit.score) for one, hit in zip(of, hits, strict=True)]),
            Standard(*map(np.concatenate, zip(*of, strict=True))),
            np.concatenate(tested),
            pool,
        )
        return Calibration(sample, self._true_sample(level))

    def _true_sample(self, level: np.ndarray) -> TrueSample:
        """The null texts with images of their own, as if these stood in the index. level: [Q] of asides"""
        which = np.array(
            [i for i, one in enumerate(self.calibration_texts.image_scores) if one is not None],
            dtype=np.int64,
        )
        score, tested = (
            np.array([self.calibration_texts.image_scores[i] for i in which], dtype=np.float64)
            .reshape(-1, 2)
            .T
        )
        rank = np.zeros(len(which), dtype=np.int64)
        for block, described in self._blocks(NULL_TEXTS):
            rank += ((block[:, which] > score) & ~described[:, which]).sum(0)
        return TrueSample(which, rank, score, tested - level[which])

    @cached_property
    def _described_background(self) -> np.ndarray:
        """Whether a null text describes an image of the background: [B, Q] bool"""
        return described_images(
            [self.hashes[row] for row in self.background], self.calibration_texts.image_hashes
        )

    def _standard(self, name: str) -> Standard:
        return standard(self.take(name, self.background), ~self._described_background)

    def _hits(self, name: str) -> BestHits:
        """The best hits of the null texts, without the images they describe."""
        if name not in self._best:
            self._best[name] = best_hits(self._blocks(name))
        return self._best[name]

    def _blocks(self, name: str) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Segment by segment: scores of null texts, and whether they describe the image: [R, Q] both"""
        for segment, live in zip(self.segments, self.live, strict=True):
            hashes = [segment.rows[i].sha256 for i in np.flatnonzero(live)]
            yield segment.arrays[name][live], described_images(hashes, self.calibration_texts.image_hashes)


def read_parts(
    folder: Path, manifest: Manifest, *, thorough: bool = False
) -> tuple[CalibrationTexts, list[Segment]]:
    """The null texts and the segments that a manifest names; raises Corrupt."""
    place = folder / CALIBRATION / manifest.calibration.name
    check_part(place, manifest.calibration, thorough=thorough)
    texts = read_calibration(place)
    parts = manifest.segments
    return texts, [open_segment(folder / SEGMENTS / part.name, part, thorough=thorough) for part in parts]


def _read(folder: Path, thorough: bool) -> tuple[Manifest, list[Segment], CalibrationTexts]:
    for attempt in range(TRIES):
        manifest = read_manifest(folder)
        try:
            texts, segments = read_parts(folder, manifest, thorough=thorough)
        except Corrupt as error:
            if attempt == TRIES - 1 or read_manifest(folder) == manifest:
                raise corrupt(folder, error) from None
        else:
            return manifest, segments, texts
    raise AssertionError("unreachable")


# The model of an index: vectors of other weights cannot be compared with those of the index.


def model_id_of(model: Model, path: str) -> ModelId:
    """The identity of a model that was loaded from a path ("" if it is only in memory)."""
    place = str(Path(path).resolve()) if path and Path(path).exists() else path  # what is not here is a name
    return ModelId(place, model.description.method, fingerprint(model))


def model_of(
    folder: Path, manifest: Manifest, model_or_path: Model | str | None, device: str | None = None
) -> Model:
    """The model of an index, given or loaded from the path it stores. UserError for other weights."""
    path = model_or_path if isinstance(model_or_path, str) else manifest.model_id.path
    if not isinstance(model_or_path, Model) and not path:
        raise UserError(f"index {folder} was made with a model in memory; name its folder with --model")
    model = model_or_path if isinstance(model_or_path, Model) else load(path, device=device)
    if fingerprint(model) != manifest.model_id.fingerprint:
        which = f"the model {path}" if not isinstance(model_or_path, Model) else "this model"
        raise UserError(
            f"index {folder} was made with other weights than {which} has now: "
            f"give the {manifest.model_id.method} it was made with (--model), or build an index anew"
        )
    return model
