"""Plants one fault at a time in a copy of the package and checks that the tests catch each.

    make mutants                             everything: minutes on two cores
    python tests/mutants.py --only sampler   the faults whose file, tests or explanation hold the word
    python tests/mutants.py --part 2/3       the second third of them
    python tests/mutants.py --dry            plants none: each text stands once in its file, tests exist

First the named tests run on an unchanged copy. A fault counts as caught when a test fails; a copy that cannot
be imported, or a text to replace that is no longer there exactly once, is a mistake in faults.py and is
reported as such. The working tree is never touched. Tests run in processes that are forked from one which has
imported torch and other libraries, but nothing of grainline. Exit code 1 if a fault survives or is mistaken.
"""

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from functools import cache
from multiprocessing import get_context
from pathlib import Path

from faults import FAULTS, Fault

ROOT = Path(__file__).parent.parent
LEFT_OUT = (".git", ".venv", "venv", "out", "runs", "dist", "build", ".hypothesis", ".*_cache")
PATIENCE = 600  # seconds; a fault that makes the tests hang is caught as well
OWN = {ROOT, ROOT / "tests"}
LIBRARIES = [
    "torch",
    "torch.utils.data",
    "torch.distributed",
    "numpy",
    "scipy.stats",
    "pydantic",
    "PIL.Image",
]
LIBRARIES += ["rich.console", "rich.table", "typer", "jinja2", "yaml", "pytest"]
FORKED = get_context("forkserver")
FORKED.set_forkserver_preload(LIBRARIES)
PASSED, FAILED = 0, 1  # of pytest; its other exit codes say that no test ran to its end


def main() -> int:
    parser = argparse.ArgumentParser(description="Plant faults; the tests must catch each.")
    parser.add_argument("--only", default="", help="a word in the file, tests or explanation of the faults")
    parser.add_argument("--part", default="1/1", help="which part of how many, such as 2/3")
    parser.add_argument("--jobs", type=int, default=2, help="how many to try at a time")
    parser.add_argument("--dry", action="store_true", help="only check the texts and tests of the faults")
    args = parser.parse_args()
    faults = [x for x in FAULTS if any(args.only in text for text in (x.file, x.tests, x.breaks))]
    part, parts = map(int, args.part.split("/"))
    faults = faults[part - 1 :: parts]
    if not faults:
        print(f"no fault has {args.only!r} in its file, tests or explanation")
        return 1
    complaints = {fault: complaint for fault in faults if (complaint := mistake_in(fault))}
    for fault, complaint in complaints.items():
        print(f"MISTAKEN  {fault.file}: {complaint}")
    if args.dry:
        print(f"{len(faults) - len(complaints)} of {len(faults)} faults can be planted")
        return 1 if complaints else 0
    tests = sorted({test for fault in faults for test in fault.tests.split()})
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        original = copied(ROOT, Path(folder), "__pycache__")
        with ThreadPoolExecutor(args.jobs) as pool:
            if not sound(original, tests, pool):
                return 1
            print(f"the tests pass unchanged, {time.monotonic() - started:.0f} s", flush=True)
            tried = [fault for fault in faults if fault not in complaints]
            outcomes = list(pool.map(lambda fault: reported(fault, original), tried))
    caught = outcomes.count("caught")
    print(f"{caught} of {len(faults)} faults were caught, {time.monotonic() - started:.0f} s")
    return 0 if caught == len(faults) else 1


def sound(copy: Path, tests: Sequence[str], pool: Executor) -> bool:
    """Whether the tests pass on an unchanged copy, and read that copy."""
    ask = [sys.executable, "-c", "import grainline; print(grainline.__file__)"]
    found = subprocess.run(ask, cwd=copy, env=surroundings(copy), capture_output=True, text=True, check=True)
    assert found.stdout.startswith(str(copy)), f"the tests would read {found.stdout.strip()}"
    verdicts = dict(
        zip(tests, pool.map(lambda test: verdict(copy, [test], compiles=True), tests), strict=True)
    )
    for test, (code, output) in verdicts.items():
        if code != PASSED:
            print(f"{test} ends with {code} on the unchanged package:\n{output}")
    return all(code == PASSED for code, _ in verdicts.values())


