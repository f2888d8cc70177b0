"""What the host knows of a batch, so that it need not wait for the device.

A batch is made on the host and uploaded. `upload` remembers the host's own whole numbers and masks as long as
their tensors on the device live. What follows from these alone, the host computes for itself:

    mirror     on the device too: the host will need it later
    from_host  then uploads it: its shape depends on values
    by_host    and keeps it

Where it has no copies, as after a gather over processes, it computes on the device and waits. On a CPU
nothing is remembered, and functions are called with the tensors themselves. They may read no others.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

SMALL = 2**22  # bytes; large tensors are pinned where they are made, or not at all
_COPIES: Any = WeakTensorKeyDictionary()  # by tensor on the device


def upload(x: Tensor, device: torch.device | str) -> Tensor:
    """x on the device. A copy from pinned memory does not wait."""
    out = _sent(x, device)
    if x.dtype in (torch.int64, torch.bool) and _here(x) and out is not x:
        _COPIES[out] = x
    return out


def mirror(function: Callable[..., Any], *tensors: Tensor) -> Any:
    """function(*tensors): a tensor, or a tuple of some."""
    out = function(*tensors)
    if not all(map(_here, tensors)) and (copies := _copies(tensors)) is not None:
        _remember(out, _on_host(function, copies))
    return out


def from_host(function: Callable[..., Any], *tensors: Tensor) -> Any:
    """function(*tensors), on the device of the first tensor: a tensor, or a tuple of some."""
    copies = _copies(tensors)
    if copies is None:
        return function(*tensors)
    return _uploaded(_on_host(function, copies), tensors[0].device)


def by_host(function: Callable[..., Any], *tensors: Tensor) -> Any:
    """function(*tensors), a tensor on the host or no tensor."""
    copies = _copies(tensors)
    if copies is not None:
        return _on_host(function, copies)
    return _read(function(*tensors))


def _here(x: Tensor) -> bool:
    return x.device.type == "cpu"


def _sent(x: Tensor, device: torch.device | str) -> Tensor:
    if torch.device(device).type == "cuda" and _here(x) and x.nbytes <= SMALL:
        x = x.pin_memory()  # from other memory the driver may wait for the device
    return x.to(device, non_blocking=True)


def _read(out: Any) -> Any:
    return out.cpu() if isinstance(out, Tensor) else out


def _on_host(function: Callable[..., Any], copies: list[Tensor]) -> Any:
    return function(*copies)


def _copies(tensors: tuple[Tensor, ...]) -> list[Tensor] | None:
    copies = [x if _here(x) else _COPIES.get(x) for x in tensors]
    return None if any(x is None for x in copies) else copies


def _remember(out: Any, copy: Any) -> None:
    if isinstance(out, Tensor):
        _COPIES[out] = copy
    else:
        for one, other in zip(out, copy, strict=True):
            _remember(one, other)


def _uploaded(copy: Any, device: torch.device) -> Any:
    if isinstance(copy, Tensor):
        return upload(copy, device)
    parts = (_uploaded(one, device) for one in copy)
    return type(copy)(*parts) if hasattr(copy, "_fields") else tuple(parts)
