"""The words in which scenes are described, and phrases of them that know what they state.

A value has two to four names, because every name has to be learnt; the variety is in verbs, sentences and
backgrounds. Names of one attribute fit into the same slot, so a foil reads like any other caption.
"""

import random
import re
from collections.abc import Sequence
from typing import NamedTuple

from grainline.data.scenes.world import Thing, pick

Names = dict[str, tuple[str, ...]]


def _split(texts: str) -> tuple[str, ...]:
    return tuple(" ".join(text.split()) for text in texts.split("|"))


def _names(table: str) -> Names:
    """The names of each value."""
    rows = (row.split(": ") for row in _split(table))
    return {value: tuple(names.split(", ")) for value, names in rows}


NOUNS = _names(
    """circle: circle, disc, round shape | square: square, box | triangle: triangle, wedge |
    star: star, five-pointed star | ring: ring, hoop, doughnut | cross: cross, plus sign |
    heart: heart, heart shape | crescent: crescent, moon, sickle | arrow: arrow, pointer |
    diamond: diamond, rhombus, lozenge | drop: drop, teardrop, raindrop | hourglass: hourglass, egg timer"""
)

ADJECTIVES = {
    "colour": _names(
        """red: red, red, crimson, scarlet | orange: orange, orange, tangerine |
        yellow: yellow, yellow, golden, lemon | green: green, green, emerald |
        blue: blue, blue, cobalt, azure | purple: purple, purple, violet | pink: pink, pink, rosy |
        black: black, black, ebony"""
    ),
    "size": _names(
        "small: small, little, tiny | medium: medium-sized, mid-sized, middling | large: large, big, huge"
    ),
    "pattern": _names(
        """solid: solid, plain | striped: striped, banded | dotted: dotted, spotted |
        checkered: checkered, chequered, checked | outlined: outlined, hollow"""
    ),
}
PATTERN_AFTER = _names(  # behind the noun: "a red star with white stripes"
    """solid: without any markings, in one flat shade | striped: with white stripes, crossed by white bars |
    dotted: with white spots, sprinkled with white dots |
    checkered: with a chessboard pattern, covered in white checks |
    outlined: with a white inside, drawn as an empty outline"""
)

# Names of the nine thirds, each completed by "in" or "at", and usable as the subject of a sentence.
PLACES: Names = {
    "upper left": ("in the upper left corner", "in the top left corner", "at the upper left"),
    "top": ("at the top", "in the middle of the top edge", "at the top centre"),
    "upper right": ("in the upper right corner", "in the top right corner", "at the upper right"),
    "left": ("in the middle of the left side", "at the left edge", "halfway down the left side"),
    "centre": ("in the centre", "in the very middle", "at the centre of the picture"),
    "right": ("in the middle of the right side", "at the right edge", "halfway down the right side"),
    "lower left": ("in the lower left corner", "in the bottom left corner", "at the lower left"),
    "bottom": ("at the bottom", "in the middle of the bottom edge", "at the bottom centre"),
    "lower right": ("in the lower right corner", "in the bottom right corner", "at the lower right"),
}
AREAS = _names(
    """upper left: the upper left corner, the top left area | top: the top centre, the middle of the top row |
    upper right: the upper right corner, the top right area |
    left: the middle of the left side, the left edge | centre: the centre, the middle of the picture |
    right: the middle of the right side, the right edge |
    lower left: the lower left corner, the bottom left area |
    bottom: the bottom centre, the middle of the bottom row |
    lower right: the lower right corner, the bottom right area"""
)
OF_SLOT = ADJECTIVES | {"shape": NOUNS, "after": PATTERN_AFTER, "position": PLACES, "area": AREAS}
"""The names of each value, by the kind of a piece that states it."""

# The i-th phrase of a relation and of its opposite differ in as little as English allows.
RELATIONS: Names = {
    "left": ("to the left of", "left of", "on the left-hand side of", "further left than"),
    "right": ("to the right of", "right of", "on the right-hand side of", "further right than"),
    "above": ("above", "higher than", "higher up than", "somewhere over"),
    "below": ("below", "lower than", "lower down than", "somewhere under"),
    "near": ("close to", "near", "a short way from", "next to"),
    "far": ("far from", "well away from", "a long way from", "nowhere near"),
}

VERBS = _split(
    """sits | lies | stands | rests | appears | is placed | can be seen | is drawn | is shown | is found |
    hangs | floats | shows up | is painted | has been put | is visible | is located | is printed | waits |
    hovers | stays | is pinned | is set | is stuck | dwells | is positioned"""
)
_RELATION_VERBS = "is | is | sits | lies | stands | rests | is placed | appears | is found | is located"
RELATION_VERBS = _split(_RELATION_VERBS)

