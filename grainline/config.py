"""Configs: frozen, typed, strict about names. A recipe is one YAML file; `a.b=value` changes one field.

Also `load_class`: methods, encoders, sources and suites by name, those of a user by `module:Class`.
"""

import importlib
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError, model_validator
from pydantic_core import PydanticCustomError
from yaml.composer import ComposerError
from yaml.constructor import ConstructorError
from yaml.error import MarkedYAMLError

from grainline.errors import UserError, suggestion
from grainline.system import read_plain

MAX_DEPTH, MAX_VALUES = 50, 1_000_000
"""Limits of a YAML file: mappings and lists inside each other, and the number of values."""

NUMBER = re.compile(r"[-+]?(\d+(\.\d*)?|\.\d+)([eE][-+]?\d+)?")

TRUSTED: ContextVar[frozenset[str] | None] = ContextVar("trusted", default=frozenset())
"""Names of code outside grainline that may be imported: those that the user typed. None: all of them."""

KINDS = (
    "scenes|tars|folder|classes|table|parquet|json|cola|refcoco|dci|valse|sugarcrepe|docci|iiw|sharegpt4v"
    "|texts|hf|python"
)
"""Kinds of data (`SOURCES`) that could be modules: a typed scenes:train names no class."""

TYPED = re.compile(rf"(?<![\w./-])(?:spacy:[^\s'\",\]}}]+|(?!(?:{KINDS}):)[A-Za-z_][\w.]*:[A-Za-z_]\w*)")

C = TypeVar("C", bound="Config")


HUB_NAME = re.compile(r"\w[\w.-]*(/\w[\w.-]*)?")
"""A name of the Hugging Face hub: `owner/model`, or `model` alone for a few old ones."""
HUB_FILE = re.compile(rf"{HUB_NAME.pattern}|\w[\w.-]*/\w[\w.-]*/\w[\w./-]*\.(pt|pth|safetensors)|pip:\S*")
"""And of a file of weights there, `owner/model/file.pt`, or inside a Python package, `pip:NAME`."""


def require_model_name(name: str | Path) -> None:
    """UserError for a path that is not there and that no model of the hub can have as a name."""
    if HUB_FILE.fullmatch(str(name)) is None:
        raise UserError(
            f"no model at {Path(name).resolve()}, and that is no name of the Hugging Face hub; give the"
            " folder that `grainline train --out` wrote, or a checkpoint of others by its folder, file or"
            " name"
        )


