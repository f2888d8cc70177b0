"""Files as text and JSON, and values of a row or a description, masks too, as pydantic models validate them.

Only regular files are read (`system.regular`). Validated numbers are finite and fit into 64 bits, and texts
can be encoded; `Fields.of` raises ValueError in one line.
"""

import io
import json
import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Annotated, Any, Self, TypeVar

import numpy as np
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from grainline.config import located, plain
from grainline.data.decode import MAX_PIXELS
from grainline.data.formats.storage import open_regular, read_plain
from grainline.data.record import HELP as HELP
from grainline.data.record import Box
from grainline.data.record import data_error as data_error
from grainline.errors import UserError, stop_if_unreachable

_DIGITS = 300  # of an integer in JSON; a longer one is infinite, as 1e999 is, and no check accepts that


def text_of(data: bytes, errors: str = "strict") -> str:
    """The text of a file in UTF-8. Raises ValueError. errors: "surrogatepass" takes lone surrogates too"""
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
        stop_if_unreachable(error)
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
    """Parsed JSON. Raises ValueError, also for a key that one object has twice and for too deep nesting."""
    try:
        return _DECODER.decode(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object of JSON. Raises ValueError for a key that comes twice: one value would vanish."""
    fields = dict(pairs)
    if len(fields) < len(pairs):
        name, times = Counter(name for name, _ in pairs).most_common(1)[0]
        raise ValueError(f"one object has the key {name[:40]!r} {times} times")
    return fields


def _whole(digits: str) -> float:
    """An integer of JSON. Python refuses thousands of digits, and the whole file with them."""
    return int(digits) if len(digits) <= _DIGITS else math.copysign(math.inf, -digits.startswith("-"))


# The elements of a JSON list one by one: the first rows of a file of gigabytes are cheap.

PIECE = 2**20  # characters read at a time
MAX_ELEMENT = 16 * PIECE  # characters of one element: a longer one is an error, a bound on memory

_MARK = re.compile(r"\s*(\[\s*\]|[\[\],])\s*")
_DECODER = json.JSONDecoder(object_pairs_hook=_once, parse_int=_whole)


def elements(path: str) -> Iterator[Any]:
    """The elements of a JSON list in order, read as they are needed.

    Raises UserError where the file cannot be read, is no list, or breaks off.
    """
    text, start, number = "", 0, 0
    try:
        with io.TextIOWrapper(open_regular(path), encoding="utf-8-sig") as file:
            while True:
                mark = _MARK.match(text, start)
                if mark and mark[1].endswith("]") and (number > 0) == (mark[1] == "]"):
                    return
                try:
                    if mark is None or mark[1] != ("," if number else "["):
                        raise json.JSONDecodeError("no list of elements", text, start)
                    value, end = _DECODER.raw_decode(text, mark.end())
                    if _MARK.match(text, end) is None:  # half of a number ends so too: -3 of -3.5
                        raise json.JSONDecodeError("the list breaks off", text, end)
                except json.JSONDecodeError as error:
                    more = file.read(PIECE)
                    if not more or len(text) - start > MAX_ELEMENT:
                        raise ValueError(str(error)) from error
                    text, start = text[start:] + more, 0
                    continue
                start, number = end, number + 1
                yield value
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not UTF-8 text ({error.reason}): convert it") from error
    except (ValueError, RecursionError) as error:
        stop_if_unreachable(error)
        raise data_error(f"{path} is no JSON list: element {number + 1} ({error})") from error
    except OSError as error:
        raise data_error(f"{path} cannot be read ({error.strerror})") from error


class Fields(BaseModel):
    """Base of the models: the fields of one object that are read; others are ignored."""

    model_config = ConfigDict(frozen=True, allow_inf_nan=False, arbitrary_types_allowed=True)

    @classmethod
    def of(cls, value: Any) -> Self:
        """Checked values. Raises ValueError, one line."""
        try:
            return cls.model_validate(value)
        except ValidationError as error:
            raise ValueError(_complaint(error, value)) from None


F = TypeVar("F", bound=Fields)
EMPTY_CELLS = {"nan", "-nan", "nat", "null", "none", "<na>", "na", "n/a", "#na", "#n/a"}  # of pandas and SQL
_INVISIBLE = re.compile(  # blanks, controls, and what Unicode lets a font leave out
    r"[\s\x00-\x1f\x7f-\x9f\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e"
    r"\u2060-\u206f\u2800\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb\ud800-\udfff\U000e0000-\U000e0fff]*"
)


def strings(value: Any) -> list[str]:
    """One text or many as a list of clean strings; empty cells of tables and anything else are no text.

    >>> strings(" A dog. "), strings(["A cat.", None, "", "nan", "\\u200b"]), strings(7)
    (['A dog.'], ['A cat.'], [])
    """
    values = [value] if isinstance(value, str) else value if isinstance(value, list | tuple) else []
    clean = (_visible(text) for text in values if isinstance(text, str))
    return [text for text in clean if text and text.lower() not in EMPTY_CELLS]


def _visible(text: str) -> str:
    """The text without blanks at its ends; "" for invisible characters alone."""
    return "" if _INVISIBLE.fullmatch(text) else printable(text.strip())


def printable(text: str) -> str:
    """The text with `?` for halves of surrogate pairs, which JSON can hold and UTF-8 cannot encode."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode("utf-8")


def where(holds: Callable[[Any], bool], wrong: str) -> Callable[[Any], Any]:
    """The check of a value that gives it back. Raises ValueError with these words."""

    def check(value: Any) -> Any:
        if not holds(value):
            raise ValueError(wrong)
        return value

    return check


_number_or_text = where(lambda x: isinstance(x, int | float | str), "an id is a number or a text")
_upright = where(lambda x: x[0] < x[2] and x[1] < x[3], "a box is left, top, right, bottom")
_with_area = where(lambda x: x[2] > 0 and x[3] > 0, "a box is left, top, width, height")
_forward = where(lambda x: x[1] < x[2], "a span is a text, a start and a later end")

Id = Annotated[Annotated[int, Field(ge=-(2**62), le=2**62)] | str, BeforeValidator(_number_or_text)]
Whole = Annotated[int, Field(ge=0, le=2**53)]
Side = Annotated[int, Field(ge=1, le=2**20)]  # of an image, in pixels
Pixels = Annotated[float, Field(ge=-(2.0**31), le=2.0**31)]
Text = Annotated[str, BeforeValidator(lambda x: (_visible(x) or None) if isinstance(x, str) else x)]
Words = Annotated[str, BeforeValidator(lambda value: printable(value) if isinstance(value, str) else value)]
Upright = Annotated[tuple[Pixels, Pixels, Pixels, Pixels], AfterValidator(_upright)]
Extent = Annotated[tuple[Pixels, Pixels, Pixels, Pixels], AfterValidator(_with_area)]
Stretch = Annotated[tuple[str, Whole, Whole], AfterValidator(_forward)]


def around(extent: Box) -> Box:
    """Left, top, right and bottom from left, top, width and height."""
    left, top, width, height = extent
    return left, top, left + width, top + height


def checked(kind: type[F], rows: Sequence[Any], name: str) -> Iterator[tuple[str, F | None, str]]:
    """Validate rows: for each its place, such as "images[3]", its values or None, and the error."""
    for number, row in enumerate(rows):
        try:
            yield f"{name}[{number}]", kind.of(row), ""
        except ValueError as error:
            yield f"{name}[{number}]", None, str(error)


def has_rows(data: Any, name: str, fields: Sequence[str]) -> bool:
    """Whether parsed JSON is an object with a list of this name, and one row in it has these fields."""
    rows = data.get(name) if isinstance(data, dict) else None
    objects = [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []
    return any(all(field in row for field in fields) for row in objects)


def brief_json(value: Any) -> str:
    """A value as JSON, shortened for a message."""
    if isinstance(value, Mapping):
        return "an object"
    if isinstance(value, list | tuple):
        plain = len(value) < 7 and not any(isinstance(one, Mapping | list | tuple) for one in value)
        return f"[{', '.join(map(brief_json, value))}]" if plain else f"a list of {len(value)}"
    try:
        text = json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError):
        text = f"a {type(value).__name__}"
    return text if len(text) <= 60 else f"{text[:57]}..."


def _complaint(error: ValidationError, value: Any) -> str:
    """The first error in one line: "regions.0.box is [3, 0, 1, 1]: a box is left, top, right, bottom"."""
    first = error.errors(include_url=False)[0]
    names, value = located(first, value)
    name = ".".join(names)
    if first["type"] == "missing" and isinstance(value, list | tuple):  # a list that ends before this place
        return f"{'.'.join(names[:-1])} is {brief_json(value)}: too short, it has {len(value)}"
    if first["type"] == "missing":
        return f"no {name}"
    message = re.sub("a valid dictionary.*", "an object", plain(first))
    return f"{name or 'it'} is {brief_json(value)}: {message}"


# Masks as JSON, in the forms of COCO's files:
#
# rows of 0 and 1
# {size: [height, width], counts: [zeros, ones, zeros, ...]}   a run-length code down the columns
# {size: [height, width], counts: "61X13mN000`0"}              the same, packed into a string
# [[x, y, x, y, ...], ...]                                     polygons in pixels (`polygons_mask`)


class _Runs(Fields):
    size: tuple[Side, Side]  # height and width
    counts: Annotated[
        tuple[Whole, ...], BeforeValidator(lambda v: unpacked(v) if isinstance(v, str | bytes) else v)
    ]


def read_mask(value: Any) -> np.ndarray:
    """A mask [H, W] bool from rows or from a run-length code. Raises ValueError."""
    if isinstance(value, Mapping):
        (height, width), counts = (code := _Runs.of(value)).size, code.counts
        if height * width > MAX_PIXELS:
            raise ValueError(f"a mask of {height} x {width} pixels, more than {MAX_PIXELS}")
        if sum(counts) != height * width:  # before that much is allocated
            raise ValueError(f"the runs of a mask add up to {sum(counts)}, not to {height} x {width}")
        flat = np.repeat(np.arange(len(counts)) % 2 == 1, counts)
        return flat.reshape(width, height).T
    try:
        rows = np.asarray(value)
    except ValueError:  # rows of unequal length
        rows = np.empty(0)
    if rows.ndim != 2 or rows.dtype.kind not in "biu":
        raise ValueError("a mask is rows of 0 and 1, or {size, counts}")
    return rows.astype(bool)


Mask = Annotated[np.ndarray, BeforeValidator(read_mask)]


def run_lengths(mask: np.ndarray) -> dict[str, list[int]]:
    """The run-length code of a mask [H, W] bool, zeros first."""
    flat = mask.T.reshape(-1)
    edges = np.flatnonzero(flat[1:] != flat[:-1]) + 1
    counts = np.diff(edges, prepend=0, append=len(flat)).tolist()
    return {"size": list(mask.shape), "counts": [0, *counts] if flat[0] else counts}


def unpacked(text: str | bytes) -> list[int]:
    """The counts of a packed run-length code. Raises ValueError.

    A character is 48 plus six bits: five of the number, the lowest first, and one that says that more of it
    follow; the last five are signed. From the fourth on, a number is the difference to the one before last.

    >>> unpacked("61X13mN000`0")
    [6, 1, 40, 4, 5, 4, 5, 4, 21]
    """
    counts: list[int] = []
    number = shift = 0
    for byte in text.encode() if isinstance(text, str) else text:
        bits = byte - 48
        if not 0 <= bits < 64 or shift > 60:
            raise ValueError("the packed counts of a mask hold characters that are none of theirs")
        number |= (bits & 31) << shift
        shift += 5
        if bits & 32:
            continue
        if bits & 16:
            number -= 1 << shift
        counts.append(number + (counts[-2] if len(counts) > 2 else 0))
        number = shift = 0
    if shift:
        raise ValueError("the packed counts of a mask end in the middle of a number")
    return counts


def polygons_mask(polygons: Sequence[Sequence[float]], height: int, width: int) -> np.ndarray:
    """The pixels whose centres lie inside any of some polygons: [H, W] bool. Raises ValueError, TypeError.

    polygons  each x, y, x, y, ... in pixels, from the upper left corner of the image; closed by itself

    A polygon that crosses itself is empty where it is wound twice. Pillow draws outlines too, so that a
    square of side 10 would have 121 pixels.
    """
    out = np.zeros((height, width), bool)
    for polygon in polygons:
        points = np.asarray(polygon, np.float64)
        if points.ndim != 1 or len(points) < 6 or len(points) % 2 or not np.isfinite(points).all():
            raise ValueError("a polygon is a list of three points or more: x, y, x, y, ...")
        out |= _inside(points.reshape(-1, 2), height, width)
    return out


def _inside(points: np.ndarray, height: int, width: int) -> np.ndarray:
    """A pixel is inside if its row crosses the outline an odd number of times left of its centre."""
    x, y = points.T
    to_x, to_y = np.roll(points, -1, axis=0).T
    crossings = np.zeros((height, width + 1), np.int64)  # that begin to count at a column
    middles = np.arange(height) + 0.5
    for i in np.flatnonzero(y != to_y):
        rows = np.flatnonzero((middles >= min(y[i], to_y[i])) & (middles < max(y[i], to_y[i])))
        places = x[i] + (middles[rows] - y[i]) * (to_x[i] - x[i]) / (to_y[i] - y[i])
        crossings[rows, np.clip(np.ceil(places - 0.5), 0, width).astype(np.int64)] += 1
    return crossings.cumsum(1)[:, :width] % 2 == 1
