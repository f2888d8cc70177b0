"""A progress bar on stderr, in a terminal and in a notebook, by tqdm. Elsewhere there is silence."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Progress = Callable[[int, int], None]
"""Called with how many are done, and of how many; of 0 where nobody knows."""


@contextmanager
def progress(what: str, unit: str = "images", *, show: bool | None = None) -> Iterator[Progress]:
    """A bar with the speed in units per second, which is removed at the end.

    show  None: in a terminal and in a notebook
    """
    from tqdm.std import tqdm  # tqdm.auto warns where ipywidgets are missing; plain text works in both

    disable = not (_interactive() if show is None else show)
    with tqdm(desc=what, unit=f" {unit}", leave=False, disable=disable, file=sys.stderr) as bar:

        def step(done: int, total: int) -> None:
            bar.total = total or None
            bar.update(done - bar.n)

        yield step


def _interactive() -> bool:
    """Whether somebody watches: a terminal, or a kernel of Jupyter."""
    shell = sys.modules.get("IPython")
    notebook = shell.get_ipython() if shell is not None else None
    return sys.stderr.isatty() or "IPKernelApp" in getattr(notebook, "config", ())
