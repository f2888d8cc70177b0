"""The command line, and the commands that have no file of their own. torch is loaded when one needs it."""

import itertools
import os
import re
import sys
from contextlib import suppress
from io import TextIOWrapper
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from grainline import __version__
from grainline import recipes as built_in
from grainline.cli import evaluate, index
from grainline.cli.data import data
from grainline.cli.options import (
    DATA,
    HELP,
    QUIET,
    SEARCH,
    START,
    TRAIN,
    Data,
    RecipeChanges,
    check,
    check_model,
    from_signature,
    names_of,
    next_step,
)
from grainline.errors import UserError, escape_controls, path_of
from grainline.stop import Stopped

app = typer.Typer(
    name="grainline",
    help="Train, evaluate and search with CLIP-like models.",
    context_settings=HELP,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)

INTERRUPTED = 130  # exit code after Ctrl-C, as shells have it
SWITCHES = ("--quiet", "-q", "--trust-code")  # taken behind the command too
VARIADIC: tuple[str, ...] = "--with", "--data", "--set", "--validation", "--text", "--descriptions"
VARIADIC += "--vectors", "--results", "--datasets"
OF_COMPARE = ("--suite", "--captions", "--measures")  # options that take several values in that command


@app.callback(invoke_without_command=True)
def top(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
    trust_code: Annotated[
        bool, typer.Option("--trust-code", help="Import classes outside grainline that a model names.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help='Print no line "next:".')] = False,
) -> None:
    from grainline.config import trusting

    QUIET.set(quiet)
    context.with_resource(trusting(sys.argv, everything=trust_code))
    if version:
        print(f"grainline {__version__}")
        raise typer.Exit


@app.command(rich_help_panel=START, epilog="Example: grainline demo --out out/demo")
def demo(
    out: Annotated[Path, typer.Option(help="Folder of the run and its report.")] = Path("out/demo"),
    changes: RecipeChanges = None,
) -> None:
    """Train a small model on drawn scenes, measure it and write report.html: a few minutes on two cores."""
    check("maxsim/scenes", changes=changes)
    from grainline.training.demo import demo as run

    run(out, changes or [])
    next_step("grainline", "evaluate", out, "--data", "scenes:dev?count=500", "--suite", "probes")
    print(
        'On photographs: pip install "grainline[starter]" -c constraints.txt && '
        "grainline train photos/starter --data photos/ --out runs/starter"
    )


app.command(rich_help_panel=START, epilog="Example: grainline photos ~/Photos")(index.photos)


@app.command(rich_help_panel=START, epilog="Example: grainline recipes clip/finetune")
@from_signature()
def recipes(
    name: Annotated[str | None, typer.Argument(show_default=False, autocompletion=names_of)] = None,
) -> None:
    """List the recipes of the package, or print one. A method's name lists its ablations too.

    name  a recipe to print, or a method
    """
    names = built_in.names()
    if name is not None and name not in (each.partition("/")[0] for each in names):
        print(built_in.find(name).read_text(encoding="utf-8"), end="")
        return
    listed = [each for each in names if name in (None, each.partition("/")[0])]
    left_out = sum(map(built_in.is_ablation, listed)) if name is None else 0
    for each in listed:
        if name is not None or not built_in.is_ablation(each):
            print(f"{each:<28}  {built_in.about(each)}")
    if left_out:
        print(f"and {left_out} ablations and controls: grainline recipes METHOD lists them")


@app.command(
    rich_help_panel=TRAIN, epilog="Example: grainline train clip/finetune --data photos/ --out runs/tuned"
)
@from_signature("training/run.py:train", without=("callbacks",))
def train(
    recipe: Annotated[str, typer.Argument(autocompletion=names_of)],
    *,
    out: Path | None = None,
    data: Data = None,
    validation: list[str] | None = None,
    changes: RecipeChanges = None,
    **settings: Any,
) -> None:
    """Train a recipe. On several processes: torchrun --nproc-per-node 2 -m grainline train ...

    recipe      one of `grainline recipes`, a YAML file, a run
    out         folder of the run; of RECIPE, if that is one
    validation  sources to measure on while training
    """
    if out is None and not Path(recipe).is_dir():
        raise UserError("no folder for the run; give --out FOLDER, or a run with --resume")
    check(recipe, changes=changes, sources=[*(data or ()), *(validation or ())])
    from grainline.training.run import train as run

    last = run(recipe, out, data=data, validation=validation, changes=changes or (), **settings)
    if os.environ.get("RANK", "0") == "0":  # torchrun starts several of us
        print(f"trained: {last}")
        next_step("grainline", "evaluate", out or recipe, "--data", *(validation or ["OTHER_DATA"]))


app.command(rich_help_panel=TRAIN, epilog="Example: grainline evaluate runs/x --data photos/ --html x.html")(
    evaluate.evaluate
)
app.command(
    rich_help_panel=TRAIN, epilog="Example: grainline compare runs/a runs/b --data photos/ --out page.html"
)(evaluate.compare)
app.command(rich_help_panel=TRAIN, epilog="Example: grainline suites retrieval")(evaluate.suites)
app.command(rich_help_panel=TRAIN, epilog="Example: grainline encode runs/x photos/ --out vectors/")(
    evaluate.encode
)
app.command(
    rich_help_panel=TRAIN,
    epilog='Example: grainline show runs/x photo.jpg --text "A dog runs. The sea is grey." --out look.png',
)(evaluate.show)


@app.command(
    rich_help_panel=TRAIN, epilog="Example: grainline average runs/tuned --weight 0.5 --out runs/mixed"
)
@from_signature("training/average.py:average")
def average(
    run: Annotated[str, typer.Argument(metavar="RUN")],
    *,
    out: Path,
    others: Annotated[list[str] | None, typer.Option("--with")] = None,
    **settings: Any,
) -> None:
    """Average the weights of a run with those it started from (WiSE-FT), or with other runs (a soup)."""
    for name in (run, *(others or ())):
        check_model(name)
    from grainline.training.average import average as mean

    print(f"written: {mean(run, out, others=others or (), **settings)}")


app.add_typer(index.index, name="index", rich_help_panel=SEARCH)
app.command(rich_help_panel=SEARCH, epilog='Example: grainline search photos.index "A brown dog." --open')(
    index.search
)
app.command(rich_help_panel=SEARCH, epilog="Example: grainline serve photos.index")(index.serve)
app.add_typer(data, name="data", rich_help_panel=DATA)
app.command(rich_help_panel=DATA, epilog="Example: grainline export runs/x onnx/")(index.export)


@app.command(rich_help_panel=DATA, epilog="Example: grainline convert runs/tuned tuned/")
@from_signature("export/huggingface.py:convert")
def convert(
    source: Annotated[str, typer.Argument(metavar="IN")],
    out: Annotated[Path, typer.Argument(metavar="OUT")],
    **settings: Any,
) -> None:
    """Write a CLIP or SigLIP for other programs, with its tokenizer, and measure that it stayed the same.

    source  run folder on CLIP or SigLIP towers, or a checkpoint: folder, file or name
    out     new Hugging Face folder, or FILE.safetensors for open_clip
    """
    from grainline.export.huggingface import convert as run

    moved = run(source, out, **settings)
    print(f"written: {out} (vectors of images moved by {moved.image:.1e}, of texts by {moved.text:.1e})")


@app.command(rich_help_panel=DATA, epilog="Example: grainline push runs/x owner/name --private")
@from_signature("model.py:Model.push_to_hub", without=("token",))
def push(
    run: Annotated[str, typer.Argument(metavar="RUN")],
    name: Annotated[str, typer.Argument(metavar="NAME")],
    *,
    results: list[str] | None = None,
    datasets: list[str] | None = None,
    **settings: Any,
) -> None:
    """Upload a model with its card to the Hugging Face hub. Log in with `hf auth login`, or set HF_TOKEN.

    run       run folder, or a folder of weights inside one
    results   for the card: files of `evaluate RUN --json`
    datasets  for the card: what it was trained on, as the hub names it: nlphuji/flickr30k
    """
    check_model(run)
    from grainline.config import HUB_NAME

    if HUB_NAME.fullmatch(name) is None:
        raise UserError(f"{name} is no name of the Hugging Face hub; write it as owner/model")
    from grainline.loading import load

    model = load(run, device="cpu")
    print(model.push_to_hub(name, results=results or (), datasets=datasets or (), **settings))


def main() -> NoReturn:
    """Run the command line. A user's error is one line on stderr and exit code 2."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):  # names of files may hold what the terminal cannot show
            stream.reconfigure(errors="backslashreplace")
    usage: Any = typer.BadParameter.__mro__[1]  # typer carries its own click, or an installed one
    try:
        code = _run(sys.argv)
    except usage as error:
        cause: Any = error.__cause__
        if hasattr(cause, "errors"):  # of pydantic, with which new versions of typer read values
            from grainline.config import plain

            first = cause.errors()[0]
            error.message = f"{first['input']!r} is not allowed: {plain(first)}."
        command = "grainline" if error.ctx is None else error.ctx.command_path
        _fail(f"{error.format_message().rstrip('.')}. {_hint(error)}See {command} --help.")
    except UserError as error:
        _fail(str(error))
    except Stopped as stop:
        if os.environ.get("RANK", "0") == "0":
            print(f"grainline: {escape_controls(str(stop))}", file=sys.stderr)
        sys.exit(stop.code)
    except (KeyboardInterrupt, typer.Abort):
        code = INTERRUPTED
    if code == INTERRUPTED:  # typer makes this of Ctrl-C by itself, and returns it
        print(
            "grainline: interrupted; to go on: grainline train RUN --resume, or the same comparison again",
            file=sys.stderr,
        )
    sys.exit(code if isinstance(code, int) else 0)


def _run(arguments: list[str]) -> Any:
    """The exit code of a command. UserError for an argument that is empty."""
    option = ""
    for before, argument in itertools.pairwise(arguments):
        option = argument if argument.startswith("--") else option
        name, sign, value = argument.partition("=") if argument.startswith("--") else ("", "", argument)
        if option != "--text" and (sign or not name) and (not value.strip() or os.path.islink(value)):
            path_of(value, name or f"the argument after {before}")
    try:
        return app(_spread(_switches_first(arguments[1:])), prog_name="grainline", standalone_mode=False)
    except OSError as error:  # of a file, such as a name that is too long
        if error.filename is None:
            raise
        raise UserError(f"{error.filename}: {error.strerror}") from error


def _hint(error: Any) -> str:
    """The place that a command has for a wrong option or argument; "" where it has none."""
    options = {} if error.ctx is None else {one.name for one in error.ctx.command.params}
    extra = re.search(r"unexpected extra argument\S* \((.*)\)", error.format_message())
    if extra and "data" in options:
        is_model = os.path.isfile(os.path.join(extra[1], "model.json"))
        return "The model comes first. " if is_model else f"Data is given by --data {extra[1]}. "
    name = str(getattr(error, "option_name", "")).lstrip("-").replace("-", "_")
    if name and "suite" in options and not getattr(error, "possibilities", None):
        return f"Options of a suite go by --set {name}=VALUE. "
    if name and "changes" in options and "suite" not in options:
        from grainline.training.recipe import field_of

        with suppress(UserError):
            return f"Fields of the recipe go by --set {field_of(name)}=VALUE. "
    return ""


def _switches_first(arguments: list[str]) -> list[str]:
    """Switches of all commands stand before the command; without any command, help does.

    >>> _switches_first(["encode", "runs/x", "photos/", "-q"]), _switches_first(["--quiet"])
    (['-q', 'encode', 'runs/x', 'photos/'], ['--quiet', '--help'])
    """
    first = [argument for argument in arguments if argument in SWITCHES]
    return first + ([argument for argument in arguments if argument not in SWITCHES] or ["--help"])


def _spread(arguments: list[str]) -> list[str]:
    """`--data a b` becomes `--data a --data b`.

    >>> _spread(["train", "r", "--data", "a", "b", "--out", "o"])
    ['train', 'r', '--data', 'a', '--data', 'b', '--out', 'o']
    """
    out: list[str] = []
    command = next((one for one in arguments if one not in SWITCHES), "")
    variadic = VARIADIC + OF_COMPARE * (command == "compare")
    option, first = "", False
    for argument in arguments:
        if argument.startswith("-"):
            option, first = argument if argument in variadic else "", True
        elif option and not first:
            out.append(option)
        else:
            first = False
        out.append(argument)
    return out


def _fail(message: str) -> NoReturn:
    print(f"grainline: {' '.join(message.split())}", file=sys.stderr)
    sys.exit(2)
