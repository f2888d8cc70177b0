"""The training loop: batches in; steps, checkpoints and a log out. Killed at any moment, it goes on unharmed.

A step never waits for the device: terms are kept and looked at every `log_every` steps and before every
checkpoint, so that no checkpoint holds weights that came after a loss that was not finite.
"""

import math
import signal
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, nullcontext
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import torch
from torch import Tensor

from grainline.data.batches import Account, Batch, load_batches
from grainline.data.cache import KeptFeatures
from grainline.data.dataset import Batches, TrainSet
from grainline.data.open_source import remarks
from grainline.distributed import average, everyones, most, rank, wait, world_size
from grainline.errors import UserError
from grainline.methods.base import Method
from grainline.nn.scale import clamp_scales
from grainline.stop import Request, Stopped, requests
from grainline.training import checkpoint
from grainline.training.checkpoint import TrainState, drawn_by_process, rng_state, set_rng_state
from grainline.training.config import TrainConfig
from grainline.training.log import Log
from grainline.training.lora import add_lora
from grainline.training.optim import build_optimizer, rates, require_frozen, set_rates, train_mode
from grainline.training.parallel import Unsharded, clip, dtype_of, part_of_batch, replicated, shard
from grainline.training.step import Loss, Objective, compile_layers, recompute_layers
from grainline.types import Clock, to

IMAGE = "towers.image."  # where the parameters of every method's image encoder stand


class Validation(NamedTuple):
    """What was measured while training."""

    metrics: dict[str, float]  # the first one picks the best checkpoint
    notes: tuple[str, ...] = ()  # what a reader of them has to know
    images: int | None = None  # among so many; None: not counted


class Run(NamedTuple):
    """What a training run is made of."""

    out: Path
    method: Method
    data: TrainSet
    cfg: TrainConfig
    workers: int
    damage: float  # share of samples that may be damaged
    validate: Callable[[Method], Validation] | None  # the first process calls it


class Kept(NamedTuple):
    """One step's numbers, still on the device."""

    step: int
    terms: dict[str, Tensor]
    facts: dict[str, Tensor]
    norm: Tensor


def train(run: Run, device: torch.device, resume: Path | None) -> Path:
    """Train to the end and return OUT/last. `resume` is the checkpoint to go on from; None begins anew.

    Under torchrun every process calls it; the result is that of one process with the same global batch.

    SIGINT or SIGTERM to any process saves a checkpoint after the step under way and raises Stopped in all.
    """
    return _Training(run, device).run(resume)


