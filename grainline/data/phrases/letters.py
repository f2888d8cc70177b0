"""The letter of a word by itself: its class where it belongs to a closed one, else what its ending allows.

The letters are the classes of words.py, and: N noun, R name, V verb, K the 's of a possessive, Q quotation
mark, "," comma, "." other mark. Open until the neighbours decide (context.py): n without a telling ending,
s in -s, g in -ing, d in -ed.
"""
# ruff: noqa: RUF001 (typographic quotation marks are what this file is about)

import re
from typing import NamedTuple

from grainline.data.phrases import words

NAMEABLE = frozenset("nsgdNRAE")  # what can follow a word that describes it

_WORD = re.compile(r"\w")
_NUMBER = re.compile(r"[\d,.]+(?:st|nd|rd|th|s)?$")
_ADJECTIVE = re.compile(
    r"""(?: [^aeiou]ous | eous | ious | ful | less | able | ible | ish | ical | ..like | ..[ts]ive | ..[uv]lar
    | ..tural | ..cular | ..tal | ...nal | ...ial | ...ic | ...ary | ..rior | ...est
    | (?: nn|zz|gg|ff|dd|ud|ss|sh|ow|rt|sp|ck|az|ok )y )$""",
    re.VERBOSE,
)
_NO_ADJECTIVE = re.compile(  # words with such an ending that are mostly names of things
    r"""(?: fabric|music|traffic|public|logic|topic|graphic|mosaic|forest|harvest|request|vegetable|table
    |fable|cable|dish|fish|radish|material|native|locomotive|metal|portal|medal|pedal|hospital|crystal
    |capital|canal|signal|journal|arsenal|terminal|dial|trial|aerial|interior|exterior|diary|library
    |glossary|primary|detective|captive )$""",
    re.VERBOSE,
)


class Word(NamedTuple):
    """A token before its neighbours are asked."""

    text: str
    low: str
    start: int
    end: int


def alone(word: Word, first: bool) -> str:
    """The letter of a word by itself: its class, or one of the open letters."""
    text, low = word.text, word.low
    if low in ("'s", "’s"):
        return "K"
    if not _WORD.match(text):
        return "," if text == "," else "Q" if text in "\"“”‘’'`«»" else "C" if text == "&" else "."
    if _NUMBER.match(text):
        return "M"
    if text == "A" and not first:
        return "D"
    letter = words.CLASS.get(low)
    if letter == "A" and text[0].isupper() and not first:
        return "R"  # Dr. Brown, OPEN
    if letter is not None:
        return letter
    if text[0].isupper() and not first:
        return "R"
    return _by_ending(low)


def _by_ending(low: str) -> str:
    """The letter of a word of an open class."""
    if low.endswith("ly") and low not in words.NO_LY:
        return "B"
    if low.endswith(("ward", "wards", "wise")):
        return "B"
    if low.endswith("ing") and low not in words.NO_ING and re.search(r"[aeiouy]", low[:-3]):
        return "g"
    if low in words.PARTICIPLES or (low.endswith("ed") and low not in words.NO_ED and len(low) > 3):
        return "d"
    if low.endswith("s") and not low.endswith(("ss", "us", "is")):
        return "s"
    return "A" if _ADJECTIVE.search(low) and not _NO_ADJECTIVE.search(low) else "n"
