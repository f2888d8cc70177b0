"""Tables, predictions and figure of docs/methods/text-group-transformer.md, out of benchmarks/tgt.py.

    python -m benchmarks.tgt_tables OUT... [--png FILE]

Several OUT are studies of different lengths.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.study import Folder, Ordering, cells, compared, minutes_of, orderings, show
from benchmarks.tgt import GROUPS, PROBES, SETTINGS, Fivefold, Setting
from grainline.evaluation.result import Result
from grainline.evaluation.suites.grouped import CLUSTERINGS
from grainline.evaluation.suites.phrases import AS_MANY, IN_PLACE, MOVED, uniform
from grainline.evaluation.suites.phrases import GROUPS as OWN

MEASURES = ("tIoU", "precision", "recall", "F1")
FOUND = f"tIoU, {OWN}"
WAYS = ("image to text R@1", "text to image R@1")
KINDS = ("all kinds", "noun", "relation")
SETS = ("captions", "scenes", "flickr8k")
REMEDIES = ("crops", "places", "both", "by-length")
FIRST = {"captions": "reconstruction", "scenes": "full", "flickr8k": "full"}
"""The model of the paper on each set; on captions alone it has one loss."""


def measurement(metric: str, data: str) -> str:
    """The name of the measurement that holds a metric."""
    kind = "phrases" if "," in metric else "probes" if metric in KINDS else "retrieval"
    return f"{kind} on {data}"


def groups_of(name: str) -> int:
    """How many groups the model of a setting has."""
    if name == "by-length":
        return 8
    return int(name[1:]) if name[0] == "k" and name[1:].isdigit() else 4


def beyond(data: str, name: str) -> list[Ordering]:
    """Whether groups reach more than rules and captions that make no sense."""
    rule = AS_MANY if name == "by-length" else uniform(groups_of(name))
    chunks, sets = f"tIoU, {rule}", (data,)
    return [
        Ordering(f"{name}: groups above uniform chunks", name, name, FOUND, sets, other=chunks),
        Ordering(
            f"{name}: above those of shuffled words", name, name, FOUND, sets, other=f"tIoU, {IN_PLACE}"
        ),
    ]


def paper() -> list[Ordering]:
    """What the paper claims."""
    both = ("scenes", "flickr8k")
    out = [
        Ordering("reconstruction makes segments (table 4)", "full", "no-reconstruction", FOUND, both),
        Ordering("images help segments (table 4)", "full", "no-contrastive", FOUND),
        Ordering("text alone makes segments (table 4)", "reconstruction", "untrained", FOUND, ("captions",)),
        Ordering(
            "groups above random ones (table 4)", "reconstruction", "reconstruction", FOUND, ("captions",),
            other="tIoU, random, K = 4",
        ),
    ]  # fmt: skip
    for name in CLUSTERINGS:  # of the model's own tokens where there is no baseline
        claim, other = f"groups above {name} of token states (table 4)", f"tIoU, {name}"
        out.append(Ordering(claim, "reconstruction", "reconstruction", FOUND, ("captions",), other=other))
        out.append(Ordering(claim, "full", "baseline", FOUND, other=other))
    for data in ("captions", "scenes"):
        peak = FIRST[data]
        out.append(
            Ordering("4 groups above 1 (table 6)", peak, peak, FOUND, (data,), other="tIoU, one group")
        )
        out += [Ordering(f"4 groups above {k} (table 6)", peak, f"k{k}", FOUND, (data,)) for k in GROUPS[1:]]
    out += [
        Ordering(f"groups above one vector: probes, {kind} (table 1)", "full", "baseline", kind)
        for kind in KINDS
    ]
    out += [
        Ordering(f"reconstruction helps probes, {kind} (table 1)", "full", "no-reconstruction", kind)
        for kind in KINDS[:2]
    ]
    out.append(Ordering("and not relations (table 1)", "no-reconstruction", "full", KINDS[2]))
    return out


def ours() -> list[Ordering]:
    """What the paper does not ask."""
    out = []
    for data in SETS:
        out += beyond(data, FIRST[data])
    for k in GROUPS[1:]:
        out += beyond("captions", f"k{k}")
    for name in REMEDIES:
        out += beyond("captions", name)
        out.append(Ordering(f"{name} help", name, "reconstruction", FOUND, ("captions",)))
    out += [*beyond("scenes", "both"), Ordering("both help", "both", "full", FOUND, ("scenes",))]
    for way in WAYS:
        out.append(Ordering(f"groups above one vector: {way}", "full", "baseline", way))
        out.append(
            Ordering(f"reconstruction helps: {way}", "full", "no-reconstruction", way, ("scenes", "flickr8k"))
        )
    return out


def tables(folder: Folder) -> None:
    """Everything as Markdown."""
    mine = Fivefold(folder.out, folder.data, 1)
    for data in SETS:
        phrases(mine, data)
        others(mine, data)
    for title, asked in (("the paper", paper()), ("not of the paper", ours())):
        print(f"\n{title}:")
        orderings(mine, asked, measurement)
    for data in ("scenes", "flickr8k"):
        probe(mine, data)


def probe(folder: Fivefold, data: str) -> None:
    """The settings of the probe, each with the seeds that it has, and their differences from `full`."""
    asked = [FOUND, f"precision, {OWN}", f"recall, {OWN}", *WAYS, "rSum"]
    facts = ("empty groups", "tokens of a group", "entropy")
    titles = " | ".join(["setting", "seeds", *asked, "reconstruction", *facts, "minutes"])
    print(f"\n### {data}: probe\n\n| {titles} |")
    print("|---|---|" + "---|" * (len(asked) + len(facts) + 2))
    lines, seeds = folder.lines(), {}
    names = [setting.name for setting in PROBES if setting.data == data]
    for name in names:
        seeds[name] = [seed for seed in Fivefold.seeds if f"{data}-{name}-{seed}" in lines]
        mine = [lines[f"{data}-{name}-{seed}"].get("log", {}) for seed in seeds[name]]
        if not mine:
            continue
        folder.seeds = tuple(seeds[name])
        found = cells(folder, f"{data}-{name}", list(dict.fromkeys(measurement(m, data) for m in asked)))
        # A run with one loss logs it as `loss`.
        told = [[one.get("reconstruction", one["loss"]) for one in mine if one]]
        told += [[one[fact] for one in mine if one] for fact in facts]
        means = [f"{sum(values) / len(values):.2f}" if values else "" for values in told]
        shown = " | ".join([*(found.get(metric, "") for metric in asked), *means])
        print(f"| {name} | {len(seeds[name])} | {shown} | {minutes_of(folder, f'{data}-{name}')} |")
    print(
        "\n| setting against full | metric | difference | each seed | verdict | paired t-test |\n"
        + "|---" * 6
        + "|"
    )
    for name in names[1:]:
        folder.seeds = tuple(seed for seed in seeds[name] if seed in seeds["full"])
        for metric in (FOUND, "rSum") if folder.seeds else ():
            which = measurement(metric, data)
            sides = (folder.results(f"{data}-{side}", which) for side in (name, "full"))
            print(f"| {name} | {metric} | {compared(*sides, metric)} |")


def settings_of(data: str) -> list[Setting]:
    return [setting for setting in SETTINGS if setting.data == data]


def phrases(folder: Fivefold, data: str) -> None:
    """tIoU of groups, of what stands beside them, and the other measures of the groups."""
    titles = ["tIoU", "uniform chunks", "shuffled, in place", "shuffled, with them"]
    print(f"\n### {data}: phrases\n\n| setting | {' | '.join([*titles, *MEASURES[1:]])} | minutes |")
    print("|---|" + "---|" * (len(titles) + len(MEASURES)))
    for setting in settings_of(data):
        found = cells(folder, setting.key, [f"phrases on {data}"])
        k = groups_of(setting.name)
        chunks = AS_MANY if setting.name == "by-length" else uniform(k)
        names = [OWN, chunks, IN_PLACE, MOVED]
        columns = [f"tIoU, {name}" for name in names] + [f"{measure}, {OWN}" for measure in MEASURES[1:]]
        if found:
            shown = " | ".join(found.get(column, "") for column in columns)
            print(f"| {setting.name} | {shown} | {minutes_of(folder, setting.key)} |")


def others(folder: Fivefold, data: str) -> None:
    """Probes and retrieval."""
    columns = [*(KINDS if data == "scenes" else ()), *WAYS, "rSum"]
    if data == "captions":
        return
    print(f"\n### {data}: probes and retrieval\n\n| setting | {' | '.join(columns)} |")
    print("|---|" + "---|" * len(columns))
    for setting in settings_of(data):
        names = dict.fromkeys(measurement(column, data) for column in columns)
        found = cells(folder, setting.key, list(names))
        if found:
            print(f"| {setting.name} | {' | '.join(found.get(column, '') for column in columns)} |")


def figure(folders: Sequence[Folder], path: Path) -> None:
    """tIoU of every seed on captions as a PNG: by number of groups, and by what was done against places."""
    from matplotlib.figure import Figure

    canvas = Figure(figsize=(7.6, 2.9 * len(folders)), dpi=110, layout="constrained")
    for row, folder in enumerate(folders):
        mine = Fivefold(folder.out, folder.data, 1)
        left, right = (canvas.add_subplot(len(folders), 2, 2 * row + place) for place in (1, 2))
        by_number = {str(k): _setting(k) for k in (1, 2, 4, *GROUPS[2:])}
        by_remedy = {name: name for name in (FIRST["captions"], *REMEDIES, "untrained")}
        _dots(left, mine, by_number, "tIoU in percent by the number of groups")
        _dots(right, mine, by_remedy, "with 4 groups, or 8 by length")
        left.legend(fontsize=6, frameon=False, loc="upper left", ncols=2)
    canvas.savefig(path)


def _setting(groups: int) -> str:
    """The setting on captions with so many groups. One takes all tokens, whatever a model has learnt."""
    return FIRST["captions"] if groups in (1, 4) else f"k{groups}"


def _dots(axes: Any, folder: Folder, settings: dict[str, str], title: str) -> None:
    """Every seed of each setting, with its mean, uniform chunks, and the mean with shuffled words."""
    shown = {}
    for label, setting in settings.items():
        results = folder.results(f"captions-{setting}", "phrases on captions")
        if results:
            rule = AS_MANY if setting == "by-length" else uniform(groups_of(setting))
            names = (OWN, rule, IN_PLACE) if label != "1" else ("one group",) * 3
            shown[label] = [_values(results, f"tIoU, {name}") for name in names]
    for at, (own, chunks, shuffled) in enumerate(shown.values()):
        axes.plot([at] * len(own), own, ".", color="#2a78b5", ms=5, label="" if at else "groups, each seed")
        axes.plot(
            [at - 0.2, at + 0.2],
            [sum(own) / len(own)] * 2,
            color="#2a78b5",
            lw=1.6,
            label="" if at else "mean",
        )
        axes.plot([at - 0.2, at + 0.2], [sum(shuffled) / len(shuffled)] * 2, color="#8a8f94", lw=1.6,
                  label="" if at else "mean, shuffled words")  # fmt: skip
        axes.plot(
            [at - 0.3, at + 0.3],
            [chunks[0]] * 2,
            color="#b0413e",
            lw=1.6,
            label="" if at else "uniform chunks",
        )
    axes.set_xticks(range(len(shown)), list(shown), fontsize=7)
    axes.set_ylim(0, 100)
    axes.set_title(title, fontsize=8)
    axes.tick_params(axis="y", labelsize=7)
    axes.spines[["top", "right"]].set_visible(False)


def _values(results: Sequence[Result], name: str) -> list[float]:
    """A metric of each result in percent."""
    return [next(m.value for m in one.metrics if m.name == name) for one in results]


if __name__ == "__main__":
    show(__doc__, tables, figure)
