"""Candidates of a query: the interface of a candidate search, the exact one, and that of FAISS.

The exact search scores every vector in float32, whose sums are off by at most D * 2^-23, and those that may
belong to the k best, given this bound, again in float64. So the result is that of float64.

Among very many images FAISS searches an inverted file of 8-bit vectors, next to the segments:

    INDEX/ann/00000002/
      vectors.faiss   an IVF of 8-bit vectors; ids number the rows of its segments, in order
      state.json      "parts": name, sha256 and rows of each segment in it; size and sha256 of vectors.faiss

It is derived: a missing or corrupt file costs time, not results. A writer builds it when the index has more
than EXACT images, and again when more than MAX_STALE of them are not in it, or of its rows were removed. A
folder is never changed: a new one is sealed, then the old one is removed. A reader takes the newest one whose
sha256 are right, and of it only the segments that the manifest names with the same sha256. FAISS skips
removed rows; rows that are not in it are compared one by one.
"""

from collections.abc import Sequence
from contextlib import suppress
from importlib.util import find_spec
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch

from grainline.files import Corrupt, clear_leftovers, discard, sync, unseal
from grainline.index.store import ANN, VECTORS, Segment, new_part, take

APPROXIMATE = "candidates are approximate: an image may be missed"
GROUP = 64  # scores that are compared by their largest first
SCORES = 2**25  # scored at a time: bounds the memory
PAIRS = 4_096  # scored in float64 at a time
SUM = 2.0**-23  # for each of D products summed in float32, at length 1
EXACT = 200_000  # images up to which every vector is compared
MAX_STALE = 0.1  # share of the images that may be missing, and of its rows that may be gone
PROBES = 64  # lists that are searched
AT_ONCE = 16_384  # vectors added at a time
FILE, LAYOUT = "vectors.faiss", 2


class Candidates(NamedTuple):
    """The best candidates of every query, best first."""

    row: np.ndarray  # [M, k] int64 live rows, numbered from 0; -1 where there are fewer than k
    score: np.ndarray  # [M, k] float32 cosine


class CandidateSearch(Protocol):
    """Finds the candidates of queries: `Exact`, `Inverted`.

    The search scores all candidates again, so an approximate one can miss an image but scores are exact.
    """

    note: str  # a limit of the search in accuracy or speed, for users; "" if there is none

    def top(self, queries: np.ndarray, k: int) -> Candidates:
        """The k nearest rows of every query. queries: [M, D] float32, unit length"""


