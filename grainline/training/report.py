"""OUT/report.html: curves, corrupt samples, settings and the last validation of a run."""

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from grainline.evaluation.examples import Evaluation
from grainline.evaluation.measure import metrics_section
from grainline.evaluation.suite import load_suite
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

REPORT_FILE = "report.html"

Line = dict[str, Any]


class RunSummary(NamedTuple):
    """Facts about a run that are not in its log."""

    title: str
    settings: Mapping[str, Any]  # the fields of the recipe by dotted name
    images: int  # in the training data
    ended: str  # "" where all steps were made, else what stopped it, in words


def write_report(out: Path, story: RunSummary, validation: Evaluation | None) -> None:
    """Write the page of a run.

    validation  the last one, with examples where the run has ended well

    Raises UserError if the log cannot be read or the page cannot be written.
    """
    lines = read_log(out)
    loss_curves = curves(lines)
    sections = [Section("Training", charts(loss_curves) if loss_curves else hint("No step was logged."))]
    if validation is not None:
        sections += [metrics_section([validation.result])._replace(title="Last validation")]
        sections += load_suite("retrieval").sections(validation) if not story.ended else []
    sections += [_data(lines, story), _settings(story)]
    lead = summary(_headline(lines, story)) + notes([f"Stopped: {story.ended}"] if story.ended else [])
    page = render_page(short(story.title, 120), lead, sections, [f"Run folder: {out}"])
    write_page(out / REPORT_FILE, page)


def curves(lines: Sequence[Line]) -> list[Chart]:
    """Loss terms, facts, metrics, gradient norm, rates and speed of a run, from the lines of its log."""
    trained = [line for line in lines if line["kind"] == "train"]
    measured = [line for line in lines if line["kind"] == "validation"]
    steps = [line["step"] for line in trained]
    out = _split("Loss", "loss", _series(trained, "terms"))
    out += [Chart(f"Fact: {fact.name}", "step", fact.name, [fact]) for fact in _series(trained, "facts")]
    for title, label, some in _by_unit(_series(measured, "metrics")):
        out += _split(f"Validation: {title}", label, some)
    if trained:
        norm = Series("before clipping", steps, [_number(line["norm"]) for line in trained])
        speed = Series("images/s", steps, [line["images_per_s"] for line in trained])
        out.append(Chart("Gradient norm", "step", "norm", [norm]))
        out += _split("Learning rate", "rate", _series(trained, "lr"))
        out.append(Chart("Speed", "step", "images/s", [speed]))
    return out


def _series(lines: Sequence[Line], field: str) -> list[Series]:
    """One series for each name in a field of the lines; lines may lack the field."""
    names = dict.fromkeys(name for line in lines for name in line.get(field, {}))
    return [
        Series(
            name,
            [line["step"] for line in lines if name in line.get(field, {})],
            [_number(line[field][name]) for line in lines if name in line.get(field, {})],
        )
        for name in names
    ]


def _by_unit(series: Iterable[Series]) -> list[tuple[str, str, list[Series]]]:
    """One chart for all recalls, one for all ranks, and one for each other metric."""
    groups: dict[tuple[str, str], list[Series]] = {}
    for one in series:
        kind = (one.name, one.name)
        if " R@" in one.name:
            kind, one = ("recall", "%"), one._replace(y=[100 * y for y in one.y])
        elif one.name.endswith("median rank"):
            kind = ("median rank", "rank")
        groups.setdefault(kind, []).append(one)
    return [(*kind, sorted(some, key=_by_number)) for kind, some in groups.items()]


def _by_number(one: Series) -> list[str | int]:
    """A sort key that puts R@5 before R@10."""
    return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", one.name)]


def _split(title: str, label: str, series: Sequence[Series]) -> list[Chart]:
    """Charts with at most as many series as there are dashes."""
    most = len(DASHES)
    parts = [series[i : i + most] for i in range(0, len(series), most)]
    names = [title] if len(parts) == 1 else [f"{title}, part {i}" for i in range(1, len(parts) + 1)]
    return [Chart(name, "step", label, part) for name, part in zip(names, parts, strict=True)]


def _headline(lines: Sequence[Line], story: RunSummary) -> dict[str, str]:
    trained = [line for line in lines if line["kind"] == "train"]
    done = trained[-1]["step"] if trained else 0
    steps, batch = story.settings["train.max_steps"], story.settings["train.global_batch_size"]
    out = {
        "Ended": "early" if story.ended else "well",
        "Steps": f"{done:,} of {steps:,}\nbatch {batch:,}",
        "Epochs": f"{trained[-1]['epoch']:.2f}\nof {story.images:,} images" if trained else "0",
        "Method": str(story.settings["method"]),
    }
    if trained:
        out["Last loss"] = f"{_number(trained[-1]['terms']['loss']):.4g}"
        out["Time in steps"] = _duration(_seconds(trained, batch))
    measured = [(line["step"], next(iter(line["metrics"].items()))) for line in lines if line.get("metrics")]
    if measured:
        step, (name, value) = max(measured, key=lambda one: one[1][1])
        out[f"Best {name}"] = f"{value:.4g}\nat step {step:,}"
    return out


def _data(lines: Sequence[Line], story: RunSummary) -> Section:
    """The data, the corrupt samples, and the notes of the run."""
    accounts = [line for line in lines if line["kind"] == "epoch"]
    values: dict[str, object] = {
        "training data": ", ".join(story.settings["data.paths"]),
        "images": f"{story.images:,}",
        "validation data": ", ".join(story.settings["data.validation"]) or "none",
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
    texts = [
        f"step {line['step']:,}: {line['text']}" for line in lines if line["kind"] in ("note", "corrupt")
    ]
    texts += [f"step {line['step']:,}: {_odd(line)}" for line in lines if line["kind"] == "not finite"]
    return Section("Data and notes", card(facts(values, "Data"), notes(texts)))


def _settings(story: RunSummary) -> Section:
    values = {name: value for name, value in story.settings.items() if value is not None}
    return Section("Settings", folded("All fields of the recipe", facts(values, "Recipe")))


def _odd(line: Line) -> str:
    terms = ", ".join(f"{name} {_number(value):g}" for name, value in line["terms"].items())
    return f"the loss is not finite: {terms}"


def _number(value: float | None) -> float:
    """A number of the log; null is one that is not finite."""
    return float("nan") if value is None else value


def _seconds(trained: Sequence[Line], batch: int) -> float:
    """Seconds in training steps, without validation, saving and pauses."""
    before = [0, *(line["step"] for line in trained[:-1])]
    pairs = zip(before, trained, strict=True)
    return float(
        sum((line["step"] - start) * batch / max(line["images_per_s"], 1e-9) for start, line in pairs)
    )


def _duration(seconds: float) -> str:
    """
    >>> _duration(42.4), _duration(3725.0)
    ('42 s', '1 h 2 min')
    """
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes // 60} h {minutes % 60} min" if minutes >= 60 else f"{minutes} min"
