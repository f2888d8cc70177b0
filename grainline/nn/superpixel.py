"""Superpixels under one contract, and the mean of a feature map over them.

A picture of S x S pixels is cut into G x G square cells, G = S / cell. Each cell is the place of one
superpixel, and a pixel belongs to the superpixel of its own cell or of one of the eight cells around it.
Those nine are numbered row by row, from 0, above and to the left, over 4, its own, to 8, below and to the
right. So a map of superpixels is nine numbers for each pixel, whatever the size of the picture, and the
mean of features over superpixels needs no scatter: it is nine sums over cells, each shifted by one cell at
most.

    S   side of the picture in pixels      G   side of the grid of cells
    C   channels of a feature map          h, w   its height and width
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from grainline.types import full

OWN = 4  # the neighbour that is the pixel's own cell


class Cells(NamedTuple):
    """Which superpixels the pixels belong to."""

    association: Tensor  # [N, 9, S, S] >= 0, sums to 1 over the neighbours inside the picture, 0 outside
    label: Tensor  # [N, S, S] int64 in 0..G*G-1, the most associated neighbour


class CellPool(NamedTuple):
    """Means over superpixels."""

    tokens: Tensor  # [N, G*G, C] zeros where the mass is 0
    mass: Tensor  # [N, G*G] in pixels; 0: an empty superpixel


def neighbour_of(label: Tensor, cell: int) -> Tensor:
    """Which neighbour each label is: [N, S, S] int64 in 0..G*G-1 -> [N, S, S] int64 in 0..8

    A label further away than one cell breaks the contract, and its number means nothing.

    >>> neighbour_of(torch.tensor([[[0, 1], [1, 3]]]), cell=1)
    tensor([[[4, 4],
             [2, 4]]])
    """
    row, column = _place(label, cell)
    grid = label.shape[-1] // cell
    down, across = label // grid - row, label % grid - column
    return 3 * (down + 1) + across + 1


def label_of(neighbour: Tensor, cell: int) -> Tensor:
    """The labels that neighbours are, the inverse of `neighbour_of`: [N, S, S] int64 -> [N, S, S] int64"""
    row, column = _place(neighbour, cell)
    grid = neighbour.shape[-1] // cell
    step = torch.arange(-1, 2, device=neighbour.device)
    return grid * row + column + (grid * step[:, None] + step).flatten()[neighbour]


def inside(size: int, cell: int, device: torch.device | None = None) -> Tensor:
    """Which neighbours of each pixel lie inside the picture: [9, S, S] bool"""
    at = torch.arange(size, device=device) // cell
    step = torch.arange(-1, 2, device=device)[:, None]
    there = (at + step >= 0) & (at + step < size // cell)  # [3, S]
    return (there[:, None, :, None] & there[None, :, None, :]).flatten(0, 1)


def one_hot(label: Tensor, cell: int) -> Tensor:
    """Hard labels as weights: [N, S, S] int64 -> [N, 9, S, S] of zeros and ones"""
    return (neighbour_of(label, cell)[:, None] == _numbers(label.device)).float()


def square_grid(pixels: Tensor, cell: int) -> Cells:
    """Every pixel belongs to its own cell. pixels [N, 3, S, S]"""
    number, _, size, _ = pixels.shape
    own = torch.full((1, size, size), OWN, device=pixels.device)
    association = (own[:, None] == _numbers(pixels.device)).float()
    return Cells(association.expand(number, -1, -1, -1), label_of(own, cell).expand(number, -1, -1))


def pool_cells(features: Tensor, weight: Tensor, cell: int) -> CellPool:
    """Means of features over superpixels, differentiable in both. The sums are in float32 at least.

    features  [N, C, h, w]; every value stands for a square of S/h pixels, and S/h divides the cell
    weight    [N, 9, S, S]: `one_hot` of hard labels, or an association; what lies outside counts nowhere

    for each pixel p and neighbour a, the superpixel s:
        total[s] += weight[a, p] * features[p], mass[s] += weight[a, p]
    tokens = total / mass
    """
    size, stride = weight.shape[-1], weight.shape[-1] // features.shape[-1]
    if features.shape[-1] * stride != size or cell % stride or size % cell:
        raise ValueError(f"features of side {features.shape[-1]} do not fit cells of {cell} in {size} pixels")
    grid, side = size // cell, cell // stride
    with torch.autocast(features.device.type, enabled=False):
        values = full(features)
        share = F.avg_pool2d(weight.to(values.dtype), stride) * stride**2  # [N, 9, h, w] pixels of each value
        blocks = values.unflatten(2, (grid, side)).unflatten(4, (grid, side))  # [N, C, G, k, G, k]
        blocks = blocks.permute(0, 2, 4, 3, 5, 1).flatten(3, 4)  # [N, G, G, k*k, C]
        parts = share.unflatten(2, (grid, side)).unflatten(4, (grid, side))
        parts = parts.permute(0, 2, 4, 1, 3, 5).flatten(4, 5)  # [N, G, G, 9, k*k]
        total = shifted((parts @ blocks).permute(3, 0, 1, 2, 4))  # [N, G, G, C]
        mass = shifted(parts.sum(-1, keepdim=True).permute(3, 0, 1, 2, 4))  # [N, G, G, 1]
        tokens = total / torch.where(mass > 0, mass, 1.0)
    return CellPool(tokens.flatten(1, 2), mass.flatten(1))


def hard(association: Tensor, cell: int) -> Tensor:
    """The most associated neighbour as a label: [N, 9, S, S] -> [N, S, S] int64

    Of equal ones it is the one with the lower number.
    """
    return label_of((9 - first_rank(association.clone())).long()[:, 0], cell)


def first_rank(x: Tensor) -> Tensor:
    """9 less the number of the first of the largest along dimension 1: [N, 9, ...] -> [N, 1, ...]

    x is overwritten: 9 less the number at each of the largest, 0 elsewhere. A few passes in place are many
    times as fast on a CPU as argmax along a dimension of nine.
    """
    rank = torch.arange(9, 0, -1, device=x.device, dtype=x.dtype).view(9, *[1] * (x.dim() - 2))
    return x.eq_(x.amax(1, keepdim=True)).mul_(rank).amax(1, keepdim=True)


def shifted(parts: Tensor) -> Tensor:
    """What each cell gives to the nine around it, summed where it arrives: [9, N, G, G, C] -> [N, G, G, C]"""
    grid = parts.shape[2]
    out = F.pad(torch.zeros_like(parts[OWN]), (0, 0, 1, 1, 1, 1))  # a rim for what falls outside
    for neighbour, part in enumerate(parts):
        top, left = divmod(neighbour, 3)
        out[:, top : top + grid, left : left + grid] += part
    return out[:, 1:-1, 1:-1]


def around(x: Tensor) -> Tensor:
    """What stands in the nine cells around each cell, 0 outside: [N, G, G, C] -> [N, G, G, 9, C]"""
    grid = x.shape[1]
    wide = F.pad(x, (0, 0, 1, 1, 1, 1))
    parts = [wide[:, top : top + grid, left : left + grid] for top in range(3) for left in range(3)]
    return torch.stack(parts, 3)


def _place(x: Tensor, cell: int) -> tuple[Tensor, Tensor]:
    """Row [S, 1] and column [S] of the cell that each pixel lies in."""
    at = torch.arange(x.shape[-1], device=x.device) // cell
    return at[:, None], at


def _numbers(device: torch.device) -> Tensor:
    return torch.arange(9, device=device)[:, None, None]
