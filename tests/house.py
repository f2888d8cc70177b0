"""How large the package is, how its files lie in folders, and how they lean on each other, with limits.

    python tests/house.py                # the table
    python tests/house.py --limits       # exit code 1 where a limit is exceeded
    python tests/house.py --path ../old  # another checkout

Files are read by `ast` alone; nothing is imported. `__init__` and `__main__` count as files, but neither as
siblings nor as small files, and their names may repeat. An import inside a function counts like one at the
top of a file.
"""

import argparse
import ast
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from itertools import product
from pathlib import Path
from typing import NamedTuple

PACKAGE = "grainline"
SMALL = 80  # lines
LIMITS = {  # a measure may not exceed its limit; where the goal of the plan is not reached, it stands beside
    "lines": 50_600,  # goal 35,000; 1,200 granted once for pretrained towers and published checkpoints
    "files": 250,  # a kind of checkpoint has a file of its own
    "siblings": 20,
    "small files": 17,
    "names twice in a folder": 0,
    "shared names": 8,
    "fan-out": 15,
    "circles": 0,
    "arrows up": 0,
    "names clip.py imports": 8,
    "names caft.py imports": 22,
    "names beta_clip.py imports": 22,
}

Graph = Mapping[str, set[str]]
Layers = list[set[str]]
Arrows = list[tuple[str, str]]  # importing module, imported module


class House(NamedTuple):
    """What was counted, and the names behind the numbers."""

    numbers: dict[str, int]  # the measures of LIMITS
    folders: dict[str, tuple[int, int]]  # of each folder: files and lines, with those of its own folders
    siblings: dict[str, int]  # of each folder: its own files
    small: list[str]
    twice: dict[str, list[str]]  # by top-level folder: names that it holds more than once
    shared: dict[str, list[str]]  # by name: the files of the package that bear it
    imports: dict[str, set[str]]  # by module: the modules of the package that it imports
    circles: list[list[str]]
    upward: Arrows


def measure(root: Path, layers: Layers) -> House:
    """Measure a package.

    root    its folder, whose name is the name of the package
    layers  parts of the package by their place below the root ("nn", "data/formats"), lowest layer first
    """
    paths = sorted(path for path in root.rglob("*.py") if "__pycache__" not in path.parts)
    texts = {path: path.read_text(encoding="utf-8") for path in paths}
    lines = {path: len(text.splitlines()) for path, text in texts.items()}
    plain = [path for path in paths if path.stem not in ("__init__", "__main__")]
    folders = {
        folder: (len(inside), sum(lines[path] for path in inside))
        for folder in _folders(root, paths)
        if (inside := [path for path in paths if path.is_relative_to(root / folder)])
    }
    siblings = Counter(path.parent.relative_to(root).as_posix() for path in plain)
    small = [path.relative_to(root).as_posix() for path in plain if lines[path] < SMALL]
    twice = {
        folder: repeated
        for folder in sorted({path.relative_to(root).parts[0] for path in plain if path.parent != root})
        if (repeated := sorted(_shared(root, (p for p in plain if p.is_relative_to(root / folder)))))
    }
    shared = _shared(root, plain)
    modules = {_module(root, path): path for path in paths}
    imports = {name: imported(name, texts[path], modules) for name, path in modules.items()}
    circles = strong_parts({name: targets for name, targets in imports.items() if name != root.name})
    rooms = {name: _room(root, path) for name, path in modules.items()}
    upward = arrows_up(imports, rooms, layers, root.name)
    numbers = {
        "lines": sum(lines.values()),
        "files": len(paths),
        "siblings": max(siblings.values(), default=0),
        "small files": len(small),
        "names twice in a folder": sum(map(len, twice.values())),
        "shared names": len(shared),
        "fan-out": max(map(len, imports.values()), default=0),
        "circles": len(circles),
        "arrows up": len(upward),
    }
    for method in ("clip", "caft", "beta_clip"):
        text = texts.get(root / "methods" / f"{method}.py", "")
        numbers[f"names {method}.py imports"] = names_imported(text, root.name)
    return House(numbers, folders, dict(siblings), small, twice, shared, imports, circles, upward)


