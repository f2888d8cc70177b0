"""Captions that say the same thing again and again, as generated ones do: repeated pieces and words, once."""

import re

LONG = 100  # characters; a shorter text keeps its repeated pieces
_UNITS = [re.compile(rf"(.{{{least},20}}?)\1{{2,}}") for least in (10, 5, 3)]
_MOST = 10  # replacements by each


def unrepeated(text: str) -> str:
    """The text on one line, without what it repeats; the clean-up of the published code of beta-CLIP.

    In a text of more than 100 characters a piece of 10 (then 5, then 3) to 20 characters that stands three
    times or more in a row stays once; then equal words in a row stay once, in any text.

    >>> unrepeated("a very very red\\nred car")
    'a very red car'
    >>> unrepeated("y" * 120 + " ok")
    'yyyy ok'
    """
    text = text.replace("\n", " ")
    if len(text) > LONG:
        for unit in _UNITS:
            text = unit.sub(r"\1", text, count=_MOST)
    words = text.split()
    return " ".join(word for i, word in enumerate(words) if i == 0 or word != words[i - 1])