class Config(BaseModel):
    """The settings of one class: defined above it, and the first argument of its constructor."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _has_fields(cls, values: Any) -> Any:
        """Refuse unknown names before missing ones: a mistyped name makes the correct one missing too."""
        known = [field.alias or name for name, field in cls.model_fields.items()]
        for name in values if isinstance(values, Mapping) else ():
            if name not in known:
                raise PydanticCustomError(
                    "unknown_field", "no field {name}", {"name": str(name), "allowed": known}
                )
        return values


@contextmanager
def trusting(*typed: Any, everything: bool = False) -> Iterator[None]:
    """Inside the block, code outside grainline may be imported whose name the user typed.

    typed  what the user typed, nested as it may be: each `module:Class` and spacy:PIPELINE in it counts; a
           string of its own is such a name
    """
    names, before = frozenset(TYPED.findall(repr(typed))), TRUSTED.get()
    names |= {one for one in typed if isinstance(one, str)}
    token = TRUSTED.set(None if everything or before is None else before | names)
    try:
        yield
    finally:
        TRUSTED.reset(token)


def require_trust(name: str, where: str) -> None:
    """UserError for code outside grainline that came out of a file, unless the user typed its name too."""
    trusted, module = TRUSTED.get(), name.removeprefix("spacy:").partition(":")[0]
    if trusted is not None and name not in trusted:
        raise UserError(
            f"{where}: {name} would import the module {module}, which is no part of grainline; if you "
            "trust its code, give trust_code=True, or --trust-code to the command"
        )


def parse(cls: type[C], values: dict[str, Any], where: str, field: str = "") -> C:
    """A checked config. UserError with one line about the first wrong field and its allowed values.

    where  the file or option of the values, for the message
    field  the field of that file with the values; empty: they are the whole file

    true and false are no numbers, and numbers no true and false.
    """
    try:
        config = cls.model_validate(values)
    except ValidationError as error:
        raise UserError(f"{where}: {_first(error, values, [field] * bool(field))}") from None
    for path, value, kind in _swapped(values, config, [field] * bool(field)):
        raise UserError(f"{where}: field {'.'.join(path)!r} is {_short(value)}: it must be {kind}")
    return config


def load_class(name: str, base: type, table: Mapping[str, str], where: str) -> Any:
    """Import the class of a name in a table, or of "my_module:MyClass".

    base   base class that is required
    table  names, and "module:Class" of each
    where  the option, or file and field, of the name, for the message

    Modules are found on sys.path and in the working directory. Raises UserError for an unknown name, a module
    that cannot be imported, another kind of class, and before the import for a name that nobody typed.
    """
    module, attribute = class_path(name, base.__name__.lower(), table, where)
    package, _, inside = module.partition(".")
    if name not in table and (package != __package__ or inside == "__main__"):  # the latter runs a command
        require_trust(name, where)
        if os.getcwd() not in sys.path:  # which `python -m` searches, and `grainline` does not
            sys.path.append(os.getcwd())
    try:
        cls = getattr(importlib.import_module(module), attribute, None)
    except Exception as error:
        raise UserError(f"{where}: {name} cannot be imported: {type(error).__name__}: {error}") from error
    if not isinstance(cls, type) or not issubclass(cls, base):
        raise UserError(f"{where}: {name} is no class derived from {base.__module__}.{base.__qualname__}")
    return cls


def class_path(name: str, kind: str, table: Mapping[str, str], where: str) -> tuple[str, str]:
    """Module and class of a name in a table, or of "my_module:MyClass", without importing anything.

    kind  what it names, for the message of an unknown one
    """
    module, sign, attribute = str(table.get(str(name), name)).partition(":")
    if not sign or not attribute.isidentifier() or not all(part.isidentifier() for part in module.split(".")):
        raise UserError(
            f"{where}: unknown {kind} {_short(name)}{suggestion(str(name), table)};"
            f" allowed are {', '.join(table)}, or module:Class"
        )
    return module, attribute


def override(values: dict[str, Any], changes: list[str]) -> dict[str, Any]:
    """Values with `a.b=value` changes applied; the value is read as YAML, so lists and null work too.

    >>> override({"train": {"lr": 0.1, "steps": 5}}, ["train.lr=3e-4", "data.paths=[a, b]"])
    {'train': {'lr': 0.0003, 'steps': 5}, 'data': {'paths': ['a', 'b']}}
    """
    for change in changes:
        path, sign, text = change.partition("=")
        if not sign or not path.strip() or path.count(".") >= MAX_DEPTH:
            raise UserError(
                f"--set {_short(change)}: write it as name.of.field=value, such as train.max_steps=500"
            )
        values = _replaced(values, path.strip().split("."), _value(text, change))
    return values


def deep_merge(values: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """Values with others over them: mappings field by field, at any depth; all else, lists too, as a whole.

    >>> deep_merge({"train": {"lr": 0.1, "steps": 5}, "data": [1, 2]}, {"train": {"lr": 0.3}, "data": [3]})
    {'train': {'lr': 0.3, 'steps': 5}, 'data': [3]}
    """
    out = dict(values)
    for name, value in changes.items():
        old = out.get(name)
        if isinstance(old, dict) and isinstance(value, dict):
            value = deep_merge(old, value)
        out[name] = value
    return out


def flatten(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested fields as one mapping from dotted names to values.

    >>> flatten({"train": {"lr": 0.1, "log": {}}, "data": [1]})
    {'train.lr': 0.1, 'data': [1]}
    """
    out: dict[str, Any] = {}
    for name, value in values.items():
        out |= flatten(value, f"{prefix}{name}.") if isinstance(value, dict) else {f"{prefix}{name}": value}
    return out


