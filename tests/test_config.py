"""Configs and recipes: strict about names, clear about mistakes, the same after writing and reading."""

import importlib
import itertools
import math
import pkgutil
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from checkpoints import whole
from pydantic import Field, ValidationError
from runs import RECIPE, recipe

import grainline
from grainline.build import build, start
from grainline.config import Config, load_class, override, parse, read_yaml, require_trust, trusting
from grainline.data.open_source import SOURCES
from grainline.encoders.base import ScratchConfig
from grainline.errors import UserError
from grainline.export.huggingface import FORMS
from grainline.recipes import find, names
from grainline.training.recipe import read_recipe, write_recipe


class Inner(Config):
    lr: float = Field(1.0, gt=0)
    name: str | None = None


class Outer(Config):
    inner: Inner = Inner()
    perhaps: Inner | None = None
    many: tuple[Inner, ...] = ()
    steps: int


def wrong(cls: type[Config], values: dict[str, Any]) -> str:
    with pytest.raises(UserError) as error:
        parse(cls, values, "here")
    assert "\n" not in str(error.value)
    return str(error.value)


# Values on the command line


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("3", 3),
        ("1e-4", 1e-4),
        ("1.0e-4", 1e-4),
        ("-.5", -0.5),
        ("null", None),
        ("", None),
        ("true", True),
        ("[1, 2]", [1, 2]),
        ("[a, b]", ["a", "b"]),
        ("{kind: step, factor: 0.5}", {"kind": "step", "factor": 0.5}),
        ("scenes:dev?count=4", "scenes:dev?count=4"),
        ("a=b", "a=b"),
        ('"7"', "7"),  # what is quoted is text: a folder may be called 2017
        ("'x: y'", "x: y"),
    ],
)
def test_a_value_is_read_as_yaml(text: str, value: object) -> None:
    assert override({}, [f"x={text}"]) == {"x": value}


def test_changes_reach_into_nested_fields_and_leave_the_rest_alone() -> None:
    before = {"a": {"b": {"c": 1, "d": 2}, "e": 3}, "f": 4}
    after = override(before, ["a.b.c=10", "a.g.h=[x]", "f=null", " a.e =5"])
    assert after == {"a": {"b": {"c": 10, "d": 2}, "e": 5, "g": {"h": ["x"]}}, "f": None}
    assert before == {"a": {"b": {"c": 1, "d": 2}, "e": 3}, "f": 4}


@pytest.mark.parametrize("change", ["steps", "=5", " =5"])
def test_a_change_without_a_name_or_value_shows_how_to_write_one(change: str) -> None:
    with pytest.raises(UserError, match=r"write it as name\.of\.field=value, such as train\.max_steps=500"):
        override({}, [change])


DEEP = 5000


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("!!int y", "'y' cannot be read as int (line 1, column 1)"),
        ('!!int ""', "'' cannot be read as int"),
        ("!!bool maybe", "'maybe' cannot be read as bool"),
        ("9" * DEEP, "cannot be read as int"),
        ("!!set {a, b}", "there is no type 'set'"),
        ("!!python/object:os.system x", "there is no type 'python/object:os.system'"),
        ("[" * DEEP + "]" * DEEP, "more than 50 lists and mappings inside each other"),
        ("{a: " * DEEP, "more than 50 lists and mappings inside each other"),
        ("- " * DEEP + "a", "more than 50 lists and mappings inside each other"),
        ("&a [*a]", "more than 1,000,000 values, or itself"),
        ("{a: 1, b: 2, 'a': 3}", "'a' is given twice (line 1, column 14)"),
        ("[{x: {a: 1, a: 1}}]", "'a' is given twice"),
        ("{[1]: 2}", "a name is a list or a mapping"),
    ],
    ids=lambda text: text[:20],
)
def test_what_no_recipe_holds_is_one_short_line(text: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "r.yaml").write_text(f"x: {text}" if not text.startswith("- ") else text)
    for read, where in (
        (lambda: override({}, [f"x={text}"]), "--set 'x="),
        (lambda: read_yaml(tmp_path / "r.yaml"), f"{tmp_path / 'r.yaml'} is not valid YAML: "),
    ):
        with pytest.raises(UserError) as error:
            read()
        assert where in str(error.value).replace('"', "'")
        assert said.partition(" (line")[0] in str(error.value)
        assert len(str(error.value)) < 250 + len(str(tmp_path))
        if where.startswith("--set"):
            assert said in str(error.value)


