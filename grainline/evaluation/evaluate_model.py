"""`grainline.evaluate`: load a model, encode a source, measure it with a suite, and write result and page.

The same file shows a result: as tables in the terminal, and as a page.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from markupsafe import Markup
from rich.markup import escape
from rich.table import Table

from grainline.data.descriptions import Descriptions
from grainline.data.open_source import open_sources
from grainline.errors import UserError, amount, escape_controls
from grainline.evaluation.compare import Difference, read_earlier, refuse_options, with_comparison
from grainline.evaluation.encode import Progress
from grainline.evaluation.examples import Evaluation
from grainline.evaluation.result import Result, validation_summary, writable, write
from grainline.evaluation.suite import Settings, Suite, load_suite
from grainline.fingerprint import origin
from grainline.loading import load
from grainline.model import Model
from grainline.report.charts import whisker
from grainline.report.page import Section, hint, render, render_page, summary, write_page


def evaluate(  # noqa: PLR0913 - each is an option of the command
    model: str | Path,
    data: str | Sequence[str],
    suite: str | Suite[Any] = "retrieval",
    settings: Settings = Settings(),  # noqa: B008
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
    model, data = str(model), [data] if isinstance(data, str) else data
    if options and not isinstance(suite, str):
        raise UserError("options go with the name of a suite; a Suite has its own")
    suite = load_suite(suite, options) if isinstance(suite, str) else suite
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
    evaluation = Evaluation(loaded, source, encodings, result)
    if html:
        write_html(html, suite, evaluation)
    if png:
        suite.draw(png, evaluation)
    return result


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


def tables(result: Result) -> list[Table]:
    """The metrics; the card of a protocol and the differences to an earlier result where there are such."""
    out = [table(result)]
    out += [card_table(result)] if "card" in result.settings else []
    return out + ([difference_table(result)] if "compared_to" in result.settings else [])


def table(result: Result) -> Table:
    """Metric, value, interval, chance, queries and ties of every metric, and the notes as a caption."""
    interval = f"{100 * result.settings['level']:g} % interval"
    title = f"{result.suite}, protocol {result.protocol}, {_size(result)}"
    out = _metric_table(title, ("value", interval, "chance", "queries", "ties"))
    out.caption = escape("\n".join(map(escape_controls, result.notes))) or None
    for metric in result.metrics:
        out.add_row(
            escape(metric.label), metric.text(metric.value), metric.ends(), metric.text(metric.chance),
            f"{metric.queries:,}", f"{metric.ties:,}",
        )  # fmt: skip
    return out


def card_table(result: Result) -> Table:
    """Which texts and images were compared, and how, line by line."""
    out = Table(title=escape(f"protocol {result.protocol}"), show_header=False)
    out.add_column(no_wrap=True)
    out.add_column(overflow="fold")
    for name, text in result.settings["card"].items():
        out.add_row(escape(name), escape(escape_controls(text)))
    return out


def difference_table(result: Result) -> Table:
    """What changed against the earlier result of `settings["compared_to"]`, metric by metric."""
    entry, interval = result.settings["compared_to"], f"{100 * result.settings['level']:g} % interval, paired"
    title = f"{result.suite}, compared to {entry['path']}"
    out = _metric_table(title, ("before", "after", "difference", interval))
    for fields in entry["differences"]:
        row = Difference(**fields)
        values = [row.text(x, sign) for x, sign in ((row.before, ""), (row.after, ""), (row.value, "+"))]
        out.add_row(escape(row.label), *values, f"{row.text(row.low, '+')} to {row.text(row.high, '+')}")
    return out


def _metric_table(title: str, columns: Sequence[str]) -> Table:
    out = Table(title=escape(title), caption_justify="left")
    out.add_column("metric", overflow="fold")  # the one that gives way in a narrow terminal
    for column in columns:
        out.add_column(column, justify="right", no_wrap=True)
    return out


def _size(result: Result) -> str:
    return f"{amount(result.data['images'], 'image')}, {amount(result.data['texts'], 'text')}"


def write_html(path: str | Path, suite: Suite[Any], evaluation: Evaluation) -> None:
    """Write the page: its metrics, and single outcomes. Raises UserError if the place cannot be written."""
    sections = [metrics_section([evaluation.result]), *suite.sections(evaluation)]
    name = suite.title or suite.name.capitalize()
    about = f"Measured on {evaluation.result.data['path']} at {evaluation.result.time}."
    validation = validation_summary(evaluation.result.settings["model"])
    lead = summary(headline(suite, evaluation.result)) + (hint(validation) if validation else "")
    write_page(path, render_page(f"{name} of {evaluation.result.settings['model']}", lead, sections, [about]))


def headline(suite: Suite[Any], result: Result) -> dict[str, str]:
    """The numbers on top of the page, by their names."""
    by_name = {metric.name: metric for metric in result.metrics}
    metrics = [by_name[name] for name in suite.headlines(result) if name in by_name]
    values = {}
    for m in metrics or result.metrics[:1]:
        name = m.label if m.label[1].isupper() else m.label[0].upper() + m.label[1:]
        chance = "" if m.chance is None else f"\nchance {m.text(m.chance)}"
        values[name] = f"{m.text(m.value)}\n{m.ends()}{chance}"
    skipped = sum(result.data["damaged"].values())
    images = f"{result.data['images']:,}" + (f"\n{skipped:,} skipped" if skipped else "")
    return {**values, "Images": images, suite.texts_label: f"{result.data['texts']:,}"}


def metrics_section(results: Sequence[Result]) -> Section:
    """The tables of some results as a part of a page."""
    return Section("Metrics", Markup().join(map(metrics_html, results)))


def metrics_html(result: Result) -> Markup:
    """Metrics with intervals, chance and counts; settings, data and versions folded away."""
    shares = [m for m in result.metrics if m.unit == "share"]
    top = max((max(m.high, m.chance or 0.0) for m in shares), default=1.0) or 1.0
    end = min(1.0, -(-top * 10 // 1) / 10)  # up to the next ten per cent
    drawings = [
        "" if m not in shares or m.chance is None else whisker(m.value, m.low, m.high, m.chance, (0.0, end))
        for m in result.metrics
    ]
    return render(
        "table.html",
        caption=f"{result.suite}, protocol {result.protocol}: {_size(result)}",
        result=result,
        rows=list(zip(result.metrics, drawings, strict=True)),
        end=f"0 to {100 * end:.0f} %" if shares else "",
        about={"time": result.time, **result.settings, **result.data, **result.versions},
    )
