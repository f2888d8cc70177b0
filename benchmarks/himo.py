"""HiMo-CLIP against its controls: the same pairs, the same encoders, three seeds of each setting, measured.

    GRAINLINE_DATA=... python -m benchmarks.himo OUT [--minutes 90] [--jobs 2]
    GRAINLINE_DATA=... python -m benchmarks.himo OUT --tables

The first line trains and measures, two runs side by side with a thread each, until its time is over. A run
that is finished is not made again and one that was stopped goes on: start it as often as you like.
OUT/runs.jsonl gets a line for every run. Settings stand in the order of their worth, all seeds of one
together; those that found no time are named at the end. The second line prints the tables and orderings of
docs/methods/himo-clip.md.
"""

from pathlib import Path
from typing import Any, NamedTuple

import torch
import yaml

from benchmarks.study import (
    SECONDS,
    Folder,
    Ordering,
    arguments,
    cells,
    data_folder,
    minutes_of,
    orderings,
    work,
)
from grainline.data.open_source import open_source
from grainline.loading import load
from grainline.losses.hide import principal_part
from grainline.recipes import find

SCENES = 8000  # images to train on
PAIRS = {"openstax": 300 * 128, "scenes": 240 * 128}  # seen by every run
RECIPES = {"openstax": "himo/long_captions", "scenes": "himo/scenes"}
SUITES = ("retrieval", "monotonicity")
ON_TOP = ("image to text R@1", "text to image R@1", "rSum", "HiMo@2", "HiMo@3", "HiMo@K")


class Setting(NamedTuple):
    """One way to train on one set."""

    data: str  # openstax or scenes
    name: str
    model: dict[str, Any]  # fields of the model that differ from the recipe
    batch: int = 128
    method: str = "himo"

    @property
    def key(self) -> str:
        return f"{self.data}-{self.name}"


def main_three(data: str) -> list[Setting]:
    """CLIP, the control, and the method. The control is CLIP with the method's smoothed labels."""
    return [
        Setting(data, "clip", {}, method="clip"),
        Setting(data, "global", {"component": 0.0}),
        Setting(data, "himo", {}),
    ]


SETTINGS = [
    *main_three("openstax"),
    *main_three("scenes"),
    Setting("scenes", "global-batch32", {"component": 0.0}, batch=32),
    Setting("scenes", "himo-batch32", {}, batch=32),
    Setting("scenes", "both-sides", {"sides": "both"}),
    Setting("scenes", "threshold-0.6", {"threshold": 0.6}),
    Setting("scenes", "component-only", {"whole": 0.0}),
    Setting("scenes", "lambda-2", {"component": 2.0}),
    Setting("scenes", "lambda-0.5", {"component": 0.5}),
    Setting("scenes", "double-global", {"component": 0.0, "whole": 2.0}),
    Setting("scenes", "detached", {"detach_basis": True}),
    Setting("scenes", "group-32", {"group": 32}),
    Setting("scenes", "unit", {"unit": True}),
]


def run(folder: Folder, setting: Setting, seed: int) -> None:
    """Train and measure one run."""
    key = f"{setting.key}-{seed}"
    place = folder.train(key, recipe(folder, setting, seed), setting.data)
    told: dict[str, list[float]] = {}
    for measured in dict.fromkeys((setting.data, "scenes")):  # models of photographs see scenes as well
        for suite in SUITES:
            data = str(folder.held_out(measured))
            found = folder.measure(key, f"on-{measured}-{suite}", data, "--suite", suite)
            told |= {f"{measured} {name}": value for name, value in found.items()}
    folder.add(
        {
            "run": key, "setting": setting.name, "data": setting.data, "seed": seed, "batch": setting.batch,
            "pairs": PAIRS[setting.data], "trained_s": float((place / SECONDS).read_text()), "metrics": told,
        }
    )  # fmt: skip