def names_imported(text: str, package: str) -> int:
    """How many names of the package a module imports."""
    return sum(
        len(node.names)
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == package
    )


def _folders(root: Path, paths: Iterable[Path]) -> list[str]:
    """The root and its folders, two levels deep, as paths below the root."""
    found = {path.parent.relative_to(root).parts[:2] for path in paths}
    return sorted("/".join(parts[:depth]) or "." for parts in found for depth in range(len(parts) + 1))


def _shared(root: Path, paths: Iterable[Path]) -> dict[str, list[str]]:
    """Base names that several files bear, with the files."""
    by_name = defaultdict(list)
    for path in paths:
        by_name[path.stem].append(path.relative_to(root).as_posix())
    return {name: files for name, files in sorted(by_name.items()) if len(files) > 1}


def _module(root: Path, path: Path) -> str:
    """The dotted name under which a file is imported."""
    parts = [root.name, *path.relative_to(root).with_suffix("").parts]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _room(root: Path, path: Path) -> str:
    """A folder of the second level below the root, or a file above that: data/scenes, data/record, model."""
    return "/".join(path.relative_to(root).with_suffix("").parts[:2])


# Imports


def imported(name: str, text: str, modules: Iterable[str]) -> set[str]:
    """The modules of the package that a module imports, itself not counted."""
    known = set(modules)
    found = {
        target if target in known else target.rpartition(".")[0]
        for node in ast.walk(ast.parse(text))
        for target in _targets(node)
    }
    return (found & known) - {name}


