"""Tables, predictions and figure of docs/methods/beta-clip.md, from what benchmarks/beta_clip.py measured.

python -m benchmarks.beta_clip_tables OUT [--png FILE]
"""

from collections.abc import Sequence
from pathlib import Path

from benchmarks.beta_clip import SETTINGS, measurements
from benchmarks.study import Folder, Ordering, cells, minutes_of, orderings, show
from grainline.evaluation.compare import pooled

FOUND = [(name, name, "retrieval") for name in ("image to text R@1", "text to image R@1", "rSum")]
LIKE = [(f"Sim, {kind}", f"Sim, {kind}", "similarity") for kind in ("sentences", "all texts")]
COLUMNS = {  # of the tables: title, metric, measurement
    "scenes": [("accuracy of regions", "accuracy", "regions"), *FOUND, *LIKE],
    "openstax": [*FOUND, *LIKE],
}
POOLED = [
    ("text to image R@1, summaries", "text to image R@1", "retrieval"),
    ("pooled by the query", "text to image R@1", "conditioned retrieval"),
    ("pooled by its own caption", "own-caption R@1, caption to images", "own captions"),
]


def measurement(metric: str, data: str) -> str:
    """The name of the measurement that holds a metric."""
    kind = "regions" if metric in ("accuracy", "mean rank") else "retrieval"
    return f"{'similarity' if metric.startswith('Sim') else kind} on {data}"


BOTH = ("scenes", "openstax")
IDLE = 0.9995  # Sim, all texts
RETRIEVAL = ("text to image R@1", "image to text R@1")
ORDERINGS = [
    Ordering("tuning on captions alone raises the accuracy of regions (table 3)", "k1", "clip", "accuracy"),
    Ordering("CE, beta 0.5, beats tuning on captions alone in regions (table 3)", "ce-0.5", "k1", "accuracy"),
    Ordering(
        "tuning on captions alone beats BCE, beta 0.5, in regions (table 3)", "k1", "bce-0.5", "accuracy"
    ),
    Ordering(
        "six positives without conditioning are worse in regions than one (table 3)",
        "k1",
        "unconditioned",
        "accuracy",
    ),
    Ordering(
        "CE, beta 0.5, beats six positives without conditioning in regions (table 3)",
        "ce-0.5",
        "unconditioned",
        "accuracy",
    ),
    *(
        Ordering(
            f"{form.upper()}: beta {high:g} beats beta {low:g} in regions (table 4)",
            f"{form}-{high:g}",
            f"{form}-{low:g}",
            "accuracy",
        )
        for form, high, low in (
            ("ce", 0.25, 0.0),
            ("ce", 0.5, 0.25),
            ("ce", 0.5, 0.0),
            ("bce", 0.25, 0.0),
            ("bce", 0.5, 0.0),
        )
    ),
    *(
        Ordering(f"CE: beta 0 is worse in regions than {what} (table 4)", name, "ce-0", "accuracy")
        for name, what in (("k1", "tuning on captions alone"), ("clip", "CLIP"))
    ),
    *(
        Ordering(
            f"{form.upper()}: Sim, all texts, rises from beta {low:g} to {high:g} (table 4)",
            f"{form}-{high:g}",
            f"{form}-{low:g}",
            "Sim, all texts",
            BOTH,
        )
        for form in ("ce", "bce")
        for low, high in ((0.0, 0.25), (0.25, 0.5), (0.5, 1.0))
    ),
    Ordering(
        "BCE at beta 0 has a higher Sim, all texts, than CE (table 4)",
        "bce-0",
        "ce-0",
        "Sim, all texts",
        BOTH,
    ),
    *(
        Ordering(f"CE: beta 0 beats beta 0.5 in {way} (table 4)", "ce-0", "ce-0.5", way, BOTH)
        for way in RETRIEVAL
    ),
    *(
        Ordering(
            f"CE beats BCE in regions at beta {beta:g} (table 4)", f"ce-{beta:g}", f"bce-{beta:g}", "accuracy"
        )
        for beta in (0.25, 0.5, 1.0)
    ),
    *(
        Ordering(f"BCE beats CE in {way} at beta 0.5 (table 4)", "bce-0.5", "ce-0.5", way, BOTH)
        for way in RETRIEVAL
    ),
    *(
        Ordering(f"tuning on captions alone raises {way} (table 3)", "k1", "clip", way, BOTH)
        for way in RETRIEVAL
    ),
    Ordering("CE: sixteen texts beat six in regions (table 6)", "ce-0.5-k16", "ce-0.5", "accuracy"),
    Ordering(
        "BCE: sixteen texts beat six in regions (table 6: they do not)", "bce-0.5-k16", "bce-0.5", "accuracy"
    ),
    Ordering(
        "negatives of other images raise BCE in regions (table 8, C+S)", "bce-1-others", "bce-1", "accuracy"
    ),
    Ordering(
        "negatives of other images do not raise CE in regions (table 8, C+S)",
        "ce-1",
        "ce-1-others",
        "accuracy",
    ),
    *(
        Ordering(
            f"not of the paper: {form.upper()}, beta 0.5: pooled by the query beats summaries in {way}",
            f"{form}-0.5",
            f"{form}-0.5",
            way,
            BOTH,
            ("conditioned retrieval", "retrieval"),
        )
        for form in ("ce", "bce")
        for way in RETRIEVAL
    ),
    Ordering(
        "not of the paper: norms before the pooling lower Sim, all texts",
        "ce-0.5-no-norm",
        "ce-0.5",
        "Sim, all texts",
    ),
]


