"""A scene: its objects, its background, and the relations that hold between them.

All geometry is in units of the image's side, x to the right and y down, so a scene does not depend on the
resolution at which it is drawn. A scene is a function of (seed, split, index) and of nothing else.

Every object has a cell of the thirds grid to itself (its position word names that cell) and no two
objects agree in all of size, pattern, colour and shape, so each can be named without doubt.
"""

import hashlib
import math
import random
from collections.abc import Sequence
from itertools import product
from typing import NamedTuple, TypeVar

VERSION = 1  # raised when equal parameters give other images or words; part of the fingerprint

SHAPES = (
    *("circle", "square", "triangle", "star", "ring", "cross"),
    *("heart", "crescent", "arrow", "diamond", "drop", "hourglass"),
)
COLOURS = ("red", "orange", "yellow", "green", "blue", "purple", "pink", "black")
PATTERNS = ("solid", "striped", "dotted", "checkered", "outlined")
RADIUS = {"small": 0.075, "medium": 0.108, "large": 0.153}
SIZES = tuple(RADIUS)
POSITIONS = (  # row by row
    *("upper left", "top", "upper right"),
    *("left", "centre", "right"),
    *("lower left", "bottom", "lower right"),
)
PALE = ("cream", "blue", "grey", "mint", "peach", "lavender")  # of backgrounds, lighter than any object
GROUNDS = ("grass", "sea", "sand", "snow")
SKIES = ("day", "dusk", "cloud")
BACKGROUNDS = ("plain", "gradient", "horizon", "grid", "bands")

SPLITS = ("train", "dev", "test", "compose")
FEWEST, MOST = 3, 8  # objects in a scene

SIZE_CHOICES = ("small", "small", "medium", "large", "large")
FRESH = 0.7  # chance that a shape or a colour is drawn among those that the scene does not hold yet

_MARGIN = 0.03  # of centres from the borders of the thirds, so that position words are unambiguous
_GAP = 0.01  # between the disks around two objects

T = TypeVar("T")


class Thing(NamedTuple):
    """One object. It lies within the disk of `radius` around (x, y), but for the corners of squares."""

    shape: str
    colour: str
    size: str
    pattern: str
    x: float
    y: float
    radius: float

    @property
    def position(self) -> str:
        """The third of the image that holds the centre, as one of POSITIONS."""
        return POSITIONS[3 * min(2, int(3 * self.y)) + min(2, int(3 * self.x))]


class Background(NamedTuple):
    """The surface behind the objects.

    `first` and `second` are two of PALE (top and bottom of a gradient), or one of SKIES above one of GROUNDS;
    kinds of one colour (plain, grid, bands) have an empty `second`.
    """

    kind: str
    first: str
    second: str = ""


class Scene(NamedTuple):
    """Everything there is to know about an image. The caption names the objects in this order."""

    split: str
    things: tuple[Thing, ...]
    background: Background
    speech: int  # seed of the wording


def is_compose_pair(shape: str, colour: str) -> bool:
    """Whether only the split `compose` has the pair: 14 of the 96 pairs, with every shape and colour."""
    return (3 * SHAPES.index(shape) + 5 * COLOURS.index(colour)) % 7 == 0


COMPOSE_PAIRS = tuple(pair for pair in product(SHAPES, COLOURS) if is_compose_pair(*pair))


def sample(seed: int, split: str, index: int) -> Scene:
    """The scene of a position in a split."""
    name = f"{VERSION}:{seed}:{split}:{index}".encode()
    digest = hashlib.blake2b(name, digest_size=16).digest()
    rng = random.Random(int.from_bytes(digest[:8], "big"))
    number = FEWEST + int(rng.random() * (MOST - FEWEST + 1))
    pairs = _pairs(rng, number, rng.choice((2, 2, 3)) if split == "compose" else 0)
    kinds: list[tuple[str, str, str, str]] = []
    for shape, colour in pairs:
        while True:
            kind = (shape, colour, pick(rng, SIZE_CHOICES), pick(rng, PATTERNS))
            if kind not in kinds:
                break
        kinds.append(kind)
    radii = [RADIUS[kind[2]] * (0.97 + 0.06 * rng.random()) for kind in kinds]
    centres = _centres(rng, radii)
    things = tuple(Thing(*kind, x, y, r) for kind, (x, y), r in zip(kinds, centres, radii, strict=True))
    return Scene(split, things, _background(rng), int.from_bytes(digest[8:], "big"))


