"""The commands `index ...`, `search`, `serve`, `export`, `data phrases`, `data pack`,
`data superpixels`; main.py mounts them.

They load torch when run.
"""

from pathlib import Path
from typing import Annotated, Any

import typer

from grainline.cli.progress import progress
from grainline.errors import UserError, amount, plain

Folder = Annotated[Path, typer.Argument(metavar="INDEX", help="Folder of the index.")]
Paths = Annotated[list[str], typer.Argument(help="Pictures, or folders of pictures, below the folder.")]
Weights = Annotated[
    str | None, typer.Option(help="The model it was made with, if it does not lie where it lay then.")
]

Told = Annotated[
    list[str] | None,
    typer.Option(
        "--descriptions",
        help="Files of `data describe`, for methods that read descriptions; keys are paths below the folder.",
    ),
]

index = typer.Typer(help="Index a folder of pictures, and keep it up to date.", rich_markup_mode=None)


@index.command()
def build(
    images: Annotated[str, typer.Argument(help="Folder of pictures, folders below it included.")],
    model: Annotated[str, typer.Option(help="Run folder, weights inside one, or a checkpoint.")],
    out: Annotated[Path, typer.Option(help="Folder of the index; one that was interrupted goes on.")],
    null: Annotated[
        str | None,
        typer.Option(
            help="Texts like the queries that speak of other pictures: a data source or a .txt file."
        ),
    ] = None,
    descriptions: Told = None,
) -> None:
    """Index all pictures below a folder. Given again, it goes on where it was interrupted."""
    from grainline.index.sync import build as run

    with progress("indexing") as step:
        report = run(images, out, model=model, null=null, descriptions=descriptions or (), progress=step)
    _say(out, report)


@index.command()
def add(folder: Folder, paths: Paths, model: Weights = None, descriptions: Told = None) -> None:
    """Take in pictures that lie below the folder of the index."""
    from grainline.index.sync import add as run

    with progress("indexing") as step:
        report = run(folder, paths, model=model, descriptions=descriptions or (), progress=step)
    _say(folder, report)


@index.command()
def remove(folder: Folder, paths: Paths) -> None:
    """Take pictures out of the index and leave them out; files are not touched."""
    from grainline.index.sync import remove as run

    _say(folder, run(folder, paths))


@index.command()
def refresh(
    folder: Folder,
    model: Weights = None,
    full: Annotated[
        bool, typer.Option("--full", help="Read every picture, whatever its size and time.")
    ] = False,
    descriptions: Told = None,
) -> None:
    """Bring the index up to date: encode what is new or changed, drop what is gone."""
    from grainline.index.sync import refresh as run

    with progress("indexing") as step:
        report = run(folder, model=model, full=full, descriptions=descriptions or (), progress=step)
    _say(folder, report)


@index.command()
def check(folder: Folder) -> None:
    """Compare every file of the index with its sha256."""
    from grainline.index.search import check as run

    print(f"{folder} is whole: {amount(run(folder), 'picture')}")


def search(  # noqa: PLR0913 - each is an option of the command
    folder: Folder,
    text: Annotated[str | None, typer.Argument(help="What to look for, in one or many sentences.")] = None,
    k: Annotated[int, typer.Option("-k", min=1, help="Pictures for each query.")] = 10,
    image: Annotated[
        list[str] | None, typer.Option(help="A picture as the query, instead of a text.")
    ] = None,
    queries: Annotated[Path | None, typer.Option(help="A file of texts, one a line.")] = None,
    model: Weights = None,
    shortlist: Annotated[
        int, typer.Option(min=0, help="Candidates by vector that are scored exactly; 0: all pictures.")
    ] = 200,
    json: Annotated[Path | None, typer.Option(help="Write all answers.")] = None,
    heat: Annotated[
        Path | None, typer.Option(help="Write where each sentence shows, as pictures into this folder.")
    ] = None,
    html: Annotated[Path | None, typer.Option(help="Write a page with pictures and heat maps.")] = None,
    qdrant: Annotated[
        str | None,
        typer.Option(
            help="Find candidates with the Qdrant server at this URL or host:port; it is synced first."
        ),
    ] = None,
    descriptions: Annotated[
        list[str] | None,
        typer.Option(help="With --image: files of descriptions, for methods that read them."),
    ] = None,
) -> None:
    """Search an index by text or by picture."""
    from rich.console import Console

    from grainline.data.formats.plain import read_lines
    from grainline.evaluation.result import writable
    from grainline.index.output import table, write_heat, write_html, write_json
    from grainline.index.results import Options
    from grainline.index.search import open_index
    from grainline.index.search import queries as asked

    _refuse_query([text, image, queries], image is None, heat, descriptions)
    if html is not None:
        writable(html)
    opened = open_index(folder, model)
    if qdrant is not None:
        opened.use(_qdrant(qdrant, opened.opened))
    options = Options(shortlist or None, heat=heat is not None)
    if image is not None:
        answers = opened.search_images(asked(opened, image, descriptions or ()), k, options)
    else:
        answers = opened.search([text] if text is not None else read_lines(str(queries)), k, options)
    for answer in answers:
        Console().print(table(answer))
    if opened.validated:
        print(opened.validated)
    if heat is not None:
        print(f"written: {amount(write_heat(heat, answers, opened), 'picture')} in {heat}")
    if json is not None:
        write_json(json, answers, opened)
        print(f"written: {json}")
    if html is not None:
        shown = write_html(html, answers, opened, options, pictures=image is not None)
        print(
            f"written: {html}"
            + (f", the first {shown} of {len(answers)} queries" if shown < len(answers) else "")
        )


