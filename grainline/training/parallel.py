"""Training on several processes, replicated (DistributedDataParallel) or sharded (FSDP2), and its device.

Replicated, every process holds all weights, gradients and optimizer state. Sharded, each holds a part: a
layer is gathered before its forward or backward pass and freed after it, and its gradients are
reduce-scattered. Both make the same steps as one process with the global batch.

With FSDP2 every process must call every layer equally often, because each call is a collective; otherwise
the processes wait forever. Texts are therefore encoded in one group, whatever their lengths.
"""

import copy
import ctypes
import os
import sys
import warnings
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

from grainline.distributed import rank, usable_cores, world_size
from grainline.encoders.text import read_at_once
from grainline.errors import UserError
from grainline.methods.base import Method
from grainline.nn.attention import layer_lists
from grainline.nn.runtime import has_bf16
from grainline.training.step import Objective


def data_parallel(objective: Objective, device: torch.device) -> Any:
    """The objective in DistributedDataParallel; call it after `build_optimizer` has frozen parameters."""
    if world_size() == 1:
        return objective
    ids = [device.index] if device.type == "cuda" else None
    with warnings.catch_warnings():  # its successor copies buffers, which differ between processes
        warnings.filterwarnings("ignore", "`broadcast_buffers` is deprecated", FutureWarning)
        return DistributedDataParallel(objective, ids, broadcast_buffers=False)


def shard(objective: Objective, device: torch.device) -> None:
    """Shard every parameter by FSDP2, in place; call it before `build_optimizer`.

    Each layer of `layer_lists` is one unit. The other parameters, such as tables and projections, stay
    gathered for a whole step. All processes start from the weights of the first one, as with DDP.
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
def accumulation_step(objective: Any, last: bool) -> Iterator[None]:
    """The context of forward and backward of one part of an accumulated batch.

    DDP reduces gradients with the last part only; FSDP with each part, because unreduced gradients are as
    large as the unsharded model. Afterwards all layers are resharded: activation checkpointing may gather a
    layer again during backward.
    """
    skip = isinstance(objective, DistributedDataParallel) and not last
    with objective.no_sync() if skip else nullcontext():
        yield
    for module in objective.modules() if isinstance(objective, FSDPModule) else ():  # type: ignore[attr-defined]
        if isinstance(module, FSDPModule):
            module.reshard()


def clip_grad_norm(parameters: Iterable[nn.Parameter], max_norm: float) -> Tensor:
    """`clip_grad_norm_` over the gradients of all processes; returns the norm before clipping: []"""
    norm = torch.nn.utils.clip_grad_norm_(parameters, max_norm)
    return full_tensor(norm)


def full_tensor(x: Tensor) -> Tensor:
    """A sharded tensor in full, on every process; other tensors are returned unchanged."""
    return x.full_tensor() if isinstance(x, DTensor) else x


def full_tensor_on_first(x: Tensor) -> Tensor:
    """A sharded tensor in full, on the CPU of the first process; other tensors are returned unchanged.

    All processes call it; those other than the first get an empty tensor.
    """
    if not isinstance(x, DTensor):
        return x
    full = full_tensor(x.detach())
    return full.cpu() if rank() == 0 else full.new_empty(0)


def shard_like(x: Tensor, like: Tensor) -> Tensor:
    """A full tensor sharded as `like` is, the inverse of `full_tensor_on_first`. All processes call it."""
    if not isinstance(like, DTensor):
        return x
    return distribute_tensor(x.to(like.device), like.device_mesh, like.placements)


class ValidationCopy:
    """An unsharded copy of the method in each process: validation calls its layers as often as it has rows.

    It lies in CPU memory between validations.
    """

    def __init__(self, method: Method) -> None:
        """method  before it is sharded"""
        self.copy = copy.deepcopy(method).cpu()

    @contextmanager
    def filled(self, method: Method, device: torch.device) -> Iterator[Method]:
        """The copy with the current weights. All processes enter."""
        state = self.copy.state_dict()
        for name, x in method.state_dict().items():
            state[name].copy_(full_tensor(x))
        try:
            yield self.copy.to(device)
        finally:
            self.copy.cpu()


Precision = Literal["auto", "fp32", "bf16"]


@contextmanager
def process_group() -> Iterator[torch.device]:
    """The device of this process, and for the length of the block the process group of torchrun.

    torchrun sets RANK, WORLD_SIZE and LOCAL_RANK; without them this is the only process. Collectives use
    nccl on GPUs and gloo on CPUs. A Mac trains on its CPU: losses are summed in float64, which mps lacks.
    """
    device = torch.device("cpu")
    keep_freed_memory()
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        torch.cuda.set_device(device)
    many = int(os.environ.get("WORLD_SIZE", "1")) > 1 and not dist.is_initialized()
    if many:
        # Both with GPUs, because collectives of CPU tensors, such as a signal, need not wait for a GPU.
        nccl = device.type == "cuda" and dist.is_nccl_available()  # which Windows has not
        dist.init_process_group("cpu:gloo,cuda:nccl" if nccl else "gloo")
    try:
        yield device
    except RuntimeError as error:
        if not many or not (isinstance(error, dist.DistError) or "gloo" in str(error)):
            raise
        wrong = f"a process of this run has ended, so process {rank()} ends too"
        raise UserError(f"{wrong}: go on with --resume") from None
    finally:
        if many:
            dist.destroy_process_group()


@contextmanager
def spare_core(device: torch.device) -> Iterator[None]:
    """Inside, torch computes on one core less than there are, unless a number of threads was set.

    Every operation ends when its slowest thread does. Where a loader or another program needs one of the
    cores, all threads wait for it many times in a step (docs/performance.md).
    """
    before, set_by = torch.get_num_threads(), ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
    if device.type == "cpu" and not any(name in os.environ for name in set_by):
        torch.set_num_threads(max(1, min(before, usable_cores() - 1)))
    try:
        yield
    finally:
        torch.set_num_threads(before)


def keep_freed_memory() -> None:
    """Let glibc keep freed memory for the next tensor, as the CUDA allocator does; no effect without glibc.

    By default glibc returns large blocks to the system, and a training step on a CPU then spends more time in
    page faults than in arithmetic.
    """
    mmap_max, trim_threshold, top_pad = -4, -1, -2  # names of malloc.h
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is not None:
        for option, value in ((mmap_max, 0), (trim_threshold, 2**31 - 1), (top_pad, 64 * 2**20)):
            mallopt(option, value)


def dtype_of(precision: Precision, device: torch.device) -> torch.dtype:
    """The dtype of the encoders: `auto` is bf16 if the device has instructions for it, else fp32."""
    half = precision == "bf16" or (precision == "auto" and has_bf16(device))
    return torch.bfloat16 if half else torch.float32