def draw_value(rng: random.Random, values: Sequence[str], present: Sequence[str]) -> str:
    """A shape or a colour: with the chance FRESH one that is not present yet, else any."""
    if rng.random() < FRESH:
        fresh = [value for value in values if value not in present]
        if fresh:
            return pick(rng, fresh)
    return pick(rng, values)


def pick(rng: random.Random, values: Sequence[T]) -> T:
    """One of the values (several times faster than `rng.choice`)."""
    return values[int(rng.random() * len(values))]


def _pairs(rng: random.Random, number: int, compose_pairs: int) -> list[tuple[str, str]]:
    """(shape, colour) of every object, some of them pairs of the split `compose` at random places."""
    places = set(rng.sample(range(number), compose_pairs))
    pairs: list[tuple[str, str]] = []
    for i in range(number):
        if i in places:
            pairs.append(pick(rng, COMPOSE_PAIRS))
            continue
        while True:
            shape = draw_value(rng, SHAPES, [pair[0] for pair in pairs])
            colour = draw_value(rng, COLOURS, [pair[1] for pair in pairs])
            if not is_compose_pair(shape, colour):
                break
        pairs.append((shape, colour))
    return pairs


def _centres(rng: random.Random, radii: list[float]) -> list[tuple[float, float]]:
    """Centres in different thirds whose disks do not meet, two of them clearly apart in one direction."""
    reach = 1 / 6 - _MARGIN
    largest_first = sorted(range(len(radii)), key=lambda i: -radii[i])
    while True:
        cells = rng.sample(range(9), len(radii))
        centres = [(0.0, 0.0)] * len(radii)
        done: list[tuple[float, float, float]] = []
        for i in largest_first:
            place = _centre(rng, cells[i], radii[i], reach, done)
            if place is None:
                break
            centres[i] = place
            done.append((*place, radii[i]))
        else:
            if any(direction(a, b) for k, a in enumerate(centres) for b in centres[:k]):
                return centres
        reach *= 0.95  # at the centres of the thirds even the largest objects fit


def _centre(
    rng: random.Random, cell: int, r: float, reach: float, done: list[tuple[float, float, float]]
) -> tuple[float, float] | None:
    row, column = divmod(cell, 3)
    low, high = r + 0.01, 0.99 - r
    for _ in range(4):
        x = min(max((column + 0.5) / 3 + reach * (2 * rng.random() - 1), low), high)
        y = min(max((row + 0.5) / 3 + reach * (2 * rng.random() - 1), low), high)
        if all((x - p) ** 2 + (y - q) ** 2 >= (r + s + _GAP) ** 2 for p, q, s in done):
            return x, y
    return None


def _background(rng: random.Random) -> Background:
    kind = pick(rng, BACKGROUNDS)
    if kind == "horizon":
        return Background(kind, pick(rng, SKIES), pick(rng, GROUNDS))
    if kind == "gradient":
        first = pick(rng, PALE)
        return Background(kind, first, pick(rng, [name for name in PALE if name != first]))
    return Background(kind, pick(rng, PALE))


def direction(a: tuple[float, float], b: tuple[float, float]) -> str:
    """The clear direction of a from b: "left", "right", "above", "below", or "" where it is a close call."""
    across, down = a[0] - b[0], a[1] - b[1]
    if max(abs(across), abs(down)) < 0.22:
        return ""
    if abs(across) > 1.3 * abs(down):
        return "left" if across < 0 else "right"
    if abs(down) > 1.3 * abs(across):
        return "above" if down < 0 else "below"
    return ""


OPPOSITE = {
    **{"left": "right", "right": "left", "above": "below", "below": "above"},
    **{"near": "far", "far": "near"},
}


def holds(relation: str, a: Thing, b: Thing) -> bool:
    """Whether "a is `relation` b" is true: left, right, above, below (of the centres), near, far.

    Pairs that are neither near nor far make both false.
    """
    distance = math.hypot(a.x - b.x, a.y - b.y)
    if relation == "near":
        return distance - a.radius - b.radius < 0.1
    if relation == "far":
        return distance > 0.62
    return {"left": a.x < b.x, "right": a.x > b.x, "above": a.y < b.y, "below": a.y > b.y}[relation]


def relations(a: Thing, b: Thing) -> list[str]:
    """The relations of a to b that are clear: at most one direction and one of near and far."""
    side = direction((a.x, a.y), (b.x, b.y))
    return ([side] if side else []) + [name for name in ("near", "far") if holds(name, a, b)]
