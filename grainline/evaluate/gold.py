"""Captions with their annotated phrases, out of records; and the same with their words in another order."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from grainline.data.causes import DAMAGED_REGION
from grainline.data.record import Damaged, Record
from grainline.evaluate.words import Token, blanks_apart

Ranges = tuple[tuple[int, int], ...]  # runs of characters, ends excluded


class Caption(NamedTuple):
    """A text and its phrases, each as the characters that it takes."""

    text: str
    phrases: tuple[Ranges, ...]

    @property
    def edges(self) -> list[int]:
        """Where phrases begin and end."""
        return sorted({edge for phrase in self.phrases for run in phrase for edge in run})


def captions_of(record: Record) -> list[Caption]:
    """The texts of a record, each with its phrases in their order. A phrase counts once.

    Raises Damaged for a phrase that stands in no text, or beyond its end.
    """
    named = {f"captions.{i}": text for i, text in enumerate(record.captions)}
    named |= {f"others.{i}": text for i, text in enumerate(record.others)}
    if record.long:
        named["long"] = record.long
    found: dict[str, set[tuple[int, int]]] = {name: set() for name in named}
    for region in record.regions:
        if region.span is None:
            continue
        name, start, end = region.span
        if name not in named or not 0 <= start < end <= len(named[name]):
            where = f"{name} {start} to {end}"
            raise Damaged(DAMAGED_REGION, f"{record.key} ({region.phrase}: no text at {where})")
        found[name].add((start, end))
    return [Caption(text, tuple((run,) for run in sorted(found[name]))) for name, text in named.items()]


def segments(caption: Caption, tokens: Sequence[Token]) -> np.ndarray:
    """The tokens of every phrase that has one: [P, L] bool. Those that were cut off are left out."""
    taken = [
        [any(max(token.start, a) < min(token.end, b) for a, b in phrase) for token in tokens]
        for phrase in caption.phrases
    ]
    found = np.array(taken, bool).reshape(len(caption.phrases), len(tokens))
    return found[found.any(1)]


def up_to(caption: Caption, end: int) -> Caption:
    """The beginning of a caption, and what of its phrases lies there.

    >>> up_to(Caption("a red dog", (((0, 5),), ((6, 9),))), 7)
    Caption(text='a red d', phrases=(((0, 5),), ((6, 7),)))
    """
    kept = [tuple((a, min(b, end)) for a, b in phrase if a < end) for phrase in caption.phrases]
    return Caption(caption.text[:end], tuple(phrase for phrase in kept if phrase))


def shuffled(caption: Caption, generator: np.random.Generator) -> tuple[Caption, Caption]:
    """The caption with its words in another order, twice.

    In the first one phrases stay where they were: at the places of their words, whatever stands there now. In
    the second one they go with their words.

    >>> a, b = shuffled(Caption("a red dog runs", (((0, 9),),)), np.random.default_rng(0))
    >>> a.text, [a.text[x:y] for x, y in a.phrases[0]], [b.text[x:y] for x, y in b.phrases[0]]
    ('dog a red runs', ['dog', 'a', 'red'], ['dog', 'a', 'red'])
    """
    words = blanks_apart(caption.text)
    order = generator.permutation(len(words)).tolist()  # the word at each place
    text = " ".join(caption.text[slice(*words[i])] for i in order)
    places = blanks_apart(text)
    moved = {word: places[place] for place, word in enumerate(order)}
    staying, going = [], []
    for phrase in caption.phrases:
        inside = [(i, *both) for i, word in enumerate(words) for both in _shared(word, phrase)]
        staying.append(tuple(places[i] for i in dict.fromkeys(i for i, _, _ in inside)))
        going.append(
            tuple((moved[i][0] + a - words[i][0], moved[i][0] + b - words[i][0]) for i, a, b in inside)
        )
    return Caption(text, tuple(staying)), Caption(text, tuple(tuple(sorted(one)) for one in going))


def _shared(word: tuple[int, int], phrase: Ranges) -> Iterable[tuple[int, int]]:
    """What of a word lies in a phrase."""
    both = ((max(word[0], a), min(word[1], b)) for a, b in phrase)
    return [(a, b) for a, b in both if a < b]
