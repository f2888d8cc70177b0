"""What modules ask about how they run: while a graph is exported, and in which precision.

Graphs for export: while one is made, nothing may depend on values, only on shapes.

Encoders save work by looking at values: texts of similar length are read together, sentences that several
texts share are read once. A graph that is written down once and run on any input cannot. So these places ask
`is_static`, and then do the whole work, which gives the same results.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

_asked = 0  # a plain global: torch.compile can read it


def is_static() -> bool:
    """Whether a graph for export is being made."""
    return _asked > 0


@contextmanager
def static() -> Iterator[None]:
    """Inside, encoders look at no values. Not for several threads at once.

    >>> with static():
    ...     is_static()
    True
    >>> is_static()
    False
    """
    global _asked
    _asked += 1
    try:
        yield
    finally:
        _asked -= 1


# Which precisions a device computes in.


def has_bf16(device: torch.device) -> bool:
    """Whether the device has instructions for bfloat16."""
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    # Named with underscores, but there from torch 2.6 on; the public list of capabilities came later.
    native = torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
    return device.type == "cpu" and native


def may_round(device: torch.device) -> bool:
    """Whether products of float32 may be rounded to 11 bits of the factors (TF32) on this device."""
    if device.type != "cuda":
        return False
    try:
        return torch.get_float32_matmul_precision() != "highest"
    except RuntimeError:  # set by torch's newer names, which the older ones refuse to read
        return True
