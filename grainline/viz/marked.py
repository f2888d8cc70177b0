"""Two texts that are compared: the words marked that only one of them has."""

import re
from difflib import SequenceMatcher

from markupsafe import Markup

MARK = Markup("<mark>{}</mark>")


def marked(one: str, other: str) -> tuple[Markup, Markup]:
    """Both texts as HTML, with the words marked that only one of them has.

    >>> marked("A red dog.", "A blue dog.")
    (Markup('A <mark>red</mark> dog.'), Markup('A <mark>blue</mark> dog.'))
    """
    a, b = re.findall(r"\s+|\S+", one), re.findall(r"\s+|\S+", other)
    first, second = Markup(), Markup()
    for kind, a0, a1, b0, b1 in SequenceMatcher(None, a, b, autojunk=False).get_opcodes():
        form = Markup("{}") if kind == "equal" else MARK
        first += form.format("".join(a[a0:a1])) if a0 < a1 else ""
        second += form.format("".join(b[b0:b1])) if b0 < b1 else ""
    return first, second
