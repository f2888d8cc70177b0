"""`UserError`, whose message is one line for the user; counts and lists of names in messages."""

import re
import unicodedata
from collections.abc import Iterable, Sequence
from difflib import get_close_matches

_LONG = re.compile(r"\S{401,}")
TURNING = "\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"  # change the direction of what follows


class UserError(ValueError):
    """A wrong input, not a fault of the code. The command line prints it without a traceback.

    The message is one line: what is wrong, what is allowed, where.
    """

    def __init__(self, message: str) -> None:
        super().__init__(escape_controls(shorten_words(" ".join(message.split()))))


def shorten_words(text: str) -> str:
    """Shorten words of more than 400 letters, such as a path from a damaged file.

    >>> shorten_words("x" * 5000 + " b")[395:]
    'xxxxx... (5000 letters) b'
    """
    return _LONG.sub(lambda word: f"{word[0][:400]}... ({len(word[0])} letters)", text)


def escape_controls(text: str) -> str:
    """Escape control characters, so that a text such as a file name is one line and safe in a terminal.

    >>> escape_controls("a\\nb \\x1b[2J \\udcff dog")
    'a\\\\nb \\\\x1b[2J \\\\udcff dog'
    """
    return "".join(c.encode("unicode_escape").decode() if _acts(c) else c for c in text)


def _acts(character: str) -> bool:
    return unicodedata.category(character) in ("Cc", "Cs", "Zl", "Zp") or character in TURNING


def suggestion(name: str, allowed: Iterable[str]) -> str:
    """The nearest three names for a message about an unknown one; empty if none is near.

    >>> suggestion("clip/scene", ["clip/scenes", "siglip/scenes", "tgt/paper"])
    ' (did you mean clip/scenes or siglip/scenes?)'
    >>> suggestion("TGT", ["clip/scenes", "tgt/paper"]), suggestion("max_step", ["train.max_steps", "model"])
    (' (did you mean tgt/paper?)', ' (did you mean train.max_steps?)')
    """
    letters = {one.casefold(): one for one in sorted(set(allowed) - {name}, key=lambda x: (x.count("/"), x))}
    parts, given = {one: re.split(r"[/.]", one) for one in letters}, name.casefold()
    near = [one for one in parts if given in parts[one]] or get_close_matches(given, letters, cutoff=0.7)
    if not near:
        part = get_close_matches(given, [part for one in parts.values() for part in one], n=1, cutoff=0.8)
        near = [one for one in parts if {*part} & {*parts[one]}]
    near = [letters[one] for one in near[:3]]
    return f" (did you mean {' or '.join(near)}?)" if near else ""


# Numbers in sentences for people.


def amount(number: int, noun: str) -> str:
    """A number with a noun whose plural ends in s.

    >>> amount(1, "image"), amount(1200, "image")
    ('1 image', '1,200 images')
    """
    return f"{number:,} {noun}{'s' * (number != 1)}"


def some(names: Sequence[str], number: int = 3) -> str:
    """The first few names, for a message.

    >>> some(["a", "b", "c", "d"], 2)
    'a, b and 2 more'
    """
    rest = len(names) - number
    return ", ".join(names[:number]) + (f" and {rest} more" if rest > 0 else "")
