"""The command line, but for those in commands.py. torch is loaded when a command needs it."""

import os
import sys
from io import TextIOWrapper
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from grainline import __version__, commands
from grainline.bar import progress
from grainline.describe import describe
from grainline.errors import UserError
from grainline.features import features
from grainline.show import show

Many = Annotated[list[str] | None, typer.Option(help="One or more data sources, as in docs/data.md.")]
Sets = Annotated[
    list[str] | None,
    typer.Option("--set", help="Change fields of the recipe: train.steps=500 data.workers=2 ..."),
]
Images = Annotated[str | None, typer.Option(help="Folder of the pictures, for files that name them by path.")]
Descriptions = Annotated[
    list[str] | None,
    typer.Option(
        help="Descriptions of the pictures, for methods that read them: files of `data describe`, or long"
        " (default: those of the run's recipe)."
    ),
]

app = typer.Typer(
    name="grainline",
    help="Align images with text at every grain: train, evaluate, encode, search.",
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
data = typer.Typer(help="Look at data, and make some.", rich_markup_mode=None)
app.add_typer(data, name="data")
app.add_typer(commands.index, name="index")
app.command()(commands.search)
app.command()(show)
app.command()(commands.serve)
app.command()(commands.export)
data.command()(commands.phrases)
data.command()(commands.pack)
data.command()(commands.superpixels)
data.command()(features)
data.command()(describe)

INTERRUPTED = 130  # exit code after Ctrl-C, as shells have it
VARIADIC = (
    "--data",
    "--set",
    "--validation",
    "--beside",
    "--samples",
    "--text",
    "--descriptions",
    "--trained",
)


@app.callback(invoke_without_command=True)
def top(version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False) -> None:
    if version:
        print(f"grainline {__version__}")
        raise typer.Exit


@app.command()
def train(
    recipe: Annotated[str, typer.Argument(help="Name of a built-in recipe (clip/scenes) or a YAML file.")],
    out: Annotated[Path, typer.Option(help="Folder of the run.")],
    data: Many = None,
    images: Images = None,
    validation: Annotated[
        list[str] | None, typer.Option(help="Sources to measure on while training.")
    ] = None,
    changes: Sets = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on from the newest checkpoint in --out.")
    ] = False,
    checkpoint: Annotated[
        str | None, typer.Option(help="With --resume: the checkpoint to go on from, such as step-00000200.")
    ] = None,
) -> None:
    """Train a recipe. With torchrun: torchrun --nproc-per-node 2 -m grainline train ..."""
    from grainline.experiment import run
    from grainline.recipe import read_recipe

    given: list[str] = []
    given += [f"data.paths={_yaml(data)}"] if data else []
    given += [f"data.validation={_yaml(validation)}"] if validation else []
    given += [f"data.images={_yaml(images)}"] if images else []
    if checkpoint and not resume:
        raise UserError("--checkpoint says where to go on from; give --resume with it")
    last = run(read_recipe(recipe, [*(changes or []), *given]), out, resume=resume, at=checkpoint)
    if os.environ.get("RANK", "0") == "0":  # torchrun starts several of us
        print(f"trained: {last}")


