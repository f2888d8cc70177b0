"""Masks and boxes over maps: Otsu's threshold, sums, scores and IoU.

From heat over pixels to a mask, and how far two masks agree: Otsu's threshold and IoU.

Otsu, IEEE Trans. SMC 9 (1979): the threshold that parts values into the two classes whose means lie furthest
apart, weighted by their sizes. No threshold has to be chosen, and none is fitted to the data that it is
measured on.
"""

import numpy as np
import torch
from torch import Tensor

BINS = 256


def unit_range(heat: Tensor) -> Tensor:
    """Each map stretched to 0 .. 1 in float64; one that is the same everywhere becomes 0: [N, H, W] both"""
    values = heat.double()
    low, high = values.amin((1, 2), keepdim=True), values.amax((1, 2), keepdim=True)
    return (values - low) / torch.where(high > low, high - low, 1.0)


def thresholds(values: Tensor) -> Tensor:
    """Otsu's threshold of each map: [N] float64. values: [N, H, W] float64 in 0 .. 1

    Bin k of 256 holds what is larger than k / 256 and at most (k + 1) / 256, the first one 0 as well, so that
    a threshold parts whole bins. With w0, w1 the shares of values up to it and above it and m0, m1 the means
    of their bins:

        for k in 0 .. 254: between[k] = w0 * w1 * (m0 - m1) ** 2
        threshold = (argmax(between) + 1) / 256     (the lowest of equals; 1 where all values share a bin)

    >>> thresholds(torch.tensor([[[0.0, 0.1, 0.5, 1.0]], [[0.0, 0.0, 0.0, 0.0]]]).double()).tolist()
    [0.1015625, 1.0]
    """
    number = len(values)
    place = ((values * BINS).ceil().long() - 1).clamp(0, BINS - 1).flatten(1)
    place = place + BINS * torch.arange(number, device=values.device)[:, None]
    count = torch.bincount(place.flatten(), minlength=BINS * number).view(number, BINS).double()
    below = count.cumsum(1)  # whole numbers, exact in float64
    total = (count * torch.arange(BINS, device=values.device)).cumsum(1)
    above, rest = below[:, -1:] - below, total[:, -1:] - total
    # w0 w1 (m0 - m1)^2 without its divisions, which would round equal values apart
    between = (total * above - rest * below).square() / (below * above).clamp(min=1)
    best = between.argmax(1)
    parted = between.amax(1) > 0
    return torch.where(parted, (best + 1.0).double() / BINS, 1.0)


def marked(heat: Tensor) -> Tensor:
    """What stands out in each map: [N, H, W] bool, nothing where it is the same everywhere. heat: as above"""
    values = unit_range(heat)
    return values > thresholds(values)[:, None, None]


def overlap(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Pixels of the intersection and of the union of masks: [N] int64 each. a, b: [N, H, W] bool"""
    return (a & b).sum((1, 2)), (a | b).sum((1, 2))


def centred(height: int, width: int) -> np.ndarray:
    """The box of half the sides in the middle: [H, W] bool, the pixels whose centres lie in it.

    >>> centred(4, 6).astype(int).tolist()
    [[0, 0, 0, 0, 0, 0], [0, 0, 1, 1, 0, 0], [0, 0, 1, 1, 0, 0], [0, 0, 0, 0, 0, 0]]
    """
    down, across = (np.abs((np.arange(side) + 0.5) / side - 0.5) < 0.25 for side in (height, width))
    return down[:, None] & across[None]


# Boxes over maps: what lies inside, its score, and how far two boxes agree. All exact sums, no loops.


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
