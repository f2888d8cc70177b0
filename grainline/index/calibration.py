"""How sure an answer is, and whether an image shows a sentence: p, by what null texts score in this index.

p of a hit, in three steps:
  1. the scores of a query are standardised: minus their mean, over their std, both over a background of at
     most 256 images of the index, the same ones for every query;
  2. the standardised best score of each null text is what a query without a match reaches;
  3. p is the share of null texts that reach the score of the hit: (1 + reached) / (1 + texts).
A query is judged by null texts of about as many sentences, since fewer sentences mean wilder scores.

An image as the query is judged by its score as it stands: 1 means the same in every index, and a copy, which
no mean and std may turn into something less, reaches it. The null values are what images of the index score
with their nearest neighbours, so p says how many of them have one that is as near.

p of a sentence in a hit has to allow for the choice: the hit is shown because its sentences score high, so
among hits a high score of a sentence says less than among all images. In five steps:
  1. the score of a sentence is taken relative to its level, the mean of its TOP best scores over the
     background: what an image gives it that shows it, or nearly so;
  2. tail(x) is the share of pairs of a null sentence and a background image that reach x;
  3. a query without a match usually has its best hit at the standardised score c, the median over null
     texts; had this sentence scored less than need = score - sentences * (score of the hit - c), the hit
     would not even stand there;
  4. help = tail(score) / tail(need): of the null sentences that would have brought the image there the share
     that scores as high. It is a test given the choice (selective inference: Fithian, Sun & Taylor, arXiv
     1410.2597, for a score that is the mean of its sentences; for others it is an approximation);
  5. p is the share of null texts whose own sentence has a help as small, in the best hit of their own search.
     This holds the level in best hits whatever step 4 approximates, and more than holds it in those behind.
     It uses NEAR null texts or more, those whose number of sentences is nearest to that of the query:
     the fewer sentences, the more each of them chooses.
Where the other sentences alone would have brought the image there, as they do in the right image, need is
low and nothing is lost; where the sentence itself did, p is large. The verdict on the query plays no part.

Texts with images of their own say what is true as well. Their sentences in their images, where these come
into the first RANKS hits, give the power, the share of true sentences with p <= level. They also give the
scores that so few true sentences have that an image is said not to show them.

The level holds as well as the null texts are many: with n of them the true share of false alarms at the level
0.05 has a std of sqrt(0.05 * 0.95 / n) between sets of null texts, 1.3 points for 300 and 0.7 for 1,000.
"""

from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np

BACKGROUND = 256
SAME = 1e-5  # from 1: closer vectors are of one image; encoding it again moves them by 2e-7
FEWEST = 16  # images that a mean and a std need
TOP = 0.2  # share of the background that says what a sentence scores where it is shown
RANKS = 10  # hits that users look at
AT_ONCE = 512  # images whose null scores are looked at together
NEAR = 300  # null texts that judge a query and its sentences, at least
ENOUGH = 20  # true sentences that a power is measured on, at least
WEAK = 0.2  # of true sentences: a model that tells fewer judges none


class Standard(NamedTuple):
    """Mean and std of the scores of some queries over the background."""

    mean: np.ndarray  # [Q]
    spread: np.ndarray  # [Q]

    def apply(self, score: np.ndarray) -> np.ndarray:
        """score  [K, Q]"""
        standard: np.ndarray = (score - self.mean) / self.spread
        return standard


class Best(NamedTuple):
    """The best hit of each null text."""

    score: np.ndarray  # [Q] float64
    row: np.ndarray  # [Q]


class Known(NamedTuple):
    """What is known of null texts, each with one sentence of its own that is tested."""

    counts: np.ndarray  # [M] sentences
    best: np.ndarray  # [M] standardised scores of their best hits
    standard: Standard  # [M] of their scores
    tested: np.ndarray  # [M] scores of the tested sentences in these hits, minus their levels
    pool: np.ndarray  # sorted: scores of null sentences over the background, minus their levels


