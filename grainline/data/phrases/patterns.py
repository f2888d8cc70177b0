"""Phrases, from a tagged text to the selection for training; and the interface of a provider of phrases.

Sections 3.1 and 11.1 of beta-CLIP (Zohra et al., arXiv 2512.12678) and its published code, in this order:
  1. noun chunks, and matches of DET? (ADJ|NOUN|PROPN)+ ADP the? SIDE of?; of those that overlap the longest
     stays, the earlier one where they are equally long;
  2. actions: each VERB with the ADP right behind it;
  3. spatial relations, from left to right: "next to", or ADP DET? PLACE of?.

Each step sees all words: "on the left of" is a relation also where it has made a noun phrase longer.
"""

from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple, Protocol

from grainline.data.phrases.lexicon import STOP

SIDES = frozenset({"left", "right", "top", "bottom", "front", "back", "middle", "center"})
PLACES = SIDES | {
    *("inside", "outside", "above", "below", "under", "over", "centered", "frontside", "backside", "near"),
    *("nearby", "far"),
}
NOMINAL = frozenset({"ADJ", "NOUN", "PROPN"})

Keep = Literal["content", "paper", "official"]
Kind = Literal["noun", "action", "relation"]


class Phrase(NamedTuple):
    """A few words of a text: text[start:end]."""

    kind: Kind
    start: int
    end: int


class Token(NamedTuple):
    """A word or mark of a text, with its part of speech in the words of Universal Dependencies."""

    text: str
    start: int
    end: int
    pos: str  # NOUN, PROPN, PRON, DET, ADJ, NUM, VERB, AUX, ADV, ADP, SCONJ, CCONJ, PART, PUNCT, ...


class Tagged(NamedTuple):
    """A sentence or a whole text as a tagger sees it."""

    tokens: list[Token]
    chunks: list[tuple[int, int]]  # noun chunks: first token, one past the last; in order, disjoint


class Provider(Protocol):
    """Phrases of texts. The same text has the same phrases, in any process and in any order of calls."""

    name: str  # what it is and which version; another name may mean other phrases

    def phrases(self, text: str) -> list[Phrase]:
        """All phrases: noun phrases, then actions, then relations, each in the order of the text.

        Nothing is filtered, and no phrase stands twice at one place; `select` does the rest.
        """


def extract(tagged: Tagged) -> list[Phrase]:
    """All phrases of a tagged text, in the order of the steps."""
    tokens = tagged.tokens
    words = [token.text.lower() for token in tokens]
    nouns = longest([*tagged.chunks, *extended(tokens, words)])
    actions = [
        (i, i + 2) for i in range(len(tokens) - 1) if (tokens[i].pos, tokens[i + 1].pos) == ("VERB", "ADP")
    ]
    kinds: tuple[tuple[Kind, Iterable[tuple[int, int]]], ...] = (
        ("noun", nouns),
        ("action", actions),
        ("relation", relations(tokens, words)),
    )
    places = ((kind, first, end - 1) for kind, spans in kinds for first, end in spans)
    return [Phrase(kind, tokens[first].start, tokens[last].end) for kind, first, last in places]


def extended(tokens: Sequence[Token], words: Sequence[str]) -> list[tuple[int, int]]:
    """All matches of DET? (ADJ|NOUN|PROPN)+ ADP the? SIDE of?

    Not the longest alone: where a longer chunk overlaps it, a shorter match may stay.
    """
    spans = []
    for i in range(1, len(tokens) - 1):
        if tokens[i].pos != "ADP" or tokens[i - 1].pos not in NOMINAL:
            continue
        side = i + 1 + (words[i + 1] == "the")
        if side >= len(words) or words[side] not in SIDES:
            continue
        first = i - 1
        while first > 0 and tokens[first - 1].pos in NOMINAL:
            first -= 1
        first -= first > 0 and tokens[first - 1].pos == "DET"
        last = side + 1 + (words[side + 1 : side + 2] == ["of"])
        spans += [(start, end) for start in range(first, i) for end in range(side + 1, last + 1)]
    return spans


def longest(spans: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """The longest of spans that overlap, of equally long ones the first; in the order of the text."""
    disjoint: list[tuple[int, int]] = []
    order = sorted(set(spans), key=lambda span: (span[0] - span[1], span[0]))
    covered = bytearray(max((end for _, end in order), default=0))
    for first, end in order:
        if covered.find(1, first, end) < 0:
            disjoint.append((first, end))
            covered[first:end] = b"\x01" * (end - first)
    return sorted(disjoint)


def relations(tokens: Sequence[Token], words: Sequence[str]) -> list[tuple[int, int]]:
    """ "next to", and ADP DET? PLACE of?; no word belongs to two relations."""
    spans = []
    i = 0
    while i < len(tokens) - 1:
        end = 0
        if words[i : i + 2] == ["next", "to"]:
            end = i + 2
        elif tokens[i].pos == "ADP":
            place = i + 1 + (tokens[i + 1].pos == "DET")
            if place < len(words) and words[place] in PLACES:
                end = place + 1 + (words[place + 1 : place + 2] == ["of"])
        if end:
            spans.append((i, end))
        i = end or i + 1
    return spans


def select(text: str, phrases: Iterable[Phrase], keep: Keep = "content") -> list[Phrase]:
    """The phrases that are worth training on, each once, in the given order.

    official  leaves out "the", "the image" and "image", as the published code does
    paper     leaves out what has fewer than three letters, or nothing but stop words: relations too, because
              next, to, on, in, at, of, the and eight of the twenty places are stop words
    content   both, but relations stay: the filter is for noun phrases and actions

    >>> text = "It is on top of the image of a cat next to it."
    >>> nouns = [Phrase("noun", 0, 2), Phrase("noun", 16, 25), Phrase("noun", 29, 34)]
    >>> found = [*nouns, Phrase("relation", 6, 15)]
    >>> for keep in ("official", "paper", "content"):
    ...     [text[phrase.start : phrase.end] for phrase in select(text, found, keep)]
    ['It', 'a cat', 'on top of']
    ['the image', 'a cat']
    ['a cat', 'on top of']
    """
    selected: dict[str, Phrase] = {}
    for phrase in phrases:
        words = words_of(text, phrase)
        exempt = keep == "official" or (keep == "content" and phrase.kind == "relation")
        dull = not exempt and (len(words) < SHORTEST or all(word in STOP for word in words.lower().split()))
        named = keep != "paper" and words in BARRED
        if not dull and not named:
            selected.setdefault(words, phrase)
    return list(selected.values())


SHORTEST = 3  # characters
BARRED = frozenset({"the", "the image", "image"})


def words_of(text: str, phrase: Phrase) -> str:
    """The phrase as a text of its own: as it stands, relations in small letters."""
    words = text[phrase.start : phrase.end]
    return words.lower() if phrase.kind == "relation" else words