# {np} is the object, {place} and {area} its position.
PLACED = _split(
    """{np} {verb} {place} | {np} {verb} {place} | {place} {verb} {np} | {place} there is {np} |
    there is {np} {place} | we see {np} {place} | {place} you can make out {np} |
    someone has drawn {np} {place} | {np} has its spot {place} | {area} holds {np} | {area} is taken by {np}
    | {area} belongs to {np} | {area} shows {np} | look {place} for {np} | the artist put {np} {place} |
    {np} has found room {place} | your eye meets {np} {place} | {np} marks {area} | {np} decorates {area} |
    {place} one finds {np}"""
)
UNPLACED = _split(
    """there is {np} | the picture contains {np} | {np} is part of the scene | you can spot {np} here |
    among the shapes is {np} | one of the figures is {np} | we can recognise {np} | {np} catches the eye |
    do not miss {np} | the drawing includes {np} | here we have {np} | one item is {np} | {np} is on view |
    {np} plays a part | notice {np}"""
)
UNPLACED_LATER = UNPLACED + _split(
    """there is also {np} | {np} appears as well | {np} can be seen too | {np} joins in | next comes {np} |
    another figure is {np} | in addition there is {np} | the artist added {np} | {np} is there as well |
    then there is {np} | besides, we find {np}"""
)
RELATED = _split(
    """{a} {verb} {relation} {b} | {a} {verb} {relation} {b} | {relation} {b} {verb} {a} |
    seen from the front, {a} {verb} {relation} {b} | note that {a} {verb} {relation} {b} |
    in this arrangement, {a} {verb} {relation} {b} | we find {a} {relation} {b}"""
)
RELATED_IT = _split(
    """it {verb} {relation} {b} | it {verb} {relation} {b} | this one {verb} {relation} {b} |
    its place is {relation} {b} | you will find it {relation} {b}"""
)

PALE = _names(
    """cream: cream, ivory, off-white | blue: pale blue, light blue, powder-blue |
    grey: light grey, pale grey, silvery | mint: mint, pale green, minty | peach: peach, apricot, salmon |
    lavender: lavender, lilac, mauve"""
)
GROUNDS = _names(
    """grass: a green meadow, fresh grass, a mown lawn, a grassy field |
    sea: a calm sea, open water, a quiet ocean, a still lake |
    sand: a sandy beach, a dry desert, yellow dunes, warm sand |
    snow: a snowy plain, fresh snow, a white winter field, smooth ice"""
)
SKIES = _names(
    """day: a clear sky, a bright daytime sky, a cloudless sky |
    dusk: an evening sky, a pink sunset, a sky at dusk |
    cloud: an overcast sky, a cloudy sky, a dull grey sky"""
)
BACKDROPS: Names = {  # {c} is a pale colour, {d} a second one
    "plain": _split(
        """a {c} background | a {c} sheet of paper | a bare {c} wall | a smooth {c} canvas |
        a flat {c} surface | a {c} card | a blank {c} page | a {c} tablecloth"""
    ),
    "gradient": _split(
        """a background fading from {c} down to {d} | a wash that turns from {c} into {d} |
        a soft gradient from {c} at the top to {d} | a blurred backdrop that melts from {c} into {d} |
        a haze changing gradually from {c} to {d} below"""
    ),
    "grid": _split(
        """a {c} sheet of graph paper | a {c} grid | a {c} tiled floor | a {c} page ruled into squares |
        a {c} mesh of thin lines"""
    ),
    "bands": _split(
        """a {c} wallpaper with broad vertical bands | a {c} curtain with upright stripes |
        a {c} fabric with wide columns | a {c} wall of upright planks"""
    ),
    "horizon": _split(
        """{ground} under {sky} | {ground} that meets {sky} | {ground} beneath {sky} |
        {ground} with {sky} overhead | a landscape of {ground} and {sky}"""
    ),
}
NUMBERS = dict(enumerate(("one", "two", "three", "four", "five", "six", "seven", "eight"), 1))
ALL = ("shapes", "figures", "objects", "items", "things")
SETTING = _split(
    """the background is {ground} | the backdrop is {ground} | behind everything is {ground} |
    the setting is {ground} | everything is set against {ground} | everything is laid out on {ground} |
    the whole scene plays out against {ground} | in total, {n} {all} share {ground} |
    {n} {all} are scattered across {ground} | {n} {all} are spread over {ground} |
    altogether {n} {all} decorate {ground} | the image shows {n} {all} in front of {ground} |
    this illustration has {n} {all} against {ground} | {ground} serves as the setting |
    {ground} forms the background | {ground} carries {n} {all} in all"""
)
GIST = _split(  # the short caption
    """{n} {all} on {ground}, among them {a} and {b}. | {n} {all} including {a} and {b} on {ground}. |
    {a} and {b} among {n} {all} on {ground}. | a picture of {n} {all} with {a} and {b} on {ground}. |
    {a} with {b} and {others} on {ground}."""
)


# Sentences as pieces of text.


