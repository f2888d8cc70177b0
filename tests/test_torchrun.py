"""Two processes train as one does, sharded or not, from command line to last weights; once under torchrun."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from processes import together
from runs import call, logged, recipe
from safetensors.torch import load_file

from grainline.training import loop

CASES = {
    "plain": ("train.max_steps=5", "data.workers=1", "data.texts.foils=2"),
    "accumulated": (
        "train.max_steps=4",
        "train.grad_accum=2",
        "train.grad_cache_chunk=3",
        "train.global_batch_size=12",
    ),
    "words of images": (
        "method=mosaic",
        "model.visual_words=8",
        "model.text_words=8",
        "model.roots=false",
        "train.max_steps=2",
    ),
    "sharded": (
        "train.max_steps=4",
        "train.fsdp=true",
        'data.validation=["scenes:dev?count=3"]',
        "train.validate_every=2",
    ),
    "sharded and tuned": (
        "train.max_steps=4",
        "train.fsdp=true",
        "train.lora={rank: 2}",
        "train.optimizer.layer_decay=0.7",
        "train.activation_checkpointing=true",
    ),
    "tuned": (
        "train.max_steps=4",
        "train.lora={rank: 2, targets: 'towers.text.*to_(qkv|out)'}",
        "train.optimizer.layer_decay=0.7",
        "train.optimizer.rules=[{pattern: 'towers.image.*', lr_factor: 0}, {pattern: '.*'}]",
        "train.activation_checkpointing=true",
        "train.grad_cache_chunk=3",
    ),
}
STEADY = ("train.optimizer.eps=1e-3", "train.save_every=3")  # AdamW divides tiny gradients by themselves


def arguments(folder: Path, case: str, out: Path) -> list[str]:
    return ["train", recipe(folder), "--out", str(out), "--set", *STEADY, *CASES[case]]


@pytest.fixture(scope="module", params=CASES)
def both(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The run of one process, and that of two with the same global batch."""
    folder = tmp_path_factory.mktemp(request.param)
    one, two = folder / "one", folder / "two"
    assert call(*arguments(folder, request.param, one)) == 0
    if request.param != "plain":  # torchrun itself takes ten seconds
        codes = together(arguments(folder, request.param, two), 2, folder / "said.txt")
        assert codes == [0, 0], (folder / "said.txt").read_text()
        return one, two
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run(
        [*launcher, "-m", "grainline", *arguments(folder, request.param, two)],
        env=os.environ | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return one, two


def test_two_processes_end_with_the_weights_the_files_and_the_log_of_one(both: tuple[Path, Path]) -> None:
    one, two = (load_file(run / "last" / "model.safetensors") for run in both)
    assert one.keys() == two.keys()
    for name, x in one.items():
        torch.testing.assert_close(two[name], x, rtol=0, atol=1e-5, msg=lambda m, name=name: f"{name}: {m}")
    files = [sorted(str(p.relative_to(run)) for p in run.rglob("*") if p.is_file()) for run in both]
    assert files[0] == files[1]
    lines = [logged(run) for run in both]
    assert [line["kind"] for line in lines[0]] == [line["kind"] for line in lines[1]]
    for a, b in zip(*lines, strict=True):
        if a["kind"] == "train":
            assert b["terms"] == pytest.approx(a["terms"], abs=1e-5)
            assert b["norm"] == pytest.approx(a["norm"], abs=1e-4)
        else:  # samples, texts and those cut, over all processes
            assert a == b


def die() -> None:
    """The second process is killed in its second step."""
    before, steps = loop._Training._step, list[int]()

    def step(self: Any, batches: Any) -> None:
        steps.append(1)
        if os.environ["RANK"] == "1" and len(steps) == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        before(self, batches)

    loop._Training._step = step  # type: ignore[method-assign]


@pytest.mark.skipif(sys.platform == "win32", reason="kills a process")
def test_a_process_whose_neighbour_is_killed_ends_with_one_line(tmp_path: Path) -> None:
    codes = together(
        arguments(tmp_path, "accumulated", tmp_path / "run"), 2, tmp_path / "said", f"{__name__}:die"
    )
    said = (tmp_path / "said").read_text()
    assert codes == [2, -signal.SIGKILL], said
    assert "grainline: a process of this run has ended, so process 0 ends too" in said.splitlines()[-1]
    assert "Traceback" not in said
