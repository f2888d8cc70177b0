"""Masks as JSON, in the forms of COCO's files:

rows of 0 and 1
{size: [height, width], counts: [zeros, ones, zeros, ...]}   a run-length code down the columns
{size: [height, width], counts: "61X13mN000`0"}              the same, packed into a string
[[x, y, x, y, ...], ...]                                     polygons in pixels (`polygons_mask`)
"""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import numpy as np
from pydantic import BeforeValidator

from grainline.data.decode import MAX_PIXELS
from grainline.data.formats.parsed import Fields, Side, Whole


class _Runs(Fields):
    size: tuple[Side, Side]  # height and width
    counts: Annotated[
        tuple[Whole, ...], BeforeValidator(lambda v: unpacked(v) if isinstance(v, str | bytes) else v)
    ]


def read_mask(value: Any) -> np.ndarray:
    """A mask [H, W] bool from rows or from a run-length code. Raises ValueError."""
    if isinstance(value, Mapping):
        (height, width), counts = (code := _Runs.of(value)).size, code.counts
        if height * width > MAX_PIXELS:
            raise ValueError(f"a mask of {height} x {width} pixels, more than {MAX_PIXELS}")
        if sum(counts) != height * width:  # before that much is allocated
            raise ValueError(f"the runs of a mask add up to {sum(counts)}, not to {height} x {width}")
        flat = np.repeat(np.arange(len(counts)) % 2 == 1, counts)
        return flat.reshape(width, height).T
    try:
        rows = np.asarray(value)
    except ValueError:  # rows of unequal length
        rows = np.empty(0)
    if rows.ndim != 2 or rows.dtype.kind not in "biu":
        raise ValueError("a mask is rows of 0 and 1, or {size, counts}")
    return rows.astype(bool)


Mask = Annotated[np.ndarray, BeforeValidator(read_mask)]


def run_lengths(mask: np.ndarray) -> dict[str, list[int]]:
    """The run-length code of a mask [H, W] bool, zeros first."""
    flat = mask.T.reshape(-1)
    edges = np.flatnonzero(flat[1:] != flat[:-1]) + 1
    counts = np.diff(edges, prepend=0, append=len(flat)).tolist()
    return {"size": list(mask.shape), "counts": [0, *counts] if flat[0] else counts}


def unpacked(text: str | bytes) -> list[int]:
    """The counts of a packed run-length code. Raises ValueError.

    A character is 48 plus six bits: five of the number, the lowest first, and one that says that more of it
    follow; the last five are signed. From the fourth on, a number is the difference to the one before last.

    >>> unpacked("61X13mN000`0")
    [6, 1, 40, 4, 5, 4, 5, 4, 21]
    """
    counts: list[int] = []
    number = shift = 0
    for byte in text.encode() if isinstance(text, str) else text:
        bits = byte - 48
        if not 0 <= bits < 64 or shift > 60:
            raise ValueError("the packed counts of a mask hold characters that are none of theirs")
        number |= (bits & 31) << shift
        shift += 5
        if bits & 32:
            continue
        if bits & 16:
            number -= 1 << shift
        counts.append(number + (counts[-2] if len(counts) > 2 else 0))
        number = shift = 0
    if shift:
        raise ValueError("the packed counts of a mask end in the middle of a number")
    return counts


def polygons_mask(polygons: Sequence[Sequence[float]], height: int, width: int) -> np.ndarray:
    """The pixels whose centres lie inside any of some polygons: [H, W] bool. Raises ValueError, TypeError.

    polygons  each x, y, x, y, ... in pixels, from the upper left corner of the image; closed by itself

    A polygon that crosses itself is empty where it is wound twice. Pillow draws outlines too, so that a
    square of side 10 would have 121 pixels.
    """
    out = np.zeros((height, width), bool)
    for polygon in polygons:
        points = np.asarray(polygon, np.float64)
        if points.ndim != 1 or len(points) < 6 or len(points) % 2 or not np.isfinite(points).all():
            raise ValueError("a polygon is a list of three points or more: x, y, x, y, ...")
        out |= _inside(points.reshape(-1, 2), height, width)
    return out


def _inside(points: np.ndarray, height: int, width: int) -> np.ndarray:
    """A pixel is inside if its row crosses the outline an odd number of times left of its centre."""
    x, y = points.T
    to_x, to_y = np.roll(points, -1, axis=0).T
    crossings = np.zeros((height, width + 1), np.int64)  # that begin to count at a column
    middles = np.arange(height) + 0.5
    for i in np.flatnonzero(y != to_y):
        rows = np.flatnonzero((middles >= min(y[i], to_y[i])) & (middles < max(y[i], to_y[i])))
        at = x[i] + (middles[rows] - y[i]) * (to_x[i] - x[i]) / (to_y[i] - y[i])
        crossings[rows, np.clip(np.ceil(at - 0.5), 0, width).astype(np.int64)] += 1
    return crossings.cumsum(1)[:, :width] % 2 == 1
