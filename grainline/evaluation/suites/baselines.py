"""Groups of tokens: tIoU against phrases, and the baselines that it is judged by.

Groups of tokens by rules that read no word: what the tIoU of a model has to be judged by.
"""

import warnings
from collections.abc import Sequence
from importlib.util import find_spec
from typing import NamedTuple

import numpy as np
from scipy.optimize import linear_sum_assignment

# tIoU: how well groups of tokens are the annotated phrases of a caption; pure functions.
#
# As the Text Group Transformer measures it. In five steps, for one caption: 1. tokens outside all phrases
# (verbs, prepositions, punctuation) are left out of the groups; 2. IoU of every group with every phrase, in
# tokens; 3. the pairing of groups with phrases that has the largest sum of IoU (Kuhn-Munkres): as many pairs
# as there are groups or phrases, whichever are fewer, groups without a token included; 4. precision, recall
# and F1 of each pair, F1 their harmonic mean; 5. the mean of each over the pairs.
#
# Where several pairings have the largest sum, IoU is the same, precision and recall need not be. Groups are
# then put in the order of their first tokens, so that their names decide nothing.


class Overlap(NamedTuple):
    """Means over the pairs of one caption."""

    tiou: float
    precision: float
    recall: float
    f1: float


def overlap(labels: np.ndarray, gold: np.ndarray, groups: int) -> Overlap:
    """How well groups are phrases.

    labels  [L] the group of each token, 0 .. groups - 1
    gold    [P, L] bool, the tokens of each phrase; every phrase has one at least
    groups  how many there are; those that no token is in count too

    >>> gold = np.array([[1, 1, 0, 0, 0, 0], [0, 0, 0, 1, 1, 1]], bool)
    >>> overlap(np.array([0, 0, 0, 1, 1, 0]), gold, 2)
    Overlap(tiou=0.6666666666666666, precision=0.8333333333333333, recall=0.8333333333333333, f1=0.8)
    """
    phrases, tokens = gold.shape
    assert labels.shape == (tokens,), (labels.shape, gold.shape)
    assert phrases > 0, "no phrase"
    assert gold.any(1).all(), "a phrase without a token"
    assert 0 <= labels.min() <= labels.max() < groups, (labels, groups)
    annotated = gold.any(0)
    predicted = _in_order(labels[annotated])
    mine = gold[:, annotated].astype(np.int64)
    shared = np.zeros((groups, phrases), np.int64)
    np.add.at(shared, predicted, mine.T)
    size = np.bincount(predicted, minlength=groups)
    return paired(shared, size, mine.sum(1))


def paired(shared: np.ndarray, size: np.ndarray, length: np.ndarray) -> Overlap:
    """The means over the best pairing.

    shared  [K, P] tokens that a group and a phrase have in common
    size    [K] tokens of each group, those outside all phrases left out
    length  [P] tokens of each phrase
    """
    iou = ious(shared, size, length)
    row, column = linear_sum_assignment(iou, maximize=True)
    inter = shared[row, column]
    precision = inter / np.maximum(size[row], 1)
    recall = inter / length[column]
    both = precision + recall
    f1 = 2 * precision * recall / np.where(both > 0, both, 1.0)
    return Overlap(*(float(x.mean()) for x in (iou[row, column], precision, recall, f1)))


def ious(shared: np.ndarray, size: np.ndarray, length: np.ndarray) -> np.ndarray:
    """Tokens in common by tokens of either: [..., K, P], 0 for groups without a token."""
    return shared / np.maximum(size[..., :, None] + length[..., None, :] - shared, 1)


def _in_order(labels: np.ndarray) -> np.ndarray:
    """The same groups, numbered by their first tokens."""
    _, first, code = np.unique(labels, return_index=True, return_inverse=True)
    return first.argsort().argsort()[code]


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


# Groups of tokens by clustering their states, with scikit-learn (extra `cluster`), loaded when it is needed.
#
# k-means with ten restarts and spectral clustering get four clusters, or as many as there are tokens. Mean
# shift takes no number; its bandwidth is estimated from the caption.


K_MEANS, SPECTRAL, MEAN_SHIFT = "k-means", "spectral clustering", "mean shift"
CLUSTERINGS = (K_MEANS, SPECTRAL, MEAN_SHIFT)
CLUSTERS = 4
RESTARTS = 10  # of k-means
LACKING = "no clusterings of token states: they need scikit-learn, pip install 'grainline[cluster]'"


def can_cluster() -> bool:
    """Whether scikit-learn is there."""
    return find_spec("sklearn") is not None


def clusterings(states: np.ndarray) -> dict[str, Labelled]:
    """The groups of one caption by each of the three. states: [L, D]"""
    from sklearn.exceptions import ConvergenceWarning

    states = states.astype(np.float64)
    most = min(CLUSTERS, len(states))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # fewer different states than clusters
        return {
            K_MEANS: Labelled(_k_means(states, most), most),
            SPECTRAL: Labelled(_spectral(states, most), most),
            MEAN_SHIFT: _mean_shift(states),
        }


def _k_means(states: np.ndarray, most: int) -> np.ndarray:
    from sklearn.cluster import KMeans

    found: np.ndarray = KMeans(most, n_init=RESTARTS, random_state=SEED).fit_predict(states)
    return found.astype(np.int64)


def _spectral(states: np.ndarray, most: int) -> np.ndarray:
    """By (1 + cosine) / 2, which is never negative."""
    from sklearn.cluster import SpectralClustering

    if most == len(states):
        return np.arange(most)  # each alone; a graph has not so many directions to cut it
    unit = states / np.maximum(np.linalg.norm(states, axis=1, keepdims=True), 1e-12)
    affinity = ((1 + unit @ unit.T) / 2).clip(0)
    cutter = SpectralClustering(most, affinity="precomputed", assign_labels="kmeans", random_state=SEED)
    found: np.ndarray = cutter.fit_predict(affinity)
    return found.astype(np.int64)


def _mean_shift(states: np.ndarray) -> Labelled:
    from sklearn.cluster import MeanShift, estimate_bandwidth

    width = estimate_bandwidth(states, random_state=SEED) if len(states) > 1 else 0.0
    if width > 0:
        labels = MeanShift(bandwidth=width).fit_predict(states)
    else:  # nearest neighbours are equal: only what is equal lies together
        labels = np.unique(states, axis=0, return_inverse=True)[1].reshape(-1)
    return Labelled(labels.astype(np.int64), int(labels.max()) + 1)
