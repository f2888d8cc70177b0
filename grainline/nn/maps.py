"""From values of image tokens to maps over pixels: of tokens on a grid, and of segments."""

from typing import Literal

import torch.nn.functional as F
from torch import Tensor

Mode = Literal["bilinear", "bicubic"]


def on_grid(heat: Tensor, grid: tuple[int, int], size: tuple[int, int], mode: Mode = "bilinear") -> Tensor:
    """Spread the heat of tokens on a grid over the pixels below them: [N, H, W].

    heat  [N, L] signed, L = rows * columns of the grid, row by row
    grid  (rows, columns) of tokens
    size  (H, W) in pixels
    mode  "bilinear" never leaves the range of the tokens; "bicubic" is smoother and overshoots a little

    A token's own value stands at the centre of its patch; at the rim values are continued, not extrapolated.

    >>> import torch
    >>> on_grid(torch.tensor([[0.0, 1.0]]), (1, 2), (1, 4))
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
