"""Superpixels of a whole source, made once: `grainline data superpixels`, and `data.superpixels` of a recipe.

A folder as `data/kept.py` has it, with which of nine cells each pixel belongs to, as in `nn.superpixel`:
neighbours.npy [N, S, S] uint8.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from grainline.data import kept
from grainline.data.kept import Kind, Made, Stored
from grainline.data.record import Source
from grainline.data.transforms import EvalTransform
from grainline.nn.superpixel import label_of, neighbour_of

KIND = Kind("superpixels", "superpixels 1", "neighbours.npy", np.uint8)


def make(
    source: Source,
    segment: Callable[[Tensor], Tensor],
    out: Path,
    *,
    size: int,
    settings: Mapping[str, Any],
    progress: Callable[[int, int], None] | None = None,
) -> Made:
    """Write the superpixels of all pictures of a source, or what is missing of them, as `kept.make` does.

    segment   [n, 3, S, S] uint8 -> labels [n, S, S] under the contract of `nn.superpixel`
    size      side of the square that evaluation sees, S
    settings  what `segment` was made with, `cell` among it
    """
    cell = int(settings["cell"])
    return kept.make(
        KIND,
        source,
        lambda pixels: neighbour_of(segment(pixels).cpu(), cell).to(torch.uint8),
        out,
        EvalTransform(size),
        row=(size, size),
        settings=settings,
        progress=progress,
    )


class StoredSuperpixels:
    """The superpixels of a source, read from the disk picture by picture: the labels of a `SameTransform`."""

    def __init__(
        self, folder: Path, source: Source, transform: EvalTransform, settings: Mapping[str, Any]
    ) -> None:
        """Arguments and errors as `kept.Stored` has them; settings are all that the model has."""
        self.stored, self.cell = Stored(KIND, folder, source, transform, settings), int(settings["cell"])
        self.stored.open((transform.size, transform.size))

    def label(self, index: int, key: str) -> Tensor:
        """[S, S] int64 of the record at a position. UserError where there are none, or those of another."""
        code = torch.from_numpy(self.stored.row(index, key).astype(np.int64))
        return label_of(code, self.cell)
