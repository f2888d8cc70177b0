"""The captions of a scene: a long one, a short one, and foils that are wrong in one thing.

The long caption has one sentence for every object, in the order of scene.things, one or two about relations,
and one about the background, first or last. It is built of pieces that know what they state; a foil is the
same list of pieces with one of them replaced.

Objects of which a relation is stated have no stated position, so neither can be read off the other.
"""

import random
from collections.abc import Sequence
from itertools import permutations
from typing import Any, NamedTuple

from grainline.data.record import Foil
from grainline.data.scenes import words
from grainline.data.scenes.words import (
    FIELD,
    Line,
    Piece,
    Template,
    an,
    fill,
    matches,
    noun_phrase,
    reference,
    sentence_of,
    split,
    stated,
    text_of,
)
from grainline.data.scenes.world import (
    COLOURS,
    OPPOSITE,
    PATTERNS,
    POSITIONS,
    SHAPES,
    SIZES,
    Scene,
    Thing,
    draw_value,
    holds,
    is_compose_pair,
    pick,
    relations,
)

KINDS = ("colour", "size", "pattern", "position", "relation", "noun")  # of foils; a caption has one of each
_PLACED, _UNPLACED, _UNPLACED_LATER = split(words.PLACED), split(words.UNPLACED), split(words.UNPLACED_LATER)
_RELATED, _RELATED_IT = split(words.RELATED), split(words.RELATED_IT)


class Mention(NamedTuple):
    """A noun phrase of the long caption."""

    thing: int  # index into scene.things
    start: int
    end: int
    pieces: tuple[Piece, ...]  # what it is made of


class Sentence(NamedTuple):
    """A sentence of the long caption, full stop included."""

    kind: str  # "object", "relation", "background"
    things: tuple[int, ...]  # its objects; for a relation first the one that is placed, then the landmark
    start: int
    end: int
    relation: str = ""  # the key of world.OPPOSITE that it states
    stated: tuple[str, ...] = ()  # of its object, if it introduces one: fields of Thing and "position"


class SceneDescription(NamedTuple):
    """All texts of a scene."""

    long: str
    short: str
    mentions: tuple[Mention, ...]
    sentences: tuple[Sentence, ...]
    foils: tuple[Foil, ...]


def tell(scene: Scene) -> SceneDescription:
    """Describe a scene."""
    rng = random.Random(scene.speech)
    number = len(scene.things)
    pairs = _related(rng, scene.things)
    unplaced = {k for pair in pairs for k in pair[:2]}
    if number > len(unplaced) + 3:
        unplaced.add(int(rng.random() * number))
    placed = [k for k in range(number) if k not in unplaced]  # never empty: foils need such an object
    sized, patterned = pick(rng, placed), pick(rng, placed)
    things = enumerate(scene.things)
    objects = [_object(rng, thing, k, k in unplaced, k == sized, k == patterned) for k, thing in things]
    ground = _ground(rng, scene)
    setting = Line([Piece(_fill_in(rng, pick(rng, words.SETTING), number, ground))], "background")
    lines = _ordered(rng, scene.things, objects, pairs)
    lines = [setting, *lines] if rng.random() < 0.45 else [*lines, setting]
    return _rendered(rng, scene, lines, _gist(rng, scene, ground))


def _ordered(
    rng: random.Random, things: Sequence[Thing], objects: list[Line], pairs: list[tuple[int, int, str]]
) -> list[Line]:
    """The sentences about objects in order, and each relation somewhere after both of its objects.

    Right after the second of them that one may be called "it".
    """
    behind: list[list[Line]] = [[] for _ in objects]  # what follows the sentence of an object
    for a, b, relation in pairs:
        later = max(a, b)
        if not behind[later] and rng.random() < 0.35:
            if a != later:
                a, b = b, a
                relation = relation if relation in ("near", "far") else OPPOSITE[relation]
            behind[later].append(_relation(rng, things, (a, b), relation, _RELATED_IT))
        else:
            after = later + int(rng.random() * (len(objects) - later))
            behind[after].append(_relation(rng, things, (a, b), relation, _RELATED))
    return [line for first, more in zip(objects, behind, strict=True) for line in (first, *more)]


