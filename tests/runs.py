"""A tiny recipe, the command line called in this process, and what a run folder says."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from grainline.cli.main import main
from grainline.training.log import TIMES, read_log

RECIPE = """
method: clip
model:
  image: {name: toy/8, size: 32, depth: 2, drop_path: 0.5}
  text: {name: toy, vocab: 600, context: 64, depth: 2, drop_path: 0.5}
  width: 32
data:
  paths: ["scenes:train?count=36"]
  texts: {subset: 0.5, foils: 1}
  workers: 0
train:
  max_steps: 6
  global_batch_size: 8
  precision: fp32
  log_every: 1
  save_every: 2
"""


def recipe(folder: Path, method: str = "clip") -> str:
    """The tiny recipe as a file in a folder."""
    path = folder / f"{method}.yaml"
    path.write_text(RECIPE.replace("method: clip", f"method: {method}"))
    return str(path)


def call(*arguments: object) -> int:
    """Run `grainline ARGUMENTS` in this process; its exit code."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["grainline", *map(str, arguments)])
        with pytest.raises(SystemExit) as end:
            main()
    assert isinstance(end.value.code, int)
    return end.value.code


def complaint(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    """The one line that `grainline ARGUMENTS` ends with; anything but a user's error fails."""
    capsys.readouterr()
    code, error = call(*arguments), capsys.readouterr().err
    assert code == 2, error
    assert error.startswith("grainline: ")
    assert error.endswith("\n")
    assert error.count("\n") == 1, error
    assert "Traceback" not in error
    return error.strip()


def logged(run: Path) -> list[dict[str, Any]]:
    """The lines of a run's log without what differs between two runs that do the same."""
    return [{k: v for k, v in line.items() if k not in TIMES} for line in read_log(run)]


def steps_done(run: Path) -> int:
    """The last step in the log of a run that may be writing it just now; 0 where there is none yet."""
    path = run / "log.jsonl"
    lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
    return max((int(json.loads(line)["step"]) for line in lines if b'"kind": "train"' in line), default=0)
