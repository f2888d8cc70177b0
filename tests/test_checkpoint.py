"""Checkpoints: exact round trips, damage, full disks, and a process that is really killed."""

import copy
import errno
import hashlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors
import torch
from torch import Tensor, nn

from grainline import files
from grainline.errors import UserError
from grainline.files import STATE
from grainline.training.checkpoint import (
    TrainState,
    find,
    latest,
    load,
    mark,
    rng_state,
    save,
    set_rng_state,
    verify,
)
from grainline.training.optim import Constant, OptimizerConfig, ParamRule, build_optimizer
from grainline.weights import load_weights, save_weights


class Small(nn.Module):
    """Tied weights, a buffer, a parameter without gradient, a frozen one."""

    def __init__(self, width: int = 5) -> None:
        super().__init__()
        self.first = nn.Linear(width, 4)
        self.norm = nn.BatchNorm1d(4)
        self.second = nn.Linear(4, 4)
        self.tied = self.second
        self.frozen = nn.Parameter(torch.randn(3))
        self.unused = nn.Parameter(torch.randn(2, 2))

    def forward(self, x: Tensor) -> Tensor:
        x = nn.functional.dropout(self.norm(self.first(x)), 0.3, self.training)
        return self.tied(self.second(x)).square().mean()


class Other(Small):
    """The same parameters under another name."""


CFG = OptimizerConfig(
    lr=0.02, schedule=Constant(), rules=(ParamRule(pattern="frozen", lr_factor=0), ParamRule(pattern=".*"))
)


def run(method: nn.Module, optimizer: torch.optim.Optimizer, steps: int) -> None:
    for _ in range(steps):
        optimizer.zero_grad()
        method(torch.randn(6, 5)).backward()
        optimizer.step()


def fresh(cls: type[Small] = Small, width: int = 5, **kernel: bool) -> tuple[Small, torch.optim.Optimizer]:
    method = cls(width)
    optimizer: torch.optim.Optimizer = build_optimizer(method, CFG)
    if kernel:  # another implementation of the same optimizer, for its own kind of step count
        groups = [
            {k: v for k, v in g.items() if k not in ("fused", "foreach")} for g in optimizer.param_groups
        ]
        optimizer = torch.optim.AdamW(groups, **kernel)  # type: ignore[arg-type]
    return method, optimizer


def at(step: int, **other: Any) -> TrainState:
    return TrainState(step=step, rng=(rng_state(),), **other)


def trained(out: Path, *steps: int, keep: int = 9) -> tuple[Small, torch.optim.Optimizer]:
    method, optimizer = fresh()
    for step in steps:
        run(method, optimizer, 1)
        save(out, method, optimizer, at(step), keep=keep)
    return method, optimizer


def newest(out: Path) -> Path:
    path = latest(out)
    assert path is not None
    return path


def message(call: Callable[[], Any]) -> str:
    with pytest.raises(UserError) as caught:
        call()
    assert "\n" not in str(caught.value)
    return str(caught.value)


def same(a: nn.Module, b: nn.Module) -> bool:
    return all(
        torch.equal(x, y) for x, y in zip(a.state_dict().values(), b.state_dict().values(), strict=True)
    )


# Round trips


@pytest.mark.parametrize("kernel", [{"fused": True}, {"foreach": True}, {"foreach": False}], ids=str)
def test_a_resumed_run_goes_on_bit_for_bit(tmp_path: Path, kernel: dict[str, bool]) -> None:
    method, optimizer = fresh(**kernel)
    run(method, optimizer, 3)
    path = save(tmp_path, method, optimizer, at(3))
    run(method, optimizer, 4)

    torch.manual_seed(99)
    resumed, again = fresh(**kernel)
    state = load(path, resumed, again)
    set_rng_state(state.rng[0])
    run(resumed, again, 4)
    assert same(method, resumed)
    ours, theirs = optimizer.state_dict()["state"], again.state_dict()["state"]
    assert ours.keys() == theirs.keys()
    for number, slots in ours.items():
        assert slots.keys() == theirs[number].keys() == {"step", "exp_avg", "exp_avg_sq"}
        for key, value in slots.items():
            other = theirs[number][key]
            assert torch.equal(value, other), key
            assert (value.dtype, value.shape, value.device) == (other.dtype, other.shape, other.device), key


