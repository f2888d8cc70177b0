"""Validation during training, and OUT/report.html: curves, corrupt samples, settings, the last validation."""

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from grainline.data.descriptions import Descriptions
from grainline.data.open_source import open_sources, takes_images
from grainline.errors import some
from grainline.evaluation.encode import encode_source
from grainline.evaluation.evaluate_model import metrics_section
from grainline.evaluation.examples import Evaluation
from grainline.evaluation.suite import ZERO_WIDTH, Settings, load_suite
from grainline.loading import load
from grainline.methods.base import Method
from grainline.model import Model
from grainline.report.charts import DASHES, Chart, Series, charts
from grainline.report.page import (
    Section,
    card,
    facts,
    folded,
    hint,
    notes,
    render_page,
    short,
    summary,
    write_page,
)
from grainline.training.log import read_log
from grainline.training.loop import Validation
from grainline.training.recipe import Recipe

REPORT_FILE = "report.html"

Line = dict[str, Any]


class Validator:
    """Measures retrieval on the validation sources of a recipe, and stores the last result."""

    def __init__(self, recipe: Recipe, model: Model, descriptions: Descriptions | None, store: bool) -> None:
        """store: keep the last result, with all that was encoded, for the report"""
        paths = recipe.data.validation
        # The folder may be for training data only.
        images = recipe.data.images if any(map(takes_images, paths)) else None
        self.source = open_sources(paths, images=images, size=model.method.size)
        self.model, self.descriptions, self.max_corrupt = model, descriptions, recipe.data.max_corrupt
        self.store = store
        self.last: Evaluation | None = None  # the result of the last call

    def __call__(self, method: Method) -> Validation:
        """The metrics of a method, rSum first, because it selects the best checkpoint."""
        model = Model(self.model.description, method, self.model.tokenizer)
        # A description of the record's own is a long caption: an input then, not a query.
        own = self.descriptions is not None and self.descriptions.own
        options: Any = {"descriptions": self.descriptions, "max_corrupt": self.max_corrupt}
        encodings = encode_source(model, self.source, captions="each" if own else "auto", **options)
        result = load_suite("retrieval").measure(method, encodings, Settings(resamples=100))
        if self.store:
            self.last = Evaluation(model, self.source, encodings, result)
        metrics = {metric.name: metric.value for metric in reversed(result.metrics)}
        chance = {metric.name: metric.chance for metric in result.metrics if metric.chance is not None}
        notes = tuple(note for note in result.notes if note != ZERO_WIDTH)  # no interval stands beside it
        notes = (encodings.counts(),) * bool(encodings.several) + notes
        return Validation(metrics, chance, notes, result.data["images"])

    def final(self, out: Path) -> Evaluation | None:
        """The last result; of a run that was resumed after its end, that of the weights in its folder."""
        if self.last is None:
            self(load(out).method)
        return self.last


def write_report(out: Path, recipe: Recipe, images: int, ended: str, validator: Validator | None) -> None:
    """Write the page of a run.

    images  in the training data
    ended   the reason for an early end; "" after all steps, and then examples of the validation are shown

    Raises UserError if the log cannot be read or the page cannot be written.
    """
    lines = read_log(out)
    loss_curves = curves(lines)
    sections = [Section("Training", charts(loss_curves) if loss_curves else hint("No step was logged."))]
    validation = None if validator is None else validator.last if ended else validator.final(out)
    if validation is not None:
        sections += [metrics_section([validation.result])._replace(title="Last validation")]
        sections += load_suite("retrieval").sections(validation) if not ended else []
    settings = {k: x for k, x in recipe.settings().items() if x is not None}
    fields = folded("All fields of the recipe", facts(settings, "Recipe"))
    sections += [_data(lines, recipe, images), Section("Settings", fields)]
    lead = summary(_headline(lines, recipe, images, ended)) + notes([f"Stopped: {ended}"] if ended else [])
    title = f"Training of {recipe.method} on {some(recipe.data.paths, 1)}"
    write_page(out / REPORT_FILE, render_page(short(title, 120), lead, sections, [f"Run folder: {out}"]))


def curves(lines: Sequence[Line]) -> list[Chart]:
    """Loss terms, facts, metrics, gradient norm, rates and speed of a run, from the lines of its log."""
    trained = [line for line in lines if line["kind"] == "train"]
    measured = [line for line in lines if line["kind"] == "validation"]
    steps = [line["step"] for line in trained]
    out = _split("Loss", "loss", _series(trained, "terms"))
    out += [Chart(f"Fact: {fact.name}", "step", fact.name, [fact]) for fact in _series(trained, "facts")]
    chance = measured[-1].get("chance", {}) if measured else {}
    recorded = [one._replace(chance=chance.get(one.name)) for one in _series(measured, "metrics")]
    for title, label, group in _by_unit(recorded):
        out += _split(f"Validation: {title}", label, group)
    if trained:
        norm = Series("before clipping", steps, [_number(line["norm"]) for line in trained])
        speed = Series("images/s", steps, [line["images_per_s"] for line in trained])
        out.append(Chart("Gradient norm", "step", "norm", [norm]))
        rates = [one._replace(name=one.name.replace(".*", "rate")) for one in _series(trained, "lr")]
        out += _split("Learning rate", "rate", rates)
        out.append(Chart("Speed", "step", "images/s", [speed]))
    return out


