"""The measures of `house.py`, on a small invented package, and the limits on this one."""

from pathlib import Path

import house
import pytest

LAYERS = [{"low"}, {"middle"}, {"high"}]


def package(folder: Path, **files: str) -> Path:
    """A package `own` of small files; `low__a` is low/a.py, and what has no folder stands in the root."""
    root = folder / "own"
    for name, text in files.items():
        path = root / f"{name.replace('__', '/')}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        for above in path.relative_to(root).parents:
            (root / above / "__init__.py").touch()
    return root


def test_lines_files_and_siblings_are_counted(tmp_path: Path) -> None:
    root = package(tmp_path, low__a="x = 1\n" * 80, low__b="x = 1\n" * 79, low__deep__c="x = 1\n")
    found = house.measure(root, LAYERS)
    assert found.folders == {".": (6, 160), "low": (5, 160), "low/deep": (2, 1)}
    assert found.siblings == {"low": 2, "low/deep": 1}
    assert found.small == ["low/b.py", "low/deep/c.py"]
    numbers = {"lines": 160, "files": 6, "siblings": 2, "small files": 2}
    assert {name: found.numbers[name] for name in numbers} == numbers


def test_names_that_occur_twice_in_a_folder_or_the_package_are_detected(tmp_path: Path) -> None:
    root = package(tmp_path, low__a="", low__deep__a="", low__b="", middle__b="", high="")
    found = house.measure(root, LAYERS)
    assert found.twice == {"low": ["a"]}
    assert found.shared == {"a": ["low/a.py", "low/deep/a.py"], "b": ["low/b.py", "middle/b.py"]}
    assert (found.numbers["names twice in a folder"], found.numbers["shared names"]) == (1, 2)


@pytest.mark.parametrize(
    ("line", "modules"),
    [
        ("import own.low.b", {"own.low.b"}),
        ("import own.low.b as x, torch", {"own.low.b"}),
        ("from own.low import b", {"own.low.b"}),
        ("from own.low.b import f, g", {"own.low.b"}),
        ("from own.low import f", {"own.low"}),
        ("from own.low import b, c", {"own.low.b", "own.low.c"}),
        ("def f():\n    from own.low import c", {"own.low.c"}),
        ("import torch", set()),
        ("from owner.low import b", set()),
        ("import own.high", set()),
    ],
)
def test_what_a_file_imports_is_its_fan_out(line: str, modules: set[str], tmp_path: Path) -> None:
    found = house.measure(package(tmp_path, low__b="", low__c="", high=line), LAYERS)
    assert found.imports["own.high"] == modules
    assert found.numbers["fan-out"] == len(modules)


def test_circles_are_detected_whatever_their_length(tmp_path: Path) -> None:
    circles = {"low__a": "import own.low.b", "low__b": "import own.low.c", "low__c": "import own.low.a"}
    circles |= {"high": "import own.middle", "middle": "def f():\n    import own.high"}
    apart = {"low__d": "import own.low.a", "low__e": "import own.low.d, own.low.a"}
    found = house.measure(package(tmp_path, **circles, **apart), LAYERS)
    assert found.circles == [["own.high", "own.middle"], ["own.low.a", "own.low.b", "own.low.c"]]
    assert found.numbers["circles"] == 2


def test_imports_that_run_up_between_layers_are_detected(tmp_path: Path) -> None:
    files = {"low__a": "import own.high", "middle": "import own.low.a", "high": "import own.middle"}
    found = house.measure(package(tmp_path, **files, start="import own.high"), [*LAYERS, {"start"}])
    assert found.upward == [("own.low.a", "own.high")]


def test_a_layer_may_name_a_folder_of_the_second_level(tmp_path: Path) -> None:
    root = package(tmp_path, low__deep__a="import own.low.b", low__b="import own.middle", middle="")
    assert house.measure(root, LAYERS).upward == [("own.low.b", "own.middle")]
    deep = [{"low/deep"}, *LAYERS]
    assert house.measure(root, deep).upward == [("own.low.b", "own.middle"), ("own.low.deep.a", "own.low.b")]


def test_of_folders_in_a_circle_the_fewest_imports_run_up(tmp_path: Path) -> None:
    files = {"low__one__a": "import own.low.two.a, own.low.two.b", "low__one__b": "import own.low.two.a"}
    files |= {"low__two__a": "", "low__two__b": "import own.low.b", "low__b": "import own.low.one.b"}
    found = house.measure(package(tmp_path, **files), LAYERS)
    assert found.numbers["circles"] == 0
    assert found.upward in ([("own.low.b", "own.low.one.b")], [("own.low.two.b", "own.low.b")])


def test_the_table_names_every_measure_and_this_package_keeps_its_limits() -> None:
    checkout = Path(house.__file__).parent.parent
    found = house.measure(checkout / house.PACKAGE, house.layers_of(checkout))
    assert set(found.numbers) == set(house.LIMITS)
    over = {name: number for name, number in found.numbers.items() if number > house.LIMITS[name]}
    assert not over, "take something away, or say in LIMITS why it grew"
    text = house.table(found)
    assert all(name in text for name in house.LIMITS)
