"""Which tokens of a caption stand for which of its characters, for any tokenizer that reads word by word.

Each word is encoded alone. Where the tokens of all words, one behind the other, are those of the whole
caption, the map is exact. Cleaning can change characters, so places of characters are asked for only if it is
not; they are used if cleaning changed nothing but the case of letters and runs of blanks.
"""

import re
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from grainline.data.captions import sentences
from grainline.data.tokenized import TextTokenizer

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
