"""Checkpoints: written atomically, sealed with sha256 sums, removed when old, and read strictly.

    OUT/checkpoints/step-00000200/   model.safetensors  optimizer.safetensors  rng.safetensors  state.json
    OUT/best/  OUT/last/             the same files, as hard links

With `train.ema` model.safetensors holds the moving average, and raw.safetensors the weights that go on.

A checkpoint is written to a hidden folder, synced to the disk, and then renamed, so a kill at any moment
leaves whole checkpoints only. state.json holds the size and sha256 of all files. Nothing is pickled: tensors
are safetensors, the rest is JSON. Only the first process writes, and sharded tensors are written in full.
"""

import contextlib
import json
import random
import re
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, NoReturn

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd

from grainline import files
from grainline.distributed import rank
from grainline.encoders.pretrained.adapters import draws_by_process
from grainline.errors import UserError
from grainline.training.parallel import full_tensor_on_first, shard_like
from grainline.weights import (
    MODEL,
    RAW,
    fill,
    plain_state_dict,
    read_weights,
    state_dict_mismatch,
    summarize_names,
    write_weights,
)

OPTIMIZER, RNG = "optimizer.safetensors", "rng.safetensors"
MARKS = "best", "last"
VERSION = 3  # of the format; a change that older code cannot read adds one


class TrainState(NamedTuple):
    """The state of a run without weights and optimizer state."""

    step: int  # updates made
    rng: tuple[dict[str, Tensor], ...]  # `rng_state()` of every rank, in rank order
    best: float | None = None  # best value so far of the metric that selects the best checkpoint
    log_lines: int = 0  # lines of the log that were written before this checkpoint
    extra: Mapping[str, Any] = {}  # what else the loop needs, as JSON


def save(
    out: Path,
    method: nn.Module,
    optimizer: torch.optim.Optimizer,
    state: TrainState,
    keep: int = 3,
    averages: Mapping[str, Tensor] = MappingProxyType({}),
) -> Path:
    """Write OUT/checkpoints/step-NNNNNNNN and return its path; only the last `keep` stay.

    All processes call it, because sharded tensors have to be gathered; the first one writes.

    method     the module itself, not wrapped by DDP, so that its parameters have their names
    optimizer  from `build_optimizer`: its groups carry the names of their parameters
    averages   moving averages by plain name: they are the weights then, and RAW holds those of the method

    A checkpoint of the same step is replaced. Those of later steps are removed, `best` and `last` too,
    because a run that resumes from an earlier step will not reach them. When writing fails (disk full, no
    permission), older checkpoints stay, and a UserError names the last good one.
    """
    assert keep >= 1, "a run keeps at least one checkpoint"
    target = out / "checkpoints" / f"step-{state.step:08d}"
    saving = files.temporary_path(target)
    weights = {name: full_tensor_on_first(x) for name, x in plain_state_dict(method).items()}
    means = {name: full_tensor_on_first(x) for name, x in averages.items()}
    moments = {name: full_tensor_on_first(x) for name, x in _moments(optimizer).items()}
    if rank() != 0:
        return target
    parameters, values = _parameters(optimizer), state._asdict()
    rngs = {f"{i}/{k}": x for i, rng in enumerate(values.pop("rng")) for k, x in rng.items()}
    body = {"version": VERSION, "state": values, "ranks": len(state.rng), "trained": list(parameters)}
    # Trained parameters without a gradient so far; AdamW creates their state with the first one.
    body["untouched"] = [name for name, p in parameters.items() if p not in optimizer.state]
    try:
        saving.parent.mkdir(parents=True, exist_ok=True)
        files.clear_leftovers(saving.parent)
        saving.mkdir()
        write_weights(saving / MODEL, method, weights | means)
        if means:
            write_weights(saving / RAW, method, weights)
        files.write_tensors(saving / OPTIMIZER, moments, {})
        files.write_tensors(saving / RNG, rngs, {})
        files.seal(saving, body)
        files.move_into_place(target)
        steps = _steps(out)
        latest = [step for step in steps if step <= state.step][-keep:]
        for step in set(steps) - set(latest):
            files.remove(steps[step])
        for path in filter(None, (files.existing_folder(out / name) for name in MARKS)):
            if step_of(path) > state.step:
                files.remove(path)
    except files.WRITE_ERRORS as error:
        _cannot_write(error, target)
    return target


