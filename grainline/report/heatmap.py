"""Overlays on images: signed heat in two colours, boxes, outlines, nested segments.

Heat is orange where it is positive and blue where it is negative, two hues that colour-blind readers can tell
apart. The opacity is the absolute value, 0 for no heat. The range is symmetric around zero; print it beside
the image (`limit_of`).
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from PIL import Image, ImageDraw

FOR = (230, 97, 1)  # orange and blue differ in hue for every common kind of colour blindness,
AGAINST = (33, 102, 172)  # and are about equally dark
GREY = 160
DASH = 6  # pixels
Box = tuple[float, float, float, float]
"""Left, top, right and bottom in pixels; right and bottom are one past the last one."""
STRENGTH = 0.7  # opacity where the heat reaches the limit: the image stays visible


def limit_of(heat: np.ndarray) -> float:
    """The end of the symmetric range: the largest size of any value, at least a tiny positive number.

    >>> limit_of(np.array([[0.25, -0.5], [0.0, 0.125]]))
    0.5
    """
    assert np.isfinite(heat).all(), "heat is finite"
    return max(float(np.abs(heat).max()), float(np.finfo(np.float32).tiny))


def colours(heat: np.ndarray, limit: float, floor: float = 0.0) -> np.ndarray:
    """Heat as colour with opacity: [..., 4] uint8.

    heat   [...] signed; sizes beyond the limit are drawn like the limit
    limit  > floor
    floor  the size up to which there is no colour

    >>> colours(np.array([0.0, 2.0, -0.5]), limit=1.0).tolist()
    [[230, 97, 1, 0], [230, 97, 1, 178], [33, 102, 172, 89]]
    >>> colours(np.array([1.0, -2.0]), limit=3.0, floor=1.0).tolist()
    [[230, 97, 1, 0], [33, 102, 172, 89]]
    """
    assert limit > floor >= 0, (limit, floor)
    out = np.empty((*heat.shape, 4), np.uint8)
    out[..., :3] = np.where((heat < 0)[..., None], AGAINST, FOR)
    out[..., 3] = np.rint(255 * STRENGTH * np.clip((np.abs(heat) - floor) / (limit - floor), 0, 1))
    return out


def overlay(
    image: Image.Image, heat: np.ndarray, limit: float | None = None, floor: float = 0.0
) -> Image.Image:
    """The image with heat laid over it in colour, RGB. Give the same limit to maps that are compared.

    heat   [H, W] signed, H and W those of the image
    limit  end of the symmetric range; None: the largest size in this map
    floor  the size up to which there is no colour
    """
    heat = np.asarray(heat, np.float64)
    assert heat.shape == (image.height, image.width), (heat.shape, image.size)
    layer = Image.fromarray(colours(heat, limit_of(heat) if limit is None else limit, floor))
    return Image.alpha_composite(image.convert("RGBA"), layer).convert("RGB")


def framed(image: Image.Image, box: Box) -> Image.Image:
    """The image in RGB with a frame around a box: two pixels of black inside, between lines of white."""
    pixels = np.array(image.convert("RGB"))
    for inset, colour in ((2, 255), (1, 0), (0, 0), (-1, 255)):  # of a small box the outer ones are seen
        pixels[_rim(box, image.size, inset)] = colour
    return Image.fromarray(pixels)


def ruled(image: Image.Image, boxes: Sequence[Box]) -> Image.Image:
    """The image in RGB with boxes in thin lines of grey."""
    pixels = np.array(image.convert("RGB"))
    for box in boxes:
        pixels[_rim(box, image.size)] = GREY
    return Image.fromarray(pixels)


def dashed(image: Image.Image, box: Box) -> Image.Image:
    """The image in RGB with a box in two lines of black and white dashes."""
    pixels = np.array(image.convert("RGB"))
    light = np.indices(pixels.shape[:2]).sum(0) // DASH % 2 == 0
    for inset in (0, 1):
        rim = _rim(box, image.size, inset)
        pixels[rim & light], pixels[rim & ~light] = 255, 0
    return Image.fromarray(pixels)


def _rim(box: Box, size: tuple[int, int], inset: int = 0) -> np.ndarray:
    """The pixels along the edges of a box, so many inside: [H, W] bool. size: width, height"""
    left, top = round(box[0]) + inset, round(box[1]) + inset
    right, bottom = max(round(box[2]) - inset - 1, left), max(round(box[3]) - inset - 1, top)
    out = Image.new("1", size)
    ImageDraw.Draw(out).rectangle((left, top, right, bottom), outline=1)
    return np.array(out)


def outlined(image: Image.Image, mask: np.ndarray) -> Image.Image:
    """The image in RGB with a line around a mask [H, W]: a pixel of black inside, one of white outside."""
    assert mask.shape == (image.height, image.width), (mask.shape, image.size)
    pixels = np.array(image.convert("RGB"))
    pixels[mask & ~_shrunk(mask)] = 0
    pixels[~mask & ~_shrunk(~mask)] = 255
    return Image.fromarray(pixels)


def dark_outside(image: Image.Image, box: Box) -> Image.Image:
    """The image in RGB, dark and grey outside a box, with a thin line around it. box: in whole pixels"""
    mask = np.zeros((image.height, image.width), bool)
    left, top, right, bottom = map(round, box)
    mask[top:bottom, left:right] = True
    return outlined(Image.fromarray(_dimmed(np.asarray(image.convert("RGB")), mask)), mask)


def _shrunk(mask: np.ndarray) -> np.ndarray:
    """The pixels whose four neighbours are in the mask too; what lies beyond the rim counts as in it."""
    around = np.pad(mask, 1, constant_values=True)
    return mask & around[:-2, 1:-1] & around[2:, 1:-1] & around[1:-1, :-2] & around[1:-1, 2:]


def scale_bar(width: int = 120, height: int = 10, floor: float = 0.0) -> Image.Image:
    """The colour scale from minus the limit to the limit, over white. floor: the share without colour"""
    ramp = np.tile(np.linspace(-1, 1, width), (height, 1))
    return overlay(Image.new("RGB", (width, height), "white"), ramp, 1.0, floor)


def ramp(width: int, height: int) -> Image.Image:
    """The colours from no weight to the end of the scale."""
    return scale_bar(2 * width, height).crop((width, 0, 2 * width, height))


# Nested segments of an image: mean colours with borders, those of coarser stages heavier.

LUMINANCE = np.array([0.299, 0.587, 0.114])  # of red, green and blue
DARK = 128  # luminance below which lines are white, else black


def enlarged(values: np.ndarray, side: int) -> np.ndarray:
    """A square of values as another square, each place with the value that lies below its centre.

    values  [S, S, ...]

    >>> enlarged(np.array([[0, 1], [2, 3]]), 3).tolist()
    [[0, 1, 1], [2, 3, 3], [2, 3, 3]]
    """
    place = (2 * np.arange(side) + 1) * len(values) // (2 * side)
    return np.asarray(values[place[:, None], place[None]])


def borders(label: np.ndarray, width: int) -> np.ndarray:
    """Lines of so many pixels between segments: [H, W] bool. label [H, W]; 0 pixels wide is no line

    >>> borders(np.array([[0, 0, 0, 1, 1]]), 2).astype(int).tolist()
    [[0, 0, 1, 1, 0]]
    """
    before, behind = width // 2, width - width // 2
    around = np.pad(label, (before, behind), mode="edge")
    out = np.zeros(label.shape, bool)
    for y in range(width + 1):
        for x in range(width + 1):
            out |= around[y : y + label.shape[0], x : x + label.shape[1]] != label
    return out


def mean_colours(pixels: np.ndarray, label: np.ndarray) -> np.ndarray:
    """Every pixel [H, W, 3] uint8 in the mean colour of its segment. label: [H, W] integers"""
    _, place, number = np.unique(label, return_inverse=True, return_counts=True)
    flat = pixels.reshape(-1, 3).astype(np.float64)
    total = np.stack([np.bincount(place.ravel(), weights=flat[:, c]) for c in range(3)], axis=1)
    return np.rint(total / number[:, None]).astype(np.uint8)[place].reshape(pixels.shape)


def segmented(image: Image.Image, maps: Sequence[np.ndarray], side: int) -> Image.Image:
    """The image as the segments of the first map, with a line around each: RGB of side x side pixels.

    image  S x S
    maps   [S, S] integers each, from fine to coarse; later ones join segments of earlier ones

    Lines of the first map are one pixel wide, those that a later map still has one more for each map. They
    are black over bright segments and white over dark ones.
    """
    pixels = enlarged(mean_colours(np.asarray(image.convert("RGB")), maps[0]), side)
    line = np.zeros((side, side), bool)
    for width, label in enumerate(maps, 1):
        line |= borders(enlarged(label, side), width)
    pixels[line] = np.where(pixels[line] @ LUMINANCE >= DARK, 0, 255)[:, None]
    return Image.fromarray(pixels)


# Selected patches over their image: dropped patches are dark, and stripes mark patches that only one branch
# selects. Colour is never the only sign: stripes rise for the text and fall for the description, a line
# surrounds the selected patches, and the legend has their counts.

DIM = 0.3  # brightness of a dropped patch, in grey


class LegendEntry(NamedTuple):
    """A line of a legend."""

    swatch: Image.Image
    alt: str  # how the swatch looks
    words: str


def scaled_pixels(image: Image.Image, side: int) -> np.ndarray:
    """An image whose longer side has so many pixels: [H, W, 3] uint8; those of small ones stay squares."""
    longer = max(image.size)
    how = Image.Resampling.NEAREST if 2 * longer <= side else Image.Resampling.LANCZOS
    width, height = (max(1, round(side * length / longer)) for length in image.size)
    return np.array(image.convert("RGB").resize((width, height), how))


def selected_patches(image: Image.Image, mask: np.ndarray, side: int) -> Image.Image:
    """The image with dropped patches dark, and a line around the selected ones. mask: [G, G] bool"""
    selected = enlarged(mask, side)
    return outlined(Image.fromarray(_dimmed(scaled_pixels(image, side), selected)), selected)


def shares(image: Image.Image, share: np.ndarray, limit: float, side: int) -> Image.Image:
    """The image with shares [G, G] of patches in orange, up to a limit, and a frame around the greatest."""
    canvas = overlay(Image.fromarray(scaled_pixels(image, side)), enlarged(share, side), limit)
    if not share.any():
        return canvas
    where = enlarged(np.arange(share.size).reshape(share.shape), side) == share.argmax()
    rows, columns = where.any(1).nonzero()[0], where.any(0).nonzero()[0]
    return framed(canvas, (float(columns[0]), float(rows[0]), float(columns[-1] + 1), float(rows[-1] + 1)))


def patch_count(mask: np.ndarray) -> str:
    """The number of selected patches and their share, in words.

    >>> patch_count(np.array([[True, False], [True, True]]))
    '3 of 4 patches, 75 %'
    """
    return f"{mask.sum()} of {mask.size} patches, {100 * mask.mean():.0f} %"


def _dimmed(pixels: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """Dark and grey outside a mask. pixels [H, W, 3], mask [H, W]"""
    grey = DIM * (pixels @ LUMINANCE)[..., None]
    return np.where(mask[..., None], pixels, np.rint(grey)).astype(np.uint8)