def read_yaml(path: Path) -> dict[str, Any]:
    """The mapping in a YAML file. A name that is given twice is an error."""
    try:
        values = _load(read_plain(path).decode())
    except yaml.YAMLError as error:
        raise UserError(f"{path} is not valid YAML: {_problem(error)}") from None
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise UserError(f"{path} cannot be read: byte {error.start} is no UTF-8") from None
    if not isinstance(values, dict):
        kind = "nothing" if values is None else "a list" if isinstance(values, list) else "a single value"
        raise UserError(f"{path} holds {kind}, not a mapping of field names to values")
    return values


def read_whole(
    path: Path, find: Callable[[str], Path], typed: list[Any] | None = None, above: tuple[Path, ...] = ()
) -> dict[str, Any]:
    """The fields of a recipe over those of its `base`, a path relative to the file or a name.

    find   the file of a recipe, by path or name
    typed  gets the values of files that are the user's own: neither they nor recipes that have them as a base
           lie in a run, which has a model.json
    above  the recipes that have this one as a base, in order
    """
    chain = (*above, path.resolve())
    if path.resolve() in above:
        raise UserError(
            f"recipe {above[0]} has itself as a base: {' -> '.join(map(str, chain))}; drop a base"
        )
    values = read_yaml(path)
    folders = (*path.absolute().parents[:3], *chain[-1].parents[:3])  # it may be a link
    if any(os.path.lexists(folder / "model.json") for folder in folders):
        typed = None
    if typed is not None:
        typed.append(values)
    if "base" not in values:
        return values
    base = values.pop("base")
    if not isinstance(base, str):
        raise UserError(f"{path}: base is {base!r}; it must be the name of a recipe or a .yaml file")
    try:
        below = find(str(path.parent / base) if base.endswith((".yaml", ".yml")) else base)
    except UserError as error:
        raise UserError(f"{path}: base: {error}") from None
    return deep_merge(read_whole(below, find, typed, chain), values)


TYPES = ("str", "int", "float", "bool", "null", "seq", "map")


class _Loader(yaml.SafeLoader):
    """The types of JSON, each name once, not too deep. Errors are YAMLErrors."""

    depth = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.depth == MAX_DEPTH:
            problem = f"more than {MAX_DEPTH} lists and mappings inside each other"
            raise ComposerError(None, None, problem, self.peek_event().start_mark)
        self.depth += 1
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node: yaml.MappingNode = super().compose_mapping_node(anchor)
        names: set[str] = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise ComposerError(None, None, "a name is a list or a mapping", key.start_mark)
            if key.value in names:
                raise ComposerError(None, None, f"{_short(key.value)} is given twice", key.start_mark)
            names.add(key.value)
        return node

    def construct_object(self, node: Any, deep: bool = False) -> Any:
        kind = _type(node.tag)
        if kind not in TYPES:
            raise ConstructorError(None, None, f"there is no type {_short(kind)}", node.start_mark)
        try:
            return super().construct_object(node, deep)
        except (ValueError, LookupError, OverflowError):  # such as !!int y
            problem = f"{_short(node.value)} cannot be read as {kind}"
            raise ConstructorError(None, None, problem, node.start_mark) from None


def _type(tag: str) -> str:
    return tag.removeprefix("tag:yaml.org,2002:")


