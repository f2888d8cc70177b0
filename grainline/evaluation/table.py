"""A result as tables in the terminal."""

from rich.markup import escape
from rich.table import Table

from grainline.errors import amount, plain
from grainline.evaluation.compare import Difference
from grainline.evaluation.result import Result


def tables(result: Result) -> list[Table]:
    """The metrics; the card of a protocol and the differences to an earlier result where there are such."""
    found = [table(result)]
    found += [card_table(result)] if "card" in result.settings else []
    return found + ([difference_table(result)] if "against" in result.settings else [])


def table(result: Result) -> Table:
    """Metric, value, interval, chance, queries and ties of every metric, and the notes as a caption."""
    level = result.settings["level"]
    size = f"{amount(result.data['pictures'], 'picture')}, {amount(result.data['texts'], 'text')}"
    title = f"{result.suite}, protocol {result.protocol}, {size}"
    out = Table(
        title=escape(title),
        caption=escape("\n".join(map(plain, result.notes))) or None,
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
    """Which texts and pictures were compared, and how, line by line."""
    out = Table(title=escape(f"protocol {result.protocol}"), show_header=False)
    out.add_column(no_wrap=True)
    out.add_column(overflow="fold")
    for name, said in result.settings["card"].items():
        out.add_row(escape(name), escape(plain(said)))
    return out


def difference_table(result: Result) -> Table:
    """What changed against the earlier result of `settings["against"]`, metric by metric."""
    entry, level = result.settings["against"], result.settings["level"]
    out = Table(title=escape(f"{result.suite}, against {entry['path']}"))
    out.add_column("metric", overflow="fold")
    for column in ("before", "after", "difference", f"{100 * level:g} % interval, paired"):
        out.add_column(column, justify="right", no_wrap=True)
    for fields in entry["differences"]:
        row = Difference(**fields)
        shown = [row.text(x, sign) for x, sign in ((row.before, ""), (row.after, ""), (row.value, "+"))]
        out.add_row(escape(row.label), *shown, f"{row.text(row.low, '+')} to {row.text(row.high, '+')}")
    return out
