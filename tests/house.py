"""How large the repository is, with limits that only fall.

    python tests/house.py                # the table
    python tests/house.py --limits       # exit code 1 where a limit is exceeded
    python tests/house.py --path ../old  # another checkout

Nothing is imported: files are read by `ast` and `tokenize`. An import inside a function counts like one at
the top of a file. A limit rises only by a row of GRANTS: `test_house.py` walks the history of this file.
"""

import argparse
import ast
import io
import sys
import tokenize
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

PACKAGE = "grainline"
LIMITS = {  # the numbers of the last commit that lowered them
    "code lines": 38_393,  # code and docstrings; goal 35,000
    "lines": 46_282,  # goal 42,000
    "test lines": 44_836,  # goal 41,000
    "benchmark lines": 3_765,  # goal 5,500
    "names twice in a folder": 0,
    "shared names": 3,
    "fan-out": 15,
    "names clip.py imports": 8,
    "names caft.py imports": 22,
    "names beta_clip.py imports": 20,
}
GRANTS: tuple[tuple[str, int, str], ...] = (
    ("code lines", 1_792, "compare, average, train.ema, overlap and mteb; 1,800 with a sixth method"),
    ("lines", 2_105, "the same, with comments and blank lines"),
    ("test lines", 948, "their tests; those of the studies went"),
    ("code lines", 32, "words of texts in Mosaic: rSum +15 and +18 on photographs; of the same 1,800"),
    ("lines", 36, "the same"),
    ("test lines", 32, "its tests"),
    ("code lines", 3, "several threads import transformers at once; of the same 1,800"),
    ("lines", 3, "the same"),
    ("test lines", 12, "its test"),
    ("code lines", 11, "words of texts skip padding, which halves steps on long texts; of the 1,800"),
    ("lines", 13, "the same"),
    ("test lines", 22, "its test"),
    ("code lines", 10, "the empty sentence of Mosaic with places: HiMo@K 0.07 to 0.88; of the same 1,800"),
    ("lines", 12, "the same"),
    ("test lines", 10, "its test, and these rows"),
    ("code lines", 29, "cached images are counted once: from epoch 2 on 1.8 times as fast; of the 1,800"),
    ("lines", 31, "the same"),
    ("test lines", 32, "its test, and these rows"),
    ("code lines", 4, "cached texts are counted once too; the last of the 1,800"),
    ("lines", 4, "the same"),
    ("test lines", 32, "their test, and these rows"),
    ("test lines", 20, "words that a run counted are read by the next: its test, and this row"),
    ("benchmark lines", 84, "boards of Hexagons, which issue 45 measures; their reader left the package"),
    ("test lines", 20, "the test of boards, and these rows"),
    ("code lines", 734, "data at URLs, and indexes of tars that are mapped; of the 2,000 of issue 46"),
    ("lines", 925, "the same"),
    ("test lines", 581, "their tests, over an S3 server that fails, and these rows"),
    ("benchmark lines", 140, "S3 beside a disk, and ten million samples"),
    ("code lines", 516, "vectors by many processes, by Ray, here or at a URL; of the same 2,000"),
    ("lines", 614, "the same"),
    ("test lines", 286, "their tests, over killed processes and nodes, and these rows"),
    ("benchmark lines", 47, "vectors in parts beside a plain loop"),
    ("code lines", 120, "failures of servers that were taken for damage, or lost files; of the same 2,000"),
    ("lines", 131, "the same"),
    ("test lines", 164, "their tests, and these rows"),
    ("code lines", 13, "wrong numbers of encode, and a GPU for each process of torchrun; of the same 2,000"),
    ("lines", 16, "the same"),
    ("test lines", 21, "their tests, and these rows"),
    ("test lines", 6, "an S3 server of its own for each file of tests, and these rows"),
    ("code lines", 6, "nothing is prefetched where nothing is remote; manifests are read once; of the 2,000"),
    ("lines", 5, "the same"),
    ("test lines", 2, "these rows"),
    ("benchmark lines", 5, "vectors of alike images as files, since parts are sealed"),
)
"""Limit, by how much it may rise, and why: one row for each time. Rows stay."""


class House(NamedTuple):
    """What was counted, and the names behind the numbers."""

    numbers: dict[str, int]  # the measures of LIMITS
    folders: dict[str, tuple[int, int, int]]  # of each folder: files, code lines and lines
    twice: dict[str, list[str]]  # by top-level folder: names that it holds more than once
    shared: dict[str, list[str]]  # by name: the files of the package that bear it
    imports: dict[str, set[str]]  # by module: the modules of the package that it imports