def mark(out: Path, checkpoint: Path, name: str) -> Path:
    """Link a checkpoint as OUT/<name> ("best", "last"), which `save` does not remove later."""
    target = out / name
    try:
        files.clear_leftovers(out)
        files.temporary_path(target).mkdir()
        for file in sorted(checkpoint.iterdir()):
            files.link(file, files.temporary_path(target) / file.name)
        files.sync(files.temporary_path(target))
        files.move_into_place(target)
    except files.WRITE_ERRORS as error:
        _cannot_write(error, target)
    return target


def step_of(folder: Path) -> int:
    """The step of a checkpoint; -1 if its state.json cannot be read."""
    try:
        return int(json.loads(files.read_plain(folder / files.STATE))["state"]["step"])
    except (OSError, ValueError, KeyError, TypeError):
        return -1


def latest(out: Path) -> Path | None:
    """The checkpoint of the latest step, intact or not; None without checkpoints."""
    return next(reversed(_steps(out).values()), None)


def find(out: Path, name: str) -> Path:
    """The checkpoint that `--checkpoint` names: a step folder such as step-00000200, or best or last."""
    folders = {files.original_name(step): step for step in _steps(out).values()}
    folders |= {mark: path for mark in MARKS if (path := files.existing_folder(out / mark))}
    if name not in folders:  # paths too are refused
        raise UserError(f"no checkpoint {name!r} in {out}; there are: {', '.join(folders) or 'none'}")
    return folders[name]


def verify(path: Path) -> dict[str, Any]:
    """The content of state.json, once format, sizes and sha256 sums of a checkpoint are checked."""
    try:
        body = files.unseal(path)
    except files.Corrupt as error:
        raise _corrupt(path, str(error)) from None
    if body.get("version") != VERSION:
        wrong = f"checkpoint {path} has format {body.get('version')}, this grainline reads format {VERSION}"
        raise UserError(f"{wrong}: train again, or use the version that wrote it")
    return body


def load(
    path: Path,
    method: nn.Module,
    optimizer: torch.optim.Optimizer,
    averages: Mapping[str, Tensor] = MappingProxyType({}),
) -> TrainState:
    """Load weights, optimizer state and moving averages in place, bit for bit, and return the rest.

    Every name, shape and dtype has to fit, and all are checked before anything changes. The caller sets the
    random number generators, each rank its own: `set_rng_state(state.rng[rank])`.
    """
    body = verify(path)
    weights, moments = read_weights(path / (RAW if averages else MODEL), method), _tensors(path, OPTIMIZER)
    means = read_weights(path / MODEL, method) if averages else {}
    try:  # a seal holds whatever was sealed
        rng: list[dict[str, Tensor]] = [{} for _ in range(body["ranks"])]
        for key, value in _tensors(path, RNG).items():
            number, _, name = key.partition("/")
            rng[int(number)][name] = value.clone()
        for generators in rng:
            torch.Generator().set_state(generators["torch"])
            _from_bytes(generators["python"]), _from_bytes(generators["numpy"])
        read = TrainState(rng=tuple(rng), **body["state"])
        _check_moments(path, body, moments, optimizer)
    except UserError:
        raise
    except (LookupError, TypeError, ValueError, RuntimeError) as error:
        raise _corrupt(path, f"{RNG} or {files.STATE} is of another form ({error!r})") from None
    state = plain_state_dict(method)
    fill(method, {name: shard_like(x, state[name]) for name, x in weights.items()})
    for name, x in averages.items():
        x.copy_(shard_like(means[name], x))
    _restore(optimizer, moments)
    return read


def _tensors(path: Path, name: str) -> dict[str, Tensor]:
    """The tensors of one file of a checkpoint."""
    try:
        return dict(load_file(path / name))
    except (OSError, SafetensorError) as error:
        raise _corrupt(path, f"{name} cannot be read ({files.reason(error)})") from None


def _corrupt(path: Path, reason: str) -> UserError:
    """The error about a damaged checkpoint, with a good one of its run."""
    good, offer = (
        _good_of_run(path, path),
        "the run has no other good checkpoint: train again into a new folder",
    )
    if good is not None:
        offer = f"continue from the last good one with --resume --checkpoint {files.original_name(good)}"
    return UserError(f"checkpoint {path} is corrupt: {reason}; {offer}")


