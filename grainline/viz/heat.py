"""From heat over image tokens to heat over pixels."""

from typing import Literal

import torch.nn.functional as F
from torch import Tensor

Mode = Literal["bilinear", "bicubic"]


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
