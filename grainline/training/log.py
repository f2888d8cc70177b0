"""What a run says: OUT/log.jsonl always, a progress bar, and TensorBoard and wandb where they are asked for.

Each line of log.jsonl is one JSON object: `kind` ("train", "validation", "epoch", "damage", "note", ...),
`step`, `epoch`, `time` (seconds since 1970), and what else was given, such as `terms`, `lr`, `images_per_s`.
A number that is not finite is null, and `non_finite` says what it was: {"terms.loss": "nan"}.

On resume the file is cut back to the lines that the checkpoint had seen, so that the log is that of an
uninterrupted run, but for the fields in TIMES, and a "train" line more where a signal stopped it between two.
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
from types import TracebackType
from typing import Any

import numpy as np
from pydantic import Field
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn
from torch import Tensor

from grainline.config import Config
from grainline.errors import UserError

NAME = "log.jsonl"
TIMES = ("time", "images_per_s")
"""The fields of a line that differ between two runs that do the same."""


class LogConfig(Config):
    """What to show of a run beside the log file."""

    tensorboard: bool = False  # also write OUT/tensorboard; needs the extra `tb`
    wandb: str = ""  # also log to this project of Weights & Biases; needs the extra `wandb`
    plain_every: float = Field(
        default=10.0, ge=0
    )  # seconds between progress lines where the output is no terminal


class Log:
    """The log of one run. Close it, or use it as a context."""

    def __init__(
        self,
        out: Path,
        cfg: LogConfig,
        total: int,
        *,
        step: int = 0,
        lines: int | None = None,
        console: Console | None = None,
    ) -> None:
        """Open OUT/log.jsonl.

        total  steps of the whole run
        step   steps already made
        lines  lines to keep of an earlier part of the run (`TrainState.log_lines`; 0 keeps none);
               None says that the run is new, and a log that is already there is a UserError
        """
        self.path = out / NAME
        boards = _boards(cfg)
        try:
            out.mkdir(parents=True, exist_ok=True)
            self.lines = _cut(self.path, lines)
            # Unbuffered, so that a line is in the file or not, whatever happens to the process afterwards.
            self._file = self.path.open("ab", buffering=0)
        except OSError as error:
            raise UserError(f"cannot write {self.path}: {error.strerror}; choose another --out") from None
        try:
            self._boards = [board(out, step, cfg) for board in boards]
        except BaseException:
            self._file.close()
            raise
        self._show = _display(console or Console(), total, step, cfg.plain_every)
        if lines is not None and self.lines < lines:
            self.write(
                "note", step, 0.0, text=f"the log had {self.lines} lines where the checkpoint counts {lines}"
            )

    def __enter__(self) -> "Log":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def write(self, kind: str, step: int, epoch: float, **fields: Any) -> None:
        """Add one line of numbers, texts, tensors of one number, and mappings and sequences of these."""
        odd: dict[str, str] = {}
        line = {"kind": kind, "step": step, "epoch": epoch, "time": round(time.time(), 3)}
        line |= {name: _plain(value, name, odd) for name, value in fields.items()}
        if odd:
            line["non_finite"] = odd
        with self._writing():
            _write_all(self._file.fileno(), json.dumps(line, allow_nan=False).encode() + b"\n")
        self.lines += 1
        if self._boards:
            numbers = dict(_numbers(line | {"step": None, "epoch": None, "time": None}, f"{kind}/"))
            for board in self._boards:
                board.add(numbers, step)

    def note(self, text: str, step: int, epoch: float, kind: str = "note", **fields: Any) -> None:
        """Add a line with a text and show the text."""
        self.write(kind, step, epoch, text=text, **fields)
        self._show.say(text)

    def progress(self, step: int, terms: Mapping[str, float], images_per_s: float) -> None:
        """Move the bar: `step` steps are made. Cheap enough for every step; writes nothing to the file."""
        self._show.update(step, terms, images_per_s)

    def sync(self) -> int:
        """Wait until all lines are on the disk; returns their number, for the checkpoint to be saved."""
        with self._writing():
            os.fsync(self._file.fileno())
        return self.lines

    def close(self) -> None:
        """Close the file, the bar, TensorBoard and wandb. A second call does nothing."""
        self._show.close()
        self._file.close()
        while self._boards:
            self._boards.pop().close()

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            what = (error.strerror or str(error)).lower()
            raise UserError(f"cannot write {self.path}: {what}; mend it and go on with --resume") from None


def read_log(path: Path) -> list[dict[str, Any]]:
    """The lines of a log, from its path or the run's folder. A last line without an end is left out."""
    path = path / NAME if path.is_dir() else path
    try:
        whole, _, _ = path.read_bytes().rpartition(b"\n")
    except OSError as error:
        raise UserError(
            f"log {path} cannot be read: {error.strerror}; give a run folder or its {NAME}"
        ) from None
    lines = []
    for number, line in enumerate(whole.splitlines(), start=1):
        try:
            lines.append(dict(json.loads(line)))
        except (ValueError, TypeError):
            raise UserError(
                f"log {path} is damaged: line {number} is not a JSON object; remove that line"
            ) from None
    return lines


# The file


def _cut(path: Path, lines: int | None) -> int:
    """Keep the first `lines` lines; returns how many there are."""
    there = path.read_bytes().splitlines(keepends=True) if path.exists() else []
    if lines is None:
        if there:
            raise UserError(
                f"{path} is the log of an earlier run: go on with --resume, or choose another --out"
            )
        return 0
    kept = [line for line in there[:lines] if line.endswith(b"\n")]
    if there:
        os.truncate(path, sum(map(len, kept)))
    return len(kept)


def _write_all(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]


