"""Checkpoints that survive a kill at any moment, and that say so when they are damaged.

    OUT/checkpoints/step-00000200/   model.safetensors  optimizer.safetensors  rng.safetensors  state.json
    OUT/best/  OUT/last/             the same files, hard links to a checkpoint that was marked

A checkpoint is written to a hidden folder beside its place, every file and the folder are synced to the disk,
and only then is it renamed. state.json holds the size and sha256 of all files. Nothing is pickled: tensors
are safetensors, the rest is JSON. Only the first process writes. What is sharded is written whole, so
that nobody who reads it needs to know.
"""

import json
import random
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd

from grainline.distributed import rank
from grainline.encoders.pretrained.adapters import draws_by_process
from grainline.errors import UserError
from grainline.files import (
    STATE,
    WRITE_ERRORS,
    Corrupt,
    aside,
    clear_leftovers,
    discard,
    link,
    name_of,
    placed,
    put,
    reason,
    remove,
    seal,
    sync,
    unseal,
    write_tensors,
)
from grainline.training.parallel import on_first, spread
from grainline.weights import MODEL, fill, listed, misfit, read_weights, state_of, write_weights

OPTIMIZER, RNG = "optimizer.safetensors", "rng.safetensors"
MARKS = "best", "last"
VERSION = 1  # of the layout; a change that older code cannot read adds one


class TrainState(NamedTuple):
    """Where a run stands, beside its weights and its optimizer's state."""

    step: int  # updates made
    rng: tuple[dict[str, Tensor], ...]  # `rng_state()` of every rank, in rank order
    best: float | None = None  # best value so far of the metric that picks the best checkpoint
    log_lines: int = 0  # lines of the log that were written before this checkpoint
    extra: Mapping[str, Any] = {}  # whatever else the loop needs, as JSON


def save(
    out: Path, method: nn.Module, optimizer: torch.optim.Optimizer, state: TrainState, keep: int = 3
) -> Path:
    """Write OUT/checkpoints/step-NNNNNNNN and return its path; only the last `keep` stay.

    All processes call it, because what is sharded has to be brought together; the first one writes.

    method     the bare module, not wrapped by DDP or torch.compile, so that its names are the model's own
    optimizer  from `build_optimizer`: its groups carry the names of their parameters

    A checkpoint of the same step is replaced. Those of later steps go, `best` and `last` among them: they
    belong to a future that a run resumed from an earlier step has left. When writing fails (disk full, no
    permission) what was there stays, and a UserError names the last good checkpoint.
    """
    assert keep >= 1, "a run keeps at least one checkpoint"
    target = out / "checkpoints" / f"step-{state.step:08d}"
    saving = aside(target)
    weights, slots = _whole(state_of(method)), _whole(_slots(optimizer))
    if rank() != 0:
        return target
    try:
        saving.parent.mkdir(parents=True, exist_ok=True)
        clear_leftovers(saving.parent)
        saving.mkdir()
        write_weights(saving / MODEL, method, weights)
        write_tensors(saving / OPTIMIZER, slots, {})
        write_tensors(
            saving / RNG, {f"{i}/{k}": x for i, rng in enumerate(state.rng) for k, x in rng.items()}, {}
        )
        seal(saving, _body(optimizer, state))
        put(target)
        steps = _steps(out)
        kept = [step for step in steps if step <= state.step][-keep:]
        for step in set(steps) - set(kept):
            remove(steps[step])
        for name in MARKS:
            there = marked(out, name)
            if there is not None and step_of(there) > state.step:
                remove(there)
    except WRITE_ERRORS as error:
        _cannot_write(error, target)
    return target


def mark(out: Path, checkpoint: Path, name: str) -> Path:
    """Keep a checkpoint as OUT/<name> ("best", "last"), whatever `save` removes later."""
    target = out / name
    try:
        clear_leftovers(out)
        aside(target).mkdir()
        for file in sorted(checkpoint.iterdir()):
            link(file, aside(target) / file.name)
        sync(aside(target))
        put(target)
    except WRITE_ERRORS as error:
        _cannot_write(error, target)
    return target


def marked(out: Path, name: str) -> Path | None:
    """Where OUT/<name> is, even if the process died while replacing it; None if there is none."""
    return placed(out / name)


