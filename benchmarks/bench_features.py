"""Training from cached features against training with the frozen encoders: images a second, loading included.

Both sides are those of a CLIP ViT-B/16 with weights at random, frozen. Images are JPEGs of 640 x 480, made
here. Both runs take the same captions in the same order; the loader works in this process, so a step pays for
it.

    python -m benchmarks.bench_features [--images 32] [--batch 16] [--repeats 5]
"""

import argparse
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from benchmarks.bench_loading import files
from benchmarks.harness import keep_pages, paired, report, seconds
from grainline.build import Description, build
from grainline.config import parse
from grainline.data.batches import collate
from grainline.data.cache import Views
from grainline.data.dataset import Draw, TrainSet
from grainline.data.features import CachedFeatures, make_features
from grainline.data.record import Record
from grainline.data.texts import TextsConfig
from grainline.data.tokenizers.tokenizer import Tokenizer
from grainline.data.transforms import Crop, EvalTransform, SameTransform
from grainline.encoders.pretrained.hub import library
from grainline.encoders.pretrained.preprocess import KNOWN
from grainline.methods.base import Method
from grainline.methods.clip import CLIPConfig
from grainline.model import Model
from grainline.training.cached import feature_encoder
from grainline.training.optim import OptimizerConfig, build_optimizer, train_mode
from grainline.training.recipe import DataConfig, Recipe, TrainConfig
from grainline.training.step import Objective
from grainline.training.text_cache import cached_texts
from grainline.types import Clock

RECIPE = Recipe(
    method="clip",
    model={},
    data=DataConfig(features="auto"),
    train=TrainConfig(max_steps=1, global_batch_size=1),
)
COLOURS = ("red", "green", "blue", "grey", "black", "white")


class Made:
    """Images with a caption each, in memory."""

    path = "made here"

    def __init__(self, number: int) -> None:
        self.files = files(640, 480, number)

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> Record:
        colour, other = COLOURS[index % 6], COLOURS[index // 6 % 6]
        return Record(f"{index}", self.files[index], (f"A {colour} blob lies beside a {other} one.",))

    def fingerprint(self) -> str:
        return f"made here {len(self)}"


def model(tokenizer: Tokenizer) -> Model:
    """A clip with both sides of a fresh, frozen CLIP ViT-B/16."""
    config = library().CLIPConfig(vision_config={"patch_size": 16}).to_dict()
    own = {"kind": "clip", "config": config, "pad": 0, **KNOWN["clip"], "resize": "squash"}
    side = {"pretrained": "made here", "architecture": own, "tune": "frozen"}
    values = {"image": side | {"size": 224}, "text": side | {"context": 77}, "width": 512}
    torch.manual_seed(0)
    description = Description("clip", parse(CLIPConfig, values, "the benchmark"))
    return Model(description, build(description).eval(), tokenizer)


def steps(data: TrainSet, made: Method, batch: int) -> Callable[[], Any]:
    """One step after the other, each over the next images."""
    optimizer = build_optimizer(made, OptimizerConfig())
    train_mode(made)
    objective, done = Objective(made), [0]

    def step() -> None:
        first = done[0] * batch
        samples = [data[Draw(i, i // len(data), i % len(data))] for i in range(first, first + batch)]
        loaded = collate(samples)
        objective(loaded.images, loaded.texts, Clock(done[0])).total.backward()
        optimizer.step()
        optimizer.zero_grad()
        done[0] += 1

    return step


def main() -> None:
    keep_pages()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=int, default=32)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--repeats", type=int, default=5)
    args = parser.parse_args()
    source, transform, recipe = Made(args.images), EvalTransform(224, "squash"), RECIPE
    tokenizer = Tokenizer.train([source[i].whole for i in range(len(source))], vocab=600)
    slow, fast = model(tokenizer), model(tokenizer)

    def training(made: Method, crop: Crop) -> Callable[[], Any]:
        data = TrainSet(source, tokenizer, crop, TextsConfig(), context=77, seed=0)
        return steps(data, made, args.batch)

    with tempfile.TemporaryDirectory() as home:
        os.environ["GRAINLINE_CACHE"] = home
        encode, out = feature_encoder(slow.method.towers, tokens=False), Path(home) / "features"
        once = seconds(lambda: make_features(source, encode, out, Views(transform), encoder="bench"))
        begin = time.perf_counter()
        texts = cached_texts(recipe, source, fast, torch.device("cpu"))
        texts_once = time.perf_counter() - begin
        assert texts is not None
        texts(fast.method)
        kept = training(fast.method, CachedFeatures(out, source, transform, "bench", tokens=False))
        ratio = paired(kept, training(slow.method, SameTransform(transform)), args.repeats)
        facts = {"batch": args.batch, "threads": torch.get_num_threads(), "step_s": seconds(kept)}
        what = "features: images a second of training from them / with the encoders"
        report(what, ratio, "x", at_least=10.0, **facts)
        report("features: making them", once / len(source), "s/image")
        report("features: making the states of texts", texts_once / len(source), "s/image")
        report("features: bytes of an image", (out / "features.npy").stat().st_size / len(source), "bytes")


if __name__ == "__main__":
    main()
