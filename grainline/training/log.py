"""The log of a run: OUT/log.jsonl, a progress bar, and on request TensorBoard and Weights & Biases.

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
import sys
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import Field
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn
from torch import Tensor

from grainline.config import Config, flatten
from grainline.errors import UserError
from grainline.files import read_plain, writing

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
    selected: list[tuple[str, str, str, type[_TensorBoard] | type[_Wandb]]] = []
    if cfg.tensorboard:
        selected.append(("tensorboard=true", "torch.utils.tensorboard", "tb", _TensorBoard))
    if cfg.wandb:
        selected.append((f"wandb={cfg.wandb}", "wandb", "wandb", _Wandb))
    for setting, module, extra, _ in selected:
        try:
            importlib.import_module(module)
        except ImportError:
            package = setting.partition("=")[0]
            raise UserError(
                f"{setting} needs the package {package}, which is not installed: "
                f"pip install 'grainline[{extra}]'"
            ) from None
    return [board for *_, board in selected]


class _Display:
    """The progress of a run: a bar in a terminal and a notebook, else a plain line every `every` seconds.

    The bar has no refresh thread, because threads do not survive the forks of the data loader.
    """

    def __init__(self, console: Console, total: int, step: int, every: float) -> None:
        self.console, self.total, self.first, self.every = console, total, step, every
        self.start, self.refreshed = time.monotonic(), -math.inf
        self.bar: Progress | None = None
        self.notebook: Any = None
        if console.is_jupyter:
            from tqdm.std import tqdm  # as in grainline/progress.py: plain text works without ipywidgets

            self.notebook = tqdm(total=total, initial=step, desc="training", unit=" steps", file=sys.stderr)
            self.every = 0.1
        if console.is_terminal and not console.is_dumb_terminal:
            texts = TextColumn("{task.completed}/{task.total}"), TextColumn("{task.description}")
            self.bar = Progress(BarColumn(bar_width=24), *texts, console=console, auto_refresh=False)
            self.every = 0.1
            self.task = self.bar.add_task("", total=total, completed=step)
            self.bar.start()

    def update(self, step: int, terms: Mapping[str, float], images_per_s: float) -> None:
        now = time.monotonic()
        if now - self.refreshed < self.every and step < self.total:
            return
        self.refreshed = now
        left = (now - self.start) / max(step - self.first, 1) * max(self.total - step, 0)
        text = _line(terms, images_per_s, left)
        if self.notebook is not None:
            self.notebook.set_postfix_str(text.rpartition("  ETA")[0], refresh=False)
            self.notebook.update(step - self.notebook.n)
        elif self.bar is None:
            self.print(f"step {step}/{self.total}  {text}")
        else:
            self.bar.update(self.task, completed=step, description=text, refresh=True)

    def print(self, text: str) -> None:
        if self.notebook is not None:
            self.notebook.write(text, file=self.console.file)
        elif self.bar is not None:
            self.bar.console.print(text, markup=False, highlight=False)
        else:
            print(text, file=self.console.file, flush=True)

    def close(self) -> None:
        if self.notebook is not None:
            self.notebook.close()
        if self.bar is not None:
            self.bar.stop()


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
