"""Configs: frozen, typed, strict about names. A recipe is one YAML file; `a.b=value` changes one field.

Also `load_class`: methods, encoders, sources and suites by name, those of a user by `module:Class`.
"""

import importlib
import os
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, Tag, ValidationError
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
    "|hexagons|texts|hf|python"
)
"""Kinds of data (`SOURCES`) that could be modules: a typed scenes:train names no class."""

TYPED = re.compile(rf"(?<![\w./-])(?:spacy:[^\s'\",\]}}]+|(?!(?:{KINDS}):)[A-Za-z_][\w.]*:[A-Za-z_]\w*)")

C = TypeVar("C", bound="Config")


HUB_NAME = re.compile(r"\w[\w.-]*(/\w[\w.-]*)?")
"""A name of the Hugging Face hub: `owner/model`, or `model` alone for a few old ones."""
HUB_FILE = re.compile(rf"{HUB_NAME.pattern}|\w[\w.-]*/\w[\w.-]*/\w[\w./-]*\.(pt|pth|safetensors)|pip:\S*")
"""And of a file of weights there, `owner/model/file.pt`, or inside a Python package, `pip:NAME`."""


class Config(BaseModel):
    """The settings of one class: defined above it, and the first argument of its constructor."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


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
        raise UserError(f"{where}: {_first(error, cls, [field] * bool(field))}") from None
    for path, given, kind in _swapped(values, config, [field] * bool(field)):
        raise UserError(f"{where}: field {'.'.join(path)!r} is {_short(given)}: it must be {kind}")
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


def _swapped(given: Any, config: Any, path: list[str]) -> Iterator[tuple[list[str], Any, str]]:
    """Fields of which pydantic made a number of true or false, or the other way round, and what they take."""
    if isinstance(config, BaseModel) and isinstance(given, Mapping):
        for name in filter(type(config).model_fields.__contains__, given):
            yield from _swapped(given[name], getattr(config, name), [*path, name])
    elif isinstance(config, tuple) and isinstance(given, list | tuple):
        for i, (one, read) in enumerate(zip(given, config, strict=False)):
            yield from _swapped(one, read, [*path, str(i)])
    elif isinstance(config, bool) and not isinstance(given, bool):
        yield path, given, ALLOWED["bool_type"]
    elif isinstance(config, int | float) and isinstance(given, bool) and not isinstance(config, bool):
        yield path, given, ALLOWED["int_type" if isinstance(config, int) else "float_type"]


ALLOWED = {
    **dict.fromkeys(("int_type", "int_parsing", "int_from_float"), "a whole number"),
    **dict.fromkeys(("float_type", "float_parsing"), "a number"),
    **dict.fromkeys(("bool_type", "bool_parsing"), "true or false"),
    **dict.fromkeys(("tuple_type", "list_type"), "a list"),
    **dict.fromkeys(
        ("model_type", "model_attributes_type", "dict_type"), "a mapping of field names to values"
    ),
    "int_parsing_size": "a smaller whole number",
    "finite_number": "a finite number",
    "greater_than": "more than {gt}",
    "greater_than_equal": "{ge} or more",
    "less_than": "less than {lt}",
    "less_than_equal": "{le} or less",
    "literal_error": "{expected}",
    "union_tag_invalid": "one of {expected_tags}",
    **dict.fromkeys(("string_type", "string_unicode"), "text"),
    "string_too_short": "text with {min_length} or more characters",
    "string_too_long": "text with {max_length} or fewer characters",
    "string_pattern_mismatch": "text of the form {pattern}",
    "missing": "given",
    "extra_forbidden": "left out: no such field",
    "too_short": "a list of {min_length} or more entries",
    "too_long": "a list of {max_length} or fewer entries",
}
"""What a field takes, by the type of pydantic's error."""


def plain(error: Mapping[str, Any]) -> str:
    """What an error of pydantic means: the message of a check of ours, or what the field takes.

    >>> plain({"type": "greater_than", "ctx": {"gt": 0}, "input": -1})
    'it must be more than 0'
    """
    context = error.get("ctx", {})
    if error["type"] == "value_error":
        return str(context["error"])
    bound = error["type"].startswith(("greater_", "less_"))
    kind = "float_type" if bound and isinstance(error["input"], bool) else error["type"]
    context = {k: int(v) if isinstance(v, float) and v.is_integer() else v for k, v in context.items()}
    return f"it must be {ALLOWED.get(kind, 'another value').format_map(context)}"


