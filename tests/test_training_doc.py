"""The table of fields in docs/training.md against the configs: names, and the defaults of triplet methods."""

import re
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml
from pydantic import BaseModel

from grainline.methods import METHODS, method_class
from grainline.methods.laps import LAPSConfig
from grainline.methods.scan import SCANConfig
from grainline.methods.seps import SEPSConfig
from grainline.methods.vse import VSEConfig
from grainline.training.recipe import Recipe

PAGE = Path(__file__).parent.parent / "docs" / "training.md"
OWN = ("image", "text", "width", "pretrained")  # fields of all towers


def table() -> list[tuple[list[str], str, str]]:
    """Rows of the section: names of fields, defaults, meaning."""
    section = PAGE.read_text().partition("\n## Fields\n")[2].partition("\n## ")[0]
    cells = [re.split(r" *\| *", line.strip("| ")) for line in section.splitlines() if line.startswith("| `")]
    return [(re.findall(r"`([^`]+)`", row[0]), row[1], row[2]) for row in cells]


def models_in(kind: Any) -> list[type[BaseModel]]:
    """Every config that a field of this type may hold."""
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        return [kind]
    return [found for part in get_args(kind) for found in models_in(part)]


def has(configs: list[type[BaseModel]], path: list[str]) -> bool:
    fields = [config.model_fields[path[0]] for config in configs if path[0] in config.model_fields]
    if len(path) == 1 or not fields:
        return bool(fields)
    return has([found for field in fields for found in models_in(field.annotation)], path[1:])


def test_every_field_of_the_table_is_one_of_a_config() -> None:
    methods = [method_class(name).config_class for name in METHODS]
    seen = 0
    for names, _, _ in table():
        for name in names:
            root, *path = name.split(".")
            if root == "" or "*" in path:  # goes on from the name before; all of a part
                continue
            found = has(methods, path) if root == "model" and path else has([Recipe], [root, *path])
            assert found, name
            seen += 1
    assert seen > 60
    assert not has(methods, ["nothing"])
    assert not has([Recipe], ["data", "texts", "nothing"])


@pytest.mark.parametrize("config", [SEPSConfig, LAPSConfig, SCANConfig, VSEConfig])
def test_options_of_triplet_methods_stand_in_the_table_with_their_defaults(config: type[BaseModel]) -> None:
    method = config.__name__.removesuffix("Config").lower()
    told: dict[str, str] = {}
    for names, defaults, meaning in table():
        if re.search(r"`(seps|laps|scan|vse)`[^.]*:", meaning) and names[0].startswith("model."):
            each = re.sub(r"\[[^]]*\]", lambda found: found.group().replace(", ", ","), defaults).split(", ")
            assert len(each) == len(names), names
            told |= dict(zip(names, each, strict=True))
    for name, field in config.model_fields.items():
        if name in OWN:
            continue
        default = told[f"model.{name}"]
        other = re.search(rf"\(`{method}`: (\w+)\)", default)
        plain = other.group(1) if other else default.partition(" (")[0].strip("`")
        value = yaml.safe_load(plain)
        assert value == (list(field.default) if isinstance(field.default, tuple) else field.default), name
