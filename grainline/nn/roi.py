"""Aligned bilinear pooling over rectangles of a map of features (RoIAlign).

He et al., arXiv 1703.06870, with the half-pixel shift that Detectron2 and torchvision call `aligned=True`:
the value of a cell stands at its middle. Every bin of a rectangle is the mean over a lattice of points, and
the value at a point is the bilinear mean of the four cells around it. A lattice is the product of its rows
and columns, so the mean over a bin is a weight for each row of cells times one for each column.
"""

import torch
from torch import Tensor

CHUNK = 64  # rectangles whose maps are copied at a time


def roi_align(
    maps: Tensor,
    boxes: Tensor,
    of: Tensor,
    *,
    bins: tuple[int, int] = (1, 1),
    scale: tuple[float, float] = (1.0, 1.0),
    samples: int | None = None,
) -> Tensor:
    """Features of R rectangles: [R, bins[0], bins[1], D]

    maps     [N, H, W, D]
    boxes    [R, 4] left, top, right, bottom; times `scale` they are in cells, from 0 to W and from 0 to H
    of       [R] int64, the map of each rectangle
    bins     rows and columns of bins that a rectangle is cut into
    scale    cells for one unit of `boxes`, down and across
    samples  points of a bin each way; None: one for each cell that it reaches over, rounded up

    A point beyond the rim by up to one cell takes the value at the rim, one further out counts as 0. A
    rectangle without height or width is 0.

    for each rectangle, bin i, j and point y, x of its lattice:
        out[r, i, j] += bilinear(maps[of[r]], y - 0.5, x - 0.5) / number of points

    >>> ramp = torch.arange(14.0).expand(1, 14, 14)[..., None]
    >>> roi_align(ramp, torch.tensor([[2.0, 3.0, 6.0, 9.0]]), torch.tensor([0])).item()
    3.5
    """
    box = boxes.double() * boxes.new_tensor([scale[1], scale[0]] * 2, dtype=torch.float64)
    down = _weights(box[:, 1], box[:, 3], bins[0], maps.shape[1], samples).to(maps.dtype)  # [R, i, H]
    across = _weights(box[:, 0], box[:, 2], bins[1], maps.shape[2], samples).to(maps.dtype)  # [R, j, W]
    parts = zip(down.split(CHUNK), across.split(CHUNK), of.split(CHUNK), strict=True)
    return torch.cat([torch.einsum("rih,rjw,rhwd->rijd", y, x, maps[i]) for y, x, i in parts])


def _weights(low: Tensor, high: Tensor, bins: int, cells: int, samples: int | None) -> Tensor:
    """What each cell along one side adds to the mean of each bin: [R, bins, cells]

    low, high  [R] ends of the rectangles in cells
    """
    step = ((high - low) / bins)[:, None, None]  # [R, 1, 1] length of a bin
    number = step.ceil() if samples is None else torch.full_like(step, samples)
    point = torch.arange(int(number.max()) if number.numel() else 0, device=low.device)  # [S]
    place = torch.arange(bins, device=low.device)[:, None] + (point + 0.5) / number.clamp(min=1)
    at = low[:, None, None] - 0.5 + step * place  # [R, bins, S]
    counts = (point < number) & (at >= -1) & (at <= cells)
    inside = at.clamp(0, cells - 1)[..., None]  # the rim goes on outside
    share = (1 - (inside - torch.arange(cells, device=low.device)).abs()).clamp(min=0)  # [R, bins, S, cells]
    return (share * counts[..., None]).sum(2) / number.clamp(min=1)
