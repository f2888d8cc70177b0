"""Kernels for GPUs, written in Triton: the extra `kernels`, on Linux. Without them torch computes the same.

kmeans    Superpixels by local k-means: pixels are read once for each step.

`run` calls a kernel, or what takes its place, with one line in the log; `fused` compiles what is no product.
Where a kernel cannot be compiled or launched, torch computes its part from then on. This file imports no
Triton. The environment variable GRAINLINE_KERNELS is `auto` (the default: where there are Triton and a GPU)
or `off`. No setting is tried out at run time: launch settings are fixed, and results are the same bits in
each run.
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
FUSION = {"enable_fp_fusion": True}  # of all launches: the default differs between versions, so bits would
try:  # at import: torch.compile follows no look into installed packages
    TRITON = version("triton")
except PackageNotFoundError:
    TRITON = ""
_log = logging.getLogger(__name__)
_refused: set[str] = set()


@torch.compiler.assume_constant_result
def available() -> str:
    """Why there are no kernels, else "". UserError where the variable is neither auto nor off."""
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


def run(name: str, kernel: Callable[[], Any], fallback: Callable[[], Any]) -> Any:
    """The result of the kernel, or of the fallback where the kernel was refused once."""
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


@cache
def fused(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, compiled for tensors on a GPU where there is Triton."""
    compiled: Any = None

    def call(*args: Any) -> Any:
        nonlocal compiled
        if not TRITON or not _on_gpu(args[0]):
            return function(*args)
        compiled = compiled or torch.compile(function, dynamic=True)
        return run(function.__name__, lambda: compiled(*args), lambda: function(*args))

    return call
