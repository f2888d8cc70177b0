"""The random number generators of a process as tensors, so that a checkpoint can hold them without pickle.

Little is drawn from them in training: order, crops, texts and the noise of layers are functions of seed, step
and ids (`data/`, `nn/noise.py`). `drawn_by_process` names what is left.
"""

import json
import random
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd

from grainline.encoders.pretrained.noise import draws_by_process


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
