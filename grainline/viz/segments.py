"""Nested segments of a picture: mean colours with borders, those of coarser stages heavier."""

from collections.abc import Sequence

import numpy as np
from PIL import Image

DARK = 128  # luminance below which lines are white, else black


def enlarged(values: np.ndarray, side: int) -> np.ndarray:
    """A square of values as another square, each place with the value that lies below its centre.

    values  [S, S, ...]

    >>> enlarged(np.array([[0, 1], [2, 3]]), 3).tolist()
    [[0, 1, 1], [2, 3, 3], [2, 3, 3]]
    """
    at = (2 * np.arange(side) + 1) * len(values) // (2 * side)
    return np.asarray(values[at[:, None], at[None]])


def borders(label: np.ndarray, width: int) -> np.ndarray:
    """Lines of so many pixels between segments: [H, W] bool. label [H, W]; 0 pixels wide is no line

    >>> borders(np.array([[0, 0, 0, 1, 1]]), 2).astype(int).tolist()
    [[0, 0, 1, 1, 0]]
    """
    before, behind = width // 2, width - width // 2
    around = np.pad(label, (before, behind), mode="edge")
    out = np.zeros(label.shape, bool)
    for y in range(width + 1):
        for x in range(width + 1):
            out |= around[y : y + label.shape[0], x : x + label.shape[1]] != label
    return out


def mean_colours(pixels: np.ndarray, label: np.ndarray) -> np.ndarray:
    """Every pixel in the mean colour of its segment: [H, W, 3] uint8

    pixels  [H, W, 3] uint8
    label   [H, W] integers
    """
    _, place, number = np.unique(label, return_inverse=True, return_counts=True)
    flat = pixels.reshape(-1, 3).astype(np.float64)
    total = np.stack([np.bincount(place.ravel(), weights=flat[:, c]) for c in range(3)], axis=1)
    return np.rint(total / number[:, None]).astype(np.uint8)[place].reshape(pixels.shape)


def segmented(picture: Image.Image, maps: Sequence[np.ndarray], side: int) -> Image.Image:
    """The picture as the segments of the first map, with a line around each: RGB of side x side pixels.

    picture  S x S
    maps     [S, S] integers each, from fine to coarse; later ones join segments of earlier ones

    Lines of the first map are one pixel wide, those that a later map still has one more for each map. They
    are black over bright segments and white over dark ones.
    """
    image = mean_colours(np.asarray(picture.convert("RGB")), maps[0])
    image = enlarged(image, side)
    line = np.zeros((side, side), bool)
    for width, label in enumerate(maps, 1):
        line |= borders(enlarged(label, side), width)
    bright = image @ np.array([0.299, 0.587, 0.114]) >= DARK
    return Image.fromarray(
        np.where(line[..., None], np.where(bright, 0, 255)[..., None], image).astype(np.uint8)
    )
