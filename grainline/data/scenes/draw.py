"""A scene as an image and as a map of labels, at any resolution.

Shapes are drawn once per (shape, pattern, size in pixels), several times larger than needed, reduced, and
cached; an image is a background and one or two pastes per object. Edges are smooth in the image; in the map
a pixel belongs to the topmost object that covers at least half of it.
"""

import math
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from PIL import Image, ImageDraw

from grainline.data.scenes.world import Background, Scene, Thing

RGB = tuple[int, int, int]


def _colours(table: str) -> dict[str, RGB]:
    """Colours by name, from names and the hexadecimal digits of red, green and blue."""
    pairs = (row.split() for row in table.split("|"))
    return {name: (*bytes.fromhex(digits),) for name, digits in pairs}


COLOUR = _colours(
    """red dc1e23 | orange fa820a | yellow f5d200 | green 199632 |
    blue 1e50dc | purple 7d28a5 | pink ff73b9 | black 191919"""
)
PALE = _colours("cream faf0d6 | blue cde2f6 | grey dcdddf | mint d0f0da | peach fedcc8 | lavender e4daf6")
SKY = _colours("day bedefa | dusk facdc4 | cloud d4d7de")
GROUND = _colours("grass b2dc98 | sea 8cbce2 | sand f0daa4 | snow f4f8fc")
WHITE = (255, 255, 255)
HORIZON = 0.5  # share of the height that is sky


def render(scene: Scene, size: int) -> Image.Image:
    """The scene as an RGB image of size x size pixels."""
    image = _background(scene.background, size).copy()
    for thing in scene.things:
        sprite, left, top = _placed(thing, size)
        image.paste(COLOUR[thing.colour], (left, top), sprite.whole)
        if sprite.white is not None:
            image.paste(WHITE, (left, top), sprite.white)
    return image


def label_map(scene: Scene, size: int) -> np.ndarray:
    """The owner of each pixel: [size, size] uint8, 0 for the background and k + 1 for scene.things[k]."""
    image = Image.new("L", (size, size))
    for k, thing in enumerate(scene.things):
        sprite, left, top = _placed(thing, size)
        image.paste(k + 1, (left, top), sprite.half)
    return np.asarray(image)


class Sprite(NamedTuple):
    """One shape in one pattern, as masks over its own square."""

    whole: Image.Image  # how much of each pixel the shape covers
    half: Image.Image  # 255 where that is at least half
    white: Image.Image | None  # how much of each pixel is white; the rest has the object's colour


def _placed(thing: Thing, size: int) -> tuple[Sprite, int, int]:
    side = max(5, round(2 * thing.radius * size))
    left, top = (round(middle * size - side / 2) for middle in (thing.x, thing.y))
    return _sprite(thing.shape, thing.pattern, side), left, top


@lru_cache(maxsize=4096)
def _sprite(shape: str, pattern: str, side: int) -> Sprite:
    fine = 8 if side < 32 else 4
    inside = _shape(shape, side * fine)
    white = _white(pattern, inside, fine)
    whole = _coverage(inside, fine)
    half = whole.point(lambda v: 255 * (v >= 128))
    return Sprite(whole, half, _coverage(white, fine) if white.any() else None)


def _coverage(mask: np.ndarray, fine: int) -> Image.Image:
    return Image.fromarray(mask.astype(np.uint8) * 255).reduce(fine)


def _shape(shape: str, side: int) -> np.ndarray:
    """[side, side] bool, True inside the shape."""
    v, u = np.mgrid[0:side, 0:side] * (2 / side) + (1 / side - 1)  # -1 to 1: down, across
    if shape == "circle":
        return u**2 + v**2 <= 0.96
    if shape == "ring":
        return (u**2 + v**2 <= 1) & (u**2 + v**2 >= 0.2)
    if shape == "crescent":
        return (u**2 + v**2 <= 1) & ((u - 0.5) ** 2 + (v + 0.1) ** 2 >= 0.62)
    image = Image.new("1", (side, side))
    points = [((1 + x) * side / 2 - 0.5, (1 + y) * side / 2 - 0.5) for x, y in OUTLINES[shape]]
    ImageDraw.Draw(image).polygon(points, fill=1)
    return np.asarray(image)


def _heart() -> list[tuple[float, float]]:
    turns = [2 * math.pi * i / 60 for i in range(60)]
    wave = [13 * math.cos(t) - 5 * math.cos(2 * t) - 2 * math.cos(3 * t) - math.cos(4 * t) for t in turns]
    return [(math.sin(t) ** 3, -0.06 - w / 16.2) for t, w in zip(turns, wave, strict=True)]


