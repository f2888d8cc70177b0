"""The command line, and the commands that have no file of their own. torch is loaded when one needs it."""

import os
import sys
from io import TextIOWrapper
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from grainline import __version__
from grainline.cli import evaluate, index
from grainline.cli.data import data
from grainline.cli.options import Data, Images, RecipeChanges
from grainline.errors import UserError, escape_controls
from grainline.stop import Stopped

app = typer.Typer(
    name="grainline",
    help="Align images with text at every grain: train, evaluate, encode, search.",
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
app.add_typer(data, name="data")
app.add_typer(index.index, name="index")
app.command()(index.search)
app.command()(evaluate.show)
app.command()(index.serve)
app.command()(index.export)

INTERRUPTED = 130  # exit code after Ctrl-C, as shells have it
VARIADIC = ("--data", "--set", "--validation", "--text", "--descriptions")


@app.callback(invoke_without_command=True)
def top(
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
    trust_code: Annotated[
        bool,
        typer.Option("--trust-code", help="Import the classes outside grainline that a model names."),
    ] = False,
) -> None:
    from grainline.config import TRUST_CODE

    TRUST_CODE.set(trust_code)
    if version:
        print(f"grainline {__version__}")
        raise typer.Exit


@app.command()
def train(
    recipe: Annotated[str, typer.Argument(help="Name of a built-in recipe (clip/scenes) or a YAML file.")],
    out: Annotated[Path, typer.Option(help="Folder of the run.")],
    data: Data = None,
    images: Images = None,
    validation: Annotated[
        list[str] | None, typer.Option(help="Sources to measure on while training.")
    ] = None,
    changes: RecipeChanges = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on from the newest checkpoint in --out.")
    ] = False,
    checkpoint: Annotated[
        str | None, typer.Option(help="With --resume: the checkpoint to go on from, such as step-00000200.")
    ] = None,
) -> None:
    """Train a recipe. With torchrun: torchrun --nproc-per-node 2 -m grainline train ..."""
    from grainline.training.run import train as run

    last = run(
        recipe,
        out,
        data=data or (),
        validation=validation or (),
        images=images,
        changes=changes or (),
        resume=resume,
        checkpoint=checkpoint,
    )
    if os.environ.get("RANK", "0") == "0":  # torchrun starts several of us
        print(f"trained: {last}")


app.command()(evaluate.evaluate)
app.command()(evaluate.suites)
app.command()(evaluate.encode)


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
    from grainline.export.huggingface import convert as run

    moved = run(source, out, scoring)
    print(f"written: {out} (vectors of images moved by {moved.image:.1e}, of texts by {moved.text:.1e})")


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Folder of the run and its report.")] = Path("out/demo"),
    changes: RecipeChanges = None,
) -> None:
    """Train a small model on drawn scenes, measure it and write report.html: a few minutes on two cores."""
    from grainline.training.demo import demo as run

    run(out, changes or [])


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
    except Stopped as stop:
        if os.environ.get("RANK", "0") == "0":
            print(f"grainline: {escape_controls(str(stop))}", file=sys.stderr)
        sys.exit(stop.code)
    except (KeyboardInterrupt, typer.Abort):
        code = INTERRUPTED
    if code == INTERRUPTED:  # typer makes this of Ctrl-C by itself, and returns it
        print("grainline: interrupted; a training run continues with --resume", file=sys.stderr)
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
