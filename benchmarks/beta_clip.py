"""beta-CLIP against its controls: the same pairs, the same encoders, three seeds of each setting, measured.

    GRAINLINE_DATA=... python -m benchmarks.beta_clip OUT [--minutes 90] [--jobs 2]
    GRAINLINE_DATA=... python -m benchmarks.beta_clip OUT --tables

The first line trains and measures, two runs side by side with a thread each, until its time is over; start it
as often as you like, it goes on. OUT/runs.jsonl gets a line for every run. For each seed and set there is a
CLIP from scratch, and every other run begins with it and sees as many pairs as all others. Settings stand in
the order of their worth, all seeds of one together; those that found no time are named at the end. The second
line prints the tables and predictions of docs/methods/beta-clip.md.
"""

from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from benchmarks.study import (
    SECONDS,
    SEEDS,
    Folder,
    Ordering,
    arguments,
    cells,
    data_folder,
    minutes_of,
    orderings,
    work,
)
from grainline.recipe import read_recipe

SCENES = 8000  # pictures to train on
BATCH = 64  # pictures, which are one group of beta-CAL
STEPS = {"scenes": (240, 200), "openstax": (200, 100)}  # from scratch, with twice the batch; tuned
HELD_OUT = 300  # scenes
FOUND = [(name, "retrieval") for name in ("image to text R@1", "text to image R@1", "rSum")]
LIKE = [(f"Sim, {kind}", "similarity") for kind in ("sentences", "all texts")]
COLUMNS = {
    "scenes": [("accuracy", "regions"), *FOUND, *LIKE],
    "openstax": [*FOUND, *LIKE],
}
BETAS = (0.5, 0.0, 1.0, 0.25)


class Setting(NamedTuple):
    """One way to train on one set."""

    data: str  # openstax or scenes
    name: str
    model: dict[str, Any]  # fields of beta-CLIP
    texts: dict[str, Any]  # beside the caption
    method: str = "beta_clip"

    @property
    def key(self) -> str:
        return f"{self.data}-{self.name}"


SIX: dict[str, Any] = {"sentences": 5}
SIXTEEN: dict[str, Any] = {"sentences": 5, "phrases": {"most": 10}}


def betas(data: str, beta: float) -> list[Setting]:
    return [Setting(data, f"{form}-{beta:g}", {"form": form, "beta": beta}, SIX) for form in ("ce", "bce")]


def controls(data: str) -> list[Setting]:
    """The CLIP that all begin with, and the same one tuned on whole captions."""
    return [Setting(data, name, {}, {}, "clip") for name in ("clip", "k1")]


SETTINGS = [
    *controls("scenes"),
    *(setting for beta in BETAS for setting in betas("scenes", beta)),
    *controls("openstax"),
    *(setting for beta in BETAS[:2] for setting in betas("openstax", beta)),
    Setting("scenes", "unconditioned", {}, SIX, "clip"),
    Setting("scenes", "ce-0.5-k16", {"beta": 0.5}, SIXTEEN),
    Setting("scenes", "ce-0.5-no-norm", {"beta": 0.5, "input_norm": False}, SIX),
    Setting("scenes", "bce-0.5-k16", {"form": "bce", "beta": 0.5}, SIXTEEN),
    *(setting for beta in BETAS[2:] for setting in betas("openstax", beta)),
    Setting("scenes", "bce-1-others", {"form": "bce", "beta": 1.0, "others": {}}, SIX),
    Setting("scenes", "ce-1-others", {"beta": 1.0, "others": {}}, SIX),
    Setting("scenes", "bce-0.5-rows", {"form": "bce", "beta": 0.5, "divisor": "rows"}, SIX),
    Setting("scenes", "calibrated", {"beta": 0.75, "decay": 0.05}, SIX),
]


def run(folder: Folder, setting: Setting, seed: int) -> None:
    """Train and measure one run."""
    key = f"{setting.key}-{seed}"
    if setting.name != "clip":
        base = Setting(setting.data, "clip", {}, {}, "clip")
        folder.train(f"{base.key}-{seed}", recipe(folder, base, seed), base.data)
    place = folder.train(key, recipe(folder, setting, seed), setting.data)
    told: dict[str, list[float]] = {}
    for name, asked in measurements(setting).items():
        found = folder.measure(key, name, held_out(folder, name), *asked)
        told |= {f"{name} {metric}": value for metric, value in found.items()}
    steps, batch = length(setting)
    folder.add(
        {
            "run": key, "setting": setting.name, "data": setting.data, "seed": seed, "batch": batch,
            "pairs": steps * batch, "trained_s": float((place / SECONDS).read_text()), "metrics": told,
        }
    )  # fmt: skip


