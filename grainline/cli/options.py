"""Options of commands from the signatures of functions, checks that need no torch, and the line "next:".

The checks report a mistake that can be found without loading torch.
"""

import ast
import inspect
import re
import shlex
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from contextvars import ContextVar
from copy import copy
from functools import cache
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_args, get_origin

import typer

from grainline.errors import UserError

START, TRAIN, SEARCH, DATA = "First steps", "Train and measure", "Search", "Data and other programs"
"""Groups of commands in the help."""

HELP = {"help_option_names": ["-h", "--help"]}

QUIET: ContextVar[bool] = ContextVar("QUIET", default=False)
"""Whether `--quiet` was given: no line "next:"."""

PACKAGE = Path(__file__).parents[1]
ROW = re.compile(r"^(\w+)  +(\S.*(?:\n +\S.*)*)\n?", re.MULTILINE)
TYPES = {"str", "Path", "bool", "int", "float", "Any", "None"}
F = TypeVar("F", bound=Callable[..., Any])


def from_signature(like: str = "", without: Sequence[str] = ()) -> Callable[[F], F]:
    """A decorator of commands: arguments and options come from the signature, their help from the docstring.

    Parameters before the `*` are arguments. A line "name  meaning" of the docstring is a help.

    like     "file.py:function": its parameters with a default are options too, and its docstring has their
             help; the command gets them as **settings. It is read and not imported, which would load torch.
    without  parameters of it that are no options
    """

    def decorate(function: F) -> F:
        doc = inspect.getdoc(function) or ""
        parameters = inspect.signature(function, eval_str=True).parameters.items()
        own = {name: one for name, one in parameters if one.kind is not one.VAR_KEYWORD}
        others, outer_doc = _read(like) if like else ({}, "")
        own |= {name: one for name, one in others.items() if name not in (*own, *without)}
        help_of = {name: " ".join(text.split()) for name, text in ROW.findall(f"{outer_doc}\n{doc}")}
        shape = inspect.Signature([_as_typer(one, help_of.get(name, "")) for name, one in own.items()])
        function.__signature__, function.__doc__ = shape, ROW.sub("", doc)  # type: ignore[attr-defined]
        return function

    return decorate


def _read(like: str) -> tuple[dict[str, inspect.Parameter], str]:
    """Parameters with a plain type and a default of the function "file.py:function", and its docstring."""
    file, _, names = like.partition(":")
    node: Any = _parsed(file)
    for name in names.split("."):
        node = next(one for one in node.body if getattr(one, "name", "") == name)
    shape, out = node.args, {}
    last = shape.args[len(shape.args) - len(shape.defaults) :]
    for one, default in zip([*last, *shape.kwonlyargs], [*shape.defaults, *shape.kw_defaults], strict=True):
        annotation = ast.unparse(one.annotation)
        inner = annotation.removeprefix("Sequence[").removesuffix("]").split(" | ")
        if not isinstance(default, ast.Constant | ast.Tuple) or not set(inner) <= TYPES:
            continue
        kind: Any = next((x for x in (Path, bool, int, float) if x.__name__ in inner), str)
        kind = list[kind] if annotation.startswith("Sequence") else kind | None if "None" in inner else kind
        value = list(x) if isinstance(x := ast.literal_eval(default), tuple) else x
        keyword = inspect.Parameter.KEYWORD_ONLY
        out[one.arg] = inspect.Parameter(one.arg, keyword, default=value, annotation=kind)
    return out, ast.get_docstring(node) or ""


@cache
def _parsed(file: str) -> ast.Module:
    return ast.parse((PACKAGE / file).read_text(encoding="utf-8"))


def _as_typer(one: inspect.Parameter, meaning: str) -> inspect.Parameter:
    """A parameter with typer's `Argument` or `Option`, made here or completed with the help."""
    kind, info = one.annotation, None
    if get_origin(kind) is Annotated:
        kind, info = get_args(kind)
    if info is None and one.kind is not one.KEYWORD_ONLY:
        info = typer.Argument(show_default=one.default is not None)
    elif info is None:  # no --no-NAME
        info = typer.Option(*[f"--{one.name.replace('_', '-')}"] * (kind is bool))
    info = copy(info)
    info.help = info.help or f"{meaning[:1].upper()}{meaning[1:].rstrip('.')}."
    return one.replace(annotation=Annotated[kind, info])


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


def names_of(ctx: typer.Context, incomplete: str) -> list[str]:
    """The recipes, or the suites, that begin so, for the shell."""
    from grainline import recipes
    from grainline.evaluation import SUITES

    names = recipes.names() if ctx.info_name in ("recipes", "train") else SUITES
    return [name for name in names if name.startswith(incomplete)]


def fields_of(ctx: typer.Context, incomplete: str) -> list[str]:
    """The fields of the recipe, or the options of the suite, that begin so, for the shell."""
    names: list[str] = []
    with suppress(UserError):  # of an unknown name
        from grainline.evaluation.suite import suite_class
        from grainline.training.recipe import read_recipe

        if "suite" in ctx.params:
            names += suite_class(ctx.params["suite"] or "retrieval").Options.model_fields
        else:
            names += read_recipe([*ctx.args, "maxsim/scenes"][0], []).settings()
    return [f"{name}=" for name in names if name.startswith(incomplete)]


RecipeChanges = Annotated[
    list[str] | None,
    typer.Option("--set", help="Fields: train.max_steps=500 data.workers=2", autocompletion=fields_of),
]


def check(
    recipe: str | None = None,
    suite: str | None = None,
    changes: Sequence[str] | None = None,
    sources: Sequence[str] | None = None,
) -> None:
    """UserError for an unknown name, a `--set` that is no KEY=VALUE, and data that is not there."""
    from grainline import recipes
    from grainline.config import class_path, override
    from grainline.data.open_source import takes_images
    from grainline.evaluation import SUITES

    if recipe is not None:
        recipes.find(recipe)
    if suite is not None:
        class_path(suite, "suite", SUITES, "--suite")
    override({}, list(changes or ()))
    for path in sources or ():
        takes_images(path)


def check_model(name: str) -> None:
    """UserError for a path that is not there and that no model of the Hugging Face hub can have as a name."""
    from grainline.config import require_model_name

    if not Path(name).exists():
        require_model_name(name)


def next_step(*words: object) -> None:
    """Say which command comes next, on stderr. Only on a terminal, and not with --quiet."""
    if sys.stderr.isatty() and not QUIET.get():
        print(f"next: {shlex.join(str(word) for word in words)}", file=sys.stderr)
