"""The commands `index ...`, `search`, `photos`, `serve` and `export`; main.py mounts them.

They load torch when run.
"""

import os
import sys
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import typer

from grainline.cli.options import HELP, check_model, from_signature, next_step
from grainline.errors import UserError, amount, escape_controls
from grainline.progress import progress

Folder = Annotated[Path, typer.Argument(metavar="INDEX", help="Folder of the index.")]
Paths = Annotated[list[str], typer.Argument(help="Images, or folders of images, below the folder.")]
Weights = Annotated[str | None, typer.Option(help="The model of the index, if its folder has moved.")]
Port = Annotated[int, typer.Option(min=0, max=65535, help="0 takes any that is free.")]

index = typer.Typer(
    help="Index a folder of images, and keep it up to date.", rich_markup_mode="rich", context_settings=HELP
)


@index.command()
@from_signature("index/sync.py:build", without=("chunk",))
def build(images: str, *, model: str, out: Path, **settings: Any) -> None:
    """Index all images below a folder. Run again, it continues an interrupted build.

    images  folder of images, folders below it included
    model   run folder, weights inside one, or a checkpoint
    out     folder of the index; an interrupted build is continued
    """
    check_model(model)
    _require_folder(images)
    from grainline.index.sync import build as run

    _update(out, lambda step: run(images, out, model=model, **settings, progress=step))
    next_step("grainline", "search", out, "what you are looking for", "--open")


@index.command()
@from_signature("index/sync.py:add", without=("chunk",))
def add(folder: Folder, paths: Paths, *, model: Weights = None, **settings: Any) -> None:
    """Add images below the image folder of the index."""
    from grainline.index.sync import add as run

    _update(folder, lambda step: run(folder, paths, model=model, **settings, progress=step))


@index.command()
def remove(folder: Folder, paths: Paths) -> None:
    """Remove images from the index and exclude them from later refreshes; files are not deleted."""
    from grainline.index.sync import remove as run

    _update(folder, lambda _: run(folder, paths))


@index.command()
@from_signature("index/sync.py:refresh", without=("chunk",))
def refresh(folder: Folder, *, model: Weights = None, **settings: Any) -> None:
    """Update the index: encode new and changed images, remove those without a file."""
    from grainline.index.sync import refresh as run

    _update(folder, lambda step: run(folder, model=model, **settings, progress=step))


@index.command()
def check(folder: Folder) -> None:
    """Compare every file of the index with its sha256."""
    from grainline.index.search import check as run

    print(f"{folder} is whole: {amount(run(folder), 'image')}")


@from_signature()
def search(  # noqa: PLR0913 - each is an option of the command
    folder: Folder,
    text: Annotated[str | None, typer.Argument(help="What to look for, in one or many sentences.")] = None,
    *,
    k: Annotated[int, typer.Option("-k", min=1, help="Images for each query.")] = 10,
    image: Annotated[list[str] | None, typer.Option(help="An image as the query, instead of a text.")] = None,
    queries: Annotated[Path | None, typer.Option(help="A file of texts, one a line.")] = None,
    model: Weights = None,
    shortlist: Annotated[int, typer.Option(min=0)] = 200,
    json: Annotated[Path | None, typer.Option(help="Write all results as JSON.")] = None,
    heat: Path | None = None,
    html: Annotated[Path | None, typer.Option(help="Write a page with images and heat maps.")] = None,
    show: Annotated[bool, typer.Option("--open")] = False,
    descriptions: list[str] | None = None,
) -> None:
    """Search an index by text or by image. Piped: lines of path, score, p, match, shown, query.

    shortlist     candidates by vector that are scored exactly; 0: all images
    heat          write a heat map of each sentence into this folder
    show          open the page in the browser; without --html a temporary one
    descriptions  with --image: files of descriptions, for methods that read them
    """
    if sum(query is not None for query in (text, image, queries)) != 1:
        raise UserError("give one query: a text, --image FILE, or --queries FILE")
    if heat is not None and image is not None:
        raise UserError("--heat shows sentences; it goes with a text, not with --image")
    if descriptions and image is None:
        raise UserError("--descriptions are of images that are searched for; they go with --image")
    _require_index(folder, text)
    from tempfile import mkdtemp

    from grainline.data.formats.parsed import read_lines
    from grainline.evaluation.result import writable
    from grainline.index.search import Options, image_queries, open_index

    page = html or (Path(mkdtemp(prefix="grainline-")) / "search.html" if show else None)
    if page is not None:
        writable(page)
    image_index = open_index(folder, model)
    options = Options(shortlist or None, heat=heat is not None)
    if image is not None:
        results = image_index.search_images(image_queries(image_index, image, descriptions or ()), k, options)
    else:
        results = image_index.search([text] if text is not None else read_lines(str(queries)), k, options)
    _print_hits(results, image_index)
    _write_files(results, image_index, options, image is not None, heat, json, page)
    if page is None:
        next_step("grainline", "serve", folder)
    elif show:
        _open(page)


