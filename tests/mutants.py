"""Plants one fault at a time in a copy of the package and checks that the tests catch each.

    make mutants                             everything: a quarter of an hour at most on two cores
    python tests/mutants.py --only sampler   the faults whose place, tests or explanation hold the word
    python tests/mutants.py --dry            plants none: which entries of faults.py do not fit the code

First the named tests run on an unchanged copy. A fault counts as caught when a test fails. An entry that does
not fit the code, and a copy that cannot be imported, are reported as mistakes in faults.py. The working tree
is never touched. Tests run in processes that are forked from one that has imported torch and other libraries,
but nothing of grainline. Exit code 1 if a fault survives or is mistaken.
"""

import argparse
import ast
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import accumulate
from multiprocessing import get_context
from pathlib import Path

from faults import FAULTS, Fault

ROOT = Path(__file__).parent.parent
LEFT_OUT = (".git", ".venv", "venv", "out", "runs", "dist", "build", ".hypothesis", ".*_cache")
PATIENCE = 180  # seconds; a fault that makes the tests hang is caught as well
OWN = {ROOT, ROOT / "tests"}
FORKED = get_context("forkserver")
LIBRARIES = "torch scipy.stats pydantic PIL.Image rich.console rich.table typer jinja2 yaml pytest"
FORKED.set_forkserver_preload(LIBRARIES.split())
PASSED, FAILED = 0, 1  # of pytest; its other exit codes say that no test ran to its end


def main() -> int:
    parser = argparse.ArgumentParser(description="Plant faults; the tests must catch each.")
    parser.add_argument("--only", default="", help="a word in the place, tests or explanation of the faults")
    parser.add_argument("--jobs", type=int, default=2, help="how many to try at a time")
    parser.add_argument("--dry", action="store_true", help="only check that the entries fit the code")
    args = parser.parse_args()
    faults = [x for x in FAULTS if any(args.only in text for text in (x.place, x.tests, x.breaks))]
    if not faults:
        print(f"no fault has {args.only!r} in its place, tests or explanation")
        return 1
    started, fitting = time.monotonic(), []
    for fault in faults:
        try:
            planted(fault)
            fitting.append(fault)
        except (ValueError, SyntaxError) as error:
            print(f"MISTAKEN  {fault.place}: {error}  ({fault.breaks})")
    if args.dry:
        print(f"{len(fitting)} of {len(faults)} faults can be planted")
        return 0 if len(fitting) == len(faults) else 1
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(args.jobs) as pool:
        original = copied(ROOT, folder, "__pycache__")
        if not sound(original, fitting, pool):
            return 1
        print(f"the tests pass unchanged, {time.monotonic() - started:.0f} s", flush=True)
        caught = list(pool.map(lambda fault: is_caught(fault, original), fitting)).count(True)
    print(f"{caught} of {len(faults)} faults were caught, {time.monotonic() - started:.0f} s")
    return 0 if caught == len(faults) else 1


def planted(fault: Fault) -> tuple[Path, str]:
    """The file of a fault and its text with the fault in it; an error says why it cannot be planted."""
    file, name = fault.place.split()
    places = functions()[name]
    places = [place for place in places if place[0] == Path("grainline", file)] or places
    if len(places) != 1:
        raise ValueError(f"{len(places)} functions of this name in the package, not one")
    path, start, end = places[0]
    text = (ROOT / path).read_text(encoding="utf-8")
    pattern = r"\s+".join(map(re.escape, fault.old.split()))  # lines may be broken anywhere
    matches = list(re.compile(pattern).finditer(text, start, end))
    if len(matches) != 1:
        raise ValueError(f"in the function {len(matches)} times, not once: {fault.old!r}")
    for test in fault.tests.split():
        file, _, function = test.partition("[")[0].partition("::")
        place = ROOT / "tests" / file
        if not place.is_file() or (function and f"def {function}(" not in place.read_text(encoding="utf-8")):
            raise ValueError(f"no such test: {test}")
    changed = text[: matches[0].start()] + fault.new + text[matches[0].end() :]
    ast.parse(changed)
    return path, changed


