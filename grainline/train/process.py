"""Where a training process runs: its device, its precision, and its place among those torchrun started."""

import ctypes
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import torch
import torch.distributed as dist

from grainline.nn.precision import has_bf16

Precision = Literal["auto", "fp32", "bf16"]


@contextmanager
def process_group() -> Iterator[torch.device]:
    """The device of this process; joins the others for as long as the block lasts.

    torchrun sets RANK, WORLD_SIZE and LOCAL_RANK. Without them this is the only process.
    nccl carries tensors between GPUs, gloo those between CPUs.
    """
    device = torch.device("cpu")
    keep_pages()
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        torch.cuda.set_device(device)
    many = int(os.environ.get("WORLD_SIZE", "1")) > 1 and not dist.is_initialized()
    if many:
        # With GPUs both: what is on the CPU, such as a request to stop, waits for no GPU.
        dist.init_process_group("cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo")
    try:
        yield device
    finally:
        if many:
            dist.destroy_process_group()


def keep_pages() -> None:
    """Let glibc keep the memory that tensors free, instead of giving it back and faulting it in again.

    The default returns every large temporary to the system at once; a training step on a CPU then spends more
    time in page faults than in arithmetic. A CUDA allocator caches in the same way. Elsewhere than on glibc
    this does nothing.
    """
    mmap_max, trim_threshold, top_pad = -4, -1, -2  # names of malloc.h
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is not None:
        for option, value in ((mmap_max, 0), (trim_threshold, 2**31 - 1), (top_pad, 64 * 2**20)):
            mallopt(option, value)


def dtype_of(precision: Precision, device: torch.device) -> torch.dtype:
    """The type that encoders compute in: `auto` is bf16 where the device has instructions for it, or fp32."""
    if precision == "fp32":
        return torch.float32
    if precision == "bf16" or has_bf16(device):
        return torch.bfloat16
    return torch.float32
