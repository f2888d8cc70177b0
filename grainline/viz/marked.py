"""Two texts that are compared: the words marked that only one of them has."""

import re
from difflib import SequenceMatcher
from html import escape


def marked(one: str, other: str) -> tuple[str, str]:
    """Both texts as HTML, with the words marked that only one of them has.

    >>> marked("A red dog.", "A blue dog.")
    ('A <mark>red</mark> dog.', 'A <mark>blue</mark> dog.')
    """
    a, b = re.findall(r"\s+|\S+", one), re.findall(r"\s+|\S+", other)
    out: tuple[list[str], list[str]] = ([], [])
    for kind, a0, a1, b0, b1 in SequenceMatcher(None, a, b, autojunk=False).get_opcodes():
        for words, into in ((a[a0:a1], out[0]), (b[b0:b1], out[1])):
            text = escape("".join(words))
            into.append(text if kind == "equal" or not text else f"<mark>{text}</mark>")
    return "".join(out[0]), "".join(out[1])