class Exact:
    """Exact search over memory-mapped blocks of vectors."""

    note = ""

    def __init__(self, blocks: Sequence[np.ndarray], live: Sequence[np.ndarray]) -> None:
        """blocks  [R, D] each, of unit length; live [R] bool each: rows that count"""
        self.blocks = list(blocks)
        self.starts = np.cumsum([0, *(len(block) for block in blocks)])
        alive = np.concatenate([np.zeros(0, bool), *live])
        self.number = np.cumsum(alive) - 1  # of each row among the live ones
        self.living = int(alive.sum())
        self.dead = torch.from_numpy(np.flatnonzero(~alive))

    def top(self, queries: np.ndarray, k: int) -> Candidates:
        """The k nearest live rows of every query, by scores in float64; equal scores are sorted by row."""
        k = min(k, self.living)
        out = Candidates(np.empty((len(queries), k), np.int64), np.empty((len(queries), k), np.float32))
        step = max(1, SCORES // max(1, len(self.number)))
        for start in range(0, len(queries) if k else 0, step):
            some = np.array(queries[start : start + step], np.float32)
            query, row = self._possible(some, k)
            score = self._exact(some, query, row)
            order = np.lexsort((row, -score, query))
            query = query[order]
            order = order[np.arange(len(order)) - np.searchsorted(query, query) < k]
            out.row[start : start + step] = self.number[row[order]].reshape(-1, k)
            out.score[start : start + step] = score[order].reshape(-1, k)
        return out

    def _possible(self, queries: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
        """Queries and rows of all pairs that may be among the k best of the query: [P] each"""
        score = torch.full((len(queries), -(-len(self.number) // GROUP) * GROUP), -torch.inf)
        for start, block in zip(self.starts, self.blocks, strict=False):
            score[:, start : start + len(block)] = torch.from_numpy(queries @ block.T)
        score[:, self.dead] = -torch.inf
        largest = score.unflatten(1, (-1, GROUP)).amax(2)
        kth = (largest if largest.shape[1] >= k else score).topk(k, dim=1).values[:, -1]  # or below it
        error = torch.from_numpy(queries).norm(dim=1) * (queries.shape[1] + 1) * SUM
        limit = (kth - 2 * error).clamp(min=torch.finfo(torch.float32).min)
        query, row = torch.where(score >= limit[:, None])
        return query.numpy(), row.numpy()

    def _exact(self, queries: np.ndarray, query: np.ndarray, row: np.ndarray) -> np.ndarray:
        """Scores in float64: [P]"""
        out = np.empty(len(query))
        block = np.searchsorted(self.starts, row, side="right") - 1
        where = np.stack([block, row - self.starts[block]], 1)
        for start in range(0, len(query), PAIRS):
            some = slice(start, start + PAIRS)
            vectors = take(self.blocks, where[some])
            out[some] = (queries[query[some]].astype(np.float64) * vectors).sum(1)
        return out


class InvertedFile(NamedTuple):
    """An inverted file and the segments in it."""

    index: Any  # of FAISS
    parts: tuple[tuple[str, str, int], ...]  # name, sha256 and rows of each, in the order of their ids

    def covered(self, segments: Sequence[Segment]) -> dict[int, int]:
        """The first id of each segment that is in the file, by the number of the segment."""
        starts = accumulate((rows for _, _, rows in self.parts), initial=0)
        first_ids = dict(zip(self.parts, starts, strict=False))
        return {i: first_ids[key] for i, key in enumerate(map(_key, segments)) if key in first_ids}


class Inverted:
    """A search of some lists of an inverted file, and an exact search of the rows that are not in it."""

    note = APPROXIMATE

    def __init__(self, inverted: InvertedFile, segments: Sequence[Segment], probes: int = PROBES) -> None:
        """segments  those that the manifest names, in order"""
        faiss = _faiss()
        live = [segment.live for segment in segments]
        numbers = np.cumsum(np.concatenate(live)) - 1  # of each row among all live rows
        number = np.split(numbers, np.cumsum([len(x) for x in live])[:-1])
        covered = inverted.covered(segments)
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
    number = _images(segments)
    if number > EXACT and available() and (inverted := read_inverted(folder)) is not None:
        return Inverted(inverted, segments)
    exact = Exact([one.arrays[VECTORS].whole() for one in segments], [one.live for one in segments])
    if number > EXACT:
        faster = f"(pip install 'grainline[search]') `grainline index refresh {folder}` makes it faster"
        exact.note = f"all {number:,} images were compared one by one; with FAISS {faster}"
    return exact


def update_inverted(folder: Path, segments: Sequence[Segment]) -> None:
    """Bring the inverted file of an index up to date, under its lock. OSError leaves the old one.

    Nothing is done without FAISS; for few images there is none.
    """
    ann, number = folder / ANN, _images(segments)
    if ann.is_dir():
        clear_leftovers(ann)
    if number <= EXACT:
        discard(ann)
    elif available():
        old = read_inverted(folder)
        covered = 0 if old is None else _images([segments[i] for i in old.covered(segments)])
        if old is None or covered < (1 - MAX_STALE) * max(number, old.index.ntotal):
            _write(ann, _build(segments))
        for path in _folders(ann)[1:]:
            discard(path)


def read_inverted(folder: Path) -> InvertedFile | None:
    """The newest inverted file without damage; None if there is none."""
    for _ in range(2):  # a writer may have replaced it by a newer one since its name was read
        for path in _folders(folder / ANN):
            with suppress(Corrupt):
                return _read(path)
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
    if inverted.index.ntotal > sum(rows for _, _, rows in parts):
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
    faiss, number = _faiss(), _images(segments)
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
