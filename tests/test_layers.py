"""The arrows of docs/layout.md, checked: a module imports only from the layers below its own."""

import ast
from pathlib import Path

import pytest

LAYERS = [  # lower layers first; modules of one layer may import each other only inside one folder
    {"errors", "types", "wording"},
    {"config", "files", "stop", "bar", "lots"},
    {"dist", "lock", "nn", "losses", "weights", "viz"},
    {"encoders", "data"},
    {"methods"},
    {"start"},
    {"model"},
    {"evaluate", "origin", "begin"},
    {"train", "encode", "convert", "index", "export"},
    {"recipe", "web"},
    {"run_folder", "validation"},
    {"experiment"},
    {"demo", "commands", "describe", "features", "measure", "show"},
    {"cli"},
    {"__main__"},
]
HEIGHT = {name: height for height, layer in enumerate(LAYERS) for name in layer}
ROOT = Path(__file__).parent.parent / "grainline"
FILES = sorted(path for path in ROOT.rglob("*.py") if path != ROOT / "__init__.py")


def imported(path: Path) -> set[str]:
    """Names of the parts of the package that a file imports, at its top or inside a function."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            if node.module == "grainline":
                found |= {alias.name for alias in node.names}
            elif (node.module or "").startswith("grainline."):
                found.add((node.module or "").split(".")[1])
        elif isinstance(node, ast.Import):
            found |= {a.name.split(".")[1] for a in node.names if a.name.startswith("grainline.")}
    return found - {"__version__", "UserError"}


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_point_down(path: Path) -> None:
    mine = path.relative_to(ROOT).parts[0].removesuffix(".py")
    wrong = {name for name in imported(path) if name != mine and HEIGHT[name] >= HEIGHT[mine]}
    assert not wrong, f"{mine} may not import {wrong}"


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_file_opens_by_saying_what_it_is(path: Path) -> None:
    assert ast.get_docstring(ast.parse(path.read_text()))


def test_losses_and_parts_know_no_processes() -> None:
    for path in (*ROOT.glob("losses/*.py"), *ROOT.glob("nn/*.py"), *ROOT.glob("methods/*.py")):
        assert "distributed" not in path.read_text(), path
