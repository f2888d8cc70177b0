"""Measuring so that the numbers mean something: paired ratios, and peaks of memory in fresh processes.

Two traps are taken care of:
  1. By default malloc gives large blocks back to the system after every use, and the next step pays for the
     page faults. That flatters code with small temporaries. `keep_pages()` starts the program again with
     settings that keep the pages, as the caching allocator of a GPU does.
  2. `ru_maxrss` is inherited from the parent. `fresh_peak` starts a process of its own, resets the kernel's
     high-water mark just before the call and reads VmHWM after it (Linux only). There malloc keeps its
     default settings: pages kept from an earlier use would hide what a later one needs.

Ratios come from pairs that ran one right after the other, in turns, so that a slow minute of a shared machine
hits both sides. Speeds in absolute numbers belong to one machine; ratios travel.

A benchmark is a module with `keep_pages()` as the first line of its main part, run as
`python -m benchmarks.bench_loading` from the root of the repository. Every result is one line of JSON and one
line for people, both from `report`.
"""

import ctypes
import importlib
import json
import math
import os
import subprocess
import sys
import timeit
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

_MALLOC = {
    "MALLOC_MMAP_THRESHOLD_": "4000000000",
    "MALLOC_TRIM_THRESHOLD_": "20000000000",
    "MALLOC_TOP_PAD_": "268435456",
}


def keep_pages() -> None:
    """Start this program again with malloc set to keep its pages; returns at once if it already is."""
    if any(os.environ.get(name) != value for name, value in _MALLOC.items()):
        sys.stdout.flush()
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], {**os.environ, **_MALLOC})


class Ratio(NamedTuple):
    """How many times as long one side takes as the other."""

    median: float
    low: float  # the interval of the median
    high: float
    coverage: float  # the probability that it holds the true median, whatever the distribution

    def __str__(self) -> str:
        return f"{self.median:.2f} ({self.low:.2f} to {self.high:.2f})"


def paired(a: Callable[[], Any], b: Callable[[], Any], repeats: int = 7) -> Ratio:
    """Time of b over time of a: above 1 if a is the faster one.

    Each side runs once to warm up, then `repeats` times in pairs a b, b a, a b, ... The interval is that of
    the order statistics of the ratios, at 95 % or more where there are at least six pairs.
    """
    a(), b()
    ratios = []
    for turn in range(repeats):
        if turn % 2 == 0:
            first, second = seconds(a), seconds(b)
        else:
            second, first = seconds(b), seconds(a)
        ratios.append(second / first)
    return interval(ratios)


def seconds(call: Callable[[], Any]) -> float:
    """Wall-clock time of one call; no garbage is collected meanwhile, which takes 0.2 s beside torch."""
    return timeit.timeit(call, number=1)


def interval(values: list[float]) -> Ratio:
    """The median, and the narrowest pair of order statistics around it that covers 95 %, else the widest.

    >>> interval([5.0, 1.0, 3.0, 2.0, 7.0, 4.0, 6.0])
    Ratio(median=4.0, low=1.0, high=7.0, coverage=0.984375)
    """
    ordered, n = sorted(values), len(values)
    middle = (ordered[(n - 1) // 2] + ordered[n // 2]) / 2
    skipped = max((k for k in range(n // 2) if _coverage(n, k) >= 0.95), default=0)
    return Ratio(middle, ordered[skipped], ordered[n - 1 - skipped], _coverage(n, skipped))


def _coverage(n: int, skipped: int) -> float:
    """Probability that the median lies between the values that are left without `skipped` at either end."""
    return 1 - 2 * sum(math.comb(n, k) for k in range(skipped + 1)) / 2**n


def report(
    what: str,
    value: Ratio | float,
    unit: str,
    *,
    at_most: float | None = None,
    at_least: float | None = None,
    **facts: Any,
) -> None:
    """Print a result as one line of JSON and as one line for people.

    what      what was measured, such as "gradcache: cached step / step"
    unit      "x" for ratios, "s", "MiB", "images/s"
    at_most, at_least  the gate, if there is one; it holds if the median is on its side
    facts     whatever else belongs to the result: sizes, device, absolute times
    """
    ratio = value if isinstance(value, Ratio) else None
    middle = value.median if isinstance(value, Ratio) else value
    line: dict[str, Any] = {"what": what, "value": middle, "unit": unit}
    if ratio is not None:
        line |= {"low": ratio.low, "high": ratio.high, "coverage": ratio.coverage}
    gate = ""
    if at_most is not None or at_least is not None:
        holds = middle <= (at_most if at_most is not None else math.inf) and middle >= (at_least or -math.inf)
        line |= {"at_most": at_most, "at_least": at_least, "holds": holds}
        bound = f"<= {at_most:g}" if at_most is not None else f">= {at_least:g}"
        gate = f"gate {bound}: {'holds' if holds else 'MISSED'}"
    print(json.dumps(line | facts))
    ends = "" if ratio is None else f" ({ratio.low:.3g} to {ratio.high:.3g})"
    shown = f"{middle:.3g}{ends}" if abs(middle) < 1000 else f"{middle:.0f}{ends}"
    print(f"# {what:58} {shown:>24} {unit:11} {gate}".rstrip(), flush=True)


class Peak(NamedTuple):
    """One call in a process of its own."""

    seconds: float
    mib: float  # largest resident memory during the call, the interpreter and its imports included
    before: float  # resident memory in MiB when the call began

    @property
    def more(self) -> float:
        """MiB that the call needed beyond what was there when it began."""
        return self.mib - self.before


def fresh_peak(call: str, *arguments: Any) -> Peak:
    """Run `module:function` with JSON-like arguments in a new process and measure what it returns.

    The function prepares the inputs and returns the call to measure, so that the temporaries of the
    preparation, however large, hide nothing. What both print goes to stderr.
    """
    default = {name: value for name, value in os.environ.items() if name not in _MALLOC}
    command = [sys.executable, "-m", "benchmarks.harness", call, json.dumps(arguments)]
    done = subprocess.run(
        command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parent.parent, env=default, check=True
    )
    return Peak(*json.loads(done.stdout))


def _measure(call: str, arguments: list[Any]) -> Peak:
    module, name = call.split(":")
    measured = getattr(importlib.import_module(module), name)(*arguments)
    ctypes.CDLL(None).malloc_trim(0)  # what the preparation has freed goes back to the system
    before = _status("VmRSS")
    Path("/proc/self/clear_refs").write_text(
        "5", encoding="ascii"
    )  # VmHWM falls back to what is resident now
    duration = seconds(measured)
    return Peak(duration, _status("VmHWM"), before)


def _status(field: str) -> float:
    """A line of /proc/self/status in MiB."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(field + ":"))


def _main() -> None:
    report = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # only the report goes to the pipe
    report.write(json.dumps(_measure(sys.argv[1], json.loads(sys.argv[2]))))
    report.close()


if __name__ == "__main__":
    _main()
