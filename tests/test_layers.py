"""The arrows of docs/layout.md, checked: imports point down, and neither files nor folders form a circle."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

LAYERS = [  # lower layers first; modules of one layer may import each other only inside one folder
    {"errors", "system", "types"},
    {"config", "files", "kernels", "progress", "recipes", "stop"},
    {"distributed", "nn", "weights"},
    {"losses", "report"},
    {"encoders", "data"},
    {"methods"},
    {"build"},
    {"hub", "model_card"},
    {"model"},
    {"loading"},
    {"evaluation"},
    {"training", "index", "export", "embedding"},
    {"web"},
    {"cli"},
    {"__main__"},
]
HEIGHT = {name: height for height, layer in enumerate(LAYERS) for name in layer}
ROOT = Path(__file__).parent.parent / "grainline"
FILES = sorted(path for path in ROOT.rglob("*.py") if path != ROOT / "__init__.py")
FOLDERS = sorted(path.name for path in ROOT.iterdir() if (path / "__init__.py").is_file())


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


@cache
def imported(path: Path) -> frozenset[str]:
    """Files of the package that a file imports, at its top or inside a function, as paths without suffix."""
    actual: set[str] = set()
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            if (node.module or "").split(".")[0] == "grainline":
                actual |= {place(f"{node.module}.{alias.name}") for alias in node.names}
        elif isinstance(node, ast.Import):
            actual |= {place(a.name) for a in node.names if a.name.startswith("grainline.")}
    return frozenset(actual - {"__init__"})


@cache
def place(dotted: str) -> str:
    """The file that a dotted name stands for or is defined in, as a path below grainline/ without suffix."""
    parts = dotted.split(".")[1:]
    for end in range(len(parts), 0, -1):
        name = "/".join(parts[:end])
        if (ROOT / f"{name}.py").is_file():
            return name
        if (ROOT / name / "__init__.py").is_file():
            return f"{name}/__init__"
    return "__init__"


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT).with_suffix(""))


def room(name: str) -> str:
    """The first two names of a path: a file or a folder inside a folder of the package."""
    return "/".join(name.split("/")[:2])


def arrows() -> Iterator[tuple[str, str]]:
    for path in FILES:
        for other in imported(path):
            yield name_of(path), other


def circle(edges: set[tuple[str, str]]) -> list[str]:
    """The nodes of a circle, or none."""
    graph: dict[str, set[str]] = {}
    for start, end in edges:
        if start != end:
            graph.setdefault(start, set()).add(end)
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_imports_point_down(path: Path) -> None:
    own = name_of(path).split("/")[0]
    others = {other.split("/")[0] for other in imported(path)} - {own}
    wrong = {name for name in others if HEIGHT[name] >= HEIGHT[own]}
    assert not wrong, f"{own} may not import {wrong}"


def test_files_form_no_circle() -> None:
    assert not circle(set(arrows()))


@pytest.mark.parametrize("folder", FOLDERS)
def test_neighbours_inside_a_folder_form_no_circle(folder: str) -> None:
    edges = {
        (room(a), room(b)) for a, b in arrows() if a.startswith(f"{folder}/") and b.startswith(f"{folder}/")
    }
    assert not circle(edges)


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_every_file_opens_by_saying_what_it_is(path: Path) -> None:
    assert ast.get_docstring(tree(path))


@pytest.mark.parametrize("folder", sorted(ROOT.glob("**/__init__.py"))[1:], ids=name_of)
def test_the_docstring_of_a_folder_lists_no_file_that_is_not_there(folder: Path) -> None:
    text = ast.get_docstring(ast.parse(folder.read_text())) or ""
    files = {path.stem for path in folder.parent.glob("*.py")}
    folders = {path.parent.name for path in folder.parent.glob("*/__init__.py")}
    listed = {match[1] for match in re.finditer(r"^([a-z_0-9]+)/?(?=  |\s+[A-Z])", text, re.M)}
    assert listed <= files | folders


def test_losses_and_parts_know_no_processes() -> None:
    for folder in ("losses", "nn", "methods"):
        for path in (ROOT / folder).rglob("*.py"):
            assert "torch.distributed" not in path.read_text(), path
