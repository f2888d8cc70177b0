"""The training loop: it reads batches and makes steps, checkpoints and a log.

A step never waits for the device. The terms of the loss stay there and are read every `log_every` steps and
before every checkpoint, so no checkpoint holds weights from after a loss that was not finite.
"""

import math
import shlex
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, nullcontext
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import torch
from torch import Tensor

from grainline.data.batches import Batch, CorruptStats, collate, load_batches
from grainline.data.dataset import Batches, Draw, TrainSet
from grainline.distributed import (
    all_gather_objects,
    all_reduce_max,
    all_reduce_mean,
    barrier,
    broadcast_buffers,
    divided,
    rank,
    world_size,
)
from grainline.errors import UserError
from grainline.files import existing_folder
from grainline.methods.base import Method
from grainline.methods.shared import clamp_scales
from grainline.stop import Stopped, requests
from grainline.training import checkpoint, parallel
from grainline.training.checkpoint import TrainState, process_rng_modules, rng_state, set_rng_state
from grainline.training.log import Callbacks, Log, TrainingState
from grainline.training.optim import build_optimizer, rates, set_rates, train_mode
from grainline.training.recipe import TrainConfig
from grainline.training.step import Loss, MovingAverage, Objective, add_lora, compile_layers, recompute_layers
from grainline.types import Clock, each, to


class Validation(NamedTuple):
    """The metrics of one validation during training."""

    metrics: dict[str, float]  # the first one selects the best checkpoint; recalls are in %
    chance: Mapping[str, float] = {}  # of a random ranking, by the names of metrics
    notes: tuple[str, ...] = ()  # remarks for the log
    images: int | None = None  # number of images; None: not counted

    def recalls(self) -> list[str]:
        """Recall at 1 and 10 of each direction, with chance."""
        ones = sorted((name for name in self.metrics if name.endswith(" R@1")), reverse=True)
        return [
            f"{one} {self.metrics[one]:.3g} %, R@10 {self.metrics[one + '0']:.3g} %"
            f" (chance {self.chance[one]:.3g}, {self.chance[one + '0']:.3g})"
            for one in ones
        ]


class Run(NamedTuple):
    """The parts of a training run."""

    out: Path
    method: Method
    data: TrainSet
    cfg: TrainConfig
    workers: int
    max_corrupt: float  # share of samples that may be corrupt
    validate: Callable[[Method], Validation] | None  # all processes call it (`divided`)
    remarks: tuple[str, ...] = ()  # about the data, for the log
    cached_texts: Callable[[Method], None] | None = None  # puts them in front of the frozen text encoder
    callbacks: tuple[Any, ...] = ()  # as in `grainline.train`
    from_files: bool = True  # so that the command line can resume it