def _related(rng: random.Random, things: Sequence[Thing]) -> list[tuple[int, int, str]]:
    """One or two (a, b, relation), the first the pair that stands furthest apart of three drawn ones.

    Only scenes with a near and a far pair mention either, each half of the time: otherwise "far" would be
    likelier than "near" in captions.
    """
    clear = [
        (i, j, names)
        for i, j in permutations(range(len(things)), 2)
        if (names := relations(things[i], things[j])) and names[0] in ("left", "right", "above", "below")
    ]
    tries = [pick(rng, clear) for _ in range(3)]
    x, y = ([thing.x for thing in things], [thing.y for thing in things])
    a, b, names = max(tries, key=lambda p: max(abs(x[p[0]] - x[p[1]]), abs(y[p[0]] - y[p[1]])))
    pairs = [(a, b, names[0])]
    if rng.random() < 0.3:
        near, far = ([p for p in clear if name in p[2]] for name in ("near", "far"))
        if near and far:
            a, b, names = pick(rng, near if rng.random() < 0.5 else far)
            pairs = [(a, b, names[1])]
    if len(things) >= 6 and rng.random() < 0.6:
        more = [p for p in clear if p[0] not in (a, b)]
        if more:
            i, j, names = pick(rng, more)
            pairs.append((i, j, names[0]))
    return pairs


def _object(rng: random.Random, thing: Thing, k: int, unplaced: bool, sized: bool, patterned: bool) -> Line:
    """The sentence that introduces an object."""
    attributes = ["colour"]
    if patterned or rng.random() < 0.72:
        attributes.insert(int(rng.random() < 0.25), "pattern")
    if sized or rng.random() < 0.72:
        attributes.insert(0, "size")
    phrase = noun_phrase(rng, thing, attributes, "one" if rng.random() < 0.06 else "")
    templates = _PLACED if not unplaced else _UNPLACED_LATER if k else _UNPLACED
    slots = {
        "np": phrase,
        "verb": [Piece(pick(rng, words.VERBS))],
        "place": [Piece(pick(rng, words.PLACES[thing.position]), "position")],
        "area": [Piece(pick(rng, words.AREAS[thing.position]), "area")],
    }
    return fill(pick(rng, templates), slots, {"np": k}, "object")


def _relation(
    rng: random.Random,
    things: Sequence[Thing],
    pair: tuple[int, int],
    relation: str,
    templates: list[Template],
) -> Line:
    a, b = pair
    slots = {
        "a": reference(rng, things, a),
        "b": reference(rng, things, b),
        "verb": [Piece(pick(rng, words.RELATION_VERBS))],
        "relation": [Piece(pick(rng, words.RELATIONS[relation]), "relation")],
    }
    line = fill(pick(rng, templates), slots, {"a": a, "b": b}, "relation")
    return line._replace(things=pair, relation=relation)


def _ground(rng: random.Random, scene: Scene) -> str:
    """A noun phrase for the background."""
    kind, first, second = scene.background
    text = pick(rng, words.BACKDROPS[kind])
    if kind == "horizon":
        return text.format(ground=pick(rng, words.GROUNDS[second]), sky=pick(rng, words.SKIES[first]))
    colour = pick(rng, words.PALE[first])
    if text.startswith("a {c}"):
        text = an(colour) + text[1:]
    return text.format(c=colour, d=pick(rng, words.PALE[second]) if second else "")


def _fill_in(rng: random.Random, template: str, number: int, ground: str, **more: str) -> str:
    return template.format(n=words.NUMBERS[number], all=pick(rng, words.ALL), ground=ground, **more)