def test_aliases_cannot_make_more_values_than_can_be_read() -> None:
    rows = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    rows += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 12)]
    with pytest.raises(UserError, match="more than 1,000,000 values"):
        override({}, [f"x={{{', '.join(rows)}}}"])


def test_aliases_merges_and_dates_are_read() -> None:
    assert override({}, ["x={a: &a {b: 1, c: 2}, d: {<<: *a, b: 3}, e: *a}"]) == {
        "x": {"a": {"b": 1, "c": 2}, "d": {"b": 3, "c": 2}, "e": {"b": 1, "c": 2}}
    }
    assert override({}, ["x=[2020-01-01, 2020-99-99]"]) == {"x": ["2020-01-01", "2020-99-99"]}


# Mistakes


def test_an_unknown_field_is_answered_with_those_of_its_own_level() -> None:
    assert wrong(Outer, {"steps": 1, "stesp": 2}) == (
        "here: unknown field 'stesp' (did you mean steps?); allowed here: inner, perhaps, many, steps"
    )
    for values, field in (
        ({"inner": {"rate": 1}}, "inner.rate"),
        ({"perhaps": {"rate": 1}}, "perhaps.rate"),
        ({"many": [{}, {"rate": 1}]}, "many.1.rate"),
    ):
        said = wrong(Outer, {"steps": 1, **values})
        assert said == f"here: unknown field '{field}'; allowed here: lr, name"


def test_a_wrong_type_or_range_is_shown_with_the_value() -> None:
    assert wrong(Outer, {"steps": "many"}) == (
        "here: field 'steps' is 'many': it must be a valid integer, unable to parse string as an integer"
    )
    said = wrong(Outer, {"steps": 1, "inner": {"lr": -1}})
    assert said == "here: field 'inner.lr' is -1: it must be greater than 0"
    assert "field 'inner' is 5: " in wrong(Outer, {"steps": 1, "inner": 5})


def test_a_missing_field_is_named_and_unknown_ones_before_it() -> None:
    assert wrong(Outer, {}) == "here: field 'steps' is missing"
    assert wrong(Outer, {"x": 1}) == "here: unknown field 'x'; allowed here: inner, perhaps, many, steps"


CLASSES = {"inner": f"{__name__}:Inner", "own": "grainline.config:Config"}