@cache
def functions() -> dict[str, list[tuple[Path, int, int]]]:
    """File, start and end in its text of each function and class of the package, by qualified name."""
    places = defaultdict(list)
    for path in sorted((ROOT / "grainline").rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        starts = [0, *accumulate(len(line) + 1 for line in text.split("\n"))]
        nodes: list[tuple[str, ast.AST]] = [("", ast.parse(text))]
        for prefix, parent in nodes:
            for node in ast.iter_child_nodes(parent):
                name = prefix
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                    place = path.relative_to(ROOT), starts[node.lineno - 1], starts[node.end_lineno or 0]
                    places[prefix + node.name].append(place)
                    name = f"{prefix}{node.name}."
                nodes.append((name, node))
    return places


def sound(copy: Path, faults: Sequence[Fault], pool: ThreadPoolExecutor) -> bool:
    """Whether the tests pass on an unchanged copy, and read that copy."""
    ask = [sys.executable, "-c", "import grainline; print(grainline.__file__)"]
    answer = subprocess.run(ask, cwd=copy, env=surroundings(copy), capture_output=True, text=True, check=True)
    assert answer.stdout.startswith(str(copy)), f"the tests would read {answer.stdout.strip()}"
    files = defaultdict(set)
    for test in sorted({test for fault in faults for test in fault.tests.split()}):
        files[test.partition("::")[0]].add(test)
    verdicts = pool.map(lambda tests: verdict(copy, sorted(tests)), files.values())
    failures = [f"tests end with {code} unchanged:\n{output}" for code, output in verdicts if code != PASSED]
    print(*failures, sep="\n", end="")
    return not failures


def is_caught(fault: Fault, original: Path) -> bool:
    """Try a fault and print the line about it: caught, SURVIVED or MISTAKEN."""
    started = time.monotonic()
    path, changed = planted(fault)
    with tempfile.TemporaryDirectory() as folder:
        copy = copied(original, folder)
        (copy / path).write_text(changed, encoding="utf-8")
        code, output = verdict(copy, fault.tests.split())
    outcome = {PASSED: "SURVIVED", FAILED: "caught"}.get(code, "MISTAKEN")
    why = f"\n{output}" if outcome == "MISTAKEN" else ""
    print(f"{outcome:8}  {time.monotonic() - started:3.0f} s  {fault.place}: {fault.breaks}{why}", flush=True)
    return outcome == "caught"


def copied(original: Path, folder: str, *more: str) -> Path:
    """A copy of the repository inside a folder, without what is built, cached or written by runs.

    more  patterns of what else is left out. Compiled modules are good in a copy: times of files stay, and the
          file with the fault is newer than what it was compiled to.
    """
    ignored = shutil.ignore_patterns(*LEFT_OUT, *more)
    return Path(shutil.copytree(original, Path(folder, "copy"), ignore=ignored, symlinks=True))


def verdict(copy: Path, tests: Sequence[str]) -> tuple[int, str]:
    """Exit code of pytest on these tests of the copy, and the end of what it printed."""
    output = copy / f"output-{threading.get_ident()}.txt"
    process = FORKED.Process(target=run_tests, args=(copy, tests, output))
    process.start()
    process.join(PATIENCE)
    if process.exitcode is None:
        os.killpg(process.pid or 0, signal.SIGKILL)
        process.join()
        return FAILED, f"no end after {PATIENCE} s"
    return process.exitcode, output.read_text(encoding="utf-8", errors="replace")[-2000:]


def run_tests(copy: Path, tests: Sequence[str], output: Path) -> None:
    """In a forked process: pytest on the copy, with its output in a file, and its exit code."""
    os.setpgid(0, 0)
    place = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(place, 1)
    os.dup2(place, 2)
    os.chdir(copy)
    os.environ.update(surroundings(copy))
    sys.argv = ["pytest"]
    sys.path[:] = [str(copy), *(path for path in sys.path if Path(path or ".").resolve() not in OWN)]
    sys.dont_write_bytecode = False  # the next copy has them compiled
    import pytest

    sys.exit(int(pytest.main(["-x", "-q", "-p", "no:cacheprovider", *(f"tests/{test}" for test in tests)])))


def surroundings(copy: Path) -> dict[str, str]:
    """The copy goes before an installed grainline; one thread each; real data sets are left out of it."""
    own = {"PYTHONPATH": str(copy), "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": ""}
    return {**os.environ, **own, "GRAINLINE_DATA": str(copy / "none")}


if __name__ == "__main__":
    sys.exit(main())
