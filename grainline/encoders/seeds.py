"""Superpixels by SEEDS (van den Bergh et al., arXiv 1309.3848), the ones of CAST; extra `seeds`.

OpenCV's segments are few and free: one may reach over several cells, and several may share one. Under the
contract of `nn.superpixel` each segment is given to a cell, and each pixel to the cell of its segment:

    home of a segment = the cell that holds most of its pixels, the first of equal ones
    label of a pixel  = the home of its segment, if that is one of the nine cells around the pixel;
                        else the nearest of the nine: row and column are clipped to one cell away
"""

import importlib
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from grainline.errors import UserError
from grainline.nn.superpixel import Cells, one_hot

LEVELS, PRIOR, BINS = 2, 2, 5
"""Levels of blocks, smoothing of shapes from 0 to 5, and bins of the histogram of each colour."""


def require_seeds() -> ModuleType:
    """OpenCV with its extra modules; UserError where it is not there."""
    try:
        cv2 = importlib.import_module("cv2")
        importlib.import_module("cv2.ximgproc")
    except ImportError:
        raise UserError(
            "superpixels by seeds need OpenCV with its extra modules: pip install grainline[seeds]; where "
            "opencv-python is installed, remove it first: both bring the module cv2"
        ) from None
    return cv2


def seeds(pixels: Tensor, cell: int, steps: int) -> Cells:
    """pixels [N, 3, S, S] uint8 or float in 0..1 -> Cells of zeros and ones; computed on the CPU

    steps  sweeps over the picture at each level
    """
    cv2 = require_seeds()
    whole = pixels if pixels.dtype == torch.uint8 else (pixels * 255).round().clamp(0, 255).to(torch.uint8)
    pictures = whole.permute(0, 2, 3, 1).cpu().numpy()
    labels = np.stack([at_home(_segments(cv2, picture, cell, steps), cell) for picture in pictures])
    label = torch.from_numpy(labels).to(pixels.device)
    return Cells(one_hot(label, cell), label)


def at_home(segment: np.ndarray, cell: int) -> np.ndarray:
    """Any segments as labels under the contract: [S, S] int in 0..K-1 -> [S, S] int64

    >>> at_home(np.array([[0, 0, 0, 0], [0, 1, 1, 1], [0, 1, 1, 1], [0, 1, 1, 1]]), cell=2)
    array([[0, 0, 0, 0],
           [0, 3, 3, 3],
           [0, 3, 3, 3],
           [0, 3, 3, 3]])
    """
    size = segment.shape[0]
    grid = size // cell
    at = np.arange(size) // cell
    own = grid * at[:, None] + at
    number = int(segment.max()) + 1
    shared = np.bincount((segment * grid**2 + own).ravel(), minlength=number * grid**2)
    home = shared.reshape(number, grid**2).argmax(1)[segment]
    row = np.clip(home // grid, at[:, None] - 1, at[:, None] + 1)
    column = np.clip(home % grid, at - 1, at + 1)
    return (grid * row + column).astype(np.int64)


def _segments(cv2: Any, picture: np.ndarray, cell: int, steps: int) -> np.ndarray:
    """OpenCV's segments of one picture [S, S, 3] uint8 RGB, about one for each cell: [S, S] int"""
    size = picture.shape[0]
    number = (size // cell) ** 2
    found = cv2.ximgproc.createSuperpixelSEEDS(size, size, 3, number, LEVELS, PRIOR, BINS)
    found.iterate(cv2.cvtColor(picture, cv2.COLOR_RGB2LAB), steps)
    return np.asarray(found.getLabels())
