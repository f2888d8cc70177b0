"""`grainline.evaluate`: load a model, encode a source, measure it with a suite, and write result and page."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from grainline.data.descriptions import Descriptions
from grainline.data.open_source import open_sources
from grainline.errors import UserError
from grainline.evaluation.compare import read_earlier, refuse_options, with_comparison
from grainline.evaluation.encode import Progress
from grainline.evaluation.measured import Measured
from grainline.evaluation.result import Result, writable, write
from grainline.evaluation.suite import Settings, Suite, load_suite
from grainline.evaluation.table import write_html
from grainline.fingerprint import origin
from grainline.model import Model, load

NO_SETTINGS = Settings()


def evaluate(  # noqa: PLR0913 - each is an option of the command
    model: str | Path,
    data: str | Sequence[str],
    suite: str | Suite[Any] = "retrieval",
    settings: Settings = NO_SETTINGS,
    *,
    options: Sequence[str] = (),
    images: str | None = None,
    scoring: str | None = None,
    patches: str | None = None,
    compare_to: str | None = None,
    json: Path | None = None,
    html: Path | None = None,
    png: Path | None = None,
    descriptions: Callable[[Model], Descriptions | None] = lambda model: None,  # noqa: ARG005
    progress: Callable[[], AbstractContextManager[Progress | None]] = nullcontext,
) -> Result:
    """Measure a model with a suite and return the metrics, with intervals and chance.

    model         run folder, weights inside one, or a checkpoint: folder, file or name
    data, images  one source or several, and the folder of the images for files that hold only file names
    suite         a name that `grainline suites` lists, `my_module:MySuite`, or a `Suite`
    settings      which captions, batch size, seed of the bootstrap, and what else all suites share
    options       options of the suite, as `--set` takes them: `["k=10"]`
    scoring       how pairs are scored, for methods with several ways
    patches       image tokens of a CLIP: "attention" or "values"
    compare_to    path of an earlier result on the same data; the differences are added to the result
    json, html, png  files for the result, the page and the figure
    descriptions  of the images, for a model that reads them
    progress      shows how many samples are encoded

    Raises UserError for a wrong model, source, suite or option, before the model is loaded where possible.
    """
    suite, model, data = _suite(suite, options), str(model), [data] if isinstance(data, str) else data
    settings = settings._replace(captions=suite.choose_captions(settings.captions))
    _refuse_options(suite, scoring, html, png)
    if not data:
        raise UserError("no data; give --data PATH..., such as --data scenes:dev or --data photos/")
    earlier = None if compare_to is None else read_earlier(compare_to, suite.key)
    if earlier is not None and compare_to is not None:
        refuse_options(suite, earlier, compare_to)
    suite.open_run(model)
    for path in filter(None, (json, html, png)):
        writable(path)
    loaded = load(model, scoring=scoring, patches=patches)
    if png:
        suite.check_figure(loaded)
    source = open_sources(data, images=images, size=loaded.method.size)
    with progress() as step:
        encodings = suite.encode(loaded, source, settings, descriptions(loaded), step)
    result = suite.measure(loaded.method, encodings, settings)
    result = result._replace(settings=result.settings | origin(loaded, model))
    if earlier is not None and compare_to is not None:
        result = with_comparison(result, earlier, compare_to)
    if json:
        write(result, json)
    on = Measured(loaded, source, encodings, result)
    if html:
        write_html(html, suite, on)
    if png:
        suite.draw(png, on)
    return result


def _suite(suite: str | Suite[Any], options: Sequence[str]) -> Suite[Any]:
    if isinstance(suite, str):
        return load_suite(suite, options)
    if options:
        raise UserError("options go with the name of a suite; a Suite has its own")
    return suite


def _refuse_options(suite: Suite[Any], scoring: str | None, html: Path | None, png: Path | None) -> None:
    """Raise UserError for options of the command that do not go with the suite."""
    if scoring is not None and suite.replaces_scores:
        raise UserError(
            f"--scoring goes with suites that use the scores of the method; {suite.name}"
            f" {suite.replaces_scores}"
        )
    if png and not suite.figure:
        raise UserError(f"--png: --suite {suite.name} draws no figure; leave it out")
    if png:
        suite.check_figure(None)
    for name in suite.page_options:
        if getattr(suite.options, name) and not (html or png):
            raise UserError(f"{name} says what the figure shows; give --html FILE or --png FILE with it")
