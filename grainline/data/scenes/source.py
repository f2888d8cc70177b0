"""The procedural world of grainline.data.scenes as a source of records, and as tars.

    scenes                                   50,000 training scenes at 224 pixels
    scenes:dev                               1,000 held-out scenes
    scenes:compose?count=500&size=96&seed=1  scenes with pairs of shape and colour that training never has

Keys: count (scenes), size (pixels of a side), seed, regions (1 adds the noun phrases with their masks, which
takes about a fifth longer; 2 adds foils to each of them as well). Nothing is stored: a record is drawn when
it is read.
"""

import copy
import hashlib
import random
import re
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from grainline.data.formats.common import split_query
from grainline.data.pack import pack
from grainline.data.record import Box, Foil, Record, Region, box_of
from grainline.data.scenes.draw import label_map, render
from grainline.data.scenes.speech import SceneDescription, of_phrase, tell
from grainline.data.scenes.words import matches, stated
from grainline.data.scenes.world import SPLITS, VERSION, Scene, sample
from grainline.errors import UserError

SIZE = 224
COUNT = {"train": 50_000, "dev": 1_000, "test": 1_000, "compose": 1_000}
REGIONS = ("", "phrases", "foils", "expressions")
"""Kinds of regions: none, noun phrases, noun phrases with foils, and expressions that name one object."""
_LIMITS = {"count": (1, 10**9), "size": (32, 2048), "seed": (0, 2**31 - 1), "regions": (0, 2)}
_USE = "such as scenes:dev?count=500&size=96&seed=1"


class Scenes:
    """Scenes by position. The same path and size give the same records, whatever was read before.

    path  `scenes`, optionally `:SPLIT` and `?key=value&...`, as in the head of this file
    size  pixels of a side; used where the path names none, else 224

    Raises UserError on a path that it does not understand.

    >>> source = Scenes("scenes:dev?count=2", size=64)
    >>> len(source), source[1].image.size, source[1].key
    (2, (64, 64), 'scenes-dev-0-000001')
    """

    images_by_path = False

    def __init__(self, path: str, size: int | None = None) -> None:
        self.path = path
        self.split, options = _parse(path)
        self.count = options.get("count", COUNT[self.split])
        self.size = options.get("size") or _checked("size", SIZE if size is None else size, path)
        self.seed = options.get("seed", 0)
        self.regions = REGIONS[options.get("regions", 0)]
        self.with_images = True  # records have images, and regions their masks

    @classmethod
    def open(cls, path: str, images: str | None = None, size: int | None = None) -> "Scenes":  # noqa: ARG003
        """The scenes of a path."""
        return cls(path, size)

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Record:
        """The record at a position: image, a short and a long caption, six foils, perhaps regions."""
        scene = self.scene(index)
        description = tell(scene)
        key, captions, long = self._key(index), (description.short,), description.long
        if not self.with_images:
            spans = ((m.start, m.end) for m in description.mentions)
            bare = tuple(Region(long[start:end], span=("long", start, end)) for start, end in spans)
            return Record(key, b"", captions, long, bare)
        phrases: tuple[Region, ...] = ()
        if self.regions == "expressions":
            phrases = expressions(scene, description, label_map(scene, self.size))
        elif self.regions:
            phrases = regions(description, label_map(scene, self.size))
        if self.regions == "foils":
            phrases = _with_foils(scene, description, phrases)
        return Record(key, render(scene, self.size), captions, long, phrases, description.foils)

    def keys(self) -> Iterable[str]:
        """The keys of all records in order, without drawing any."""
        return map(self._key, range(self.count))

    def boxes(self, index: int) -> tuple[Box, ...]:
        """The boxes of all objects with a visible pixel, in the order of the scene."""
        labels = self.labels(index)
        masks = (labels == thing + 1 for thing in range(len(self.scene(index).things)))
        return tuple(box_of(mask) for mask in masks if mask.any())

    def _key(self, index: int) -> str:
        return f"scenes-{self.split}-{self.seed}-{index:06d}"

    def scene(self, index: int) -> Scene:
        """All that is true of the image at a position."""
        if not 0 <= index < self.count:
            raise IndexError(f"scene {index} of {self.count}")
        return sample(self.seed, self.split, index)

    def labels(self, index: int) -> np.ndarray:
        """Owner of each pixel: [size, size] uint8, 0 for the background, k + 1 for scene(index).things[k]."""
        return label_map(self.scene(index), self.size)

    def description(self, index: int) -> SceneDescription:
        """The texts of the image at a position, with the place of every sentence and noun phrase."""
        return tell(self.scene(index))

    def with_foils(self) -> "Scenes":
        """The same scenes with regions that have foils, as with the key regions=2."""
        return self._variant("foils" if self.regions != "expressions" else self.regions)

    def with_expressions(self) -> "Scenes":
        """The same scenes with `expressions` as their regions."""
        return self._variant("expressions")

    def texts_only(self) -> "Scenes":
        """The same scenes with their captions and noun phrases, and with images of no bytes."""
        return self._variant(self.regions, with_images=False)

    def _variant(self, regions: str, *, with_images: bool | None = None) -> "Scenes":
        other = copy.copy(self)
        other.regions = regions
        other.with_images = self.with_images if with_images is None else with_images
        return other

    def fingerprint(self) -> str:
        """Hex digest of the parameters and of the version of the world."""
        numbers = (self.count, self.size, self.seed)
        facts: tuple[object, ...] = (VERSION, self.split, *numbers, bool(self.regions))
        facts += (self.regions,) if self.regions in ("foils", "expressions") else ()
        return hashlib.sha256(repr(facts).encode()).hexdigest()


