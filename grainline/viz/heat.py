"""From heat over image tokens to heat over pixels, and to words."""

from typing import Literal

import numpy as np
import torch.nn.functional as F
from torch import Tensor

Mode = Literal["bilinear", "bicubic"]

PLACES = (
    ("upper left", "top", "upper right"),
    ("left", "centre", "right"),
    ("lower left", "bottom", "lower right"),
)


def on_pixels(heat: Tensor, grid: tuple[int, int], size: tuple[int, int], mode: Mode = "bilinear") -> Tensor:
    """Spread the heat of tokens on a grid over the pixels below them: [N, H, W].

    heat  [N, L] signed, L = rows * columns of the grid, row by row
    grid  (rows, columns) of tokens
    size  (H, W) in pixels
    mode  "bilinear" never leaves the range of the tokens; "bicubic" is smoother and overshoots a little

    A token's own value stands at the centre of its patch; at the rim values are continued, not extrapolated.

    >>> import torch
    >>> on_pixels(torch.tensor([[0.0, 1.0]]), (1, 2), (1, 4))
    tensor([[[0.0000, 0.2500, 0.7500, 1.0000]]])
    """
    assert heat.shape[1] == grid[0] * grid[1], (heat.shape, grid)
    tokens = heat.float().view(-1, 1, *grid)
    return F.interpolate(tokens, size=size, mode=mode, align_corners=False)[:, 0]


def on_segments(heat: Tensor, places: Tensor, size: tuple[int, int]) -> Tensor:
    """Give every pixel the heat of its segment: [N, H, W].

    A larger size is reached by bilinear interpolation, a smaller one by the mean over areas.

    heat    [N, L] of segments
    places  [N, h, w] integers 0..L-1, the segment of each pixel
    size    (H, W)

    >>> import torch
    >>> on_segments(torch.tensor([[0.25, 1.0]]), torch.tensor([[[0, 1]]]), (1, 2))
    tensor([[[0.2500, 1.0000]]])
    """
    found = heat.float().gather(1, places.flatten(1).long()).view(places.shape)
    if size[0] < found.shape[1] and size[1] < found.shape[2]:
        return F.interpolate(found[:, None], size=size, mode="area")[:, 0]
    return F.interpolate(found[:, None], size=size, mode="bilinear", align_corners=False)[:, 0]


def place(heat: np.ndarray) -> str:
    """Where heat is strongest, in words: the ninth of the picture in which the maximum lies.

    heat  [H, W] signed

    >>> place(np.array([[0.1, 0.1, 0.9], [0.1, 0.2, 0.1], [0.1, 0.1, 0.1]]))
    'strongest at the upper right'
    >>> place(np.zeros((3, 3))), place(np.array([[-1.0, -2.0]]))
    ('the same everywhere', 'against it everywhere, least at the left')
    """
    if heat.max() == heat.min():
        return "the same everywhere"
    row, column = (
        int(3 * (i + 0.5) / n)
        for i, n in zip(np.unravel_index(heat.argmax(), heat.shape), heat.shape, strict=True)
    )
    where = PLACES[row][column]
    return f"strongest at the {where}" if heat.max() > 0 else f"against it everywhere, least at the {where}"
