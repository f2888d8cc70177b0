"""Tables, predictions and figure of docs/methods/caft.md, from what benchmarks/caft.py measured.

    python -m benchmarks.caft_tables OUT... [--png FILE]

Several OUT are studies of different lengths; the figure has them side by side.
"""

from collections.abc import Sequence
from pathlib import Path

from benchmarks.caft import ALPHAS, SETTINGS, SMALL, measurements
from benchmarks.study import Folder, Ordering, cells, minutes_of, orderings, show
from grainline.evaluation.compare import pooled
from grainline.evaluation.result import Result

WAYS = ("image to text R@1", "text to image R@1")
BOTH = ("scenes", "openstax")
FOUND = [(name, name, "retrieval") for name in (*WAYS, "rSum")]
COLUMNS = {  # of the tables: title, metric, measurement
    "scenes": [
        *FOUND,
        ("mIoU of expressions", "mIoU", "expressions"),
        ("AUROC of the empty slot", "AUROC of the empty slot", "inactivity"),
    ],
    "openstax": FOUND,
}


def measurement(metric: str, data: str) -> str:
    """The name of the measurement that holds a metric."""
    kind = {"mIoU": "expressions", "AUROC of the empty slot": "inactivity"}.get(metric, "retrieval")
    return f"{kind} on {data}"


def step(claim: str, higher: str, lower: str, sets: tuple[str, ...] = BOTH) -> list[Ordering]:
    """A prediction about retrieval, both ways."""
    return [Ordering(f"{claim}: {way}", higher, lower, way, sets) for way in WAYS]


def plus(claim: str, way: str) -> Ordering:
    return Ordering(claim, "caft", "caft", way, BOTH, ("conditioned retrieval", "retrieval"))


ORDERINGS = [
    *step("the visual hierarchy is better than FLAIR (table 3)", "visual", "flair"),
    *step("the textual hierarchy adds to the visual one (table 3)", "textual", "visual"),
    *step("the hierarchical loss adds to both (table 3)", "caft", "textual"),
    *step("without the loss of parts retrieval is worse (table 3)", "caft", "whole-only"),
    *step("CAFT is better than FLAIR (tables 1 and 3)", "caft", "flair"),
    Ordering("CAFT covers expressions better than FLAIR (table 2)", "caft", "flair", "mIoU"),
    plus("CAFT++ with alpha 0.3 finds images better than CAFT (table 4)", WAYS[1]),
    plus("CAFT++ with alpha 0.3 finds texts no worse than CAFT (table 4)", WAYS[0]),
    *(
        Ordering(
            f"parts alone are worse than alpha 0.3 (table 4): {way}", "caft", "caft", way, BOTH,
            ("conditioned retrieval", "alpha 1"),
        )
        for way in WAYS
    ),
    *step("not of the paper: CAFT is better than FLAIR that reads as much text", "caft", "same-text"),
    *step("not of the paper: FLAIR gains by reading as much text", "same-text", "flair"),
    *step("not of the paper: superpixels are better than squares", "caft", "square-grid"),
    Ordering("not of the paper: superpixels cover better than squares", "caft", "square-grid", "mIoU"),
    *step("not of the paper: several heads are better than one", "caft", "one-head"),
    Ordering("not of the paper: several heads cover better than one", "caft", "one-head", "mIoU"),
    *step("not of the paper: all negatives are better than drawn ones", "all-negatives", "caft"),
]  # fmt: skip


def tables(folder: Folder) -> None:
    """Everything as Markdown."""
    for data, columns in COLUMNS.items():
        table(folder, data, columns)
        curve(folder, data)
    orderings(folder, ORDERINGS, measurement)


def table(folder: Folder, data: str, columns: list[tuple[str, str, str]]) -> None:
    """Settings of a set that have all seeds, and the pooled values of these columns."""
    other = ["CAFT++ or FLAIR by summaries, rSum"]
    print(f"\n### {data}\n\n| setting | {' | '.join([*(c[0] for c in columns), *other])} | minutes |")
    print("|---|" + "---|" * (len(columns) + 2))
    for setting in (s for s in SETTINGS if s.data == data):
        known = {name: cells(folder, setting.key, [name]) for name in measurements(setting)}
        minutes = minutes_of(folder, setting.key)
        if not minutes or not all(known.values()):
            continue
        values = [known.get(f"{name} on {data}", {}).get(metric, "") for _, metric, name in columns]
        way = "conditioned" if setting.recipe is SMALL else "vectors"
        values.append(known[f"{way} retrieval on {data}"]["rSum"])
        print(f"| {setting.name} | {' | '.join(values)} | {minutes} |")


def curve(folder: Folder, data: str) -> None:
    """CAFT++ by the share of the parts: on what it is chosen by, and on what counts."""
    print(f"\n| alpha on {data} | to choose: rSum | {' | '.join(WAYS)} | rSum |\n|---|---|---|---|---|")
    for alpha in (0.0, *ALPHAS):
        name = f"alpha {alpha:g}" if alpha else "retrieval"
        chosen = cells(folder, f"{data}-caft", [f"alpha {alpha:g}, to choose, on {data}"])
        found = cells(folder, f"{data}-caft", [f"{name} on {data}"])
        if chosen and found:
            print(f"| {alpha:g} | {chosen['rSum']} | {' | '.join(found[way] for way in (*WAYS, 'rSum'))} |")


def figure(folders: Sequence[Folder], path: Path) -> None:
    """rSum of every row of the ladder, seeds as dots, as a PNG: a panel for each set of each study."""
    from matplotlib.figure import Figure

    panels = [(folder, data) for data in BOTH for folder in folders if rows_of(folder, data)]
    canvas = Figure(figsize=(3.1 * len(panels), 2.8), dpi=110, layout="constrained")
    for place, (folder, data) in enumerate(panels):
        axes = canvas.add_subplot(1, len(panels), place + 1)
        found = rows_of(folder, data)
        for i, results in enumerate(found.values()):
            metric = next(m for m in pooled(results).metrics if m.name == "rSum")
            ends = [[metric.value - metric.low], [metric.high - metric.value]]
            axes.bar(i, metric.value, 0.6, yerr=ends, color="#2a78b5", error_kw={"lw": 0.8})
            for result in results:
                value = next(m.value for m in result.metrics if m.name == "rSum")
                axes.plot(i, value, ".", color="#1d2b36", ms=4)
        axes.axhline(metric.chance, color="#b0413e", lw=0.8, ls="--")
        axes.set_xticks(range(len(found)), list(found), fontsize=6, rotation=25)
        pairs = next(line["pairs"] for line in folder.lines().values() if line["data"] == data)
        axes.set_title(f"rSum, {data}, {pairs:,} pairs; dashed: chance", fontsize=7)
        axes.tick_params(axis="y", labelsize=7)
        axes.spines[["top", "right"]].set_visible(False)
    canvas.savefig(path)


def rows_of(folder: Folder, data: str) -> dict[str, list[Result]]:
    """The results of retrieval of those rows that have all seeds."""
    names = ("flair", "visual", "textual", "caft", "whole-only", "same-text")
    found = {name: folder.results(f"{data}-{name}", f"retrieval on {data}") for name in names}
    return {name: results for name, results in found.items() if len(results) == len(folder.seeds)}


if __name__ == "__main__":
    show(__doc__, tables, figure)
