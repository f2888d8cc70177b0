"""Candidates by vector, behind one interface: exact products up to EXACT pictures, FAISS beyond.

Whatever finds the candidates, the search scores them again, so an approximate answer can miss a picture but
never carries an approximate score.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from grainline.errors import UserError

EXACT = 200_000
BLOCK = 16_384  # vectors multiplied at a time
PROBES = 32  # lists that FAISS looks into


class Near(NamedTuple):
    """The best candidates of every query, best first."""

    row: np.ndarray  # [M, k] int64 live rows, numbered from 0; -1 where there are fewer than k
    score: np.ndarray  # [M, k] float32 cosine


class Nearest(Protocol):
    """What finds candidates."""

    exact: bool

    def top(self, queries: np.ndarray, k: int) -> Near:
        """The k nearest rows of every query.

        queries  [M, D] float32, unit length
        """


class Exact:
    """Every vector against every query, from memory-mapped blocks."""

    exact = True

    def __init__(self, blocks: Sequence[np.ndarray], live: Sequence[np.ndarray]) -> None:
        """blocks  [R, D] each, live [R] bool each: rows that count"""
        self.blocks, self.live = blocks, live

    def top(self, queries: np.ndarray, k: int) -> Near:
        best = Near(np.empty((len(queries), 0), np.int64), np.empty((len(queries), 0), np.float32))
        first = 0
        for vectors, live in zip(self.blocks, self.live, strict=True):
            for start in range(0, len(vectors), BLOCK):
                alive = np.flatnonzero(live[start : start + BLOCK])
                if len(alive):
                    score = queries @ vectors[start : start + BLOCK].T  # [M, R]
                    best = merged(best, score[:, alive], first, k)
                    first += len(alive)
        return best


class Faiss:
    """An inverted file of 8-bit vectors, searched in part. Needs the extra `search`."""

    exact = False

    def __init__(self, blocks: Sequence[np.ndarray], live: Sequence[np.ndarray]) -> None:
        """blocks, live  as for Exact"""
        faiss = _faiss()
        number = sum(int(x.sum()) for x in live)
        lists = max(1, min(4 * int(number**0.5), number // 40))
        self.index = faiss.index_factory(blocks[0].shape[1], f"IVF{lists},SQ8", faiss.METRIC_INNER_PRODUCT)
        step = max(1, number // (64 * lists))  # vectors that the lists are found from
        sample = [np.array(block[alive][::step]) for block, alive in zip(blocks, live, strict=True)]
        self.index.train(np.concatenate(sample).astype(np.float32))
        self.index.nprobe = min(lists, PROBES)
        for block, alive in zip(blocks, live, strict=True):
            for start in range(0, len(block), BLOCK):
                mine = block[start : start + BLOCK][alive[start : start + BLOCK]]
                if len(mine):
                    self.index.add(np.ascontiguousarray(mine, np.float32))

    def top(self, queries: np.ndarray, k: int) -> Near:
        score, row = self.index.search(np.ascontiguousarray(queries, np.float32), k)
        return Near(row.astype(np.int64), score)


def nearest(blocks: Sequence[np.ndarray], live: Sequence[np.ndarray], exact: int = EXACT) -> Nearest:
    """What suits the number of rows."""
    number = sum(int(x.sum()) for x in live)
    return Exact(blocks, live) if number <= exact else Faiss(blocks, live)


def merged(best: Near, score: np.ndarray, first: int, k: int) -> Near:
    """The k best of what was there and of a new block; of equals the one that stands first.

    score  [M, R] of the rows first .. first + R - 1

    >>> near = Near(np.array([[4]]), np.array([[0.5]]))
    >>> merged(near, np.array([[0.1, 0.9, 0.5]]), first=7, k=2).row.tolist()
    [[8, 4]]
    """
    k_here = min(k, score.shape[1])
    part = np.argpartition(-score, k_here - 1, axis=1)[:, :k_here] if k_here < score.shape[1] else None
    if part is None:
        part = np.broadcast_to(np.arange(score.shape[1]), score.shape)
    row = np.concatenate([best.row, part + first], 1)
    value = np.concatenate([best.score, np.take_along_axis(score, part, 1)], 1)
    order = np.lexsort((row, -value), axis=1)[:, :k]
    return Near(np.take_along_axis(row, order, 1), np.take_along_axis(value, order, 1))


def _faiss() -> Any:
    try:
        import faiss
    except ImportError:
        raise UserError(
            f"more than {EXACT:,} pictures are searched with FAISS, which is not installed: "
            "pip install 'grainline[search]'"
        ) from None
    return faiss