def _print_hits(results: Any, image_index: Any) -> None:
    """Tables in a terminal; elsewhere a line for each hit, and what is no hit goes to stderr."""
    from rich.console import Console

    from grainline.index.output import plain_lines, table

    for result in results:
        if sys.stdout.isatty():
            Console().print(table(result, image_index.root))
        else:
            print(*plain_lines(result, image_index.root), sep="\n", end="\n" if result.hits else "")
    if not sys.stdout.isatty():
        for note in dict.fromkeys(note for result in results for note in result.notes):
            _say(note)
    if image_index.model.weakness:
        _say(image_index.model.weakness)


def _write_files(
    results: Any,
    image_index: Any,
    options: Any,
    by_image: bool,
    heat: Path | None,
    json: Path | None,
    page: Path | None,
) -> None:
    """The files of a search that were asked for: a folder of heat maps, JSON, a page."""
    from grainline.index.output import write_heat, write_html, write_json

    if heat is not None:
        _say(f"written: {amount(write_heat(heat, results, image_index), 'image')} in {heat}")
    if json is not None:
        write_json(json, results, image_index)
        _say(f"written: {json}")
    if page is not None:
        written = write_html(page, results, image_index, options, images=by_image)
        note = f", the first {written} of {len(results)} queries" if written < len(results) else ""
        _say(f"written: {page}{note}")


def _open(page: Path) -> None:
    """Open a page in the browser, if there is one."""
    import webbrowser

    if not webbrowser.open(page.resolve().as_uri()):
        print("no browser could be started; open the page by its path", file=sys.stderr)


def _say(line: str) -> None:
    """A line about the search, which is no hit: not into the pipe."""
    print(line, file=sys.stdout if sys.stdout.isatty() else sys.stderr)


@from_signature("index/sync.py:build", without=("chunk", "exclude", "descriptions"))
def photos(
    folder: str,
    *,
    model: str | None = None,
    index: Path | None = None,
    calibration_texts: str | None = None,
    port: Port = 8017,
    no_browser: bool = False,
) -> None:
    """Index a folder of photographs, or bring its index up to date, and search it in the browser.

    folder      folder of photographs
    model       run folder or checkpoint; default: SigLIP 2 (1.5 GB), or a CLIP that is there
    index       folder of the index; default: FOLDER.index beside the folder
    no_browser  print the address only
    """
    _require_folder(folder)
    root = Path(folder).resolve()
    place = index or root.with_name(f"{root.name}.index")
    if index is None and not place.exists() and not os.access(root.parent, os.W_OK):
        raise UserError(f"the index cannot be written beside {root}; give another place with --index")
    if model is not None:
        check_model(model)
    _require_server()
    from grainline.encoders.pretrained.hub import PUBLIC, public_checkpoint
    from grainline.index import store, sync
    from grainline.index.reader import model_of
    from grainline.web.server import serve as run

    known, loaded = (place / store.MANIFEST).is_file(), None
    if known:
        manifest = store.read_manifest(place)
        if Path(manifest.root) != root:
            raise UserError(f"{place} is an index of {manifest.root}, not of {root}; choose another --index")
        if calibration_texts is not None:
            raise UserError(
                f"{place} has its calibration texts from when it was built; choose another --index"
            )
        loaded = model_of(place, manifest, model)
    name = manifest.model_id.path if known else model or public_checkpoint()
    print(f"model: {name}" + (f" ({PUBLIC[name]})" if name in PUBLIC else ""), flush=True)
    if known:
        _update(place, lambda step: sync.refresh(place, model=loaded, progress=step))
    else:
        settings: Any = {"model": name, "calibration_texts": calibration_texts}
        _update(place, lambda step: sync.build(root, place, **settings, progress=step))
    run(place, loaded or model, "127.0.0.1", port, browser=not no_browser)


