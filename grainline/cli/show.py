"""The command `show`: the segments of images, the attention of texts, or the selected patches."""

from pathlib import Path
from typing import Annotated, Any

import typer

from grainline.errors import UserError


def show(
    model: Annotated[str, typer.Argument(help="Run folder, weights inside one, or a checkpoint.")],
    images: Annotated[list[str], typer.Argument(metavar="IMAGE...", help="One or more files.")],
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
            help="Descriptions of the images, for methods that read them: files of `data describe`; keys"
            " are paths as they are given, or names of files (default: those of the run's recipe)."
        ),
    ] = None,
    png: Annotated[Path | None, typer.Option(help="Write a figure.")] = None,
    html: Annotated[Path | None, typer.Option(help="Write a page.")] = None,
) -> None:
    """Show the segments of images, where texts attend, or which patches are selected for a text."""
    from grainline.evaluation.pages.shown import kept, refuse_unshown, shown
    from grainline.evaluation.result import writable
    from grainline.evaluation.text_attention import end_of_scale
    from grainline.methods.patch_selection.types import SelectsPatches
    from grainline.model import load
    from grainline.report.case import cases_html
    from grainline.report.page import Section, hint, render_page, write_page
    from grainline.report.panels import write_rows
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
    keeping = isinstance(loaded.method, SelectsPatches)
    described = _described(images, descriptions_for(loaded, model, descriptions))
    squares = [loaded.cropped(path) for path in images]
    limit = scale or end_of_scale(loaded, squares[0])
    panels = [
        kept(loaded, path, one, (texts, text), limit) if keeping else shown(loaded, path, one, texts, limit)
        for path, one, text in zip(images, squares, described, strict=True)
    ]
    cut = sum(loaded.read(texts).truncated) if texts else 0
    note = f" {cut} of {len(texts)} texts are longer than the model reads, and were cut." if cut else ""
    rule = (KEEPING if keeping else RULE).format(limit=limit) + note if texts else ""
    title = f"{loaded.description.method}, {model}"
    if png:
        write_rows(png, panels, title, rule)
        print(f"written: {png}")
    if html:
        read = LINES if loaded.method.segmented else ""
        body = hint(f"{read} {rule}".strip()) + cases_html(panels, "image")
        write_page(html, render_page(title, "", [Section("Images", body)]))
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


def _described(images: list[str], files: Any) -> list[str | None]:
    """The description of each image; None for a method that reads none. UserError where one is missing."""
    texts = [None if files is None else files.of_file(image) for image in images]
    for image, text in zip(images, texts, strict=True):
        if files is not None and text is None:
            raise UserError(
                f"the method reads a description beside each image, and {image} has none in {files}: name"
                " a file of `grainline data describe` with --descriptions"
            )
    return texts
