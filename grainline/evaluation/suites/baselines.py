"""tIoU of groups of tokens with annotated phrases, and groups by rules and clusterings that read no word.

tIoU as the Text Group Transformer measures it, for one caption:
  1. leave tokens outside all phrases (verbs, prepositions, punctuation) out of the groups;
  2. IoU of every group with every phrase, in tokens;
  3. pair groups with phrases by the largest sum of IoU (Kuhn-Munkres): as many pairs as there are groups or
     phrases, whichever are fewer, groups without a token included;
  4. precision, recall and F1 of each pair, F1 their harmonic mean; then the mean of each over the pairs.
Where several pairings have the largest sum, IoU is the same, precision and recall need not be. Groups are
then put in the order of their first tokens, so that their names decide nothing.
"""

import warnings
from collections.abc import Sequence
from importlib.util import find_spec
from typing import NamedTuple

import numpy as np
from scipy.optimize import linear_sum_assignment

SEED = 0  # results that are compared or pooled need the same draws
CUTS = 24  # relative positions that a cut can take, at least
ROUNDS = 20  # in which every cut moves once; a few are enough
K_MEANS, SPECTRAL, MEAN_SHIFT = "k-means", "spectral clustering", "mean shift"
CLUSTERINGS = (K_MEANS, SPECTRAL, MEAN_SHIFT)
CLUSTERS = 4
LACKING = "no clusterings of token states: they need scikit-learn, pip install 'grainline[cluster]'"


class Labelled(NamedTuple):
    """The groups of one caption."""

    labels: np.ndarray  # [L] the group of each token
    groups: int  # how many there are, those without a token included


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
    _, first, code = np.unique(labels[annotated], return_index=True, return_inverse=True)
    group, phrase = first.argsort().argsort()[code], gold[:, annotated].astype(np.int64)
    shared = np.zeros((groups, phrases), np.int64)  # tokens that a group and a phrase have in common
    np.add.at(shared, group, phrase.T)
    size, length = np.bincount(group, minlength=groups), phrase.sum(1)
    iou = ious(shared, size, length)
    row, column = linear_sum_assignment(iou, maximize=True)
    inter = shared[row, column]
    precision, recall = inter / np.maximum(size[row], 1), inter / length[column]
    both = precision + recall
    f1 = 2 * precision * recall / np.where(both > 0, both, 1.0)
    return Overlap(*(float(x.mean()) for x in (iou[row, column], precision, recall, f1)))


def ious(shared: np.ndarray, size: np.ndarray, length: np.ndarray) -> np.ndarray:
    """Tokens in common by tokens of either: [..., K, P], 0 for groups without a token.

    shared  [..., K, P];  size [..., K] annotated tokens of each group;  length [..., P] tokens of each phrase
    """
    return shared / np.maximum(size[..., :, None] + length[..., None, :] - shared, 1)


