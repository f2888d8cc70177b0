"""Options and arguments that several commands share, and the progress bar."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated

import typer

Model = Annotated[str, typer.Argument(help="Run folder, weights inside one, or a checkpoint.")]
Sources = Annotated[list[str], typer.Argument(metavar="SOURCE...", help="One or more data sources.")]
Data = Annotated[list[str] | None, typer.Option(help="One or more data sources, as in docs/data.md.")]
Images = Annotated[str | None, typer.Option(help="Folder of the images, for files that name them by path.")]
Descriptions = Annotated[
    list[str] | None,
    typer.Option(
        help="Descriptions of the images, for methods that read them: files of `data describe`, or long"
        " (default: those of the run's recipe)."
    ),
]
BatchSize = Annotated[int, typer.Option(min=1, help="Images and texts encoded at a time.")]
MaxCorrupt = Annotated[float, typer.Option(min=0, max=1, help="Share of samples that may be corrupt.")]
SamplesPerShard = Annotated[int, typer.Option(min=1, help="Records in each tar.")]
RecipeChanges = Annotated[
    list[str] | None,
    typer.Option("--set", help="Change fields of the recipe: train.max_steps=500 data.workers=2 ..."),
]


@contextmanager
def progress(what: str) -> Iterator[Callable[[int, int], None]]:
    """A progress bar on a terminal, silence elsewhere. Yields a function of (done, total)."""
    from rich.console import Console
    from rich.progress import Progress

    disable = not sys.stderr.isatty()
    with Progress(console=Console(stderr=True), transient=True, disable=disable) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