def tables(folder: Folder) -> None:
    """Everything as Markdown."""
    for data, columns in COLUMNS.items():
        table(folder, data, columns)
        table(folder, data, POOLED)
    orderings(folder, ORDERINGS, measurement, lambda setting: pools(folder, setting))


def pools(folder: Folder, setting: str) -> bool:
    """Whether the pooling of a setting tells texts apart; True where it has none.

    Where Sim of all texts is 1 to three digits in every seed, all texts of an image pool the same: the loss
    moved nothing, and no comparison says anything about it.
    """
    data = setting.partition("-")[0]
    found = folder.results(setting, f"similarity on {data}")
    alike = [m.value for one in found for m in one.metrics if m.name == "Sim, all texts"]
    return not alike or min(alike) < IDLE


def table(folder: Folder, data: str, columns: list[tuple[str, str, str]]) -> None:
    """Settings of a set that have all seeds, and the pooled values of these columns."""
    print(f"\n### {data}\n\n| setting | {' | '.join(title for title, *_ in columns)} | minutes |")
    print("|---|" + "---|" * (len(columns) + 1))
    for setting in (s for s in SETTINGS if s.data == data):
        known = {name: cells(folder, setting.key, [name]) for name in measurements(setting)}
        minutes = minutes_of(folder, setting.key)
        shown = [known.get(f"{name} on {data}", {}).get(metric, "") for _, metric, name in columns]
        if minutes and all(known.values()) and (columns is not POOLED or all(shown)):
            print(f"| {setting.name} | {' | '.join(shown)} | {minutes} |")


def figure(folders: Sequence[Folder], path: Path) -> None:
    """How often the right image of a scene is found by three scores, with intervals, as a PNG."""
    from matplotlib.figure import Figure

    (folder,) = folders

    shown = [s for s in SETTINGS if s.data == "scenes" and s.name[:2] in ("ce", "bc") and s.texts]
    drawn = []
    for setting in shown:
        found = [folder.results(setting.key, f"{name} on scenes") for _, _, name in POOLED]
        if all(len(results) == 3 for results in found):
            metrics = [
                next(m for m in pooled(results).metrics if m.name == metric)
                for results, (_, metric, _) in zip(found, POOLED, strict=True)
            ]
            drawn.append((setting.name, metrics))
    drawn.sort(key=lambda one: (one[0].startswith("bce"), one[0]))
    canvas = Figure(figsize=(7.2, 3.0), dpi=110, layout="constrained")
    axes = canvas.add_subplot()
    titles = ("summary of the image", *(title for title, *_ in POOLED[1:]))
    for k, (title, colour) in enumerate(zip(titles, ("#5b6b7a", "#2a78b5", "#d9822b"), strict=True)):
        values = [metrics[k].value for _, metrics in drawn]
        ends = [
            [m.value - m.low for m in (metrics[k] for _, metrics in drawn)],
            [m.high - m.value for m in (metrics[k] for _, metrics in drawn)],
        ]
        places = [i + 0.27 * (k - 1) for i in range(len(drawn))]
        axes.bar(places, values, 0.25, yerr=ends, label=title, color=colour, error_kw={"lw": 0.8})
    axes.set_xticks(range(len(drawn)), [name for name, _ in drawn], fontsize=8)
    axes.set_ylabel("text to image R@1, %", fontsize=8)
    axes.tick_params(axis="y", labelsize=8)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(fontsize=8, frameon=False)
    canvas.savefig(path)


if __name__ == "__main__":
    show(__doc__, tables, figure)
