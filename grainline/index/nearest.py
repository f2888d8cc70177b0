"""What finds candidates, behind one interface: by exact products (scan.py), FAISS (inverted.py), Qdrant.

Whatever finds the candidates, the search scores them again, so an approximate answer can miss a picture but
never carries an approximate score.
"""

from typing import NamedTuple, Protocol

import numpy as np

APPROXIMATE = "candidates are approximate: a picture may be missed"


class Near(NamedTuple):
    """The best candidates of every query, best first."""

    row: np.ndarray  # [M, k] int64 live rows, numbered from 0; -1 where there are fewer than k
    score: np.ndarray  # [M, k] float32 cosine


class Nearest(Protocol):
    """What finds candidates."""

    note: str  # what weakens its answers or slows them down, in plain words; "" if nothing does

    def top(self, queries: np.ndarray, k: int) -> Near:
        """The k nearest rows of every query.

        queries  [M, D] float32, unit length
        """
