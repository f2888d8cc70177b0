"""Training from kept features against training with the frozen encoder: time of a step, loading included.

The image side is a GroupViT of the published sizes with weights at random, frozen; the text side is small, as
that of the Text Group Transformer is. Images are JPEGs of 640 x 480, made here. Both sides take the same
captions in the same order; the loader works in this process, so a step pays for it.

    python -m benchmarks.bench_features [--images 32] [--batch 16] [--repeats 5]
"""

import argparse
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from benchmarks.bench_loading import files
from benchmarks.harness import keep_pages, paired, report, seconds
from grainline.config import parse
from grainline.data.batches import collate
from grainline.data.cache import CachedFeatures, make_features
from grainline.data.dataset import Draw, TrainSet
from grainline.data.record import Record
from grainline.data.texts import TextsConfig
from grainline.data.tokenizers.tokenizer import Tokenizer
from grainline.data.transforms import Crop, EvalTransform, SameTransform
from grainline.encoders.pretrained.hub import library
from grainline.encoders.pretrained.preprocess import KNOWN
from grainline.methods.clip import CLIP, CLIPConfig
from grainline.training.optim import OptimizerConfig, ParamRule, build_optimizer, train_mode
from grainline.training.precompute import feature_encoder
from grainline.training.step import Objective
from grainline.types import Clock

COLOURS = ("red", "green", "blue", "grey", "black", "white")
RULES = (ParamRule(pattern=r"towers\.image\..*", lr_factor=0), ParamRule(pattern=".*"))


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


def method() -> CLIP:
    """A clip with a fresh GroupViT of the published sizes, which are the library's defaults."""
    config = library().GroupViTConfig().to_dict()
    architecture = {"kind": "groupvit", "config": config, "pad": 0, **KNOWN["groupvit"], "resize": "squash"}
    image = {"pretrained": "made here", "size": 224, "architecture": architecture}
    text = {"width": 128, "depth": 9, "heads": 4, "vocab": 600, "context": 77}
    torch.manual_seed(0)
    return CLIP(parse(CLIPConfig, {"image": image, "text": text, "width": 256}, "the benchmark"))


def steps(data: TrainSet, made: CLIP, batch: int) -> Callable[[], Any]:
    """One step after the other, each over the next images."""
    optimizer = build_optimizer(made, OptimizerConfig(rules=RULES))
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
    source, made, transform = Made(args.images), method(), EvalTransform(224, "squash")
    tokenizer = Tokenizer.train([source[i].whole for i in range(len(source))], vocab=600)

    def training(crop: Crop) -> Callable[[], Any]:
        data = TrainSet(source, tokenizer, crop, TextsConfig(), context=77, seed=0)
        return steps(data, made, args.batch)

    with tempfile.TemporaryDirectory() as home:
        encode, out = feature_encoder(made.eval(), tokens=False), Path(home) / "features"
        row = (1, encode(torch.zeros(1, 3, 224, 224, dtype=torch.uint8)).shape[-1])
        once = seconds(lambda: make_features(source, encode, out, transform, encoder="bench", row=row))
        kept = training(CachedFeatures(out, source, transform, "bench", tokens=False))
        plain = training(SameTransform(transform))
        ratio = paired(kept, plain, args.repeats)
        facts = {"batch": args.batch, "threads": torch.get_num_threads(), "step_s": seconds(kept)}
        report("features: step with the encoder / step from kept ones", ratio, "x", **facts)
        report("features: making them", once / len(source), "s/image")
        report("features: bytes of an image", (out / "features.npy").stat().st_size / len(source), "bytes")


if __name__ == "__main__":
    main()