def reported(fault: Fault, original: Path) -> str:
    """Try a fault and print the line about it: caught, SURVIVED or MISTAKEN."""
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        copy = copied(original, Path(folder))
        place = copy / "grainline" / fault.file
        place.write_text(place.read_text(encoding="utf-8").replace(fault.old, fault.new), encoding="utf-8")
        code, output = verdict(copy, fault.tests.split())
    outcome = {PASSED: "SURVIVED", FAILED: "caught"}.get(code, "MISTAKEN")
    why = f"\n{output}" if outcome == "MISTAKEN" else ""
    seconds = f"{time.monotonic() - started:3.0f} s"
    print(f"{outcome:8}  {seconds}  {fault.file}: {fault.breaks}{why}", flush=True)
    return outcome


def mistake_in(fault: Fault) -> str:
    """What is wrong with the entry of a fault, or nothing."""
    place = ROOT / "grainline" / fault.file
    if not place.is_file():
        return "no such file"
    count = text_of(place).count(fault.old)
    if count != 1:
        return f"{count} times, not once: {fault.old!r}"
    if fault.old == fault.new:
        return f"nothing changes: {fault.old!r}"
    missing = [test for test in fault.tests.split() if not is_test(test)]
    return f"no such tests: {' '.join(missing)}" if missing or not fault.tests.split() else ""


def is_test(test: str) -> bool:
    """Whether a file, or FILE::NAME, is there."""
    file, _, name = test.partition("::")
    place = ROOT / file
    return place.is_file() and (not name or f"def {name.partition('[')[0]}(" in text_of(place))


@cache
def text_of(place: Path) -> str:
    """A file as it stands in the working tree."""
    return place.read_text(encoding="utf-8")


def copied(original: Path, folder: Path, *more: str) -> Path:
    """A copy of the repository inside a folder, without what is built, cached or written by runs.

    more  patterns of what else is left out. Compiled modules are good in a copy: times of files stay, and the
          file with the fault is newer than what it was compiled to.
    """
    ignored = shutil.ignore_patterns(*LEFT_OUT, *more)
    shutil.copytree(original, folder / "copy", ignore=ignored, symlinks=True)
    return folder / "copy"


def verdict(copy: Path, tests: Sequence[str], compiles: bool = False) -> tuple[int, str]:
    """Exit code of pytest on these files of the copy, and the end of what it printed.

    compiles  write compiled modules into the copy
    """
    output = copy / f"output-{threading.get_ident()}.txt"
    process = FORKED.Process(target=run_tests, args=(copy, list(tests), output, surroundings(copy, compiles)))
    process.start()
    process.join(PATIENCE)
    if process.exitcode is None:
        os.killpg(process.pid or 0, signal.SIGKILL)
        process.join()
        return FAILED, f"no end after {PATIENCE} s"
    return process.exitcode, output.read_text(encoding="utf-8", errors="replace")[-2000:]


def run_tests(copy: Path, tests: list[str], output: Path, environment: dict[str, str]) -> None:
    """In a forked process: pytest on the copy, with its output in a file, and its exit code."""
    os.setpgid(0, 0)
    place = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(place, 1)
    os.dup2(place, 2)
    os.chdir(copy)
    os.environ.update(environment)
    sys.argv = ["pytest"]
    sys.path[:] = [str(copy), *(path for path in sys.path if Path(path or ".").resolve() not in OWN)]
    sys.dont_write_bytecode = bool(environment["PYTHONDONTWRITEBYTECODE"])
    import pytest

    sys.exit(int(pytest.main(["-x", "-q", "-p", "no:cacheprovider", *tests])))


def surroundings(copy: Path, compiles: bool = False) -> dict[str, str]:
    """The copy goes before an installed grainline; one thread each; real data sets are left out of it."""
    own = {"PYTHONPATH": str(copy), "OMP_NUM_THREADS": "1"}
    own["PYTHONDONTWRITEBYTECODE"] = "" if compiles else "1"
    return {**os.environ, **own, "GRAINLINE_DATA": str(copy / "none")}


if __name__ == "__main__":
    sys.exit(main())