def measure(checkout: Path) -> House:
    """The numbers of a checkout. `__init__` and `__main__` may repeat in several folders."""
    root = checkout / PACKAGE
    texts = read(root)
    length = {path: len(text.splitlines()) for path, text in texts.items()}
    code = {path: code_lines(text) for path, text in texts.items()}
    folders = {}
    for name in sorted({"/".join(path.relative_to(root).parent.parts[:2]) for path in texts}):
        inside = [path for path in texts if path.is_relative_to(root / name)]
        folders[name or "."] = len(inside), sum(code[p] for p in inside), sum(length[p] for p in inside)
    plain = [path for path in texts if path.stem not in ("__init__", "__main__")]
    tops = sorted({path.relative_to(root).parts[0] for path in plain if path.parent != root})
    twice = {top: sorted(shared(root, [p for p in plain if p.is_relative_to(root / top)])) for top in tops}
    modules = {_module(root, path): text for path, text in texts.items()}
    imports = {name: imported(name, text, modules) for name, text in modules.items()}
    numbers = {
        "code lines": sum(code.values()),
        "lines": sum(length.values()),
        "test lines": sum(len(text.splitlines()) for text in read(checkout / "tests").values()),
        "benchmark lines": sum(len(text.splitlines()) for text in read(checkout / "benchmarks").values()),
        "names twice in a folder": sum(map(len, twice.values())),
        "shared names": len(shared(root, plain)),
        "fan-out": max(map(len, imports.values()), default=0),
    }
    for method in ("clip", "caft", "beta_clip"):
        text = texts.get(root / "methods" / f"{method}.py", "")
        numbers[f"names {method}.py imports"] = names_imported(text)
    return House(numbers, folders, twice, shared(root, plain), imports)


def read(folder: Path) -> dict[Path, str]:
    """The text of every Python file below a folder."""
    paths = sorted(path for path in folder.rglob("*.py") if "__pycache__" not in path.parts)
    return {path: path.read_text(encoding="utf-8") for path in paths}


def code_lines(text: str) -> int:
    """How many lines hold code or belong to a docstring; comments and blank lines between do not count."""
    layout = tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in (*layout, tokenize.ENDMARKER):
            lines.update(range(token.start[0], token.end[0] + 1))
    return len(lines)


def names_imported(text: str) -> int:
    """How many names of the package a module imports."""
    return sum(
        len(node.names)
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == PACKAGE
    )


def shared(root: Path, paths: Iterable[Path]) -> dict[str, list[str]]:
    """Base names that several files bear, with the files."""
    by_name = defaultdict(list)
    for path in paths:
        by_name[path.stem].append(path.relative_to(root).as_posix())
    return {name: files for name, files in sorted(by_name.items()) if len(files) > 1}


def _module(root: Path, path: Path) -> str:
    """The dotted name under which a file is imported."""
    parts = [root.name, *path.relative_to(root).with_suffix("").parts]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported(name: str, text: str, modules: Iterable[str]) -> set[str]:
    """The modules of the package that a module imports, itself not counted."""
    known = set(modules)
    targets = (target for node in ast.walk(ast.parse(text)) for target in _targets(node))
    return ({t if t in known else t.rpartition(".")[0] for t in targets} & known) - {name}


def _targets(node: ast.AST) -> Iterator[str]:
    """What a statement imports: modules, or names inside modules."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom) and node.level == 0:
        yield from (f"{node.module}.{alias.name}" for alias in node.names)


def risen(before: str, after: str) -> dict[str, int]:
    """Limits that a newer text of this file raises by more than its new grants allow, and by how much."""
    old, new = _table(before, "LIMITS"), _table(after, "LIMITS")
    grants = [grant for grant in _table(after, "GRANTS", ()) if grant not in _table(before, "GRANTS", ())]
    allowed = {name: sum(lines for limit, lines, _ in grants if limit == name) for name in new}
    rise = {name: new[name] - old[name] - allowed[name] for name in new if name in old}
    return {name: lines for name, lines in rise.items() if lines > 0}


def _table(text: str, name: str, absent: object = None) -> dict[str, int]:
    """The value of a name at the top of a file, without running it."""
    for node in ast.parse(text).body:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        if any(isinstance(target, ast.Name) and target.id == name for target in targets):
            return ast.literal_eval(node.value)  # type: ignore[attr-defined, no-any-return]
    return absent  # type: ignore[return-value]


def table(house: House) -> str:
    """The measures with their limits, and what is behind them."""
    lines = [f"{'':28}{'now':>8}{'limit':>8}"]
    lines += [f"{name:28}{number:8,}{LIMITS[name]:8,}" for name, number in house.numbers.items()]
    lines += ["", f"{'folder':28}{'files':>8}{'code':>8}{'lines':>8}"]
    lines += [f"{name:28}{files:8}{code:8,}{n:8,}" for name, (files, code, n) in house.folders.items()]
    lines += ["", "Names twice in a folder"]
    lines += [f"  {folder}: {', '.join(names)}" for folder, names in house.twice.items() if names]
    listed = ", ".join(f"{name} x{len(files)}" for name, files in house.shared.items())
    lines += ["", f"Names of several files: {listed}", "", "Largest fan-out"]
    largest = sorted(house.imports.items(), key=lambda pair: (-len(pair[1]), pair[0]))
    lines += [f"  {len(targets):3} {name}" for name, targets in largest[:10]]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description="Measures of the repository, with limits.")
    parser.add_argument("--path", type=Path, default=Path(__file__).parent.parent, help="another checkout")
    parser.add_argument("--limits", action="store_true", help="exit code 1 where a limit is exceeded")
    asked = parser.parse_args()
    house = measure(asked.path.resolve())
    print(table(house))
    over = [f"{name} {n:,}, limit {LIMITS[name]:,}" for name, n in house.numbers.items() if n > LIMITS[name]]
    if asked.limits and over:
        sys.exit(f"house.py: {'; '.join(over)}: take something away, or add a row to GRANTS")


if __name__ == "__main__":
    main()
