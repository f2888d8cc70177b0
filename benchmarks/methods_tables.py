"""Tables of docs/results.md that compare all methods, out of benchmarks/methods.py.

    python -m benchmarks.methods_tables OUT... [--png FILE]

Several OUT are studies of different lengths.
"""

from collections.abc import Sequence
from pathlib import Path

from benchmarks.methods import METHODS, STEPS
from benchmarks.study import Folder, cells, difference, minutes_of, show, shown, verdict
from grainline.evaluation.compare import pooled
from grainline.evaluation.result import Result

BASE = "clip"  # what every method is compared with
RECALLS = [f"{way} R@{k}" for way in ("image to text", "text to image") for k in (1, 10)]


def tables(folder: Folder) -> None:
    """All sets side by side, then the recalls of each."""
    sets = [data for data in STEPS if complete(folder, data, BASE)]
    print("\n| method | " + " | ".join(f"{data}: rSum | beside {BASE} | minutes" for data in sets) + " |")
    print("|---|" + "---|---|---|" * len(sets))
    for name in METHODS:
        print(f"| {name} | " + " | ".join(" | ".join(compared(folder, data, name)) for data in sets) + " |")
    for data in sets:
        print(f"\n| {data} | {' | '.join(RECALLS)} |\n|---|" + "---|" * len(RECALLS))
        for name in METHODS:
            found = cells(folder, f"{data}-{name}", [measurement(data)])
            if found:
                print(f"| {name} | {' | '.join(found[metric] for metric in RECALLS)} |")


def measurement(data: str) -> str:
    return f"retrieval on {data}"


def compared(folder: Folder, data: str, name: str) -> tuple[str, str, str]:
    """rSum of a method on a set, its difference to the base in all seeds, and the minutes of training."""
    key = f"{data}-{name}"
    found = cells(folder, key, [measurement(data)])
    if not found:
        return "not run", "", ""
    minutes = minutes_of(folder, key)
    if name == BASE:
        return found["rSum"], "", minutes
    both = (folder.results(f"{data}-{one}", measurement(data)) for one in (name, BASE))
    metric, each = difference(*both, "rSum")
    word = {"confirmed": "above", "refuted": "below"}.get(verdict(metric, each), "undecided")
    ends = f"{shown(metric, metric.low)} to {shown(metric, metric.high)}"
    return found["rSum"], f"{shown(metric, metric.value)} ({ends}), {word}", minutes


def complete(folder: Folder, data: str, name: str) -> list[Result]:
    """The results of a method on a set; none where a seed is missing."""
    found = folder.results(f"{data}-{name}", measurement(data))
    return found if len(found) == len(folder.seeds) else []


def figure(folders: Sequence[Folder], path: Path) -> None:
    """rSum of every method, seeds as dots, as a PNG: a panel for each set of each study."""
    from matplotlib.figure import Figure

    canvas = Figure(figsize=(3.2 * len(STEPS), 2.6 * len(folders)), dpi=110, layout="constrained")
    for row, folder in enumerate(folders):
        found = {(data, name): complete(folder, data, name) for data in STEPS for name in METHODS}
        named = [name for name in METHODS if any(found[data, name] for data in STEPS)]
        for column, data in enumerate(STEPS):
            axes = canvas.add_subplot(len(folders), len(STEPS), row * len(STEPS) + column + 1)
            for i, name in enumerate(named):
                results = found[data, name]
                if not results:
                    axes.text(0, -i, "  not run", fontsize=6, va="center", color="#666666")
                    continue
                metric = next(m for m in pooled(results).metrics if m.name == "rSum")
                ends = [[metric.value - metric.low], [metric.high - metric.value]]
                axes.barh(-i, metric.value, 0.6, xerr=ends, color="#a6c8e4", error_kw={"lw": 0.8})
                values = [next(m.value for m in one.metrics if m.name == "rSum") for one in results]
                axes.plot(values, [-i] * len(values), ".", color="#1d2b36", ms=4)
                axes.axvline(metric.chance, color="#b0413e", lw=0.8, ls="--")
            axes.set_ylim(0.6 - len(named), 0.6)
            axes.set_yticks([-i for i in range(len(named))], named, fontsize=7)
            axes.set_title(f"rSum, {data}; dashed: chance", fontsize=8)
            axes.tick_params(axis="x", labelsize=7)
            axes.spines[["top", "right"]].set_visible(False)
    canvas.savefig(path)


if __name__ == "__main__":
    show(__doc__, tables, figure)
