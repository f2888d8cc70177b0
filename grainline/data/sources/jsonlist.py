"""The elements of a JSON list one by one, so that the first rows of a file of gigabytes are cheap."""

import json
import re
from collections.abc import Iterator
from typing import Any

from grainline.data.sources.plain import HELP, once, regular, whole
from grainline.errors import UserError

PIECE = 2**20  # characters read at a time
MOST = 16 * PIECE  # characters of one element: a longer one is taken for damage, so that it fills no memory

_SIGN = re.compile(r"\s*(\S)\s*")
_decode = json.JSONDecoder(object_pairs_hook=once, parse_int=whole).raw_decode


def elements(path: str) -> Iterator[Any]:
    """The elements in order; what stands behind the last one that is asked for is not looked at.

    Raises UserError where the file cannot be read, is no list, or breaks off.
    """
    number = 0
    try:
        regular(path)
        with open(path, encoding="utf-8-sig") as file:
            text, at = file.read(PIECE), 0
            while True:
                try:
                    found = _element(text, at, "," if number else "[")
                except EOFError as error:
                    more = file.read(PIECE)
                    if not more or len(text) - at > MOST:
                        raise ValueError(str(error)) from error
                    text, at = text[at:] + more, 0
                    continue
                if found is None:
                    return
                value, at = found
                number += 1
                yield value
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not UTF-8 text ({error.reason}): convert it") from error
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is no JSON list: element {number + 1} ({error}); {HELP}") from error
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}); {HELP}") from error


def _element(text: str, at: int, mark: str) -> tuple[Any, int] | None:
    """The element after a mark and where it ends, None where the list ends.

    Raises EOFError where more of the text may mend it, ValueError where a wrong sign stands.
    """
    sign = _SIGN.match(text, at)
    if sign is None:
        raise EOFError("the file ends inside the list")
    end = sign.end()
    if mark == "," and sign[1] == "]":
        return None
    if sign[1] != mark:
        raise ValueError(f"{sign[1]!r} stands where {mark!r} is due")
    if mark == "[" and text[end : end + 1] == "]":
        return None
    try:
        value, end = _decode(text, end)
    except json.JSONDecodeError as error:
        raise EOFError(str(error)) from error
    after = _SIGN.match(text, end)
    if after is None:
        raise EOFError("the file ends inside the list")
    if after[1] not in ",]":  # half of a number ends so too: -3 of -3.5
        raise EOFError(f"{after[1]!r} stands behind it")
    return value, end
