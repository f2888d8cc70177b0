"""How fast the demo trains beside a busy process, and two demos beside each other, against one alone.

python -m benchmarks.bench_threads [--repeats 7] [--steps 30] [--plain]

Alone means with a thread on every core. Waiting threads of torch spin for 3 ms by default and take the cores
from others; grainline has them sleep after 10 us (set when it is imported), and training leaves one core to
others. `--plain` measures with the defaults of libgomp and torch.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

from benchmarks.harness import interval, report
from grainline.distributed import usable_cores

SKIP = 5  # first steps, in which data and caches warm up
GATES = {"beside a busy process": 0.55, "each of two": 0.45}
BUSY = "while True: pass"


def start(out: Path, steps: int, all_cores: bool, spin: bool) -> "subprocess.Popen[bytes]":
    command = [sys.executable, "-m", "grainline", "train", "maxsim/scenes", "--out", str(out), "--set"]
    command += [f"train.max_steps={steps}", "train.log_every=1", f"train.save_every={steps}"]
    env = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    env |= {"OMP_NUM_THREADS": str(usable_cores())} if all_cores else {}
    env |= {"GOMP_SPINCOUNT": "300000"} if spin else {}
    return subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def speed(out: Path) -> float:
    """Images per second, from the times of the steps in the log."""
    lines = [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]
    times = [line["time"] for line in lines if line["kind"] == "train"]
    return 64 * (len(times) - 1 - SKIP) / (times[-1] - times[SKIP])


def run(kind: str, steps: int, plain: bool) -> float:
    """Images per second of one training: alone, beside a busy process, or the slower of two."""
    with tempfile.TemporaryDirectory() as folder:
        outs = [Path(folder) / str(i) for i in range(2 if kind == "each of two" else 1)]
        busy = subprocess.Popen([sys.executable, "-c", BUSY]) if kind.startswith("beside") else None
        try:
            for process in [start(out, steps, plain or kind == "alone", plain) for out in outs]:
                if process.wait():
                    sys.exit("training failed")
        finally:
            if busy:
                busy.kill()
                busy.wait()
        return min(map(speed, outs))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--plain", action="store_true")
    args = parser.parse_args()
    run("alone", args.steps, args.plain)
    for kind, gate in GATES.items():
        pairs = []
        for _ in range(args.repeats):
            alone = run("alone", args.steps, args.plain)
            pairs.append(run(kind, args.steps, args.plain) / alone)
        name = f"threads{' as torch has them' if args.plain else ''}: speed {kind} over alone"
        report(name, interval(pairs), "x", at_least=gate, median_pair=round(median(pairs), 3))


if __name__ == "__main__":
    main()
