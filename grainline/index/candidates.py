"""Candidates of a query: the interface of a candidate search, and the exact search.

The exact search compares every vector with every query, panel by panel:
  1. score a panel in float32, whose sums are off by at most D * 2^-23;
  2. select the rows that may belong to the k best, given this bound and the k best so far;
  3. score these alone in float64, and merge them.
So the result is that of float64.
"""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from grainline.index.store import take

APPROXIMATE = "candidates are approximate: an image may be missed"
PANEL = 16_384  # vectors scored at a time
GROUP = 64  # scores that are compared by their largest first
QUERIES = 128  # scored at a time: bounds the memory of the scores
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


class Panel(NamedTuple):
    """Vectors that are scored together: all or some rows of one segment or several."""

    first: int  # its first row among all rows, removed ones included
    rows: int
    blocks: Sequence[np.ndarray]  # [R, D] each
    dead: Tensor  # [K] int64 rows of the panel that do not count


class TopRows(NamedTuple):
    """The best rows of some queries, sorted by query and then by descending score."""

    query: np.ndarray  # [P]
    row: np.ndarray  # [P] among all rows
    score: np.ndarray  # [P] float64


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
        self.panels = _panels(blocks, alive)

    def top(self, queries: np.ndarray, k: int) -> Candidates:
        """The k nearest live rows of every query, by scores in float64; equal scores are sorted by row.

        queries  [M, D] float32, unit length
        """
        k = min(k, self.living)
        candidates = Candidates(
            np.full((len(queries), k), -1), np.full((len(queries), k), -np.inf, np.float32)
        )
        for start in range(0, len(queries) if k else 0, QUERIES):
            best = self._best(np.array(queries[start : start + QUERIES], np.float32), k)
            place = np.arange(len(best.query)) - np.searchsorted(best.query, best.query)
            candidates.row[start + best.query, place] = self.number[best.row]
            candidates.score[start + best.query, place] = best.score
        return candidates

    def _best(self, queries: np.ndarray, k: int) -> TopRows:
        best = TopRows(np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0))
        floor = torch.full((len(queries),), -torch.inf, dtype=torch.float64)  # of the k-th best score: [M]
        widest = max((panel.rows for panel in self.panels), default=0)
        score = torch.empty(len(queries), -(-widest // GROUP) * GROUP)
        error = torch.from_numpy(queries).double().norm(dim=1) * queries.shape[1] * SUM * 1.01
        for panel in self.panels:
            self._score(panel, queries, score)
            floor = torch.maximum(floor, _kth(score, k, panel.rows) - error)
            query, row = _at_least(score, floor - error)
            if not len(query):
                continue
            exact = self._exact(queries, query, row + panel.first)
            above = exact >= floor.numpy()[query]
            best = _merge(best, TopRows(query[above], (row + panel.first)[above], exact[above]), k)
            last = np.flatnonzero(np.bincount(best.query, minlength=len(queries)) >= k)
            ends = np.searchsorted(best.query, last, side="right") - 1
            floor[last] = torch.from_numpy(best.score[ends])
        return best

    def _score(self, panel: Panel, queries: np.ndarray, out: Tensor) -> None:
        """Write the scores of a panel into out [M, >= R]; no row that is beside it or dead has any."""
        at = 0
        for block in panel.blocks:
            out[:, at : at + len(block)] = torch.from_numpy(queries @ block.T)
            at += len(block)
        out[:, at:] = -torch.inf
        out[:, panel.dead] = -torch.inf

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


def _panels(blocks: Sequence[np.ndarray], alive: np.ndarray) -> list[Panel]:
    """Split large blocks and join small ones."""
    groups: list[list[np.ndarray]] = []
    room = 0
    for part in (block[i : i + PANEL] for block in blocks for i in range(0, len(block), PANEL)):
        if len(part) > room:
            groups.append([])
            room = PANEL
        groups[-1].append(part)
        room -= len(part)
    panels, first = list[Panel](), 0
    for group in groups:
        rows = sum(map(len, group))
        dead = torch.from_numpy(np.flatnonzero(~alive[first : first + rows]))
        panels.append(Panel(first, rows, group, dead))
        first += rows
    return panels


def _kth(score: Tensor, k: int, rows: int) -> Tensor:
    """A lower bound of the k-th best score of each query: [M] float64; -inf for fewer than k rows.

    score  [M, R] of some rows, filled up with -inf
    """
    best = score.unflatten(1, (-1, GROUP)).amax(2)
    best = best if best.shape[1] >= k else score
    if k > rows:
        return torch.full((len(score),), -torch.inf, dtype=torch.float64)
    return best.topk(k, dim=1).values[:, -1].double()


def _at_least(score: Tensor, limit: Tensor) -> tuple[np.ndarray, np.ndarray]:
    """Queries and rows of the finite scores [M, R] that reach the limit [M], in order."""
    grouped = score.unflatten(1, (-1, GROUP))
    limit = limit.nan_to_num(nan=-torch.inf).clamp(min=torch.finfo(torch.float32).min)
    query, group = torch.where(grouped.amax(2) >= limit[:, None])
    pair, place = torch.where(grouped[query, group] >= limit[query][:, None])
    return query[pair].numpy(), (group[pair] * GROUP + place).numpy()


def _merge(best: TopRows, more: TopRows, k: int) -> TopRows:
    """The k best of both for each query.

    >>> best = TopRows(np.array([0, 1]), np.array([4, 4]), np.array([0.5, 0.5]))
    >>> more = TopRows(np.array([0, 0, 1]), np.array([7, 9, 8]), np.array([0.5, 0.9, 0.1]))
    >>> [x.tolist() for x in _merge(best, more, k=2)]
    [[0, 0, 1, 1], [9, 4, 4, 8], [0.9, 0.5, 0.5, 0.1]]
    """
    both = TopRows(*(np.concatenate(pair) for pair in zip(best, more, strict=True)))
    order = np.lexsort((both.row, -both.score, both.query))
    query = both.query[order]
    order = order[np.arange(len(order)) - np.searchsorted(query, query) < k]
    return TopRows(*(x[order] for x in both))