class Piece(NamedTuple):
    """Words, and what they state: nothing, a field of Thing, or "relation".

    Two fields have a second slot with words of its own: "after" is a pattern behind the noun, "area" a
    position as the subject of a sentence. The kind "a" is an indefinite article, which the words behind it
    decide.
    """

    text: str
    kind: str = ""


class Line(NamedTuple):
    """A sentence as pieces."""

    pieces: list[Piece]
    kind: str
    things: tuple[int, ...] = ()
    mentions: tuple[tuple[int, int, int], ...] = ()  # thing, first piece, one past the last piece
    relation: str = ""


FIELD = {"after": "pattern", "area": "position"}  # what second slots state

ATTRIBUTES = ("shape", "colour", "size", "pattern", "position")  # what can be stated of an object

Template = tuple[str, ...]  # fields in braces, and the words between them


def split(templates: Sequence[str]) -> list[Template]:
    """Take templates apart."""
    parts = (re.split(r"(\{\w+\})", text) for text in templates)
    return [tuple(part.strip() for part in some if part.strip()) for some in parts]


def fill(template: Template, slots: dict[str, list[Piece]], named: dict[str, int], kind: str) -> Line:
    """A template with its slots filled; `named` has the object of each slot that names one."""
    pieces: list[Piece] = []
    mentions = []
    for part in template:
        if part[0] == "{":
            name = part[1:-1]
            if name in named:
                mentions.append((named[name], len(pieces), len(pieces) + len(slots[name])))
            pieces += slots[name]
        else:
            pieces.append(Piece(part))
    return Line(pieces, kind, tuple(named.values()), tuple(mentions))


def noun_phrase(rng: random.Random, thing: Thing, attributes: list[str], article: str) -> list[Piece]:
    """[article, attributes, noun, perhaps the pattern behind it]; without an article it is "a" or "an"."""
    pieces = [Piece(article) if article else Piece("a", "a")]
    after = ""
    for name in attributes:
        value = getattr(thing, name)
        if name == "pattern" and rng.random() < 0.25:
            after = pick(rng, PATTERN_AFTER[value])
        else:
            pieces.append(Piece(pick(rng, ADJECTIVES[name][value]), name))
    pieces.append(Piece(pick(rng, NOUNS[thing.shape]), "shape"))
    if after:
        pieces.append(Piece(after, "after"))
    return pieces


def reference(rng: random.Random, things: Sequence[Thing], k: int) -> list[Piece]:
    """A definite noun phrase with as many attributes as tell the object from all others."""
    thing = things[k]
    for attributes in (pick(rng, _FAVOURITES), *_ENOUGH):
        stated = {"shape": thing.shape, **{name: getattr(thing, name) for name in attributes}}
        if sum(matches(other, stated) for other in things) == 1:
            break
    return noun_phrase(rng, thing, list(attributes), "the")


# Which attributes a reference prefers, by chance, and what it falls back on until one object is left.
_FAVOURITES = (("colour",), ("colour",), ("colour",), ("pattern",), ("size",), (), ("pattern", "colour"))
_ENOUGH = (
    *(("colour",), ("pattern",), ("size",)),
    *(("size", "colour"), ("pattern", "colour"), ("size", "pattern")),
    ("size", "pattern", "colour"),
)


def matches(thing: Thing, stated: dict[str, str]) -> bool:
    """Whether the object has all of these attributes (keys: shape, colour, size, pattern, position)."""
    return all(getattr(thing, name) == value for name, value in stated.items())


def stated(pieces: Sequence[Piece]) -> tuple[str, ...]:
    """The attributes of an object that some pieces give: fields of Thing, and "position", each once."""
    kinds = (FIELD.get(piece.kind, piece.kind) for piece in pieces)
    return tuple(dict.fromkeys(kind for kind in kinds if kind in ATTRIBUTES))


def an(following: str) -> str:
    """The indefinite article before these

    >>> an("hourglass"), an("orange star"), an("uniform"), an("red star")
    ('an', 'an', 'a', 'a')
    """
    vowel = following.startswith(("a", "e", "i", "o", "u", "hour"))
    return "an" if vowel and not following.startswith(("uni", "one")) else "a"


def text_of(pieces: Sequence[Piece]) -> tuple[str, list[int]]:
    """The words of the pieces, joined by blanks, and where each piece begins; one more entry past the end.

    >>> text_of([Piece("a", "a"), Piece("orange", "colour"), Piece("star", "shape")])
    ('an orange star', [0, 3, 10, 15])
    """
    joined = [an(pieces[i + 1].text) if kind == "a" else text for i, (text, kind) in enumerate(pieces)]
    starts = [0]
    for word in joined:
        starts.append(starts[-1] + len(word) + 1)
    return " ".join(joined), starts


def sentence_of(pieces: Sequence[Piece]) -> tuple[str, list[int]]:
    """The same as a sentence: a capital first, a full stop last."""
    text, starts = text_of(pieces)
    return text[0].upper() + text[1:] + ".", starts