def _first(error: ValidationError, cls: type[BaseModel], above: list[str]) -> str:
    """One line for the first error: the dotted field, its value, what is allowed.

    above  the field that holds the config, or nothing

    Unknown names come before missing ones: a mistyped name makes the correct one missing too.
    """
    errors: list[Any] = error.errors()
    first = next((e for e in errors if e["type"] == "extra_forbidden"), errors[0])
    loc = [str(part) for part in first["loc"]]
    path, here, _ = _walk(cls, loc)
    field = ".".join([*above, *path])
    same = [e for e in errors if _walk(cls, [str(part) for part in e["loc"]])[0] == path]  # 2 for float | str
    more = f" (and {len(errors) - len(same)} more)" if len(errors) > len(same) else ""
    if first["type"] == "extra_forbidden":
        _, owner, others = _walk(cls, loc[:-1])
        forms = [c for _, c in owner] + others if len(owner) == 1 else []
        allowed = "; or ".join(", ".join(form.model_fields) for form in forms) or "no such field"
        near = suggestion(loc[-1], (name for form in forms for name in form.model_fields))
        dotted = {".".join([*above, name]) for name in _dotted(cls)}
        near = near or suggestion(loc[-1], dotted - {field})
        return f"unknown field {field!r}{near}; allowed here: {allowed}{more}"
    if first["type"] == "missing":
        return f"field {field!r} is missing{more}"
    if first["type"] == "union_tag_not_found":
        tag = first["ctx"]["discriminator"].strip("'")
        tags = ", ".join(str(c.model_fields[tag].default) for _, c in here)
        return f"field '{field}.{tag}' is missing; allowed are {tags}{more}"
    if first["type"] == "invalid_key" or loc[-1:] == ["[key]"]:
        return f"field {field!r}: its name must be text{more}"
    value = "" if isinstance(first["input"], dict) else f" is {_short(first['input'])}"
    if first["type"] == "union_tag_invalid":
        tag = first["ctx"]["discriminator"].strip("'")
        field, value = f"{field}.{tag}", f" is {_short(first['ctx']['tag'])}"
    message = ", or ".join(dict.fromkeys(map(plain, same)))
    return f"field {field!r}{value}: {message}{more}" if field else f"{message}{more}"


def _dotted(cls: type[BaseModel]) -> Iterator[str]:
    """The names of all fields, those of configs inside with dots."""
    for name, field in cls.model_fields.items():
        yield name
        for _, config in _configs_in(field.annotation):
            yield from (f"{name}.{inner}" for inner in _dotted(config))


def _short(value: Any) -> str:
    text = "null" if value is None else str(value).lower() if isinstance(value, bool) else repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


Candidates = list[tuple[str | None, type[BaseModel]]]
"""Configs that may stand at one place, with the tags that distinguish them where no field of theirs does."""


def _walk(cls: type[BaseModel], loc: list[str]) -> tuple[list[str], Candidates, list[type[BaseModel]]]:
    """Follow the location of an error through the configs. Where one of several was used it contains a tag.

    Returns the path as the user wrote it, the configs that may stand there, and the alternatives.
    """
    path: list[str] = []
    here: Candidates = [(None, cls)]
    others: list[type[BaseModel]] = []
    for name in loc:
        if len(here) > 1:
            others = [c for tag, c in here if tag is not None and tag != name]
            fields = {c: c.model_fields.values() for _, c in here}
            here = [(tag, c) for tag, c in here if name in (tag, *(field.default for field in fields[c]))]
            continue  # a tag stands in no file
        if not here and not name.isdigit():
            continue  # one of the types that the field may have
        path.append(name)
        if here and name in here[0][1].model_fields:
            here, others = _configs_in(here[0][1].model_fields[name].annotation), []
        # else the place in a list, each entry of which is such a config
    return path, here, others


def _configs_in(annotation: Any) -> Candidates:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [(None, annotation)]
    own = next((x.tag for x in getattr(annotation, "__metadata__", ()) if isinstance(x, Tag)), None)
    configs = [pair for part in getattr(annotation, "__args__", ()) for pair in _configs_in(part)]
    return [(own or tag, c) for tag, c in configs]