def step_of(folder: Path) -> int:
    """The step that a checkpoint was written at; -1 where that cannot be read."""
    try:
        return int(json.loads((folder / STATE).read_bytes())["state"]["step"])
    except (OSError, ValueError, KeyError, TypeError):
        return -1


def newest(out: Path) -> Path | None:
    """The checkpoint of the latest step, whole or not; None where there is none."""
    return next(reversed(_steps(out).values()), None)


def find(out: Path, name: str) -> Path:
    """The checkpoint that `--checkpoint` names: a step folder such as step-00000200, or best or last."""
    there = {name_of(step): step for step in _steps(out).values()}
    there |= {mark: path for mark in MARKS if (path := marked(out, mark)) is not None}
    if name not in there:  # a path as well, even one that leads to a checkpoint
        raise UserError(f"no checkpoint {name!r} in {out}; there are: {', '.join(there) or 'none'}")
    return there[name]


def verify(path: Path) -> dict[str, Any]:
    """What state.json says, after every file's size and sha256 were checked; UserError if one does not fit.

    The error offers the newest good checkpoint of the same run, by the options that resume from it.
    """
    try:
        body = unseal(path)
    except Corrupt as error:
        other = _good(_run_of(path))
        offer = "the run has no other good checkpoint: train again into a new folder"
        if other is not None:
            offer = f"go on from the last good one with --resume --checkpoint {name_of(other)}"
        raise UserError(f"checkpoint {path} is corrupt: {error}; {offer}") from None
    if body["version"] != VERSION:
        raise UserError(
            f"checkpoint {path} has layout {body['version']}, this grainline reads layout {VERSION}"
        )
    return body


def load(path: Path, method: nn.Module, optimizer: torch.optim.Optimizer) -> TrainState:
    """Put weights and optimizer state back, bit for bit, and return the rest.

    The generators are the caller's to set, each rank its own: `set_rng_state(state.rng[rank])`.
    Strict: every name, shape and dtype has to fit, and nothing is changed before all of it was checked.
    """
    body = verify(path)
    weights, slots = read_weights(path / MODEL, method), load_file(path / OPTIMIZER)
    _check_slots(path, body, slots, optimizer)
    mine = state_of(method)
    fill(method, {name: spread(x, mine[name]) for name, x in weights.items()})
    _restore(optimizer, slots)
    rng: list[dict[str, Tensor]] = [{} for _ in range(body["ranks"])]
    for key, value in load_file(path / RNG).items():
        number, _, name = key.partition("/")
        rng[int(number)][name] = value.clone()
    return TrainState(rng=tuple(rng), **body["state"])


def _body(optimizer: torch.optim.Optimizer, state: TrainState) -> dict[str, Any]:
    """What state.json says beside the files."""
    names, parameters = _names(optimizer), _parameters(optimizer)
    return {
        "version": VERSION,
        "state": {key: value for key, value in state._asdict().items() if key != "rng"},
        "ranks": len(state.rng),
        "trained": names,
        # Trained, but without a gradient so far: AdamW makes state on the first one.
        "untouched": [name for name, p in zip(names, parameters, strict=True) if p not in optimizer.state],
    }


def _cannot_write(error: Exception, target: Path) -> NoReturn:
    discard(aside(target))
    good = _good(_run_of(target))
    last = f"the last good checkpoint is {good}" if good else "there is no earlier checkpoint"
    raise UserError(
        f"cannot write {target}: {reason(error)}; {last}; mend it and go on with --resume"
    ) from None


def _steps(out: Path) -> dict[int, Path]:
    """The checkpoints by step, in order. One that was moved away counts while nothing has taken its place."""
    folder, found = out / "checkpoints", {}
    for path in folder.iterdir() if folder.is_dir() else ():
        match = re.fullmatch(r"step-(\d+)", name_of(path))
        place = placed(folder / name_of(path))
        if match and place is not None:
            found[int(match[1])] = place
    return dict(sorted(found.items()))


def _run_of(path: Path) -> Path:
    return path.parent.parent if path.parent.name == "checkpoints" else path.parent


def _good(out: Path) -> Path | None:
    """The newest checkpoint that is whole."""
    for path in reversed(_steps(out).values()):
        try:
            unseal(path)
        except Corrupt:
            continue
        return path
    return None


