"""Values of a row or a description, validated by pydantic models, whose `of` raises ValueError in one line.

Checked numbers are finite and fit into 64 bits, checked texts can be encoded.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Annotated, Any, Self, TypeVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from grainline.config import located, plain
from grainline.data.record import Box


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


def _where(holds: Callable[[Any], bool], wrong: str) -> Callable[[Any], Any]:
    """The check of a value that gives it back. Raises ValueError with these words."""

    def check(value: Any) -> Any:
        if not holds(value):
            raise ValueError(wrong)
        return value

    return check


_number_or_text = _where(lambda x: isinstance(x, int | float | str), "an id is a number or a text")
_upright = _where(lambda x: x[0] < x[2] and x[1] < x[3], "a box is left, top, right, bottom")
_with_area = _where(lambda x: x[2] > 0 and x[3] > 0, "a box is left, top, width, height")
_forward = _where(lambda x: x[1] < x[2], "a span is a text, a start and a later end")

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
    """Left, top, right and bottom from left, top, width and height.

    >>> around((1.0, 2.0, 3.0, 4.0))
    (1.0, 2.0, 4.0, 6.0)
    """
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
    return isinstance(rows, list) and any(
        isinstance(row, dict) and all(field in row for field in fields) for row in rows
    )


def brief_json(value: Any) -> str:
    """A value as JSON, shortened for a message.

    >>> brief_json(None), brief_json("a" * 99)[:6], brief_json([3, 0.5, True]), brief_json({"a": 1})
    ('null', '"aaaaa', '[3, 0.5, true]', 'an object')
    """
    if isinstance(value, Mapping):
        return "an object"
    if isinstance(value, list | tuple):
        plain = len(value) < 7 and not any(isinstance(one, Mapping | list | tuple) for one in value)
        return f"[{', '.join(map(brief_json, value))}]" if plain else f"a list of {len(value)}"
    if isinstance(value, int) and value.bit_length() > 64:
        return f"a number of {value.bit_length()} bits"
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
