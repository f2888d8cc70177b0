"""Candidates of a query: the interface of a candidate search, and the exact search.

The exact search compares every vector with every query, panel by panel.

In four steps for each panel of vectors:
  1. score it in bfloat16, several times faster than in float32 where the processor multiplies it natively;
     elsewhere, and for a single query, in float32;
  2. bound how far a score can be from the true one: the rounding of these vectors and of the query is known,
     that of the sum is at most D * 2^-23;
  3. keep the rows that may belong to the k best, given the bound and the k best so far;
  4. score these alone in float64, from the stored vectors, and merge them.

So the result is that of float64 whatever step 1 multiplies in. The bfloat16 copy is made by the first search
of several queries and stays in memory: two bytes a number.
"""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

# One interface for exact products (candidates.py), FAISS (inverted.py) and Qdrant. The search scores all
# candidates again: an approximate candidate search can miss an image, but scores are always exact.


APPROXIMATE = "candidates are approximate: an image may be missed"


class Candidates(NamedTuple):
    """The best candidates of every query, best first."""

    row: np.ndarray  # [M, k] int64 live rows, numbered from 0; -1 where there are fewer than k
    score: np.ndarray  # [M, k] float32 cosine


class CandidateSearch(Protocol):
    """Finds the candidates of queries."""

    note: str  # a limit of the search in accuracy or speed, for users; "" if there is none

    def top(self, queries: np.ndarray, k: int) -> Candidates:
        """The k nearest rows of every query.

        queries  [M, D] float32, unit length
        """


PANEL = 16_384  # vectors scored at a time
GROUP = 64  # scores of which first only the largest is looked at
QUERIES = 128  # scored at a time: bounds the memory of the scores
PAIRS = 4_096  # scored in float64 at a time
ROUNDING = 2.0**-8  # twice what rounding to bfloat16 changes, relative to the number
SUM = 2.0**-23  # for each of D products summed in float32, at length 1


class LowPrecision(NamedTuple):
    """A panel in bfloat16."""

    vectors: Tensor  # [R, D] bfloat16
    error: float  # length of the longest difference to a row of the panel
    longest: float  # length of the longest row


class Panel(NamedTuple):
    """Vectors that are scored together: all or some rows of one segment or several."""

    first: int  # row of the whole that its first row is, removed ones included
    blocks: tuple[np.ndarray, ...]  # [R, D] each
    dead: Tensor  # [K] int64 rows of the panel that do not count

    @property
    def rows(self) -> int:
        return sum(len(block) for block in self.blocks)


class TopRows(NamedTuple):
    """The best rows of some queries, sorted by query and then by descending score."""

    query: np.ndarray  # [P]
    row: np.ndarray  # [P] of the whole
    score: np.ndarray  # [P] float64