def test_the_state_comes_back_as_it_was(tmp_path: Path) -> None:
    state = at(7, best=0.1 + 0.2, log_lines=12, extra={"samples": 2**53 + 1, "note": "é"})
    method, optimizer = fresh()
    back = load(save(tmp_path, method, optimizer, state), method, optimizer)
    assert back._replace(rng=()) == state._replace(rng=())
    assert back.rng[0].keys() == state.rng[0].keys()
    assert all(torch.equal(back.rng[0][k], x) for k, x in state.rng[0].items())


def test_the_optimizer_state_is_matched_by_name_whatever_the_order_of_the_groups(tmp_path: Path) -> None:
    method, optimizer = trained(tmp_path, 1)
    patterns = ("second.*", "un.*", ".*")
    rules = (ParamRule(pattern="frozen", lr_factor=0), *(ParamRule(pattern=x) for x in patterns))
    other = Small()
    reordered = build_optimizer(other, CFG.model_copy(update={"rules": rules}))
    load(newest(tmp_path), other, reordered)
    ours, theirs = dict(method.named_parameters()), dict(other.named_parameters())
    for name in ("first.weight", "second.weight", "norm.bias"):
        assert torch.equal(optimizer.state[ours[name]]["exp_avg"], reordered.state[theirs[name]]["exp_avg"])


def test_the_generators_of_every_rank_come_back_in_order(tmp_path: Path) -> None:
    method, optimizer = fresh()
    states = []
    for seed in range(12):  # more than ten, so that sorting by text would mix them up
        torch.manual_seed(seed)
        states.append(rng_state())
    path = save(tmp_path, method, optimizer, at(1)._replace(rng=tuple(states)))
    for seed, state in enumerate(load(path, method, optimizer).rng):
        set_rng_state(state)
        assert torch.equal(torch.rand(3), torch.rand(3, generator=torch.Generator().manual_seed(seed)))


def test_nothing_is_pickled_and_files_can_be_read_by_whom_the_umask_allows(tmp_path: Path) -> None:
    trained(tmp_path, 1)
    path = tmp_path / "checkpoints" / "step-00000001"
    names = {"model.safetensors", "optimizer.safetensors", "rng.safetensors", "state.json"}
    assert {file.name for file in path.iterdir()} == names
    assert len({file.stat().st_mode for file in path.iterdir()}) == 1
    sha = hashlib.sha256((path / "model.safetensors").read_bytes()).hexdigest()
    assert json.loads((path / STATE).read_text())["files"]["model.safetensors"]["sha256"] == sha


@pytest.mark.gpu
def test_a_resumed_run_on_cuda_has_the_state_and_the_generators_it_had(tmp_path: Path) -> None:
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    method, optimizer = Small().cuda(), None
    optimizer = build_optimizer(method, CFG)

    def go_on(m: nn.Module, o: torch.optim.Optimizer) -> None:
        for _ in range(3):
            o.zero_grad()
            m(torch.randn(6, 5, device="cuda")).backward()
            o.step()

    go_on(method, optimizer)
    path = save(tmp_path, method, optimizer, at(3))
    go_on(method, optimizer)
    resumed = Small().cuda()
    again = build_optimizer(resumed, CFG)
    set_rng_state(load(path, resumed, again).rng[0])
    go_on(resumed, again)
    assert same(method, resumed)
    assert all(s["step"].device.type == "cuda" for s in again.state.values())


# Which ones stay


def steps_in(out: Path) -> list[str]:
    return sorted(path.name.removeprefix("step-0000") for path in (out / "checkpoints").iterdir())


def test_the_last_few_stay(tmp_path: Path) -> None:
    trained(tmp_path, 1, 2, 3, 10, keep=2)
    assert steps_in(tmp_path) == ["0003", "0010"]
    assert latest(tmp_path) == tmp_path / "checkpoints" / "step-00000010"