def _targets(node: ast.AST) -> Iterator[str]:
    """What a statement imports: modules, or names inside modules."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom) and node.level == 0:
        yield from (f"{node.module}.{alias.name}" for alias in node.names)


def strong_parts(graph: Graph) -> list[list[str]]:
    """Sets of two or more nodes each of which leads to every other one: a circle or several that meet."""
    reach = {node: _reached(graph, node) for node in graph}
    parts = {
        tuple(sorted({node} | {other for other in reach[node] if node in reach.get(other, ())}))
        for node in graph
    }
    return sorted(list(part) for part in parts if len(part) > 1)


def _reached(graph: Graph, start: str) -> set[str]:
    found: set[str] = set()
    left = list(graph[start])
    while left:
        node = left.pop()
        if node not in found:
            found.add(node)
            left += graph.get(node, ())
    return found


def arrows_up(imports: Graph, rooms: Mapping[str, str], layers: Layers, package: str) -> Arrows:
    """Imports that run up: by the layers, and between the folders of one top-level folder.

    A room is a second-level folder, or a file above that. Rooms that no layer names have no order: of those
    that import each other in a circle, the order counts in which the fewest imports run up. The package's own
    `__init__` belongs to no layer.
    """
    height = {part: i for i, layer in enumerate(layers) for part in layer}
    arrows = [(a, b) for a, targets in imports.items() for b in sorted(targets) if package not in (a, b)]
    found, inside = [], defaultdict(list)
    for a, b in arrows:
        here, there = rooms[a], rooms[b]
        low, high = (room if room in height else room.split("/")[0] for room in (there, here))
        if low != high:
            found += [(a, b)] if height.get(low, 0) >= height.get(high, len(layers)) else []
        elif here != there:
            inside[here.split("/")[0]].append((a, b))
    return found + [arrow for some in inside.values() for arrow in _against(some, rooms)]


def _against(arrows: Arrows, rooms: Mapping[str, str]) -> Arrows:
    """Few arrows whose removal leaves the rooms in an order: rooms move one at a time."""
    graph: dict[str, set[str]] = defaultdict(set)
    for a, b in arrows:
        graph[rooms[a]].add(rooms[b])
        graph[rooms[b]] |= set()
    found = []
    for circle in strong_parts(graph):
        some = [(a, b) for a, b in arrows if rooms[a] in circle and rooms[b] in circle]
        order, up = circle, _up(some, circle, rooms)
        for _, room, place in product(range(4), circle, range(len(circle))):
            rest = [other for other in order if other != room]
            moved = [*rest[:place], room, *rest[place:]]
            if len(now := _up(some, moved, rooms)) <= len(up):  # equal ones too, or it gets stuck
                order, up = moved, now
        found += up
    return found


def _up(arrows: Arrows, order: list[str], rooms: Mapping[str, str]) -> Arrows:
    """The arrows from a room to one that stands behind it."""
    place = {room: i for i, room in enumerate(order)}
    return [(a, b) for a, b in arrows if place[rooms[b]] > place[rooms[a]]]


def layers_of(checkout: Path) -> Layers:
    """LAYERS of tests/test_layers.py, read without running it; none where there is no such file."""
    path = checkout / "tests" / "test_layers.py"
    for node in ast.parse(path.read_text(encoding="utf-8")).body if path.exists() else ():
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "LAYERS":
            layers: Layers = ast.literal_eval(node.value)
            return layers
    return []


def tests_of(checkout: Path) -> tuple[int, int, int]:
    """Files, lines and test functions in tests/."""
    texts = [path.read_text(encoding="utf-8") for path in sorted((checkout / "tests").rglob("*.py"))]
    functions = (node for text in texts for node in ast.walk(ast.parse(text)))
    number = sum(isinstance(node, ast.FunctionDef) and node.name.startswith("test_") for node in functions)
    return len(texts), sum(len(text.splitlines()) for text in texts), number


# Showing


def table(house: House) -> str:
    """The measures with their limits, and what is behind them."""
    lines = [f"{'':28}{'now':>8}{'limit':>8}"]
    lines += [f"{name:28}{number:8,}{LIMITS[name]:8,}" for name, number in house.numbers.items()]
    lines += ["", f"{'folder':28}{'files':>8}{'lines':>8}{'own files':>11}"]
    for folder, (files, length) in house.folders.items():
        lines.append(f"{folder:28}{files:8}{length:8,}{house.siblings.get(folder, 0):11}")
    lines += ["", "Names twice in a folder"]
    lines += [f"  {folder}: {', '.join(names)}" for folder, names in house.twice.items()]
    number = sum(map(len, house.shared.values()))
    listed = ", ".join(f"{name} x{len(files)}" for name, files in house.shared.items())
    lines += ["", f"Names of several files ({number} files): {listed}", "", "Largest fan-out"]
    largest = sorted(house.imports.items(), key=lambda pair: (-len(pair[1]), pair[0]))
    lines += [f"  {len(targets):3} {name}" for name, targets in largest[:10]]
    for name, targets in largest[:1]:
        lines.append(f"  {name}: {', '.join(sorted(target.partition('.')[2] for target in targets))}")
    lines += [f"Circle: {', '.join(circle)}" for circle in house.circles]
    lines += [f"Up: {a} imports {b}" for a, b in house.upward]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description="Measures of the package, with limits.")
    parser.add_argument("--path", type=Path, default=Path(__file__).parent.parent, help="another checkout")
    parser.add_argument("--limits", action="store_true", help="exit code 1 where a limit is exceeded")
    asked = parser.parse_args()
    house = measure(asked.path.resolve() / PACKAGE, layers_of(asked.path))
    print(table(house))
    print("\nTests: {} files, {:,} lines, {:,} test functions".format(*tests_of(asked.path)))
    over = [f"{name} {n:,}, limit {LIMITS[name]:,}" for name, n in house.numbers.items() if n > LIMITS[name]]
    if asked.limits and over:
        sys.exit(f"house.py: {'; '.join(over)}: take something away, or say in LIMITS why it grew")


if __name__ == "__main__":
    main()
