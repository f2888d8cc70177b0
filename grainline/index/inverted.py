"""Candidates among very many images: an inverted file of 8-bit vectors (FAISS), next to the segments.

    INDEX/ann/00000002/
      vectors.faiss   an IVF of 8-bit vectors; ids number the rows of its segments, in order
      state.json      "parts": name, sha256 and rows of each segment in it; size and sha256 of vectors.faiss

It is derived: a missing or corrupt file costs time, not results. A writer builds it when the index has more
than EXACT images, and again when more than MAX_STALE of them are not in it, or of its rows were removed. A
folder is never changed: a new one is sealed, then the old one is removed.

A reader takes the newest one whose sha256 are right, and of it only the segments that the manifest names with
the same sha256. FAISS skips removed rows; rows that are not in it are compared one by one.
"""

from collections.abc import Sequence
from importlib.util import find_spec
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from grainline.files import Corrupt, clear_leftovers, discard, sync, unseal
from grainline.index.candidates import APPROXIMATE, Candidates, CandidateSearch, Exact
from grainline.index.store import ANN, VECTORS, Segment, new_part

EXACT = 200_000  # images up to which every vector is compared
MAX_STALE = 0.1  # share of the images that may be missing, and of its rows that may be gone
PROBES = 64  # lists that are searched
AT_ONCE = 16_384  # vectors added at a time
FILE, LAYOUT = "vectors.faiss", 2


class InvertedFile(NamedTuple):
    """An inverted file and the segments in it."""

    index: Any  # of FAISS
    parts: tuple[tuple[str, str, int], ...]  # name, sha256 and rows of each, in the order of their ids


class Inverted:
    """A search of some lists of an inverted file, and an exact search of the rows that are not in it."""

    note = APPROXIMATE

    def __init__(self, inverted: InvertedFile, segments: Sequence[Segment], probes: int = PROBES) -> None:
        """segments  those that the manifest names, in order"""
        faiss = _faiss()
        live = [segment.live for segment in segments]
        numbers = np.cumsum(np.concatenate(live)) - 1  # of each row among all live rows
        number = np.split(numbers, np.cumsum([len(x) for x in live])[:-1])
        covered = _covered(inverted, segments)
        self.index = inverted.index
        self.number = np.full(sum(part[2] for part in inverted.parts), -1)  # of each id among the live rows
        for i, first in covered.items():
            self.number[first : first + len(live[i])] = np.where(live[i], number[i], -1)
        rest = [i for i in range(len(segments)) if i not in covered]
        self.rest = Exact([segments[i].arrays[VECTORS].whole() for i in rest], [live[i] for i in rest])
        self.rest_number = np.concatenate([np.zeros(0, np.int64), *(number[i][live[i]] for i in rest)])
        self.alive = np.packbits(self.number >= 0, bitorder="little")  # FAISS holds only a pointer to it
        self.selector = faiss.IDSelectorBitmap(self.alive)
        self.how = faiss.SearchParametersIVF(sel=self.selector, nprobe=min(inverted.index.nlist, probes))

    def top(self, queries: np.ndarray, k: int) -> Candidates:
        vectors = np.ascontiguousarray(queries, np.float32)
        score, ids = self.index.search(vectors, k, params=self.how)
        row = np.where(ids >= 0, self.number[ids], -1)
        more = self.rest.top(queries, k)
        row = np.concatenate([row, self.rest_number[more.row]], 1)
        score = np.concatenate([np.where(ids >= 0, score, -np.inf), more.score], 1)
        order = np.lexsort((row, -score), axis=1)[:, :k]
        return Candidates(np.take_along_axis(row, order, 1), np.take_along_axis(score, order, 1))


def open_candidates(folder: Path, segments: Sequence[Segment]) -> CandidateSearch:
    """The candidate search for an index: exact for few images, else its inverted file if there is one."""
    number, advice = _images(segments), ""
    if number > EXACT and not available():
        advice = "`pip install 'grainline[search]'` and `grainline index refresh` make it faster"
    elif number > EXACT:
        inverted = read_inverted(folder)
        if inverted is not None:
            return Inverted(inverted, segments)
        advice = f"`grainline index refresh {folder}` makes it faster"
    vectors = [segment.arrays[VECTORS].whole() for segment in segments]
    exact = Exact(vectors, [segment.live for segment in segments])
    exact.note = f"all {number:,} images were compared one by one; {advice}" if advice else ""
    return exact