def serve(
    folder: Folder,
    host: Annotated[
        str, typer.Option(help="Address to listen at; 0.0.0.0 lets every machine in that can reach this one.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes any that is free.")] = 8017,
    model: Weights = None,
    batch: Annotated[int, typer.Option(min=1, help="Requests that the model answers together.")] = 16,
    queue: Annotated[
        int, typer.Option(min=1, help="Requests that may wait; beyond it they are turned away.")
    ] = 64,
    share: Annotated[
        float,
        typer.Option(min=0.001, max=1, help="Share of connections and requests that one address may have."),
    ] = 0.25,
    behind_proxy: Annotated[
        list[str] | None,
        typer.Option(help="A proxy before the server, or a network of them: X-Forwarded-For counts."),
    ] = None,
) -> None:
    """Search an index in the browser: a page and a JSON interface, on this machine only unless told."""
    from grainline.config import parse
    from grainline.web.limits import Limits
    from grainline.web.serve import serve as run

    values = {"batch": batch, "queue": queue, "share": share, "behind_proxy": behind_proxy or []}
    run(folder, model, host, port, parse(Limits, values, "the options"))


def export(
    model: Annotated[str, typer.Argument(help="Run folder, or a folder of weights inside one.")],
    out: Annotated[Path, typer.Argument(help="New folder for the graphs, the tokenizer and export.json.")],
    scoring: Annotated[
        str | None,
        typer.Option(help="How pairs are scored, for methods with several ways: vectors can be exported."),
    ] = None,
) -> None:
    """Write both towers as ONNX graphs, checked against onnxruntime."""
    from grainline.export.onnx import export as run
    from grainline.model import load

    done = run(load(model, device="cpu", scoring=scoring), out)
    for name, parity in done.parity.items():
        print(
            f"{name}.onnx: {done.bytes[f'{name}.onnx']:,} bytes, opset {done.opset}, largest difference to "
            f"torch {parity.vector:.1e} in vectors, {parity.tokens:.1e} in tokens"
        )
    print(f"written: {out}")


def _refuse_query(
    queries: list[Any], by_text: bool, heat: Path | None, descriptions: list[str] | None
) -> None:
    """Raise UserError for no query or several, and for options that are for the other kind."""
    if [query is None for query in queries].count(False) != 1:
        raise UserError("give one query: a text, --image FILE, or --queries FILE")
    if descriptions and by_text:
        raise UserError("--descriptions are of pictures that are searched for; they go with --image")
    if heat is not None and not by_text:
        raise UserError("--heat shows sentences; it goes with a text, not with --image")


def _qdrant(url: str, opened: Any) -> Any:
    from grainline.index.qdrant import Qdrant, connect

    finder = Qdrant(connect(url), opened)
    finder.sync()
    return finder


def _say(folder: Path, report: Any) -> None:
    done = [f"{number} {name}" for name, number in report._asdict().items() if name in _DONE and number]
    print(f"{folder}: {amount(report.pictures, 'picture')} ({', '.join(done) or 'nothing changed'})")
    if report.damaged:
        causes = ", ".join(f"{number} {cause}" for cause, number in report.damaged.items())
        print(f"not usable: {causes}; the first: {plain('; '.join(report.damaged_first))}")