def regions(description: SceneDescription, labels: np.ndarray) -> tuple[Region, ...]:
    """The noun phrases of the long caption with the pixels of their objects, in the order of the text.

    labels  [H, W] uint8, as label_map gives it
    """
    return _regions(description, labels, [(m.thing, m.start, m.end) for m in description.mentions])


def expressions(scene: Scene, description: SceneDescription, labels: np.ndarray) -> tuple[Region, ...]:
    """The expressions of the long caption that fit exactly one object, each text once, in their order.

    These are noun phrases, and the sentences that introduce an object.

    labels  [H, W] uint8, as label_map gives it
    """
    named = [(m.thing, m.start, m.end, stated(m.pieces)) for m in description.mentions]
    named += [(s.things[0], s.start, s.end, s.stated) for s in description.sentences if s.kind == "object"]
    once: dict[str, tuple[int, int, int]] = {}
    for k, start, end, names in sorted(named, key=lambda one: one[1:3]):
        facts = {name: getattr(scene.things[k], name) for name in names}
        if sum(matches(thing, facts) for thing in scene.things) == 1:
            once.setdefault(description.long[start:end].lower(), (k, start, end))
    return _regions(description, labels, list(once.values()))


def _regions(
    description: SceneDescription, labels: np.ndarray, places: list[tuple[int, int, int]]
) -> tuple[Region, ...]:
    """places: for each region its object, and where its words begin and end in the long caption"""
    masks = {thing: labels == thing + 1 for thing, _, _ in places}
    boxes = {thing: box_of(mask) for thing, mask in masks.items()}
    text = description.long
    return tuple(Region(text[a:b], boxes[thing], masks[thing], ("long", a, b)) for thing, a, b in places)


def _with_foils(
    scene: Scene, description: SceneDescription, phrases: tuple[Region, ...]
) -> tuple[Region, ...]:
    """The regions with foils, which begin with a capital where their phrase does."""
    rng = random.Random(f"regions of {scene.speech}")
    out = []
    for region, mention in zip(phrases, description.mentions, strict=True):
        capital = region.phrase[0].isupper()
        foils = of_phrase(rng, scene, mention.thing, mention.pieces)
        texts = (foil.text[0].upper() + foil.text[1:] if capital else foil.text for foil in foils)
        new = (Foil(text, region.phrase, foil.kind) for text, foil in zip(texts, foils, strict=True))
        out.append(region._replace(foils=tuple(new)))
    return tuple(out)


def _parse(path: str) -> tuple[str, dict[str, int]]:
    base, options = split_query(path, tuple(_LIMITS))
    head, _, split = base.partition(":")
    split = "train" if base == "scenes" else split
    if head != "scenes" or split not in SPLITS:
        raise UserError(f"data path {path!r}: no split {split!r}; scenes have {', '.join(SPLITS)}, {_USE}")
    for key, value in options.items():
        if not re.fullmatch(r"[0-9]{1,10}", value):
            raise UserError(f"data path {path!r}: {key} is {value!r}; it must be a whole number, {_USE}")
    return split, {key: _checked(key, int(value), path) for key, value in options.items()}


def _checked(key: str, value: int, path: str) -> int:
    low, high = _LIMITS[key]
    if not low <= value <= high:
        raise UserError(f"data path {path!r}: {key} is {value}; it must be from {low} to {high}")
    return value


def export(source: Scenes, out: Path, samples_per_shard: int = 1000) -> list[Path]:
    """Write all scenes with their noun phrases and masks as tars into a folder, as `pack` does."""
    pack(source if source.regions else source._variant("phrases"), out, samples_per_shard)
    return sorted(out.glob("*.tar"))
