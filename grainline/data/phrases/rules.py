"""Phrases by rule: words of closed classes, endings of the others, and neighbours. Nothing to download.

Every word gets one letter, first by itself (letters.py), then, where that leaves a choice, from what stands
before and behind it (context.py). Noun chunks are a regular expression over the letters.
"""
# ruff: noqa: RUF001 (typographic apostrophes)

import re

from grainline.data.captions import sentences
from grainline.data.phrases import words
from grainline.data.phrases.base import Phrase, Tagged, Token
from grainline.data.phrases.context import Sentence
from grainline.data.phrases.letters import Word
from grainline.data.phrases.patterns import extract

POS = {
    **{"D": "DET", "P": "PRON", "O": "PRON", "M": "NUM", "A": "ADJ", "B": "ADV", "I": "ADP", "C": "CCONJ"},
    **{"S": "SCONJ", "X": "AUX", "T": "PART", "N": "NOUN", "R": "PROPN", "V": "VERB", "K": "PART"},
    **{"E": "NOUN", "Q": "PUNCT", ",": "PUNCT", ".": "PUNCT"},
}

_TITLES = "|".join(sorted(words.INITIALS))
_TOKEN = re.compile(
    rf"""(?i:\b(?:{_TITLES}))\.(?=\s+[A-Z])   # Mt. Wilson
    | \b[A-Z]\.(?=\s*[A-Z])                   # Susan B. Anthony
    | \d[\d,.]*\d(?![\w-]) | ['’]s\b
    | \w+ (?: [-/]\w+ | ['’](?!s\b)\w+ )* | \S""",
    re.VERBOSE,
)
# Words that describe, with commas or "and" between them; behind "is" they are joined by "and" alone, because
# "is full, and white bags" are two phrases. Then the noun, with numbers inside names, and what it possesses.
_ONE = r"B*[AME]"
_MANY = rf"(?:{_ONE}(?:(?:,C?|C)?{_ONE})*)?"
_FEW = rf"(?:{_ONE}(?:C?{_ONE})*)?"
_NOUN = r"(?:[NR]+(?:M[NR]+)*E?|E)"
_OPENED = rf"[DP]+(?:Q(?:[NRAM]+Q(?=[AMNR]))?)?{_MANY}"  # the, the "EXIT" (sign)
CHUNK = re.compile(rf"(?:{_OPENED}|(?<!X){_MANY}|{_FEW}){_NOUN}(?:K{_MANY}{_NOUN})*")


class Rules:
    """The built-in provider."""

    name = "rules 1"

    def phrases(self, text: str) -> list[Phrase]:
        """As `Provider.phrases`.

        >>> text = "Two men lean against a wall on the left of the old house."
        >>> [text[p.start : p.end] for p in Rules().phrases(text)]
        ['Two men', 'a wall on the left of', 'the old house', 'lean against', 'on the left of']
        """
        return extract(tagged(text))


def tagged(text: str) -> Tagged:
    """The tokens and noun chunks of all sentences of a text."""
    tokens: list[Token] = []
    chunks: list[tuple[int, int]] = []
    for sentence in sentences(text):
        found = [
            Word(m.group(), m.group().lower(), sentence.start + m.start(), sentence.start + m.end())
            for m in _TOKEN.finditer(sentence.text)
        ]
        letters = "".join(Sentence(found).letters)
        first = len(tokens)
        tokens += [
            Token(w.text, w.start, w.end, POS[letter]) for w, letter in zip(found, letters, strict=True)
        ]
        chunks += [(first + m.start(), first + m.end()) for m in CHUNK.finditer(letters)]
    return Tagged(tokens, chunks)
