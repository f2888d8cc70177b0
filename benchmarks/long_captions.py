"""The main job on real images: three seeds from scratch on OpenStax and on Flickr8k, measured and pooled.

    GRAINLINE_DATA=... python -m benchmarks.long_captions OUT
    GRAINLINE_DATA=... python -m benchmarks.long_captions OUT --choose

The second line is how the settings of the recipe were chosen: one seed of each of CHOICES trains on all
training tars but the last and is measured on that one. No dev tar is opened.

A finished run is not made again, one that was stopped goes on: start it as often as you like. OUT gets a run
folder and a result file for every seed; the pooled tables are printed as Markdown, for docs/results.md.
"""

import os
import subprocess
import sys
from pathlib import Path

from grainline.evaluation.compare import pooled
from grainline.evaluation.result import Result, read

SEEDS = (0, 1, 2)
WAYS = ("image to text", "text to image")
RECIPE = "clip/long_captions"
MEASURED = {  # name of the result -> (trained on, measured on, captions)
    "openstax": ("openstax", "openstax", "whole"),
    "flickr8k": ("flickr8k", "flickr8k", "whole"),
    "flickr8k-each": ("flickr8k", "flickr8k", "each"),
    "openstax-to-flickr8k": ("openstax", "flickr8k", "whole"),
}


CHOICES = {  # name -> changes of the recipe
    "steps-350": ["train.max_steps=350"],
    "steps-700": ["train.max_steps=700"],
    "steps-350-fast": ["train.max_steps=350", "train.optimizer.lr=2e-3"],
    "steps-350-sentences": ["train.max_steps=350", "data.texts.subset=0.9"],
}


def choose(out: Path, data: Path) -> None:
    """One table: the recalls of every choice on the last training tar of each set."""
    print("| set | choice | image to text R@10 | text to image R@10 | rSum |\n|---|---|---|---|---|")
    for name in ("openstax", "flickr8k"):
        *shards, held_out = sorted((data / name).glob("train-*.tar"))
        for choice, changes in CHOICES.items():
            run, result = out / f"choose-{name}-{choice}", out / f"choose-{name}-{choice}.json"
            train(run, shards, [*changes, "train.save_every=350"])
            evaluate(run, held_out, "whole", result)
            found = read(result)
            cells = [found.metric(metric) for metric in (*(f"{way} R@10" for way in WAYS), "rSum")]
            values = " | ".join(f"{metric.text(metric.value)} ({metric.ends()})" for metric in cells)
            print(f"| {name} | {choice} | {values} |", flush=True)


def main(out: Path, data: Path) -> None:
    for seed in SEEDS:
        for name in ("openstax", "flickr8k"):
            train(out / f"{name}-{seed}", sorted((data / name).glob("train-*.tar")), [f"train.seed={seed}"])
        for name, (trained, measured, captions) in MEASURED.items():
            dev = data / measured / "dev-0000.tar"
            evaluate(out / f"{trained}-{seed}", dev, captions, out / f"{name}-{seed}.json")
    for name in MEASURED:
        print(markdown(name, pooled([read(out / f"{name}-{seed}.json") for seed in SEEDS])))


def train(run: Path, shards: list[Path], changes: list[str]) -> None:
    if not (run / "last").is_dir():
        resume = ["--resume"] if (run / "log.jsonl").is_file() else []
        settings = [word for change in changes for word in ("--set", change)]
        grainline("train", RECIPE, "--data", *map(str, shards), "--out", str(run), *settings, *resume)


def evaluate(run: Path, tar: Path, captions: str, result: Path) -> None:
    if not result.is_file():
        grainline("evaluate", str(run), "--data", str(tar), "--captions", captions, "--json", str(result))


def grainline(*arguments: str) -> None:
    subprocess.run([sys.executable, "-m", "grainline", *arguments], check=True)


def markdown(name: str, result: Result) -> str:
    """A table of the metrics: pooled value, interval, each seed, chance."""
    lines = [
        f"\n### {name}\n",
        "| metric | pooled | 95 % interval | each seed | chance |",
        "|---|---|---|---|---|",
    ]
    for metric in result.metrics:
        seeds = ", ".join(metric.text(value) for value in result.settings["runs"][metric.name])
        cells = (metric.name, metric.text(metric.value), metric.ends(), seeds, metric.text(metric.chance))
        lines.append(f"| {' | '.join(cells)} |")
    notes = [f"\n{note}" for note in result.notes]
    return "\n".join([*lines, *notes])


if __name__ == "__main__":
    if len(sys.argv) < 2 or "GRAINLINE_DATA" not in os.environ:
        sys.exit("usage: GRAINLINE_DATA=folder_of_the_sets python -m benchmarks.long_captions OUT [--choose]")
    job = choose if "--choose" in sys.argv[2:] else main
    job(Path(sys.argv[1]), Path(os.environ["GRAINLINE_DATA"]))
