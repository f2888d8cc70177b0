"""How training spreads over processes: replicated (DistributedDataParallel) or sharded (FSDP2).

Replicated, every process holds all weights, gradients and optimizer state. Sharded, it holds its part of each
of them: a layer is gathered when a pass comes to it and let go behind it, and its gradients are added up over
the processes into the parts as soon as they are there. Both step as one process with the whole batch does.

Sharded, every process must call every layer equally often, because a call exchanges tensors; a process that
calls one more waits forever. Texts are therefore read in one group, whatever their lengths.
"""

import copy
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

from grainline.dist import rank, world_size
from grainline.encoders.text import read_at_once
from grainline.methods.base import Method
from grainline.nn.layers import layer_lists
from grainline.train.step import Objective


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