def length(setting: Setting) -> tuple[int, int]:
    """Steps and batch."""
    scratch, tuned = STEPS[setting.data]
    return (scratch, 2 * BATCH) if setting.name == "clip" else (tuned, BATCH)


def measurements(setting: Setting) -> dict[str, tuple[str, ...]]:
    """Names of measurements with the arguments of the command that makes them."""
    out = {f"retrieval on {setting.data}": ("--suite", "retrieval")}
    if setting.data == "scenes":
        out["regions on scenes"] = ("--suite", "fg-ovd")
    if setting.method == "beta_clip":
        out[f"similarity on {setting.data}"] = ("--suite", "similarity")
        conditioned = ("--suite", "retrieval", "--scoring", "conditioned")
        out[f"conditioned retrieval on {setting.data}"] = conditioned
        out[f"own captions on {setting.data}"] = ("--suite", "own-caption")
    return out


def held_out(folder: Folder, name: str) -> str:
    """What a measurement is made on."""
    if name.endswith("openstax"):
        return str(folder.held_out("openstax"))
    return f"scenes:dev?count={HELD_OUT}&size=64"


def recipe(folder: Folder, setting: Setting, seed: int) -> Path:
    """The recipe of a run, as a file."""
    name = "clip/patches" if setting.data == "scenes" else "clip/long_captions"
    values = read_recipe(name, []).model_dump(mode="json")
    steps, batch = length(setting)
    optimizer = values["train"]["optimizer"]
    if setting.data == "openstax":
        values["model"]["image"] |= {"pool": "class", "patches": "values"}
    values["data"]["texts"] = {"captions": "whole", **setting.texts}
    if setting.name != "clip":
        values["begin"] = str(folder.out / "runs" / f"{setting.data}-clip-{seed}" / "last")
        optimizer |= {"lr": 5.0e-4, "schedule": {"kind": "cosine", "warmup": 20}}
    if setting.method == "beta_clip":
        values["method"] = "beta_clip"
        values["model"] |= {"input_norm": True} | setting.model
        own = {"pattern": r"pool(_scale)?\..*", "lr": 4.0, "schedule": {"kind": "cosine", "warmup": 0}}
        optimizer["rules"] = [own, {"pattern": ".*"}]
    values["train"] |= {"steps": steps, "batch": batch, "seed": seed, "save_every": 1000, "keep": 1}
    values["data"] |= {"workers": 0, "paths": []}
    path = folder.out / "recipes" / f"{setting.key}-{seed}.yaml"
    path.write_text(yaml.safe_dump(values, sort_keys=False), encoding="utf-8")
    return path


def measurement(metric: str, data: str) -> str:
    """The name of the measurement that holds a metric."""
    kind = "regions" if metric in ("accuracy", "mean rank") else "retrieval"
    return f"{'similarity' if metric.startswith('Sim') else kind} on {data}"


BOTH = ("scenes", "openstax")
RETRIEVAL = ("text to image R@1", "image to text R@1")
ORDERINGS = [
    Ordering("tuning on captions alone raises the accuracy of regions (table 3)", "k1", "clip", "accuracy"),
    Ordering("CE, beta 0.5, beats tuning on captions alone in regions (table 3)", "ce-0.5", "k1", "accuracy"),
    Ordering(
        "BCE, beta 0.5, does not beat it in regions by much: 42.7 to 44.6 (table 3)",
        "k1",
        "bce-0.5",
        "accuracy",
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
        "negatives of other pictures raise BCE in regions (table 8)", "bce-1-others", "bce-1", "accuracy"
    ),
    Ordering(
        "negatives of other pictures do not raise CE in regions (table 8)", "ce-1", "ce-1-others", "accuracy"
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
        print(f"\n### {data}\n\n| setting | {' | '.join(c for c, _ in columns)} | minutes |")
        print("|---|" + "---|" * (len(columns) + 1))
        for setting in (s for s in SETTINGS if s.data == data):
            known = {name: cells(folder, setting.key, [name]) for name in measurements(setting)}
            minutes = minutes_of(folder, setting.key)
            if minutes and all(known.values()):
                shown = [known.get(f"{name} on {data}", {}).get(metric, "") for metric, name in columns]
                print(f"| {setting.name} | {' | '.join(shown)} | {minutes} |")
    orderings(folder, ORDERINGS, measurement)


def main() -> None:
    args = arguments(__doc__)
    folder = Folder(args.out, data_folder())
    if args.tables:
        tables(folder)
        return
    folder.draw(SCENES)
    jobs = [
        (f"{setting.key}-{seed}", partial(run, folder, setting, seed))
        for setting in SETTINGS
        for seed in SEEDS
    ]
    work(folder, jobs, args.minutes, args.jobs)


if __name__ == "__main__":
    main()
