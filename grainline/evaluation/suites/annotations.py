"""Captions with their annotated phrases, out of records; and the same with their words in another order."""

import re
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from grainline.data.captions import sentences
from grainline.data.record import CORRUPT_REGION, CorruptSample, Record
from grainline.data.tokenizers.tokenized import TextTokenizer

# Which tokens of a caption stand for which of its characters, for any tokenizer that reads word by word.
#
# Each word is encoded alone. Where the tokens of all words, one behind the other, are those of the whole
# caption, the map is exact. Cleaning can change characters, so places of characters are asked for only if it
# is not; they are used if cleaning changed nothing but the case of letters and runs of blanks.


ENDLESS = 2**31 - 1  # a context that cuts nothing


class Token(NamedTuple):
    """A token of a caption that is neither begin nor end of a text."""

    start: int  # where the characters that it stands for begin in the caption; all those of its word
    end: int
    column: int  # its place among all tokens that a method reads of the caption


def tokens_of(
    tokenizer: TextTokenizer, text: str, context: int, parts: int = 1, cuts: Sequence[int] = ()
) -> list[Token] | None:
    """The tokens of a caption, or None where they cannot be told apart from each other.

    context, parts  as the method reads: several parts are sentences
    cuts            characters at which a word is cut further, if that changes no token: where a phrase ends
                    before the full stop
    """
    out: list[Token] = []
    before = 0  # tokens of earlier parts
    for start, part in _parts(text, parts):
        (ids,) = tokenizer.encode([part], context).ids
        found = _placed(tokenizer, part, ids, context, [cut - start for cut in cuts])
        if found is None:
            return None
        lead = before + int(tokenizer.begin is not None)
        out += [Token(start + a, start + b, lead + i) for i, (a, b) in enumerate(found)]
        before += len(ids)
    return out


def blanks_apart(text: str) -> list[tuple[int, int]]:
    """Where the words of a text stand: what blanks separate.

    >>> blanks_apart(" a T-shirt .")
    [(1, 2), (3, 10), (11, 12)]
    """
    return [match.span() for match in re.finditer(r"\S+", text)]


def _parts(text: str, parts: int) -> list[tuple[int, str]]:
    """What is read of a text in one piece, and where it begins; as `data.parts` has it."""
    if parts == 1:
        return [(0, text)]
    return [(one.start, one.text) for one in sentences(text)][:parts] or [(0, text)]


def _placed(
    tokenizer: TextTokenizer, part: str, ids: list[int], context: int, cuts: Sequence[int]
) -> list[tuple[int, int]] | None:
    """The characters of each token but begin and end."""
    lead, tail = int(tokenizer.begin is not None), int(tokenizer.end is not None)
    whole = ids[lead : len(ids) - tail]
    words = blanks_apart(part)
    for spans in (_cut(words, cuts), words):
        found = tokenizer.encode([part[a:b] for a, b in spans], ENDLESS).ids
        pieces = [one[lead : len(one) - tail] for one in found]
        joined = [number for piece in pieces for number in piece][: context - tokenizer.around]
        if joined == whole:
            places = [span for span, piece in zip(spans, pieces, strict=True) for _ in piece]
            return places[: len(whole)]
    return _by_offsets(tokenizer, part, context, lead, tail)


def _cut(words: Sequence[tuple[int, int]], cuts: Sequence[int]) -> list[tuple[int, int]]:
    """Words cut at some characters."""
    out: list[tuple[int, int]] = []
    for start, end in words:
        edges = [start, *sorted({cut for cut in cuts if start < cut < end}), end]
        out += pairwise(edges)
    return out


def _by_offsets(
    tokenizer: TextTokenizer, part: str, context: int, lead: int, tail: int
) -> list[tuple[int, int]] | None:
    """The same from the places that the tokenizer says, where its cleaning kept every character."""
    place = [i for a, b in blanks_apart(part) for i in range(a, b + 1)][:-1]  # with one blank behind a word
    plain = " ".join(part.split())
    cleaned = tokenizer.cleaned(part)
    if len(cleaned) != len(plain) or cleaned.lower() != plain.lower() or not place:
        return None
    spans = tokenizer.spans(part, context)
    spans = spans[lead : len(spans) - tail]
    return [(place[a], place[b - 1] + 1) if b > a else (place[0], place[0]) for a, b in spans]


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

    Raises CorruptSample for a phrase that stands in no text, or beyond its end.
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
            raise CorruptSample(CORRUPT_REGION, f"{record.key} ({region.phrase}: no text at {where})")
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
