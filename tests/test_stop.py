"""Ctrl-C and SIGTERM save a checkpoint after the step under way; a second one ends at once."""

import os
import re
import shlex
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from processes import forked, together
from runs import call, logged, recipe, steps_done
from test_resume import train

from grainline.files import one_writer
from grainline.training import loop
from grainline.training.checkpoint import latest, verify

LONG = ("train.max_steps=30", "train.save_every=25", "data.workers=2")
WEIGHTS = "model.safetensors"
MEASURED = ('data.validation=["scenes:dev?count=3"]', "train.validate_every=2", "train.save_every=4")
BOTH = (signal.SIGINT, signal.SIGTERM)


def at_step(patch: pytest.MonkeyPatch, step: int, act: Callable[[], None]) -> None:
    """Do something in the middle of a step of every run of this process."""
    whole = loop._Training._step

    def acting(self: loop._Training, batches: object) -> None:
        if self.step + 1 == step:
            act()
        whole(self, batches)  # type: ignore[arg-type]

    patch.setattr(loop._Training, "_step", acting)


def sent(*numbers: int) -> Callable[[], None]:
    def act() -> None:
        for number in numbers:
            os.kill(os.getpid(), number)

    return act


def waiting(arguments: list[str], said: Path) -> None:
    """A run that waits in its tenth step until there is a file `go` beside what it says."""

    def wait() -> None:
        while not said.with_name("go").exists():
            time.sleep(0.01)

    signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored where tests run in the background
    at_step(pytest.MonkeyPatch(), 10, wait)
    train(arguments, said)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that is left alone."""
    folder = tmp_path_factory.mktemp("whole")
    assert call("train", recipe(folder), "--out", folder / "run", "--set", *LONG) == 0
    return folder / "run"


@pytest.mark.parametrize("number", BOTH, ids=lambda number: number.name)
def test_a_signal_to_all_processes_of_a_run_saves_a_checkpoint_that_it_goes_on_from(
    number: signal.Signals, whole: Path, tmp_path: Path
) -> None:
    """As terminals and torchrun send it: to the processes that load data as well."""
    out, arguments = tmp_path / "run", [recipe(tmp_path), "--set", *LONG]
    process = forked().Process(target=waiting, args=([*arguments, "--out", str(out)], tmp_path / "run.txt"))
    process.start()
    while steps_done(out) < 5:
        assert process.is_alive(), (tmp_path / "run.txt").read_text()
        time.sleep(0.01)
    os.killpg(process.pid, number)
    (tmp_path / "go").touch()
    process.join(timeout=120)
    assert process.exitcode == 128 + number
    said = (tmp_path / "run.txt").read_text()
    result = re.search(
        r"grainline: (\w+) after step (\d+) of 30; the checkpoint (\S+) is saved; continue with: (.*)", said
    )
    assert result is not None, said
    assert "Traceback" not in said
    assert result[1] == {signal.SIGINT: "interrupted", signal.SIGTERM: "terminated"}[number]
    good = latest(out)
    assert str(good) == result[3]
    assert verify(good)["state"]["step"] == int(result[2]) == steps_done(out)
    command = shlex.split(result[4])
    assert command[0] == "grainline"
    assert call(*command[1:]) == 0
    assert (out / "last" / WEIGHTS).read_bytes() == (whole / "last" / WEIGHTS).read_bytes()
    assert logged(out) == logged(whole)


def test_a_measurement_that_is_due_is_made_by_the_run_that_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    start = ["train", recipe(tmp_path), "--set", *MEASURED, "--out"]
    assert call(*start, tmp_path / "whole") == 0
    for step in (2, 6):  # the second one at the end
        with monkeypatch.context() as patch:
            at_step(patch, step, sent(signal.SIGTERM))
            assert call(*start, tmp_path / "run", *(["--resume"] if step > 2 else [])) == 143
        assert f"terminated after step {step} of 6" in capsys.readouterr().err
        assert not (tmp_path / "run" / "last").exists()
        assert max(line["step"] for line in logged(tmp_path / "run") if line["kind"] == "train") == step
        assert [x["step"] for x in logged(tmp_path / "run") if x["kind"] == "validation"] == list(
            range(2, step, 2)
        )
    assert call(*start, tmp_path / "run", "--resume") == 0
    assert logged(tmp_path / "run") == logged(tmp_path / "whole")
    for place in ("last", "best"):
        run, whole = (tmp_path / name / place for name in ("run", "whole"))
        assert (run / WEIGHTS).read_bytes() == (whole / WEIGHTS).read_bytes(), place
        assert verify(run)["state"] == verify(whole)["state"]


def test_a_second_interrupt_ends_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    at_step(monkeypatch, 3, sent(signal.SIGINT, signal.SIGINT))
    out = tmp_path / "run"
    assert call("train", recipe(tmp_path), "--out", out, "--set", "train.save_every=2") == 130
    assert (
        "grainline: interrupted; to go on: grainline train RUN --resume, or the same comparison again"
        in capsys.readouterr().err
    )
    good = latest(out)
    assert good.name == "step-00000002"


def test_signals_mean_what_they_did_once_a_run_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = [signal.getsignal(number) for number in BOTH]
    at_step(monkeypatch, 1, sent(signal.SIGINT))
    assert call("train", recipe(tmp_path), "--out", tmp_path / "run") == 130
    assert [signal.getsignal(number) for number in BOTH] == before


def test_a_signal_that_is_ignored_stays_ignored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As nohup and shells that start something in the background have it."""
    at_step(monkeypatch, 1, sent(signal.SIGINT))
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        assert call("train", recipe(tmp_path), "--out", tmp_path / "run") == 0
    finally:
        signal.signal(signal.SIGINT, before)


def one_is_told() -> None:
    """In each of two processes: the second one gets a signal in the middle of the fifth step."""
    if os.environ["RANK"] == "1":
        at_step(pytest.MonkeyPatch(), 5, sent(signal.SIGTERM))


def test_two_processes_stop_after_the_same_step_when_one_gets_the_signal(tmp_path: Path) -> None:
    start = ["train", recipe(tmp_path), "--out", tmp_path / "run", "--set", "train.save_every=4"]
    codes = together(start, 2, tmp_path / "said.txt", first="test_stop:one_is_told")
    message, good = (tmp_path / "said.txt").read_text(), latest(tmp_path / "run")
    assert codes == [143, 143], message
    assert good is not None, message
    said = f"grainline: terminated after step 5 of 6; the checkpoint {good} is saved; continue with: "
    said += f"torchrun --nproc-per-node 2 -m grainline train {tmp_path / 'run'} --resume"
    assert message.count(said) == 1, message
    assert "Warning" not in message
    assert verify(good)["state"]["step"] == 5
    assert verify(good)["ranks"] == 2


def test_a_folder_in_use_ends_both_processes(tmp_path: Path) -> None:
    out, said = tmp_path / "run", tmp_path / "said.txt"
    out.mkdir()
    with one_writer(out, "run"):
        codes = together(["train", recipe(tmp_path), "--out", out], 2, said)
    assert codes == [2, 2], said.read_text()
    assert f"run {out} is being written by process {os.getpid()} on" in said.read_text()
    assert [path.name for path in out.iterdir()] == ["lock"]
