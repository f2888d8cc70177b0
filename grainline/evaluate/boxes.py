"""Boxes over maps: what lies inside, its score, and how far two boxes agree. All exact sums, no loops."""

import torch
from torch import Tensor

ALPHA = 0.5
"""How much a large box has to make up for, in ReCLIP (Subramanian et al., arXiv 2204.05991)."""


def box_sums(maps: Tensor, boxes: Tensor) -> Tensor:
    """The sum of each map over the pixels whose centres lie in each box: [E, B] float64

    maps   [E, H, W]
    boxes  [B, 4] left, top, right, bottom in pixels

    for e, b: sum of maps[e, y, x] over left <= x + 0.5 < right and top <= y + 0.5 < bottom
    """
    height, width = maps.shape[1:]
    whole = maps.new_zeros((len(maps), height + 1, width + 1), dtype=torch.float64)
    whole[:, 1:, 1:] = maps.double().cumsum(1).cumsum(2)
    edge = (boxes.double() - 0.5).ceil().long()
    left, right = edge[:, 0].clamp(0, width), edge[:, 2].clamp(0, width)
    top, bottom = edge[:, 1].clamp(0, height), edge[:, 3].clamp(0, height)
    return whole[:, bottom, right] - whole[:, top, right] - whole[:, bottom, left] + whole[:, top, left]


def box_scores(maps: Tensor, boxes: Tensor, alpha: float = ALPHA) -> Tensor:
    """What lies inside over area ** alpha: [E, B] float32. Shapes as in `box_sums`.

    Sums are rounded, so that boxes of equal sums and areas tie.

    >>> corners = torch.zeros(1, 4, 4)
    >>> corners[0, :2, :2], corners[0, 2:, 2:] = 1.0, 0.5
    >>> box_scores(corners, torch.tensor([[0.0, 0, 2, 2], [0, 0, 4, 4], [2, 2, 4, 4]])).tolist()
    [[2.0, 1.5, 1.0]]
    """
    return (box_sums(maps, boxes) / areas(boxes).pow(alpha)).float()


def areas(boxes: Tensor) -> Tensor:
    """[..., 4] to [...] float64"""
    boxes = boxes.double()
    return (boxes[..., 2] - boxes[..., 0]) * (boxes[..., 3] - boxes[..., 1])


def box_iou(a: Tensor, b: Tensor) -> Tensor:
    """Intersection over union of every a [A, 4] with every b [B, 4]: [A, B] float64

    >>> box_iou(torch.tensor([[0.0, 0, 2, 2]]), torch.tensor([[0.0, 0, 2, 1], [5, 5, 6, 6]])).tolist()
    [[0.5, 0.0]]
    """
    a, b = a.double()[:, None], b.double()[None]
    low, high = torch.maximum(a[..., :2], b[..., :2]), torch.minimum(a[..., 2:], b[..., 2:])
    both = (high - low).clamp(min=0).prod(-1)
    return both / (areas(a) + areas(b) - both)


def clipped(boxes: Tensor, size: tuple[int, int]) -> Tensor:
    """Boxes cut off at the rim of a picture: [B, 4] float64. size: its height and width"""
    height, width = size
    limit = torch.tensor([width, height, width, height], dtype=torch.float64)
    return torch.minimum(boxes.double().clamp(min=0), limit)
