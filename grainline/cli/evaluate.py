"""The commands `evaluate`, `suites`, `encode` and `show`."""

import time
from pathlib import Path
from typing import Annotated, Any

import typer

from grainline.cli.options import (
    BatchSize,
    Data,
    Descriptions,
    Images,
    MaxCorrupt,
    Model,
    check_changes,
    check_model,
    check_sources,
    check_suite,
    fields_of,
    names_of,
    next_step,
)
from grainline.errors import UserError
from grainline.progress import progress


def evaluate(  # noqa: PLR0913 - each is an option of the command
    model: Annotated[
        str | None,
        typer.Argument(
            help="Run folder, weights inside one, or a checkpoint; none with --vectors.", show_default=False
        ),
    ] = None,
    data: Data = None,
    images: Images = None,
    vectors: Annotated[
        list[str] | None,
        typer.Option(
            help="In place of MODEL and --data: vectors of another program, of images and of texts, in two"
            " files (.npy, .npz, .safetensors), or one with both."
        ),
    ] = None,
    pairs: Annotated[
        Path | None,
        typer.Option(help='With --vectors: a line {"image": ROW or NAME, "text": "..."} for each text.'),
    ] = None,
    scores: Annotated[
        Path | None,
        typer.Option(help="Scores [images, texts] in a .npy file, which rank in place of the vectors."),
    ] = None,
    similarity: Annotated[
        str, typer.Option(help="Of --vectors: cosine, or dot for products of the vectors as they are.")
    ] = "cosine",
    suite: Annotated[
        str,
        typer.Option(help="One of `grainline suites`, or module:Class.", autocompletion=names_of),
    ] = "retrieval",
    changes: Annotated[
        list[str] | None,
        typer.Option("--set", help="Options that `grainline suites SUITE` lists.", autocompletion=fields_of),
    ] = None,
    captions: Annotated[
        str | None,
        typer.Option(
            help="auto (default): the long text, else each caption; whole: all as one; each; first."
        ),
    ] = None,
    scoring: Annotated[
        str | None,
        typer.Option(
            help="How to score pairs or read texts: vectors, conditioned, conditioned:0.5, whole, sentences."
        ),
    ] = None,
    patches: Annotated[
        str | None,
        typer.Option(
            help="Image tokens of a CLIP: values takes those of the last layer without its attention, as"
            " published for fg-ovd (default: as the model has them)."
        ),
    ] = None,
    context: Annotated[
        int | None,
        typer.Option(
            help="Longest text in tokens, for a checkpoint of others: 77 reads FG-CLIP by its short way."
        ),
    ] = None,
    walk_type: Annotated[
        str | None, typer.Option(help="Of an FG-CLIP 2: short, long or box texts (default: by --context).")
    ] = None,
    compare_to: Annotated[
        str | None, typer.Option(help="Compare with an earlier result (--json) on the same data.")
    ] = None,
    json: Annotated[Path | None, typer.Option(help="Write settings, data, versions and numbers.")] = None,
    html: Annotated[
        Path | None, typer.Option(help="Write a page: the numbers, and outcomes from best to worst.")
    ] = None,
    descriptions: Descriptions = None,
    seed: Annotated[int, typer.Option(min=0, help="Of the bootstrap.")] = 0,
    batch_size: BatchSize = 64,
    memory: Annotated[int, typer.Option(min=1, help="Most memory for scores, in MiB.")] = 256,
    max_corrupt: MaxCorrupt = 0.02,
) -> None:
    """Measure a model, or vectors of another program, with intervals and chance."""
    check_suite(suite)
    check_changes(changes)
    if model is not None:
        check_model(model)
    elif not vectors and scores is None:
        raise UserError(
            "no MODEL and no --vectors; give a run folder or a checkpoint, or vectors of another program"
        )
    check_sources(data)
    from rich.console import Console

    from grainline.evaluation.evaluate_model import evaluate as run
    from grainline.evaluation.evaluate_model import tables
    from grainline.evaluation.suite import load_suite
    from grainline.training.recipe import descriptions_for

    result = run(
        model, data, load_suite(suite, changes or ()), vectors=vectors or None, pairs=pairs, scores=scores,
        similarity=similarity, captions=captions, batch_size=batch_size, max_corrupt=max_corrupt, seed=seed,
        memory=memory * 2**20, images=images, scoring=scoring, patches=patches, context=context,
        walk_type=walk_type, compare_to=compare_to, json=json, html=html,
        descriptions=lambda opened: descriptions_for(opened, str(model), descriptions),
    )  # fmt: skip
    for table in tables(result):
        Console().print(table)
    for path in filter(None, (json, html)):
        print(f"written: {path}")
    of = [model] if vectors is None and scores is None else ["--vectors", *(vectors or ()), "--pairs", pairs]
    of += ["--data", *data] if data else []
    if json is None:
        next_step("grainline", "evaluate", *of, "--suite", suite, "--html", "out.html")
    elif model is not None:
        next_step("grainline", "evaluate", "ANOTHER_MODEL", *of[1:], "--compare-to", json)


