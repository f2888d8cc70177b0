"""The commands `evaluate`, `compare`, `suites`, `encode` and `show`."""

import sys
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from grainline.cli.options import (
    BatchSize,
    Data,
    Descriptions,
    MaxCorrupt,
    Model,
    check,
    check_model,
    fields_of,
    from_signature,
    names_of,
    next_step,
)
from grainline.errors import UserError
from grainline.progress import progress


@from_signature("evaluation/evaluate_model.py:evaluate", without=("show_progress_bar",))
def evaluate(  # noqa: PLR0913 - each is an option of the command; half is signature and docstring
    model: str | None = None,
    *,
    data: Data = None,
    vectors: list[str] | None = None,
    pairs: Path | None = None,
    scores: Path | None = None,
    suite: Annotated[str, typer.Option(autocompletion=names_of)] = "retrieval",
    changes: Annotated[list[str] | None, typer.Option("--set", autocompletion=fields_of)] = None,
    descriptions: Descriptions = None,
    seed: Annotated[int, typer.Option(min=0)] = 0,
    batch_size: BatchSize = 64,
    memory: Annotated[int, typer.Option(min=1)] = 256,
    max_corrupt: MaxCorrupt = 0.02,
    **settings: Any,
) -> None:
    """Measure a model, or vectors of another program, with intervals and chance.

    model    run folder, weights inside one, or a checkpoint; none with --vectors
    vectors  in place of MODEL and --data: vectors of another program, of images and of texts, in two files
             (.npy, .npz, .safetensors), or one with both
    pairs    with --vectors: a line {"image": ROW or NAME, "text": "..."} for each text
    scores   scores of images x texts in a .npy file, which rank in place of the vectors
    suite    one of `grainline suites`, or module:Class
    changes  options that `grainline suites SUITE` lists
    memory   most memory for scores, in MiB
    """
    check(suite=suite, changes=changes)
    if model is not None:
        check_model(model)
    elif not vectors and scores is None:
        advice = "give a run folder or a checkpoint, or vectors of another program"
        raise UserError(f"no MODEL and no --vectors; {advice}")
    check(sources=data)
    from grainline.evaluation.evaluate_model import as_text
    from grainline.evaluation.evaluate_model import evaluate as run
    from grainline.evaluation.suite import load_suite
    from grainline.training.recipe import descriptions_for

    result = run(
        model, data, load_suite(suite, changes or ()), vectors=vectors or None, pairs=pairs, scores=scores,
        batch_size=batch_size, seed=seed, max_corrupt=max_corrupt, memory=memory * 2**20,
        descriptions=lambda opened: descriptions_for(opened, str(model), descriptions), **settings,
    )  # fmt: skip
    print(as_text(result))
    for path in filter(None, (settings["json"], settings["html"])):
        print(f"written: {path}")
    more = ["--data", *(data or ()), "--suite", suite]
    if model is not None and settings["json"] is not None:
        next_step("grainline", "evaluate", "ANOTHER_MODEL", *more, "--compare-to", settings["json"])
    elif model is not None:
        next_step("grainline", "evaluate", model, *more, "--html", "out.html")


@from_signature("evaluation/run_comparison.py:compare", without=("say", "show_progress_bar"))
def compare(  # noqa: PLR0913 - each is an option of the command
    models: Annotated[list[str], typer.Argument(metavar="MODEL...")],
    *,
    data: list[str] | None = None,
    suite: Annotated[list[str] | None, typer.Option(autocompletion=names_of)] = None,
    changes: Annotated[list[str] | None, typer.Option("--set", autocompletion=fields_of)] = None,
    captions: list[str] | None = None,
    measures: list[str] | None = None,
    descriptions: Descriptions = None,
    batch_size: BatchSize = 64,
    seed: Annotated[int, typer.Option(min=0)] = 0,
    memory: Annotated[int, typer.Option(min=1)] = 256,
    max_corrupt: MaxCorrupt = 0.02,
    **settings: Any,
) -> None:
    """Compare models on data: a table with intervals, paired differences, ranks, time and memory.

    Without --data, two files of `grainline evaluate --json`: the later one, then the earlier one.

    memory   most memory for scores, in MiB
    """
    for name in suite or ():
        check(suite=name)
    check(changes=changes)
    from grainline.evaluation.run_comparison import compare as run
    from grainline.training.recipe import descriptions_for

    result = run(
        *models, data=data, suite=suite or "retrieval", changes=changes or (), captions=captions or (),
        measures=measures or (), batch_size=batch_size, seed=seed, max_corrupt=max_corrupt,
        memory=memory * 2**20,
        descriptions=lambda model, path: descriptions_for(
            model, path, descriptions if model.method.reads_descriptions else None
        ),
        say=lambda line: print(line, file=sys.stderr), **settings,
    )  # fmt: skip
    print(result)
    for path in filter(None, (settings["json"], settings["out"])):
        print(f"written: {path}")


