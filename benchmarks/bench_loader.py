"""The live loader: images a second by the number of workers, and what bounds one core.

    python -m benchmarks.bench_loader [--workers 1 2 4 ...] [--repeats 7] [--batch 256] [--rehearse]

JPEGs of 640 x 480 become crops of 224 pixels, captions tokens. In one process: from bytes to crops, whole
samples with their texts, and batches. With workers: the loader that training uses, pinned where there is a
GPU; nothing else runs. `of_one` is what a worker makes of the batches of one process: the rest is the way
between processes. The goal is 2,700 images a second on 16 cores, 1.5 times what a step of `caft/paper` takes.
"""

import argparse
import itertools
import os
import statistics
import time
from collections.abc import Callable
from random import Random

import torch

from benchmarks.bench_step import CONTEXT, Photographs
from benchmarks.harness import report
from grainline.data.batches import Batched, load_batches
from grainline.data.dataset import Batches, TrainSet
from grainline.data.texts import TextsConfig
from grainline.data.tokenizers.tokenizer import Tokenizer
from grainline.data.transforms import TrainTransform

GOAL, CORES = 2700.0, 16
SIZE = 224


def rate(call: Callable[[], object], images: int, repeats: int) -> float:
    """Images a second, the median."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return images / statistics.median(times)


def main() -> None:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    counts = [number for number in (1, 2, 4, 8, 15) if number <= cores]
    parser.add_argument("--workers", type=int, nargs="+", default=counts)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--rehearse", action="store_true", help="in tiny batches, to see that it runs")
    args = parser.parse_args()
    batch, repeats = (8, 1) if args.rehearse else (args.batch, args.repeats)
    torch.set_num_threads(1)
    source = Photographs(max(512, batch))
    tokenizer, crop = Tokenizer.train(source.captions, 4096), TrainTransform(SIZE)
    data = TrainSet(source, tokenizer, crop, TextsConfig(), context=CONTEXT, seed=0)
    plan = Batches(len(data), batch, 0, range(10**9))
    first = next(iter(plan))
    crops = rate(lambda: [crop(source[d.image].image, Random(0)) for d in first], batch, repeats)
    samples = rate(lambda: [data[draw] for draw in first], batch, repeats)
    whole = rate(lambda: Batched(data)[first], batch, repeats)
    report("loader, one process: crops", crops, "img/s")
    report("loader, one process: samples", samples, "img/s")
    report("loader, one process: batches", whole, "img/s")
    for workers in args.workers:
        batches = load_batches(data, plan, workers, pin=torch.cuda.is_available())
        for _ in range(2 * workers + 2):  # until all workers have begun
            next(batches)
        steps = max(2, workers)
        found = rate(lambda it=batches, n=steps: list(itertools.islice(it, n)), steps * batch, repeats)
        batches.close()
        gate = GOAL if workers >= CORES - 1 else None
        report(f"loader, {workers} workers", found, "img/s", at_least=gate, of_one=found / workers / whole)


if __name__ == "__main__":
    main()
