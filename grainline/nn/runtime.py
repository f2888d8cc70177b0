"""How a model runs: whether a graph for export is being made, and in which precision a device computes.

Encoders save work by looking at values: texts of similar length are read together, sentences that several
texts share are read once. An exported graph may depend on shapes alone, so these places check `is_static` and
do the whole work, with the same results.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

_depth = 0  # a plain global: torch.compile can read it


def is_static() -> bool:
    """Whether a graph for export is being made."""
    return _depth > 0


@contextmanager
def static() -> Iterator[None]:
    """Inside, encoders look at no values. Not for several threads at once."""
    global _depth
    _depth += 1
    try:
        yield
    finally:
        _depth -= 1


@contextmanager
def one_thread() -> Iterator[None]:
    """A block of many tiny operations on the host, which are slower on several threads that must be woken."""
    threads = torch.get_num_threads()  # of the whole process
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def has_bf16(device: torch.device) -> bool:
    """Whether the device has instructions for bfloat16."""
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    # Named with underscores, but there from torch 2.6 on; the public list of capabilities came later.
    native = torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
    return device.type == "cpu" and native


@torch.compiler.assume_constant_result
def may_round(device: torch.device) -> bool:
    """Whether products of float32 may be rounded to 11 bits of the factors (TF32) on this device."""
    if device.type != "cuda":
        return False
    try:
        return torch.get_float32_matmul_precision() != "highest"
    except RuntimeError:  # set by torch's newer names, which the older ones refuse to read
        return True
