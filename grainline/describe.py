"""The command `data describe`: a description of each picture of a source, by LLaVA or from texts."""

from pathlib import Path
from typing import Annotated

import typer

from grainline.bar import progress
from grainline.errors import UserError, plain


def describe(  # noqa: PLR0913 - each is an option of the command
    sources: Annotated[list[str], typer.Argument(metavar="SOURCE...", help="One or more data sources.")],
    out: Annotated[Path, typer.Option(help="File for the descriptions, FILE.jsonl; a partial one goes on.")],
    model: Annotated[
        str | None,
        typer.Option(help="A LLaVA: name of the hub or folder (default llava-hf/llava-1.5-7b-hf)."),
    ] = None,
    texts: Annotated[
        str | None,
        typer.Option(
            help="Texts instead of a model: long, captions, captions:0,1 (by number), or a table or source "
            "with the same keys."
        ),
    ] = None,
    prompt: Annotated[str | None, typer.Option(help="What the model is asked.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of what the model draws.")] = 0,
    tokens: Annotated[int, typer.Option(min=1, help="That the model says of a picture at most.")] = 500,
    batch: Annotated[int, typer.Option(min=1, help="Pictures that the model is shown at a time.")] = 8,
    images: Annotated[
        str | None, typer.Option(help="Folder of the pictures, for files that name them by path.")
    ] = None,
) -> None:
    """Describe all pictures once, for data.descriptions of a recipe. A model sees no caption."""
    from grainline.data.describe import ByModel, ByTexts, Describer, make, told
    from grainline.data.sources import open_sources
    from grainline.encoders.pretrained.llava import MODEL, PROMPT, Llava

    if out.suffix != ".jsonl":
        raise UserError(f"--out {out}: a file of descriptions has a name in .jsonl")
    if texts is not None and (model is not None or prompt is not None):
        raise UserError("--texts takes texts that exist, and --model and --prompt make new ones: give one")
    source = open_sources(sources, images=images, allow_bare=True)
    describer: Describer
    if texts is not None:
        describer = ByTexts(texts)
    else:
        describer = ByModel(Llava(model or MODEL), prompt or PROMPT, seed, tokens, batch)
    with progress("descriptions") as step:
        made = make(source, describer, out, step)
    print(f"written: {out} ({plain(told(made))})")
    if not made.pictures:
        raise typer.Exit(1)
