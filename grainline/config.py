"""Configs: frozen, typed, strict about names. A recipe is one YAML file; `a.b=value` changes one field."""

import re
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError

from grainline.errors import UserError

NUMBER = re.compile(r"[-+]?(\d+(\.\d*)?|\.\d+)([eE][-+]?\d+)?")

C = TypeVar("C", bound="Config")


class Config(BaseModel):
    """The settings of one class. Stands above that class, and is its constructor's first argument."""

    model_config = ConfigDict(frozen=True, extra="forbid")


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
    """One line for the first complaint: the dotted field, what is wrong, what is allowed."""
    first = error.errors()[0]
    path = [str(part) for part in first["loc"]]
    owner = _owner(cls, path[:-1])
    field = ".".join(path)
    more = f" (and {error.error_count() - 1} more)" if error.error_count() > 1 else ""
    if first["type"] == "extra_forbidden":
        allowed = ", ".join(owner.model_fields) if owner else "no such field"
        return f"unknown field {field!r}; allowed here: {allowed}{more}"
    if first["type"] == "missing":
        return f"field {field!r} is missing{more}"
    if first["type"] == "union_tag_not_found":
        tag = first["ctx"]["discriminator"].strip("'")
        tags = ", ".join(str(c.model_fields[tag].default) for c in _configs_at(cls, path))
        return f"field '{field}.{tag}' is missing; allowed are {tags}{more}"
    message = first["msg"].removeprefix("Value error, ")
    found = "" if isinstance(first["input"], dict) else f" is {_short(first['input'])}"
    return f"field {field or cls.__name__!r}{found}: {message}{more}"


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _owner(cls: type[BaseModel], path: list[str]) -> type[BaseModel] | None:
    """The config class that a dotted path leads to, or None where the path passes something else."""
    found = _configs_at(cls, path)
    return found[0] if len(found) == 1 else None


def _configs_at(cls: type[BaseModel], path: list[str]) -> list[type[BaseModel]]:
    """The config classes that may stand at a dotted path: several where the choice among them is missing."""
    found = [cls]
    for name in path:
        if len(found) > 1:  # the tag of a union chooses one of them
            found = [c for c in found if any(f.default == name for f in c.model_fields.values())]
        elif found and name in found[0].model_fields:
            found = _configs_in(found[0].model_fields[name].annotation)
        # else the place in a list, each entry of which is such a config
    return found


def _configs_in(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [c for part in getattr(annotation, "__args__", ()) for c in _configs_in(part)]