# A date is text: more likely the name of a folder.
_Loader.yaml_implicit_resolvers = {
    first: [(tag, form) for tag, form in forms if _type(tag) in (*TYPES, "merge")]
    for first, forms in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def _problem(error: yaml.YAMLError) -> str:
    mark = error.problem_mark if isinstance(error, MarkedYAMLError) else None
    return f"{error.problem} (line {mark.line + 1}, column {mark.column + 1})" if mark else str(error)  # type: ignore[attr-defined]


def _load(text: str) -> Any:
    """The content of a YAML text. Raises YAMLError.

    With aliases a short text can hold itself, or an unlimited number of values: both are errors.
    """
    values = yaml.load(text, _Loader)
    number, stack = 0, [values]
    while stack:
        value = stack.pop()
        number += 1
        if number > MAX_VALUES:
            raise yaml.YAMLError(f"it holds more than {MAX_VALUES:,} values, or itself")
        stack += value.values() if isinstance(value, dict) else value if isinstance(value, list) else []
    return values


def _replaced(values: dict[str, Any], path: list[str], value: Any) -> dict[str, Any]:
    name, *rest = path
    if rest:
        inner = values.get(name, {})
        value = _replaced(inner if isinstance(inner, dict) else {}, rest, value)
    return values | {name: value}


def _value(text: str, change: str) -> Any:
    try:
        value = _load(text)
    except yaml.YAMLError as error:
        raise UserError(f"--set {_short(change)}: the value is not valid YAML: {_problem(error)}") from None
    # YAML 1.1 reads 1e-4 as text; a text in quotes stays text.
    return float(text) if isinstance(value, str) and NUMBER.fullmatch(text.strip()) else value


def _swapped(value: Any, config: Any, path: list[str]) -> Iterator[tuple[list[str], Any, str]]:
    """Fields of which pydantic made a number of true or false, or the other way round, and what they take."""
    if isinstance(config, BaseModel) and isinstance(value, Mapping):
        for name in filter(type(config).model_fields.__contains__, value):
            yield from _swapped(value[name], getattr(config, name), [*path, name])
    elif isinstance(config, tuple) and isinstance(value, list | tuple):
        for i, (one, read) in enumerate(zip(value, config, strict=False)):
            yield from _swapped(one, read, [*path, str(i)])
    elif isinstance(config, bool) and not isinstance(value, bool):
        yield path, value, "true or false"
    elif isinstance(config, int | float) and isinstance(value, bool) and not isinstance(config, bool):
        yield path, value, "a number"


def plain(error: Mapping[str, Any]) -> str:
    """The message of an error of pydantic.

    >>> plain({"type": "greater_than", "msg": "Input should be greater than 0"})
    'it must be greater than 0'
    """
    text = str(error["msg"]).removeprefix("Value error, ")
    return text.replace("Input should", "it must").replace("valid tuple", "valid list")


def located(error: Mapping[str, Any], values: Any) -> tuple[list[str], Any]:
    """The names that lead to an error of pydantic in the values as they were written, and the value there.

    A location of pydantic also has the types that a value may have, which stand in no file.
    """
    names: list[str] = []
    for part in error["loc"]:
        inside = isinstance(values, Mapping) and part in values
        inside = inside or (isinstance(values, list | tuple) and isinstance(part, int) and part < len(values))
        if inside:
            names, values = [*names, str(part)], values[part]
        elif error["type"] == "missing" and part == error["loc"][-1]:
            names.append(str(part))
    return names, values


def _first(error: ValidationError, values: Any, above: list[str]) -> str:
    """One line for the first error, unknown fields before others: the field, its value, what is allowed.

    above  the field that holds the config, or nothing
    """
    errors: list[Any] = error.errors(include_url=False)
    first = next((e for e in errors if e["type"] == "unknown_field"), errors[0])
    path = located(first, values)[0]
    if first["type"] == "unknown_field":
        name, allowed = first["ctx"]["name"], first["ctx"]["allowed"]
        near = suggestion(name, allowed)
        known = ", ".join(allowed) or "no field"
        return f"unknown field {'.'.join([*above, *path, name])!r}{near}; allowed here: {known}"
    if first["type"] == "union_tag_not_found":
        path.append(first["ctx"]["discriminator"].strip("'"))
    field = ".".join([*above, *path])
    if first["type"] in ("missing", "union_tag_not_found"):
        return f"field {field!r} is missing"
    value = "" if isinstance(first["input"], dict) else f" is {_short(first['input'])}"
    same = [e for e in errors if located(e, values)[0] == path]  # 2 for float | str
    message = ", or ".join(dict.fromkeys(map(plain, same)))
    return f"field {field!r}{value}: {message}" if field else message


def _short(value: Any) -> str:
    text = "null" if value is None else str(value).lower() if isinstance(value, bool) else repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
