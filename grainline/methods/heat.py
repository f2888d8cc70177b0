"""Heat of texts over one image: over its tokens, over the square that a model reads, over the whole image.

A model reads a square: the middle of an image, or all of it squashed. `read_area` is the part of the image
behind the square, `over_image` lays heat over that part at the resolution of the image, and `heat_overlay`
draws it, the rest darker.
"""

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from grainline.data.transforms import Box, EvalTransform
from grainline.methods.base import Method
from grainline.nn.upsample import FLOOR, FULL, contrast, on_grid, on_segments, otsu_mask
from grainline.report.heatmap import dark_outside, overlay
from grainline.types import Encoded, rows


def heat_of(
    method: Method, image: Encoded, texts: Encoded, null: Encoded | None, size: tuple[int, int]
) -> Tensor:
    """Heat of texts over one image: [M, H, W]

    image  one row, as the method encodes it
    null   other texts to compare with, as in `Model.heat`
    size   (H, W) of the result
    """
    heat = token_heat(method, image, texts, null)
    return on_pixels(method, _repeated(image, len(heat)), heat, size)


def token_heat(method: Method, image: Encoded, texts: Encoded, null: Encoded | None) -> Tensor:
    """Heat of texts over the tokens of one image: [M, L]; image, null: as in `heat_of`"""

    def own(texts: Encoded) -> Tensor:
        return method.heat(_repeated(image, len(texts.item)), texts)

    heat = own(texts)
    return heat if null is None else contrast(heat, own(null), image.mask[0])


def on_pixels(method: Method, images: Encoded, heat: Tensor, size: tuple[int, int]) -> Tensor:
    """Heat over image tokens [N, L] as heat over the square that the method reads: [N, H, W]

    images  [N] with their tokens
    size    (H, W) of the result

    Tokens on a grid are interpolated between their centres. A segment has one heat and sharp borders; a
    smaller result has the means.
    """
    if method.segmented:
        assert images.places is not None, "segments without places"
        return on_segments(heat, images.places, size)
    assert method.grid is not None, "image tokens without a layout; ask `has_layout` first"
    return on_grid(heat, method.grid, size)


def _repeated(image: Encoded, number: int) -> Encoded:
    return rows(image, torch.zeros(number, dtype=torch.int64, device=image.vector.device))


# The whole image, at its own resolution.


def read_area(transform: EvalTransform, size: tuple[int, int]) -> Box:
    """The part of an image of this width and height that lies in the square, in whole pixels of the image.

    >>> read_area(EvalTransform(64), (500, 375)), read_area(EvalTransform(64, "squash"), (500, 375))
    (Box(left=59, top=0, right=435, bottom=375), Box(left=0, top=0, right=500, bottom=375))
    """
    left, top, right, bottom = transform.place((0, 0, *size), size)  # the image, in pixels of the square
    across, down = size[0] / (right - left), size[1] / (bottom - top)

    def on_image(place: float, scale: float, side: int) -> int:
        return min(max(round(place * scale), 0), side)

    return Box(
        on_image(-left, across, size[0]),
        on_image(-top, down, size[1]),
        on_image(transform.size - left, across, size[0]),
        on_image(transform.size - top, down, size[1]),
    )


def over_image(method: Method, image: Encoded, heat: Tensor, area: Box, size: tuple[int, int]) -> np.ndarray:
    """Heat over the tokens of one image [L] over all its pixels: [H, W], 0 where the method reads nothing.

    image  one row with its tokens
    area   of the image, as `read_area` gives it
    size   width and height of the image
    """
    out = np.zeros((size[1], size[0]), np.float32)
    shape = area.bottom - area.top, area.right - area.left
    values = on_pixels(method, image, heat[None], shape)[0]
    out[area.top : area.bottom, area.left : area.right] = values.float().cpu().numpy()
    return out


def heat_overlay(
    image: Image.Image, heat: np.ndarray, area: Box, limit: float = FULL, floor: float = FLOOR
) -> Image.Image:
    """Heat in colours over a whole image: RGB of its size; what is not read is dark behind a thin line.

    heat          [H, W] of the image, as `over_image` gives it
    limit, floor  the heat that has the full colour, and up to which there is none; by default for contrast
    """
    return dark_outside(overlay(image, heat, limit, floor), area)


def mask_of(heat: np.ndarray, area: Box) -> np.ndarray:
    """The part that stands out in contrast [H, W] of a whole image: [H, W] bool

    Above Otsu's threshold of the area that is read, and above 0.5, so that it does not reach into what other
    texts show as well; empty where contrast stays below 1, which is no contrast.
    """
    inside = heat[area.top : area.bottom, area.left : area.right]
    out = np.zeros(heat.shape, bool)
    if inside.max() >= FLOOR:
        mask = otsu_mask(torch.from_numpy(inside)[None])[0].numpy()
        out[area.top : area.bottom, area.left : area.right] = mask & (inside >= FLOOR / 2)
    return out