def train_loop(run: Run, device: torch.device, resume: Path | None) -> Path:
    """Train to the last step and return OUT/last.

    resume  the checkpoint to resume from; None starts at step 0

    Under torchrun every process calls it; the result is that of one process with the same global batch.
    After SIGINT or SIGTERM to any process, all finish the current step, save a checkpoint and raise Stopped.
    """
    if number := min(run.method.first_images if resume is None else 0, len(run.data)):
        # at even distances, the same for all processes
        samples = [run.data[Draw(i, 0, i * len(run.data) // number)] for i in range(number)]
        batch = collate(samples)
        run.method.to(device).eval().fit(to(batch.images, device), to(batch.texts, device))
        broadcast_buffers(run.method)
    return _Training(run, device).run(resume)


class _Training:
    """The state of a run in one process."""

    def __init__(self, run: Run, device: torch.device) -> None:
        cfg = run.cfg
        cfg.require_batch(len(run.data), world_size(), run.method.uses_images)
        self.job, self.cfg, self.device, self.out = run, cfg, device, run.out
        sharded, precision = cfg.fsdp and world_size() > 1, parallel.dtype_of(cfg.precision, device)
        add_lora(run.method, cfg.lora)
        if run.cached_texts is not None:
            run.cached_texts(run.method)
        copies = sharded and run.validate is not None
        self.validation_copy = parallel.ValidationCopy(run.method) if copies else None
        self.method = run.method.to(device)
        self.uploads = torch.cuda.Stream(device) if device.type == "cuda" else None
        if cfg.compile:
            compile_layers(self.method)
        if cfg.activation_checkpointing:
            recompute_layers(self.method)
        objective = Objective(self.method, precision)
        if sharded:
            parallel.shard(objective, device)
        self.optimizer = build_optimizer(self.method, cfg.optimizer)
        self.average = None if cfg.ema is None else MovingAverage(self.method, cfg.ema)
        train_mode(self.method)
        self.trained = [p for p in self.method.parameters() if p.requires_grad]
        self.objective: Any = objective if sharded else parallel.data_parallel(objective, device)
        self.corrupt_stats = CorruptStats(len(run.data), run.max_corrupt)
        self.noted: set[str] = set()  # kinds of damage that the log has a note of
        self.step = 0  # updates made
        self.names: tuple[list[str], list[str]] = [], []  # of the terms and the norm; of the facts
        self.pending: list[Tensor] = []  # these numbers of each step that is not logged, on the device
        self.best: float | None = None
        self.log: Log | None = None  # of the first process
        patience = None if cfg.early_stopping is None else cfg.early_stopping.patience
        self.callbacks = Callbacks(run.callbacks, patience)
        self.means: dict[str, float] = {}  # terms in the last line of the log
        self.stops = False  # after this step, as a callback or early stopping has it
        self.last_flush = 0, time.monotonic()  # step and time when terms were last read

    def run(self, resume: Path | None) -> Path:
        cfg = self.cfg
        state = None if resume is None else self._restore(resume)
        steps = range(self.step * cfg.grad_accum, cfg.max_steps * cfg.grad_accum)
        part, shares = cfg.global_batch_size // cfg.grad_accum, {"rank": rank(), "world_size": world_size()}
        plan = Batches(len(self.job.data), part, cfg.seed, steps, reshuffle=cfg.reshuffle, **shares)
        batches = load_batches(self.job.data, plan, self.job.workers, pin=self.device.type == "cuda")
        before = world_size() if state is None else len(state.rng)
        # Weights are initialised already. Few layers use this generator (`process_rng_modules`).
        torch.manual_seed(Random(f"{cfg.seed}/{self.step}/{rank()}").getrandbits(63))
        if state is not None and before == world_size():
            set_rng_state(state.rng[rank()])
        answer = "stopping after this step with a checkpoint; a second signal stops at once" * (rank() == 0)
        with requests(answer) as self.request, closing(batches), ExitStack() as stack:
            if rank() == 0:
                lines = 0 if state is None else state.log_lines
                log = Log(self.out, cfg.log, cfg.max_steps, step=self.step, lines=lines)
                self.log = stack.enter_context(closing(log))
            if self.average is not None:
                stack.callback(self.average.swap)  # the report is about the average, as all who load the run
            for remark in self.job.remarks if self.step == 0 else ():
                self._note(remark)
            self._note_processes(before)
            self.last_flush = self.step, time.monotonic()
            if state is not None and state.extra.get("validation_pending"):
                self._save(best=self._validate())
            while self.step < cfg.max_steps and not self.stops:
                self._step(batches)
                self._after()
            if self.stops:
                self._note(f"stopped after step {self.step} of {cfg.max_steps}: {self.callbacks.reason}")
        if rank() == 0:
            newest = checkpoint.latest(self.out)
            assert newest is not None, "the last step saves"
            checkpoint.mark(self.out, newest, "last")
            self._call("on_end")
        barrier()
        return self.out / "last"

    def _note(self, text: str, kind: str = "note", **fields: Any) -> None:
        if self.log is not None:
            self.log.note(text, self.step, self._epoch(), kind, **fields)

    def _call(self, name: str, *more: Any) -> None:
        cfg, method = self.cfg, self.method
        state = TrainingState(self.step, cfg.max_steps, self._epoch(), self.means, self.out, method)
        self.callbacks.call(name, state, *more)

    def _agreed(self, number: int) -> int:
        """The largest number of all processes. All stop when the callbacks of the first one do."""
        both = torch.tensor([number, bool(self.callbacks.reason)])
        largest, self.stops = all_reduce_max(both).tolist()
        return int(largest)

    def _note_processes(self, before: int) -> None:
        """Log another number of processes than before, and layers whose noise depends on it."""
        now = world_size()
        if now != before:
            self._note(f"resumed at step {self.step} with {now} processes, before {before}")
        noise = process_rng_modules(self.method)
        if noise and (now != before or (now > 1 and self.step == 0)):
            which = noise[0] + (f" and {len(noise) - 1} more" if noise[1:] else "")
            self._note(f"the noise of {which} differs between processes, so losses depend on their number")

    def _uploaded(self, part: Any) -> Any:
        """A side of a batch on the device. On a GPU the copy runs beside what is computed there."""
        if self.uploads is None:
            return to(part, self.device)
        with torch.cuda.stream(self.uploads):
            out = to(part, self.device)
        now = torch.cuda.current_stream(self.device)
        now.wait_stream(self.uploads)

        def read_here(x: Tensor) -> Tensor:
            x.record_stream(now)  # its memory is free again when this stream has read it
            return x

        return each(read_here, out)

    def _step(self, batches: Iterator[Batch]) -> None:
        """One update from `grad_accum` parts of a global batch."""
        cfg = self.cfg
        clock = Clock(self.step, self._epoch(), cfg.seed)
        terms: dict[str, Tensor] = {}
        facts: dict[str, Tensor] = {}
        for part in range(cfg.grad_accum):
            batch = next(batches)
            self.corrupt_stats.add(batch)
            images, texts = self._uploaded(batch.images), self._uploaded(batch.texts)
            last = part == cfg.grad_accum - 1
            with parallel.accumulation_step(self.objective, last):
                loss: Loss = self.objective(images, texts, clock, cfg.grad_cache_chunk)
                (loss.total / cfg.grad_accum).backward()
            for sums, values in ((terms, loss.terms), (facts, loss.facts)):
                for name, value in values.items():
                    sums[name] = sums.get(name, torch.zeros_like(value)) + value / cfg.grad_accum
        norm = parallel.clip_grad_norm(self.trained, cfg.grad_clip or float("inf"))
        set_rates(self.optimizer, self.step, cfg.max_steps)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        clamp_scales(self.method)
        if self.average is not None:
            self.average.update(self.step)
        self.names = [*terms, "gradient norm"], list(facts)
        self.pending.append(torch.stack([*terms.values(), norm.reshape(()), *facts.values()]))
        self.step += 1

    def _after(self) -> None:
        """After a step: flush the log, validate and save where they are due, and obey a signal.

        After a signal, validation is left to the resumed run, because it may take long.
        """
        cfg, step, images = self.cfg, self.step, len(self.job.data)
        end = step == cfg.max_steps
        validates = cfg.validate_every > 0 and self.job.validate is not None
        measure = validates and (step % cfg.validate_every == 0 or end)
        if rank() == 0:
            self._call("on_step")
        signal_number = self._agreed(self.request.number)  # all have to stop after the same step
        save = step % cfg.save_every == 0 or end or bool(signal_number) or self.stops
        batch = cfg.global_batch_size
        epoch_ends = step * batch // images > (step - 1) * batch // images
        if step % cfg.log_every == 0 or measure or save or epoch_ends:
            self._flush_log()
        counted = epoch_ends or end or self.stops
        if counted:
            self._log_epoch()
        better = self._validate() if measure and not signal_number else False
        if self.stops and not counted:
            self._log_epoch()
        if save or better or self.stops:
            path = self._save(best=better, validation_pending=measure and bool(signal_number))
            if signal_number:
                how = "interrupted" if signal_number == signal.SIGINT else "terminated"
                torchrun = f"torchrun --nproc-per-node {world_size()} -m " * (world_size() > 1)
                again = f"{torchrun}grainline train {shlex.quote(str(self.out))} --resume"
                if self.job.callbacks or not self.job.from_files:
                    again = "the same call of grainline.train and resume=True"
                done = f"{how} after step {step} of {cfg.max_steps}; the checkpoint {path} is saved"
                raise Stopped(signal_number, f"{done}; continue with: {again}")

    def _log_epoch(self) -> None:
        stats = self.corrupt_stats
        if self.log is not None:
            self.log.write("epoch", self.step, self._epoch(), **stats.report())
            kinds = {*stats.causes, *["truncated"] * bool(stats.truncated)}
            if kinds > self.noted:  # each kind once; the lines of epochs have all counts
                self._note(f"epoch {self._epoch():.2f}: {stats.sentence()}", "corrupt")
            self.noted = kinds

    def _flush_log(self) -> None:
        """Read the pending terms and log their means; UserError for a term that is not finite."""
        self.corrupt_stats.settle()
        names, facts = self.names
        numbers: list[list[float]] = all_reduce_mean(torch.stack(self.pending).float()).tolist()
        for step, row in enumerate(numbers, self.step - len(numbers) + 1):
            if not all(map(math.isfinite, row[: len(names)])):
                self._stop_not_finite(step, dict(zip(names, row, strict=False)))
        self.pending = []
        columns = [sum(column) / len(column) for column in zip(*numbers, strict=True)]
        means = dict(zip(names, columns, strict=False))
        norm = means.pop("gradient norm")
        last_step, start = self.last_flush
        self.last_flush = self.step, time.monotonic()
        speed = (self.step - last_step) * self.cfg.global_batch_size / max(time.monotonic() - start, 1e-9)
        if self.log is not None:
            self.means = {"loss": sum(means.values())} | (means if len(means) > 1 else {})
            fields: dict[str, Any] = {"terms": self.means}
            if facts:
                fields["facts"] = dict(zip(facts, columns[len(names) :], strict=True))
            fields |= {"norm": norm, "lr": rates(self.optimizer), "images_per_s": round(speed, 1)}
            self.log.write("train", self.step, self._epoch(), **fields)
            self.log.progress(self.step, self.means, speed)

    def _stop_not_finite(self, step: int, terms: dict[str, float]) -> None:
        latest = checkpoint.latest(self.out)
        values = ", ".join(f"{name} {value:g}" for name, value in terms.items())
        offer = f"the last good checkpoint is {latest}" if latest else "there is no checkpoint yet"
        if self.log is not None:
            self.log.write("not finite", step, self._epoch(), terms=terms)
        advice = "a lower train.optimizer.lr, a longer warm-up or train.precision=fp32"
        wrong = f"the loss is not finite at step {step}: {values}; {offer}"
        raise UserError(f"{wrong}; start again in another --out with {advice}")

    def _validate(self) -> bool:
        """Validate, divided between all processes; whether the metric is the best so far."""
        assert self.job.validate is not None
        better, swap = False, self.average.swap if self.average is not None else lambda: None
        swap()
        broadcast_buffers(self.method)  # a checkpoint has those of the first process
        copy = self.validation_copy
        with copy.filled(self.method, self.device) if copy else nullcontext(self.method) as method, divided():
            validation = self.job.validate(method.eval())
        swap()
        train_mode(self.method)
        if rank() == 0:
            metrics, chance, notes, images = validation
            name, value = next(iter(metrics.items()))
            better = self.best is None or value > self.best
            self.best = value if better else self.best
            text = f"validation at step {self.step}: {name} {value:.4g}"
            text += f" (chance {chance[name]:.4g})" if name in chance else ""
            text = "; ".join([f"{text}, the best so far" if better else text, *validation.recalls(), *notes])
            self._note(text, "validation", metrics=metrics, chance=chance, images=images)
            self.callbacks.measure(value)
            beside = {f"{name}, chance": value for name, value in chance.items()}
            self._call("on_validation", {**metrics, **beside})
        self.last_flush = self.step, time.monotonic()
        return bool(self._agreed(better))

    def _save(self, best: bool, validation_pending: bool = False) -> Path:
        extra = {"corrupt": self.corrupt_stats.report(), "noted": sorted(self.noted), "best": best}
        extra |= {"images": len(self.job.data), "validation_pending": validation_pending}
        lines = 0 if self.log is None else self.log.sync()
        rngs = tuple(all_gather_objects(rng_state()))
        state = TrainState(self.step, rngs, self.best, lines, extra | self.callbacks.state())
        means = {} if self.average is None else self.average.weights
        path = checkpoint.save(self.out, self.method, self.optimizer, state, self.cfg.keep_checkpoints, means)
        if best and rank() == 0:
            checkpoint.mark(self.out, path, "best")
        barrier()  # no process may continue while the first one writes
        return path

    def _restore(self, path: Path) -> TrainState:
        means = {} if self.average is None else self.average.weights
        state = checkpoint.load(path, self.method, self.optimizer, means)
        images, now = state.extra["images"], len(self.job.data)
        if images != now:
            advice = "resume with the data it was started with"
            raise UserError(f"{path} was trained on {images} images, the data hold {now} now; {advice}")
        self.step, self.best = state.step, state.best
        self.callbacks.restore(state.extra)
        self.stops = bool(self.callbacks.reason)
        self.corrupt_stats.restore(dict(state.extra["corrupt"]))
        self.noted = set(state.extra.get("noted", ()))
        if rank() == 0:
            folder = existing_folder(self.out / "best")
            marked = None if folder is None else checkpoint.step_of(folder)
            if state.extra["best"] and marked != self.step:  # the process died before it marked them
                checkpoint.mark(self.out, path, "best")
            elif marked is None or marked > self.step:
                self.best = None  # its weights are gone, so the next validation is the best
        return state

    def _epoch(self) -> float:
        return self.step * self.cfg.global_batch_size / len(self.job.data)
