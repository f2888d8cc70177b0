"""Values of image tokens as maps over pixels, as contrast against other texts, as masks, and in words.

Where image tokens and texts lie in two narrow cones, every cosine of an image is about the same positive
number, and its map shows nothing. `contrast` measures where a text fits better than other texts do.
"""

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from grainline.errors import UserError

NULL_TEXTS = 64  # other texts that contrast is measured against: enough for a percentile
FEWEST = 16
REACH = 0.8  # share of other texts whose largest contrast is below 1; some of the rest do show in the image
ROUNDING = 1e-5  # of the size of heat: other texts whose maps differ by less than that do not differ
NOTHING = "no contrast"
FLOOR, FULL = 1.0, 2.0  # contrast below FLOOR is not drawn, from FULL on it has the full colour
PLACES = (
    ("upper left", "top", "upper right"),
    ("left", "centre", "right"),
    ("lower left", "bottom", "lower right"),
)


def contrast(heat: Tensor, null: Tensor, real: Tensor) -> Tensor:
    """Contrast of texts with other texts: [M, L], 0 where a token is not real.

    heat  [M, L] of the texts over the tokens of one image
    null  [N, L] of other texts, such as captions of other images, over the same tokens; N >= 16
    real  [L] bool, the tokens that count

    For the heat h of a text and g_1 .. g_N of the others:
      1. minus its own mean over the tokens, which says how well text and image fit and not where;
      2. minus the mean of the others at the same token (theirs without themselves), since some tokens are
         close to every text:  r = h - mean(g),  r_n = (g_n - mean(g)) N / (N - 1);
      3. over the 80th percentile of the largest |r_n| of each n: 1 is what one of five reaches by chance.

    Raises UserError for fewer than 16 other texts.
    """
    if len(null) < FEWEST:
        raise UserError(f"contrast needs {FEWEST} other texts or more, and {len(null)} were given")
    own, others = (_centred(x.double(), real) for x in (heat, null))
    usual = others.mean(0)
    spread = (others - usual) * (len(others) / (len(others) - 1))
    reach = spread.abs().amax(1).quantile(REACH)
    floor = ROUNDING * null.double().abs().amax().clamp(min=1e-30)
    return ((own - usual) / torch.maximum(reach, floor)).to(heat.dtype)


def _centred(heat: Tensor, real: Tensor) -> Tensor:
    """Minus the mean over the real tokens, and 0 at the others."""
    mean = (heat * real).sum(1, keepdim=True) / real.sum().clamp(min=1)
    return (heat - mean) * real


def place(heat: np.ndarray, floor: float = 0.0) -> str:
    """The ninth of the image where heat [H, W] is strongest, in words.

    floor  above 0: the least contrast that is drawn; a map below it shows nothing

    >>> place(np.array([[0.1, 0.1, 0.9], [0.1, 0.2, 0.1], [0.1, 0.1, 0.1]]))
    'strongest at the upper right'
    >>> place(np.zeros((3, 3))), place(np.array([[-1.0, -2.0]]))
    ('the same everywhere', 'against it everywhere, least at the left')
    >>> place(np.array([[0.4, 0.9]]), floor=1.0), place(np.array([[-1.2, 0.9]]), floor=1.0)
    ('no contrast', 'less than other texts at the left')
    """
    if floor and heat.max() < floor:
        if heat.min() > -floor:
            return NOTHING
        return f"less than other texts at the {_ninth(-heat)}"
    if heat.max() == heat.min():
        return "the same everywhere"
    where = _ninth(heat)
    return f"strongest at the {where}" if heat.max() > 0 else f"against it everywhere, least at the {where}"


def _ninth(heat: np.ndarray) -> str:
    """The ninth of the image in which the maximum of heat [H, W] lies."""
    place = np.unravel_index(heat.argmax(), heat.shape)
    row, column = (int(3 * (i + 0.5) / n) for i, n in zip(place, heat.shape, strict=True))
    return PLACES[row][column]


def on_grid(heat: Tensor, grid: tuple[int, int], size: tuple[int, int]) -> Tensor:
    """The heat of tokens on a grid for every pixel: [N, H, W], bilinear.

    heat  [N, L] signed, L = rows * columns of the grid, row by row
    grid  (rows, columns) of tokens
    size  (H, W) in pixels

    The value of a token stands at the centre of its patch; outside the centres at the rim it is constant.
    """
    assert heat.shape[1] == grid[0] * grid[1], (heat.shape, grid)
    tokens = heat.float().view(-1, 1, *grid)
    return F.interpolate(tokens, size=size, mode="bilinear", align_corners=False)[:, 0]


def on_segments(heat: Tensor, places: Tensor, size: tuple[int, int]) -> Tensor:
    """The heat of its segment for every pixel: [N, H, W]. Bilinear; smaller sizes are means of areas.

    heat    [N, L] of segments
    places  [N, h, w] integers 0..L-1, the segment of each pixel
    size    (H, W)
    """
    on_places = heat.float().gather(1, places.flatten(1).long()).view(places.shape)
    if size[0] < on_places.shape[1] and size[1] < on_places.shape[2]:
        return F.interpolate(on_places[:, None], size=size, mode="area")[:, 0]
    return F.interpolate(on_places[:, None], size=size, mode="bilinear", align_corners=False)[:, 0]


# Masks.

BINS = 256  # of Otsu's histogram


def unit_range(heat: Tensor) -> Tensor:
    """Each map stretched to 0 .. 1 in float64; one that is the same everywhere becomes 0: [N, H, W] both"""
    values = heat.double()
    low, high = values.amin((1, 2), keepdim=True), values.amax((1, 2), keepdim=True)
    return (values - low) / torch.where(high > low, high - low, 1.0)


def thresholds(values: Tensor) -> Tensor:
    """Otsu's threshold of each map (IEEE Trans. SMC 9, 1979): [N]. values: [N, H, W] float64 in 0 .. 1

    It separates values into the two classes whose means lie furthest apart, weighted by their sizes. No
    threshold has to be chosen, and none is fitted to the data that it is measured on.

    Bin k of 256 holds what is larger than k / 256 and at most (k + 1) / 256, the first one 0 as well. So
    a threshold separates whole bins. With w0, w1 the shares of values up to it and above it and m0,
    m1 the means of their bins:

        for k in 0 .. 254: between[k] = w0 * w1 * (m0 - m1) ** 2
        threshold = (argmax(between) + 1) / 256     (the lowest of equals; 1 where all values share a bin)
    """
    place = ((values * BINS).ceil().long() - 1).clamp(0, BINS - 1).flatten(1)
    place = place + BINS * torch.arange(len(values), device=values.device)[:, None]
    count = torch.bincount(place.flatten(), minlength=BINS * len(values)).view(-1, BINS).double()
    below = count.cumsum(1)  # whole numbers, exact in float64
    total = (count * torch.arange(BINS, device=values.device)).cumsum(1)
    above, rest = below[:, -1:] - below, total[:, -1:] - total
    # w0 w1 (m0 - m1)^2 without its divisions, which would round equal values apart
    between = (total * above - rest * below).square() / (below * above).clamp(min=1)
    highest, best = between.max(1)
    return torch.where(highest > 0, (best + 1.0).double() / BINS, 1.0)


def otsu_mask(heat: Tensor) -> Tensor:
    """The part that stands out in each map: [N, H, W] bool, nothing where it is the same everywhere"""
    values = unit_range(heat)
    return values > thresholds(values)[:, None, None]
