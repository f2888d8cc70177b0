"""The notebooks run from top to bottom. Needs the extra `docs`, which CI installs with `make docs`."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def test_all_notebooks_run() -> None:
    pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    env = {name: value for name, value in os.environ.items() if name != "NOTEBOOKS"}
    ran = subprocess.run(
        [sys.executable, "docs/gen.py", "notebooks"],
        cwd=ROOT,
        env=env,
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
    assert ran.stdout.count("cells ran") == 3
