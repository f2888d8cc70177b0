"""GradCache: time and memory of a step in chunks against a whole one, on one batch of equally long texts.

The activations of a chunk at a time cost one more forward, 4/3 of the arithmetic; gate G15 allows 1.45 times
the time. Memory is what one step needs beyond what is there before it, in a process of its own.

    python -m benchmarks.bench_gradcache [--batch 64] [--chunk 16] [--width 256] [--depth 6] [--length 64]
"""

import argparse
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch

from benchmarks.harness import fresh_peak, keep_pages, paired, report
from grainline.methods.clip import CLIP, CLIPConfig
from grainline.training.step import step
from grainline.types import Clock, Images, Texts

CLOCK = Clock()
VOCAB = 8192


class Sizes(NamedTuple):
    """What is measured; numbers only, because they travel to other processes."""

    batch: int
    chunk: int
    width: int
    depth: int
    length: int  # of every text in tokens
    side: int  # of the images in pixels


def build(sizes: Sizes) -> tuple[CLIP, Images, Texts]:
    """A method in training mode and one batch."""
    torch.manual_seed(0)
    both = {"width": sizes.width, "depth": sizes.depth, "heads": max(1, sizes.width // 64)}
    image = {**both, "patch": 16, "size": sizes.side}
    text = {**both, "vocab": VOCAB, "context": sizes.length}
    method = CLIP(CLIPConfig.model_validate({"image": image, "text": text, "width": sizes.width}))
    number = torch.arange(sizes.batch)
    pixels = torch.randint(0, 256, (sizes.batch, 3, sizes.side, sizes.side), dtype=torch.uint8)
    ids = torch.randint(3, VOCAB, (sizes.batch, 1, sizes.length))
    texts = Texts(ids, torch.ones_like(ids, dtype=torch.bool), number, number, torch.zeros_like(number))
    return method.train(), Images(pixels, number), texts


def prepare(way: str, *numbers: int) -> Callable[[], object]:
    """What `fresh_peak` measures: one step, once the model and the batch are there."""
    small = build(Sizes(2, 1, 64, 1, 4, 16))
    step(*small, CLOCK, 1)  # what the libraries load for the first step
    sizes = Sizes(*numbers)
    method, images, texts = build(sizes)
    if way == "step":
        return partial(step, method, images, texts, CLOCK)
    return partial(step, method, images, texts, CLOCK, sizes.chunk)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    for name, value in (("batch", 64), ("chunk", 16), ("width", 256), ("depth", 6), ("length", 64)):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--side", type=int, default=224)
    parser.add_argument("--repeats", type=int, default=7)
    args = parser.parse_args()
    sizes = Sizes(args.batch, args.chunk, args.width, args.depth, args.length, args.side)
    method, images, texts = build(sizes)
    ratio = paired(
        lambda: step(method, images, texts, CLOCK),
        lambda: step(method, images, texts, CLOCK, sizes.chunk),
        args.repeats,
    )
    report("gradcache: time of step in chunks / step", ratio, "x", at_most=1.45, **sizes._asdict())
    plain, cached = (
        fresh_peak("benchmarks.bench_gradcache:prepare", way, *sizes).more for way in ("step", "cached")
    )
    report("gradcache: memory of step beyond model and batch", plain, "MiB", **sizes._asdict())
    report("gradcache: memory of step in chunks beyond model and batch", cached, "MiB", **sizes._asdict())
    report("gradcache: memory of step in chunks / step", cached / plain, "x", at_most=1.0, **sizes._asdict())


if __name__ == "__main__":
    keep_pages()
    main()