class _Training:
    """One process's part of a run."""

    def __init__(self, run: Run, device: torch.device) -> None:
        cfg = run.cfg
        cfg.require_batch(len(run.data), world_size(), run.method.sees)
        self.job, self.cfg, self.device = run, cfg, device
        if cfg.lora is not None:
            add_lora(run.method, cfg.lora)
        sharded = cfg.shard and world_size() > 1
        self.whole = Unsharded(run.method) if sharded and run.validate is not None else None
        self.method = run.method.to(device)
        if cfg.compile:
            compile_layers(self.method)
        if cfg.recompute:
            recompute_layers(self.method)
        objective = Objective(self.method, dtype_of(cfg.precision, device))
        if sharded:
            shard(objective, device)
        self.optimizer = build_optimizer(self.method, cfg.optimizer)
        if isinstance(run.data.crop, KeptFeatures):
            require_frozen(self.method, IMAGE, "data.features are of an image encoder that stays as it is")
        self.trained = [p for p in self.method.parameters() if p.requires_grad]
        self.objective: Any = objective if sharded else replicated(objective, device)
        self.account = Account(len(run.data), run.damage)
        self.made = 0  # steps
        self.kept: list[Kept] = []
        self.best: float | None = None
        self.log: Log | None = None  # of the first process
        self.request = Request()
        self.looked = 0, time.monotonic()  # steps made and the time when terms were last read

    def run(self, resume: Path | None) -> Path:
        state = None if resume is None else self._restore(resume)
        batches = self._batches()
        before = world_size() if state is None else len(state.rng)
        # Weights are made already. Few layers draw from this generator (`drawn_by_process`).
        torch.manual_seed(Random(f"{self.cfg.seed}/{self.made}/{rank()}").getrandbits(63))
        if state is not None and before == world_size():
            set_rng_state(state.rng[rank()])
        if rank() == 0:
            lines = 0 if state is None else state.log_lines  # a run killed before it saved has lines as well
            self.log = Log(self.job.out, self.cfg.log, self.cfg.steps, step=self.made, lines=lines)
        answer = (
            "stopping after this step with a checkpoint; a second signal stops at once" if rank() == 0 else ""
        )
        with requests(answer) as self.request, self.log or nullcontext(), closing(batches):
            if self.log is not None and self.made == 0:
                for remark in remarks(self.job.data.source):
                    self.log.note(remark, 0, 0.0)
            train_mode(self.method)
            self._note_processes(before)
            self.looked = self.made, time.monotonic()
            if state is not None and state.extra.get("unmeasured"):
                self._save(best=self._measure())
            while self.made < self.cfg.steps:
                self._step(batches)
                self._after()
        if rank() == 0:
            newest = checkpoint.newest(self.job.out)
            assert newest is not None, "the last step saves"
            checkpoint.mark(self.job.out, newest, "last")
        wait()
        return self.job.out / "last"

    def _note_processes(self, before: int) -> None:
        """Log another number of processes than before, and noise that differs with their number."""
        if self.log is None:
            return
        now = world_size()
        if now != before:
            text = f"goes on from step {self.made} with another number of processes: {now}, before {before}"
            self.log.note(text, self.made, self._epoch())
        noise = drawn_by_process(self.method)
        if noise and (now != before or (now > 1 and self.made == 0)):
            which = noise[0] + (f" and {len(noise) - 1} more" if noise[1:] else "")
            text = f"each process draws the noise of {which} for itself; losses depend on how many they are"
            self.log.note(text, self.made, self._epoch())

    def _step(self, batches: Iterator[Batch]) -> None:
        """One update, from `accumulate` parts."""
        cfg = self.cfg
        clock = Clock(self.made, self._epoch(), cfg.seed)
        terms: dict[str, Tensor] = {}
        facts: dict[str, Tensor] = {}
        for part in range(cfg.accumulate):
            batch = next(batches)
            self.account.add(batch)
            images, texts = to(batch.images, self.device), to(batch.texts, self.device)
            last = part == cfg.accumulate - 1
            with part_of_batch(self.objective, last):
                loss: Loss = self.objective(images, texts, clock, cfg.chunk)
                (loss.total / cfg.accumulate).backward()
            for sums, values in ((terms, loss.terms), (facts, loss.facts)):
                for name, value in values.items():
                    sums[name] = sums.get(name, torch.zeros_like(value)) + value / cfg.accumulate
        norm = clip(self.trained, cfg.clip or float("inf"))
        set_rates(self.optimizer, self.made, cfg.steps)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        clamp_scales(self.method)
        self.kept.append(Kept(self.made, terms, facts, norm))
        self.made += 1

    def _after(self) -> None:
        """What a number of steps made calls for: a look at the terms, a measurement, a checkpoint.

        Where a signal came the measurement is left to the run that goes on: it may take long.
        """
        cfg, made = self.cfg, self.made
        end = made == cfg.steps
        measure = (
            cfg.validate_every > 0
            and self.job.validate is not None
            and (made % cfg.validate_every == 0 or end)
        )
        # Of all processes: they have to stop after the same step.
        asked = int(most(torch.tensor(self.request.number)))
        save = made % cfg.save_every == 0 or end or bool(asked)
        epoch_ends = (made * cfg.batch) // len(self.job.data) > ((made - 1) * cfg.batch) // len(self.job.data)
        if made % cfg.log_every == 0 or measure or save or epoch_ends:
            self._look()
        if epoch_ends or end:
            self._report()
        better = self._measure() if measure and not asked else False
        if save or better:
            path = self._save(best=better, unmeasured=measure and bool(asked))
            if asked:
                self._stop_for(asked, path)

    def _look(self) -> None:
        """Read the kept terms; stop where one is not finite, else log their mean. Facts may be anything."""
        self.account.settle()
        names, facts = [*self.kept[0].terms, "gradient norm"], list(self.kept[0].facts)
        table = [torch.stack([*k.terms.values(), k.norm.reshape(()), *k.facts.values()]) for k in self.kept]
        numbers: list[list[float]] = average(torch.stack(table).float()).tolist()
        for kept, row in zip(self.kept, numbers, strict=True):
            decides = row[: len(names)]
            if not all(map(math.isfinite, decides)):
                self._stop(kept.step, dict(zip(names, decides, strict=True)))
        self.kept = []
        columns = [sum(column) / len(column) for column in zip(*numbers, strict=True)]
        means = dict(zip(names, columns, strict=False))
        norm = means.pop("gradient norm")
        told = dict(zip(facts, columns[len(names) :], strict=True))
        since, start = self.looked
        self.looked = self.made, time.monotonic()
        speed = (self.made - since) * self.cfg.batch / max(time.monotonic() - start, 1e-9)
        if self.log is not None:
            loss = {"loss": sum(means.values())} | (means if len(means) > 1 else {})
            self.log.write(
                "train",
                self.made,
                self._epoch(),
                terms=loss,
                **({"facts": told} if told else {}),
                norm=norm,
                lr=rates(self.optimizer),
                images_per_s=round(speed, 1),
            )
            self.log.progress(self.made, loss, speed)

    def _stop_for(self, number: int, path: Path) -> None:
        how = "interrupted" if number == signal.SIGINT else "terminated"
        raise Stopped(
            number,
            f"{how} after step {self.made} of {self.cfg.steps}; the checkpoint {path} is saved; "
            "go on with --resume",
        )

    def _stop(self, step: int, terms: dict[str, float]) -> None:
        good = checkpoint.newest(self.job.out)
        values = ", ".join(f"{name} {value:g}" for name, value in terms.items())
        offer = f"the last good checkpoint is {good}" if good else "there is no checkpoint yet"
        if self.log is not None:
            self.log.write("not finite", step + 1, self._epoch(), terms=terms)
        raise UserError(
            f"the loss is not finite at step {step + 1}: {values}; {offer}; begin anew in another --out with "
            "a lower train.optimizer.lr, a longer warm-up or train.precision=fp32"
        )

    def _report(self) -> None:
        """The account so far, at the end of an epoch and of the run."""
        if self.log is not None:
            self.log.write("epoch", self.made, self._epoch(), **self.account.report())
            sentence = self.account.sentence()
            if sentence:
                self.log.note(
                    f"epoch {self._epoch():.2f}: {sentence}", self.made, self._epoch(), kind="damage"
                )

    def _measure(self) -> bool:
        """Validate on the first process; every process learns whether it is the best so far."""
        better = torch.zeros((), device=self.device)
        with (
            self.whole.filled(self.method, self.device) if self.whole else nullcontext(self.method) as method
        ):
            if self.log is not None:
                assert self.job.validate is not None
                metrics, notes, images = self.job.validate(method.eval())
                train_mode(self.method)
                value = next(iter(metrics.values()))
                if self.best is None or value > self.best:
                    self.best = value
                    better += 1
                said = f"validation at step {self.made}: {next(iter(metrics))} {value:.4g}"
                text = "; ".join([f"{said}, the best so far" if better else said, *notes])
                self.log.note(text, self.made, self._epoch(), "validation", metrics=metrics, images=images)
        self.looked = self.made, time.monotonic()
        return bool(most(better))

    def _save(self, best: bool, unmeasured: bool = False) -> Path:
        state = TrainState(
            step=self.made,
            rng=tuple(everyones(rng_state())),
            best=self.best,
            log_lines=0 if self.log is None else self.log.sync(),
            extra={
                "account": self.account.state(),
                "best": best,
                "pictures": len(self.job.data),
                "unmeasured": unmeasured,
            },
        )
        path = checkpoint.save(self.job.out, self.method, self.optimizer, state, self.cfg.keep)
        if best and rank() == 0:
            checkpoint.mark(self.job.out, path, "best")
        wait()  # nobody may go on while the first one writes
        return path

    def _restore(self, path: Path) -> TrainState:
        state = checkpoint.load(path, self.method, self.optimizer)
        pictures = state.extra["pictures"]
        if pictures != len(self.job.data):
            raise UserError(
                f"{path} was trained on {pictures} pictures, the data hold {len(self.job.data)} now; "
                "resume with the data it was started with"
            )
        self.made, self.best = state.step, state.best
        if rank() == 0:
            self._mend_best(path, bool(state.extra["best"]))
        self.account.restore(dict(state.extra["account"]))
        return state

    def _mend_best(self, path: Path, is_best: bool) -> None:
        """Mark the best weights where the process died before it could, and forget those of a left future."""
        there = checkpoint.marked(self.job.out, "best")
        if is_best and (there is None or checkpoint.step_of(there) != self.made):
            checkpoint.mark(self.job.out, path, "best")
        elif there is None or checkpoint.step_of(there) > self.made:
            self.best = None  # its weights are gone: the next measurement is the best there is

    def _batches(self) -> Generator[Batch, None, None]:
        """The batches from here to the end of the run."""
        cfg, parts = self.cfg, self.cfg.accumulate
        steps = range(self.made * parts, cfg.steps * parts)
        plan = Batches(
            len(self.job.data),
            cfg.batch // parts,
            cfg.seed,
            steps,
            rank=rank(),
            world_size=world_size(),
            reshuffle=cfg.reshuffle,
        )
        return load_batches(self.job.data, plan, self.job.workers, pin=self.device.type == "cuda")

    def _epoch(self) -> float:
        return self.made * self.cfg.batch / len(self.job.data)
