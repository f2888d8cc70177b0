"""The commands `data features` and `data describe`.

The command `data features`: what a frozen image encoder makes of all pictures, kept for training.
"""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from grainline.cli.progress import progress
from grainline.errors import UserError, plain

if TYPE_CHECKING:  # torch is loaded when the command is run
    from torch import Tensor

    from grainline.build import Description
    from grainline.methods.base import Method


def features(
    sources: Annotated[list[str], typer.Argument(metavar="SOURCE...", help="One or more data sources.")],
    model: Annotated[
        str, typer.Option(help="Whose image encoder: a run folder, or the recipe that will be trained.")
    ],
    out: Annotated[Path, typer.Option(help="Folder for the features; one that was interrupted goes on.")],
    tokens: Annotated[
        bool, typer.Option("--tokens", help="Keep image tokens too, for methods that learn from them.")
    ] = False,
    images: Annotated[
        str | None, typer.Option(help="Folder of the pictures, for files that name them by path.")
    ] = None,
    changes: Annotated[
        list[str] | None, typer.Option("--set", help="Change fields of the recipe, as in training.")
    ] = None,
) -> None:
    """Run an image encoder over all pictures once, for data.features of a recipe that freezes it."""
    from grainline.build import picture_settings
    from grainline.data.cache import make_features, told
    from grainline.data.open_source import open_sources
    from grainline.data.transforms import EvalTransform
    from grainline.fingerprint import image_fingerprint

    description, method = begun(model, changes or [])
    encode = encoding(method, tokens=tokens)
    with progress("features") as step:
        made = make_features(
            open_sources(sources, images=images, size=method.size),
            encode,
            out,
            EvalTransform(method.size, **picture_settings(description)),
            encoder=image_fingerprint(description.config.image, method.towers.image),
            row=shape(encode, method.size),
            progress=step,
        )
    print(f"written: {out} ({plain(told(made))})")


def begun(name: str, changes: list[str]) -> "tuple[Description, Method]":
    """A method in evaluation mode with the image encoder that training would begin with.

    UserError for a recipe whose image encoder begins with fresh weights, and for changes of a run.
    """
    from grainline.build import start
    from grainline.model import find_run, load
    from grainline.training.recipe import names, read_recipe

    if name in names() or name.endswith((".yaml", ".yml")):
        recipe = read_recipe(name, changes)
        if recipe.begin is None:
            start_of = start(recipe.description)
            if start_of.image is None:
                raise UserError(
                    f"the image encoder of recipe {name} begins with fresh weights: give a run, or a recipe "
                    "with model.image.pretrained or begin"
                )
            return start_of.description, _placed(start_of.method())
        name = recipe.begin
    elif changes:
        raise UserError("--set changes fields of a recipe, and --model names a run: leave one of them out")
    if find_run(Path(name)) is None:
        raise UserError(f"{name} is neither a run nor a recipe; a recipe says how a checkpoint is read")
    model = load(name)
    return model.description, model.method


def encoding(method: "Method", *, tokens: bool) -> "Callable[[Tensor], Tensor]":
    """From squares [n, 3, S, S] uint8 to features [n, 1 + L, W]: the summary, and the tokens if asked for."""
    import torch

    from grainline.encoders.towers import Towers
    from grainline.types import Images

    towers = method.get_submodule("towers")
    assert isinstance(towers, Towers)
    device = next(method.parameters()).device

    @torch.no_grad()
    def encode(pixels: "Tensor") -> "Tensor":
        number = torch.arange(len(pixels), device=device)
        seen = towers.see(Images(pixels.to(device), number))
        if tokens and seen.mask is not None:
            raise UserError(
                "segments may be empty, which kept features do not tell: leave --tokens out, or train "
                "without data.features"
            )
        kept = seen.patches if tokens else seen.patches[:, :0]
        return torch.cat([seen.pooled[:, None], kept], dim=1)

    return encode


def shape(encode: "Callable[[Tensor], Tensor]", size: int) -> tuple[int, int]:
    """(1 + L, W) of what is made of a picture."""
    import torch

    rows, width = encode(torch.zeros(1, 3, size, size, dtype=torch.uint8)).shape[1:]
    return rows, width


def _placed(method: "Method") -> "Method":
    import torch

    return method.eval().to("cuda" if torch.cuda.is_available() else "cpu")


# The command `data describe`: a description of each picture of a source, by LLaVA or from texts.


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
    from grainline.data.open_source import open_sources
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
