"""Graphs for export: while one is made, nothing may depend on values, only on shapes.

Encoders save work by looking at values: texts of similar length are read together, sentences that several
texts share are read once. A graph that is written down once and run on any input cannot. So these places ask
`is_static`, and then do the whole work, which gives the same results.
"""

from collections.abc import Iterator
from contextlib import contextmanager

_asked = 0  # a plain global: torch.compile can read it


def is_static() -> bool:
    """Whether a graph for export is being made."""
    return _asked > 0


@contextmanager
def static() -> Iterator[None]:
    """Inside, encoders look at no values. Not for several threads at once.

    >>> with static():
    ...     is_static()
    True
    >>> is_static()
    False
    """
    global _asked
    _asked += 1
    try:
        yield
    finally:
        _asked -= 1
