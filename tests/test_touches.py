"""The table "What a new thing touches" of docs/layout.md, checked on things that exist."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs/layout.md").read_text(encoding="utf-8")
TABLE = PAGE.partition("## What a new")[2]
ROWS = {row[0]: row for row in re.findall(r"^\| (\w+) \| (.*) \| (.*) \|$", TABLE, re.M)}
EXAMPLES = [
    ("method", "methods/siglip.py"),
    ("method", "methods/himo.py"),
    ("method", "methods/mosaic.py"),
    ("suite", "evaluation/suites/cola.py"),
    ("source", "data/formats/parquet.py"),
]


def naming(module: str) -> set[str]:
    """Files of the package, other than the module, that import it or name it in a string."""
    folder, _, name = module.removesuffix(".py").replace("/", ".").rpartition(".")
    pattern = re.compile(rf"grainline\.{folder}\.{name}\b|from grainline\.{folder} import .*\b{name}\b")
    paths = (ROOT / "grainline").rglob("*.py")
    named = [path for path in paths if pattern.search(path.read_text(encoding="utf-8"))]
    return {path.relative_to(ROOT / "grainline").as_posix() for path in named} - {module}


@pytest.mark.parametrize(("kind", "module"), EXAMPLES)
def test_only_the_table_names_the_module(kind: str, module: str) -> None:
    _, files, table = ROWS[kind]
    (where,) = re.findall(r"in `(\S+\.py)`", table)
    assert str(Path(module).with_name("x.py")) in files
    assert (ROOT / "grainline" / module).is_file()
    assert naming(module) == {where}


def test_tables_and_folders_of_the_page_exist() -> None:
    for _, files, table in ROWS.values():
        for path in re.findall(r"`((?:methods|evaluation|data|encoders|losses|recipes)/\S*)`", files + table):
            place = ROOT / "grainline" / path.replace("x.py", "").replace("/x/", "/")
            assert place.exists(), path
        for name, path in re.findall(r"`(\w+)` in `(\S+)`", table):
            assert re.search(rf"\b{name}\b", (ROOT / "grainline" / path).read_text(encoding="utf-8"))
