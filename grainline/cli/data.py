"""The commands `grainline data ...`: check a source, and make scenes, tars, features, superpixels, phrases
and descriptions of it. They load torch when run.
"""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from grainline.cli.evaluate import Images
from grainline.cli.progress import progress
from grainline.errors import UserError, amount, escape_controls

if TYPE_CHECKING:  # torch is loaded when the command is run
    from torch import Tensor

    from grainline.build import Description
    from grainline.methods.base import Method


data = typer.Typer(help="Look at data, and make some.", rich_markup_mode=None)


@data.command()
def check(
    path: Annotated[str, typer.Argument(help="A data source.")],
    images: Images = None,
    limit: Annotated[
        int | None, typer.Option(min=1, help="Look at this many samples only, evenly spread.")
    ] = None,
    max_corrupt: Annotated[
        float, typer.Option(min=0, max=1, help="Share of samples that may be corrupt.")
    ] = 0.02,
) -> None:
    """Print what a data source holds and what is wrong with it. Exit code 1 if it cannot be used."""
    from grainline.data.captions import sentences
    from grainline.data.check import check as look
    from grainline.data.check import render, usable
    from grainline.data.open_source import open_source

    with progress("checking") as step:
        report = look(open_source(path, images=images), sentences, limit=limit, progress=step)
    print(render(report))
    if not usable(report, max_corrupt):
        raise typer.Exit(1)


@data.command()
def scenes(
    out: Annotated[Path, typer.Option(help="Folder for the tars.")],
    source: Annotated[str, typer.Argument(help="Such as scenes:train?count=1000&size=224&seed=1")] = "scenes",
    samples_per_shard: Annotated[int, typer.Option(min=1, help="Samples in each tar.")] = 1000,
) -> None:
    """Write scenes as WebDataset tars, with captions, foils, phrases and masks."""
    from grainline.data.scenes.export import export
    from grainline.data.scenes.source import Scenes

    shards = export(Scenes(source), out, samples_per_shard)
    print(f"written: {amount(len(shards), 'tar')} in {out}")


@data.command()
def features(
    sources: Annotated[list[str], typer.Argument(metavar="SOURCE...", help="One or more data sources.")],
    model: Annotated[
        str, typer.Option(help="Whose image encoder: a run folder, or the recipe that will be trained.")
    ],
    out: Annotated[Path, typer.Option(help="Folder for the features; one that was interrupted goes on.")],
    tokens: Annotated[
        bool, typer.Option("--tokens", help="Keep image tokens too, for methods that learn from them.")
    ] = False,
    images: Images = None,
    changes: Annotated[
        list[str] | None, typer.Option("--set", help="Change fields of the recipe, as in training.")
    ] = None,
) -> None:
    """Run an image encoder over all images once, for data.features of a recipe that freezes it."""
    from grainline.build import image_settings
    from grainline.data.cache import describe_result, make_features
    from grainline.data.open_source import open_sources
    from grainline.data.transforms import EvalTransform
    from grainline.fingerprint import image_fingerprint

    description, method = starting_method(model, changes or [])
    encode = make_encoder(method, tokens=tokens)
    with progress("features") as step:
        result = make_features(
            open_sources(sources, images=images, size=method.size),
            encode,
            out,
            EvalTransform(method.size, **image_settings(description)),
            encoder=image_fingerprint(description.config.image, method.towers.image),
            row=row_shape(encode, method.size),
            progress=step,
        )
    print(f"written: {out} ({escape_controls(describe_result(result))})")


def starting_method(name: str, changes: list[str]) -> "tuple[Description, Method]":
    """A method in evaluation mode with the image encoder that training would begin with.

    UserError for a recipe whose image encoder begins with fresh weights, and for changes of a run.
    """
    from grainline.build import start
    from grainline.model import find_run, load
    from grainline.training.recipe import names, read_recipe

    if name in names() or name.endswith((".yaml", ".yml")):
        recipe = read_recipe(name, changes)
        if recipe.init_from is None:
            started = start(recipe.description)
            if started.image is None:
                raise UserError(
                    f"the image encoder of recipe {name} begins with fresh weights: give a run, or a recipe "
                    "with model.image.pretrained or begin"
                )
            return started.description, _placed(started.method())
        name = recipe.init_from
    elif changes:
        raise UserError("--set changes fields of a recipe, and --model names a run: leave one of them out")
    if find_run(Path(name)) is None:
        raise UserError(f"{name} is neither a run nor a recipe; a recipe says how a checkpoint is read")
    model = load(name)
    return model.description, model.method


def make_encoder(method: "Method", *, tokens: bool) -> "Callable[[Tensor], Tensor]":
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
        encoded = towers.image_tokens(Images(pixels.to(device), number))
        if tokens and encoded.mask is not None:
            raise UserError(
                "segments may be empty, which cached features cannot say: leave --tokens out, or train "
                "without data.features"
            )
        patches = encoded.patches if tokens else encoded.patches[:, :0]
        return torch.cat([encoded.pooled[:, None], patches], dim=1)

    return encode


def row_shape(encode: "Callable[[Tensor], Tensor]", size: int) -> tuple[int, int]:
    """(1 + L, W), the shape of the features of an image."""
    import torch

    rows, width = encode(torch.zeros(1, 3, size, size, dtype=torch.uint8)).shape[1:]
    return rows, width