def _gist(rng: random.Random, scene: Scene, ground: str) -> str:
    """The short caption: how many objects, the two largest, the background."""
    number = len(scene.things)
    first, second = sorted(range(number), key=lambda k: -scene.things[k].radius)[:2]
    phrases = []
    for k in (first, second):
        attributes = ["size", "colour"] if rng.random() < 0.5 else ["colour"]
        phrases.append(text_of(noun_phrase(rng, scene.things[k], attributes, ""))[0])
    a, b = phrases
    others = f"{words.NUMBERS[number - 2]} other shape{'s' if number > 3 else ''}"
    text = _fill_in(rng, pick(rng, words.GIST), number, ground, a=a, b=b, others=others)
    return text[0].upper() + text[1:]


def _rendered(rng: random.Random, scene: Scene, lines: list[Line], short: str) -> SceneDescription:
    texts: list[str] = []
    mentions: list[Mention] = []
    sentences: list[Sentence] = []
    start = 0
    for line in lines:
        text, places = sentence_of(line.pieces)
        for thing, first, last in line.mentions:
            pieces = tuple(line.pieces[first:last])
            mentions.append(Mention(thing, start + places[first], start + places[last] - 1, pieces))
        facts = stated(line.pieces) if line.kind == "object" else ()
        sentences.append(Sentence(line.kind, line.things, start, start + len(text), line.relation, facts))
        texts.append(text)
        start += len(text) + 1
    long = " ".join(texts)

    def foil(kind: str, where: int, piece: int, text: str) -> Foil:
        pieces = list(lines[where].pieces)
        pieces[piece] = pieces[piece]._replace(text=text)
        return Foil(" ".join([*texts[:where], sentence_of(pieces)[0], *texts[where + 1 :]]), long, kind)

    foils = tuple(foil(kind, *altered(rng, scene, lines, kind)) for kind in KINDS)
    return SceneDescription(long, short, tuple(mentions), tuple(sentences), foils)


# Captions and phrases that are wrong in exactly one thing. The text of a foil must not betray it. So a foil
# alters a fact that is stated only once (attributes of objects that no relation sentence names, relations of
# objects without a stated position), the new value is drawn such that "true a, foil b" is as likely as
# "true b, foil a", and its name is drawn as the names in captions are.

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
    pieces = _pieces(lines, _SLOTS[kind])
    candidates = [(i, j) for i, j in pieces if lines[i].kind == "object" and lines[i].things[0] not in twice]
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
            return where, piece, pick(rng, words.OF_SLOT[slot][value])
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
            text = pick(rng, words.OF_SLOT[piece.kind][value])
            new = [*pieces[:j], piece._replace(text=text), *pieces[j + 1 :]]
            out.append(Foil(text_of(new)[0], true, "noun" if name == "shape" else name))
    return tuple(out)


def _pieces(lines: list[Line], kinds: tuple[str, ...]) -> list[tuple[int, int]]:
    pieces = ((i, j, piece) for i, line in enumerate(lines) for j, piece in enumerate(line.pieces))
    return [(i, j) for i, j, piece in pieces if piece.kind in kinds]


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
        # as often small for large as the other way round, and so on, given world.SIZE_CHOICES
        return pick(rng, _OTHER_SIZES[value])
    if name == "pattern":
        return pick(rng, [pattern for pattern in PATTERNS if pattern != value])
    if name == "position":
        occupied = {scene.things[lines[i].things[0]].position for i, _ in _pieces(lines, _SLOTS[name])}
        return pick(rng, [position for position in POSITIONS if position not in occupied])
    others = [getattr(other, name) for i, other in enumerate(scene.things) if i != k]
    while True:
        new = draw_value(rng, COLOURS if name == "colour" else SHAPES, others)
        pair = (thing.shape, new) if name == "colour" else (new, thing.colour)
        if new != value and (scene.split == "compose" or not is_compose_pair(*pair)):
            return new