def suites(
    name: Annotated[
        str | None,
        typer.Argument(help="A suite, for its options.", show_default=False, autocompletion=names_of),
    ] = None,
) -> None:
    """List the suites of `grainline evaluate`, or the options of one."""
    if name is not None:
        check_suite(name)
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Column, Table

    from grainline.evaluation import SUITES
    from grainline.evaluation.suite import suite_class

    if name is None:
        columns = ["suite", "what it measures"]
        classes = {suite: suite_class(suite) for suite in SUITES}
        rows = [[suite, _summary(cls)] for suite, cls in classes.items()]
    else:
        cls = suite_class(name)
        print(f"{cls.name}: {_summary(cls)}")
        print(f"--captions: {', '.join(cls.captions)} ({cls.reads})")
        if not cls.Options.model_fields:
            print("no options")
            return
        columns = ["--set", "type", "default", "meaning"]
        types = cls.Options.model_json_schema()["properties"]
        fields = cls.Options.model_fields.items()
        rows = [[key, _type(types[key]), str(f.default), f.description or ""] for key, f in fields]
    table = Table(*(Column(column, overflow="fold") for column in columns))
    for row in rows:
        table.add_row(*map(escape, row))
    Console().print(table)


def _summary(cls: type) -> str:
    """The first paragraph of the docstring of a class."""
    return " ".join((cls.__doc__ or "").split("\n\n")[0].split())


def _type(schema: dict[str, Any]) -> str:
    """The type of an option in words, from its JSON schema.

    >>> _type({"anyOf": [{"type": "integer"}, {"type": "null"}]}), _type({"enum": ["a", "b"]})
    ('integer or null', 'a, b')
    """
    if "anyOf" in schema:
        return " or ".join(map(_type, schema["anyOf"]))
    if "enum" in schema or "const" in schema:
        return ", ".join(map(str, schema.get("enum", [schema.get("const")])))
    inner = f" of {_type(schema['items'])}" if "items" in schema else ""
    return str(schema.get("type", "any")) + inner


def encode(
    model: Model,
    source: Annotated[str, typer.Argument(help="A data source, or a .txt file with one text a line.")],
    out: Annotated[
        Path, typer.Option(help="New folder for vectors.safetensors, rows.jsonl and notes.jsonl.")
    ],
    images: Images = None,
    captions: Annotated[str, typer.Option(help="Texts of a source: as in evaluate.")] = "auto",
    descriptions: Descriptions = None,
    batch_size: BatchSize = 64,
) -> None:
    """Write unit vectors of all images and texts of a source, or of the lines of a text file."""
    check_model(model)
    started = time.monotonic()
    from grainline.evaluation.encode import write_vectors
    from grainline.loading import load
    from grainline.training.recipe import descriptions_for

    loaded = load(model)
    described = None if source.endswith(".txt") else descriptions_for(loaded, model, descriptions)
    with progress("encoding") as step:
        counts = write_vectors(
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
    written = ", ".join(f"{number} {name}" for name, number in counts.items())
    note = f"; {skipped} samples were skipped, see notes.jsonl" if skipped else ""
    speed = counts.get("images", 0) / (time.monotonic() - started)
    print(f"written: {out} ({written}){f', {speed:.1f} images/s' if speed else ''}{note}")


def show(
    model: Model,
    images: Annotated[list[str], typer.Argument(metavar="IMAGE...", help="One or more files.")],
    text: Annotated[
        list[str] | None,
        typer.Option(help="One or more texts; each sentence and phrase of one has a map of its own."),
    ] = None,
    out: Annotated[
        list[Path] | None,
        typer.Option(help="File to write: .png for a figure, .html for a page; give it twice for both."),
    ] = None,
    others: Annotated[
        str | None,
        typer.Option(
            help="Other texts that heat is measured against: a .txt file with a text a line, or a data source"
            " with captions (default: built-in sentences of photographs or of drawn scenes)."
        ),
    ] = None,
    scale: Annotated[
        float | None,
        typer.Option(
            min=0, help="Weight of a token that has the full colour (default: 8 times an even share)."
        ),
    ] = None,
    descriptions: Annotated[
        list[str] | None,
        typer.Option(
            help="Descriptions of the images, for methods that read them: files of `data describe`; keys"
            " are paths as they are given, or names of files (default: those of the run's recipe)."
        ),
    ] = None,
) -> None:
    """Show where texts are in images, and the segments, attention or selected patches of a method."""
    check_model(model)
    from grainline.evaluation.show import show as run
    from grainline.training.recipe import descriptions_for

    run(
        model,
        images,
        text or (),
        out=out or (),
        scale=scale,
        others=others,
        descriptions=lambda opened: descriptions_for(opened, model, descriptions),
    )
    for path in out or ():
        print(f"written: {path}")
