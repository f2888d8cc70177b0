"""Loading images: our way from JPEG bytes to uint8 pixels against a plain one, on one core.

The plain loader decodes in full, crops and resizes with Pillow and turns the pixels into float in 0..1. Both
take the same random crops, so only the way differs. The images are made here.

    python -m benchmarks.bench_loading [--repeats 7] [--files 24]
"""

import argparse
import io
from functools import partial
from random import Random

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from benchmarks.harness import keep_pages, paired, report, seconds
from grainline.data.transforms import CropConfig, TrainTransform, crop_box

SIZE = 224
SCALE, RATIO = (0.8, 1.0), (3 / 4, 4 / 3)
SHAPES = ((640, 480), (224, 224), (1600, 1200))


def files(width: int, height: int, number: int = 24) -> list[bytes]:
    """JPEGs with the detail of photographs: blobs of several sizes and a little noise."""
    made = []
    for seed in range(number):
        rng = np.random.default_rng(seed)
        total = rng.normal(0, 4, (height, width, 3))
        for cell in (8, 32, 128):
            grid = rng.integers(0, 256, (height // cell + 2, width // cell + 2, 3), dtype=np.uint8)
            total += np.asarray(Image.fromarray(grid).resize((width, height), Image.Resampling.BICUBIC)) / 3
        file = io.BytesIO()
        Image.fromarray(total.clip(0, 255).astype(np.uint8)).save(file, "jpeg", quality=90)
        made.append(file.getvalue())
    return made


def plain(data: bytes, rng: Random) -> Tensor:
    """[3, SIZE, SIZE] float: full decoding, Pillow's crop and resize."""
    image = Image.open(io.BytesIO(data)).convert("RGB")
    box = crop_box(*image.size, SCALE, RATIO, [rng.random() for _ in range(4)])
    square = image.crop(box).resize((SIZE, SIZE), Image.Resampling.BICUBIC)
    return torch.from_numpy(np.array(square)).permute(2, 0, 1).float() / 255


def load_ours(data: list[bytes]) -> None:
    """Every file once."""
    transform, rng = TrainTransform(SIZE, CropConfig(scale=SCALE, ratio=RATIO)), Random(0)
    for file in data:
        transform(file, rng)


def load_plain(data: list[bytes]) -> None:
    """Every file once."""
    rng = Random(0)
    for file in data:
        plain(file, rng)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--files", type=int, default=24)
    args = parser.parse_args()
    torch.set_num_threads(1)
    for width, height in SHAPES:
        data = files(width, height, args.files)
        ratio = paired(partial(load_ours, data), partial(load_plain, data), args.repeats)
        speed = len(data) / min(seconds(partial(load_ours, data)) for _ in range(3))
        shape = f"{width}x{height}"
        report(f"loading: {shape} to {SIZE} px, time of plain / ours", ratio, "x", at_least=1.0)
        report(f"loading: {shape} to {SIZE} px, one core", speed, "images/s")


if __name__ == "__main__":
    keep_pages()
    main()