@app.command()
def evaluate(  # noqa: PLR0913 - each is an option of the command
    model: Annotated[
        str,
        typer.Argument(
            help="Run folder, weights inside one (runs/x/best), or a checkpoint: folder, file, name."
        ),
    ],
    data: Many = None,
    images: Images = None,
    suite: Annotated[
        str,
        typer.Option(
            help="retrieval, transfer, long-retrieval, probes, zeroshot, monotonicity, cola, stability,"
            " fg-ovd, similarity, own-caption, referring, comprehension, inactivity, phrases."
        ),
    ] = "retrieval",
    captions: Annotated[
        str | None,
        typer.Option(
            help="whole (default): all that is said as one text; each; first (zeroshot: the class)."
        ),
    ] = None,
    prompts: Annotated[
        str | None, typer.Option(help="zeroshot: a file of templates, one a line, with {} for the class.")
    ] = None,
    classes: Annotated[
        str | None, typer.Option(help="zeroshot: a file of all classes, LABEL or LABEL<tab>NAME a line.")
    ] = None,
    noise_seed: Annotated[
        int | None, typer.Option(min=0, help="stability: decides which noise goes where (default 0).")
    ] = None,
    against: Annotated[
        str | None, typer.Option(help="Compare with an earlier result (--json) on the same data.")
    ] = None,
    protocol: Annotated[
        str,
        typer.Option(
            help="plain (default), coco-5k, coco-1k, flickr30k-1k; long-retrieval: that of the set (default),"
            " plain, dci, docci, urban-1k, sv-1k, sv-10k, sv-1k-long-clip, iiw."
        ),
    ] = "default",
    scoring: Annotated[
        str | None,
        typer.Option(
            help="How pairs are scored, for methods with several ways: vectors, conditioned, conditioned:0.5."
        ),
    ] = None,
    shortlist: Annotated[
        int | None,
        typer.Option(
            min=1, help="Retrieval: score so many candidates by vector pair by pair (default: all)."
        ),
    ] = None,
    exact: Annotated[
        bool, typer.Option("--exact", help="With --shortlist: rank by the scores of all pairs as well.")
    ] = False,
    trained: Annotated[
        list[str] | None,
        typer.Option(help="transfer: where the training data lie now (default: where the recipe says)."),
    ] = None,
    boxes: Annotated[
        str | None,
        typer.Option(help="comprehension: JSON of detections to choose from (default: those of the data)."),
    ] = None,
    json: Annotated[Path | None, typer.Option(help="Write settings, data, versions and numbers.")] = None,
    html: Annotated[
        Path | None, typer.Option(help="Write a page: the numbers, and outcomes from best to worst.")
    ] = None,
    png: Annotated[
        Path | None,
        typer.Option(
            help="Write a figure (monotonicity, phrases), or heat maps (retrieval, transfer, long-retrieval,"
            " fg-ovd, referring, comprehension)."
        ),
    ] = None,
    descriptions: Descriptions = None,
    beside: Annotated[list[str] | None, typer.Option(help="monotonicity: other results to draw.")] = None,
    samples: Annotated[list[str] | None, typer.Option(help="monotonicity: keys of pictures to draw.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of the bootstrap.")] = 0,
    batch: Annotated[int, typer.Option(min=1, help="Pictures and texts encoded at a time.")] = 64,
    memory: Annotated[int, typer.Option(min=1, help="Most memory for scores, in MiB.")] = 256,
    damage: Annotated[float, typer.Option(min=0, max=1, help="Share of samples that may be damaged.")] = 0.02,
) -> None:
    """Measure a model, with intervals and chance."""
    from rich.console import Console

    from grainline.evaluate.ask import ask, encoded, measured, with_files
    from grainline.evaluate.examples import Measured
    from grainline.evaluate.figure import besides, draw, refuse_unplaced
    from grainline.evaluate.outcome import Options
    from grainline.evaluate.report import write_html
    from grainline.evaluate.result import writable, write
    from grainline.evaluate.table import tables
    from grainline.model import load
    from grainline.origin import origin

    options = Options(protocol, seed, memory=memory * 2**20, shortlist=shortlist, exact=exact)
    asked = ask(suite, options, captions, prompts, classes, noise_seed, against, scoring)
    asked = with_files(asked, model, trained, boxes)
    others = besides(suite, (png, html), beside, samples)
    for path in filter(None, (json, html, png)):
        writable(path)
    loaded = load(model, scoring=scoring)
    refuse_unplaced(png, suite, loaded)
    told = _descriptions(loaded, model, descriptions)
    source = _open(data, images, loaded.method.size)
    with progress("encoding") as step:
        encodings = encoded(asked, loaded, source, batch, damage, step, told)
    result = measured(asked, loaded.method, encodings, origin(loaded, model))
    for shown in tables(result):
        Console().print(shown)
    if json:
        write(result, json)
        print(f"written: {json}")
    on = Measured(loaded, source, encodings, result, others)
    for place, writer in ((html, write_html), (png, draw)):
        if place:
            writer(place, on)
            print(f"written: {place}")


@app.command()
def encode(
    model: Annotated[str, typer.Argument(help="Run folder, weights inside one, or a checkpoint.")],
    source: Annotated[str, typer.Argument(help="A data source, or a .txt file with one text a line.")],
    out: Annotated[
        Path, typer.Option(help="New folder for vectors.safetensors, rows.jsonl and notes.jsonl.")
    ],
    images: Images = None,
    captions: Annotated[str, typer.Option(help="Texts of a data source: whole, each or first.")] = "whole",
    descriptions: Descriptions = None,
    batch: Annotated[int, typer.Option(min=1, help="Pictures and texts encoded at a time.")] = 64,
) -> None:
    """Write unit vectors of all pictures and texts of a source, or of the lines of a text file."""
    from grainline.encode import encode_path
    from grainline.model import load

    loaded = load(model)
    described = None if source.endswith(".txt") else _descriptions(loaded, model, descriptions)
    with progress("encoding") as step:
        counts = encode_path(
            loaded,
            source,
            out,
            images=images,
            captions=captions,
            descriptions=described,
            batch=batch,
            progress=step,
        )
    skipped = counts.pop("skipped")
    told = ", ".join(f"{number} {name}" for name, number in counts.items())
    print(
        f"written: {out} ({told})" + (f"; {skipped} samples were skipped, see notes.jsonl" if skipped else "")
    )


