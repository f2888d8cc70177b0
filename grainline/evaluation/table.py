"""A result for people: tables in the terminal, and the page."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.markup import escape
from rich.table import Table

from grainline.errors import amount, escape_controls
from grainline.evaluation.compare import Difference
from grainline.evaluation.measured import Measured
from grainline.evaluation.result import Result
from grainline.evaluation.suite import Suite
from grainline.evaluation.validated import validated
from grainline.report import table as report
from grainline.report.page import Section, hint, render_page, summary, write_page


def tables(result: Result) -> list[Table]:
    """The metrics; the card of a protocol and the differences to an earlier result where there are such."""
    out = [table(result)]
    out += [card_table(result)] if "card" in result.settings else []
    return out + ([difference_table(result)] if "compared_to" in result.settings else [])


def table(result: Result) -> Table:
    """Metric, value, interval, chance, queries and ties of every metric, and the notes as a caption."""
    level = result.settings["level"]
    size = f"{amount(result.data['images'], 'image')}, {amount(result.data['texts'], 'text')}"
    title = f"{result.suite}, protocol {result.protocol}, {size}"
    out = Table(
        title=escape(title),
        caption=escape("\n".join(map(escape_controls, result.notes))) or None,
        caption_justify="left",
    )
    out.add_column("metric", overflow="fold")  # the one that gives way in a narrow terminal
    for column in ("value", f"{100 * level:g} % interval", "chance", "queries", "ties"):
        out.add_column(column, justify="right", no_wrap=True)
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
    for name, said in result.settings["card"].items():
        out.add_row(escape(name), escape(escape_controls(said)))
    return out


def difference_table(result: Result) -> Table:
    """What changed against the earlier result of `settings["compared_to"]`, metric by metric."""
    entry, level = result.settings["compared_to"], result.settings["level"]
    out = Table(title=escape(f"{result.suite}, compared to {entry['path']}"))
    out.add_column("metric", overflow="fold")
    for column in ("before", "after", "difference", f"{100 * level:g} % interval, paired"):
        out.add_column(column, justify="right", no_wrap=True)
    for fields in entry["differences"]:
        row = Difference(**fields)
        shown = [row.text(x, sign) for x, sign in ((row.before, ""), (row.after, ""), (row.value, "+"))]
        out.add_row(escape(row.label), *shown, f"{row.text(row.low, '+')} to {row.text(row.high, '+')}")
    return out


def write_html(path: str | Path, suite: Suite[Any], on: Measured) -> None:
    """Write the page: its metrics, and single outcomes. Raises UserError if the place cannot be written."""
    sections = [metrics_section([on.result]), *suite.sections(on)]
    name = suite.title or suite.name.capitalize()
    about = f"Measured on {on.result.data['path']} at {on.result.time}."
    validation = validated(on.result.settings["model"])
    lead = summary(headline(suite, on.result)) + (hint(validation) if validation else "")
    write_page(path, render_page(f"{name} of {on.result.settings['model']}", lead, sections, [about]))


def headline(suite: Suite[Any], result: Result) -> dict[str, str]:
    """The numbers that stand on top of the page, by what they are."""
    there = {metric.name: metric for metric in result.metrics}
    shown = [there[name] for name in suite.headlines(result) if name in there]
    values = {
        m.label
        if m.label[1].isupper()
        else m.label[0].upper() + m.label[1:]: f"{m.text(m.value)}\n{m.ends()}"
        + ("" if m.chance is None else f"\nchance {m.text(m.chance)}")
        for m in shown or result.metrics[:1]
    }
    skipped = sum(result.data["damaged"].values())
    images = f"{result.data['images']:,}" + (f"\n{skipped:,} skipped" if skipped else "")
    return {**values, "Images": images, suite.texts_label: f"{result.data['texts']:,}"}


def metrics_section(results: Sequence[Result]) -> Section:
    """The tables of some results as a part of a page."""
    return Section("Metrics", report.tables(results))