def chunks(tokens: int, groups: int) -> Labelled:
    """Runs of tokens that are as equally long as can be.

    >>> chunks(6, 4).labels.tolist(), chunks(2, 4).labels.tolist()
    ([0, 0, 1, 2, 2, 3], [0, 2])
    """
    return Labelled(np.arange(tokens) * groups // tokens, groups)


def at_random(tokens: int, groups: int, number: int) -> Labelled:
    """Every token in any group, with the same chance. number: of the caption, for the seed"""
    return Labelled(np.random.default_rng((SEED, number)).integers(0, groups, tokens), groups)


class Cuts(NamedTuple):
    """Captions cut at the relative positions `at[i] / of`, whatever their words."""

    at: tuple[int, ...]
    of: int

    def labels(self, tokens: int) -> Labelled:
        """The groups of a caption: a token lies behind a cut if its relative position is not below it."""
        place = np.arange(tokens) * self.of
        labels = np.searchsorted(np.array(self.at, np.int64) * tokens, place, "right")
        return Labelled(labels, len(self.at) + 1)


def best_cuts(gold: Sequence[np.ndarray], groups: int) -> Cuts:
    """Cuts with a large mean tIoU on these captions: what a rule of position reaches that knows the answers.

    gold    [P, L] bool for each caption, the tokens of each phrase
    groups  one more than there are cuts

    One cut after the other goes to the best place between its neighbours, from equal runs on, until none
    moves. So it is never worse than equal runs; another combination may be better still.
    """
    of = groups * -(-CUTS // groups)
    phrases, tokens = (np.array([one.shape[i] for one in gold]) for i in range(2))
    marked = np.zeros((len(gold), phrases.max(), tokens.max() + 1), np.int64)
    for row, one in zip(marked, gold, strict=True):
        row[: one.shape[0], 1 : one.shape[1] + 1] = one
    in_phrase = marked.cumsum(2)  # [C, P, L + 1] tokens of each phrase before each place
    in_any = marked.any(1).cumsum(1)  # [C, L + 1] tokens of any phrase before each place

    def mean_tiou(at: Sequence[int]) -> float:
        """Phrases that fill up share no token with any group, so they add nothing."""
        inner = -(-np.array(at, np.int64) * tokens[:, None] // of)  # [C, K - 1] first tokens behind the cuts
        edges = np.concatenate([np.zeros_like(tokens)[:, None], inner, tokens[:, None]], 1)
        shared = np.diff(np.take_along_axis(in_phrase, edges[:, None], 2), axis=2).swapaxes(1, 2)  # [C, K, P]
        iou = ious(shared, np.diff(np.take_along_axis(in_any, edges, 1), axis=1), in_phrase[:, :, -1])
        total = np.array([one[linear_sum_assignment(one, maximize=True)].sum() for one in iou])
        return float((total / np.minimum(phrases, iou.shape[1])).mean())

    at = [of * k // groups for k in range(1, groups)]
    best = mean_tiou(at)
    for _ in range(ROUNDS):
        before = best
        for k in range(len(at)):
            for place in range(at[k - 1] if k else 0, (at[k + 1] if k + 1 < len(at) else of) + 1):
                moved = [*at[:k], place, *at[k + 1 :]]
                value = mean_tiou(moved)
                if value > best:
                    best, at = value, moved
        if best == before:
            break
    return Cuts(tuple(at), of)


def can_cluster() -> bool:
    """Whether scikit-learn is installed (extra `cluster`)."""
    return find_spec("sklearn") is not None


def clusterings(states: np.ndarray) -> dict[str, Labelled]:
    """The groups of one caption by clustering its token states [L, D], with scikit-learn.

    k-means and spectral clustering get four clusters, or as many as there are tokens. Mean shift takes no
    number; its bandwidth is estimated from the caption.
    """
    from sklearn.cluster import KMeans, MeanShift, SpectralClustering, estimate_bandwidth
    from sklearn.exceptions import ConvergenceWarning

    states = states.astype(np.float64)
    number = min(CLUSTERS, len(states))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # fewer different states than clusters
        k_means = KMeans(number, n_init=10, random_state=SEED).fit_predict(states)
        spectral = np.arange(number)  # each alone: a graph of so few tokens has not enough directions
        if number < len(states):
            unit = states / np.maximum(np.linalg.norm(states, axis=1, keepdims=True), 1e-12)
            affinity = ((1 + unit @ unit.T) / 2).clip(0)
            cutter = SpectralClustering(
                number, affinity="precomputed", assign_labels="kmeans", random_state=SEED
            )
            spectral = cutter.fit_predict(affinity)
        width = estimate_bandwidth(states, random_state=SEED) if len(states) > 1 else 0.0
        if width > 0:
            shifted = MeanShift(bandwidth=width).fit_predict(states)
        else:  # nearest neighbours are equal: group only equal states
            shifted = np.unique(states, axis=0, return_inverse=True)[1].reshape(-1)
    return {
        K_MEANS: Labelled(k_means.astype(np.int64), number),
        SPECTRAL: Labelled(spectral.astype(np.int64), number),
        MEAN_SHIFT: Labelled(shifted.astype(np.int64), int(shifted.max()) + 1),
    }