def update_inverted(folder: Path, segments: Sequence[Segment]) -> None:
    """Bring the inverted file of an index up to date, under its lock. OSError leaves the old one.

    Nothing is done without FAISS; for few images there is none.
    """
    ann = folder / ANN
    if ann.is_dir():
        clear_leftovers(ann)
    if _images(segments) <= EXACT:
        discard(ann)
    elif available():
        if _stale(read_inverted(folder), segments):
            _write(ann, _build(segments))
        for old in _folders(ann)[1:]:
            discard(old)


def _stale(inverted: InvertedFile | None, segments: Sequence[Segment]) -> bool:
    if inverted is None:
        return True
    covered = _images([segments[i] for i in _covered(inverted, segments)])
    return covered < (1 - MAX_STALE) * max(_images(segments), inverted.index.ntotal)


def read_inverted(folder: Path) -> InvertedFile | None:
    """The newest inverted file without damage; None if there is none."""
    for _ in range(2):  # a writer may have replaced it by a newer one since its name was read
        for path in _folders(folder / ANN):
            try:
                return _read(path)
            except Corrupt:
                continue
    return None


def available() -> bool:
    """Whether FAISS is installed."""
    return find_spec("faiss") is not None


def _read(path: Path) -> InvertedFile:
    """Raises Corrupt."""
    body = unseal(path)
    try:
        if body["layout"] != LAYOUT:
            raise Corrupt(f"layout {body['layout']}")
        parts = tuple((str(name), str(sha256), int(rows)) for name, sha256, rows in body["parts"])
        inverted = InvertedFile(_faiss().read_index(str(path / FILE)), parts)
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        raise Corrupt(f"{path.name} cannot be read ({error})") from None
    if inverted.index.ntotal > sum(part[2] for part in parts):
        raise Corrupt(f"{path.name} holds more than its segments")
    return inverted


def _write(ann: Path, inverted: InvertedFile) -> None:
    number = max((int(path.name) for path in _folders(ann)), default=0) + 1
    with new_part(ann / f"{number:08d}", {"layout": LAYOUT, "parts": inverted.parts}) as folder:
        try:
            _faiss().write_index(inverted.index, str(folder / FILE))
        except RuntimeError as error:  # FAISS has no other
            raise OSError(f"FAISS could not write its file ({error})") from None
        sync(folder / FILE)


def _build(segments: Sequence[Segment]) -> InvertedFile:
    """New lists with all live rows in them."""
    faiss = _faiss()
    number = _images(segments)
    lists = max(1, min(2 * int(number**0.5), number // 40))
    width = segments[0].arrays[VECTORS].shape[1]
    index = faiss.index_factory(width, f"IVF{lists},SQ8", faiss.METRIC_INNER_PRODUCT)
    index.cp.min_points_per_centroid = 1  # there are 40 of them; FAISS wants 39 even for one list
    step = max(1, number // (64 * lists))  # between the vectors that the lists are trained with
    sample = [segment.arrays[VECTORS][np.flatnonzero(segment.live)[::step]] for segment in segments]
    index.train(np.concatenate(sample))
    first = 0
    for segment in segments:
        place = np.flatnonzero(segment.live)
        for start in range(0, len(place), AT_ONCE):
            rows = place[start : start + AT_ONCE]
            index.add_with_ids(np.ascontiguousarray(segment.arrays[VECTORS][rows], np.float32), first + rows)
        first += len(segment.rows)
    return InvertedFile(index, tuple(map(_key, segments)))


def _covered(inverted: InvertedFile, segments: Sequence[Segment]) -> dict[int, int]:
    """Number of each segment that is in the file -> first id"""
    starts = accumulate((part[2] for part in inverted.parts), initial=0)
    first_ids = dict(zip(inverted.parts, starts, strict=False))
    return {i: first_ids[key] for i, key in enumerate(map(_key, segments)) if key in first_ids}


def _key(segment: Segment) -> tuple[str, str, int]:
    return segment.part.name, segment.part.sha256, len(segment.rows)


def _images(segments: Sequence[Segment]) -> int:
    return sum(int(segment.live.sum()) for segment in segments)


def _folders(ann: Path) -> list[Path]:
    """Newest first."""
    return sorted((path for path in ann.glob("*") if path.name.isdigit()), reverse=True)


def _faiss() -> Any:  # its stubs are incomplete
    import faiss

    return faiss