def test_a_class_is_named_by_a_table_or_by_its_module(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own_classes.py").write_text(
        "from grainline.config import Config\n\nclass Own(Config):\n    a: int = 1\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    assert load_class("inner", Config, CLASSES, "--kind") is Inner
    with trusting("own_classes:Own"):
        assert load_class("own_classes:Own", Config, CLASSES, "--kind")().a == 1
    assert load_class("grainline.config:Config", Config, {}, "--kind") is Config


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("iner", "unknown config 'iner' (did you mean inner?); allowed are inner, own, or module:Class"),
        ("a b:C", "unknown config 'a b:C'"),
        ("no_such_module:C", "cannot be imported: ModuleNotFoundError: No module named 'no_such_module'"),
        ("broken_module:C", "cannot be imported: ValueError: broken on purpose"),
        ("pathlib:Path", "pathlib:Path is no class derived from grainline.config.Config"),
        ("pathlib:Pat", "pathlib:Pat is no class"),
    ],
)
def test_a_class_that_cannot_be_had_is_one_line(
    name: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken_module.py").write_text("raise ValueError('broken on purpose')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(UserError) as error, trusting(name):
        load_class(name, Config, CLASSES, "--kind")
    assert str(error.value).startswith("--kind: ")
    assert said in str(error.value)


@pytest.mark.parametrize(
    "name", ["broken_module:C", "grainline_plugins:C", "grainline.__main__:main", "os.path:C"]
)
def test_code_that_is_not_trusted_is_not_imported(name: str) -> None:
    with pytest.raises(
        UserError, match=f"{name} would import the module .* trust_code=True, or --trust-code to the command"
    ):
        load_class(name, Config, CLASSES, "model.json")


@pytest.mark.parametrize("kind", sorted(set(filter(str.isidentifier, SOURCES))))
def test_data_that_were_typed_are_no_classes_that_may_be_imported(kind: str) -> None:
    with trusting([f"{kind}:Birds"]), pytest.raises(UserError, match="would import the module"):
        load_class(f"{kind}:Birds", Config, {}, "model.json")


@pytest.mark.parametrize("typed", ["method=broken_m:C", "provider: spacy:./pipe-line", "paths: broken_m:C:x"])
def test_what_was_typed_may_be_imported(typed: str) -> None:
    name = "spacy:./pipe-line" if "spacy" in typed else "broken_m:C"
    with trusting({"field": [typed.partition(" ")[2] or typed]}):
        require_trust(name, "recipe")
    with trusting(f"photos/{name}"), pytest.raises(UserError, match="would import"):
        require_trust(name, "recipe")


# Types

PACKAGE = Path(grainline.__file__).parent


def configs() -> list[type[Config]]:
    """All configs of the package."""
    for module in pkgutil.walk_packages([str(PACKAGE)], "grainline."):
        if not module.name.startswith(("grainline.kernels.", "grainline.__main__")):
            importlib.import_module(module.name)
    actual, below = set[type[Config]](), [Config]
    while below:
        actual |= (more := {cls for one in below for cls in one.__subclasses__()})
        below = list(more)
    whole = [cls for cls in actual if hasattr(cls, "sizes") or not issubclass(cls, ScratchConfig)]
    return sorted((cls for cls in whole if cls.__module__.startswith("grainline.")), key=str)


def test_every_mistake_in_every_field_is_one_line_that_names_it() -> None:
    bad = [None, True, -1e9, 10**400, math.inf, "x", "9" * 5000, "\ud800", [[1]], {1: 2}, {"kind": "x"}]
    number = 0
    for cls in configs():
        for name, value in itertools.product([*cls.model_fields, "no_such"], bad):
            with suppress(ValidationError, UserError):
                cls.model_validate({name: value})
                continue
            number += 1
            with pytest.raises(UserError, match=r"^(my.yaml: (unknown )?field 'at|kind: )[^\n]*$"):
                parse(cls, {name: value}, "my.yaml", "at")
    assert number > 1000


class Loose(Config):
    time: float | Literal["never"] = 1.0


def test_a_field_of_several_types_names_all_of_them() -> None:
    assert wrong(Loose, {"time": "z"}) == (
        "here: field 'time' is 'z': it must be a valid number, unable to parse string as a number,"
        " or it must be 'never'"
    )


def test_true_is_no_number_and_no_number_is_true() -> None:
    swapped = 0
    for cls in configs():
        for name, bad in itertools.product(cls.model_fields, (True, False, 0, 1, 1.0, "yes", "off")):
            try:
                read = getattr(cls.model_validate({name: bad}), name)
            except (ValidationError, UserError):  # other fields are missing
                continue
            if read == bad and type(read) is type(bad):
                assert getattr(parse(cls, {name: bad}, "here"), name) == bad
            elif isinstance(read, bool) != isinstance(bad, bool) and isinstance(read, int | float):
                swapped += 1
                shown = str(bad).lower() if isinstance(bad, bool) else repr(bad)
                assert wrong(cls, {name: bad}).startswith(f"here: field '{name}' is {shown}: it must be ")
    assert swapped > 90


# YAML files


@pytest.mark.parametrize(
    ("text", "said"),
    [("a: [1", "is not valid YAML"), ("- a\n- b", "holds a list, not a mapping"), ("", "holds nothing, not")],
)
def test_a_file_that_holds_no_mapping_is_named(text: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "r.yaml").write_text(text)
    with pytest.raises(UserError, match=said) as error:
        read_yaml(tmp_path / "r.yaml")
    assert "\n" not in str(error.value)
    assert str(tmp_path / "r.yaml") in str(error.value)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "r.yaml").write_bytes(b"\xff\xfe\x00")
    for path in (tmp_path / "r.yaml", tmp_path / "none.yaml"):
        with pytest.raises(UserError, match=f"{path} "):
            read_yaml(path)


