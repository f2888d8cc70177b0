"""The measures of `house.py`, on a small invented package, and its limits on this one."""

import subprocess
from itertools import pairwise
from pathlib import Path

import house
import pytest

CHECKOUT = Path(house.__file__).parent.parent


def package(folder: Path, **files: str) -> Path:
    """A checkout whose package has some files: `low__a` is low/a.py, and `high` is high.py."""
    root = folder / house.PACKAGE
    for name, text in files.items():
        path = root / f"{name.replace('__', '/')}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        for above in path.relative_to(root).parents:
            (root / above / "__init__.py").touch()
    return folder


def test_lines_and_files_are_counted(tmp_path: Path) -> None:
    text = '"""A file.\n\nMore.\n"""\n\n# why\nx = [  # why\n\n    1,\n]\n'
    result = house.measure(package(tmp_path, low__a=text, low__deep__c="x = 1\n"))
    assert result.folders == {".": (5, 8, 11), "low": (4, 8, 11), "low/deep": (2, 1, 1)}
    assert (result.numbers["code lines"], result.numbers["lines"], result.numbers["test lines"]) == (8, 11, 0)


def test_names_that_occur_twice_in_a_folder_or_the_package_are_detected(tmp_path: Path) -> None:
    result = house.measure(package(tmp_path, low__a="", low__deep__a="", low__b="", middle__b="", high=""))
    assert result.twice == {"low": ["a"], "middle": []}
    assert result.shared == {"a": ["low/a.py", "low/deep/a.py"], "b": ["low/b.py", "middle/b.py"]}
    assert (result.numbers["names twice in a folder"], result.numbers["shared names"]) == (1, 2)


@pytest.mark.parametrize(
    ("line", "modules"),
    [
        ("import grainline.low.b", {"grainline.low.b"}),
        ("import grainline.low.b as x, torch", {"grainline.low.b"}),
        ("from grainline.low import b", {"grainline.low.b"}),
        ("from grainline.low.b import f, g", {"grainline.low.b"}),
        ("from grainline.low import f", {"grainline.low"}),
        ("from grainline.low import b, c", {"grainline.low.b", "grainline.low.c"}),
        ("def f():\n    from grainline.low import c", {"grainline.low.c"}),
        ("import torch", set()),
        ("from grainliner.low import b", set()),
        ("import grainline.high", set()),
    ],
)
def test_what_a_file_imports_is_its_fan_out(line: str, modules: set[str], tmp_path: Path) -> None:
    result = house.measure(package(tmp_path, low__b="", low__c="", high=line))
    assert result.imports["grainline.high"] == modules
    assert result.numbers["fan-out"] == len(modules)


@pytest.mark.parametrize(
    ("limit", "grants", "risen"),
    [
        (9, "", {}),
        (10, "", {}),
        (12, "", {"lines": 2}),
        (12, "('lines', 2, 'why'),", {}),
        (13, "('lines', 2, 'why'),", {"lines": 1}),
        (12, "('fan-out', 2, 'why'),", {"lines": 2}),
        (12, "('lines', 5, 'an old one'),", {"lines": 2}),
    ],
)
def test_a_limit_may_rise_by_a_new_grant_alone(limit: int, grants: str, risen: dict[str, int]) -> None:
    old = "LIMITS = {'lines': 10}\nGRANTS: tuple = (('lines', 5, 'an old one'),)\n"
    new = f"LIMITS = {{'lines': {limit}, 'a new one': 7}}\nGRANTS: tuple = ({grants})\n"
    assert house.risen(old, new) == risen


def test_no_limit_ever_rose_without_a_grant() -> None:
    def git(*command: str) -> str:
        run = subprocess.run(["git", "-C", str(CHECKOUT), *command], capture_output=True, text=True)
        return run.stdout if run.returncode == 0 else ""

    if git("rev-parse", "--is-shallow-repository").strip() != "false":
        pytest.skip("the history of tests/house.py is not here: no repository, or a shallow clone")
    commits = git("log", "--reverse", "--first-parent", "--format=%H", "--", "tests/house.py").split()
    texts = [git("show", f"{commit}:tests/house.py") for commit in commits]
    texts = [text for text in texts if "\nGRANTS" in text] + [(CHECKOUT / "tests/house.py").read_text()]
    assert [rise for pair in pairwise(texts) if (rise := house.risen(*pair))] == []


def test_this_repository_keeps_its_limits() -> None:
    result = house.measure(CHECKOUT)
    assert set(result.numbers) == set(house.LIMITS)
    over = {name: number for name, number in result.numbers.items() if number > house.LIMITS[name]}
    assert not over, "take something away, or add a row to GRANTS"
    assert all(name in house.table(result) for name in house.LIMITS)
