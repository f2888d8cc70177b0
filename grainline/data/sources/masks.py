"""Masks as JSON: rows of 0 and 1, or a run-length code down the columns, as COCO writes it:
{size: [height, width], counts: [zeros, ones, zeros, ...]}.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np


def read_mask(value: Any) -> np.ndarray:
    """[H, W] bool from rows or from a run-length code. Raises ValueError, TypeError or KeyError."""
    if isinstance(value, Mapping):
        height, width = (int(side) for side in value["size"])
        counts = [int(run) for run in value["counts"]]
        flat = np.repeat(np.arange(len(counts)) % 2 == 1, counts)
        return flat.reshape(width, height).T
    rows = np.asarray(value)
    if rows.ndim != 2 or rows.dtype.kind not in "biu":
        raise ValueError("a mask is rows of 0 and 1, or {size, counts}")
    return rows.astype(bool)


def run_lengths(mask: np.ndarray) -> dict[str, list[int]]:
    """The run-length code of a mask [H, W] bool, zeros first.

    >>> run_lengths(np.array([[0, 0, 1], [0, 1, 1]], bool))
    {'size': [2, 3], 'counts': [3, 3]}
    """
    flat = mask.T.reshape(-1)
    edges = np.flatnonzero(flat[1:] != flat[:-1]) + 1
    counts = np.diff(edges, prepend=0, append=len(flat)).tolist()
    return {"size": list(mask.shape), "counts": [0, *counts] if flat[0] else counts}
