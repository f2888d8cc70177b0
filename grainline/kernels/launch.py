"""Whether kernels are used, and what happens where one is refused.

This module imports no Triton. `use(x)` says whether kernels are for a tensor. `run` calls a kernel; where it
cannot be compiled or launched, torch computes its part from then on, and one line in the log says so.
"""

import logging
import os
from collections.abc import Callable
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch
from torch import Tensor

from grainline.errors import UserError

OLDEST = (3, 4)  # version of Triton
VARIABLE = "GRAINLINE_KERNELS"
WAYS = ("auto", "off", "interpret")  # the last for tests: Triton's interpreter, on a CPU
FUSION = {
    "enable_fp_fusion": True
}  # for all launches: the default differs between versions, and so would bits
try:  # at import: torch.compile follows no look into installed packages
    TRITON = version("triton")
except PackageNotFoundError:
    TRITON = ""
_log = logging.getLogger(__name__)
_refused: set[str] = set()


@torch.compiler.assume_constant_result
def available() -> str:
    """Why there are no kernels; "" where there are.

    Raises UserError for a value of the variable that is not one of auto and off.
    """
    return _why_not()


@cache
def _why_not() -> str:
    way = os.environ.get(VARIABLE, "auto")
    if way not in WAYS:
        raise UserError(f"{VARIABLE} is {way!r}; it must be auto or off")
    if way == "off":
        return f"{VARIABLE} is off"
    if not TRITON:
        return "Triton is not installed (extra kernels)"
    if tuple(map(int, TRITON.split(".")[:2])) < OLDEST:
        return f"Triton {TRITON} is older than {OLDEST[0]}.{OLDEST[1]}"
    return ""


def use(x: Tensor) -> bool:
    """Whether kernels are for tensors like this one: on a GPU, in float32 or less."""
    if not _on_gpu(x) and os.environ.get(VARIABLE) != "interpret":
        return False
    return x.element_size() <= 4 and not available()


def _on_gpu(x: Tensor) -> bool:
    return x.device.type == "cuda"


def is_older(x: Tensor) -> bool:
    """Whether the device of a tensor is a GPU before sm_90: it has less shared memory, and no wgmma."""
    return x.is_cuda and torch.cuda.get_device_capability(x.device)[0] < 9


def refused(*names: str) -> bool:
    """Whether any of these kernels was refused in this process."""
    return not _refused.isdisjoint(names)


def run(name: str, kernel: Callable[[], Any], fallback: Callable[[], Any]) -> Any:
    """What the kernel gives, or where it was refused once, the fallback."""
    if name in _refused:
        return fallback()
    try:
        return kernel()
    except Exception as error:  # whatever a compiler, a driver or a launch raises
        if type(error).__name__ == "OutOfMemoryError":
            raise
        _refused.add(name)
        why = (str(error).strip().splitlines() or [type(error).__name__])[0]
        _log.warning("the kernel %s is not used, torch computes instead: %s", name, why)
        return fallback()
