"""The log file, its resumption, the progress display, TensorBoard and wandb."""

import errno
import io
import json
import math
import os
import re
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console

from grainline.errors import UserError
from grainline.training.log import TIMES, Log, LogConfig, read_log

QUIET = Console(file=io.StringIO())


def open_log(out: Path, **options: Any) -> Log:
    return Log(out, LogConfig(), options.pop("total", 10), console=options.pop("console", QUIET), **options)


def message(call: Callable[[], Any]) -> str:
    with pytest.raises(UserError) as caught:
        call()
    assert "\n" not in str(caught.value)
    return str(caught.value)


def steps(log: Log, first: int, last: int) -> None:
    """What a loop writes: a line a step, and a validation every third."""
    for step in range(first, last + 1):
        log.write(
            "train", step, step / 5, terms={"i2t": 1 / step}, lr={".*": 0.1 * step}, images_per_s=step * 7.0
        )
        if step % 3 == 0:
            log.write("validation", step, step / 5, metrics={"t2i_r1": 0.5}, seconds=1.25)


def without_times(path: Path) -> list[dict[str, Any]]:
    return [{k: v for k, v in line.items() if k not in TIMES} for line in read_log(path)]


# The file


def test_a_line_holds_what_was_given_as_plain_numbers(tmp_path: Path) -> None:
    with open_log(tmp_path) as log:
        terms = {"a": torch.tensor(0.25), "b": np.float32(0.5), "n": np.int64(3)}
        log.write(
            "train",
            4,
            0.5,
            terms=terms,
            counts=[1, torch.tensor(2)],
            cause="corrupt image",
            rate=None,
            ok=True,
        )
    (line,) = [json.loads(x) for x in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert line.pop("time") > 1.6e9
    assert line == {
        "kind": "train", "step": 4, "epoch": 0.5, "terms": {"a": 0.25, "b": 0.5, "n": 3},
        "counts": [1, 2], "cause": "corrupt image", "rate": None, "ok": True,
    }  # fmt: skip


def test_every_line_is_in_the_file_as_soon_as_it_is_written(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    for number in (1, 2):
        log.write("train", number, 0.0)
        assert len(read_log(tmp_path)) == number == log.sync()
    log.close()
    log.close()


def test_numbers_that_are_not_finite_are_null_with_a_note_of_what_they_were(tmp_path: Path) -> None:
    with open_log(tmp_path) as log:
        terms = {"i2t": math.nan, "t2i": torch.tensor(math.inf), "w": np.float64(-math.inf), "ok": 1.0}
        log.write("train", 1, 0.0, terms=terms, norms=[1.0, math.nan])
    text = (tmp_path / "log.jsonl").read_text()
    line = json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    assert line["terms"] == {"i2t": None, "t2i": None, "w": None, "ok": 1.0}
    assert line["norms"] == [1.0, None]
    assert line["non_finite"] == {"terms.i2t": "nan", "terms.t2i": "inf", "terms.w": "-inf", "norms.1": "nan"}


def test_a_note_is_written_and_shown(tmp_path: Path) -> None:
    console = Console(file=io.StringIO())
    with open_log(tmp_path, console=console) as log:
        log.note(
            "3 of 900 samples replaced: [corrupt] image", 7, 1.0, kind="corrupt", causes={"corrupt image": 3}
        )
    assert console.file.getvalue() == "3 of 900 samples replaced: [corrupt] image\n"  # type: ignore[attr-defined]
    line = read_log(tmp_path)[0]
    assert (line["kind"], line["step"], line["causes"]) == ("corrupt", 7, {"corrupt image": 3})


# Resuming


def test_the_log_of_a_resumed_run_equals_that_of_an_uninterrupted_one_but_for_times(tmp_path: Path) -> None:
    with open_log(tmp_path / "whole") as log:
        steps(log, 1, 9)
    log = open_log(tmp_path / "broken")
    steps(log, 1, 6)
    lines = log.sync()
    steps(log, 7, 8)  # lost work, after the checkpoint of step 6
    log.close()
    with (tmp_path / "broken" / "log.jsonl").open("ab") as file:
        file.write(b'{"kind": "train", "st')
    with open_log(tmp_path / "broken", step=6, lines=lines) as log:
        assert [line["step"] for line in read_log(tmp_path / "broken")] == [1, 2, 3, 3, 4, 5, 6, 6]
        steps(log, 7, 9)
        assert log.lines == 12
    assert without_times(tmp_path / "broken") == without_times(tmp_path / "whole")


def test_a_log_that_lost_lines_says_so_and_goes_on(tmp_path: Path) -> None:
    with open_log(tmp_path) as log:
        steps(log, 1, 2)
    with open_log(tmp_path, step=4, lines=5) as log:
        steps(log, 5, 5)
    *_, note, last = read_log(tmp_path)
    assert note["text"] == "the log had 2 lines where the checkpoint counts 5"
    assert (note["step"], last["step"]) == (4, 5)


# Reading


def test_a_line_that_was_never_finished_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "log.jsonl").write_bytes(b'{"kind": "train"}\n{"kind": "val')
    assert read_log(tmp_path / "log.jsonl") == [{"kind": "train"}]


@pytest.mark.parametrize("line", [b"{oops", b"[1, 2]", b"3", b"\xff\xfe"])
def test_a_damaged_line_is_named(tmp_path: Path, line: bytes) -> None:
    (tmp_path / "log.jsonl").write_bytes(b'{"kind": "train"}\n' + line + b"\n")
    assert "line 2 is not a JSON object" in message(lambda: read_log(tmp_path))


def test_a_missing_log_is_named(tmp_path: Path) -> None:
    assert message(lambda: read_log(tmp_path / "log.jsonl")).startswith(
        f"log {tmp_path}/log.jsonl cannot be read: No such"
    )


def test_a_log_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("a file")
    assert f"cannot write {tmp_path}/out/log.jsonl" in message(lambda: open_log(tmp_path / "out"))


@pytest.mark.parametrize("call", ["write", "fsync"])
def test_a_full_disk_ends_the_run_with_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    def full(*_: Any) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with open_log(tmp_path) as log, monkeypatch.context() as patch:
        patch.setattr(os, call, full)
        text = message(lambda: log.write("train", 1, 0.0) or log.sync())
    again = "make it writable, then train with --resume"
    assert text == f"cannot write {log.path}: no space left on device; {again}"


# Progress


def shown(console: Console, out: Path, every: float = 0.0, step: int = 0) -> str:
    with Log(out, LogConfig(plain_every=every), 8, step=step, console=console) as log:
        for done in range(step + 1, 9):
            log.progress(done, {"loss": 1.0 / done, "i2t": math.nan}, 123.4)
        log.note("validation: better", 8, 1.0)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert isinstance(text, str)
    return text


def test_without_a_terminal_there_are_plain_lines_without_control_characters(tmp_path: Path) -> None:
    text = shown(Console(file=io.StringIO()), tmp_path)
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f]", text)
    lines = text.splitlines()
    assert len(lines) == 9
    assert re.fullmatch(r"step 2/8  loss 0\.500  i2t nan  123 images/s  ETA 0:00:0\d", lines[1])
    assert lines[-2:] == [lines[7], "validation: better"]


