"""Callbacks of a training run, and early stopping."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from grainline.errors import UserError
from grainline.methods.base import Method
from grainline.training.optim import EarlyStopping


class StopTraining(Exception):
    """Raised or returned by a callback: the run ends after this step, with a checkpoint and OUT/last."""


class TrainingState(NamedTuple):
    """The state of a run, for callbacks."""

    step: int  # updates made
    max_steps: int
    epoch: float
    terms: Mapping[str, float]  # "loss" and its terms in the last line of the log; empty before the first
    out: Path  # folder of the run
    method: Method  # as it is trained: call .eval() to measure, and .train() after it


class Callback:
    """Base of callbacks; each method may raise or return StopTraining. The first process calls them."""

    def on_step(self, state: TrainingState) -> Any:
        """After every update."""

    def on_validation(self, state: TrainingState, metrics: dict[str, float]) -> Any:
        """After every validation, with its metrics by name, recalls in %, and each again with ", chance"."""

    def on_end(self, state: TrainingState) -> Any:
        """Once OUT/last is there; not after an error or a signal."""


class Callbacks:
    """The callbacks of a run with its early stopping. A plain function is called after every step."""

    def __init__(
        self,
        callbacks: Sequence[Callback | Callable[[TrainingState], Any]],
        early_stopping: EarlyStopping | None,
    ) -> None:
        for one in callbacks:
            if isinstance(one, type) or not (isinstance(one, Callback) or callable(one)):
                raise UserError(
                    f"callbacks: {one!r} is neither an object of a class derived from grainline.Callback nor"
                    " a function"
                )
        self.callbacks, self.early_stopping = callbacks, early_stopping
        self.may_stop = bool(callbacks) or early_stopping is not None
        self.reason = ""  # why the run shall stop
        self.best: float | None = None  # rSum
        self.waited = 0  # validations since then

    def call(self, name: str, state: TrainingState, *more: Any) -> None:
        """Call the method `name` of every callback."""
        for one in self.callbacks:
            if not isinstance(one, Callback) and name != "on_step":
                continue
            try:
                answer = getattr(one, name)(state, *more) if isinstance(one, Callback) else one(state)
            except StopTraining as stop:
                answer = stop
            if isinstance(answer, StopTraining) or answer is StopTraining:
                self.reason = self.reason or str(answer if answer is not StopTraining else "") or "a callback"

    def measure(self, value: float) -> None:
        """Count a validation with its rSum for early stopping."""
        better = self.best is None or value > self.best
        self.best, self.waited = (value, 0) if better else (self.best, self.waited + 1)
        self._stop_early()

    def state(self) -> dict[str, Any]:
        """The entry of a checkpoint, as JSON; empty without early stopping."""
        if self.early_stopping is None:
            return {}
        return {"early_stopping": {"best": self.best, "waited": self.waited}}

    def restore(self, extra: Mapping[str, Any]) -> None:
        """Continue from the `state` in a checkpoint; a run that early stopping ended stays ended."""
        if self.early_stopping is not None and "early_stopping" in extra:
            self.best, self.waited = extra["early_stopping"]["best"], extra["early_stopping"]["waited"]
            self._stop_early()

    def _stop_early(self) -> None:
        if self.early_stopping is not None and self.waited >= self.early_stopping.patience:
            self.reason = f"early stopping, rSum did not improve in {self.waited} validations"