# Recipes


def mistake(tmp_path: Path, *changes: str) -> str:
    with pytest.raises(UserError) as error:
        read_recipe(recipe(tmp_path), list(changes))
    return str(error.value)


def test_mistakes_in_a_schedule_say_what_its_kind_allows(tmp_path: Path) -> None:
    schedule = "train.optimizer.schedule"
    said = mistake(tmp_path, f"{schedule}={{kind: cosine, milestones: [3]}}")
    assert "unknown field 'train.optimizer.schedule.milestones'" in said
    assert said.endswith("allowed here: kind, warmup, final, first, over")
    said = mistake(tmp_path, f"{schedule}.kind=linear")
    assert said.endswith(
        f"field '{schedule}': Input tag 'linear' found using 'kind' does not match any of the expected tags:"
        " 'constant', 'cosine', 'step'"
    )
    said = mistake(tmp_path, f"{schedule}.warmup=3")
    assert said.endswith("field 'train.optimizer.schedule.kind' is missing")


def test_numbers_with_an_exponent_are_numbers_in_files_and_lists(tmp_path: Path) -> None:
    (tmp_path / "r.yaml").write_text(RECIPE + "  optimizer: {lr: 1e-4, betas: [9e-1, 98e-2]}\n")
    optimizer = read_recipe(str(tmp_path / "r.yaml"), ["train.optimizer.eps=1e-7"]).train.optimizer
    assert (optimizer.lr, optimizer.betas, optimizer.eps) == (1e-4, (0.9, 0.98), 1e-7)


def test_the_model_is_checked_when_the_recipe_is_read(tmp_path: Path) -> None:
    assert "clip.yaml: unknown field 'model.colour'" in mistake(tmp_path, "model.colour=red")
    assert "size 32 is not a multiple of patch 7" in mistake(tmp_path, "model.image.patch=7")
    assert "width 33 is not a multiple of 2 heads" in mistake(tmp_path, "model.text.width=33")
    assert "unknown method 'clop' (did you mean clip?); allowed are clip" in mistake(tmp_path, "method=clop")
    filled = read_recipe(recipe(tmp_path), []).model
    assert filled["image"] | {"width": 32, "heads": 2, "patch": 8} == filled["image"]


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """A small checkpoint of each kind, made once."""

    @cache
    def made(kind: str) -> Path:
        folder = tmp_path_factory.mktemp("small") / kind
        whole(kind, folder)
        return folder

    return made


@pytest.mark.parametrize("name", names())
def test_every_recipe_of_the_package_is_whole(
    name: str, small: Callable[[str], Path], tmp_path: Path
) -> None:
    actual = read_recipe(name, [])
    places = [f"model.{side}" for side in ("image", "text") if "pretrained" in actual.model[side]]
    places = ["model"] if actual.model.get("pretrained") is not None else places
    if places:  # no network here: a small one of the kind
        folder = small(FORMS.get(actual.method, "groupvit" if actual.method == "tgt" else "clip"))
        started = read_recipe(name, [f"{place}.pretrained={folder}" for place in places])
        method = start(started.description).method()
    else:
        with torch.device("meta"):
            method = build(actual.description)
    assert sum(p.numel() for p in method.parameters()) > 1e5
    assert find(name).read_text().startswith("#"), "says what it is for"
    write_recipe(tmp_path / "recipe.yaml", actual)
    assert read_recipe(str(tmp_path / "recipe.yaml"), []) == actual