def _cannot_write(error: Exception, target: Path) -> NoReturn:
    files.discard(files.temporary_path(target))
    good = _good_of_run(target)
    last = f"the last good checkpoint is {good}" if good else "there is no earlier checkpoint"
    wrong = f"cannot write {target}: {files.reason(error)}; {last}"
    raise UserError(f"{wrong}; make it writable, then train with --resume") from None


def _steps(out: Path) -> dict[int, Path]:
    """The checkpoints by step, in order, with those that a killed process had moved aside."""
    folder, steps = out / "checkpoints", {}
    for path in folder.iterdir() if folder.is_dir() else ():
        match = re.fullmatch(r"step-(\d+)", files.original_name(path))
        place = files.existing_folder(folder / files.original_name(path))
        if match and place is not None:
            steps[int(match[1])] = place
    return dict(sorted(steps.items()))


def _good_of_run(path: Path, besides: Path | None = None) -> Path | None:
    """The newest checkpoint that is intact, of the run that a checkpoint belongs to."""
    out = path.parent.parent if path.parent.name == "checkpoints" else path.parent
    for step in (step for step in reversed(_steps(out).values()) if step != besides):
        with contextlib.suppress(files.Corrupt):
            files.unseal(step)
            return step
    return None


def _check_moments(
    path: Path, body: Mapping[str, Any], moments: Mapping[str, Tensor], optimizer: torch.optim.Optimizer
) -> None:
    """UserError unless the same parameters learn as before and their states have the same shapes."""
    parameters, before = _parameters(optimizer), set(body["trained"])
    names = set(parameters)
    wrong = summarize_names({"no longer trained": before - names, "newly trained": names - before})
    if not wrong:
        expected: dict[str, Tensor] = {}
        for name in names - set(body["untouched"]):
            expected |= {f"{key}/{name}": parameters[name].detach() for key in ("exp_avg", "exp_avg_sq")}
            expected[f"step/{name}"] = torch.zeros((), dtype=torch.float32)
        wrong = state_dict_mismatch(moments, expected)
    if wrong:
        wrong = f"the optimizer state of {path} does not fit this run: {wrong}"
        raise UserError(f"{wrong}; resume with the rules that it was started with")


def _parameters(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """The trained parameters by name, in the order of the groups."""
    groups = optimizer.param_groups
    return {k: p for group in groups for k, p in zip(group["names"], group["params"], strict=True)}


def _moments(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """The optimizer's state by parameter name: "exp_avg/name" -> tensor."""
    states = {name: optimizer.state.get(p, {}) for name, p in _parameters(optimizer).items()}
    return {f"{key}/{name}": x for name, state in states.items() for key, x in state.items()}


def _restore(optimizer: torch.optim.Optimizer, moments: Mapping[str, Tensor]) -> None:
    """Load by `load_state_dict`, which puts step counts on the CPU, or for fused kernels on the device."""
    parameters = _parameters(optimizer)
    numbers = {name: i for i, name in enumerate(parameters)}
    state: dict[int, dict[str, Tensor]] = {}
    for full_name, value in moments.items():
        key, _, name = full_name.partition("/")
        value = value.clone()  # the memory map of the file goes with the file
        value = value if value.dim() == 0 else shard_like(value, parameters[name])
        state.setdefault(numbers[name], {})[key] = value
    optimizer.load_state_dict(optimizer.state_dict() | {"state": state})


# The random number generators of a process as tensors, without pickle. Training rarely uses them: order,
# crops, texts and the noise of layers are functions of seed, step and ids (`data/`, `nn/hashing.py`).


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
    """Restore the generators of this process from `rng_state`. States of absent CUDA devices are skipped.

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


def process_rng_modules(model: nn.Module) -> list[str]:
    """Names of the modules in training mode whose noise depends on the number of processes.

    These are the dropout in the attention of GroupViT (transformers library) and the dropout of adapters
    outside the encoders: it comes from the generator of their process.
    """
    attention = set(draws_by_process(model))
    modules = {name: module for name, module in model.named_modules() if module.training}
    dropout = {name for name, module in modules.items() if isinstance(module, _DropoutNd) and module.p > 0}
    return [name for name in modules if name in attention | dropout]


def _as_bytes(value: Any) -> Tensor:
    return torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8)


def _from_bytes(x: Tensor) -> Any:
    return json.loads(bytes(x.tolist()))