class Own(NamedTuple):
    """What null texts score with their own images, as if these stood in the index."""

    which: np.ndarray  # [O] numbers of the texts
    rank: np.ndarray  # [O] from 0, among the images of the index
    score: np.ndarray  # [O]
    tested: np.ndarray  # [O] scores of the tested sentences, minus their levels


class Calibration:
    """Judges sentences of queries in their hits."""

    def __init__(self, known: Known, own: Own) -> None:
        self.known, self.own = known, own
        self._null: dict[int, np.ndarray] = {}
        self._best: dict[int, np.ndarray] = {}

    def p(self, count: int, score: np.ndarray, of: Standard, tested: np.ndarray) -> np.ndarray:
        """p of the sentences of one query in its hits: [K, S]

        count   sentences of the query
        score   [K] of the hits
        of      mean and std of the query's scores, [1] each
        tested  [K, S] scores of the sentences in the hits, minus their levels
        """
        margin = score - (of.mean + of.spread * self.usual(count))
        return share_below(self.null(count), self.help(tested, margin[:, None], count))

    def help(self, tested: np.ndarray, margin: np.ndarray, count: int | np.ndarray) -> np.ndarray:
        """tail(score) / tail(need), at most 1. margin: how far a hit is above the usual best one"""
        pool = self.known.pool
        ratio: np.ndarray = p_value(pool, tested) / p_value(pool, tested - count * margin)
        return np.minimum(1.0, ratio)

    def near(self, count: int) -> np.ndarray:
        """The null texts of two sentences and more whose number of sentences is nearest, by ratio.

        NEAR of them, and all others that are as near as the last of these.
        """
        apart = np.maximum(self.known.counts / count, count / self.known.counts)
        apart[self.known.counts < 2] = np.inf
        order = np.argsort(apart, kind="stable")[: int((self.known.counts > 1).sum())]
        last = np.searchsorted(apart[order], apart[order][:NEAR][-1:], side="right")
        return order[: int(last[0])] if len(order) else order

    def best(self, count: int) -> np.ndarray:
        """The standardised scores of the best hits of the nearest null texts, sorted."""
        if count not in self._best:
            self._best[count] = np.sort(self.known.best[self.near(count)])
        return self._best[count]

    def usual(self, count: int) -> float:
        """The standardised score of the best hit that a query of so many sentences has without a match."""
        return float(np.median(self.best(count)))

    def null(self, count: int) -> np.ndarray:
        """What help the tested sentences of the nearest null texts are, sorted."""
        if count not in self._null:
            near, known = self.near(count), self.known
            counts = known.counts[near]
            numbers, which = np.unique(counts, return_inverse=True)
            usual = np.array([self.usual(int(number)) for number in numbers])[which]
            margin = (known.best[near] - usual) * known.standard.spread[near]
            self._null[count] = np.sort(self.help(known.tested[near], margin, counts))
        return self._null[count]

    @cached_property
    def _right(self) -> np.ndarray:
        """p of the tested sentences of texts in their own images, of those that come far enough up: [O']"""
        found = []
        for which, rank, score, tested in zip(*self.own, strict=True):
            count = int(self.known.counts[which])
            if rank < RANKS and count > 1:
                of = Standard(*(values[which : which + 1] for values in self.known.standard))
                found.append(self.p(count, np.array([score]), of, np.array([[tested]]))[0, 0])
        return np.array(found)

    def power(self, level: float) -> float | None:
        """Of true sentences of right images among the first RANKS hits, the share with p <= level.

        None where no text has an image; 0 where right images hardly ever come up there.
        """
        if len(self.own.which) < ENOUGH:
            return None
        right = self._right
        return float((right <= level).mean()) if len(right) >= ENOUGH else 0.0

    def lacking(self, tested: np.ndarray) -> np.ndarray:
        """Share of true sentences in their own images that score so low: p that a true one would."""
        return share_below(np.sort(self.own.tested), tested)


