"""`grainline.evaluate`: load a model, encode a source, measure it with a suite, and write result and page.

The same file shows a result: as text for the terminal, and as a page.
"""

from collections.abc import Callable, Mapping, Sequence
from inspect import signature
from pathlib import Path
from typing import Any

from markupsafe import Markup

from grainline.data.descriptions import Descriptions
from grainline.data.open_source import open_data
from grainline.errors import UserError, checked, escape_controls, suggestion
from grainline.evaluation.compare import Difference, Differences, read_earlier, with_comparison
from grainline.evaluation.examples import Evaluation
from grainline.evaluation.result import Result, notes_on_training, origin, text_table, writable, write
from grainline.evaluation.score import MEMORY
from grainline.evaluation.suite import MAX_CORRUPT, Settings, Suite, load_suite, suite_class
from grainline.evaluation.vectors import VectorEvaluation, open_vectors
from grainline.loading import load
from grainline.model import Model
from grainline.progress import progress
from grainline.report.case import Table, table_html
from grainline.report.charts import whisker
from grainline.report.page import Section, render, render_page, summary, write_page

IN_MEMORY = "in-memory"
"""The name of a model that no run folder belongs to, in results."""


@checked(model="vectors of another program go by vectors=(images, texts) and pairs=")
def evaluate(  # noqa: PLR0913 - each is an option of the command; half is signature and docstring
    model: str | Path | Model | None = None,
    data: Any = None,
    suite: str | Suite[Any] = "retrieval",
    *,
    vectors: Any = None,
    pairs: Any = None,
    scores: Any = None,
    similarity: str = "cosine",
    captions: str | None = None,
    batch_size: int = 64,
    seed: int = 0,
    max_corrupt: float = MAX_CORRUPT,
    memory: int = MEMORY,
    images: str | None = None,
    scoring: str | None = None,
    patches: str | None = None,
    context: int | None = None,
    walk_type: str | None = None,
    compare_to: str | Path | None = None,
    json: str | Path | None = None,
    html: str | Path | None = None,
    descriptions: Callable[[Model], Descriptions | None] = lambda model: None,  # noqa: ARG005
    show_progress_bar: bool | None = None,
    **options: Any,
) -> Result:
    """Measure a model with a suite and return the metrics, with intervals and chance.

    model         a `Model`, run folder, weights inside one, or a checkpoint: folder, file or name
    data          a source by its path, several, a `Source`, or a list of (image, captions)
    images        folder of the images, for data that name them by path
    suite         a name that `grainline suites` lists, `my_module:MySuite`, or a `Suite`
    options       of the suite, by their names: protocol="coco-5k"
    vectors, pairs, scores  vectors of another program in place of model and data, for the suite retrieval
                  (`vectors.open_vectors`): vectors=(images, texts), pairs=[0, 0, 1, 1]
    similarity    of vectors of another program: cosine, or dot for products of the vectors as they are
    captions      the texts of a record: auto (the long one, else each caption), whole (all as one), each or
                  first (default: that of the suite, auto for retrieval)
    batch_size    images and texts encoded at a time
    seed          of the bootstrap
    max_corrupt   share of samples that may be skipped
    memory        bytes of a tile of scores
    scoring       how to score pairs or read texts: vectors, conditioned, conditioned:0.5, whole, sentences
    patches       image tokens of a CLIP: attention, or values, those of the last layer without its attention,
                  as published for fg-ovd (default: as the model has them)
    context       longest text in tokens, for a checkpoint of others: 77 reads FG-CLIP by its short way
    walk_type     of an FG-CLIP 2: short, long or box texts (default: by the context)
    compare_to    earlier result (--json) on the same data; the differences are added to the result
    json          file for the result: settings, data, versions and numbers
    html          file for the page: the numbers, and outcomes from best to worst
    descriptions  of the images, for a model that reads them
    show_progress_bar  None: in a terminal and in a notebook

    Raises UserError for a wrong model, source, suite or option, before the model is loaded where possible.
    """
    suite = _suite(suite, options)
    arguments = {"model": model, "data": data, "captions": captions, "scoring": scoring}
    others = vectors is not None or scores is not None
    _refuse_missing(suite, others, pairs, arguments)
    settings = Settings(
        suite.choose_captions(captions), batch_size, max_corrupt, seed, memory=memory
    ).checked()
    earlier = None if compare_to is None else read_earlier(str(compare_to), suite)
    name = str((model.run or IN_MEMORY) if isinstance(model, Model) else model)
    for path in (json, html):
        if path:
            writable(Path(path))
    if others:
        evaluation = _of_vectors(suite, settings, open_vectors(vectors, pairs, scores, similarity, images))
    else:
        loaded = _loaded(model, scoring=scoring, patches=patches, context=context, walk_type=walk_type)
        source = open_data(data, images=images, size=loaded.method.size)
        with progress("encoding", show=show_progress_bar) as step:
            encodings = suite.encode(loaded, source, settings, descriptions(loaded), step)
        result = suite.measure(loaded.method, encodings, settings)
        about = origin(loaded, name) | ({"weights": IN_MEMORY, "step": None} if loaded is model else {})
        notes = result.notes + notes_on_training(loaded.run, source)
        result = result._replace(settings=result.settings | about, notes=notes)
        evaluation = Evaluation(loaded, source, encodings, result)
    if earlier is not None:
        result = with_comparison(evaluation.result, earlier, str(compare_to))
        evaluation = evaluation._replace(result=result)
    if json:
        write(evaluation.result, json)
    if html:
        write_html(html, suite, evaluation)
    return evaluation.result


