"""Long work: computing ahead in threads, and a bar on stderr by tqdm, in terminals and notebooks alone."""

import sys
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, TypeVar

T = TypeVar("T")

Progress = Callable[[int, int], None]
"""Called with how many are done, and of how many; of 0 where nobody knows."""


@contextmanager
def progress(what: str, unit: str = "images", *, show: bool | None = None) -> Iterator[Progress]:
    """A bar with the speed in units per second, which is removed at the end.

    show  None: in a terminal and in a notebook
    """
    from tqdm.std import tqdm  # tqdm.auto warns where ipywidgets are missing; plain text works in both

    if show is None:
        shell = sys.modules.get("IPython")
        notebook = shell.get_ipython() if shell is not None else None
        show = sys.stderr.isatty() or "IPKernelApp" in getattr(notebook, "config", ())
    with tqdm(desc=what, unit=f" {unit}", leave=False, disable=not show, file=sys.stderr) as bar:

        def step(done: int, total: int) -> None:
            bar.total = total or None
            bar.update(done - bar.n)

        yield step


def in_order(
    function: Callable[[Any], T], inputs: Iterable[Any], threads: int, ahead: int
) -> Generator[T, None, None]:
    """The function of each input, in their order, by threads. At most `ahead` inputs wait for their turn."""
    pool, waiting = ThreadPoolExecutor(threads), deque[Future[T]]()
    try:
        for one in inputs:
            waiting.append(pool.submit(function, one))
            if len(waiting) > ahead:
                yield waiting.popleft().result()
        yield from (future.result() for future in waiting)
    finally:
        pool.shutdown(cancel_futures=True)
