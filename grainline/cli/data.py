"""The commands `grainline data ...`: check a source, and make scenes, tars, superpixels, phrases and
descriptions of it. They load torch when run.
"""

from pathlib import Path
from typing import Annotated

import typer

from grainline.cli.options import (
    HELP,
    Images,
    MaxCorrupt,
    SamplesPerShard,
    Sources,
    from_signature,
)
from grainline.errors import UserError, amount, escape_controls
from grainline.progress import progress

Source = Annotated[str, typer.Argument(help="A data source.")]
data = typer.Typer(help="Look at data, and make some.", rich_markup_mode="rich", context_settings=HELP)


@data.command()
def check(
    path: Source,
    images: Images = None,
    limit: Annotated[
        int | None, typer.Option(min=1, help="Check only this many samples, at equal distances.")
    ] = None,
    max_corrupt: MaxCorrupt = 0.02,
) -> None:
    """Print what a data source holds and what is wrong with it. Exit code 1 if it cannot be used."""
    from grainline.data.captions import sentences
    from grainline.data.check import check as run
    from grainline.data.check import render, usable
    from grainline.data.open_source import open_source

    with progress("checking") as step:
        report = run(open_source(path, images=images), sentences, limit=limit, progress=step)
    print(render(report))
    if not usable(report, max_corrupt):
        raise typer.Exit(1)


@data.command()
def scenes(
    out: Annotated[Path, typer.Option(help="Folder for the tars.")],
    source: Annotated[str, typer.Argument(help="Such as scenes:train?count=1000&size=224&seed=1")] = "scenes",
    samples_per_shard: SamplesPerShard = 1000,
) -> None:
    """Write scenes as WebDataset tars, with captions, foils, phrases and masks."""
    from grainline.data.scenes.source import Scenes, export

    shards = export(Scenes(source), out, samples_per_shard)
    print(f"written: {amount(len(shards), 'tar')} in {out}")


@data.command()
@from_signature()
def describe(  # noqa: PLR0913 - each is an option of the command
    sources: Sources,
    *,
    out: Annotated[Path, typer.Option(help="File for the descriptions, FILE.jsonl; a partial one goes on.")],
    model: str | None = None,
    texts: str | None = None,
    prompt: Annotated[str | None, typer.Option(help="The question to the model.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of the model's sampling.")] = 0,
    tokens: Annotated[int, typer.Option(min=1, help="Largest number of tokens of a description.")] = 500,
    batch_size: Annotated[int, typer.Option(min=1, help="Images that the model reads at a time.")] = 8,
    images: Images = None,
) -> None:
    """Describe all images once, for data.descriptions of a recipe. A model sees no caption.

    model  a LLaVA: name of the hub or folder (default llava-hf/llava-1.5-7b-hf)
    texts  texts instead of a model: long, captions, captions:0,1 (by number), or a table or source with the
           same keys
    """
    from grainline.data.annotate import ByModel, ByTexts, Describer, make_descriptions
    from grainline.data.open_source import open_sources
    from grainline.encoders.pretrained.llava import MODEL, PROMPT, Llava

    _require_jsonl(out, "descriptions")
    if texts is not None and (model is not None or prompt is not None):
        raise UserError("--texts takes texts that exist, and --model and --prompt make new ones: give one")
    source = open_sources(sources, images=images, allow_bare=True)
    describer: Describer
    if texts is not None:
        describer = ByTexts(texts)
    else:
        describer = ByModel(Llava(model or MODEL), prompt or PROMPT, seed, tokens, batch_size)
    with progress("descriptions") as step:
        result = make_descriptions(source, describer, out, step)
    _print_written(out, result)
    if not result.counts["image"]:
        raise typer.Exit(1)


@data.command()
def phrases(
    source: Source,
    out: Annotated[Path, typer.Option(help="File for the phrases, FILE.jsonl; a partial one goes on.")],
    provider: Annotated[str, typer.Option(help="rules, or spacy:PIPELINE.")] = "rules",
    images: Images = None,
    processes: Annotated[
        int | None, typer.Option(min=1, help="Processes; by default the number of cores.")
    ] = None,
) -> None:
    """Split all captions of a source into phrases, once, for texts.phrases.provider of a recipe."""
    from grainline.data.annotate import make_phrases
    from grainline.data.open_source import open_source
    from grainline.data.phrases.providers import open_provider
    from grainline.distributed import usable_cores

    _require_jsonl(out, "phrases")
    opened, splitter = open_source(source, images=images, size=32), open_provider(provider)
    with progress("phrases") as step:
        result = make_phrases(opened, splitter, out, processes or usable_cores(), step)
    _print_written(out, result)


@data.command()
def pack(
    sources: Sources,
    out: Annotated[Path, typer.Option(help="Folder for the tars; one that was interrupted goes on.")],
    images: Images = None,
    samples_per_shard: SamplesPerShard = 1000,
    max_corrupt: MaxCorrupt = 0.02,
) -> None:
    """Write sources as WebDataset tars, with all texts and regions. Exit code 1 if too much is corrupt."""
    from grainline.data.open_source import open_sources
    from grainline.data.pack import pack as run

    with progress("packing") as step:
        result = run(open_sources(sources, images=images), out, samples_per_shard, step)
    _print_written(out, result)
    skipped = sum(result.skipped.values())
    samples = result.counts["sample"]
    if not samples or skipped > max_corrupt * (samples + skipped):
        raise typer.Exit(1)


@data.command()
def superpixels(  # noqa: PLR0913 - each is an option of the command
    sources: Sources,
    out: Annotated[Path, typer.Option(help="Folder for the maps; one that was interrupted goes on.")],
    size: Annotated[int, typer.Option(min=1, help="Side of the images that the model reads.")] = 224,
    cell: Annotated[int, typer.Option(help="Side of the cell of a superpixel, in pixels.")] = 16,
    kind: Annotated[str, typer.Option(help="kmeans, sfcn or grid.")] = "kmeans",
    compactness: Annotated[float, typer.Option(help="kmeans: weight of a distance of one cell.")] = 10.0,
    iterations: Annotated[int, typer.Option(help="kmeans: number of iterations.")] = 10,
    checkpoint: Annotated[str | None, typer.Option(help="sfcn: the file of its published weights.")] = None,
    images: Images = None,
) -> None:
    """Make the superpixels of all images once, for data.superpixels of a recipe without random crops."""
    from grainline.config import parse
    from grainline.data.open_source import open_sources
    from grainline.encoders.superpixels import SuperpixelConfig
    from grainline.training.cached import write_superpixels

    settings = {"kind": kind, "cell": cell, "compactness": compactness, "iterations": iterations}
    config = parse(SuperpixelConfig, settings | {"checkpoint": checkpoint}, "the options")
    source = open_sources(sources, images=images, size=size)
    with progress("superpixels") as step:
        result = write_superpixels(source, out, config, size, step)
    _print_written(out, result)


def _require_jsonl(out: Path, content: str) -> None:
    if out.suffix != ".jsonl":
        raise UserError(f"--out {out}: a file of {content} has a name in .jsonl")


def _print_written(out: Path, result: object) -> None:
    print(f"written: {out} ({escape_controls(str(result))})")