def _of_vectors(suite: Suite[Any], settings: Settings, embeddings: Any) -> Evaluation:
    """The result of `Embeddings`, which stand in for a model: they have a `method`."""
    result = suite.measure(embeddings.method, embeddings.data, settings)
    result = result._replace(settings=result.settings | embeddings.about)
    return VectorEvaluation(embeddings, embeddings.source, embeddings.data, result)


def _loaded(model: Any, **options: Any) -> Model:
    if not isinstance(model, Model):
        return load(str(model), **options)
    name = next((name for name, value in options.items() if value is not None), "")
    if name:
        raise UserError(f"{name} goes with the path of a model: grainline.load(PATH, {name}=...)")
    return model


def _suite(suite: str | Suite[Any], options: Mapping[str, Any]) -> Suite[Any]:
    """The suite with its options. Raises UserError for an unknown one, with the nearest keyword."""
    if not isinstance(suite, str):
        for name in options:
            raise UserError(f"{name}: options go with the name of a suite; a Suite has its own")
        return suite
    own = list(suite_class(suite).Options.model_fields)
    for name in [name for name in options if name not in own]:
        near = suggestion(name, [*own, *signature(evaluate).parameters])
        those = f"those of the suite {suite}: {', '.join(own) or 'none'}"
        raise UserError(f"evaluate has no option {name!r}{near}; {those}")
    values = {name: str(value) if isinstance(value, Path) else value for name, value in options.items()}
    return load_suite(suite, **values)


def _refuse_missing(suite: Suite[Any], others: bool, pairs: Any, arguments: Mapping[str, Any]) -> None:
    """Raise UserError without a model or data, and for what does not go with `others`, vectors or scores."""
    if not others:
        if pairs is not None:
            raise UserError("pairs go with vectors, or scores, of another program; a model takes data")
        if arguments["model"] is None:
            raise UserError("no model; give a run folder, a checkpoint, or the vectors of another program")
        if arguments["data"] is None or (isinstance(arguments["data"], Sequence) and not arguments["data"]):
            raise UserError('no data; give --data PATH..., such as --data photos/ (data="photos/" in Python)')
        if arguments["scoring"] is not None and suite.replaces_scores:
            what = f"{suite.name} {suite.replaces_scores}"
            raise UserError(f"--scoring goes with suites that use the scores of the method; {what}")
        return
    if not suite.takes_vectors:
        raise UserError(f"the suite {suite.name} needs a model; vectors of another program go with retrieval")
    for name, value in arguments.items():
        if value is not None:
            raise UserError(f"{name} does not go with vectors of another program; leave it out")


def as_text(result: Result) -> str:
    """The metrics, notes, card of the protocol and differences to an earlier result, where it has them."""
    card = (f"{name}: {text}" for name, text in result.settings.get("card", {}).items())
    lines = [str(result), *map(escape_controls, (*result.notes, *card))]
    if "compared_to" in result.settings:
        changes = _differences(result)
        lines += [text_table(changes.caption, changes.head, changes.rows)]
    return "\n".join(lines)


def _differences(result: Result) -> Table:
    entry = result.settings["compared_to"]
    differences = Differences(Difference(**fields) for fields in entry["differences"])
    cells = differences.cells(f"{100 * result.settings['level']:g} % interval, paired")
    return Table(f"{result.suite}, compared to {entry['path']}", *cells)


def write_html(path: str | Path, suite: Suite[Any], evaluation: Evaluation) -> None:
    """Write the page: its metrics, and single outcomes. Raises UserError if the place cannot be written."""
    result = evaluation.result
    sections = [metrics_section([result]), *suite.sections(evaluation)]
    title = f"{suite.title or suite.name.capitalize()} of {result.settings['model']}"
    about = f"Measured on {result.data['path']} at {result.time}."
    write_page(path, render_page(title, summary(headline(suite, result)), sections, [about]))


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
    """The tables of some results, with what changed against an earlier one, as a part of a page."""
    parts = []
    for result in results:
        parts.append(metrics_html(result))
        if "compared_to" in result.settings:
            parts.append(table_html(_differences(result)))
    return Section("Metrics", Markup().join(parts))


def metrics_html(result: Result) -> Markup:
    """Metrics with intervals, chance and counts; settings, data and versions folded away."""
    shares = [m for m in result.metrics if m.unit == "%"]
    top = max((max(m.high, m.chance or 0.0) for m in shares), default=100.0) or 100.0
    end = min(100.0, -(-top // 10) * 10)  # up to the next ten per cent
    about = {**result.settings, **{f"data {name}": value for name, value in result.data.items()}}
    if "compared_to" in about:  # the differences have a table of their own
        about["compared_to"] = about["compared_to"]["path"]
    drawings = [
        "" if m not in shares or m.chance is None else whisker(m.value, m.low, m.high, m.chance, (0.0, end))
        for m in result.metrics
    ]
    return render(
        "table.html",
        caption=f"{result.suite}, protocol {result.protocol}: {result.size}",
        result=result,
        rows=list(zip(result.metrics, drawings, strict=True)),
        end=f"0 to {end:.0f} %" if any(drawings) else "",
        about={"time": result.time, **about, **result.versions},
    )
