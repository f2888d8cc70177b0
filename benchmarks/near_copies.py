"""How often the perceptual hash of data/overlap.py misses a copy, and how often it calls strangers copies.

    GRAINLINE_DATA=... python -m benchmarks.near_copies

Copies are made: 300 images a set, cropped, shrunk and compressed. Strangers are the images of OpenStax dev
against those of its training books, and of Flickr8k dev against its training images; pairs that it reports
there are printed, to be looked at.
"""

import io

import numpy as np
from PIL import Image

from benchmarks.study import data_folder
from grainline.data.decode import decode
from grainline.data.open_source import open_source
from grainline.data.overlap import BITS, MAX_DISTANCE, PIXELS, image_hash, near_copies
from grainline.data.record import CorruptSample

SETS = ("openstax", "flickr8k")
CHANGED = 300


def cropped(image: Image.Image, share: float) -> Image.Image:
    """The middle of the image, this share of each side."""
    width, height = image.size
    cut = (width * (1 - share) / 2, height * (1 - share) / 2)
    return image.crop((round(cut[0]), round(cut[1]), round(width - cut[0]), round(height - cut[1])))


def compressed(image: Image.Image, quality: int) -> Image.Image:
    """The image after a round through JPEG."""
    file = io.BytesIO()
    image.save(file, "jpeg", quality=quality)
    return Image.open(file).convert("RGB")


CHANGES = {
    "JPEG at quality 30": lambda image: compressed(image, 30),
    "half the size": lambda image: image.resize((image.width // 2, image.height // 2)),
    "the middle 95 % of each side": lambda image: cropped(image, 0.95),
    "the middle 90 % of each side": lambda image: cropped(image, 0.9),
    "the middle 95 %, half the size, JPEG at 30": lambda image: compressed(
        cropped(image, 0.95).resize((image.width // 2, image.height // 2)), 30
    ),
}


def hashed(path: str) -> tuple[list[str], list[np.ndarray | None]]:
    """Keys and hashes of all images that can be read."""
    source, keys, found = open_source(path), [], []
    for i in range(len(source)):
        try:
            record = source[i]
            found.append(image_hash(decode(record, draft=PIXELS)))
            keys.append(record.key)
        except CorruptSample:
            continue
    return keys, found


def main() -> None:
    for name in SETS:
        folder = data_folder() / name
        source = open_source(str(folder / "dev-0000.tar"))
        images = [decode(source[i]) for i in np.linspace(0, len(source) - 1, CHANGED).astype(int)]
        own = [image_hash(image) for image in images]
        print(f"{name}: {sum(bits is None for bits in own)} of {len(own)} have no hash")
        for change, make in CHANGES.items():
            other = [image_hash(make(image)) for image in images]
            distances = [
                int((a != b).sum())
                for a, b in zip(own, other, strict=True)
                if a is not None and b is not None
            ]
            share = np.mean(np.array(distances) <= MAX_DISTANCE)
            print(f"  {change}: {share:.1%} found, median {np.median(distances):.0f} of {BITS} bits differ")
        dev, train = hashed(str(folder / "dev-0000.tar")), hashed(str(folder / "train-*.tar"))
        pairs = near_copies(dev[1], train[1])
        print(f"  dev against training: {len(pairs)} pairs of {len(dev[0]) * len(train[0]):,}")
        for i, j, distance in pairs[:20]:
            print(f"    {dev[0][i]} = {train[0][j]}, {distance} bits")


if __name__ == "__main__":
    main()