# Recipes upon recipes


def built_upon(folder: Path, **files: str) -> str:
    """Files of the tiny recipe's folder; the path of the last."""
    recipe(folder)
    for name, text in files.items():
        (folder / f"{name}.yaml").parent.mkdir(parents=True, exist_ok=True)
        (folder / f"{name}.yaml").write_text(text)
    return str(folder / f"{list(files)[-1]}.yaml")


def test_a_recipe_says_only_what_differs_from_its_base(tmp_path: Path) -> None:
    one = "base: clip.yaml\ntrain: {global_batch_size: 4, optimizer: {rules: [{pattern: a}, {pattern: b}]}}\n"
    two = "base: one.yaml\ntrain: {optimizer: {lr: 0.5, rules: [{pattern: '.*'}]}}\nmodel: {scale: 3.0}\n"
    actual = read_recipe(built_upon(tmp_path, one=one, two=two), ["train.global_batch_size=6"])
    words = [
        "train.global_batch_size=6",
        "train.optimizer={lr: 0.5, rules: [{pattern: '.*'}]}",
        "model.scale=3.0",
    ]
    assert actual == read_recipe(str(tmp_path / "clip.yaml"), words)
    write_recipe(tmp_path / "whole.yaml", actual)
    assert "base" not in (tmp_path / "whole.yaml").read_text()
    assert read_recipe(str(tmp_path / "whole.yaml"), []) == actual


def test_a_base_is_a_name_of_the_package_or_a_path_from_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    actual = read_recipe(built_upon(tmp_path, own="base: clip/scenes\ntrain: {global_batch_size: 32}\n"), [])
    assert actual == read_recipe("clip/scenes", ["train.global_batch_size=32"])
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "own.yaml").write_text("base: ../own.yaml\ntrain: {max_steps: 90}\n")
    monkeypatch.chdir(tmp_path / "elsewhere")
    changed = read_recipe("clip/scenes", ["train.global_batch_size=32", "train.max_steps=90"])
    assert read_recipe("own.yaml", []) == changed
    assert read_recipe(str(tmp_path / "elsewhere" / "own.yaml"), []) == changed


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({"a": "base: a.yaml"}, r"a\.yaml has itself as a base: .*a\.yaml -> .*a\.yaml; drop a base"),
        (
            {"b": "base: c.yaml", "c": "base: b.yaml", "a": "base: b.yaml"},
            r"a\.yaml -> .*b\.yaml -> .*c\.yaml -> .*b\.yaml; drop a base",
        ),
        ({"a": "base: 3"}, r"a\.yaml: base is 3; it must be the name of a recipe or a \.yaml file"),
        ({"a": "base: null"}, r"a\.yaml: base is None; it must be the name"),
        ({"a": "base: gone.yaml"}, r"a\.yaml: base: no recipe file .*gone\.yaml; `grainline recipes` lists"),
        ({"a": "base: clip/scene"}, r"a\.yaml: base: no recipe 'clip/scene' \(did you mean clip/scenes or "),
        ({"a": "base: clip.yaml\nmodel: {colour: red}"}, "a.yaml: unknown field 'model.colour'"),
        ({"a": "base: clip.yaml\ntrain: 3"}, r"field 'train' is 3"),
    ],
)
def test_a_base_that_cannot_be_built_upon_is_one_line(
    files: dict[str, str], said: str, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=said) as error:
        read_recipe(built_upon(tmp_path, **files), [])
    assert "\n" not in str(error.value)
