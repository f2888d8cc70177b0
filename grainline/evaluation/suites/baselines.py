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
from importlib.util import find_spec
from typing import NamedTuple

import numpy as np
from scipy.optimize import linear_sum_assignment

SEED = 0  # results that are compared or pooled need the same draws
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
    iou = shared / np.maximum(size[:, None] + length - shared, 1)  # [K, P], 0 for groups without a token
    row, column = linear_sum_assignment(iou, maximize=True)
    inter = shared[row, column]
    precision, recall = inter / np.maximum(size[row], 1), inter / length[column]
    both = precision + recall
    f1 = 2 * precision * recall / np.where(both > 0, both, 1.0)
    return Overlap(*(float(x.mean()) for x in (iou[row, column], precision, recall, f1)))


def chunks(tokens: int, groups: int) -> Labelled:
    """Runs of tokens that are as equally long as can be.

    >>> chunks(6, 4).labels.tolist(), chunks(2, 4).labels.tolist()
    ([0, 0, 1, 2, 2, 3], [0, 2])
    """
    return Labelled(np.arange(tokens) * groups // tokens, groups)


def at_random(tokens: int, groups: int, number: int) -> Labelled:
    """Every token in any group, with the same chance. number: of the caption, for the seed"""
    return Labelled(np.random.default_rng((SEED, number)).integers(0, groups, tokens), groups)


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
