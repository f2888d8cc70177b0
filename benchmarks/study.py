"""What studies of methods share: runs that resume, a line for each, and predictions with their verdicts.

A study trains and measures settings with several seeds, two runs side by side with a thread each. A run that
is finished is not made again and one that was stopped goes on. OUT/runs.jsonl gets a line for every run.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np
import yaml

from grainline.evaluation.compare import pooled, refuse_unlike
from grainline.evaluation.result import Metric, Result, read
from grainline.evaluation.statistics import from_replicates
from grainline.evaluation.suite import MetricSamples, settings_of, suite_of

EVERY = 500  # steps after which a run keeps a checkpoint, to go on from
SECONDS = "trained_seconds"  # file of a run: how long the last part of its training took


class Folder:
    """The folder of all runs."""

    seeds: tuple[int, ...] = (0, 1, 2)  # of every setting

    def __init__(self, out: Path, data: Path, longer: int = 1) -> None:
        """
        data    the folder that holds openstax/ and flickr8k/
        longer  how many times as many steps as a study says every run has
        """
        self.out, self.data, self.longer, self._lock = out, data, longer, Lock()
        self._making: defaultdict[str, Lock] = defaultdict(Lock)
        for name in ("recipes", "runs", "results"):
            (out / name).mkdir(parents=True, exist_ok=True)

    def lines(self) -> dict[str, dict[str, Any]]:
        """The runs that are done."""
        file = self.out / "runs.jsonl"
        text = file.read_text(encoding="utf-8") if file.is_file() else ""
        return {line["run"]: line for line in map(json.loads, text.splitlines())}

    def add(self, line: dict[str, Any]) -> None:
        with self._lock, (self.out / "runs.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")

    def sources(self, name: str) -> list[Path]:
        """What to train on: scenes that were drawn, or a set of `data`."""
        return sorted(((self.out if name == "scenes" else self.data) / name).glob("train-*.tar"))

    def held_out(self, name: str) -> Path:
        if name == "scenes":
            return self.out / name / "dev-000000.tar"
        return self.data / name / "dev-0000.tar"

    def draw(self, images: int) -> None:
        """Scenes as files, once: to draw them again in every run would take a third of its time."""
        if not (self.out / "scenes" / "dev-000000.tar").is_file():
            for part in (f"scenes:train?count={images}&size=64", "scenes:dev?count=500&size=64"):
                grainline("data", "scenes", part, "--out", str(self.out / "scenes"))

    def train(self, key: str, recipe: Path, data: str) -> Path:
        """The folder of a trained run; it waits where another thread makes the same one."""
        run = self.out / "runs" / key
        with self._lock:
            making = self._making[key]
        with making:
            if not (run / SECONDS).is_file():
                start = time.monotonic()
                resume = ["--resume"] if (run / "log.jsonl").is_file() else []
                sources = list(map(str, self.sources(data)))
                grainline("train", str(recipe), "--data", *sources, "--out", str(run), *resume)
                (run / SECONDS).write_text(f"{time.monotonic() - start:.1f}", encoding="utf-8")
        return run

    def measure(self, key: str, name: str, data: str, *arguments: str) -> dict[str, list[float]]:
        """The metrics of a run, each with its interval; `name` is that of the measurement."""
        place = self.out / "results" / f"{key}-{name}.json"
        if not place.is_file():
            run = self.out / "runs" / key
            grainline("evaluate", str(run), "--data", data, *arguments, "--json", str(place))
        return {metric.name: [metric.value, metric.low, metric.high] for metric in read(place).metrics}

    def recipe(self, key: str, values: dict[str, Any], **train: int) -> Path:
        """The recipe of a run, as a file. Data come from the command line; no process loads ahead.

        train  fields of its training, beside how often it is saved
        """
        values["data"] |= {"workers": 0, "paths": []}
        values["train"] |= {"save_every": EVERY, "keep_checkpoints": 1} | train
        path = self.out / "recipes" / f"{key}.yaml"
        path.write_text(yaml.safe_dump(values, sort_keys=False), encoding="utf-8")
        return path

    def results(self, setting: str, name: str) -> list[Result]:
        """The results of all seeds of a setting in one measurement; fewer where some are missing."""
        places = [self.out / "results" / f"{setting}-{seed}-{name}.json" for seed in self.seeds]
        return [read(place) for place in places if place.is_file()]


def grainline(*arguments: str) -> None:
    """The command, with one thread."""
    threads = {"OMP_NUM_THREADS": "1"}
    subprocess.run(
        [sys.executable, "-m", "grainline", *arguments], check=True, env={**os.environ, **threads},
        stdout=subprocess.DEVNULL,
    )  # fmt: skip


class Keyed(Protocol):
    """A setting: its key stands before the seed in the names of its runs."""

    @property
    def key(self) -> str: ...


S = TypeVar("S", bound=Keyed)
K = TypeVar("K", bound=Folder)


def work(
    folder: K, settings: Sequence[S], run: Callable[[K, S, int], None], asked: argparse.Namespace
) -> None:
    """Make the runs that are missing, as long as there is time to begin one: all seeds of a setting together.

    run    makes one, of a setting and a seed
    asked  minutes in which runs may begin, how many jobs run side by side, and the settings to which the
           work is limited, by key ("scenes-caft") or by what follows the set in it ("caft")
    """
    names = {key: {key, key.partition("-")[2]} for key in (setting.key for setting in settings)}
    if unknown := set(asked.only) - set().union(*names.values()):
        sys.exit(f"no setting {', '.join(sorted(unknown))}; there are: {', '.join(names)}")
    settings = [one for one in settings if not asked.only or names[one.key] & set(asked.only)]
    end = time.monotonic() + 60 * asked.minutes
    late: list[str] = []

    def one(job: tuple[S, int]) -> None:
        setting, seed = job
        name = f"{setting.key}-{seed}"
        if name in folder.lines():
            return
        if time.monotonic() > end:
            late.append(name)
        else:
            run(folder, setting, seed)

    with ThreadPoolExecutor(asked.jobs) as pool:
        list(pool.map(one, [(setting, seed) for setting in settings for seed in folder.seeds]))
    print(f"no time for: {', '.join(late) or 'none'}")


class Ordering(NamedTuple):
    """A prediction: `higher` is above `lower` in a metric."""

    claim: str
    higher: str
    lower: str
    metric: str
    sets: tuple[str, ...] = ("scenes",)
    names: tuple[str, str] | None = (
        None  # of the measurements of both, without the set; None: those of the metric
    )
    other: str | None = None  # the metric of `lower`, where it is not that of `higher`


def difference(
    after: Sequence[Result], before: Sequence[Result], metric: str, other: str | None = None
) -> tuple[Metric, list[float]]:
    """Mean paired difference over the seeds, with its interval over images; and that of each seed.

    other  the metric of `before`, where it is not that of `after`
    """
    names = metric, other or metric
    for a, b in zip(after, before, strict=True):
        refuse_unlike(a, b, "be compared", "the other run")
    settings = settings_of(after[0])

    def cell(results: Sequence[Result], name: str) -> MetricSamples:
        return suite_of(results[0]).metrics([r.queries for r in results], settings)[name].in_unit()

    one, two = cell(after, names[0]), cell(before, names[1])
    each = [cell([a], names[0]).value - cell([b], names[1]).value for a, b in zip(after, before, strict=True)]
    ends = from_replicates(one.value - two.value, one.samples - two.samples, settings.level)
    return Metric(metric, *ends, one.queries, 0.0, 0, one.unit), each


def verdict(found: Metric, each: Sequence[float]) -> str:
    """What a difference says about a prediction: the interval and all seeds must agree, two at least."""
    if len(each) < 2:
        return "undecided"
    if found.low > 0 and min(each) > 0:
        return "confirmed"
    return "refuted" if found.high < 0 and max(each) < 0 else "undecided"


def orderings(
    folder: Folder,
    predictions: Sequence[Ordering],
    name_of: Callable[[str, str], str],
    learnt: Callable[[str], bool] = lambda _: True,
) -> None:
    """Every prediction with its difference, verdict and paired t-test over the seeds, as Markdown.

    A verdict holds for the setting of the study (from scratch, at this size and length) and is headed so.
    name_of  from a metric and a set to the name of the measurement that holds it
    learnt   whether the part of a setting (SET-NAME) that predictions are about learnt anything; where it did
             not, its differences are shown and no verdict is given
    """
    print("\n| prediction | set | difference | each seed | verdict here | paired t-test |")
    print("|---|---|---|---|---|---|")
    for ordering in predictions:
        for data in ordering.sets:
            usual = name_of(ordering.metric, data)
            names = [f"{n} on {data}" for n in ordering.names] if ordering.names else [usual, usual]
            settings = [f"{data}-{n}" for n in (ordering.higher, ordering.lower)]
            sides = [folder.results(*side) for side in zip(settings, names, strict=True)]
            if not all(len(side) == len(folder.seeds) for side in sides):
                print(f"| {ordering.claim} | {data} | not run | | not run | |")
                continue
            measurable = all(map(learnt, settings))
            row = compared(*sides, ordering.metric, ordering.other, measurable=measurable)
            print(f"| {ordering.claim} | {data} | {row} |")


def compared(
    after: Sequence[Result],
    before: Sequence[Result],
    metric: str,
    other: str | None = None,
    *,
    measurable: bool = True,
) -> str:
    """Cells of a table: the difference with its interval, that of each seed, the verdict, the t-test.

    measurable  without it there is neither verdict nor test
    """
    found, each = difference(after, before, metric, other)
    seeds = ", ".join(shown(found, value) for value in each)
    ends = f"{shown(found, found.value)} ({shown(found, found.low)} to {shown(found, found.high)})"
    if not measurable:
        return f"{ends} | {seeds} | not measurable | "
    return f"{ends} | {seeds} | {verdict(found, each)} | {t_test(each)}"


def t_test(differences: Sequence[float]) -> str:
    """Whether a metric differs between settings with the same seeds; "" where all differences are alike."""
    from scipy.stats import ttest_1samp  # half a second, for this alone

    if len(differences) < 2 or np.allclose(differences, differences[0], rtol=1e-9, atol=1e-12):
        return ""
    test = ttest_1samp(differences, 0.0)
    p = "p < 0.001" if test.pvalue < 0.001 else f"p = {test.pvalue:.2g}"
    return f"t({len(differences) - 1}) = {test.statistic:.2f}, {p}"


def cells(folder: Folder, setting: str, names: Sequence[str]) -> dict[str, str]:
    """The metrics of some measurements, pooled over the seeds; none where a seed is missing."""
    out: dict[str, str] = {}
    for name in names:
        found = folder.results(setting, name)
        if len(found) < len(folder.seeds):
            return {}
        for metric in pooled(found).metrics:
            out[metric.name] = f"{metric.text(metric.value)} ({metric.ends()})"
    return out


def minutes_of(folder: Folder, setting: str) -> str:
    """How long the runs of a setting trained, on average."""
    mine = [line["trained_s"] / 60 for key, line in folder.lines().items() if key[:-2] == setting]
    return f"{sum(mine) / len(mine):.1f}" if mine else ""


def shown(found: Metric, value: float) -> str:
    """A difference: of percentages in points."""
    if found.unit == "%":
        return f"{value:+.1f}"
    return f"{value:+.3f}" if abs(value) < 2 and found.unit != "sum" else f"{value:+.1f}"


def arguments(doc: str | None, *flags: str, **numbers: int) -> argparse.Namespace:
    """The command line of a study, with flags and numbers of its own."""
    parser = argparse.ArgumentParser(description=doc.splitlines()[0] if doc else None)
    parser.add_argument("out", type=Path)
    parser.add_argument("--minutes", type=float, default=90)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--only", nargs="+", default=[], metavar="SETTING", help="make runs of these alone")
    for flag in flags:
        parser.add_argument(f"--{flag}", action="store_true")
    for name, usual in numbers.items():
        parser.add_argument(f"--{name}", type=int, default=usual)
    args = parser.parse_args()
    if "GRAINLINE_DATA" not in os.environ:
        sys.exit("set GRAINLINE_DATA to the folder that holds openstax/")
    return args


def data_folder() -> Path:
    return Path(os.environ["GRAINLINE_DATA"])


def show(
    doc: str | None, tables: Callable[[Folder], None], figure: Callable[[Sequence[Folder], Path], None]
) -> None:
    """The command that prints the tables of studies, one by one, and draws the figure of them all."""
    parser = argparse.ArgumentParser(description=doc.splitlines()[0] if doc else None)
    parser.add_argument("out", type=Path, nargs="+")
    parser.add_argument("--png", type=Path)
    args = parser.parse_args()
    folders = [Folder(out, out) for out in args.out]
    for folder in folders:
        tables(folder)
    if args.png:
        figure(folders, args.png)