def test_plain_lines_come_every_so_often_and_always_at_the_end(tmp_path: Path) -> None:
    lines = shown(Console(file=io.StringIO()), tmp_path, every=3600).splitlines()
    assert [line.split("  ")[0] for line in lines] == ["step 1/8", "step 8/8", "validation: better"]


@pytest.mark.parametrize("where", ["terminal", "jupyter"])
def test_a_terminal_and_a_notebook_show_a_bar_that_ends_full_without_a_thread(
    tmp_path: Path, where: str
) -> None:
    before = threading.active_count()
    options: dict[str, Any] = {f"force_{where}": True}
    text = shown(Console(file=io.StringIO(), **options), tmp_path, step=5)
    assert threading.active_count() == before
    assert "6/8" in text
    assert "8/8 loss 0.125  i2t nan  123 images/s  ETA 0:00:00" in text
    assert "\rvalidation: better\n" in re.sub(" +\r", "\r", text)


# TensorBoard


def scalars(folder: Path) -> list[tuple[str, int, float]]:
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

    actual = []
    for file in sorted(folder.iterdir()):
        for event in EventFileLoader(str(file)).Load():
            for value in event.summary.value:
                actual.append((value.tag, event.step, value.tensor.float_val[0]))
    return actual


def test_tensorboard_gets_every_finite_number_under_its_kind_and_name(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    with Log(tmp_path, LogConfig(tensorboard=True), 3, console=QUIET) as log:
        log.write("train", 2, 0.5, terms={"i2t": 0.25, "t2i": math.nan}, lr=0.125, note="text", flag=True)
    assert sorted(scalars(tmp_path / "tensorboard")) == [("train/lr", 2, 0.125), ("train/terms.i2t", 2, 0.25)]


@pytest.mark.parametrize(
    ("cfg", "module", "extra"),
    [
        (LogConfig(tensorboard=True), "torch.utils.tensorboard", "tb"),
        (LogConfig(wandb="captions"), "wandb", "wandb"),
    ],
)
def test_asking_for_a_board_without_its_package_names_the_extra_and_touches_nothing(
    cfg: LogConfig, module: str, extra: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    text = message(lambda: Log(tmp_path / "out", cfg, 3, console=QUIET))
    assert text.endswith(f"which is not installed: pip install 'grainline[{extra}]'")
    assert not (tmp_path / "out").exists()


class FakeRun:
    """Records what it is asked."""

    def __init__(self, **settings: Any) -> None:
        self.settings, self.calls = settings, list[Any]()

    def define_metric(self, name: str, step_metric: str) -> None:
        self.calls.append((name, step_metric))

    def log(self, numbers: dict[str, float]) -> None:
        self.calls.append(numbers)

    def finish(self) -> None:
        self.calls.append("finish")


def test_wandb_gets_every_finite_number_and_a_resumed_run_goes_on_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs: list[FakeRun] = []

    def init(**settings: Any) -> FakeRun:
        runs.append(FakeRun(**settings))
        return runs[-1]

    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(init=init))
    cfg = LogConfig(wandb="captions")
    with Log(tmp_path / "run", cfg, 3, console=QUIET) as log:
        log.write("train", 2, 0.5, terms={"i2t": 0.25, "t2i": math.nan}, lr=0.125, note="text", flag=True)
        log.note("words", 2, 0.5)
    with Log(tmp_path / "run", cfg, 3, step=1, lines=1, console=QUIET) as log:
        log.write("train", 2, 0.5, lr=0.5)
    with Log(tmp_path / "other", cfg, 3, console=QUIET):
        pass
    first, second, other = runs
    assert (first.settings["project"], first.settings["name"]) == ("captions", "run")
    assert (first.settings["dir"], first.settings["resume"]) == (tmp_path / "run", "allow")
    numbers = {"train/terms.i2t": 0.25, "train/lr": 0.125, "step": 2}
    assert first.calls == [("*", "step"), numbers, "finish"]
    assert second.settings["id"] == first.settings["id"] != other.settings["id"]
    assert second.calls == [("*", "step"), {"train/lr": 0.5, "step": 2}, "finish"]


def test_a_wandb_that_does_not_start_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def init(**_: Any) -> None:
        raise ValueError("no API key\ncall this or that")

    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(init=init, Error=ValueError))
    text = message(lambda: Log(tmp_path / "out", LogConfig(wandb="captions"), 3, console=QUIET))
    assert text.startswith("wandb does not start: no API key; call `wandb login`")
