"""An index opened for reading: live rows, numbered from 0, their arrays, and scores of calibration texts.

A reader takes no lock. Segments never change, and a mapped one stays readable when a writer removes it. Only
between reading the manifest and mapping the files can one vanish; then both are read again.
"""

from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from grainline.errors import UserError
from grainline.files import Corrupt
from grainline.hub import fingerprint
from grainline.index import store
from grainline.index.calibration import (
    BACKGROUND,
    BUILT_IN,
    DUPLICATE,
    NAMES,
    Calibration,
    CalibrationTexts,
    Standard,
    best_hits,
    described_images,
    read_calibration,
    sentence_level,
    standard,
)
from grainline.index.candidates import Exact
from grainline.loading import load
from grainline.model import Model
from grainline.types import Encoded, to_dtype

TRIES = 3
NEIGHBOURS = BACKGROUND + 1  # of an image, itself and its copies included


class IndexReader:
    """Live rows of an index."""

    def __init__(self, folder: Path, *, thorough: bool = False) -> None:
        """thorough: check the arrays too, which reads every file. Raises UserError."""
        self.folder = folder
        self.manifest, self.segments, self.calibration_texts = _read(folder, thorough)
        self.built_in_texts = BUILT_IN.get(self.calibration_texts.source, "")  # in words; "": some were given
        self.live = [segment.live for segment in self.segments]
        self.locations = np.array(
            [(i, row) for i, live in enumerate(self.live) for row in np.flatnonzero(live)], dtype=np.int64
        ).reshape(-1, 2)  # [N, 2]
        self.rows: list[store.Row] = [self.segments[i].rows[row] for i, row in self.locations.tolist()]
        self.hashes = [row.sha256 for row in self.rows]
        self.numbers = {row.path: i for i, row in enumerate(self.rows)}

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def vectors(self) -> list[np.ndarray]:
        """[R, D] of each segment, removed rows included"""
        return [segment.arrays[store.VECTORS].whole() for segment in self.segments]

    def take(self, name: str, rows: np.ndarray) -> np.ndarray:
        """An array of some live rows: [K, ...]"""
        return store.take([segment.arrays[name] for segment in self.segments], self.locations[rows])

    def encoded(self, rows: np.ndarray, precomputed_class: Any = None) -> Encoded:
        """Some live rows as the method scores them. precomputed_class: that of the method"""
        vector = torch.from_numpy(self.take(store.VECTORS, rows))
        number = torch.from_numpy(np.ascontiguousarray(rows))
        tokens, mask = vector.new_zeros(len(rows), 0, vector.shape[1]), torch.zeros(len(rows), 0).bool()
        arrays, precomputed = self.segments[0].arrays, None
        if store.TOKENS in arrays:
            tokens = torch.from_numpy(self.take(store.TOKENS, rows)).float()
            mask = torch.from_numpy(self.take(store.MASK, rows))
        elif any(name.startswith(store.PRECOMPUTED) for name in arrays):
            names = [f"{store.PRECOMPUTED}{field}" for field in precomputed_class._fields]
            stored = precomputed_class(*(torch.from_numpy(self.take(name, rows)) for name in names))
            precomputed = to_dtype(stored, torch.float32)
        return Encoded(vector, tokens, mask, number, number, precomputed=precomputed)

    @cached_property
    def background(self) -> np.ndarray:
        """The background: [B] live rows, those with the smallest hashes, whatever the order of rows"""
        return np.argsort(np.array(self.hashes), kind="stable")[:BACKGROUND]

    @cached_property
    def null_sentence_scores(self) -> np.ndarray:
        """Standardised best scores of the calibration sentences, sorted, for queries of one: [Q]"""
        return np.sort(self._standard_best(store.NULL_SENTENCES))

    @cached_property
    def null_image_scores(self) -> np.ndarray:
        """Sorted similarities of background images with their nearest neighbours: [B]

        Copies do not count: rows of the same bytes, and of vectors that are equal up to rounding.
        """
        queries = self.take(store.VECTORS, self.background)
        near, hashes = Exact(self.vectors, self.live).top(queries, NEIGHBOURS), np.array(self.hashes)
        same = hashes[near.row] == hashes[self.background][:, None]  # [B, k]
        return np.sort(np.where(same | (near.score >= 1 - DUPLICATE), -np.inf, near.score).max(1))

    @cached_property
    def calibration(self) -> Calibration:
        """Computes p of the sentences of a query in its hits."""
        score = self.take(store.NULL_SENTENCES, self.background).astype(np.float64)
        level = sentence_level(score, ~self._described_background)
        names, place = (store.NULL_TEXTS, store.NULL_SPANS), np.arange(len(level))
        hits = [self.take(store.NULL_SENTENCES, self._hits[name][1])[place, place] for name in names]
        # The calibration texts with images of their own, as if these images were in the index.
        image_scores = self.calibration_texts.image_scores
        which = np.array([i for i, pair in enumerate(image_scores) if pair is not None], np.int64)
        text, tested = np.array([image_scores[i] for i in which], np.float64).reshape(-1, 2).T
        rank = np.zeros(len(which), np.int64)
        for block, described in self._blocks(store.NULL_TEXTS):
            rank += ((block[:, which] > text) & ~described[:, which]).sum(0)
        return Calibration(
            counts=np.array([*self.calibration_texts.counts, *self.calibration_texts.span_counts]),
            best_score=np.concatenate([self._standard_best(name) for name in names]),
            standard=Standard(*map(np.concatenate, zip(*map(self._standard, names), strict=True))),
            tested=np.concatenate([one - level for one in hits]),
            pool=np.sort((score - level)[~self._described_background]),
            true_text=which,
            true_rank=rank,
            true_score=text,
            true_tested=tested - level[which],
        )

    @cached_property
    def _described_background(self) -> np.ndarray:
        """Whether a calibration text describes an image of the background: [B, Q] bool"""
        hashes = [self.hashes[row] for row in self.background]
        return described_images(hashes, self.calibration_texts.image_hashes)

    def _standard(self, name: str) -> Standard:
        return standard(self.take(name, self.background), ~self._described_background)

    def _standard_best(self, name: str) -> np.ndarray:
        """Standardised scores of the best hits of calibration texts: [Q]"""
        return self._standard(name).apply(self._hits[name][0])

    @cached_property
    def _hits(self) -> dict[str, tuple[np.ndarray, np.ndarray]]:
        """Scores and rows of the best hits of the calibration texts, without their own images: [Q] each"""
        return {name: best_hits(self._blocks(name)) for name in NAMES}

    def _blocks(self, name: str) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Scores of calibration texts by segment, and whether they describe the image: [R, Q] both"""
        for segment, live in zip(self.segments, self.live, strict=True):
            hashes = [segment.rows[i].sha256 for i in np.flatnonzero(live)]
            yield segment.arrays[name][live], described_images(hashes, self.calibration_texts.image_hashes)


def read_parts(
    folder: Path, manifest: store.Manifest, *, thorough: bool = False
) -> tuple[CalibrationTexts, list[store.Segment]]:
    """The calibration texts and the segments that a manifest names; raises Corrupt."""
    target = folder / store.CALIBRATION / manifest.calibration.name
    store.check_part(target, manifest.calibration, thorough=thorough)
    place, texts = folder / store.SEGMENTS, read_calibration(target)
    return texts, [store.open_segment(place / x.name, x, thorough=thorough) for x in manifest.segments]


def _read(folder: Path, thorough: bool) -> tuple[store.Manifest, list[store.Segment], CalibrationTexts]:
    manifest, left = store.read_manifest(folder), TRIES
    while True:
        try:
            texts, segments = read_parts(folder, manifest, thorough=thorough)
            return manifest, segments, texts
        except Corrupt as error:
            before, manifest, left = manifest, store.read_manifest(folder), left - 1
            if not left or manifest == before:
                raise store.CorruptIndex(folder, error) from None


def model_of(
    folder: Path, manifest: store.Manifest, model_or_path: Model | str | None, device: str | None = None
) -> Model:
    """The model of an index, given or loaded from the path it stores. UserError for other weights."""
    if isinstance(model_or_path, Model):
        model, which = model_or_path, "this model"
    else:
        path = model_or_path or manifest.model_id.path
        if not path:
            raise UserError(f"index {folder} was made with a model in memory; name its folder with --model")
        model, which = load(path, device=device), f"the model {path}"
    if fingerprint(model) != manifest.model_id.fingerprint:
        wrong = f"index {folder} was made with other weights than {which} has now"
        raise UserError(f"{wrong}; name it with --model")
    return model
