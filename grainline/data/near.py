"""Copies of an image by another crop, size or compression, found by a perceptual hash.

The hash is the one known as pHash (Zauner, "Implementation and Benchmarking of Perceptual Image Hash
Functions", 2010), with 256 bits in place of 64: the image in grey at 64 x 64 pixels, the lowest 16 x 16
frequencies of its discrete cosine transform, and for each whether it is above their median. Two images are
called near copies where at most MOST of the bits differ; of unrelated images about half do.

It is a guess, and both its mistakes were measured (`python -m benchmarks.near_copies`; docs/data.md has the
numbers). A crop that cuts off more than a twentieth of each side is often missed. An image of nearly one
colour has no hash: rounding would decide its bits.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from PIL import Image
from scipy.fft import dctn

SIDE = 16  # frequencies each way
PIXELS = 4 * SIDE
BITS = SIDE * SIDE
MOST = 64  # bits that may differ
FLAT = 4.0  # standard deviation in grey levels below which there is no hash
LIMIT = 100_000  # images that are compared with each other, at most: pairs grow with their square
BLOCK = 2048  # images a side whose distances are in memory at once


class NearCopy(NamedTuple):
    """Two images that look the same."""

    first: int  # place in the first list
    second: int  # in the second list
    distance: int  # bits that differ


def image_hash(image: Image.Image) -> np.ndarray | None:
    """The hash of an image: [256] bool; None for an image of nearly one colour.

    >>> image_hash(Image.new("RGB", (80, 60), "red")) is None
    True
    """
    grey = np.asarray(image.convert("L").resize((PIXELS, PIXELS), Image.Resampling.LANCZOS), np.float64)
    if grey.std() < FLAT:
        return None
    low = dctn(grey, norm="ortho")[:SIDE, :SIDE]
    return (low > np.median(low)).ravel()


def near_copies(
    first: Sequence[np.ndarray | None], second: Sequence[np.ndarray | None] | None = None, most: int = MOST
) -> list[NearCopy]:
    """All pairs of images whose hashes differ in at most `most` bits, by place.

    first, second  hashes [256] bool; None entries are in no pair. Without `second`: pairs i < j of the first

    Only the first LIMIT hashes of the set that is searched are compared: `second`, else `first`.
    """
    a, places_a = _signs(first, LIMIT if second is None else None)
    b, places_b = (a, places_a) if second is None else _signs(second, LIMIT)
    out = []
    for i in range(0, len(a), BLOCK):
        for j in range(0, len(b), BLOCK):
            if second is None and j + BLOCK <= i:
                continue
            differ = ((BITS - a[i : i + BLOCK] @ b[j : j + BLOCK].T) / 2).round().astype(np.int64)
            for x, y in np.argwhere(differ <= most).tolist():
                if second is not None or i + x < j + y:
                    out.append(NearCopy(int(places_a[i + x]), int(places_b[j + y]), int(differ[x, y])))
    return sorted(out)


def _signs(hashes: Sequence[np.ndarray | None], limit: int | None) -> tuple[np.ndarray, np.ndarray]:
    """The hashes that there are as -1 and 1, [n, 256] float32, and their places [n]."""
    real = [(i, bits) for i, bits in enumerate(hashes) if bits is not None][:limit]
    signs = np.array([bits for _, bits in real], np.float32).reshape(len(real), BITS) * 2 - 1
    return signs, np.array([i for i, _ in real], np.int64)
