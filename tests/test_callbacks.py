"""Callbacks and early stopping: what they are called with, clean ends, and exact resumption."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from runs import logged, recipe

import grainline
from grainline.training import loop
from grainline.training.log import TrainingState

VALIDATED: dict[str, Any] = {"validation": "scenes:dev?count=4", "validate_every": 1, "save_every": 1}


class Watch(grainline.Callback):
    def __init__(self) -> None:
        self.calls: list[tuple[str, int]] = []

    def on_step(self, state: TrainingState) -> None:
        self.calls.append(("step", state.step))

    def on_validation(self, state: TrainingState, metrics: dict[str, float]) -> None:
        recalls = [value for name, value in metrics.items() if " R@" in name and "chance" not in name]
        assert metrics["rSum"] == pytest.approx(sum(recalls)), "one unit"
        assert (metrics["text to image R@1, chance"], metrics["rSum, chance"]) == pytest.approx((25, 450))
        self.calls.append(("validation", state.step))

    def on_end(self, state: TrainingState) -> None:
        assert (state.out / "last").is_dir()
        assert state.terms["loss"] > 0
        self.calls.append(("end", state.step))


def test_callbacks_are_called_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And a validation begins with the buffers of the first process, which its checkpoint has."""
    watch = Watch()
    monkeypatch.setattr(loop, "broadcast_buffers", lambda _: watch.calls.append(("buffers", 0)))
    settings = VALIDATED | {"validate_every": 2, "max_steps": 3}
    grainline.train(recipe(tmp_path), out=tmp_path / "x", callbacks=[watch], **settings)
    first = [("step", 1), ("step", 2), ("buffers", 0), ("validation", 2)]
    said = next(line["text"] for line in logged(tmp_path / "x") if line["kind"] == "validation")
    assert re.match(
        r"validation at step 2: rSum [\d.]+ \(chance 450\), the best so far; text to image R@1 ", said
    )
    assert "R@10 100 % (chance 25, 100); image to text R@1 " in said
    assert watch.calls == [*first, ("step", 3), ("buffers", 0), ("validation", 3), ("end", 3)]


@pytest.mark.parametrize("how", ["raise", "return"])
def test_a_callback_ends_a_run_with_a_checkpoint(how: str, tmp_path: Path) -> None:
    def stop(state: TrainingState) -> object:
        if state.step < 3:
            return None
        if how == "raise":
            raise grainline.StopTraining("enough")
        return grainline.StopTraining("enough")

    out = tmp_path / "x"
    assert grainline.train(recipe(tmp_path), out, callbacks=stop) == out / "last"
    assert (out / "checkpoints/step-00000003").is_dir()
    assert logged(out)[-1]["text"] == "stopped after step 3 of 6: enough"
    grainline.train(recipe(tmp_path), out, resume=True)  # without it the run continues
    assert (out / "checkpoints/step-00000006").is_dir()


def test_a_validation_that_ends_a_run_leaves_a_checkpoint_of_its_step(tmp_path: Path) -> None:
    class Second(grainline.Callback):
        def on_validation(self, state: TrainingState, *_: Any) -> object:
            return grainline.StopTraining("enough") if state.step == 2 else None

    settings = VALIDATED | {"save_every": 6, "lr": 1e-30}  # nothing changes: the second is not better
    grainline.train(recipe(tmp_path), tmp_path / "x", callbacks=[Second()], **settings)
    assert (tmp_path / "x/checkpoints/step-00000002").is_dir()


def test_early_stopping_waits_for_its_patience_and_a_resumed_run_does_the_same(tmp_path: Path) -> None:
    settings = VALIDATED | {"early_stopping": {"patience": 3}, "lr": 1e-30}  # no step improves anything
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    grainline.train(recipe(tmp_path), whole, **settings)
    assert logged(whole)[-1]["text"].startswith("stopped after step 4 of 6: early stopping, rSum")

    def kill(state: TrainingState) -> None:
        if state.step == 3:
            raise RuntimeError("killed")

    with pytest.raises(RuntimeError, match="killed"):
        grainline.train(recipe(tmp_path), broken, callbacks=[kill], **settings)
    for _ in range(2):  # the second one has nothing to do
        grainline.train(recipe(tmp_path), broken, resume=True, **settings)
        assert logged(broken) == logged(whole)
        weights = [(run / "last/model.safetensors").read_bytes() for run in (whole, broken)]
        assert weights[0] == weights[1]


def test_mistakes_are_one_line(tmp_path: Path) -> None:
    with pytest.raises(grainline.UserError, match="early_stopping reads validations: set validate_every"):
        grainline.train(recipe(tmp_path), tmp_path / "x", early_stopping={"patience": 2})
    with pytest.raises(grainline.UserError, match=r"is neither a grainline\.Callback nor a func"):
        grainline.train(recipe(tmp_path), tmp_path / "z", callbacks=[3])


@pytest.mark.parametrize(("number", "threads"), [(None, 2), ("3", 3)])
def test_training_leaves_one_core_to_others_unless_threads_were_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: str | None, threads: int
) -> None:
    monkeypatch.setattr("grainline.training.parallel.usable_cores", lambda: 3)
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
        if number is not None:
            monkeypatch.setenv(name, number)
    observed: list[int] = []
    torch.set_num_threads(3)
    try:
        grainline.train(
            recipe(tmp_path),
            out=tmp_path / "x",
            max_steps=1,
            callbacks=[lambda _: observed.append(torch.get_num_threads())],
        )
        assert (observed, torch.get_num_threads()) == ([threads], 3)
    finally:
        torch.set_num_threads(1)