class Exact:
    """Exact search over memory-mapped blocks of vectors."""

    note = ""

    def __init__(
        self, blocks: Sequence[np.ndarray], live: Sequence[np.ndarray], low: bool | None = None
    ) -> None:
        """blocks  [R, D] each, of unit length; live [R] bool each: rows that count

        low  scan in bfloat16; None: where the processor multiplies it natively
        """
        self.blocks = list(blocks)
        self.starts = np.cumsum([0, *(len(block) for block in blocks)])
        alive = np.concatenate([np.zeros(0, bool), *live])
        self.number = np.cumsum(alive) - 1  # of each row among the live ones
        self.living = int(alive.sum())
        self.panels = [_panel(part, start, alive) for start, part in _panels(blocks)]
        self.low: list[LowPrecision | None] | None = None
        if native_bf16() if low is None else low:
            self.low = [None] * len(self.panels)

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
        floor = torch.full(
            (len(queries),), -torch.inf, dtype=torch.float64
        )  # [M] the k-th best is at least that
        most = max((panel.rows for panel in self.panels), default=0)
        score = torch.empty(len(queries), -(-most // GROUP) * GROUP)
        for number, panel in enumerate(self.panels):
            error, rounding = self._approximate(number, queries, score)
            score[:, panel.rows :] = -torch.inf
            score[:, panel.dead] = -torch.inf
            floor = torch.maximum(floor, _kth(score, k, panel.rows) - error)
            limit = floor - error
            query, row = _at_least(score, limit - rounding * limit.abs())
            if not len(query):
                continue
            exact = self._exact(queries, query, row + panel.first)
            above = exact >= floor.numpy()[query]
            best = _merge(best, TopRows(query[above], (row + panel.first)[above], exact[above]), k)
            last = np.flatnonzero(np.bincount(best.query, minlength=len(queries)) >= k)
            ends = np.searchsorted(best.query, last, side="right") - 1
            floor[last] = torch.from_numpy(best.score[ends])
        return best

    def _approximate(self, number: int, queries: np.ndarray, out: Tensor) -> tuple[Tensor, float]:
        """Write the scores of a panel into out [M, >= R]. Returns bounds of their error.

        The bounds: an absolute error for each query [M], and a relative error.
        """
        panel = self.panels[number]
        length = torch.from_numpy(queries).double().norm(dim=1)
        if self.low is None or len(queries) == 1:  # a product with one vector gains nothing from bfloat16
            at = 0
            for block in panel.blocks:
                out[:, at : at + len(block)] = torch.from_numpy(queries @ block.T)
                at += len(block)
            return length * queries.shape[1] * SUM * 1.01, 0.0
        low = self.low[number] or _low_precision(panel)
        self.low[number] = low
        exact = torch.from_numpy(queries)
        rounded = exact.bfloat16()
        out[:, : panel.rows] = rounded @ low.vectors.T
        change = (rounded.double() - exact.double()).norm(dim=1)
        lengthened = length + change
        error = lengthened * low.error + change * low.longest
        return error + lengthened * (low.longest + low.error) * queries.shape[1] * SUM, ROUNDING

    def _exact(self, queries: np.ndarray, query: np.ndarray, row: np.ndarray) -> np.ndarray:
        """Scores in float64: [P]"""
        out = np.empty(len(query))
        for start in range(0, len(query), PAIRS):
            block = slice(start, start + PAIRS)
            vectors = self._take(row[block])
            out[block] = (queries[query[block]].astype(np.float64) * vectors).sum(1)
        return out

    def _take(self, row: np.ndarray) -> np.ndarray:
        """Vectors of some rows of the whole: [P, D]"""
        out = np.empty((len(row), self.blocks[0].shape[1]), np.float32)
        block = np.searchsorted(self.starts, row, side="right") - 1
        for number in np.unique(block):
            in_block = block == number
            out[in_block] = self.blocks[number][row[in_block] - self.starts[number]]
        return out


def native_bf16() -> bool:
    """Whether this processor multiplies bfloat16 in hardware."""
    # Named with underscores, but there from torch 2.6 on; the public list of capabilities came later.
    return bool(torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported())


def _panels(blocks: Sequence[np.ndarray]) -> list[tuple[int, tuple[np.ndarray, ...]]]:
    """Split large blocks and join small ones: the first row of each panel, and its blocks."""
    out: list[tuple[int, tuple[np.ndarray, ...]]] = []
    cut = [block[i : i + PANEL] for block in blocks for i in range(0, len(block), PANEL)]
    first, at, current = 0, 0, list[np.ndarray]()
    for block in cut:
        if current and at - first + len(block) > PANEL:
            out.append((first, tuple(current)))
            first, current = at, []
        current.append(block)
        at += len(block)
    return [*out, (first, tuple(current))] if current else out


def _panel(blocks: tuple[np.ndarray, ...], first: int, alive: np.ndarray) -> Panel:
    rows = sum(len(block) for block in blocks)
    return Panel(first, blocks, torch.from_numpy(np.flatnonzero(~alive[first : first + rows])))


def _low_precision(panel: Panel) -> LowPrecision:
    exact = torch.from_numpy(np.concatenate(panel.blocks))
    low = exact.bfloat16()
    error = (exact - low.float()).norm(dim=1).max()
    return LowPrecision(low, 1.001 * float(error), 1.001 * float(exact.norm(dim=1).max()))


def _kth(score: Tensor, k: int, rows: int) -> Tensor:
    """A lower bound of the k-th best score of each query: [M] float64; -inf for fewer than k rows.

    score  [M, R] of some rows, filled up with -inf
    """
    best = score.unflatten(1, (-1, GROUP)).amax(2)
    best = best if best.shape[1] >= k else score
    if k > rows:
        return torch.full((len(score),), -torch.inf, dtype=torch.float64)
    least = best.topk(k, dim=1).values[:, -1].double()
    return least - ROUNDING * least.abs().nan_to_num(posinf=0.0)


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
