"""Blocks of measurements: lines are written as they come, and a block that ended well is not run again."""

import json
import sys
from pathlib import Path

import pytest
import torch

from benchmarks import gpu_blocks
from benchmarks.gpu_blocks import Block, failures, lines_of, main, table

GOOD = """
import os
from benchmarks.harness import report
report("speed", 2.0, "x", at_least=1.0)
report("memory", 5_000.0, "MiB", at_most=1536.0)
print(os.environ["GRAINLINE_KERNELS"])
"""


def run(name: str, block: Block, out: Path, minutes: float) -> None:
    gpu_blocks.run(name, block, gpu_blocks.start(block, rehearse=True), out, minutes)


def test_lines_say_their_block_and_how_it_ended(tmp_path: Path) -> None:
    out = tmp_path / "x.jsonl"
    run("good", Block(("-c", GOOD), "", "off"), out, 1)
    run("bad", Block(("-c", "print('almost'); raise SystemExit(3)"), ""), out, 1)
    speed, memory, good, bad = lines_of(out)
    assert (speed["block"], speed["what"], speed["value"], speed["kernels"]) == ("good", "speed", 2.0, "off")
    assert memory["holds"] is False
    assert (good["ended"], good["last"]) == (0, "off")
    assert (bad["block"], bad["ended"], bad["last"]) == ("bad", 3, "almost")
    ceiling = speed | {"what": gpu_blocks.CEILING, "value": 800.0, "at_least": None}
    lines = [*lines_of(out), speed | {"value": 3e6, "tflops": 200.0}, ceiling]
    assert table(lines).splitlines()[2:] == [
        "| speed | x | 2 | 3 million | >= 1 | yes | 200 (25%) |",
        "| memory | MiB |  | 5,000 | <= 1,536 | no |  |",
    ]
    assert failures(lines_of(out)) == ["# bad did not end well: almost"]


def test_a_block_that_takes_too_long_keeps_its_lines(tmp_path: Path) -> None:
    code = GOOD + "import time; time.sleep(60)"
    run("slow", Block(("-c", code), ""), tmp_path / "x.jsonl", 0.05)
    *lines, end = lines_of(tmp_path / "x.jsonl")
    assert end["ended"] < 0
    assert len(lines) in (0, 2), "three seconds may be too short to import"


def test_what_ended_well_is_not_run_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out, count = tmp_path / "x.jsonl", tmp_path / "count"
    once = f"open({str(count)!r}, 'a').write('x')"
    again = f"{once}; raise SystemExit(1)"
    blocks = {"once": Block(("-c", once), ""), "again": Block(("-c", again), "")}
    monkeypatch.setattr(gpu_blocks, "BLOCKS", blocks)
    monkeypatch.setattr(sys, "argv", ["gpu_blocks", str(out), "--rehearse"])
    main()
    main()
    assert count.read_text() == "xxx"
    assert "once: is in" in capsys.readouterr().out
    assert [json.loads(line)["block"] for line in out.read_text().splitlines()] == ["once", "again", "again"]


def test_attention_with_a_mask_counts_the_pairs_that_are_read() -> None:
    """And without one all pairs, as torch counts."""
    from benchmarks.bench_gpu_steps import flop_of_rows

    q, k = torch.empty(2, 3, 4, 5), torch.empty(2, 3, 6, 5)
    bias = torch.full((2, 1, 4, 6), -torch.inf)
    bias[0, 0, 1, :3] = 0
    assert flop_of_rows(2, 0, 3)(q, k, k, bias) == 2 * 2 * 3 * (3 * 5)
    assert flop_of_rows(5, 1, 4)(q, q, k, k, None) == 2 * 5 * 2 * 4 * 6 * (3 * 5)
