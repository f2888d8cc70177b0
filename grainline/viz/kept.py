"""Patches that stay, over their picture: the others are dark, and stripes say who alone keeps a patch.

Nothing is told by colour alone: stripes rise for the text and fall for the description, a line runs around
all that stays, and the counts stand beside the signs.
"""

import numpy as np
from PIL import Image

from grainline.viz.overlay import AGAINST, FOR, framed, outlined, overlay
from grainline.viz.segments import enlarged
from grainline.viz.shown import Signed

DIM = 0.3  # brightness that is left to a dropped patch, in grey
PERIOD, STRIPE = (
    10,
    3,
)  # pixels from stripe to stripe, and of a stripe, of which one more on each side is white
SWATCH = (36, 20)  # pixels
LIGHT = (225, 225, 225)  # what swatches are drawn over


def over(picture: Image.Image, side: int) -> np.ndarray:
    """A square picture in so many pixels: [side, side, 3] uint8; small ones keep their pixels as squares."""
    how = Image.Resampling.NEAREST if picture.width < side else Image.Resampling.LANCZOS
    return np.array(picture.convert("RGB").resize((side, side), how))


def alone(picture: Image.Image, kept: np.ndarray, side: int) -> Image.Image:
    """The picture with the patches dark that do not stay, and a line around the others.

    kept  [G, G] bool
    """
    return _lined(_dimmed(over(picture, side), enlarged(kept, side)), enlarged(kept, side))


def together(picture: Image.Image, first: np.ndarray, second: np.ndarray, side: int) -> Image.Image:
    """The picture with what two choices keep: stripes over what only one of them does, dark what none does.

    first, second  [G, G] bool; the stripes of the first rise, those of the second fall
    """
    pixels = over(picture, side)
    a, b = enlarged(first, side), enlarged(second, side)
    pixels = _striped(_striped(pixels, a & ~b, rises=True), b & ~a, rises=False)
    return _lined(_dimmed(pixels, a | b), a | b)


def shares(picture: Image.Image, share: np.ndarray, limit: float, side: int) -> Image.Image:
    """The image with shares of patches in orange, and a frame around the greatest one.

    share  [G, G] >= 0; limit: the share that has the full colour
    """
    image = overlay(Image.fromarray(over(picture, side)), enlarged(share, side), limit)
    if not share.any():
        return image
    row, column = np.unravel_index(share.argmax(), share.shape)
    where = enlarged(np.arange(share.size).reshape(share.shape), side) == row * share.shape[1] + column
    rows, columns = where.any(1).nonzero()[0], where.any(0).nonzero()[0]
    return framed(image, (float(columns[0]), float(rows[0]), float(columns[-1] + 1), float(rows[-1] + 1)))


def legend(first: np.ndarray, second: np.ndarray, names: tuple[str, str]) -> list[Signed]:
    """How many patches both choices keep, each of them alone, and none; their shares add up to all.

    first, second  [G, G] bool; names: what they are kept for
    """
    white = np.full((SWATCH[1], SWATCH[0], 3), LIGHT, np.uint8)
    every = np.ones(white.shape[:2], bool)
    looks = (
        (white, "clear", "both", first & second),
        (_striped(white, every, rises=True), "rising stripes", f"{names[0]} alone", first & ~second),
        (_striped(white, every, rises=False), "falling stripes", f"{names[1]} alone", second & ~first),
        (_dimmed(white, ~every), "dark", "neither", ~first & ~second),
    )
    return [
        Signed(Image.fromarray(x), alt, f"{name} {of.sum()}, {100 * of.mean():.0f}\N{NO-BREAK SPACE}%")
        for x, alt, name, of in looks
    ]


def counted(kept: np.ndarray) -> str:
    """How many patches that is, and which share.

    >>> counted(np.array([[True, False], [True, True]]))
    '3 of 4 patches, 75 %'
    """
    return f"{kept.sum()} of {kept.size} patches, {100 * kept.mean():.0f} %"


def _dimmed(pixels: np.ndarray, kept: np.ndarray) -> np.ndarray:
    """pixels [H, W, 3], kept [H, W]: where it is False, dark and grey"""
    grey = DIM * (pixels @ np.array([0.299, 0.587, 0.114]))[..., None]
    return np.where(kept[..., None], pixels, np.rint(grey)).astype(np.uint8)


def _striped(pixels: np.ndarray, where: np.ndarray, *, rises: bool) -> np.ndarray:
    """Stripes of a colour between lines of white: orange ones that rise, or blue ones that fall."""
    y, x = np.indices(where.shape)
    at = np.asarray((x + y if rises else x - y) % PERIOD)
    inside = (at >= 1) & (at <= STRIPE)
    stripe = np.where(inside[..., None], FOR if rises else AGAINST, 255)
    return np.where((where & (at <= STRIPE + 1))[..., None], stripe, pixels).astype(np.uint8)


def _lined(pixels: np.ndarray, kept: np.ndarray) -> Image.Image:
    return outlined(Image.fromarray(pixels), kept)
