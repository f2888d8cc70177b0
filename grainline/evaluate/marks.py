"""From heat over pixels to a mask, and how far two masks agree: Otsu's threshold and IoU.

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