def test_saving_after_going_back_removes_the_steps_that_were_left(tmp_path: Path) -> None:
    method, optimizer = trained(tmp_path, 1, 2, 3)
    save(tmp_path, method, optimizer, at(2), keep=1)
    assert steps_in(tmp_path) == ["0002"]


def test_a_step_that_is_saved_again_is_replaced(tmp_path: Path) -> None:
    method, optimizer = trained(tmp_path, 1, 2)
    run(method, optimizer, 1)
    save(tmp_path, method, optimizer, at(2, best=0.5), keep=9)
    assert steps_in(tmp_path) == ["0001", "0002"]
    other, again = fresh()
    assert load(find(tmp_path, "step-00000002"), other, again).best == 0.5
    assert same(method, other)


def test_best_outlives_the_checkpoint_it_was_and_can_be_replaced(tmp_path: Path) -> None:
    method, optimizer = trained(tmp_path, 1)
    assert files.existing_folder(tmp_path / "best") is None
    for step in (2, 3):
        first = latest(tmp_path)
        assert first is not None
        assert mark(tmp_path, first, "best") == tmp_path / "best" == find(tmp_path, "best")
        run(method, optimizer, 1)
        save(tmp_path, method, optimizer, at(step), keep=1)
        assert verify(tmp_path / "best")["state"]["step"] == step - 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["best", "checkpoints"]


