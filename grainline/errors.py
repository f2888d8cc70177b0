"""Errors that the user can mend, and numbers in sentences.

Errors that are the user's to mend: one line with what was found, what is allowed and where to look.
"""

import re
import unicodedata

_LONG = re.compile(r"\S{401,}")
TURNING = "\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"  # change the direction of what follows


class UserError(ValueError):
    """A mistake in what we were given, not in our code. The command line prints it without a traceback.

    The message is one line: what was found, what is allowed, where to look.
    """

    def __init__(self, message: str) -> None:
        super().__init__(plain(brief(" ".join(message.split()))))


def brief(text: str) -> str:
    """A text whose words of more than 400 letters, such as a path from a damaged file, are cut.

    >>> brief("x" * 5000 + " b")[395:]
    'xxxxx... (5000 letters) b'
    """
    return _LONG.sub(lambda word: f"{word[0][:400]}... ({len(word[0])} letters)", text)


def plain(text: str) -> str:
    """A text from outside, such as the name of a file, that no terminal obeys: one line, controls as escapes.

    >>> plain("a\\nb \\x1b[2J \\udcff dog")
    'a\\\\nb \\\\x1b[2J \\\\udcff dog'
    """
    return "".join(c.encode("unicode_escape").decode() if _acts(c) else c for c in text)


def _acts(character: str) -> bool:
    return unicodedata.category(character) in ("Cc", "Cs", "Zl", "Zp") or character in TURNING


# Numbers in sentences for people.


def amount(number: int, noun: str) -> str:
    """How many there are of something whose plural ends in s.

    >>> amount(1, "picture"), amount(1200, "picture")
    ('1 picture', '1,200 pictures')
    """
    return f"{number:,} {noun}{'s' * (number != 1)}"


def there_before(number: int, noun: str) -> str:
    """What a command that goes on found done already, in words.

    >>> there_before(1, "tar"), there_before(4, "record")
    ('1 tar was there before', '4 records were there before')
    """
    return f"{amount(number, noun)} {'was' if number == 1 else 'were'} there before"
