"""Groups of tokens by clustering their states, with scikit-learn (extra `cluster`), loaded when it is needed.

k-means with ten restarts and spectral clustering get four clusters, or as many as there are tokens. Mean
shift takes no number; its bandwidth is estimated from the caption.
"""

import warnings
from importlib.util import find_spec

import numpy as np

from grainline.evaluate.anchors import SEED, Labelled

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