@app.command()
def convert(
    source: Annotated[
        str,
        typer.Argument(
            metavar="IN", help="Run folder on CLIP or SigLIP towers, or a checkpoint: folder, file or name."
        ),
    ],
    out: Annotated[
        Path,
        typer.Argument(metavar="OUT", help="New Hugging Face folder, or FILE.safetensors for open_clip."),
    ],
    scoring: Annotated[
        str | None,
        typer.Option(help="How pairs are scored, for runs with several ways: vectors can be written."),
    ] = None,
) -> None:
    """Write a CLIP or SigLIP for other programs, with its tokenizer, and measure that it stayed the same."""
    from grainline.convert import convert as run

    moved = run(source, out, scoring)
    print(f"written: {out} (vectors of pictures moved by {moved.image:.1e}, of texts by {moved.text:.1e})")


@data.command()
def check(
    path: Annotated[str, typer.Argument(help="A data source.")],
    images: Images = None,
    limit: Annotated[
        int | None, typer.Option(min=1, help="Look at this many samples only, evenly spread.")
    ] = None,
    damage: Annotated[float, typer.Option(min=0, max=1, help="Share of samples that may be damaged.")] = 0.02,
) -> None:
    """Say what a data source holds and what is wrong with it. Exit code 1 if it is not fit for use."""
    from grainline.data.captions import sentences
    from grainline.data.check import check as look
    from grainline.data.check import render, usable
    from grainline.data.sources import open_source

    with progress("checking") as step:
        report = look(open_source(path, images=images), sentences, limit=limit, progress=step)
    print(render(report))
    if not usable(report, damage):
        raise typer.Exit(1)


@data.command()
def scenes(
    out: Annotated[Path, typer.Option(help="Folder for the tars.")],
    source: Annotated[str, typer.Argument(help="Such as scenes:train?count=1000&size=224&seed=1")] = "scenes",
    samples_per_shard: Annotated[int, typer.Option(min=1, help="Samples in each tar.")] = 1000,
) -> None:
    """Write scenes as WebDataset tars, with captions, foils, phrases and masks."""
    from grainline.data.scenes.export import export
    from grainline.data.sources.scenes import Scenes

    shards = export(Scenes(source), out, samples_per_shard)
    print(f"written: {len(shards)} tars in {out}")


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Folder of the run and its report.")] = Path("out/demo"),
    changes: Sets = None,
) -> None:
    """Train a small model on drawn scenes, measure it and write report.html: a few minutes on two cores."""
    from grainline.demo import demo as run_demo

    run_demo(out, changes or [])


def main() -> NoReturn:
    """Run the command line. A user's error is one line on stderr and exit code 2."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):  # names of files may hold what the terminal cannot show
            stream.reconfigure(errors="backslashreplace")
    usage: Any = typer.BadParameter.__mro__[1]  # typer carries its own click, or an installed one
    try:
        code = app(_spread(sys.argv[1:] or ["--help"]), standalone_mode=False)
    except usage as error:
        _fail(f"{error.format_message()} See grainline --help.")
    except UserError as error:
        _fail(str(error))
    except (KeyboardInterrupt, typer.Abort):
        code = INTERRUPTED
    if code == INTERRUPTED:  # typer makes this of Ctrl-C by itself, and returns it
        print("grainline: interrupted; a training run goes on with --resume", file=sys.stderr)
    sys.exit(code if isinstance(code, int) else 0)


def _spread(arguments: list[str]) -> list[str]:
    """`--data a b` becomes `--data a --data b`.

    >>> _spread(["train", "r", "--data", "a", "b", "--out", "o"])
    ['train', 'r', '--data', 'a', '--data', 'b', '--out', 'o']
    """
    out: list[str] = []
    option, first = "", False
    for argument in arguments:
        if argument.startswith("-"):
            option, first = argument if argument in VARIADIC else "", True
        elif option and not first:
            out.append(option)
        else:
            first = False
        out.append(argument)
    return out


def _fail(message: str) -> NoReturn:
    print(f"grainline: {' '.join(message.split())}", file=sys.stderr)
    sys.exit(2)


def _yaml(value: Any) -> str:
    """A value as `--set` reads it."""
    import json

    return json.dumps(value)


def _descriptions(model: Any, path: str, names: list[str] | None) -> Any:
    """The descriptions that a model reads; None where it reads none."""
    from grainline.data.descriptions import require_fit
    from grainline.recipe import descriptions_of

    found = descriptions_of(path, names or ()) if names or model.method.describes else None
    require_fit(model.description.method, model.method.describes, found, "--descriptions")
    return found


def _open(paths: list[str] | None, images: str | None, size: int) -> Any:
    from grainline.data.sources import open_sources

    if not paths:
        raise UserError("no data; give --data PATH..., such as --data scenes:dev or --data photos/")
    return open_sources(paths, images=images, size=size)