def _drop() -> list[tuple[float, float]]:
    turns = [math.pi * i / 30 for i in range(-10, 41)]  # the round part; the tip is above
    return [(0.66 * math.cos(t), 0.34 + 0.66 * math.sin(t)) for t in turns] + [(0.0, -1.0)]


def _star() -> list[tuple[float, float]]:
    spokes = [(1.06 if i % 2 == 0 else 0.44, math.pi * i / 5) for i in range(10)]
    return [(r * math.sin(t), 0.06 - r * math.cos(t)) for r, t in spokes]


OUTLINES: dict[str, list[tuple[float, float]]] = {
    "square": [(-0.83, -0.83), (0.83, -0.83), (0.83, 0.83), (-0.83, 0.83)],
    "triangle": [(0, -0.95), (1, 0.8), (-1, 0.8)],
    "star": _star(),
    "cross": [
        *[(-0.34, -1), (0.34, -1), (0.34, -0.34), (1, -0.34), (1, 0.34), (0.34, 0.34)],
        *[(0.34, 1), (-0.34, 1), (-0.34, 0.34), (-1, 0.34), (-1, -0.34), (-0.34, -0.34)],
    ],
    "heart": _heart(),
    "arrow": [(1, 0), (0.1, -0.95), (0.1, -0.38), (-1, -0.38), (-1, 0.38), (0.1, 0.38), (0.1, 0.95)],
    "diamond": [(0, -1), (0.78, 0), (0, 1), (-0.78, 0)],
    "drop": _drop(),
    "hourglass": [(-0.85, -1), (0.85, -1), (0.16, 0), (0.85, 1), (-0.85, 1), (-0.16, 0)],
}


def _white(pattern: str, inside: np.ndarray, fine: int) -> np.ndarray:
    """Pixels where the pattern is white instead of the object's colour, never at the rim. [side, side] bool.

    inside  [side, side] bool, the shape
    fine    side of a pixel of the image: stripes, cells and dots are whole pixels, or small ones would blur
    """
    if pattern == "solid":
        return np.zeros_like(inside)
    side = len(inside)
    if pattern == "outlined":
        return _eroded(inside, max(1, round(0.11 * side)))
    inner = _eroded(inside, max(1, round(0.04 * side)))  # pale shapes on pale ground need a rim
    share = {"striped": 0.16, "checkered": 0.22, "dotted": 0.15}[pattern]
    step = fine * max(2, round(share * side / fine))
    down, across = np.mgrid[0:side, 0:side] - side // 2
    if pattern == "striped":
        return inner & ((down // step) % 2 == 0)
    if pattern == "checkered":
        return inner & ((down // step + across // step) % 2 == 0)
    # dots of one step across, two steps apart, every other row shifted by one
    row = down // (2 * step)
    u, v = (across + step * (row % 2) + step / 2) % (2 * step) - step, down % (2 * step) - step
    return inner & (u**2 + v**2 <= (0.62 * step) ** 2)


def _eroded(mask: np.ndarray, width: int) -> np.ndarray:
    """The mask without its border of `width` pixels."""
    padded = np.pad(mask, width)
    left = mask.copy()
    for i in range(16):
        down, across = (round(width * f(math.pi * i / 8)) for f in (math.sin, math.cos))
        left &= padded[width + down :, width + across :][: len(mask), : len(mask)]
    return left


@lru_cache(maxsize=128)
def _background(background: Background, size: int) -> Image.Image:
    kind, first, second = background
    rows = np.arange(size)[:, None, None] / size + 0.5 / size  # [size, 1, 1] height in the image
    columns = np.arange(size)[None, :, None] / size + 0.5 / size
    if kind == "horizon":
        pixels = np.where(rows < HORIZON, SKY[first], GROUND[second]).astype(float)
    elif kind == "gradient":
        pixels = (1 - rows) * np.array(PALE[first]) + rows * np.array(PALE[second])
    else:
        pixels = np.broadcast_to(np.array(PALE[first], float), (size, size, 3)).copy()
        line = max(1, round(size / 64)) / size
        if kind == "grid":
            pixels = np.where((rows % 0.125 < line) | (columns % 0.125 < line), pixels - 28, pixels)
        elif kind == "bands":
            pixels = np.where(columns % 0.25 < 0.125, pixels - 16, pixels)
    full = np.broadcast_to(np.clip(pixels, 0, 255), (size, size, 3))
    return Image.fromarray(np.ascontiguousarray(full.round().astype(np.uint8)))