_DONE = ("added", "changed", "removed", "encoded")


def phrases(
    source: Annotated[str, typer.Argument(help="A data source.")],
    out: Annotated[Path, typer.Option(help="File for the phrases, FILE.jsonl; a partial one goes on.")],
    provider: Annotated[str, typer.Option(help="rules, or spacy:PIPELINE.")] = "rules",
    images: Annotated[
        str | None, typer.Option(help="Folder of the pictures, for files that name them by path.")
    ] = None,
    processes: Annotated[
        int | None, typer.Option(min=1, help="Processes; as many as there are cores unless told.")
    ] = None,
) -> None:
    """Take all captions of a source apart into phrases, once, for texts.phrases.provider of a recipe."""
    from grainline.data.make_phrases import make, told
    from grainline.data.open_source import open_source
    from grainline.data.phrases.providers import open_provider
    from grainline.distributed import usable_cores

    if out.suffix != ".jsonl":
        raise UserError(f"--out {out}: a file of phrases has a name in .jsonl")
    with progress("phrases") as step:
        made = make(
            open_source(source, images=images, size=32),
            open_provider(provider),
            out,
            processes or usable_cores(),
            step,
        )
    print(f"written: {out} ({told(made)})")


def pack(
    sources: Annotated[list[str], typer.Argument(metavar="SOURCE...", help="One or more data sources.")],
    out: Annotated[Path, typer.Option(help="Folder for the tars; one that was interrupted goes on.")],
    images: Annotated[
        str | None, typer.Option(help="Folder of the pictures, for files that name them by path.")
    ] = None,
    samples_per_shard: Annotated[int, typer.Option(min=1, help="Records that a tar is made of.")] = 1000,
    damage: Annotated[float, typer.Option(min=0, max=1, help="Share of samples that may be damaged.")] = 0.02,
) -> None:
    """Write sources as WebDataset tars, with all texts and regions. Exit code 1 if too much is damaged."""
    from grainline.data.open_source import open_sources
    from grainline.data.pack import pack as run
    from grainline.data.pack import told

    with progress("packing") as step:
        done = run(open_sources(sources, images=images), out, samples_per_shard, step)
    print(f"written: {out} ({plain(told(done))})")
    lost = sum(done.skipped.values())
    if not done.samples or lost > damage * (done.samples + lost):
        raise typer.Exit(1)


def superpixels(  # noqa: PLR0913 - each is an option of the command
    sources: Annotated[list[str], typer.Argument(metavar="SOURCE...", help="One or more data sources.")],
    out: Annotated[Path, typer.Option(help="Folder for the maps; one that was interrupted goes on.")],
    size: Annotated[int, typer.Option(min=1, help="Side of the pictures that the model reads.")] = 224,
    cell: Annotated[int, typer.Option(help="Side of the cell of a superpixel, in pixels.")] = 16,
    kind: Annotated[str, typer.Option(help="kmeans, sfcn, seeds or grid.")] = "kmeans",
    compactness: Annotated[float, typer.Option(help="kmeans: what a distance of one cell weighs.")] = 10.0,
    steps: Annotated[int, typer.Option(help="kmeans and seeds: how often the pixels choose.")] = 10,
    checkpoint: Annotated[str | None, typer.Option(help="sfcn: the file of its published weights.")] = None,
    images: Annotated[
        str | None, typer.Option(help="Folder of the pictures, for files that name them by path.")
    ] = None,
) -> None:
    """Make the superpixels of all pictures once, for data.superpixels of a recipe without random crops."""
    import torch

    from grainline.config import parse
    from grainline.data.cache import make_superpixels, told
    from grainline.data.open_source import open_sources
    from grainline.encoders.superpixels import SuperpixelConfig, Superpixels

    values = {
        "kind": kind,
        "cell": cell,
        "compactness": compactness,
        "steps": steps,
        "checkpoint": checkpoint,
    }
    cfg = parse(SuperpixelConfig, values, "the options")
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    maker = Superpixels(cfg, size)
    if cfg.checkpoint is not None:
        maker.fill(Path(cfg.checkpoint))
    maker.to(device)
    with progress("superpixels") as step:
        made = make_superpixels(
            open_sources(sources, images=images, size=size),
            lambda pixels: maker(pixels.to(device)).label,
            out,
            size=size,
            settings=cfg.model_dump(mode="json", exclude={"checkpoint"}),
            progress=step,
        )
    print(f"written: {out} ({plain(told(made))})")
