"""A run folder has one writer: a second process gets one line, and the lock ends with the process."""

import errno
import fcntl
import os
import shutil
import signal
import socket
import time
from pathlib import Path

import pytest
from runs import call, complaint, recipe, steps_done
from test_resume import alive, started

from grainline.errors import UserError
from grainline.files import one_writer
from grainline.training.recipe import read_recipe
from grainline.training.run import train

HELD = f"is being written by process {os.getpid()} on {socket.gethostname()}; wait until it ends, or"


def said(out: Path) -> str:
    """What the process that `started` began has said."""
    return out.with_name(f"{out.name}.txt").read_text()


def files(folder: Path) -> dict[str, tuple[bytes, int]]:
    """Content and time of every file."""
    return {
        str(path.relative_to(folder)): (path.read_bytes(), path.stat().st_mtime_ns)
        for path in folder.rglob("*")
        if path.is_file()
    }


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of six steps."""
    folder = tmp_path_factory.mktemp("done")
    train(read_recipe(recipe(folder), []), folder / "run")
    return folder / "run"


def test_of_two_trainers_in_one_new_folder_one_trains(tmp_path: Path, done: Path) -> None:
    arguments, out = [recipe(tmp_path)], tmp_path / "run"
    two = [started([*arguments, "--set", f"train.log_every={i + 1}"], out, f"{i}.txt") for i in range(2)]
    for process in two:
        process.join(timeout=120)
    assert sorted(process.exitcode or 0 for process in two) == [0, 2]
    lost = next(i for i, process in enumerate(two) if process.exitcode == 2)
    text = (tmp_path / f"{lost}.txt").read_text()
    assert text.count("\n") == 1, text
    assert f"is being written by process {two[1 - lost].pid} on" in text or "holds a run already" in text
    for name in ("last/model.safetensors", "tokenizer.json"):
        assert (out / name).read_bytes() == (done / name).read_bytes()


@pytest.mark.parametrize("again", [[], ["--resume"]], ids=["begin", "resume"])
@pytest.mark.parametrize("full", [True, False], ids=["run", "new"])
def test_a_second_writer_gets_one_line_and_writes_nothing(
    full: bool, again: list[str], done: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    if full:
        shutil.copytree(done, out)
    else:
        out.mkdir()
    with one_writer(out, "run"):
        before = files(out)
        text = complaint(capsys, "train", recipe(tmp_path), "--out", out, *again)
        assert f"run {out} {HELD}" in text
        assert files(out) == before


def test_the_lock_ends_with_its_process_even_where_its_workers_live_on(tmp_path: Path) -> None:
    arguments, out = [recipe(tmp_path), "--set", "train.max_steps=4000", "data.workers=2"], tmp_path / "run"
    process = started(arguments, out)
    while steps_done(out) < 2:
        assert process.is_alive(), said(out)
        time.sleep(0.01)
    assert process.pid is not None
    with (
        pytest.raises(UserError, match=f"is being written by process {process.pid} on "),
        one_writer(out, "run"),
    ):
        pass
    workers = [number for number in alive(process.pid) if number != process.pid]
    assert len(workers) >= 2
    for number in workers:
        os.kill(number, signal.SIGSTOP)  # they cannot notice the death
    process.kill()
    process.join()
    try:
        with one_writer(out, "run"):
            pass
    finally:
        os.killpg(process.pid, signal.SIGKILL)


def test_where_nothing_can_be_locked_a_run_says_so_and_trains(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def absent(*_: object) -> None:
        raise OSError(errno.ENOSYS, "x")

    monkeypatch.setattr(fcntl, "flock", absent)
    assert call("train", recipe(tmp_path), "--out", tmp_path / "run", "--set", "train.max_steps=2") == 0
    assert "cannot be locked: function not implemented" in capsys.readouterr().err