def _check_slots(
    path: Path, body: Mapping[str, Any], slots: Mapping[str, Tensor], optimizer: torch.optim.Optimizer
) -> None:
    """The same parameters learn as before, and each has its state in its shape."""
    names, before = _names(optimizer), set(body["trained"])
    wrong = listed({"no longer trained": before - set(names), "newly trained": set(names) - before})
    if not wrong:
        expected: dict[str, Tensor] = {}
        for name, parameter in zip(names, _parameters(optimizer), strict=True):
            if name not in body["untouched"]:
                own = {
                    "exp_avg": parameter,
                    "exp_avg_sq": parameter,
                    "step": torch.zeros((), dtype=torch.float32),
                }
                expected |= {f"{key}/{name}": like.detach() for key, like in own.items()}
        wrong = misfit(slots, expected)
    if wrong:
        raise UserError(
            f"the optimizer state of {path} does not fit this run: {wrong}; "
            "resume with the rules that it was started with"
        )


def _names(optimizer: torch.optim.Optimizer) -> list[str]:
    return [name for group in optimizer.param_groups for name in group["names"]]


def _parameters(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _slots(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """The optimizer's state by parameter name: "exp_avg/name" -> tensor."""
    pairs = zip(_names(optimizer), _parameters(optimizer), strict=True)
    return {
        f"{key}/{name}": x
        for name, p in pairs
        if p in optimizer.state
        for key, x in optimizer.state[p].items()
    }


def _whole(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: on_first(x) for name, x in tensors.items()}


def _restore(optimizer: torch.optim.Optimizer, slots: Mapping[str, Tensor]) -> None:
    """torch's own loader decides where a step count lives: on the CPU, or if fused on the device."""
    numbers, parameters = {name: i for i, name in enumerate(_names(optimizer))}, _parameters(optimizer)
    state: dict[int, dict[str, Tensor]] = {}
    for slot, value in slots.items():
        key, _, name = slot.partition("/")
        i = numbers[name]
        value = value.clone()  # the memory map of the file goes with the file
        state.setdefault(i, {})[key] = value if value.dim() == 0 else spread(value, parameters[i])
    optimizer.load_state_dict(optimizer.state_dict() | {"state": state})


# The random number generators of a process as tensors, so that a checkpoint can hold them without pickle.
#
# Little is drawn from them in training: order, crops, texts and the noise of layers are functions of seed,
# step and ids (`data/`, `nn/hashing.py`). `drawn_by_process` names what is left.


def rng_state() -> dict[str, Tensor]:
    """The state of torch, python, numpy and every CUDA device in use: name -> [bytes] uint8."""
    version, words, spare = random.getstate()
    name, keys, *rest = np.random.get_state()
    state = {
        "torch": torch.get_rng_state(),
        "python": _as_bytes([version, list(words), spare]),
        "numpy": _as_bytes([name, np.asarray(keys).tolist(), *rest]),
    }
    if torch.cuda.is_initialized():
        state |= {f"cuda.{i}": x for i, x in enumerate(torch.cuda.get_rng_state_all())}
    return state


def set_rng_state(state: Mapping[str, Tensor]) -> None:
    """Put this process's generators where `rng_state` found them. CUDA devices that are not here are skipped.

    >>> state = rng_state()
    >>> first = torch.rand(1).item(), random.random(), np.random.rand()
    >>> set_rng_state(state)
    >>> (torch.rand(1).item(), random.random(), np.random.rand()) == first
    True
    """
    torch.set_rng_state(state["torch"])
    version, words, spare = _from_bytes(state["python"])
    random.setstate((version, tuple(words), spare))
    name, keys, *rest = _from_bytes(state["numpy"])
    np.random.set_state((name, np.array(keys, dtype=np.uint32), *rest))
    for i in range(torch.cuda.device_count()):
        if f"cuda.{i}" in state:
            torch.cuda.set_rng_state(state[f"cuda.{i}"], i)


def drawn_by_process(model: nn.Module) -> list[str]:
    """The modules in training mode that draw noise from the generator of their process, by name.

    That is dropout inside attention that the transformers library writes for one model alone (GroupViT), and
    dropout of adapters outside the encoders. Their noise differs with the number of processes.
    """
    attention = set(draws_by_process(model))
    return [
        name
        for name, module in model.named_modules()
        if module.training and (name in attention or (isinstance(module, _DropoutNd) and module.p > 0))
    ]


def _as_bytes(value: Any) -> Tensor:
    return torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8)


def _from_bytes(x: Tensor) -> Any:
    return json.loads(bytes(x.tolist()))