def _plain(value: Any, where: str, odd: dict[str, str]) -> Any:
    """The value as JSON can say it. A number that is not finite becomes None and is noted in `odd`."""
    if isinstance(value, Tensor | np.generic):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        odd[where] = str(value)
        return None
    if isinstance(value, Mapping):
        return {str(key): _plain(x, f"{where}.{key}", odd) for key, x in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_plain(x, f"{where}.{i}", odd) for i, x in enumerate(value)]
    return value


def _numbers(line: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, float]]:
    """Every number in a line with its dotted name."""
    for name, value in line.items():
        if isinstance(value, Mapping):
            yield from _numbers(value, f"{prefix}{name}.")
        elif isinstance(value, int | float) and not isinstance(value, bool):
            yield f"{prefix}{name}", value


# TensorBoard and wandb


class _TensorBoard:
    """Writes OUT/tensorboard."""

    def __init__(self, out: Path, step: int, _: LogConfig) -> None:
        from torch.utils.tensorboard import SummaryWriter

        # What a killed run wrote past its checkpoint is hidden.
        self.writer = SummaryWriter(str(out / "tensorboard"), purge_step=step + 1)

    def add(self, numbers: Mapping[str, float], step: int) -> None:
        for name, number in numbers.items():
            self.writer.add_scalar(name, number, step)

    def close(self) -> None:
        self.writer.close()


class _Wandb:
    """Logs to wandb, with its files in OUT/wandb; WANDB_MODE=offline keeps it from the network.

    A resumed run goes on under the id in OUT/wandb.id. Charts are drawn over the field `step`, since wandb's
    own counter never goes back to the step of a checkpoint.
    """

    def __init__(self, out: Path, step: int, cfg: LogConfig) -> None:
        import wandb  # the extra `wandb`

        place = out / "wandb.id"
        name = place.read_text() if step and place.exists() else uuid.uuid4().hex[:8]
        place.write_text(name)
        try:
            self.run = wandb.init(project=cfg.wandb, name=out.name, id=name, resume="allow", dir=out)
        except wandb.Error as error:
            said = (str(error).splitlines() or [type(error).__name__])[0]
            raise UserError(
                f"wandb does not start: {said}; call `wandb login`, set WANDB_MODE=offline, or leave"
                " train.log.wandb out"
            ) from None
        self.run.define_metric("*", step_metric="step")

    def add(self, numbers: Mapping[str, float], step: int) -> None:
        if numbers:
            self.run.log({**numbers, "step": step})

    def close(self) -> None:
        self.run.finish()


def _boards(cfg: LogConfig) -> list[type[_TensorBoard] | type[_Wandb]]:
    """What is asked for. UserError where its package is missing, before the log is touched."""
    asked: list[tuple[bool, type[_TensorBoard] | type[_Wandb], str, str, str, str]] = [
        (cfg.tensorboard, _TensorBoard, "tensorboard=true", "torch.utils.tensorboard", "tensorboard", "tb"),
        (bool(cfg.wandb), _Wandb, f"wandb={cfg.wandb}", "wandb", "wandb", "wandb"),
    ]
    out = []
    for wanted, board, setting, module, package, extra in asked:
        if wanted:
            try:
                importlib.import_module(module)
            except ImportError:
                raise UserError(
                    f"{setting} needs the package {package}, which is not installed: "
                    f"pip install 'grainline[{extra}]'"
                ) from None
            out.append(board)
    return out


# What one sees


class _Bar:
    """A bar that redraws itself only when told: rich's own thread and the loader's forks do not mix."""

    def __init__(self, console: Console, total: int, step: int) -> None:
        self.clock, self.drawn = _Clock(total, step), -math.inf
        columns = (
            BarColumn(bar_width=24),
            TextColumn("{task.completed}/{task.total}"),
            TextColumn("{task.description}"),
        )
        self.bar = Progress(*columns, console=console, auto_refresh=False)
        self.task = self.bar.add_task("", total=total, completed=step)
        self.bar.start()

    def update(self, step: int, terms: Mapping[str, float], images_per_s: float) -> None:
        now = time.monotonic()
        if now - self.drawn > 0.1 or step >= self.clock.total:
            self.drawn = now
            text = _line(terms, images_per_s, self.clock.left(step))
            self.bar.update(self.task, completed=step, description=text, refresh=True)

    def say(self, text: str) -> None:
        self.bar.console.print(text, markup=False, highlight=False)

    def close(self) -> None:
        self.bar.stop()


class _Lines:
    """A plain line now and then, for files and pipes."""

    def __init__(self, console: Console, total: int, step: int, every: float) -> None:
        self.console, self.every = console, every
        self.clock, self.drawn = _Clock(total, step), -math.inf

    def update(self, step: int, terms: Mapping[str, float], images_per_s: float) -> None:
        now = time.monotonic()
        if now - self.drawn >= self.every or step >= self.clock.total:
            self.drawn = now
            self.say(f"step {step}/{self.clock.total}  {_line(terms, images_per_s, self.clock.left(step))}")

    def say(self, text: str) -> None:
        self.console.file.write(text + "\n")
        self.console.file.flush()

    def close(self) -> None:
        pass


class _Clock:
    """How long the rest will take, at the mean speed of this process so far."""

    def __init__(self, total: int, step: int) -> None:
        self.total, self.first, self.start = total, step, time.monotonic()

    def left(self, step: int) -> float:
        """Seconds."""
        made = max(step - self.first, 1)
        return (time.monotonic() - self.start) / made * max(self.total - step, 0)


def _display(console: Console, total: int, step: int, every: float) -> _Bar | _Lines:
    if console.is_terminal and not console.is_dumb_terminal:
        return _Bar(console, total, step)
    return _Lines(console, total, step, every)


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
