"""Copies of images: within a source, and between the training data of a model and the data of its test.

Exact copies are equal byte by byte: their files, or the pixels of drawn images. Near copies are images of
other bytes that look the same by a perceptual hash: the same pixels in another format, smaller ones, slight
crops, strong compression. Scenes are drawn from their keys, so their keys are compared and nothing is drawn.
"""

from collections.abc import Callable, Iterator, Sequence
from hashlib import blake2b
from itertools import count
from typing import NamedTuple

import numpy as np
from PIL import Image
from scipy.fft import dctn

from grainline.data.decode import decode
from grainline.data.formats.joined import parts_of
from grainline.data.formats.table import TextsAlone
from grainline.data.record import CorruptSample, Source, content_of, keys_of
from grainline.data.scenes.source import VERSION, Scenes
from grainline.progress import Progress

# The perceptual hash is pHash (Zauner, "Implementation and Benchmarking of Perceptual Image Hash Functions",
# 2010) with 256 bits in place of 64: the image in grey at 64 x 64 pixels, the lowest 16 x 16 frequencies of
# its discrete cosine transform, and for each whether it is above their median. Near copies differ in at most
# MAX_DISTANCE bits; unrelated images in about half. docs/data.md has the measured errors (`python -m
# benchmarks.near_copies`). An image of nearly one colour has no hash: rounding would decide its bits.

SIDE = 16  # frequencies each way
PIXELS = 4 * SIDE
BITS = SIDE * SIDE
MAX_DISTANCE = 64  # bits that may differ
FLAT = 4.0  # standard deviation in grey levels below which there is no hash
LIMIT = 100_000  # images that are compared with each other, at most: pairs grow with their square
BLOCK = 2048  # images a side whose distances are in memory at once


def image_hash(image: Image.Image) -> np.ndarray | None:
    """The hash of an image: [256] bool; None for an image of nearly one colour."""
    grey = np.asarray(image.convert("L").resize((PIXELS, PIXELS), Image.Resampling.LANCZOS), np.float64)
    if grey.std() < FLAT:
        return None
    low = dctn(grey, norm="ortho")[:SIDE, :SIDE]
    return (low > np.median(low)).ravel()


def near_copies(
    first: Sequence[np.ndarray | None],
    second: Sequence[np.ndarray | None] | None = None,
    max_distance: int = MAX_DISTANCE,
) -> list[tuple[int, int, int]]:
    """All pairs of images whose hashes differ in at most `max_distance` bits: their places, and those bits.

    first, second  hashes [256] bool; None entries are in no pair. Without `second`: pairs i < j of the first

    Only the first LIMIT hashes of the set that is searched are compared: `second`, else `first`.
    """
    a, places_a = _signs(first, LIMIT if second is None else None)
    b, places_b = (a, places_a) if second is None else _signs(second, LIMIT)
    out = []
    for i in range(0, len(a), BLOCK):
        for j in range(0 if second else i, len(b), BLOCK):
            differ = ((BITS - a[i : i + BLOCK] @ b[j : j + BLOCK].T) / 2).round().astype(np.int64)
            for x, y in np.argwhere(differ <= max_distance).tolist():
                if second is not None or i + x < j + y:
                    out.append((int(places_a[i + x]), int(places_b[j + y]), int(differ[x, y])))
    return sorted(out)


def _signs(hashes: Sequence[np.ndarray | None], limit: int | None) -> tuple[np.ndarray, np.ndarray]:
    """The hashes that there are as -1 and 1, [n, 256] float32, and their places [n]."""
    real = [(i, bits) for i, bits in enumerate(hashes) if bits is not None][:limit]
    signs = np.array([bits for _, bits in real], np.float32).reshape(len(real), BITS) * 2 - 1
    return signs, np.array([i for i, _ in real], np.int64)


class Overlap(NamedTuple):
    """The images of test data that are images of training data. Pairs are of a test and a training image."""

    exact: tuple[tuple[str, str], ...]  # keys of equal images, one pair for each test image that has a copy
    near: tuple[tuple[str, str], ...]  # those that look the same but are not in exact, with the nearest
    tested: int  # images of the test data that were compared
    trained: int  # images of the training data that were compared
    skipped: int  # images of both that cannot be read
    unlike: int  # training images past the first LIMIT, which were compared by their bytes alone


def overlap(train: Sequence[Source], test: Source, progress: Progress | None = None) -> Overlap:
    """The exact and the near copies of training images in a test source; every image of both is read.

    progress  gets the number of images that were read, first those of the test data
    """
    total, done = len(test) + sum(map(len, train)), count(1)
    step = (lambda: None) if progress is None else lambda: progress(next(done), total)
    tested = list(_images(test, step))
    trained = [image for source in train for image in _images(source, step)]
    skipped = tested.count(None) + trained.count(None)
    ours, theirs = [x for x in tested if x is not None], [x for x in trained if x is not None]
    keys = {image.content: image.key for image in reversed(theirs)}
    nearest: dict[int, tuple[int, int]] = {}  # of each test image: distance and place of the nearest one
    hashes = [None if image.content in keys else image.bits for image in ours]
    for i, j, distance in near_copies(hashes, [image.bits for image in theirs]):
        nearest[i] = min(nearest.get(i, (distance, j)), (distance, j))
    exact = tuple((image.key, keys[image.content]) for image in ours if image.content in keys)
    near = tuple((ours[i].key, theirs[j].key) for i, (_, j) in sorted(nearest.items()))
    unlike = max(0, sum(image.bits is not None for image in theirs) - LIMIT)
    return Overlap(exact, near, len(ours), len(theirs), skipped, unlike)


class _Image(NamedTuple):
    """An image, as far as it is compared."""

    key: str
    content: str  # equal for equal images
    bits: np.ndarray | None  # its perceptual hash


def _images(source: Source, step: Callable[[], None]) -> Iterator[_Image | None]:
    """Every image of a source, None for one that cannot be read. Scenes have no hash: they look alike."""
    for part in parts_of(source):
        if isinstance(part, TextsAlone):
            continue
        for i, key in enumerate(keys_of(part) if isinstance(part, Scenes) else [""] * len(part)):
            step()
            if isinstance(part, Scenes):  # the key says all but the size
                yield _Image(key, f"scene {VERSION} {key}", None)
                continue
            try:
                record = part[i]
                bits = image_hash(decode(record, draft=PIXELS))
            except CorruptSample:
                yield None
                continue
            yield _Image(record.key, blake2b(content_of(record.image), digest_size=16).hexdigest(), bits)