def recipe(folder: Folder, setting: Setting, seed: int) -> Path:
    """The recipe of a run, as a file."""
    values = yaml.safe_load(find(RECIPES[setting.data]).read_text(encoding="utf-8"))
    values["method"] = setting.method
    values["model"] |= setting.model
    if setting.method == "clip":
        del values["model"]["smoothing"]
    steps = PAIRS[setting.data] // setting.batch
    warmup = values["train"]["optimizer"]["schedule"]["warmup"] * 128 // setting.batch
    values["train"]["optimizer"]["schedule"]["warmup"] = warmup  # of as many pairs
    return folder.recipe(f"{setting.key}-{seed}", values, steps=steps, batch=setting.batch, seed=seed)


ORDERINGS = [
    *(
        Ordering(f"the component loss raises {metric} beyond the global loss alone", "himo", "global", metric,
                 ("openstax", "scenes"))
        for metric in ("HiMo@2", "HiMo@3", "HiMo@K", "text to image R@1", "image to text R@1")
    ),
    Ordering("the component loss alone has a higher HiMo@K than the global loss", "component-only", "global",
             "HiMo@K"),
    Ordering("PCA of both sides costs HiMo@K", "himo", "both-sides", "HiMo@K"),
    Ordering("PCA of both sides costs image to text R@1", "himo", "both-sides", "image to text R@1"),
    Ordering("tau = 0.6 costs retrieval", "himo", "threshold-0.6", "rSum"),
    Ordering("a larger batch raises HiMo@2", "himo", "himo-batch32", "HiMo@2"),
    Ordering("a larger batch raises HiMo@K", "himo", "himo-batch32", "HiMo@K"),
    Ordering("a larger batch raises text to image R@1", "himo", "himo-batch32", "text to image R@1"),
    Ordering("lambda = 1 has a higher HiMo@K than 0.5", "himo", "lambda-0.5", "HiMo@K"),
    Ordering("lambda = 1 has a higher HiMo@K than 2", "himo", "lambda-2", "HiMo@K"),
    Ordering("not of the paper: a larger batch raises HiMo@K of the control", "global", "global-batch32",
             "HiMo@K"),
    Ordering("not of the paper: smoothed labels raise HiMo@K", "global", "clip", "HiMo@K",
             ("openstax", "scenes")),
]  # fmt: skip


def measurement(metric: str, data: str) -> str:
    """The name of the measurement that holds a metric."""
    return f"on-{data}-{'monotonicity' if metric.startswith('HiMo') else 'retrieval'}"


def tables(folder: Folder) -> None:
    """Everything as Markdown."""
    for trained, measured in (("openstax", "openstax"), ("openstax", "scenes"), ("scenes", "scenes")):
        print(f"\n### Trained on {trained}, measured on {measured}\n")
        print(f"| setting | {' | '.join(ON_TOP)} | minutes |\n|---|{'---|' * (len(ON_TOP) + 1)}")
        for setting in (s for s in SETTINGS if s.data == trained):
            found = cells(folder, setting.key, [f"on-{measured}-{suite}" for suite in SUITES])
            minutes = minutes_of(folder, setting.key)
            if found and minutes:
                print(f"| {setting.name} | {' | '.join(found[name] for name in ON_TOP)} | {minutes} |")
    orderings(folder, ORDERINGS, measurement)
    components(folder)


def components(folder: Folder) -> None:
    """How many components hold 90 % of the variance of 128 held-out captions, by setting and seed."""
    print("\n| setting | components of each seed |\n|---|---|")
    texts: dict[str, list[str]] = {}
    for setting in SETTINGS:
        runs = [folder.out / "runs" / f"{setting.key}-{seed}" for seed in folder.seeds]
        if setting.data not in texts:
            source = open_source(str(folder.held_out(setting.data)))
            texts[setting.data] = [source[i].whole for i in range(128)]
        kept = []
        for run in (run for run in runs if (run / SECONDS).is_file()):
            vectors = load(run, device="cpu").encode(texts=texts[setting.data]).vector
            kept.append(int(principal_part(vectors, torch.ones(128, dtype=torch.bool), 0.9).components))
        if kept:
            print(f"| {setting.key} | {', '.join(map(str, kept))} |")


def main() -> None:
    args = arguments(__doc__, "tables")
    folder = Folder(args.out, data_folder())
    if args.tables:
        tables(folder)
        return
    folder.draw(SCENES)
    work(folder, SETTINGS, run, args)


if __name__ == "__main__":
    main()
