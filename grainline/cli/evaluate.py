"""The commands `evaluate` and `encode`: a model is measured; its vectors are written."""

from pathlib import Path
from typing import Annotated, Any

import typer

from grainline.cli.progress import progress
from grainline.errors import UserError

Many = Annotated[list[str] | None, typer.Option(help="One or more data sources, as in docs/data.md.")]
Images = Annotated[str | None, typer.Option(help="Folder of the pictures, for files that name them by path.")]
Descriptions = Annotated[
    list[str] | None,
    typer.Option(
        help="Descriptions of the pictures, for methods that read them: files of `data describe`, or long"
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
    map: Annotated[
        str | None,
        typer.Option(
            help="comprehension: attention adds the map of the last attention to those by tokens (gradient)."
        ),
    ] = None,
    resize: Annotated[
        str | None,
        typer.Option(
            help="fg-ovd: squash (default) presses whole images into the square, as published; model: what"
            " the model sees elsewhere."
        ),
    ] = None,
    patches: Annotated[
        str | None,
        typer.Option(
            help="Image tokens of a CLIP: values takes those of the last layer without its attention, as"
            " published for fg-ovd (default: as the model has them)."
        ),
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

    from grainline.evaluation.options import ask, encoded, measured, with_files, with_map, with_resize
    from grainline.evaluation.outcome import Options
    from grainline.evaluation.pages.examples import Measured
    from grainline.evaluation.pages.figure import besides, draw, refuse_unplaced
    from grainline.evaluation.pages.report import write_html
    from grainline.evaluation.result import writable, write
    from grainline.evaluation.table import tables
    from grainline.fingerprint import origin
    from grainline.model import load
    from grainline.training.recipe import descriptions_for

    options = Options(protocol, seed, memory=memory * 2**20, shortlist=shortlist, exact=exact)
    asked = ask(suite, options, captions, prompts, classes, noise_seed, against, scoring)
    asked = with_resize(with_map(with_files(asked, model, trained, boxes), map), resize)
    others = besides(suite, (png, html), beside, samples)
    for path in filter(None, (json, html, png)):
        writable(path)
    loaded = load(model, scoring=scoring, patches=patches)
    refuse_unplaced(png, suite, loaded)
    told = descriptions_for(loaded, model, descriptions)
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
            batch=batch,
            progress=step,
        )
    skipped = counts.pop("skipped")
    told = ", ".join(f"{number} {name}" for name, number in counts.items())
    print(
        f"written: {out} ({told})" + (f"; {skipped} samples were skipped, see notes.jsonl" if skipped else "")
    )


def _open(paths: list[str] | None, images: str | None, size: int) -> Any:
    from grainline.data.open_source import open_sources

    if not paths:
        raise UserError("no data; give --data PATH..., such as --data scenes:dev or --data photos/")
    return open_sources(paths, images=images, size=size)
