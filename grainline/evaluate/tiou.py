"""tIoU: how well groups of tokens are the annotated phrases of a caption; pure functions.

As the Text Group Transformer measures it. In five steps, for one caption:
  1. tokens outside all phrases (verbs, prepositions, punctuation) are left out of the groups;
  2. IoU of every group with every phrase, in tokens;
  3. the pairing of groups with phrases that has the largest sum of IoU (Kuhn-Munkres): as many pairs as there
     are groups or phrases, whichever are fewer, groups without a token included;
  4. precision, recall and F1 of each pair, F1 their harmonic mean;
  5. the mean of each over the pairs.

Where several pairings have the largest sum, IoU is the same, precision and recall need not be. Groups are
then put in the order of their first tokens, so that their names decide nothing.
"""

from typing import NamedTuple

import numpy as np
from scipy.optimize import linear_sum_assignment


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
