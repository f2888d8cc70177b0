"""The table of fields in docs/training.md against the configs: names, and the defaults of triplet methods."""

import re
import shlex
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
from grainline.training.recipe import Recipe, read_recipe

PAGE = Path(__file__).parent.parent / "docs" / "training.md"
OWN = ("image", "text", "width", "dropout", "pretrained")  # fields of all towers


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


PHRASES = "data.texts.phrases.max_phrases"
SEPS = {"model.ratio_weights": [1.0, 1.0], "model.coarse": 0.0, "data.crop.flip": True}
ROWS = {  # pages of methods: recipe and fields of a row of a paper -> what its paper says of it
    "beta-clip.md": {
        "ablations/bce_050 --set data": {"model.form": "bce", "model.beta": 0.5, PHRASES: 0},
        "ablations/beta_075 --set data": {"model.form": "ce", "model.beta": 0.75, PHRASES: 0},
        "official --set model.beta=0.1": {"model.beta": 0.1, PHRASES: 30},
        "official --set model.beta=0.15": {"model.beta": 0.15, PHRASES: 30},
        "official --set model.pre": {"model.pretrained": "openai/clip-vit-large-patch14", "model.group": 64},
        "official --set model.group": {
            "model.group": 96, "train.global_batch_size": 96 * 4 * 8,
            "train.max_steps": 10 * round(607 * 2048 / 3072),
        },
    },
    "himo-clip.md": {"official --set": {"model.pretrained": "openai/clip-vit-base-patch16"}},
    "seps.md": {
        "vit_384": {**SEPS, "model.image.pretrained": "google/vit-base-patch16-384"},
        "swin_224": {**SEPS, "model.keep_ratio": 0.8, "model.aggregation_ratio": 0.6},
        "swin_384": {**SEPS, "model.keep_ratio": 0.8, "model.aggregation_ratio": 0.6},
        "clip_b16": {**SEPS, "model.text.pretrained": "openai/clip-vit-base-patch16"},
        "clip_l14": {**SEPS, "model.width": 768},
    },
}  # fmt: skip


@pytest.mark.parametrize("page", ROWS)
def test_rows_of_papers_are_what_the_pages_of_methods_say(page: str) -> None:
    text, expected = (PAGE.parent / "methods" / page).read_text(), dict(ROWS[page])
    for line in re.findall(r"`([a-z_]+/[a-z0-9_/]+ --set [^`]+)`", text):
        rest = line.partition("/")[2]
        start = max((one for one in expected if rest.startswith(one)), key=len)
        name, _, *changes = shlex.split(line)
        recipe = read_recipe(name, changes).model_dump(mode="json")
        for field, value in expected.pop(start).items():
            found: Any = recipe
            for part in field.split("."):
                found = found[part]
            assert found == value, (line, field)
    assert not expected