@from_signature()
def suites(
    name: Annotated[str | None, typer.Argument(autocompletion=names_of, show_default=False)] = None,
) -> None:
    """List the suites of `grainline evaluate`, or the options of one.

    name  a suite, for its options
    """
    if name is not None:
        check(suite=name)
    from grainline.evaluation import SUITES
    from grainline.evaluation.suite import suite_class

    if name is None:
        for suite in SUITES:
            print(f"{suite:<16}  {_summary(suite_class(suite))}")
        return
    cls = suite_class(name)
    print(f"{cls.name}: {_summary(cls)}")
    print(f"--captions: {', '.join(cls.captions)} ({cls.reads})")
    if not cls.Options.model_fields:
        print("no options")
    for key, field in cls.Options.model_fields.items():
        kind = _type(cls.Options.model_json_schema()["properties"][key])
        print(f"--set {key}={field.default} ({kind}): {field.description or ''}")


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


@from_signature("embedding/write.py:write_vectors", without=("batch",))
def encode(
    model: Model,
    source: str,
    *,
    out: str,
    descriptions: Descriptions = None,
    batch_size: BatchSize = 64,
    **settings: Any,
) -> None:
    """Write unit vectors of all images and texts of a source, or of the lines of a text file.

    source  a data source, or a .txt file with one text a line
    out     folder for parts with a manifest, here or at a URL; where it was begun, it goes on
    """
    check_model(model)
    started = time.monotonic()
    from grainline.embedding.write import gpu_of_rank, write_vectors
    from grainline.loading import load
    from grainline.training.recipe import descriptions_for

    loaded = load(model, device=gpu_of_rank())
    own = None if source.endswith(".txt") else descriptions_for(loaded, model, descriptions)
    with progress("encoding", "parts") as step:
        manifest = write_vectors(
            loaded, model, source, out, batch=batch_size, descriptions=own, progress=step, **settings
        )
    written = ", ".join(f"{manifest[side]} {side}" for side in ("images", "texts") if manifest[side])
    failed = f"; {manifest['failed']} samples failed, see parts/*.failed.jsonl" if manifest["failed"] else ""
    cut = f"; {manifest['cut']} texts were cut: longer than the model reads" if manifest["cut"] else ""
    speed = manifest["images"] / (time.monotonic() - started)
    print(f"written: {out} ({written}){f', {speed:.1f} images/s' if speed else ''}{failed}{cut}")
    for note in manifest["notes"]:
        print(note)


@from_signature("evaluation/show.py:show", without=("texts",))
def show(
    model: Model,
    images: Annotated[list[str], typer.Argument(metavar="IMAGE...", help="One or more files.")],
    *,
    text: list[str] | None = None,
    descriptions: list[str] | None = None,
    **settings: Any,
) -> None:
    """Show where texts are in images, and the segments, attention or selected patches of a method.

    text          one or more texts; each sentence and phrase of one has a map of its own
    descriptions  descriptions of the images, for methods that read them: files of `data describe`; keys are
                  paths as they are given, or names of files (default: those of the run's recipe)
    """
    check_model(model)
    from grainline.evaluation.show import show as run
    from grainline.training.recipe import descriptions_for

    settings["descriptions"] = lambda opened: descriptions_for(opened, model, descriptions)
    run(model, images, text or (), **settings)
    for path in settings["out"]:
        print(f"written: {path}")
