"""The log of a run: OUT/log.jsonl, a progress bar, TensorBoard and Weights & Biases; callbacks.

Each line of log.jsonl is one JSON object: `kind` ("train", "validation", "epoch", "corrupt", "note", ...),
`step`, `epoch`, `time` (seconds since 1970), and further fields such as `terms`, `lr`, `images_per_s`.
A number that is not finite is null, with its text in `non_finite`: {"terms.loss": "nan"}.

On resume the file is truncated to the lines before the checkpoint. The log is then that of an uninterrupted
run, except for the fields in TIMES and an additional "train" line where a signal stopped it.
"""

import importlib
import json
import math
import os
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from pydantic import Field
from rich.console import Console
from torch import Tensor
from tqdm.std import tqdm  # plain text, in notebooks too

from grainline.config import Config, flatten
from grainline.errors import UserError
from grainline.files import read_plain, writing
from grainline.methods.base import Method

LOG_FILE = "log.jsonl"
TIMES = ("time", "images_per_s")
"""The fields that differ between two runs of the same recipe."""


class LogConfig(Config):
    """The loggers beside the file."""

    tensorboard: bool = False  # also write OUT/tensorboard; needs the extra `tb`
    wandb: str = ""  # also log to this project of Weights & Biases; needs the extra `wandb`
    plain_every: float = Field(10.0, ge=0)  # seconds between progress lines if the output is no terminal


class Log:
    """The log of one run. Close it, or use it as a context."""

    def __init__(
        self,
        out: Path,
        cfg: LogConfig,
        total: int,
        *,
        step: int = 0,
        lines: int = 0,
        console: Console | None = None,
    ) -> None:
        """Open OUT/log.jsonl.

        total  steps of the whole run
        step   the step that the run starts from
        lines  lines to which the log is truncated: of a resumed run `TrainState.log_lines`
        """
        self.path = out / LOG_FILE
        boards = _boards(cfg)
        with writing(self.path):
            out.mkdir(parents=True, exist_ok=True)
            self.lines = _truncate(self.path, lines)
            # Unbuffered, so that a killed process leaves whole lines.
            self._file = self.path.open("ab", buffering=0)
        try:
            self._boards = [board(out, step, cfg) for board in boards]
        except BaseException:
            self._file.close()
            raise
        self._display = _Display(console or Console(), total, step, cfg.plain_every)
        if self.lines < lines:
            text = f"the log had {self.lines} lines where the checkpoint counts {lines}"
            self.write("note", step, 0.0, text=text)

    def __enter__(self) -> "Log":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def write(self, kind: str, step: int, epoch: float, **fields: Any) -> None:
        """Add one line of numbers, texts, tensors of one number, and mappings and sequences of these."""
        non_finite: dict[str, str] = {}
        values = {name: _plain(value, name, non_finite) for name, value in fields.items()}
        if non_finite:
            values["non_finite"] = non_finite
        line = {"kind": kind, "step": step, "epoch": epoch, "time": round(time.time(), 3), **values}
        data = json.dumps(line, allow_nan=False).encode() + b"\n"
        with self._writing():
            while data:
                data = data[os.write(self._file.fileno(), data) :]
        self.lines += 1
        flat = flatten(values, f"{kind}/")
        numbers = {k: x for k, x in flat.items() if isinstance(x, int | float) and not isinstance(x, bool)}
        for board in self._boards:
            board.add(numbers, step)

    def note(self, text: str, step: int, epoch: float, kind: str = "note", **fields: Any) -> None:
        """Add a line with a text, and print the text."""
        self.write(kind, step, epoch, text=text, **fields)
        self._display.print(text)

    def progress(self, step: int, terms: Mapping[str, float], images_per_s: float) -> None:
        """Move the progress bar to `step`. Writes nothing to the file."""
        self._display.update(step, terms, images_per_s)

    def sync(self) -> int:
        """Wait until all lines are on the disk; returns their number, for the checkpoint."""
        with self._writing():
            os.fsync(self._file.fileno())
        return self.lines

    def close(self) -> None:
        """Close the file, the bar, TensorBoard and wandb. A second call does nothing."""
        self._display.close()
        self._file.close()
        while self._boards:
            self._boards.pop().close()

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            what = f"{(error.strerror or str(error)).lower()}; make it writable, then train with --resume"
            raise UserError(f"cannot write {self.path}: {what}") from None


def read_log(path: Path) -> list[dict[str, Any]]:
    """The lines of a log, from its path or the run folder. An incomplete last line is left out."""
    path = path / LOG_FILE if path.is_dir() else path
    try:
        whole, _, _ = read_plain(path).rpartition(b"\n")
    except OSError as error:
        raise UserError(
            f"log {path} cannot be read: {error.strerror}; give a run folder or its {LOG_FILE}"
        ) from None
    lines = []
    for number, line in enumerate(whole.splitlines(), start=1):
        try:
            lines.append(dict(json.loads(line)))
        except (ValueError, TypeError):
            raise UserError(f"log {path} is damaged: line {number} is not a JSON object; remove it") from None
    return lines


def _truncate(path: Path, lines: int) -> int:
    """Truncate the file to its first `lines` lines; returns how many it has then."""
    existing = read_plain(path).splitlines(keepends=True) if path.exists() else []
    whole = [line for line in existing[:lines] if line.endswith(b"\n")]
    if existing:
        os.truncate(path, sum(map(len, whole)))
    return len(whole)


def _plain(value: Any, where: str, non_finite: dict[str, str]) -> Any:
    """The value as JSON. A number that is not finite becomes None, and its text goes into `non_finite`."""
    if isinstance(value, Tensor | np.generic):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        non_finite[where] = str(value)
        return None
    if isinstance(value, Mapping):
        return {str(key): _plain(x, f"{where}.{key}", non_finite) for key, x in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_plain(x, f"{where}.{i}", non_finite) for i, x in enumerate(value)]
    return value


