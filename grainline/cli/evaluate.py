"""The commands `evaluate` and `encode`: a model is measured; its vectors are written."""

from pathlib import Path
from typing import Annotated, Any

import typer

from grainline.cli.progress import progress

Many = Annotated[list[str] | None, typer.Option(help="One or more data sources, as in docs/data.md.")]
Images = Annotated[str | None, typer.Option(help="Folder of the images, for files that name them by path.")]
Descriptions = Annotated[
    list[str] | None,
    typer.Option(
        help="Descriptions of the images, for methods that read them: files of `data describe`, or long"
        " (default: those of the run's recipe)."
    ),
]


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
        str, typer.Option(help="A name that `grainline suites` lists, or module:Class of your own.")
    ] = "retrieval",
    changes: Annotated[
        list[str] | None,
        typer.Option("--set", help="Options of the suite, key=value; `grainline suites SUITE` lists them."),
    ] = None,
    captions: Annotated[
        str | None,
        typer.Option(help="whole (default): all that is said as one text; each; first."),
    ] = None,
    scoring: Annotated[
        str | None,
        typer.Option(
            help="How pairs are scored, for methods with several ways: vectors, conditioned, conditioned:0.5."
        ),
    ] = None,
    patches: Annotated[
        str | None,
        typer.Option(
            help="Image tokens of a CLIP: values takes those of the last layer without its attention, as"
            " published for fg-ovd (default: as the model has them)."
        ),
    ] = None,
    compare_to: Annotated[
        str | None, typer.Option(help="Compare with an earlier result (--json) on the same data.")
    ] = None,
    json: Annotated[Path | None, typer.Option(help="Write settings, data, versions and numbers.")] = None,
    html: Annotated[
        Path | None, typer.Option(help="Write a page: the numbers, and outcomes from best to worst.")
    ] = None,
    png: Annotated[
        Path | None,
        typer.Option(help="Write the figure of the suite; `grainline suites` says which have one."),
    ] = None,
    descriptions: Descriptions = None,
    seed: Annotated[int, typer.Option(min=0, help="Of the bootstrap.")] = 0,
    batch_size: Annotated[int, typer.Option(min=1, help="Images and texts encoded at a time.")] = 64,
    memory: Annotated[int, typer.Option(min=1, help="Most memory for scores, in MiB.")] = 256,
    max_corrupt: Annotated[
        float, typer.Option(min=0, max=1, help="Share of samples that may be damaged.")
    ] = 0.02,
) -> None:
    """Measure a model, with intervals and chance."""
    from rich.console import Console

    from grainline.evaluation.measure import evaluate as run
    from grainline.evaluation.measure import tables
    from grainline.evaluation.suite import Settings, load_suite
    from grainline.training.recipe import descriptions_for

    loaded = load_suite(suite, changes or ())
    settings = Settings(
        loaded.choose_captions(captions), batch_size, max_corrupt, seed, memory=memory * 2**20
    )
    result = run(
        model,
        data or (),
        loaded,
        settings,
        images=images,
        scoring=scoring,
        patches=patches,
        compare_to=compare_to,
        json=json,
        html=html,
        png=png,
        descriptions=lambda opened: descriptions_for(opened, model, descriptions),
        progress=lambda: progress("encoding"),
    )
    for shown in tables(result):
        Console().print(shown)
    for path in filter(None, (json, html, png)):
        print(f"written: {path}")


def suites(
    name: Annotated[
        str | None, typer.Argument(help="List the options of this suite.", show_default=False)
    ] = None,
) -> None:
    """List the suites of `grainline evaluate`, or the options of one."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    from grainline.evaluation.suite import SUITES, suite_class

    out = Table(show_lines=False)
    if name is None:
        for column in ("suite", "what it measures", "--png draws"):
            out.add_column(column, overflow="fold")
        for known in SUITES:
            cls = suite_class(known)
            out.add_row(known, escape(summary_of(cls)), cls.figure or "-")
        Console().print(out)
        return
    cls = suite_class(name)
    print(f"{cls.name}: {summary_of(cls)}")
    print(f"--captions: {', '.join(cls.captions)} ({cls.reads})")
    if not cls.Options.model_fields:
        print("no options")
        return
    for column in ("--set", "type", "default", "meaning"):
        out.add_column(column, overflow="fold")
    for option, field in cls.Options.model_fields.items():
        schema = cls.Options.model_json_schema()["properties"][option]
        out.add_row(
            option, escape(type_of(schema)), escape(str(field.default)), escape(field.description or "")
        )
    Console().print(out)


def summary_of(cls: type) -> str:
    """The first sentence of the docstring of a class."""
    return " ".join((cls.__doc__ or "").split("\n\n")[0].split())


def type_of(schema: dict[str, Any]) -> str:
    """The type of an option in words, from its JSON schema.

    >>> type_of({"anyOf": [{"type": "integer"}, {"type": "null"}]}), type_of({"enum": ["a", "b"]})
    ('integer or null', 'a, b')
    """
    if "anyOf" in schema:
        return " or ".join(map(type_of, schema["anyOf"]))
    if "enum" in schema or "const" in schema:
        return ", ".join(map(str, schema.get("enum", [schema.get("const")])))
    inner = f" of {type_of(schema['items'])}" if "items" in schema else ""
    return str(schema.get("type", "any")) + inner


def encode(
    model: Annotated[str, typer.Argument(help="Run folder, weights inside one, or a checkpoint.")],
    source: Annotated[str, typer.Argument(help="A data source, or a .txt file with one text a line.")],
    out: Annotated[
        Path, typer.Option(help="New folder for vectors.safetensors, rows.jsonl and notes.jsonl.")
    ],
    images: Images = None,
    captions: Annotated[str, typer.Option(help="Texts of a data source: whole, each or first.")] = "whole",
    descriptions: Descriptions = None,
    batch_size: Annotated[int, typer.Option(min=1, help="Images and texts encoded at a time.")] = 64,
) -> None:
    """Write unit vectors of all images and texts of a source, or of the lines of a text file."""
    from grainline.cli.encode import encode_path
    from grainline.model import load
    from grainline.training.recipe import descriptions_for

    loaded = load(model)
    described = None if source.endswith(".txt") else descriptions_for(loaded, model, descriptions)
    with progress("encoding") as step:
        counts = encode_path(
            loaded,
            source,
            out,
            images=images,
            captions=captions,
            descriptions=described,
            batch=batch_size,
            progress=step,
        )
    skipped = counts.pop("skipped")
    told = ", ".join(f"{number} {name}" for name, number in counts.items())
    print(
        f"written: {out} ({told})" + (f"; {skipped} samples were skipped, see notes.jsonl" if skipped else "")
    )
