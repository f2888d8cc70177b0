"""Trains the runs of a table, measures each by `grainline.compare`, and compares them all.

    GRAINLINE_DATA=... python -m benchmarks.study photos_table OUT [--stage final] [--minutes 9] [--jobs 2]
        [--threads 1] [--sets flickr8k] [--only clip maxsim] [--seeds 0 1 2] [--set train.max_steps=4 ...]
    GRAINLINE_DATA=... python -m benchmarks.study photos_table OUT --compare [--base clip]

The table is a module of benchmarks with `prepare` and `jobs`. OUT/runs.jsonl gets a line for every run that
is finished; what has a line is not made again. When the minutes are over, trainings write a checkpoint and
stop, and the next call goes on with them: a long study is many short calls, each of which begins with what
matters most. Several jobs share a GPU.

    --stage choose  settings of each method on images held out from training, one changed at a time
    --stage final   all seeds with the best settings: those of the lines of `choose`, else the usual ones
    --stage time    the same for the seconds of the table, with the steps that the lines of `final` allow
    --compare       OUT/compared/STAGE-SET-MEASURED.json: all rows, paired differences, ranks, costs
"""

import argparse
import importlib
import json
import os
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
import yaml

import grainline
from grainline.data.vector_parts import read_vectors
from grainline.distributed import usable_cores
from grainline.embedding.write import write_vectors
from grainline.loading import default_device, load

EVERY = 200  # steps after which a run writes a checkpoint
TEXT_ONLY = "text_only"  # a row without training: every image is the mean image of the base
Line = dict[str, Any]


class Measure(NamedTuple):
    """A set, and the suites and the ways to read captions that measure it."""

    set: str
    data: str
    suites: tuple[str, ...] = ("retrieval",)
    captions: tuple[str, ...] = ()  # ways to read them; (): the usual one of each suite

    def of(self, models: Sequence[str], results: Path, **options: Any) -> Any:
        """The comparison of models; what was measured before is read from the folder of results."""
        return grainline.compare(
            *models, data={self.set: self.data}, suite=self.suites, captions=self.captions,
            results=results, **options,
        )  # fmt: skip


class Job(NamedTuple):
    """A run: a row of the table, trained on a set, with a seed."""

    stage: str
    set: str
    row: str
    seed: int
    recipe: Mapping[str, Any]
    sources: tuple[str, ...]  # that are trained on
    measures: tuple[Measure, ...]
    changes: Mapping[str, Any] = {}  # fields of the recipe by their path
    variant: str = ""  # what is tried in the stage `choose`

    @property
    def name(self) -> str:
        parts = self.stage, self.set, self.row, self.variant, str(self.seed)
        return "-".join(part for part in parts if part)


class Table(Protocol):
    """The module of a table, or an object like it."""

    def prepare(self, out: Path, data: Path) -> None:
        """Make the files that runs read and that are not there yet. data: the folder of the sets"""

    def jobs(
        self, stage: str, out: Path, data: Path, seeds: Sequence[int], lines: Sequence[Line]
    ) -> list[Job]:
        """All runs of a stage, those first that matter most. lines: of the runs that are finished"""


