"""Groups of tokens by rules that read no word: what the tIoU of a model has to be judged by."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy.optimize import linear_sum_assignment

from grainline.evaluate.tiou import ious

SEED = 0  # of all that is drawn: results that are compared or pooled must draw the same
FINE = 24  # relative positions that a cut can take, at least
ROUNDS = 20  # of moving every cut once; a few are enough


class Labelled(NamedTuple):
    """The groups of one caption."""

    labels: np.ndarray  # [L] the group of each token
    groups: int  # how many there are, those without a token included


def one_group(tokens: int) -> Labelled:
    """All tokens together."""
    return Labelled(np.zeros(tokens, np.int64), 1)


def singletons(tokens: int) -> Labelled:
    """Each token alone."""
    return Labelled(np.arange(tokens), tokens)


def chunks(tokens: int, groups: int) -> Labelled:
    """Runs of tokens that are as equally long as can be.

    >>> chunks(6, 4).labels.tolist(), chunks(2, 4).labels.tolist()
    ([0, 0, 1, 2, 2, 3], [0, 2])
    """
    return Labelled(np.arange(tokens) * groups // tokens, groups)


def at_random(tokens: int, groups: int, number: int) -> Labelled:
    """Every token in any group, with the same chance. number: of the caption"""
    return Labelled(np.random.default_rng((SEED, number)).integers(0, groups, tokens), groups)


class Cuts(NamedTuple):
    """Where captions are cut, whatever they say: at the relative positions `at[i] / of`."""

    at: tuple[int, ...]
    of: int

    def labels(self, tokens: int) -> Labelled:
        """The groups of a caption: a token lies behind a cut if its relative position is not below it."""
        place = np.arange(tokens) * self.of
        found = np.searchsorted(np.array(self.at, np.int64) * tokens, place, "right")
        return Labelled(found, len(self.at) + 1)


def best_cuts(gold: Sequence[np.ndarray], groups: int) -> Cuts:
    """The cuts with the largest mean tIoU on these captions, which makes them an upper bound for rules of
    position.

    gold    [P, L] bool for each caption, the tokens of each phrase
    groups  one more than there are cuts

    One cut after the other goes to the best place between its neighbours, from equal runs on, until none
    moves. So it is never worse than equal runs; another combination may be better still.
    """
    of = groups * -(-FINE // groups)
    stacked = _stacked(gold)
    at = [of * k // groups for k in range(1, groups)]

    def mean(cuts: Sequence[int]) -> float:
        return _mean(stacked, Cuts(tuple(cuts), of))

    best = mean(at)
    for _ in range(ROUNDS):
        before = best
        for k in range(len(at)):
            low, high = (at[k - 1] if k else 0), (at[k + 1] if k + 1 < len(at) else of)
            for place in range(low, high + 1):
                found = mean([*at[:k], place, *at[k + 1 :]])
                if found > best:
                    best, at = found, [*at[:k], place, *at[k + 1 :]]
        if best == before:
            break
    return Cuts(tuple(at), of)


class _Stacked(NamedTuple):
    """All captions, filled up to the most phrases P and tokens L."""

    sums: np.ndarray  # [C, P, L + 1] tokens of each phrase before each place
    covered: np.ndarray  # [C, L + 1] tokens of any phrase before each place
    phrases: np.ndarray  # [C] how many there are
    tokens: np.ndarray  # [C]


def _stacked(gold: Sequence[np.ndarray]) -> _Stacked:
    phrases, tokens = (np.array([one.shape[i] for one in gold]) for i in range(2))
    there = np.zeros((len(gold), phrases.max(), tokens.max() + 1), np.int64)
    for row, one in zip(there, gold, strict=True):
        row[: one.shape[0], 1 : one.shape[1] + 1] = one
    return _Stacked(there.cumsum(2), there.any(1).cumsum(1), phrases, tokens)


def _mean(captions: _Stacked, cuts: Cuts) -> float:
    """The mean tIoU; phrases that fill up share no token with any group, so they win nothing."""
    tokens = captions.tokens[:, None]
    inner = -(-np.array(cuts.at, np.int64) * tokens // cuts.of)  # [C, K - 1] the first token behind each cut
    edges = np.concatenate([np.zeros_like(tokens), inner, tokens], 1)
    shared = np.diff(np.take_along_axis(captions.sums, edges[:, None], 2), axis=2).swapaxes(1, 2)  # [C, K, P]
    size = np.diff(np.take_along_axis(captions.covered, edges, 1), axis=1)
    iou = ious(shared, size, captions.sums[:, :, -1])
    total = np.array([one[linear_sum_assignment(one, maximize=True)].sum() for one in iou])
    return float((total / np.minimum(captions.phrases, iou.shape[1])).mean())
