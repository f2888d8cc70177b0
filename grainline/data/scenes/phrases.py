"""Sentences as pieces of text that know what they state."""

import random
import re
from collections.abc import Sequence
from typing import NamedTuple

from grainline.data.scenes import words
from grainline.data.scenes.world import Thing, pick


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
    return [
        tuple(part.strip() for part in re.split(r"(\{\w+\})", text) if part.strip()) for text in templates
    ]


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
            after = pick(rng, words.PATTERN_AFTER[value])
        else:
            pieces.append(Piece(pick(rng, words.ADJECTIVES[name][value]), name))
    pieces.append(Piece(pick(rng, words.NOUNS[thing.shape]), "shape"))
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
    """The indefinite article before these words.

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
