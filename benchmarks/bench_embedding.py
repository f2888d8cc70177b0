"""Indexing a folder of images against a plain loop with the same model, in images a second.

The plain loop opens each file with Pillow, decodes it in full, squares it and encodes it, one by one or in
batches; it writes nothing and knows no calibration texts. An index that takes the files in reads, hashes and
decodes each once, encodes, scores the calibration texts, and writes synced segments; that it encodes the
calibration texts, once, is told apart. `encode` is `Model.encode` on the files. The images are JPEGs of 640
x 480 made here. Without MODEL two small ones with fresh weights are made.

    python -m benchmarks.bench_embedding [MODEL] [--images 128] [--repeats 5]
"""

import argparse
import shutil
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from benchmarks.bench_loading import files
from benchmarks.harness import keep_pages, paired, report, seconds
from grainline.build import Description
from grainline.config import parse
from grainline.data.open_source import open_source
from grainline.data.tokenizers.tokenizer import Tokenizer
from grainline.index.calibration_texts import SCENES, encode_calibration, gather_texts
from grainline.index.sync import add, build
from grainline.loading import load
from grainline.methods import method_class
from grainline.model import Model
from grainline.types import Images

SMALL = {
    "image": {"width": 192, "depth": 12, "heads": 3, "patch": 16, "size": 224},
    "text": {"width": 192, "depth": 4, "heads": 3, "vocab": 1024, "context": 48},
    "width": 256,
}


def small(method: str) -> Model:
    """A model the size of ViT-Ti/16 with fresh weights."""
    config = parse(method_class(method).config_class, SMALL, "benchmark")
    torch.manual_seed(0)
    source = open_source("scenes:dev?count=200&size=32", size=None)
    said = [source[i].whole for i in range(200)]
    made = method_class(method)(config)  # type: ignore[call-arg]
    return Model(Description(method, config), made, Tokenizer.train(said, vocab=1024))


@torch.no_grad()
def plain(model: Model, paths: Sequence[Path], batch: int) -> None:
    """What one would write first: everything with Pillow, in this process."""
    size = model.method.size
    for start in range(0, len(paths), batch):
        pixels = []
        for path in paths[start : start + batch]:
            image = Image.open(path).convert("RGB").resize((size, size), Image.Resampling.BICUBIC)
            pixels.append(torch.from_numpy(np.array(image)).permute(2, 0, 1))
        stacked = torch.stack(pixels).to(model.device)
        model.method.encode_images(Images(stacked, torch.arange(len(pixels), device=model.device)))


def take_in(model: Model, base: Path, paths: Sequence[Path]) -> None:
    """All files into a copy of an index that holds another image."""
    with tempfile.TemporaryDirectory(dir=base.parent) as folder:
        out = Path(folder, "index")
        shutil.copytree(base, out)
        add(out, paths, model=model)


def measure(model: Model, folder: Path, number: int, repeats: int) -> None:
    """All ways over the same files."""
    name = model.description.method
    root, null = folder / "photos", folder / "null.txt"
    root.mkdir()
    texts = gather_texts(SCENES)
    null.write_text("\n".join(texts.texts) + "\n")
    Image.new("RGB", (640, 480)).save(root / "another.png")
    build(root, folder / "index", model=model, calibration_texts=str(null))
    paths = [root / f"{i:05}.jpg" for i in range(number)]
    for path, data in zip(paths, files(640, 480, number), strict=True):
        path.write_bytes(data)
    ways = {
        "plain loop, one by one": partial(plain, model, paths, 1),
        "plain loop, in batches": partial(plain, model, paths, model.batch),
        "encode": partial(model.encode, images=paths),
        "index add": partial(take_in, model, folder / "index", paths),
    }
    for loop in ("plain loop, one by one", "plain loop, in batches"):
        for ours in ("encode", "index add"):
            ratio = paired(ways[ours], ways[loop], repeats)
            report(f"embedding: {name}, {loop} / {ours}", ratio, "x")
    for what, way in ways.items():
        report(f"embedding: {name}, {what}", number / min(seconds(way) for _ in range(3)), "images/s")
    encoded = model.encode(images=paths[: model.batch])
    known = encode_calibration(model, texts)
    encoding = seconds(partial(encode_calibration, model, texts))
    report(f"embedding: {name}, encoding calibration texts", encoding, "s")
    with torch.no_grad():
        took = min(seconds(lambda: [model.score(encoded, x) for x in known.values()]) for _ in range(3))
    share = took / len(encoded.vector) * 1000
    report(f"embedding: {name}, scoring calibration texts", share, "ms/image")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("model", nargs="?")
    parser.add_argument("--images", type=int, default=128)
    parser.add_argument("--repeats", type=int, default=5)
    args = parser.parse_args()
    models = [load(args.model)] if args.model else [small("clip"), small("maxsim")]
    for model in models:
        with tempfile.TemporaryDirectory() as folder:
            measure(model, Path(folder), args.images, args.repeats)


if __name__ == "__main__":
    keep_pages()
    main()