def _series(lines: Sequence[Line], field: str) -> list[Series]:
    """One series for each name in a field of the lines; lines may lack the field."""
    points: dict[str, tuple[list[int], list[float]]] = {}
    for line in lines:
        for name, value in line.get(field, {}).items():
            steps, values = points.setdefault(name, ([], []))
            steps.append(line["step"])
            values.append(_number(value))
    return [Series(name, steps, values) for name, (steps, values) in points.items()]


def _by_unit(series: Iterable[Series]) -> list[tuple[str, str, list[Series]]]:
    """One chart for all recalls, one for all ranks, and one for each other metric."""
    groups: dict[tuple[str, str], list[Series]] = {}
    for one in series:
        kind = (one.name, one.name)
        if " R@" in one.name:
            kind = "recall", "%"
        elif one.name.endswith("median rank"):
            kind = ("median rank", "rank")
        groups.setdefault(kind, []).append(one)

    def key(one: Series) -> list[str | int]:  # R@5 before R@10
        return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", one.name)]

    return [(*kind, sorted(some, key=key)) for kind, some in groups.items()]


def _split(title: str, label: str, series: Sequence[Series]) -> list[Chart]:
    """Charts with at most as many series as there are dashes."""
    limit = len(DASHES)
    parts = [series[i : i + limit] for i in range(0, len(series), limit)]
    names = [title] if len(parts) == 1 else [f"{title}, part {i}" for i in range(1, len(parts) + 1)]
    return [Chart(name, "step", label, part) for name, part in zip(names, parts, strict=True)]


def _headline(lines: Sequence[Line], recipe: Recipe, images: int, ended: str) -> dict[str, str]:
    trained = [line for line in lines if line["kind"] == "train"]
    done = trained[-1]["step"] if trained else 0
    batch = recipe.train.global_batch_size
    out = {
        "Ended": "early" if ended else "well",
        "Steps": f"{done:,} of {recipe.train.max_steps:,}\nbatch {batch:,}",
        "Epochs": f"{trained[-1]['epoch']:.2f}\nof {images:,} images" if trained else "0",
        "Method": recipe.method,
    }
    if trained:
        out["Last loss"] = f"{_number(trained[-1]['terms']['loss']):.4g}"
        starts = [0, *(line["step"] for line in trained[:-1])]
        pairs = zip(starts, trained, strict=True)
        images_of = [((line["step"] - begin) * batch, line["images_per_s"]) for begin, line in pairs]
        out["Time in steps"] = _duration(sum(number / max(rate, 1e-9) for number, rate in images_of))
    measured = [(*next(iter(line["metrics"].items())), line) for line in lines if line.get("metrics")]
    if measured:
        name, value, line = max(measured, key=lambda one: float(one[1]))
        chance = f"\nchance {line['chance'][name]:.4g}" if name in line.get("chance", {}) else ""
        out[f"Best {name}"] = f"{value:.4g}\nat step {line['step']:,}{chance}"
    return out


def _data(lines: Sequence[Line], recipe: Recipe, images: int) -> Section:
    """The data, the corrupt samples, and the notes of the run."""
    accounts = [line for line in lines if line["kind"] == "epoch"]
    values: dict[str, object] = {
        "training data": ", ".join(recipe.data.paths),
        "images": f"{images:,}",
        "validation data": ", ".join(recipe.data.validation) or "none",
    }
    if accounts:
        last = accounts[-1]
        corrupt = ", ".join(f"{number:,} {cause}" for cause, number in last["corrupt"].items())
        values |= {
            "samples drawn": f"{last['samples']:,}",
            "corrupt samples, replaced": corrupt or "none",
            "first corrupt files": "; ".join(last["files"]) or "none",
            "texts truncated": f"{last['truncated']:,} of {last['texts']:,}",
        }
    noted = [line for line in lines if line["kind"] in ("note", "corrupt")]
    texts = [f"step {line['step']:,}: {line['text']}" for line in noted]
    for line in (line for line in lines if line["kind"] == "not finite"):
        terms = ", ".join(f"{name} {_number(value):g}" for name, value in line["terms"].items())
        texts.append(f"step {line['step']:,}: the loss is not finite: {terms}")
    return Section("Data and notes", card([facts(values, "Data"), notes(texts)]))


def _number(value: float | None) -> float:
    """A number of the log; null is one that is not finite."""
    return float("nan") if value is None else value


def _duration(seconds: float) -> str:
    """
    >>> _duration(42.4), _duration(3725.0)
    ('42 s', '1 h 2 min')
    """
    minutes = round(seconds / 60)
    short = f"{seconds:.0f} s" if seconds < 60 else f"{minutes} min"
    return f"{minutes // 60} h {minutes % 60} min" if minutes >= 60 else short