@from_signature()
def serve(
    folder: Folder,
    *,
    host: str = "127.0.0.1",
    port: Port = 8017,
    model: Weights = None,
    batch_size: Annotated[int, typer.Option(min=1)] = 16,
    queue: Annotated[int, typer.Option(min=1)] = 64,
    share: Annotated[float, typer.Option(min=0.001, max=1)] = 0.25,
    behind_proxy: list[str] | None = None,
) -> None:
    """Search an index in the browser: a page and a JSON interface, on this machine only by default.

    host          address to listen at; 0.0.0.0 lets every machine in that can reach this one
    batch_size    requests that the model answers together
    queue         requests that may wait; beyond it they are turned away
    share         share that one address may have of requests, bytes, decoders and the queue
    behind_proxy  a proxy before the server, or a network of them: X-Forwarded-For counts
    """
    _require_index(folder)
    _require_server()
    from grainline.web.server import serve as run

    limits = {"batch": batch_size, "queue": queue, "share": share, "behind_proxy": behind_proxy or []}
    run(folder, model, host, port, limits)


def export(
    model: Annotated[str, typer.Argument(help="Run folder, or a folder of weights inside one.")],
    out: Annotated[Path, typer.Argument(help="New folder for the graphs, the tokenizer and export.json.")],
    scoring: Annotated[
        str | None,
        typer.Option(help="How pairs are scored, for methods with several ways: vectors can be exported."),
    ] = None,
) -> None:
    """Write both towers as ONNX graphs, checked against onnxruntime."""
    check_model(model)
    from grainline.export.onnx import export as run
    from grainline.loading import load

    done = run(load(model, device="cpu", scoring=scoring), out)
    for name, parity in done.parity.items():
        print(
            f"{name}.onnx: {done.bytes[f'{name}.onnx']:,} bytes, opset {done.opset}, largest difference to "
            f"torch {parity.vector:.1e} in vectors, {parity.tokens:.1e} in tokens"
        )
    print(f"written: {out}")


def _require_index(folder: Path, text: str | None = None) -> None:
    if text is not None and not folder.exists() and Path(text).is_dir():
        raise UserError(f'the index comes first: grainline search {text} "{folder}"')
    if not folder.exists():
        how = "`grainline index build IMAGES --model MODEL --out FOLDER` makes one"
        raise UserError(f"no index at {folder} (from {Path.cwd()}); {how}")


def _require_folder(images: str) -> None:
    if not Path(images).is_dir():
        raise UserError(f"no folder of images at {images} (from {Path.cwd()}); name the one they lie in")


def _require_server() -> None:
    if any(find_spec(name) is None for name in ("fastapi", "uvicorn", "python_multipart")):
        raise UserError("the search page needs more packages: pip install 'grainline[serve]'")


def _update(folder: Path, update: Callable[[Any], Any]) -> None:
    """Run an update of an index, which gets a progress bar, and print its report."""
    started = time.monotonic()
    with progress("indexing") as step:
        report = update(step)
    seconds = time.monotonic() - started
    counted = ((name, getattr(report, name)) for name in ("added", "changed", "removed", "encoded"))
    counts = [f"{number} {name}" for name, number in counted if number]
    speed = f", {report.encoded / seconds:.1f} images/s" if report.encoded else ""
    print(f"{folder}: {amount(report.images, 'image')} ({', '.join(counts) or 'nothing changed'}){speed}")
    for remark in report.remarks:
        print(escape_controls(remark))
    if report.corrupt:
        causes = ", ".join(f"{number} {cause}" for cause, number in report.corrupt.items())
        print(f"not usable: {causes}; the first: {escape_controls('; '.join(report.corrupt_first))}")
