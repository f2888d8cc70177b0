"""HiMo-CLIP against its controls: the same pairs, the same encoders, three seeds of each setting, measured.

    GRAINLINE_DATA=... python -m benchmarks.himo OUT [--minutes 90] [--jobs 2]
    GRAINLINE_DATA=... python -m benchmarks.himo OUT --tables

The first line trains and measures, two runs side by side with a thread each, until its time is over. A run
that is finished is not made again and one that was stopped goes on: start it as often as you like.
OUT/runs.jsonl gets a line for every run. Settings stand in the order of their worth, all seeds of one
together; those that found no time are named at the end. The second line prints the tables and orderings of
docs/methods/himo-clip.md.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple

import torch
import yaml

from grainline.data.sources import open_source
from grainline.evaluate.against import against
from grainline.evaluate.intervals import from_replicates
from grainline.evaluate.outcome import options_of
from grainline.evaluate.pool import pooled
from grainline.evaluate.result import Metric, Result, read
from grainline.evaluate.suite import CELLS
from grainline.losses.principal import principal_part
from grainline.model import load
from grainline.recipe import find_recipe

SEEDS = (0, 1, 2)
SCENES = 8000  # pictures to train on
PAIRS = {"openstax": 300 * 128, "scenes": 240 * 128}  # seen by every run
RECIPES = {"openstax": "himo/long_captions", "scenes": "himo/scenes"}
SUITES = ("retrieval", "monotonicity")
SECONDS = "trained_seconds"  # file of a run: how long the last part of its training took
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


class Study:
    """The folder of all runs."""

    def __init__(self, out: Path, data: Path) -> None:
        self.out, self.data, self.lock = out, data, Lock()
        for name in ("recipes", "runs", "results"):
            (out / name).mkdir(parents=True, exist_ok=True)

    def run(self, setting: Setting, seed: int) -> None:
        """Train and measure one run, unless it is done."""
        key = f"{setting.key}-{seed}"
        if key in self.lines():
            return
        run = self.train(setting, seed)
        told: dict[str, list[float]] = {}
        for measured in dict.fromkeys((setting.data, "scenes")):  # models of photographs see scenes as well
            for suite in SUITES:
                place = self.out / "results" / f"{key}-on-{measured}-{suite}.json"
                if not place.is_file():
                    grainline(
                        "evaluate", str(run), "--data", str(self.held_out(measured)), "--suite", suite,
                        "--json", str(place),
                    )  # fmt: skip
                of = {metric.name: metric for metric in read(place).metrics}
                told |= {f"{measured} {m.name}": [m.value, m.low, m.high] for m in of.values()}
        line = {
            "run": key, "setting": setting.name, "data": setting.data, "seed": seed, "batch": setting.batch,
            "pairs": PAIRS[setting.data], "trained_s": float((run / SECONDS).read_text()), "metrics": told,
        }  # fmt: skip
        with self.lock, (self.out / "runs.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")

    def train(self, setting: Setting, seed: int) -> Path:
        """The folder of a trained run."""
        run = self.out / "runs" / f"{setting.key}-{seed}"
        if not (run / SECONDS).is_file():
            start = time.monotonic()
            resume = ["--resume"] if (run / "log.jsonl").is_file() else []
            sources = list(map(str, self.sources(setting.data)))
            grainline(
                "train", str(self.recipe(setting, seed)), "--data", *sources, "--out", str(run), *resume
            )
            (run / SECONDS).write_text(f"{time.monotonic() - start:.1f}", encoding="utf-8")
        return run

    def lines(self) -> dict[str, dict[str, Any]]:
        """The runs that are done."""
        file = self.out / "runs.jsonl"
        text = file.read_text(encoding="utf-8") if file.is_file() else ""
        return {line["run"]: line for line in map(json.loads, text.splitlines())}

    def sources(self, name: str) -> list[Path]:
        if name == "openstax":
            return sorted((self.data / name).glob("train-*.tar"))
        return sorted((self.out / "scenes").glob("train-*.tar"))

    def held_out(self, name: str) -> Path:
        if name == "openstax":
            return self.data / name / "dev-0000.tar"
        return self.out / "scenes" / "dev-000000.tar"

    def draw(self) -> None:
        """Scenes as files, once: to draw them again in every run would take a third of its time."""
        place = self.out / "scenes"
        if not (place / "dev-000000.tar").is_file():
            for part in (f"scenes:train?count={SCENES}&size=64", "scenes:dev?count=500&size=64"):
                grainline("data", "scenes", part, "--out", str(place))

    def recipe(self, setting: Setting, seed: int) -> Path:
        """The recipe of a run, as a file."""
        values = yaml.safe_load(find_recipe(RECIPES[setting.data]).read_text(encoding="utf-8"))
        values["method"] = setting.method
        values["model"] |= setting.model
        if setting.method == "clip":
            del values["model"]["smoothing"]
        steps = PAIRS[setting.data] // setting.batch
        warmup = values["train"]["optimizer"]["schedule"]["warmup"] * 128 // setting.batch
        values["train"]["optimizer"]["schedule"]["warmup"] = warmup  # of as many pairs
        values["train"] |= {"steps": steps, "batch": setting.batch, "seed": seed, "save_every": 200}
        values["data"] |= {"workers": 0, "paths": []}
        path = self.out / "recipes" / f"{setting.key}-{seed}.yaml"
        path.write_text(yaml.safe_dump(values, sort_keys=False), encoding="utf-8")
        return path

    def results(self, setting: str, measured: str, suite: str) -> list[Result]:
        """The results of all seeds of a setting; fewer where some are missing."""
        places = [self.out / "results" / f"{setting}-{seed}-on-{measured}-{suite}.json" for seed in SEEDS]
        return [read(place) for place in places if place.is_file()]


def grainline(*arguments: str) -> None:
    threads = {"OMP_NUM_THREADS": "1"}
    subprocess.run(
        [sys.executable, "-m", "grainline", *arguments], check=True, env={**os.environ, **threads},
        stdout=subprocess.DEVNULL,
    )  # fmt: skip


def work(study: Study, minutes: float, jobs: int) -> None:
    """Make the runs that are missing, as long as there is time to begin one."""
    end = time.monotonic() + 60 * minutes
    study.draw()
    late: list[str] = []

    def one(job: tuple[Setting, int]) -> None:
        setting, seed = job
        if time.monotonic() > end and f"{setting.key}-{seed}" not in study.lines():
            late.append(f"{setting.key}-{seed}")
        else:
            study.run(setting, seed)

    with ThreadPoolExecutor(jobs) as pool:
        list(pool.map(one, [(setting, seed) for setting in SETTINGS for seed in SEEDS]))
    print(f"no time for: {', '.join(late) or 'none'}")


class Ordering(NamedTuple):
    """A prediction of the paper: `higher` is above `lower` in a metric."""

    claim: str
    higher: str
    lower: str
    metric: str
    sets: tuple[str, ...] = ("scenes",)


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


def suite_of(metric: str) -> str:
    return "monotonicity" if metric.startswith("HiMo") else "retrieval"


def difference(after: Sequence[Result], before: Sequence[Result], metric: str) -> tuple[Metric, list[float]]:
    """Mean paired difference over the seeds, with its interval over pictures; and that of each seed."""
    each = [
        next(d.value for d in against(a, b) if d.name == metric) for a, b in zip(after, before, strict=True)
    ]
    options = options_of(after[0])
    one, other = (
        CELLS[after[0].suite]([r.queries for r in side], options)[metric] for side in (after, before)
    )
    ends = from_replicates(one.value - other.value, one.drawn - other.drawn, options.level)
    return Metric(metric, *ends, one.queries, 0.0, 0, one.unit), each


def verdict(found: Metric, each: Sequence[float]) -> str:
    """What a difference says about a prediction: the interval and all seeds must agree."""
    if found.low > 0 and min(each) > 0:
        return "confirmed"
    return "refuted" if found.high < 0 and max(each) < 0 else "undecided"


def tables(study: Study) -> None:
    """Everything as Markdown."""
    done = study.lines()
    for trained, measured in (("openstax", "openstax"), ("openstax", "scenes"), ("scenes", "scenes")):
        print(f"\n### Trained on {trained}, measured on {measured}\n")
        print(f"| setting | {' | '.join(ON_TOP)} | minutes |\n|---|{'---|' * (len(ON_TOP) + 1)}")
        for setting in (s for s in SETTINGS if s.data == trained):
            cells = row(study, setting, measured)
            mine = [line["trained_s"] / 60 for key, line in done.items() if key[:-2] == setting.key]
            if cells and mine:
                print(f"| {setting.name} | {' | '.join(cells)} | {sum(mine) / len(mine):.1f} |")
    orderings(study)
    components(study)


def components(study: Study) -> None:
    """How many components hold 90 % of the variance of 128 held-out captions, by setting and seed."""
    print("\n| setting | components of each seed |\n|---|---|")
    texts: dict[str, list[str]] = {}
    for setting in SETTINGS:
        runs = [study.out / "runs" / f"{setting.key}-{seed}" for seed in SEEDS]
        if setting.data not in texts:
            source = open_source(str(study.held_out(setting.data)))
            texts[setting.data] = [source[i].whole for i in range(128)]
        kept = []
        for run in (run for run in runs if (run / SECONDS).is_file()):
            vectors = load(run, device="cpu").encode(texts=texts[setting.data]).vector
            kept.append(int(principal_part(vectors, torch.ones(128, dtype=torch.bool), 0.9).kept))
        if kept:
            print(f"| {setting.key} | {', '.join(map(str, kept))} |")


def orderings(study: Study) -> None:
    """Every prediction with its difference and verdict."""
    print("\n| prediction | set | difference | each seed | verdict |\n|---|---|---|---|---|")
    for ordering in ORDERINGS:
        for data in ordering.sets:
            suite = suite_of(ordering.metric)
            sides = [study.results(f"{data}-{n}", data, suite) for n in (ordering.higher, ordering.lower)]
            if not all(len(side) == len(SEEDS) for side in sides):
                print(f"| {ordering.claim} | {data} | not run | | undecided |")
                continue
            found, each = difference(*sides, ordering.metric)
            seeds = ", ".join(shown(found, value) for value in each)
            ends = f"{shown(found, found.value)} ({shown(found, found.low)} to {shown(found, found.high)})"
            print(f"| {ordering.claim} | {data} | {ends} | {seeds} | {verdict(found, each)} |")


def row(study: Study, setting: Setting, measured: str) -> list[str]:
    """The metrics on top, pooled over the seeds; none where a seed is missing."""
    cells: dict[str, str] = {}
    for suite in SUITES:
        found = study.results(setting.key, measured, suite)
        if len(found) < len(SEEDS):
            return []
        together = pooled(found)
        for metric in together.metrics:
            cells[metric.name] = f"{metric.text(metric.value)} ({metric.ends()})"
    return [cells[name] for name in ON_TOP]


def shown(found: Metric, value: float) -> str:
    """A difference: of shares in points of a percent."""
    if found.unit == "share":
        return f"{100 * value:+.1f}"
    return f"{value:+.3f}" if abs(value) < 2 and found.unit != "sum" else f"{value:+.1f}"


def run() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("out", type=Path)
    parser.add_argument("--minutes", type=float, default=90)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--tables", action="store_true")
    args = parser.parse_args()
    if "GRAINLINE_DATA" not in os.environ:
        sys.exit("set GRAINLINE_DATA to the folder that holds openstax/")
    study = Study(args.out, Path(os.environ["GRAINLINE_DATA"]))
    if args.tables:
        tables(study)
    else:
        work(study, args.minutes, args.jobs)


if __name__ == "__main__":
    run()
