"""Captions with their annotated phrases, out of records; and the same with their words in another order."""

import re
from collections.abc import Sequence
from itertools import chain, pairwise
from typing import NamedTuple

import numpy as np

from grainline.data.captions import sentences
from grainline.data.record import CORRUPT_REGION, CorruptSample, Record
from grainline.data.tokenizers.tokenized import TextTokenizer

ENDLESS = 2**31 - 1  # a context that truncates nothing


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

    Each word is encoded alone. Where the tokens of all words in a row are those of the whole caption, the
    places are exact. Otherwise they come from the tokenizer, which needs a cleaning that changes nothing but
    capitals and runs of blanks.
    """
    pieces = [(0, text)]
    if parts > 1:
        pieces = [(one.start, one.text) for one in sentences(text)][:parts] or pieces
    out: list[Token] = []
    before = 0  # tokens of earlier parts
    for start, part in pieces:
        (ids,) = tokenizer.encode([part], context).ids
        spans = _spans(tokenizer, part, ids, context, [cut - start for cut in cuts])
        if spans is None:
            return None
        first = before + int(tokenizer.begin is not None)
        out += [Token(start + a, start + b, first + i) for i, (a, b) in enumerate(spans)]
        before += len(ids)
    return out


def word_spans(text: str) -> list[tuple[int, int]]:
    """Where the words of a text stand, separated by blanks.

    >>> word_spans(" a T-shirt .")
    [(1, 2), (3, 10), (11, 12)]
    """
    return [match.span() for match in re.finditer(r"\S+", text)]


def _spans(
    tokenizer: TextTokenizer, part: str, ids: list[int], context: int, cuts: Sequence[int]
) -> list[tuple[int, int]] | None:
    """The characters of each token but begin and end."""
    begin, end = int(tokenizer.begin is not None), int(tokenizer.end is not None)
    whole = ids[begin : len(ids) - end]
    words = word_spans(part)
    further = [
        span for a, b in words for span in pairwise([a, *sorted({cut for cut in cuts if a < cut < b}), b])
    ]
    for spans in (further, words):
        encoded = tokenizer.encode([part[a:b] for a, b in spans], ENDLESS).ids
        pieces = [one[begin : len(one) - end] for one in encoded]
        if list(chain.from_iterable(pieces))[: context - tokenizer.around] == whole:
            return [span for span, piece in zip(spans, pieces, strict=True) for _ in piece][: len(whole)]
    place = [i for a, b in words for i in range(a, b + 1)][:-1]  # with one blank behind a word
    plain, cleaned = " ".join(part.split()), tokenizer.cleaned(part)
    if len(cleaned) != len(plain) or cleaned.lower() != plain.lower() or not place:
        return None
    spans = tokenizer.spans(part, context)
    spans = spans[begin : len(spans) - end]
    return [(place[a], place[b - 1] + 1) if b > a else (place[0], place[0]) for a, b in spans]


Ranges = tuple[tuple[int, int], ...]  # runs of characters, ends excluded


class Caption(NamedTuple):
    """A text and its phrases, each as the characters that it takes."""

    text: str
    phrases: tuple[Ranges, ...]


def captions_of(record: Record) -> list[Caption]:
    """The texts of a record, each with its phrases in their order. A phrase counts once.

    Raises CorruptSample for a phrase in no text of the record, or behind its end.
    """
    named = {f"captions.{i}": text for i, text in enumerate(record.captions)}
    named |= {f"others.{i}": text for i, text in enumerate(record.others)}
    if record.long:
        named["long"] = record.long
    spans: dict[str, set[tuple[int, int]]] = {name: set() for name in named}
    for region in record.regions:
        if region.span is None:
            continue
        name, start, end = region.span
        if name not in named or not 0 <= start < end <= len(named[name]):
            where = f"{name} {start} to {end}"
            raise CorruptSample(CORRUPT_REGION, f"{record.key} ({region.phrase}: no text at {where})")
        spans[name].add((start, end))
    return [Caption(text, tuple((run,) for run in sorted(spans[name]))) for name, text in named.items()]


def segments(caption: Caption, tokens: Sequence[Token]) -> np.ndarray:
    """The tokens of every phrase that has one: [P, L] bool. Phrases that were truncated are left out."""
    gold = np.array(
        [
            [any(max(token.start, a) < min(token.end, b) for a, b in phrase) for token in tokens]
            for phrase in caption.phrases
        ],
        bool,
    ).reshape(len(caption.phrases), len(tokens))
    return gold[gold.any(1)]


def up_to(caption: Caption, end: int) -> Caption:
    """The first characters of a caption, with its phrases cut off there.

    >>> up_to(Caption("a red dog", (((0, 5),), ((6, 9),))), 7)
    Caption(text='a red d', phrases=(((0, 5),), ((6, 7),)))
    """
    phrases = [tuple((a, min(b, end)) for a, b in phrase if a < end) for phrase in caption.phrases]
    return Caption(caption.text[:end], tuple(phrase for phrase in phrases if phrase))


def shuffled(caption: Caption, generator: np.random.Generator) -> tuple[Caption, Caption]:
    """The caption with its words in another order, twice.

    In the first one phrases stay at the places of their words, whatever stands there now. In the second one
    they go with their words.

    >>> a, b = shuffled(Caption("a red dog runs", (((0, 9),),)), np.random.default_rng(0))
    >>> a.text, [a.text[x:y] for x, y in a.phrases[0]], [b.text[x:y] for x, y in b.phrases[0]]
    ('dog a red runs', ['dog', 'a', 'red'], ['dog', 'a', 'red'])
    """
    words = word_spans(caption.text)
    order = generator.permutation(len(words)).tolist()  # the word at each place
    text = " ".join(caption.text[slice(*words[i])] for i in order)
    places = word_spans(text)
    moved = {word: places[place] for place, word in enumerate(order)}
    staying, going = [], []
    for phrase in caption.phrases:
        inside = [  # word, and the characters of it that lie in the phrase
            (i, max(start, a), min(end, b))
            for i, (start, end) in enumerate(words)
            for a, b in phrase
            if max(start, a) < min(end, b)
        ]
        staying.append(tuple(places[i] for i in dict.fromkeys(i for i, _, _ in inside)))
        shifts = [moved[i][0] - words[i][0] for i, _, _ in inside]
        going.append(tuple(sorted((a + by, b + by) for (_, a, b), by in zip(inside, shifts, strict=True))))
    return Caption(text, tuple(staying)), Caption(text, tuple(going))
