"""How training spreads over processes: replicated (DistributedDataParallel) or sharded (FSDP2).

Replicated, every process holds all weights, gradients and optimizer state. Sharded, it holds its part of each
of them: a layer is gathered when a pass comes to it and let go behind it, and its gradients are added up over
the processes into the parts as soon as they are there. Both step as one process with the whole batch does.

Sharded, every process must call every layer equally often, because a call exchanges tensors; a process that
calls one more waits forever. Texts are therefore read in one group, whatever their lengths.
"""

import copy
import ctypes
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

from grainline.distributed import rank, world_size
from grainline.encoders.text import read_at_once
from grainline.methods.base import Method
from grainline.nn.attention import layer_lists
from grainline.nn.runtime import has_bf16
from grainline.training.step import Objective


def replicated(objective: Objective, device: torch.device) -> Any:
    """The objective, with gradients averaged over processes; after it is known what is frozen."""
    if world_size() == 1:
        return objective
    ids = [device.index] if device.type == "cuda" else None
    return DistributedDataParallel(objective, ids, broadcast_buffers=False)


def shard(objective: Objective, device: torch.device) -> None:
    """Leave this process its part of every parameter, in place; before the optimizer is made.

    Each layer of `layer_lists` is gathered by itself. All that is left, such as tables and projections, is
    gathered for the whole of a step. The first process's weights are everyone's, as with DDP.
    """
    for x in (*objective.parameters(), *objective.buffers()):
        dist.broadcast(x.detach(), 0)
    read_at_once(objective)
    mesh = init_device_mesh(device.type, (world_size(),))
    for layers in layer_lists(objective).values():
        for layer in layers:
            fully_shard(layer, mesh=mesh)
    fully_shard(objective, mesh=mesh)


@contextmanager
def part_of_batch(objective: Any, last: bool) -> Iterator[None]:
    """Around the passes of one part of an accumulated batch.

    Replicas exchange gradients once, with the last part. Shards do with each: what waits would be whole.
    A layer that backward calls once more without gradients, as for descriptions where activations are
    computed again, would stay whole behind it.
    """
    waits = isinstance(objective, DistributedDataParallel) and not last
    with objective.no_sync() if waits else nullcontext():
        yield
    modules = objective.modules()
    if isinstance(objective, FSDPModule):
        for module in modules:
            if isinstance(module, FSDPModule):
                module.reshard()


def clip(parameters: Iterable[nn.Parameter], most: float) -> Tensor:
    """Scale the gradients of all processes down to a largest norm; returns the norm that they had: []"""
    norm = torch.nn.utils.clip_grad_norm_(parameters, most)
    return whole(norm)


def whole(x: Tensor) -> Tensor:
    """A sharded tensor in full, on every process. What is not sharded comes back as it is."""
    if isinstance(x, DTensor):
        full: Tensor = x.full_tensor()
        return full
    return x


def on_first(x: Tensor) -> Tensor:
    """A sharded tensor in full, in the main memory of the first process, which alone keeps it.

    All processes call it; the others get an empty tensor. What is not sharded comes back as it is.
    """
    if not isinstance(x, DTensor):
        return x
    full = whole(x.detach())
    return full.cpu() if rank() == 0 else full.new_empty(0)


def spread(x: Tensor, like: Tensor) -> Tensor:
    """A full tensor cut as `like` is: the way back from `on_first`. All processes call it."""
    if not isinstance(like, DTensor):
        return x
    return distribute_tensor(x.to(like.device), like.device_mesh, like.placements)


class Unsharded:
    """A second, whole method on the first process, for measuring: there a forward pass needs nobody else.

    Between measurements it waits in main memory. What evaluates may then call it as often as it likes,
    while the other processes wait.
    """

    def __init__(self, method: Method) -> None:
        """method  before it is sharded"""
        self.copy = copy.deepcopy(method).cpu() if rank() == 0 else None

    @contextmanager
    def filled(self, method: Method, device: torch.device) -> Iterator[Method]:
        """With the weights of now. All processes enter; only the first may use what it gets."""
        mine = {} if self.copy is None else self.copy.state_dict()
        for name, x in method.state_dict().items():
            full = on_first(x)
            if self.copy is not None:
                mine[name].copy_(full)
        if self.copy is None:
            yield method
            return
        try:
            yield self.copy.to(device)
        finally:
            self.copy.cpu()


# Where a training process runs: its device, its precision, and its place among those torchrun started.


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
