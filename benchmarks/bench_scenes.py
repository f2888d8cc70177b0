"""How many scenes one core draws and describes, against what training on them takes.

A record is an image with its captions and six foils; a sample is a record as training reads it: cropped, one
caption and one foil cut to a subset of their sentences and encoded. Consumption is that of the demo's method
in a bare training step on all threads of torch. Drawing has to be 1.5 times as fast, or training waits.

    python -m benchmarks.bench_scenes [--number 200] [--batch 128] [--repeats 7]
"""

import argparse
from typing import Any

import torch

from benchmarks.harness import keep_pages, paired, report, seconds
from grainline.build import build
from grainline.data.batches import collate
from grainline.data.dataset import Draw, TrainSet
from grainline.data.scenes.source import Scenes
from grainline.data.tokenizers.tokenizer import Tokenizer
from grainline.data.transforms import TrainTransform
from grainline.training.parallel import dtype_of
from grainline.training.recipe import read_recipe
from grainline.training.step import Objective
from grainline.types import Clock

RECIPE = "clip/scenes"


class Reader:
    """Goes on through a source, so that no scene is drawn twice."""

    def __init__(self, source: Any, number: int) -> None:
        self.source, self.number, self.at = source, number, 0

    def read(self) -> None:
        for index in range(self.at, self.at + self.number):
            self.one(index)
        self.at += self.number

    def one(self, index: int) -> None:
        self.source[index]


class Sampler(Reader):
    """The same for the samples of training."""

    def one(self, index: int) -> None:
        self.source[Draw(index, 0, index)]


def samples(size: int) -> TrainSet:
    """The training set of the demo."""
    recipe = read_recipe(RECIPE, [])
    source = Scenes("scenes:train?count=50000", size=size)
    tokenizer = Tokenizer.train((source[i].whole for i in range(500)), 1024)
    config: Any = recipe.description.config
    crop = TrainTransform(size, recipe.data.crop)
    return TrainSet(source, tokenizer, crop, recipe.data.texts, context=config.text.context, seed=0)


def speed(reader: Reader, repeats: int) -> float:
    """Images a second, the best of several blocks: what others do to the machine only slows it down."""
    reader.read()  # sprites are drawn once and kept
    return reader.number / min(seconds(reader.read) for _ in range(repeats))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--number", type=int, default=200)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--repeats", type=int, default=7)
    args = parser.parse_args()
    for size in (64, 224):
        reader = Reader(Scenes("scenes:train?count=50000", size=size), args.number)
        report(f"scenes: records of {size} px a second, one core", speed(reader, args.repeats), "images/s")
    recipe = read_recipe(RECIPE, [])
    data = samples(64)
    sampler = Sampler(data, args.number)
    report("scenes: training samples of 64 px a second, one core", speed(sampler, args.repeats), "images/s")
    description = recipe.description
    objective = Objective(build(description).train(), dtype_of("auto", torch.device("cpu")))
    batch = collate([data[Draw(i, 0, i)] for i in range(args.batch)])

    def step() -> None:
        objective(batch.images, batch.texts, Clock()).total.backward()

    sampler.number = args.batch
    ratio = paired(sampler.read, step, args.repeats)
    report("scenes: images drawn by a core while training uses one", ratio, "x", at_least=1.5)


if __name__ == "__main__":
    keep_pages()
    main()
