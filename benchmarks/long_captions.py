"""The main job on real pictures: three seeds from scratch on OpenStax and on Flickr8k, measured and pooled.

    GRAINLINE_DATA=... python -m benchmarks.long_captions OUT

A finished run is not made again, one that was stopped goes on: start it as often as you like. OUT gets a run
folder and a result file for every seed; the pooled tables are printed as Markdown, for docs/results.md.
"""

import os
import subprocess
import sys
from pathlib import Path

from grainline.evaluate.pool import pooled
from grainline.evaluate.result import Result, read

SEEDS = (0, 1, 2)
RECIPE = "clip/long_captions"
MEASURED = {  # name of the result -> (trained on, measured on, captions)
    "openstax": ("openstax", "openstax", "whole"),
    "flickr8k": ("flickr8k", "flickr8k", "whole"),
    "flickr8k-each": ("flickr8k", "flickr8k", "each"),
    "openstax-to-flickr8k": ("openstax", "flickr8k", "whole"),
}


def main(out: Path, data: Path) -> None:
    for seed in SEEDS:
        for name in ("openstax", "flickr8k"):
            train(out / f"{name}-{seed}", data / name, seed)
        for name, (trained, measured, captions) in MEASURED.items():
            evaluate(out / f"{trained}-{seed}", data / measured, captions, out / f"{name}-{seed}.json")
    for name in MEASURED:
        print(markdown(name, pooled([read(out / f"{name}-{seed}.json") for seed in SEEDS])))


def train(run: Path, data: Path, seed: int) -> None:
    if not (run / "last").is_dir():
        shards = sorted(str(path) for path in data.glob("train-*.tar"))
        resume = ["--resume"] if (run / "log.jsonl").is_file() else []
        grainline(
            "train", RECIPE, "--data", *shards, "--out", str(run), "--set", f"train.seed={seed}", *resume
        )


def evaluate(run: Path, data: Path, captions: str, result: Path) -> None:
    if not result.is_file():
        dev = str(data / "dev-0000.tar")
        grainline("evaluate", str(run), "--data", dev, "--captions", captions, "--json", str(result))


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
    main(Path(sys.argv[1]), Path(os.environ["GRAINLINE_DATA"]))
