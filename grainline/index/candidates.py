"""Candidates of a query: the interface of a candidate search, and the exact search.

The exact search scores every vector in float32, whose sums are off by at most D * 2^-23, and those that may
belong to the k best, given this bound, again in float64. So the result is that of float64.
"""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np
import torch

from grainline.index.store import take

APPROXIMATE = "candidates are approximate: an image may be missed"
GROUP = 64  # scores that are compared by their largest first
SCORES = 2**25  # scored at a time: bounds the memory
PAIRS = 4_096  # scored in float64 at a time
SUM = 2.0**-23  # for each of D products summed in float32, at length 1


class Candidates(NamedTuple):
    """The best candidates of every query, best first."""

    row: np.ndarray  # [M, k] int64 live rows, numbered from 0; -1 where there are fewer than k
    score: np.ndarray  # [M, k] float32 cosine


class CandidateSearch(Protocol):
    """Finds the candidates of queries: `Exact`, `inverted.Inverted`.

    The search scores all candidates again, so an approximate one can miss an image but scores are exact.
    """

    note: str  # a limit of the search in accuracy or speed, for users; "" if there is none

    def top(self, queries: np.ndarray, k: int) -> Candidates:
        """The k nearest rows of every query.

        queries  [M, D] float32, unit length
        """


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
        """The k nearest live rows of every query, by scores in float64; equal scores are sorted by row.

        queries  [M, D] float32, unit length
        """
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
