"""A training step of the real loop against a bare forward and backward of the same two encoders.

Bare is what no trainer can leave out: both encoders on a batch that is ready, a backward pass from the sum of
their outputs, one step of the same optimizer, in the same precision. The loop adds loss, exchange, clipping,
clamping, the account, the log, and data: once with batches made beforehand, once with the live loader, which
decodes JPEGs in a worker of its own. On a CPU that worker takes its time from the same cores.

    python -m benchmarks.bench_step [--image S/16] [--text S] [--size 224] [--batch 32] [--steps 2]
"""

import argparse
import io
import itertools
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import torch
from rich.console import Console

from benchmarks.bench_loading import files
from benchmarks.harness import keep_pages, paired, report, seconds
from grainline.data.batches import Batch, load_batches
from grainline.data.dataset import Batches, TrainSet
from grainline.data.record import Record
from grainline.data.texts import TextsConfig
from grainline.data.tokenizers.tokenizer import Tokenizer
from grainline.data.transforms import TrainTransform
from grainline.methods.clip import CLIP, CLIPConfig
from grainline.stop import Request
from grainline.training.log import Log
from grainline.training.loop import Run, _Training
from grainline.training.parallel import dtype_of
from grainline.training.recipe import TrainConfig
from grainline.types import to

GATE = 1.05
CONTEXT = 77
NEVER = 10**6


class Photographs:
    """JPEGs in memory under made-up captions of 8 to 75 words, 45 on average: about as many tokens."""

    path = "photographs"

    def __init__(self, number: int, made: int = 24) -> None:
        self.number = number
        self.jpegs = files(640, 480, made)
        rng = Random(0)
        letters = "abcdefghijklmnopqrstuvwxyz"
        words = ["".join(rng.choices(letters, k=rng.randint(2, 8))) for _ in range(800)]
        self.captions = [
            " ".join(rng.choices(words, k=round(min(75, max(8, rng.gauss(45, 15)))))) for _ in range(number)
        ]

    def __len__(self) -> int:
        return self.number

    def __getitem__(self, index: int) -> Record:
        return Record(str(index), self.jpegs[index % len(self.jpegs)], (self.captions[index],))

    def fingerprint(self) -> str:
        return "made up"


def training(args: argparse.Namespace, out: Path, device: torch.device) -> _Training:
    """The loop, ready to step: the class behind `training.loop.train_loop`, because steps are timed."""
    source = Photographs(max(512, args.batch))
    tokenizer = Tokenizer.train(source.captions, 4096)
    config = {
        "image": {"name": args.image, "size": args.size},
        "text": {"name": args.text, "vocab": tokenizer.vocab, "context": CONTEXT},
    }
    torch.manual_seed(0)
    method = CLIP(CLIPConfig.model_validate(config))
    data = TrainSet(source, tokenizer, TrainTransform(args.size), TextsConfig(), context=CONTEXT, seed=0)
    every = {"log_every": args.steps, "save_every": NEVER}
    cfg = TrainConfig.model_validate({"max_steps": NEVER, "global_batch_size": args.batch} | every)
    loop = _Training(Run(out, method, data, cfg, 1, 0.02, None), device)
    loop.request = Request()
    loop.log = Log(out, cfg.log, cfg.max_steps, console=Console(file=io.StringIO()))
    return loop


def bare(loop: _Training, batches: Iterator[Batch], steps: int) -> Callable[[], None]:
    """Forward and backward of the encoders, and the optimizer."""
    method: Any = loop.method
    precision = dtype_of(loop.cfg.precision, loop.device)

    def run() -> None:
        for _ in range(steps):
            batch = next(batches)
            images, texts = to(batch.images, loop.device), to(batch.texts, loop.device)
            with torch.autocast(loop.device.type, precision, precision != torch.float32):
                seen, read = method.encode_images(images), method.encode_texts(texts)
            (seen.vector.sum() + read.vector.sum()).backward()
            loop.optimizer.step()
            loop.optimizer.zero_grad(set_to_none=True)
        finished(loop.device)

    return run


def whole(loop: _Training, batches: Iterator[Batch], steps: int) -> Callable[[], None]:
    """The same number of steps of the loop, its line in the log included."""

    def run() -> None:
        for _ in range(steps):
            loop._step(batches)
            loop._after()
        finished(loop.device)

    return run


def finished(device: torch.device) -> None:
    """Wait for the device."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    for name, value in (("image", "S/16"), ("text", "S")):
        parser.add_argument(f"--{name}", default=value)
    for name, number in (("size", 224), ("batch", 32), ("steps", 2), ("repeats", 7)):
        parser.add_argument(f"--{name}", type=int, default=number)
    args = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    with tempfile.TemporaryDirectory() as folder:
        loop = training(args, Path(folder), device)
        plan = Batches(len(loop.job.data), args.batch, loop.cfg.seed, range(loop.cfg.max_steps))
        live = load_batches(loop.job.data, plan, loop.job.workers, pin=device.type == "cuda")
        ready = [next(live) for _ in range(2 * args.steps)]
        facts = {**vars(args), "device": device.type, "precision": str(dtype_of("auto", device))}
        reference = bare(loop, itertools.cycle(ready), args.steps)
        kinds = {"batches made beforehand": itertools.cycle(ready), "live loader, 1 worker": live}
        for name, batches in kinds.items():
            loop_steps = whole(loop, batches, args.steps)
            ratio = paired(reference, loop_steps, args.repeats)
            report(f"step: loop / bare, {name}", ratio, "x", at_most=GATE, **facts)
        speed = args.steps * args.batch / seconds(loop_steps)
        report("step: the loop with the live loader", speed, "images/s", **facts)
        assert loop.log is not None
        loop.log.close()


if __name__ == "__main__":
    keep_pages()
    main()