def test_marking_copies_where_the_file_system_has_no_hard_links(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_links(*_: Any) -> None:
        raise OSError(errno.EPERM, "not here")

    monkeypatch.setattr(os, "link", no_links)
    trained(tmp_path, 1)
    path = newest(tmp_path)
    verify(mark(tmp_path, path, "last"))


def test_what_a_killed_process_left_is_cleared_by_the_next_save(tmp_path: Path) -> None:
    method, optimizer = trained(tmp_path, 1, 2)
    folder = tmp_path / "checkpoints"
    (folder / ".saving-step-00000003").mkdir()
    (folder / ".saving-step-00000003" / "model.safetensors").write_bytes(b"half")
    (folder / "step-00000002").rename(folder / ".replaced-step-00000002")
    assert latest(tmp_path) == find(tmp_path, "step-00000002") == folder / ".replaced-step-00000002"
    verify(folder / ".replaced-step-00000002")
    save(tmp_path, method, optimizer, at(4), keep=9)
    assert steps_in(tmp_path) == ["0001", "0002", "0004"]


# Damage


def flip(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)


DAMAGE: dict[str, tuple[Callable[[Path], Any], str]] = {
    "missing": (lambda p: (p / "model.safetensors").unlink(), r"model\.safetensors cannot be read"),
    "cut": (lambda p: os.truncate(p / "rng.safetensors", 50), r"rng\.safetensors has 50 bytes instead"),
    "bit": (lambda p: flip(p / "rng.safetensors"), r"rng\.safetensors does not have the sha256"),
    "no state": (lambda p: (p / STATE).unlink(), r"state\.json cannot be read \(no such file"),
    "cut state": (lambda p: os.truncate(p / STATE, 40), r"state\.json is damaged"),
    "empty state": (lambda p: (p / STATE).write_text("[]"), r"state\.json is damaged"),
    "edited state": (
        lambda p: (p / STATE).write_text((p / STATE).read_text().replace('"step": ', '"step": 1')),
        r"state\.json has been changed",
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", DAMAGE)
def test_a_corrupt_checkpoint_is_named_and_the_last_good_one_offered(tmp_path: Path, kind: str) -> None:
    damage, complaint = DAMAGE[kind]
    method, optimizer = trained(tmp_path, 1, 2, 3, 4)
    path = newest(tmp_path)
    damage(path)
    flip(tmp_path / "checkpoints" / "step-00000003" / "model.safetensors")  # the one before is no better
    before = copy.deepcopy(method.state_dict())
    text = message(lambda: load(path, method, optimizer))
    start, _, end = text.partition(": ")
    assert start == f"checkpoint {path} is corrupt"
    assert re.match(complaint, end), end
    assert text.endswith("; continue from the last good one with --resume --checkpoint step-00000002")
    assert all(torch.equal(x, before[k]) for k, x in method.state_dict().items())
    load(find(tmp_path, "step-00000002"), method, optimizer)


def nonsense(name: str) -> Callable[[Path], None]:
    return lambda path: (path / name).write_bytes(b"nonsense") and None  # type: ignore[func-returns-value]


def other_tensors(**tensors: Tensor) -> Callable[[Path], None]:
    return lambda path: files.write_tensors(path / "rng.safetensors", tensors, {})


def body_without(name: str) -> Callable[[Path], Any]:
    return lambda path: {key: x for key, x in files.unseal(path).items() if key != name}


SEALED: dict[str, tuple[Callable[[Path], Any], str]] = {
    "rng": (nonsense("rng.safetensors"), r"rng\.safetensors cannot be read"),
    "generator": (
        other_tensors(**{"0/torch": torch.get_rng_state()}),
        r"of another form \(KeyError\('python'",
    ),
    "ranks": (body_without("ranks"), r"of another form \(KeyError\('ranks'"),
    "state": (body_without("state"), r"of another form \(KeyError\('state'"),
}


@pytest.mark.parametrize("kind", SEALED)
def test_what_is_sealed_and_of_another_form_is_named_like_damage(tmp_path: Path, kind: str) -> None:
    change, complaint = SEALED[kind]
    method, optimizer = trained(tmp_path, 1, 2)
    path = find(tmp_path, "step-00000002")
    body = files.unseal(path)
    body = change(path) or body
    (path / STATE).unlink()
    files.seal(path, body)
    before = copy.deepcopy(method.state_dict())
    text = message(lambda: load(path, method, optimizer))
    assert text.startswith(f"checkpoint {path} is corrupt: ")
    assert re.search(complaint, text), text
    assert text.endswith("--checkpoint step-00000001")
    assert all(torch.equal(x, before[k]) for k, x in method.state_dict().items())


def test_a_corrupt_best_offers_a_checkpoint_of_its_run(tmp_path: Path) -> None:
    trained(tmp_path, 1)
    path = newest(tmp_path)
    best = mark(tmp_path, path, "best")
    (best / STATE).unlink()
    assert message(lambda: verify(best)).endswith("--resume --checkpoint step-00000001")
    flip(path / "model.safetensors")
    assert message(lambda: verify(best)).endswith("no other good checkpoint: train again into a new folder")


def test_a_checkpoint_of_an_older_format_is_refused(tmp_path: Path) -> None:
    trained(tmp_path, 1)
    path = newest(tmp_path)
    body = files.unseal(path)
    (path / STATE).unlink()
    files.seal(path, body | {"version": 1})
    assert message(lambda: verify(path)).endswith(
        "has format 1, this grainline reads format 3: train again, or use the version that wrote it"
    )


# What does not fit


def test_a_checkpoint_of_another_shape_is_refused_with_the_first_mismatches(tmp_path: Path) -> None:
    trained(tmp_path, 1)
    path = newest(tmp_path)
    text = message(lambda: load(path, *fresh(width=6)))
    assert "1 of another form (first.weight is float32 [4, 5] in the file and float32 [4, 6] here)" in text
    wider = Small()
    wider.extra, wider.more = nn.Linear(2, 2), nn.Linear(2, 2)
    del wider.unused
    text = message(lambda: load(path, wider, build_optimizer(wider, CFG)))
    assert "4 missing (extra.bias, extra.weight, more.bias, ...), 1 unknown (unused)" in text
    half = Small().half()
    assert "float32 [4] in the file and float16 [4] here" in message(lambda: load_weights(path, half))


def test_an_optimizer_of_other_rules_is_refused_before_any_weight_is_changed(tmp_path: Path) -> None:
    trained(tmp_path, 1)
    path = newest(tmp_path)
    other = Small()
    rules = (ParamRule(pattern="first.*", lr_factor=0), ParamRule(pattern=".*"))
    before = copy.deepcopy(other.state_dict())
    text = message(lambda: load(path, other, build_optimizer(other, CFG.model_copy(update={"rules": rules}))))
    assert "2 no longer trained (first.bias, first.weight), 1 newly trained (frozen)" in text
    assert text.endswith("resume with the rules that it was started with")
    assert all(torch.equal(x, before[k]) for k, x in other.state_dict().items())


# Weights alone


def test_equal_weights_are_equal_bytes(tmp_path: Path) -> None:
    """safetensors orders metadata by chance, in one file like in one process."""
    method, _ = fresh()
    for i in range(12):
        save_weights(tmp_path / f"{i}.safetensors", method)
    first = (tmp_path / "0.safetensors").read_bytes()
    assert all((tmp_path / f"{i}.safetensors").read_bytes() == first for i in range(12))
    with safetensors.safe_open(tmp_path / "0.safetensors", "pt") as file:
        assert file.metadata() == {"format": "pt", "class": "Small"}
        assert file.keys() == sorted(method.state_dict())


def test_weights_of_a_checkpoint_need_no_optimizer_to_go_on_with(tmp_path: Path) -> None:
    method, _ = trained(tmp_path, 1)
    path, other = latest(tmp_path), Small()
    assert path is not None
    for file in path.glob("optimizer*"):
        file.unlink()
    load_weights(path, other)
    assert same(method, other)
    assert "optimizer.safetensors cannot be read" in message(lambda: verify(path))


def test_weights_are_read_from_a_checkpoint_only_if_its_seal_holds(tmp_path: Path) -> None:
    method, _ = trained(tmp_path, 1)
    path, other = latest(tmp_path), Small()
    assert path is not None
    load_weights(path, other)
    assert same(method, other)
    flip(path / "model.safetensors")
    for given in (path, path / "model.safetensors"):
        assert "model.safetensors does not have the sha256" in message(
            lambda given=given: load_weights(given, other)
        )


def test_weights_that_are_not_finite_are_refused_by_name(tmp_path: Path) -> None:
    method, optimizer = trained(tmp_path, 1)
    name, weight = next(iter(method.named_parameters()))
    weight.data.view(-1)[0] = float("nan")
    path = save(tmp_path, method, optimizer, at(2))
    for read in (lambda: load_weights(path, Small()), lambda: load(path, *fresh())):
        said = message(read)
        assert f"{path / 'model.safetensors'} cannot be weights" in said
        assert f"1 with NaN or infinite numbers ({name})" in said


def test_weights_that_are_absent_or_no_weights_are_one_line(tmp_path: Path) -> None:
    path = tmp_path / "w.safetensors"
    assert f"no weights at {path}; give" in message(lambda: load_weights(path, Small()))
    path.write_text("hello")
    assert "give a safetensors file" in message(lambda: load_weights(path, Small()))
    save_weights(path, Other())
    assert "holds a Other, not a Small" in message(lambda: load_weights(path, Small()))


# A disk that fails


def test_all_is_on_the_disk_before_the_rename_and_the_rename_before_anything_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not Path("/proc/self/fd").is_dir():
        pytest.skip("needs /proc to tell which file was synced")
    method, optimizer = trained(tmp_path, 1)
    done: list[str] = []
    real_sync, real_replace = os.fsync, os.replace

    def fsync(descriptor: int) -> None:
        done.append("sync " + Path(os.readlink(f"/proc/self/fd/{descriptor}")).name)
        real_sync(descriptor)

    def rename(source: Path, target: Path) -> None:
        done.append(f"rename {Path(source).name} {Path(target).name}")
        real_replace(source, target)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "replace", rename)
    monkeypatch.setattr(os, "rename", rename)
    mark(tmp_path, save(tmp_path, method, optimizer, at(2), keep=1), "last")
    assert done == [
        "sync model.safetensors",
        "sync optimizer.safetensors",
        "sync rng.safetensors",
        "sync state.json",
        "sync .saving-step-00000002",
        "rename .saving-step-00000002 step-00000002",
        "sync checkpoints",
        "rename step-00000001 .saving-step-00000001",
        "sync .saving-last",
        "rename .saving-last last",
        f"sync {tmp_path.name}",
    ]


class FailingDisk:
    """Lets the system calls of a save pass until the n-th; that one fails, and if broken all after it."""

    CALLS = (
        (os, "fsync"),
        (os, "rename"),
        (os, "replace"),
        (os, "chmod"),
        (os, "mkdir"),
        (files, "save_file"),
        (Path, "open"),
    )

    def __init__(self, monkeypatch: pytest.MonkeyPatch, number: int, *, broken: bool) -> None:
        self.left, self.broken = number, broken
        for owner, name in self.CALLS:
            monkeypatch.setattr(owner, name, self.wrap(getattr(owner, name), name))

    def wrap(self, real: Callable[..., Any], name: str) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            reading = name == "open" and (args[1:] or ("r",))[0] in ("r", "rb")
            if not reading:
                self.left -= 1
                if self.left == 0 or (self.left < 0 and self.broken):
                    raise OSError(errno.ENOSPC, "injected")
            return real(*args, **kwargs)

        return call

    @property
    def failed(self) -> bool:
        return self.left <= 0


def failures(broken: bool, act: Callable[[], Any], check: Callable[[str | None], None]) -> int:
    """Fail at the first call, then at the second, ... until none fails; returns how many were reported.

    check  gets the message, or None where the act came through in spite of the failure
    """
    reported = number = 0
    while True:
        number += 1
        text = None
        with pytest.MonkeyPatch.context() as monkeypatch:
            disk = FailingDisk(monkeypatch, number, broken=broken)
            try:
                act()
            except UserError as error:
                text = str(error)
                reported += 1
        if not disk.failed:
            return reported
        check(text)


@pytest.mark.parametrize("broken", [False, True], ids=["once", "from then on"])
def test_a_failure_at_any_point_of_a_save_leaves_the_last_good_checkpoint(
    tmp_path: Path, broken: bool
) -> None:
    method, optimizer = trained(tmp_path, 1)
    good = tmp_path / "checkpoints" / "step-00000001"

    def check(text: str | None) -> None:
        last = latest(tmp_path)
        assert last is not None
        verify(last)
        if text is not None:
            assert "no space left on device" in text, text
            assert f"the last good checkpoint is {last}" in text
        if last != good:  # the failure came after the new one was in place
            verify(good)
            for file in last.iterdir():
                file.unlink()
            last.rmdir()
        assert steps_in(tmp_path) == ["0001"], "nothing half is left"

    points = failures(broken, lambda: save(tmp_path, method, optimizer, at(2), keep=9), check)
    assert points >= 14, "three tensor files, the state, two folders and the rename were all made to fail"


@pytest.mark.parametrize("broken", [False, True], ids=["once", "from then on"])
def test_a_failure_while_a_step_is_saved_again_keeps_one_of_the_two(tmp_path: Path, broken: bool) -> None:
    method, optimizer = trained(tmp_path, 1)
    again = lambda: save(tmp_path, method, optimizer, at(1), keep=9)  # noqa: E731
    assert failures(broken, again, lambda _: verify(newest(tmp_path))) >= 15


def test_a_failure_while_the_best_is_replaced_keeps_one_of_the_two(tmp_path: Path) -> None:
    method, optimizer = trained(tmp_path, 1)
    best = mark(tmp_path, newest(tmp_path), "best")
    path = save(tmp_path, method, optimizer, at(2))

    def check(text: str | None) -> None:
        assert text is None or f"cannot write {best}: no space left" in text
        assert files.existing_folder(best) == best, "what was moved away was put back"
        verify(best)

    assert failures(False, lambda: mark(tmp_path, path, "best"), check) >= 4


def test_a_full_disk_keeps_the_last_good_checkpoint(tiny_disk: Path) -> None:
    method = nn.Linear(200, 200)  # 160 kB, with its optimizer state 480 kB: the disk holds two, not three
    optimizer = build_optimizer(method, OptimizerConfig())
    for parameter in method.parameters():
        parameter.grad = torch.randn_like(parameter)
    optimizer.step()
    good = [save(tiny_disk, method, optimizer, at(step)) for step in (1, 2)][-1]
    text = message(lambda: save(tiny_disk, method, optimizer, at(3)))
    assert f"step-00000003: no space left on device; the last good checkpoint is {good}; make it" in text
    assert steps_in(tiny_disk) == ["0001", "0002"]
    verify(good)
    (tiny_disk / "ballast").write_bytes(b"x" * 10_000)
    wrong = message(lambda: save_weights(tiny_disk / "w.safetensors", nn.Linear(400, 400)))
    assert "no space left on device" in wrong
    assert sorted(path.name for path in tiny_disk.iterdir()) == ["ballast", "checkpoints"]


def test_without_any_good_checkpoint_the_message_does_not_promise_one(tmp_path: Path) -> None:
    method, optimizer = fresh()
    (tmp_path / "checkpoints").write_text("a file where the folder should be")
    text = message(lambda: save(tmp_path, method, optimizer, at(1)))
    assert "file exists; there is no earlier checkpoint" in text


# A process that is really killed

KILLS = 30

KILLER = """
import os, random, signal, sys, time
from pathlib import Path
import torch
from torch import nn
from grainline import files
from grainline.training.checkpoint import TrainState, latest, load, mark, save, verify
from grainline.training.optim import OptimizerConfig, build_optimizer
from grainline.training.checkpoint import rng_state

out, kills = Path(sys.argv[1]), int(sys.argv[2])
torch.set_num_threads(1)

def work(out, pipe, steps):
    method = nn.Linear(8, 8)
    optimizer = build_optimizer(method, OptimizerConfig())
    path = latest(out)
    first = load(path, method, optimizer).step if path else 0
    for step in range(first + 1, first + 1 + steps):
        for parameter in method.parameters():
            parameter.grad = torch.randn_like(parameter)
        optimizer.step()
        state = TrainState(step, (rng_state(),))
        for _ in range(1 + step % 2):  # every other step is saved twice, which replaces a folder
            path = save(out, method, optimizer, state, keep=1)
        mark(out, path, "best")
        os.write(pipe, step.to_bytes(8, "little"))

# Once before the first fork, so that what torch imports late is there.
work(out / "warm", os.open(os.devnull, os.O_WRONLY), 2)
rng, seen, leftovers = random.Random(7), 0, 0
for number in range(kills):
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read)
        try:
            work(out, write, 10**9)
        finally:
            os._exit(1)
    os.close(write)
    acknowledged = 0
    if number % 2:  # every other one gets going first
        acknowledged = int.from_bytes(os.read(read, 8), "little")
    time.sleep(rng.random() * 0.04)
    os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status), f"the process ended by itself before kill {number}"
    while chunk := os.read(read, 8):
        acknowledged = int.from_bytes(chunk, "little")
    os.close(read)
    hidden = [p for f in (out, out / "checkpoints") if f.is_dir() for p in f.iterdir() if p.name[0] == "."]
    leftovers += bool(hidden)
    path = latest(out)
    if path is None:
        assert seen == acknowledged == 0
        continue
    step = verify(path)["state"]["step"]
    assert step >= max(seen, acknowledged), (step, seen, acknowledged)
    seen = step
    if acknowledged:
        verify(files.existing_folder(out / "best"))
print(seen, leftovers)
"""


def test_a_process_killed_while_saving_always_leaves_a_good_checkpoint(tmp_path: Path) -> None:
    command = [sys.executable, "-c", KILLER, str(tmp_path), str(KILLS)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    steps, leftovers = map(int, done.stdout.split())
    assert steps >= KILLS // 2, "the run went on between the kills"
    assert leftovers >= KILLS // 4, "the kills fell into the middle of saving"


def test_the_number_of_a_disk_error_inside_a_safetensors_message_is_understood() -> None:
    assert files.reason(safetensors.SafetensorError("I/O error: x (os error 13)")) == "permission denied"
    assert files.reason(safetensors.SafetensorError("HeaderTooSmall")) == "HeaderTooSmall"