class Block:
    """Runs that begin, and go on, until the minutes are over."""

    def __init__(self, out: Path, minutes: float, threads: int, changes: Sequence[str]) -> None:
        """changes  of all recipes, as `--set` takes them"""
        self.out, self.changes, self.end = out, tuple(changes), time.monotonic() + 60 * minutes
        self.environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
        self.device = f"{device_name()}, {threads} thread(s) a run"
        self.lock = Lock()
        for name in ("runs", "work", "results", "compared"):
            (out / name).mkdir(parents=True, exist_ok=True)

    def make(self, job: Job) -> str:
        """Train and measure. Returns "" when the run has its line, else what is left to do."""
        if time.monotonic() > self.end or not self.train(job) or time.monotonic() > self.end:
            return job.name
        run, begin, metrics = self.out / "runs" / job.name, time.monotonic(), dict[str, Any]()
        for one in job.measures:
            metrics |= metrics_of(one.of([str(run)], self.out / "results"))
        state = json.loads((run / "last" / "state.json").read_text(encoding="utf-8"))["state"]
        about = {"run": job.name, "stage": job.stage, "set": job.set, "row": job.row, "seed": job.seed}
        about |= {"variant": job.variant, "changes": dict(job.changes), "more": self.changes}
        spent = {"train_s": self.seconds(job), "measure_s": round(time.monotonic() - begin, 1)}
        line = about | {"steps": state["step"], "device": self.device} | spent | {"metrics": metrics}
        with self.lock, (self.out / "runs.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
        return ""

    def train(self, job: Job) -> bool:
        """Train a run, or go on with it. False where the time was over first."""
        run, finished = self.out / "runs" / job.name, self.file(job, "finished")
        if finished.is_file():
            return True
        recipe = self.file(job, "yaml")
        recipe.write_text(yaml.safe_dump(dict(job.recipe), sort_keys=False), encoding="utf-8")
        own = [f"{name}={json.dumps(value)}" for name, value in job.changes.items()]
        fixed = [f"train.seed={job.seed}", f"train.save_every={EVERY}", "train.keep_checkpoints=1"]
        command = [sys.executable, "-m", "grainline", "-q", "train", str(recipe), "--data", *job.sources]
        command += ["--out", str(run), "--set", *fixed, *own, *self.changes]
        command += ["--resume"] if run.is_dir() else []
        begin = time.monotonic()
        with self.file(job, "log").open("ab") as log:
            process = subprocess.Popen(command, env=self.environment, stdout=log, stderr=log)
            try:
                code = process.wait(max(1.0, self.end - begin))
            except subprocess.TimeoutExpired:
                process.terminate()  # it finishes its step and writes a checkpoint
                code = process.wait()
        with self.file(job, "seconds").open("a", encoding="utf-8") as file:
            file.write(f"{time.monotonic() - begin:.1f}\n")
        if code == 0:
            finished.touch()
        elif time.monotonic() < self.end:
            print(f"{job.name} failed: see {log.name}", flush=True)
        return code == 0

    def file(self, job: Job, kind: str) -> Path:
        """A file beside the run. Not `with_suffix`, which cuts names of jobs at a point."""
        return self.out / "work" / f"{job.name}.{kind}"

    def seconds(self, job: Job) -> float:
        """How long the training took, all parts together."""
        parts = self.file(job, "seconds").read_text(encoding="utf-8")
        return round(sum(map(float, parts.split())), 1)


def metrics_of(comparison: Any) -> dict[str, Any]:
    """The metrics of the first model with their intervals, or the reason why there are none, by column."""
    out: dict[str, Any] = {}
    for cell in comparison.cells:
        title = comparison.columns[cell.column].title
        out |= {f"{title}: {one.name}": [one.value, one.low, one.high] for one in cell.metrics}
        out |= {title: cell.reason} if cell.reason else {}
    return out


def score_of(line: Line) -> float:
    """The mean rSum of all columns, by which settings are chosen."""
    found = [x[0] for name, x in line["metrics"].items() if name.endswith(": rSum")]
    return sum(found) / len(found)


def chosen(lines: Iterable[Line], data: str, row: str) -> dict[str, Any]:
    """The best value of each setting of a row on a set, by the lines of `choose`; {} without them."""
    own = [x for x in lines if (x["stage"], x["set"], x["row"]) == ("choose", data, row)]
    usual = [line["changes"] for line in own if line["variant"] == "usual"]
    out: dict[str, Any] = {}
    for line in sorted(own, key=score_of):  # the best one last
        out |= {k: x for k, x in line["changes"].items() if line["variant"] == "usual" or x != usual[0][k]}
    return out


def read_lines(out: Path) -> list[Line]:
    """The lines of the runs that are finished."""
    file = out / "runs.jsonl"
    return [json.loads(x) for x in file.read_text(encoding="utf-8").splitlines()] if file.is_file() else []


def compare(out: Path, jobs: Sequence[Job], base: str) -> list[Path]:
    """Compare the rows of which all seeds are finished: a JSON file for each set and what is measured."""
    finished = {line["run"] for line in read_lines(out)}
    rows: defaultdict[tuple[str, str, Measure], dict[str, list[Job]]] = defaultdict(dict)
    for job in jobs:
        for one in job.measures:
            rows[job.stage, job.set, one].setdefault(job.row, []).append(job)
    files = []
    for (stage, data, one), table in rows.items():
        whole = {row: some for row, some in table.items() if all(job.name in finished for job in some)}
        runs = {row: [str(out / "runs" / job.name) for job in some] for row, some in whole.items()}
        if base not in runs:
            print(f"{stage}, {data}: {base} is not finished")
            continue
        models = [f"{row}={','.join(some)}" for row, some in runs.items()]
        name = f"{stage}-{data}-{one.set}-{'-'.join((*one.suites, *one.captions))}"
        files.append(out / "compared" / f"{name}.json")
        print(one.of(models, out / "results", base=base, json=files[-1], out=files[-1].with_suffix(".html")))
        for mode in one.captions if "retrieval" in one.suites else ():
            blind = one._replace(suites=("retrieval",), captions=(mode,))
            folder = mean_image(runs[base][0], blind, out / "compared" / f"{name}-{mode}.vectors")
            models = [f"{base}={','.join(runs[base])}", f"{TEXT_ONLY}={folder}"]
            files.append(out / "compared" / f"{name}-{mode}-{TEXT_ONLY}.json")
            print(blind.of(models, out / "results", base=base, json=files[-1]))
    return files


def mean_image(run: str, measure: Measure, folder: Path) -> str:
    """Vectors of a run in which all images are alike, so that texts alone decide: their files."""
    files = [folder / name for name in ("images.npy", "texts.npy", "pairs.jsonl")]
    if not files[-1].is_file():
        write_vectors(load(run), str(run), measure.data, str(folder), captions=measure.captions[0])
        vectors, rows = read_vectors(str(folder))
        mean = vectors["images"].mean(0) / np.linalg.norm(vectors["images"].mean(0))
        np.save(files[0], np.tile(mean, (len(vectors["images"]), 1)))
        np.save(files[1], vectors["texts"])
        place = {row["key"]: row["row"] for row in rows if row["side"] == "images"}
        pairs = [row | {"image": place[row["key"]]} for row in rows if row["side"] == "texts"]
        files[-1].write_text("".join(json.dumps(pair) + "\n" for pair in pairs))
    return "+".join(map(str, files))


def device_name() -> str:
    """The accelerator, or how many cores."""
    device = default_device()
    return torch.cuda.get_device_name() if device == "cuda" else f"{device}, {usable_cores()} cores"


def data_folder() -> Path:
    """The folder that holds openstax/ and flickr8k/."""
    if "GRAINLINE_DATA" not in os.environ:
        sys.exit("set GRAINLINE_DATA to the folder that holds openstax/ and flickr8k/")
    return Path(os.environ["GRAINLINE_DATA"])


def main(table: Table | None = None, arguments: Sequence[str] | None = None) -> None:
    """table: in place of the module that the command names"""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("table")
    parser.add_argument("out", type=Path)
    parser.add_argument("--stage", choices=("choose", "final", "time"), default="final")
    parser.add_argument("--minutes", type=float, default=9)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--threads", type=int, default=1)
    for name in ("sets", "only", "set"):
        parser.add_argument(f"--{name}", nargs="+", default=[])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--compare", action="store_true")
    parser.add_argument("--base", default="clip")
    args = parser.parse_args(arguments)
    table = table or importlib.import_module(f"benchmarks.{args.table}")
    block = Block(args.out, args.minutes, args.threads, args.set)
    data, lines = data_folder(), read_lines(args.out)
    table.prepare(args.out, data)
    jobs = table.jobs(args.stage, args.out, data, args.seeds, lines)
    for names, of in ((args.sets, "set"), (args.only, "row")):
        if unknown := {*names} - {getattr(job, of) for job in jobs}:
            sys.exit(f"no {of} {', '.join(sorted(unknown))}")
        jobs = [job for job in jobs if not names or getattr(job, of) in names]
    if args.compare:
        compare(args.out, jobs, args.base)
        return
    finished = {line["run"] for line in lines}
    with ThreadPoolExecutor(args.jobs) as pool:
        left = [*filter(None, pool.map(block.make, [job for job in jobs if job.name not in finished]))]
    print(f"left: {len(left)} of {len(jobs)} runs {' '.join(left[:8])}")


if __name__ == "__main__":
    main()
