"""Short measurements on a GPU: block by block, each line written as it comes, resumable.

    python -m benchmarks.gpu_blocks OUT.jsonl [--only BLOCK ...] [--minutes 5] [--rehearse]
    python -m benchmarks.gpu_blocks OUT.jsonl --table

A GPU may be there for a quarter of an hour. So the blocks that decide most come first, each runs in a process
of its own and ends after some minutes, and what it has printed is in OUT. While a block runs, the process of
the next one imports what it needs, and waits. A block that ended well is not run again.
`--table` prints what has a goal as a table of Markdown. `--rehearse` runs all blocks on a CPU in
tiny shapes.
"""

import argparse
import json
import os
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import torch

STEPS = ("-m", "benchmarks.bench_gpu_steps", "--only")
LOADER = ("-m", "benchmarks.bench_loader")
TESTS = [f"tests/test_{name}.py" for name in ("gpu", "golden", "farthest", "checkpoint", "sharded")]
CEILING = "steps: ceiling, product in bfloat16"
FIRST = """
import runpy, sys
import torch, transformers, grainline.methods, grainline.training.step
if sys.stdin.readline():
    sys.argv = sys.argv[1:]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
"""
"""What a process imports before its turn, the slow part of a short block."""


class Block(NamedTuple):
    """A command, and what it decides."""

    command: tuple[str, ...]
    decides: str
    kernels: str = "auto"  # GRAINLINE_KERNELS


BLOCKS = {
    "tests": Block(
        ("-m", "pytest", "-q", "-n", "8", "-p", "no:benchmark", "-m", "gpu", *TESTS),
        "right or wrong; nothing else counts if wrong",
    ),
    "step of CAFT": Block((*STEPS, "caft"), "what packing and compiling bring; the share of the ceiling"),
    "step of CLIP": Block((*STEPS, "clip"), "the same, beside open_clip's step"),
    "step of beta-CLIP": Block((*STEPS, "beta_clip"), "the same"),
    "methods": Block((*STEPS, "methods"), "steps of the papers' recipes, and scores"),
    "methods by torch": Block((*STEPS, "methods"), "the same without: what the kernels bring", "off"),
    "loader": Block(LOADER, "images a second of the host, by workers"),
}


def start(block: Block, rehearse: bool) -> subprocess.Popen[str]:
    """A process that waits for its turn, a line of its input."""
    command = [*block.command]
    if command[1].startswith("benchmarks."):  # pytest wants to be imported first
        command = ["-c", FIRST, *command[1:], *(["--rehearse"] if rehearse else [])]
    pipe: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    environment = os.environ | {"GRAINLINE_KERNELS": block.kernels}
    return subprocess.Popen([sys.executable, *command], stdin=subprocess.PIPE, env=environment, **pipe)


def run(name: str, block: Block, process: subprocess.Popen[str], out: Path, minutes: float) -> None:
    """Let a block go and append its lines; the last line says how it ended."""
    facts = {"block": name, "kernels": block.kernels, "device": device(), "torch": torch.__version__}
    with out.open("a", encoding="utf-8") as file, process:

        def write(line: dict[str, Any]) -> None:
            file.write(json.dumps(facts | line) + "\n")
            file.flush()

        last = ""
        timer = threading.Timer(60 * minutes, process.kill)
        timer.start()
        assert process.stdin is not None
        assert process.stdout is not None
        with suppress(BrokenPipeError):  # it may have ended by itself
            process.stdin.write("go\n")
            process.stdin.close()
        for text in process.stdout:
            last = text.strip() or last
            if text.startswith("{"):
                write(json.loads(text))
            else:
                print(text, end="", flush=True)
        code = process.wait()
        timer.cancel()
        write({"ended": code, "last": last})


def device() -> str:
    return torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU, a rehearsal"


def lines_of(out: Path) -> list[dict[str, Any]]:
    return [json.loads(text) for text in out.read_text(encoding="utf-8").splitlines()] if out.exists() else []


def table(lines: list[dict[str, Any]]) -> str:
    """What has a gate, as a table in Markdown: the last value of each, and the first where they differ.

    The ceiling is that of products in bfloat16.
    """
    rows: dict[str, tuple[str, ...]] = {}
    ceiling = {line["device"]: line["value"] for line in lines if line.get("what") == CEILING}
    for line in lines:
        for sign, key in (("<=", "at_most"), (">=", "at_least")):
            if line.get(key) is not None:
                first, now = rows.get(line["what"], (number(line["value"]),))[0], number(line["value"])
                gate = f"{sign} {number(line[key])}"
                speed = f"{line['tflops']:.0f}" if "tflops" in line else ""
                if speed and line["unit"] != "%" and line["device"] in ceiling:
                    speed += f" ({line['tflops'] / ceiling[line['device']]:.0%})"
                holds = "yes" if line["holds"] else "no"
                rows[line["what"]] = first, now, gate, holds, line["unit"], speed
    out = ["| what | unit | first | last | gate | holds | TFLOP/s (of the ceiling) |"]
    out.append("| --- | --- | --- | --- | --- | --- | --- |")
    for what, (first, now, gate, holds, unit, speed) in rows.items():
        before = "" if first == now else first
        out.append(f"| {what} | {unit} | {before} | {now} | {gate} | {holds} | {speed} |")
    return "\n".join(out)


def number(value: float) -> str:
    """Three digits, more of whole numbers.

    >>> number(3.04e8), number(4149.2), number(73.915)
    ('304 million', '4,149', '73.9')
    """
    if abs(value) >= 1e6:
        return f"{value / 1e6:,.0f} million"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def failures(lines: list[dict[str, Any]]) -> list[str]:
    """Which blocks did not end well the last time."""
    ends = {line["block"]: line for line in lines if "ended" in line}
    return [f"# {name} did not end well: {x['last'][:100]}" for name, x in ends.items() if x["ended"]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("out", type=Path)
    parser.add_argument("--only", nargs="+", choices=BLOCKS, default=list(BLOCKS))
    parser.add_argument("--minutes", type=float, default=5.0, help="the most of a block")
    parser.add_argument("--rehearse", action="store_true", help="on a CPU, to see that it runs")
    parser.add_argument("--table", action="store_true", help="print what is in OUT")
    args = parser.parse_args()
    if args.table:
        lines = lines_of(args.out)
        print("\n".join([table(lines), "", *failures(lines)]))
        return
    if not (torch.cuda.is_available() or args.rehearse):
        print("# no CUDA device: nothing is measured; --rehearse runs everything in tiny shapes")
        return
    done = {line["block"] for line in lines_of(args.out) if line.get("ended") == 0}
    for name in args.only:
        if name in done:
            print(f"# {name}: is in {args.out}")
    names = [name for name in args.only if name not in done]
    processes = [start(BLOCKS[name], args.rehearse) for name in names[:1]]
    for name, after in zip(names, [*names[1:], None], strict=True):
        print(f"# {name}: {BLOCKS[name].decides}", flush=True)
        if after is not None:
            processes.append(start(BLOCKS[after], args.rehearse))
        run(name, BLOCKS[name], processes.pop(0), args.out, args.minutes)


if __name__ == "__main__":
    main()