class _TensorBoard:
    """Writes OUT/tensorboard."""

    def __init__(self, out: Path, step: int, _: LogConfig) -> None:
        from torch.utils.tensorboard import SummaryWriter

        # TensorBoard hides what a killed run wrote after its checkpoint.
        self.writer = SummaryWriter(str(out / "tensorboard"), purge_step=step + 1)

    def add(self, numbers: Mapping[str, float], step: int) -> None:
        for name, number in numbers.items():
            self.writer.add_scalar(name, number, step)

    def close(self) -> None:
        self.writer.close()


class _Wandb:
    """Logs to wandb, with its files in OUT/wandb; with WANDB_MODE=offline it does not use the network.

    A resumed run continues under the id in OUT/wandb.id. The x axis of charts is the field `step`, because
    wandb's own counter never goes back to the step of a checkpoint.
    """

    def __init__(self, out: Path, step: int, cfg: LogConfig) -> None:
        import wandb  # the extra `wandb`

        place = out / "wandb.id"
        name = place.read_text(encoding="utf-8") if step and place.exists() else uuid.uuid4().hex[:8]
        place.write_text(name, encoding="utf-8")
        try:
            self.run = wandb.init(project=cfg.wandb, name=out.name, id=name, resume="allow", dir=out)
        except wandb.Error as error:
            message = (str(error).splitlines() or [type(error).__name__])[0]
            raise UserError(
                f"wandb does not start: {message}; call `wandb login`, set WANDB_MODE=offline, or leave"
                " train.log.wandb out"
            ) from None
        self.run.define_metric("*", step_metric="step")

    def add(self, numbers: Mapping[str, float], step: int) -> None:
        if numbers:
            self.run.log({**numbers, "step": step})

    def close(self) -> None:
        self.run.finish()


def _boards(cfg: LogConfig) -> list[type[_TensorBoard] | type[_Wandb]]:
    """The loggers that the config selects. UserError if a package is missing, before the log is written."""
    selected: list[tuple[Any, str, str, str]] = []
    if cfg.tensorboard:
        selected.append((_TensorBoard, "tensorboard", "torch.utils.tensorboard", "tb"))
    if cfg.wandb:
        selected.append((_Wandb, "wandb", "wandb", "wandb"))
    for _, name, module, extra in selected:
        try:
            importlib.import_module(module)
        except ImportError:
            wrong = f"train.log.{name} needs the package {name}, which is not installed"
            raise UserError(f"{wrong}: pip install 'grainline[{extra}]'") from None
    return [board for board, *_ in selected]


class _Bar(tqdm):
    """A bar without a monitoring thread: threads do not survive the forks of the data loader."""

    monitor_interval = 0


class _Display:
    """The progress of a run: a bar in a terminal and a notebook, else a plain line every `every` seconds."""

    def __init__(self, console: Console, total: int, step: int, every: float) -> None:
        self.file, self.total, self.first, self.every = console.file, total, step, every
        self.start, self.refreshed = time.monotonic(), -math.inf
        self.bar: Any = None
        if console.is_jupyter or (console.is_terminal and not console.is_dumb_terminal):
            form = "{bar:24} {n_fmt}/{total_fmt} {desc}"
            self.bar = _Bar(total=total, initial=step, file=self.file, bar_format=form, dynamic_ncols=True)
            self.every = 0.1

    def update(self, step: int, terms: Mapping[str, float], images_per_s: float) -> None:
        now = time.monotonic()
        if now - self.refreshed < self.every and step < self.total:
            return
        self.refreshed = now
        left = (now - self.start) / max(step - self.first, 1) * max(self.total - step, 0)
        text = _line(terms, images_per_s, left)
        if self.bar is None:
            self.print(f"step {step}/{self.total}  {text}")
        else:
            self.bar.n = step
            self.bar.set_description_str(text)

    def print(self, text: str) -> None:
        if self.bar is not None:
            self.bar.write(text, file=self.file)
        else:
            print(text, file=self.file, flush=True)

    def close(self) -> None:
        if self.bar is not None:
            self.bar.close()


def _line(terms: Mapping[str, float], images_per_s: float, left: float) -> str:
    """
    >>> _line({"loss": 1.23456, "i2t": 0.5}, 340.4, left=3725.0)
    'loss 1.235  i2t 0.500  340 images/s  ETA 1:02:05'
    """
    values = [f"{name} {float(value):.3f}" for name, value in terms.items()]
    minutes, seconds = divmod(round(left), 60)
    return "  ".join(
        [*values, f"{images_per_s:.0f} images/s", f"ETA {minutes // 60}:{minutes % 60:02}:{seconds:02}"]
    )


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

    def __init__(self, callbacks: Sequence[Any], patience: int | None) -> None:
        for one in callbacks:
            if isinstance(one, type) or not (isinstance(one, Callback) or callable(one)):
                raise UserError(f"callbacks: {one!r} is neither a grainline.Callback nor a function")
        self.callbacks, self.patience = callbacks, patience
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
        entry = {"best": self.best, "waited": self.waited}
        return {} if self.patience is None else {"early_stopping": entry}

    def restore(self, extra: Mapping[str, Any]) -> None:
        """Continue from the `state` in a checkpoint; a run that early stopping ended stays ended."""
        if "early_stopping" in extra:
            self.best, self.waited = extra["early_stopping"]["best"], extra["early_stopping"]["waited"]
            self._stop_early()

    def _stop_early(self) -> None:
        if self.patience is not None and self.waited >= self.patience:
            self.reason = f"early stopping, rSum did not improve in {self.waited} validations"
