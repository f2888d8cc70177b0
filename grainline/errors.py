"""`UserError`, whose message is one line; `checked` arguments; paths, counts and lists of names."""

import errno
import inspect
import os
import re
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from difflib import get_close_matches
from functools import cache, wraps
from numbers import Integral, Real
from pathlib import Path
from types import UnionType
from typing import Any, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

F = TypeVar("F", bound=Callable[..., Any])
_WIDER: dict[Any, Any] = {int: Integral, float: Real, Path: os.PathLike}  # what stands for a type as well
_LONG = re.compile(r"\S{401,}")
TURNING = "\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"  # change the direction of what follows


class UserError(ValueError):
    """A wrong input, not a fault of the code. The command line prints it without a traceback.

    The message is one line: what is wrong, what is allowed, where.
    """

    def __init__(self, message: str) -> None:
        super().__init__(escape_controls(shorten_words(" ".join(message.split()))))


class Unreachable(UserError):
    """A server that does not answer: nothing is wrong with the data, which may be read later."""


def stop_if_unreachable(error: BaseException | None) -> None:
    """Raise the `Unreachable` that is behind an error: what could not be read is not damaged."""
    while error is not None:
        if isinstance(error, Unreachable):
            raise error
        error = error.__cause__ or error.__context__


def path_of(value: str | os.PathLike[str], what: str) -> Path:
    """The path that a caller gave as `what`. UserError for an empty one, or one that no file can have."""
    name = os.fspath(value)
    if not name.strip():
        raise UserError(f"{what} is empty, as an unset shell variable is; the folder here is .")
    try:
        os.stat(name)
    except (OSError, ValueError) as error:  # ValueError: a null character
        number, why = getattr(error, "errno", errno.ELOOP), getattr(error, "strerror", error)
        if number in (errno.ELOOP, errno.ENAMETOOLONG):
            raise UserError(f"{what} cannot be {name}: {why}; choose another") from None
    return Path(name)


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
    acts = {c for c in {*text} if unicodedata.category(c) in ("Cc", "Cs", "Zl", "Zp") or c in TURNING}
    return "".join(c.encode("unicode_escape").decode() if c in acts else c for c in text)


def suggestion(name: str, allowed: Iterable[str]) -> str:
    """The nearest three names for a message about an unknown one; empty if none is near.

    >>> suggestion("clip/scene", ["clip/scenes", "siglip/scenes", "tgt/paper"])
    ' (did you mean clip/scenes or siglip/scenes?)'
    >>> suggestion("TGT", ["clip/scenes", "tgt/paper"]), suggestion("max_step", ["train.max_steps", "model"])
    (' (did you mean tgt/paper?)', ' (did you mean train.max_steps?)')
    """
    letters = {one.casefold(): one for one in sorted(set(allowed) - {name}, key=lambda x: (x.count("/"), x))}
    parts, wrong = {one: re.split(r"[/.]", one) for one in letters}, name.casefold()
    near = [one for one in parts if wrong in parts[one]] or get_close_matches(wrong, letters, cutoff=0.7)
    if not near:
        part = get_close_matches(wrong, [part for one in parts.values() for part in one], n=1, cutoff=0.8)
        near = [one for one in parts if {*part} & {*parts[one]}]
    near = [letters[one] for one in near[:3]]
    return f" (did you mean {' or '.join(near)}?)" if near else ""


def checked(**hints: str) -> Callable[[F], F]:
    """A decorator: UserError for an argument of another type than its annotation names.

    hints  what to give instead, by argument; "" for one that the function checks itself
    """

    def decorate(function: F) -> F:
        shape, types = inspect.signature(function), cache(lambda: get_type_hints(function))

        @wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            for name, value in shape.bind_partial(*args, **kwargs).arguments.items():
                allowed, hint = types().get(name, Any), hints.get(name)
                if hint != "" and not _fits(value, allowed):
                    form = re.sub(r"\b\w+\.(?=\w)", "", inspect.formatannotation(allowed))
                    is_now = f"{function.__name__}: {name} is {repr(value)[:60]} ({type(value).__name__})"
                    raise UserError(f"{is_now}; allowed: {form}{'; ' if hint else ''}{hint or ''}")
            return function(*args, **kwargs)

        return cast(F, call)

    return decorate


def _fits(value: Any, allowed: Any) -> bool:
    """Whether a value is of an annotated type; of lists and tuples all entries are looked at."""
    origin, inner = get_origin(allowed), get_args(allowed)
    if origin in (Union, UnionType):
        return any(_fits(value, one) for one in inner)
    if origin is Literal:
        return value in inner
    kind = _WIDER.get(allowed, origin or allowed)
    if kind is Any or not isinstance(kind, type) or getattr(kind, "_is_protocol", False):
        return True
    several = origin in (Sequence, Iterable)
    if several and isinstance(value, list | tuple):
        return all(_fits(one, inner[0]) for one in value)
    wrong: Any = (str, bytes) if several else bool if kind in (Integral, Real) else ()
    return isinstance(value, kind) and not isinstance(value, wrong)


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
