"""Captions and phrases that are wrong in exactly one thing: which piece to replace, by which words.

The text of a foil must not betray it. So a foil alters a fact that is stated only once (attributes of objects
that no relation sentence names, relations of objects without a stated position), the new value is drawn such
that "true a, foil b" is as likely as "true b, foil a", and its name is drawn as the names in captions are.
"""

import random
from collections.abc import Sequence
from typing import Any

from grainline.data.record import Foil
from grainline.data.scenes import words
from grainline.data.scenes.phrases import FIELD, Line, Piece, matches, stated, text_of
from grainline.data.scenes.world import (
    COLOURS,
    OPPOSITE,
    PATTERNS,
    POSITIONS,
    SHAPES,
    SIZES,
    Scene,
    draw_value,
    holds,
    is_compose_pair,
    pick,
)

KINDS = ("colour", "size", "pattern", "position", "relation", "noun")  # every caption has one of each

_SLOTS = {  # which pieces a foil of this kind may replace
    "colour": ("colour",),
    "size": ("size",),
    "pattern": ("pattern", "after"),
    "position": ("position", "area"),
    "noun": ("shape",),
}


def altered(rng: random.Random, scene: Scene, lines: list[Line], kind: str) -> tuple[int, int, str]:
    """(line, piece, new words) such that the caption becomes false of the scene. `kind` is one of KINDS."""
    if kind == "relation":
        where, piece = pick(rng, _pieces(lines, ("relation",)))
        relation = lines[where].relation
        opposite = OPPOSITE[relation]
        a, b = (scene.things[k] for k in lines[where].things)
        assert not holds(opposite, a, b)
        same = words.RELATIONS[relation].index(lines[where].pieces[piece].text)
        return where, piece, words.RELATIONS[opposite][same]
    twice = {k for line in lines if line.kind == "relation" for k in line.things}
    once = [line if line.kind == "object" and line.things[0] not in twice else Line([], "") for line in lines]
    candidates = _pieces(once, _SLOTS[kind])
    for attempt in range(1000):
        where, piece = pick(rng, candidates)
        k = lines[where].things[0]
        slot = lines[where].pieces[piece].kind
        name = FIELD.get(slot, slot)
        value = _other(rng, scene, lines, k, name)
        stated_here = {s: getattr(scene.things[k], s) for s in stated(lines[where].pieces)} | {name: value}
        if name != "position" and attempt < 30:
            stated_here.pop("position", None)  # best when the altered object is to be found nowhere at all
        if not any(matches(thing, stated_here) for thing in scene.things):
            return where, piece, _named(rng, slot, value)
    raise AssertionError(f"no foil of {kind} for {scene}")


_EVERY = {"colour": COLOURS, "pattern": PATTERNS, "size": SIZES, "shape": SHAPES}


def of_phrase(rng: random.Random, scene: Scene, k: int, pieces: Sequence[Piece]) -> tuple[Foil, ...]:
    """The noun phrase `pieces` of object k with one attribute changed, once for each other value of it.

    Kinds are "colour", "pattern", "size" and "noun". The phrases are wrong of this object; another one of the
    scene may fit them. Pairs of shape and colour of the split `compose` occur in that split only: a text that
    training never had would be known to be wrong.
    """
    thing, true = scene.things[k], text_of(pieces)[0]
    out = []
    for j, piece in enumerate(pieces):
        name = FIELD.get(piece.kind, piece.kind)
        for value in _EVERY.get(name, ()):
            changed: dict[str, Any] = {name: value}
            other = thing._replace(**changed)
            if other == thing or (scene.split != "compose" and is_compose_pair(other.shape, other.colour)):
                continue
            new = [*pieces[:j], piece._replace(text=_named(rng, piece.kind, value)), *pieces[j + 1 :]]
            out.append(Foil(text_of(new)[0], true, "noun" if name == "shape" else name))
    return tuple(out)


def _pieces(lines: list[Line], kinds: tuple[str, ...]) -> list[tuple[int, int]]:
    return [
        (i, j) for i, line in enumerate(lines) for j, piece in enumerate(line.pieces) if piece.kind in kinds
    ]


_OTHER_SIZES = {
    "small": ("large", "large", "large", "medium"),
    "medium": ("small", "large"),
    "large": ("small", "small", "small", "medium"),
}


def _other(rng: random.Random, scene: Scene, lines: list[Line], k: int, name: str) -> str:
    """Another value for an attribute of an object."""
    thing = scene.things[k]
    value = getattr(thing, name)
    if name == "size":
        # as often small for large as the other way round, and so on, given world.SIZE_DRAWN_FROM
        return pick(rng, _OTHER_SIZES[value])
    if name == "pattern":
        return pick(rng, [pattern for pattern in PATTERNS if pattern != value])
    if name == "position":
        introduced = [line for line in lines if line.kind == "object"]
        occupied = [
            scene.things[introduced[i].things[0]].position for i, _ in _pieces(introduced, _SLOTS[name])
        ]
        return pick(rng, [position for position in POSITIONS if position not in occupied])
    others = [getattr(other, name) for i, other in enumerate(scene.things) if i != k]
    while True:
        new = draw_value(rng, COLOURS if name == "colour" else SHAPES, others)
        pair = (thing.shape, new) if name == "colour" else (new, thing.colour)
        if new != value and (scene.split == "compose" or not is_compose_pair(*pair)):
            return new


def _named(rng: random.Random, slot: str, value: str) -> str:
    names = {
        "shape": words.NOUNS,
        "after": words.PATTERN_AFTER,
        "position": words.PLACES,
        "area": words.AREAS,
    }
    return pick(rng, (names.get(slot) or words.ADJECTIVES[slot])[value])
