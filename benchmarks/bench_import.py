"""How long `import grainline` and `grainline --help` take as whole processes, beside an empty one.

python -m benchmarks.bench_import [--repeats 7]
"""

import argparse
import subprocess
import sys
from functools import partial
from statistics import median

from benchmarks.harness import interval, report, seconds

GATE = 0.4  # seconds
COMMANDS = {
    "python -c pass": [sys.executable, "-c", "pass"],
    "import grainline": [sys.executable, "-c", "import grainline"],
    "grainline --help": [sys.executable, "-m", "grainline", "--help"],
}


def run(command: list[str]) -> None:
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--repeats", type=int, default=7)
    args = parser.parse_args()
    times: dict[str, list[float]] = {name: [] for name in COMMANDS}
    for command in COMMANDS.values():  # once before, so that files are in the system's cache
        run(command)
    for _ in range(args.repeats):
        for name, command in COMMANDS.items():
            times[name].append(seconds(partial(run, command)))
    empty = median(times["python -c pass"])
    for name, measured in times.items():
        bound = None if name == "python -c pass" else GATE
        beyond = round(median(measured) - empty, 4)
        report(f"import: {name}", interval(measured), "s", at_most=bound, beyond_python=beyond)


if __name__ == "__main__":
    main()
