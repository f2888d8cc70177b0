"""Candidates of an index ranked anew by conditioned scores, end to end: from the files to the order.

A query in 4 parts scores 100 candidates of 64 segments at width 512, in 8 heads, as CAFT++ does. Ours reads
keys and values from the index; the other side is an index of the segments themselves, which every query
projects again. Both read float16 from the file cache. `search` is a whole search without sentences, which
encodes the text and scores up to 256 images of the background as well. Weights are random: speed does not
depend on them.

    python -m benchmarks.bench_rerank [--images 300] [--repeats 7]
"""

import argparse
import tempfile
from functools import partial
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from benchmarks.harness import interval, keep_pages, paired, report, seconds
from grainline.build import Description
from grainline.build import build as build_method
from grainline.config import parse
from grainline.data.open_source import open_source
from grainline.data.tokenizers.tokenizer import Tokenizer
from grainline.index.search import Index, Options, open_index
from grainline.index.sync import build
from grainline.methods import method_class
from grainline.methods.base import Method
from grainline.model import Model
from grainline.types import Encoded

CANDIDATES, K, WIDTH, HEADS = 100, 10, 512, 8
FASTER = 5.0  # G11 of the performance goals
SETTINGS = {
    "image": {"name": "toy/2", "size": 16},  # 64 patches
    "text": {"name": "toy", "context": 32, "vocab": 1024},
    "width": WIDTH,
    "heads": HEADS,
    "scoring": "conditioned",
}


def made(folder: Path, model: Model, images: int) -> Index:
    """An index of images of noise."""
    root = folder / "photos"
    root.mkdir(exist_ok=True)
    rng = np.random.default_rng(0)
    for i in range(images):
        Image.fromarray(rng.integers(0, 256, (16, 16, 3), dtype=np.uint8)).save(root / f"{i:04}.png")
    null = folder / "null.txt"
    null.write_text("\n".join(texts(24)))
    out = folder / f"index {len(list(folder.glob('index*')))}"
    build(root, out, model=model, calibration_texts=str(null))
    return open_index(out, model)


def texts(number: int) -> list[str]:
    source = open_source(f"scenes:dev?count={number}&size=32")
    return [source[i].whole for i in range(number)]


def rerank(index: Index, query: Encoded) -> np.ndarray:
    """Candidates by vector, and their scores, as a search finds them."""
    return next(index._candidates(query, K, Options(shortlist=CANDIDATES)))[1]


def measure(folder: Path, images: int, repeats: int) -> None:
    torch.manual_seed(0)
    said = texts(300)
    description = Description("caft", parse(method_class("caft").config_class, SETTINGS, "benchmark"))
    model = Model(description, build_method(description), Tokenizer.train(said, vocab=1024))
    ours = made(folder, model, images)
    own = type(model.method).precompute
    type(model.method).precompute = Method.precompute  # type: ignore[method-assign]
    try:
        other = made(folder, model, images)
    finally:
        type(model.method).precompute = own  # type: ignore[method-assign]
    query = model.encode(texts=said[:1])
    calls = [partial(rerank, index, query) for index in (ours, other)]
    facts = {"images": images, "candidates": CANDIDATES, "threads": torch.get_num_threads()}
    difference = float(np.abs(calls[0]() - calls[1]()).max())
    report("G11 from the files: largest difference of a score", difference, "", at_most=5e-3)
    report("G11 from the files: time segments / keys and values", paired(*calls, repeats), "x",
           at_least=FASTER, **facts)  # fmt: skip
    for name, index, call in zip(("keys and values", "segments"), (ours, other), calls, strict=True):
        whole = partial(index.search, said[:1], K, Options(sentences=False, shortlist=CANDIDATES))
        for what, one in (("rank anew", call), ("search", whole)):
            times = interval([1000 * seconds(one) for _ in range(3 * repeats)])
            report(f"{what}, index of {name}", times, "ms", **facts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--images", type=int, default=300)
    parser.add_argument("--repeats", type=int, default=7)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        measure(Path(folder), args.images, args.repeats)


if __name__ == "__main__":
    keep_pages()
    main()