def background(hashes: Sequence[str]) -> np.ndarray:
    """Which rows are the background: [B], those whose hashes are smallest, whatever order they stand in."""
    return np.argsort(np.array(hashes), kind="stable")[:BACKGROUND]


def standard(score: np.ndarray, seen: np.ndarray | None = None) -> Standard:
    """Mean and std of each query; of too few images 0 and 1, which leaves scores as they are.

    score  [B, Q] of the background
    seen   [B, Q] bool, scores that count; all if None
    """
    if len(score) < FEWEST:
        return Standard(np.zeros(score.shape[1]), np.ones(score.shape[1]))
    hidden = np.zeros(score.shape, bool) if seen is None else ~seen
    kept = np.ma.masked_array(score.astype(np.float64), hidden)
    return Standard(kept.mean(0).filled(0.0), np.maximum(kept.std(0).filled(1.0), 1e-6))


def shown(score: np.ndarray, seen: np.ndarray | None = None) -> np.ndarray:
    """The level of each sentence, what it scores where it is shown, or nearly so: [P]

    The mean of the TOP best scores, of two images at least; 0 for too few images, which leaves scores as
    they are.

    score  [B, P] of the background
    seen   [B, P] bool, scores that count; all if None

    >>> shown(np.arange(20.0)[:, None]).tolist()
    [17.5]
    """
    if len(score) < FEWEST:
        return np.zeros(score.shape[1])
    counted = score if seen is None else np.where(seen, score, -np.inf)
    number = max(2, round(TOP * len(score)))
    best: np.ndarray = np.partition(counted.astype(np.float64), -number, axis=0)[-number:].mean(0)
    return best


def best_hits(blocks: Iterable[tuple[np.ndarray, np.ndarray]]) -> Best:
    """The best hit of each null text; of equal ones the first.

    blocks  scores [K, Q] of some images, and [K, Q] bool, whose own image each is; rows count on
    """
    best, row, start = np.empty(0), np.empty(0, dtype=np.int64), 0
    for score, own in blocks:
        if not start:
            best, row = np.full(score.shape[1], -np.inf), np.full(score.shape[1], -1)
        for i in range(0, len(score), AT_ONCE):
            # numpy is slow at float16, and slower at argmax than at max
            seen = score[i : i + AT_ONCE].astype(np.promote_types(score.dtype, np.float32))
            seen[own[i : i + AT_ONCE]] = -np.inf
            top = seen.max(0)
            better = np.flatnonzero(top > best)
            best[better], row[better] = top[better], start + i + seen[:, better].argmax(0)
        start += len(score)
    return Best(best, row)


def p_value(null: np.ndarray, value: np.ndarray) -> np.ndarray:
    """Share of the sorted null values that reach each value: (1 + reached) / (1 + number).

    >>> p_value(np.array([1.0, 2.0, 3.0]), np.array([0.0, 2.0, 9.0])).tolist()
    [1.0, 0.75, 0.25]
    """
    reached = len(null) - np.searchsorted(null, value, side="left")
    share: np.ndarray = (1 + reached) / (1 + len(null))
    return share


def share_below(null: np.ndarray, value: np.ndarray) -> np.ndarray:
    """Share of the sorted null values that are at most each value: (1 + these) / (1 + number).

    >>> share_below(np.array([1.0, 2.0, 3.0]), np.array([0.0, 2.0, 9.0])).tolist()
    [0.25, 0.75, 1.0]
    """
    share: np.ndarray = (1 + np.searchsorted(null, value, side="right")) / (1 + len(null))
    return share


def owned(hashes: Sequence[str], owners: Sequence[str]) -> np.ndarray:
    """Which image a text describes: [N, Q] bool."""
    columns: dict[str, list[int]] = {}
    for column, owner in enumerate(owners):
        if owner:
            columns.setdefault(owner, []).append(column)
    out = np.zeros((len(hashes), len(owners)), dtype=bool)
    for row, sha256 in enumerate(hashes):
        if sha256 in columns:
            out[row, columns[sha256]] = True
    return out
