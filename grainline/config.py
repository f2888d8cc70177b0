"""Configs: frozen, typed, strict about names. A recipe is one YAML file; `a.b=value` changes one field."""

from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError

from grainline.errors import UserError

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
            raise UserError(f"--set {change!r}: write it as name.of.field=value, such as train.lr=1e-3")
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
    if isinstance(value, str):  # YAML 1.1 reads 1e-4 as text
        try:
            return float(value)
        except ValueError:
            return value
    return value


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
    message = first["msg"].removeprefix("Value error, ")
    return f"field {field or cls.__name__!r} is {_short(first['input'])}: {message}{more}"


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _owner(cls: type[BaseModel], path: list[str]) -> type[BaseModel] | None:
    """The config class that a dotted path leads to, or None where the path passes something else."""
    owner: type[BaseModel] | None = cls
    for name in path:
        if owner is None:
            return None
        field = owner.model_fields.get(name)
        if field is None:  # a list position or the tag of a union: stay with the owner
            continue
        owner = _config_in(field.annotation)
    return owner


def _config_in(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    found = [c for c in map(_config_in, getattr(annotation, "__args__", ())) if c]
    return found[0] if len(found) == 1 else None
