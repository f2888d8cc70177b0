"""Tables, predictions, marks of the oracle and figure of docs/methods/seps.md, out of benchmarks/seps.py.

    python -m benchmarks.seps_tables OUT... [--png FILE]

Several OUT are studies of different lengths.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.oracle.seps import ADDED, ALONE, DEPTHS, HONEST, Recalls, fingerprint
from benchmarks.seps import SETTINGS, STEPS
from benchmarks.study import Folder, Ordering, cells, minutes_of, orderings, show
from grainline.evaluation.compare import pooled

WAYS = ("image to text", "text to image")
COLUMNS = (*(f"{way} R@{k}" for way in WAYS for k in (1, 5, 10)), "rSum")
METRICS = ("image to text R@1", "text to image R@1", "rSum")
BOTH = tuple(STEPS)
ORACLES = {"scenes": {"": 1}, "flickr8k": {"3 captions": 3, "5 captions": 5}}
"""What the oracle is looked at with on each set, and how many captions an image has there."""


def step(claim: str, higher: str, lower: str) -> list[Ordering]:
    """The claim in each of the metrics."""
    return [Ordering(f"{claim}: {metric}", higher, lower, metric, BOTH) for metric in METRICS]


PAPER = [
    *step("both branches above the caption's alone (table 5)", "seps", "sparse"),
    *step("both branches above the description's alone (table 5)", "seps", "dense"),
    *step("the description's alone above the caption's alone (table 5)", "dense", "sparse"),
    *step("aggregation helps (table 5)", "seps", "no-aggregation"),
    *step("means help beside networks (table 5)", "seps", "topk"),
    *step("networks help beside means (table 5)", "seps", "mean"),
    *step("SEPS above LAPS (table 1)", "seps", "laps"),
    *step("LAPS above one vector (table 1)", "laps", "vse"),
]
OURS = [
    *step("SEPS without descriptions above LAPS", "sparse", "laps"),
    *step("SEPS above one vector", "seps", "vse"),
    *step("SEPS without descriptions above one vector", "sparse", "vse"),
]


def measurement(_: str, data: str) -> str:
    return f"retrieval on {data}"


def tables(folder: Folder) -> None:
    """Everything as Markdown."""
    for data in BOTH:
        print(f"\n### {data}\n\n| setting | {' | '.join(COLUMNS)} | minutes |")
        print("|---|" + "---|" * (len(COLUMNS) + 1))
        for setting in (one for one in SETTINGS if one.data == data):
            found = cells(folder, setting.key, [measurement("", data)])
            if found:
                values = " | ".join(found[column] for column in COLUMNS)
                print(f"| {setting.name} | {values} | {minutes_of(folder, setting.key)} |")
    for title, asked in (("the paper", PAPER), ("not of the paper", OURS)):
        print(f"\n{title}:")
        orderings(folder, asked, measurement)
    for data, sources in ORACLES.items():
        for name, captions in sources.items():
            oracle(folder, data, name, captions)


def recalls(folder: Folder, data: str, name: str) -> list[dict[str, Recalls]]:
    """What the oracle found in each seed."""
    lines = [folder.lines().get(f"{data}-sparse-{seed}") for seed in folder.seeds]
    return [
        {way: Recalls(**one) for way, one in line["oracle"][name].items()}
        for line in lines
        if line is not None
    ]


def oracle(folder: Folder, data: str, name: str, captions: int) -> None:
    """The same runs with the oracle and without, means over the seeds, and in how many its marks are."""
    found = recalls(folder, data, name)
    if len(found) < len(folder.seeds):
        return
    columns = [f"{way} R@{k}" for way in WAYS for k in DEPTHS]
    print(f"\noracle, {f'{data}, {name}'.strip(', ')}: no results\n\n| text | {' | '.join(columns)} |")
    print("|---|" + "---|" * len(columns))
    for way in (HONEST, ALONE, ADDED):
        values = [_mean([(*one[way].i2t, *one[way].t2i)[at] for one in found]) for at in range(len(columns))]
        print(f"| {way} | {' | '.join(f'{100 * x:.1f} %' for x in values)} |")
    if captions == 1:  # nothing ties
        return
    marks = [fingerprint(one[ALONE], one[ADDED], captions) for one in found]
    for mark in marks[0]:
        print(f"- {mark}: {sum(one[mark] for one in marks)} of {len(marks)} seeds")


def figure(folders: Sequence[Folder], path: Path) -> None:
    """rSum of all settings, seeds as dots; recall by depth with the oracle and without. As a PNG."""
    from matplotlib.figure import Figure

    canvas = Figure(figsize=(9.6, 3.0 * len(folders)), dpi=110, layout="constrained")
    for row, folder in enumerate(folders):
        panels = [canvas.add_subplot(len(folders), 3, 3 * row + at) for at in (1, 2, 3)]
        for axes, data in zip(panels[:2], BOTH, strict=True):
            _bars(axes, folder, data)
        _depths(panels[2], recalls(folder, "flickr8k", "5 captions"))
        for axes in panels:
            axes.tick_params(labelsize=7)
            axes.spines[["top", "right"]].set_visible(False)
    canvas.savefig(path)


def _bars(axes: Any, folder: Folder, data: str) -> None:
    names = [one.name for one in SETTINGS if one.data == data]
    found = {name: folder.results(f"{data}-{name}", measurement("", data)) for name in names}
    made = {name: results for name, results in found.items() if len(results) == len(folder.seeds)}
    for i, results in enumerate(made.values()):
        metric = next(m for m in pooled(results).metrics if m.name == "rSum")
        ends = [[metric.value - metric.low], [metric.high - metric.value]]
        axes.errorbar(metric.value, -i, xerr=ends, fmt="s", color="#2a78b5", ms=5, lw=1.2)
        each = [next(m.value for m in one.metrics if m.name == "rSum") for one in results]
        axes.plot(each, [-i - 0.2] * len(each), ".", color="#1d2b36", ms=4)
    axes.set_yticks([-i for i in range(len(made))], list(made))
    axes.set_title(f"rSum, {data}", fontsize=8)


def _depths(axes: Any, found: list[dict[str, Recalls]]) -> None:
    """Recall at each depth, both ways: honest, and with the oracle."""
    if not found:
        return
    for name, label, colour in ((HONEST, "captions", "#8a8f94"), (ALONE, "oracle: descriptions", "#b0413e")):
        for side, style in (("i2t", "-"), ("t2i", "--")):
            shares = [
                100 * _mean([getattr(one[name], side)[at] for one in found]) for at in range(len(DEPTHS))
            ]
            way = WAYS[0] if side == "i2t" else WAYS[1]
            axes.plot(DEPTHS, shares, style, marker=".", color=colour, lw=1.2, label=f"{label}, {way}")
    axes.set_xticks(DEPTHS)
    axes.set_title("recall in % by depth, five captions each", fontsize=8)
    axes.legend(fontsize=6, frameon=False)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


if __name__ == "__main__":
    show(__doc__, tables, figure)
