"""The command `show`: what a model makes of pictures: segments, where texts look, patches that stay."""

from pathlib import Path
from typing import Annotated, Any

import typer

from grainline.errors import UserError


def show(
    model: Annotated[str, typer.Argument(help="Run folder, weights inside one, or a checkpoint.")],
    pictures: Annotated[list[str], typer.Argument(metavar="PICTURE...", help="One or more files.")],
    text: Annotated[
        list[str] | None, typer.Option(help="One or more texts; each part of one has a map of its own.")
    ] = None,
    scale: Annotated[
        float | None,
        typer.Option(
            min=0, help="Weight of a token that has the full colour (8 times an even share unless told)."
        ),
    ] = None,
    descriptions: Annotated[
        list[str] | None,
        typer.Option(
            help="Descriptions of the pictures, for methods that read them: files of `data describe`; keys"
            " are paths as they are given, or names of files (default: those of the run's recipe)."
        ),
    ] = None,
    png: Annotated[Path | None, typer.Option(help="Write a figure.")] = None,
    html: Annotated[Path | None, typer.Option(help="Write a page.")] = None,
) -> None:
    """Show what a model makes of pictures: segments, where texts look, or which patches stay for a text."""
    from grainline.evaluation.pages.shown import end_of_scale, kept, refuse_unshown, shown
    from grainline.evaluation.result import writable
    from grainline.methods.base import Keeping
    from grainline.model import load
    from grainline.report.page import Section, hint, render_page, write_page
    from grainline.report.panels import cards, write_rows
    from grainline.report.png import require_matplotlib
    from grainline.training.recipe import descriptions_for

    if not (png or html):
        raise UserError("nothing to write; give --png FILE or --html FILE")
    if scale is not None and not (text and 0 < scale <= 1):
        raise UserError(f"--scale is {scale:g}; it is a weight above 0 and at most 1, and goes with --text")
    if png:
        require_matplotlib()
    for path in filter(None, (png, html)):
        writable(path)
    loaded, texts = load(model), text or []
    refuse_unshown(loaded, texts)
    keeping = isinstance(loaded.method, Keeping)
    told = _described(pictures, descriptions_for(loaded, model, descriptions))
    squares = [loaded.seen(path) for path in pictures]
    limit = scale or end_of_scale(loaded, squares[0])
    found = [
        kept(loaded, path, one, (texts, text), limit) if keeping else shown(loaded, path, one, texts, limit)
        for path, one, text in zip(pictures, squares, told, strict=True)
    ]
    cut = sum(loaded.read(texts).cut) if texts else 0
    note = f" {cut} of {len(texts)} texts are longer than the model reads, and were cut." if cut else ""
    rule = (KEEPING if keeping else RULE).format(limit=limit) + note if texts else ""
    title = f"{loaded.description.method}, {model}"
    if png:
        write_rows(png, found, title, rule)
        print(f"written: {png}")
    if html:
        read = LINES if loaded.method.segmented else ""
        body = hint(f"{read} {rule}".strip()) + cards(found)
        write_page(html, render_page(title, "", [Section("Pictures", body)]))
        print(f"written: {html}")


RULE = (
    "No colour: no weight, full orange: {limit:.3g} or more of the weight of a text, in all maps alike."
    " The weights of all segments or patches and of the empty slot sum to 1."
)
KEEPING = (
    "Dark: patches that are dropped. Below them stands each token that words find, with the shares of patches"
    " that it is made of. No colour: no share, full orange: {limit:.3g} or more of the token, in all maps"
    " alike; a frame is around the largest."
)
LINES = "Lines are heavier, the more stages keep them."


def _described(pictures: list[str], found: Any) -> list[str | None]:
    """The description of each picture; None for a method that reads none. UserError where one is missing."""
    told = [None if found is None else found.of_file(picture) for picture in pictures]
    for picture, text in zip(pictures, told, strict=True):
        if found is not None and text is None:
            raise UserError(
                f"the method reads a description beside each picture, and {picture} has none in {found}: name"
                " a file of `grainline data describe` with --descriptions"
            )
    return told
