"""Configs: frozen, typed, strict about names. A recipe is one YAML file; `a.b=value` changes one field."""

import re
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, Tag, ValidationError

from grainline.errors import UserError

NUMBER = re.compile(r"[-+]?(\d+(\.\d*)?|\.\d+)([eE][-+]?\d+)?")

C = TypeVar("C", bound="Config")


class Config(BaseModel):
    """The settings of one class. Stands above that class, and is its constructor's first argument."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


def parse(cls: type[C], values: dict[str, Any], where: str) -> C:
    """A checked config, or one line that names the first field that is wrong and what it may be.

    where  the file or option the values came from, for the message
    """
    try:
        return cls.model_validate(values)
    except ValidationError as error:
        raise UserError(f"{where}: {_first(error, cls)}") from None


def override(values: dict[str, Any], changes: list[str]) -> dict[str, Any]:
    """Values with `a.b=value` changes applied; the value is read as YAML, so lists and null work too.

    >>> override({"train": {"lr": 0.1, "steps": 5}}, ["train.lr=3e-4", "data.paths=[a, b]"])
    {'train': {'lr': 0.0003, 'steps': 5}, 'data': {'paths': ['a', 'b']}}
    """
    for change in changes:
        path, sign, text = change.partition("=")
        if not sign or not path.strip():
            raise UserError(f"--set {change!r}: write it as name.of.field=value, such as train.steps=500")
        values = _replaced(values, path.strip().split("."), _value(text, change))
    return values


def merged(values: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """Values with others over them: mappings field by field, at any depth; all else, lists too, as a whole.

    >>> merged({"train": {"lr": 0.1, "steps": 5}, "data": [1, 2]}, {"train": {"lr": 0.3}, "data": [3]})
    {'train': {'lr': 0.3, 'steps': 5}, 'data': [3]}
    """
    out = dict(values)
    for name, value in changes.items():
        old = out.get(name)
        if isinstance(old, dict) and isinstance(value, dict):
            value = merged(old, value)
        out[name] = value
    return out


def read_yaml(path: Path) -> dict[str, Any]:
    """The mapping in a YAML file."""
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
    except yaml.YAMLError as error:
        raise UserError(f"{path} is not valid YAML: {error}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path} cannot be read: {error}") from None
    if not isinstance(values, dict):
        raise UserError(f"{path} holds {type(values).__name__}, not a mapping of field names to values")
    return values


def _replaced(values: dict[str, Any], path: list[str], value: Any) -> dict[str, Any]:
    name, *rest = path
    if rest:
        inner = values.get(name, {})
        value = _replaced(inner if isinstance(inner, dict) else {}, rest, value)
    return values | {name: value}


def _value(text: str, change: str) -> Any:
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise UserError(f"--set {change!r}: the value is not valid YAML: {error}") from None
    # YAML 1.1 reads 1e-4 as text; what stands in quotes is meant as text.
    return float(text) if isinstance(value, str) and NUMBER.fullmatch(text.strip()) else value


def _first(error: ValidationError, cls: type[BaseModel]) -> str:
    """One line for the first complaint: the dotted field, what is wrong, what is allowed.

    Names come before what is missing: a mistyped name makes the true one missing too.
    """
    errors = error.errors()
    first = next((one for one in errors if one["type"] == "extra_forbidden"), errors[0])
    loc = [str(part) for part in first["loc"]]
    path, here, _ = _walk(cls, loc)
    field = ".".join(path)
    more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
    if first["type"] == "extra_forbidden":
        _, owner, others = _walk(cls, loc[:-1])
        forms = [c for _, c in owner] + others if len(owner) == 1 else []
        allowed = "; or ".join(", ".join(form.model_fields) for form in forms) or "no such field"
        return f"unknown field {field!r}; allowed here: {allowed}{more}"
    if first["type"] == "missing":
        return f"field {field!r} is missing{more}"
    if first["type"] == "union_tag_not_found":
        tag = first["ctx"]["discriminator"].strip("'")
        tags = ", ".join(str(c.model_fields[tag].default) for _, c in here)
        return f"field '{field}.{tag}' is missing; allowed are {tags}{more}"
    message = first["msg"].removeprefix("Value error, ")
    found = "" if isinstance(first["input"], dict) else f" is {_short(first['input'])}"
    return f"field {field or cls.__name__!r}{found}: {message}{more}"


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


Found = list[tuple[str | None, type[BaseModel]]]
"""Configs that may stand at one place, with the tags they are told apart by where no field of theirs does."""


def _walk(cls: type[BaseModel], loc: list[str]) -> tuple[list[str], Found, list[type[BaseModel]]]:
    """Follow the location of a complaint through the configs; where one of several was chosen it holds a tag.

    Returns the path as the user wrote it, the configs that may stand there, and those that were not chosen.
    """
    path: list[str] = []
    here: Found = [(None, cls)]
    others: list[type[BaseModel]] = []
    for name in loc:
        if len(here) > 1:
            others = [c for tag, c in here if tag is not None and tag != name]
            here = [(tag, c) for tag, c in here if name == tag or _has_default(c, name)]
            path += [] if others else [name]  # a tag that is no field stands in no file
            continue
        path.append(name)
        if here and name in here[0][1].model_fields:
            here, others = _configs_in(here[0][1].model_fields[name].annotation), []
        # else the place in a list, each entry of which is such a config
    return path, here, others


def _has_default(cls: type[BaseModel], name: str) -> bool:
    """Whether a field of the config is there to hold this tag."""
    return any(field.default == name for field in cls.model_fields.values())


def _configs_in(annotation: Any) -> Found:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [(None, annotation)]
    own = next((x.tag for x in getattr(annotation, "__metadata__", ()) if isinstance(x, Tag)), None)
    found = [pair for part in getattr(annotation, "__args__", ()) for pair in _configs_in(part)]
    return [(own or tag, c) for tag, c in found]
