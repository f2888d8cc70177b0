"""A progress bar on a terminal, silence elsewhere. rich is loaded when a bar is shown."""

import sys
from collections.abc import Callable


class progress:
    """`with progress("encoding") as step: step(done, total)`."""

    def __init__(self, what: str) -> None:
        self.what = what

    def __enter__(self) -> Callable[[int, int], None]:
        from rich.console import Console
        from rich.progress import Progress

        self.bar = Progress(console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty())
        self.bar.start()
        task = self.bar.add_task(self.what, total=None)
        return lambda done, total: self.bar.update(task, completed=done, total=total)

    def __exit__(self, *error: object) -> None:
        self.bar.stop()
