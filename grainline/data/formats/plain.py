"""Files as text and JSON. Only regular files are read (`system.regular`)."""

import io
import json
import math
import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

from grainline.errors import UserError
from grainline.system import open_regular
from grainline.system import read_plain as read_plain
from grainline.system import regular as regular

HELP = "see docs/data.md"


def data_error(message: str) -> UserError:
    """A wrong source of data; the message ends with the page that helps."""
    return UserError(f"{message}; {HELP}")


_DIGITS = 300  # of an integer in JSON; a longer one is infinite, as 1e999 is, and no check accepts that


def text_of(data: bytes, errors: str = "strict") -> str:
    """The text of a file in UTF-8. Raises ValueError.

    errors  "surrogatepass" takes halves of surrogate pairs too, which JSON may hold

    >>> text_of("\\ufeffCaf\\u00e9".encode())
    'Café'
    """
    try:
        return data.decode("utf-8-sig", errors)
    except UnicodeDecodeError as error:
        raise ValueError(f"not UTF-8 text ({error.reason} at byte {error.start})") from None


def read_text(path: str) -> str:
    """A whole text file in UTF-8, line ends as they are. Raises UserError."""
    try:
        return text_of(read_plain(path, 2**62))
    except OSError as error:
        raise data_error(f"{path} cannot be read ({error.strerror})") from error
    except ValueError as error:
        raise data_error(f"{path} is {error}: convert it") from error


def read_lines(path: str) -> list[str]:
    """The texts of a file with one a line, without blank lines. Raises UserError, also where none is left."""
    lines = [line.strip() for line in read_text(path).split("\n") if line.strip()]
    if not lines:
        raise UserError(f"{path} holds no text; expected one text a line")
    return lines


def load_json(path: str) -> Any:
    """The content of a JSON file. Raises UserError."""
    text = read_text(path)
    try:
        return parse_json(text)
    except ValueError as error:
        raise data_error(f"{path} is not JSON: {error}") from error


def parse_json(text: str) -> Any:
    """Parsed JSON. Raises ValueError, also for a key that one object has twice and for too deep nesting.

    >>> parse_json('{"a": [1, 1e999]}')
    {'a': [1, inf]}
    >>> parse_json('{"a": 1, "a": 2}')
    Traceback (most recent call last):
    ValueError: one object has the key 'a' 2 times
    """
    try:
        return json.loads(text, object_pairs_hook=once, parse_int=whole)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object of JSON. Raises ValueError for a key that comes twice: one value would vanish."""
    fields = dict(pairs)
    if len(fields) < len(pairs):
        name, times = Counter(name for name, _ in pairs).most_common(1)[0]
        raise ValueError(f"one object has the key {name[:40]!r} {times} times")
    return fields


def whole(digits: str) -> float:
    """An integer of JSON. Python refuses thousands of digits, and the whole file with them."""
    return int(digits) if len(digits) <= _DIGITS else math.copysign(math.inf, -digits.startswith("-"))


# The elements of a JSON list one by one: the first rows of a file of gigabytes are cheap.

PIECE = 2**20  # characters read at a time
MAX_ELEMENT = 16 * PIECE  # characters of one element: a longer one is an error, a bound on memory

_MARK = re.compile(r"\s*(\[\s*\]|[\[\],])\s*")
_decode = json.JSONDecoder(object_pairs_hook=once, parse_int=whole).raw_decode


def elements(path: str) -> Iterator[Any]:
    """The elements of a JSON list in order, read as they are needed.

    Raises UserError where the file cannot be read, is no list, or breaks off.
    """
    text, at, number = "", 0, 0
    try:
        with io.TextIOWrapper(open_regular(path), encoding="utf-8-sig") as file:
            while True:
                mark = _MARK.match(text, at)
                if mark and mark[1].endswith("]") and (number > 0) == (mark[1] == "]"):
                    return
                try:
                    if mark is None or mark[1] != ("," if number else "["):
                        raise json.JSONDecodeError("no list of elements", text, at)
                    value, end = _decode(text, mark.end())
                    if _MARK.match(text, end) is None:  # half of a number ends so too: -3 of -3.5
                        raise json.JSONDecodeError("the list breaks off", text, end)
                except json.JSONDecodeError as error:
                    more = file.read(PIECE)
                    if not more or len(text) - at > MAX_ELEMENT:
                        raise ValueError(str(error)) from error
                    text, at = text[at:] + more, 0
                    continue
                at, number = end, number + 1
                yield value
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not UTF-8 text ({error.reason}): convert it") from error
    except (ValueError, RecursionError) as error:
        raise data_error(f"{path} is no JSON list: element {number + 1} ({error})") from error
    except OSError as error:
        raise data_error(f"{path} cannot be read ({error.strerror})") from error