def _placed(method: "Method") -> "Method":
    import torch

    return method.eval().to("cuda" if torch.cuda.is_available() else "cpu")


@data.command()
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
    tokens: Annotated[int, typer.Option(min=1, help="That the model says of an image at most.")] = 500,
    batch_size: Annotated[int, typer.Option(min=1, help="Images that the model is shown at a time.")] = 8,
    images: Images = None,
) -> None:
    """Describe all images once, for data.descriptions of a recipe. A model sees no caption."""
    from grainline.data.describe import ByModel, ByTexts, Describer, describe_result, make
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
        describer = ByModel(Llava(model or MODEL), prompt or PROMPT, seed, tokens, batch_size)
    with progress("descriptions") as step:
        result = make(source, describer, out, step)
    print(f"written: {out} ({escape_controls(describe_result(result))})")
    if not result.images:
        raise typer.Exit(1)


@data.command()
def phrases(
    source: Annotated[str, typer.Argument(help="A data source.")],
    out: Annotated[Path, typer.Option(help="File for the phrases, FILE.jsonl; a partial one goes on.")],
    provider: Annotated[str, typer.Option(help="rules, or spacy:PIPELINE.")] = "rules",
    images: Images = None,
    processes: Annotated[
        int | None, typer.Option(min=1, help="Processes; by default the number of cores.")
    ] = None,
) -> None:
    """Take all captions of a source apart into phrases, once, for texts.phrases.provider of a recipe."""
    from grainline.data.make_phrases import describe_result, make
    from grainline.data.open_source import open_source
    from grainline.data.phrases.providers import open_provider
    from grainline.distributed import usable_cores

    if out.suffix != ".jsonl":
        raise UserError(f"--out {out}: a file of phrases has a name in .jsonl")
    with progress("phrases") as step:
        result = make(
            open_source(source, images=images, size=32),
            open_provider(provider),
            out,
            processes or usable_cores(),
            step,
        )
    print(f"written: {out} ({describe_result(result)})")


@data.command()
def pack(
    sources: Annotated[list[str], typer.Argument(metavar="SOURCE...", help="One or more data sources.")],
    out: Annotated[Path, typer.Option(help="Folder for the tars; one that was interrupted goes on.")],
    images: Images = None,
    samples_per_shard: Annotated[int, typer.Option(min=1, help="Records that a tar is made of.")] = 1000,
    max_corrupt: Annotated[
        float, typer.Option(min=0, max=1, help="Share of samples that may be corrupt.")
    ] = 0.02,
) -> None:
    """Write sources as WebDataset tars, with all texts and regions. Exit code 1 if too much is corrupt."""
    from grainline.data.open_source import open_sources
    from grainline.data.pack import describe_result
    from grainline.data.pack import pack as run

    with progress("packing") as step:
        done = run(open_sources(sources, images=images), out, samples_per_shard, step)
    print(f"written: {out} ({escape_controls(describe_result(done))})")
    skipped = sum(done.skipped.values())
    if not done.samples or skipped > max_corrupt * (done.samples + skipped):
        raise typer.Exit(1)


@data.command()
def superpixels(  # noqa: PLR0913 - each is an option of the command
    sources: Annotated[list[str], typer.Argument(metavar="SOURCE...", help="One or more data sources.")],
    out: Annotated[Path, typer.Option(help="Folder for the maps; one that was interrupted goes on.")],
    size: Annotated[int, typer.Option(min=1, help="Side of the images that the model reads.")] = 224,
    cell: Annotated[int, typer.Option(help="Side of the cell of a superpixel, in pixels.")] = 16,
    kind: Annotated[str, typer.Option(help="kmeans, sfcn, seeds or grid.")] = "kmeans",
    compactness: Annotated[float, typer.Option(help="kmeans: what a distance of one cell weighs.")] = 10.0,
    iterations: Annotated[int, typer.Option(help="kmeans and seeds: number of iterations.")] = 10,
    checkpoint: Annotated[str | None, typer.Option(help="sfcn: the file of its published weights.")] = None,
    images: Images = None,
) -> None:
    """Make the superpixels of all images once, for data.superpixels of a recipe without random crops."""
    import torch

    from grainline.config import parse
    from grainline.data.cache import describe_result, make_superpixels
    from grainline.data.open_source import open_sources
    from grainline.encoders.superpixels import SuperpixelConfig, Superpixels

    values = {
        "kind": kind,
        "cell": cell,
        "compactness": compactness,
        "iterations": iterations,
        "checkpoint": checkpoint,
    }
    cfg = parse(SuperpixelConfig, values, "the options")
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    maker = Superpixels(cfg, size)
    if cfg.checkpoint is not None:
        maker.fill(Path(cfg.checkpoint))
    maker.to(device)
    with progress("superpixels") as step:
        result = make_superpixels(
            open_sources(sources, images=images, size=size),
            lambda pixels: maker(pixels.to(device)).label,
            out,
            size=size,
            settings=cfg.model_dump(mode="json", exclude={"checkpoint"}),
            progress=step,
        )
    print(f"written: {out} ({escape_controls(describe_result(result))})")
