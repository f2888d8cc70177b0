"""A result as a table in the terminal."""

from rich.markup import escape
from rich.table import Table

from grainline.evaluate.result import Result


def table(result: Result) -> Table:
    """Metric, value, interval, chance, queries and ties of every metric, and the notes as a caption."""
    level = result.settings["level"]
    size = f"{result.data['pictures']} pictures, {result.data['texts']} texts"
    title = f"{result.suite}, protocol {result.protocol}, {size}"
    out = Table(title=escape(title), caption=escape("\n".join(result.notes)) or None, caption_justify="left")
    out.add_column("metric", overflow="fold")  # the one that gives way in a narrow terminal
    for column in ("value", f"{100 * level:g} % interval", "chance", "queries", "ties"):
        out.add_column(column, justify="right", no_wrap=True)
    for metric in result.metrics:
        out.add_row(
            escape(metric.name), metric.text(metric.value), metric.ends(), metric.text(metric.chance),
            f"{metric.queries:,}", f"{metric.ties:,}",
        )  # fmt: skip
    return out
