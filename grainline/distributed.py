"""Collectives over the processes of a run; with one process every function is the identity.

Validation is divided between the processes (`divided`); all else that evaluation does is work of one.
"""

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn

from grainline.types import Encoded, Mean, each, rows

T = TypeVar("T")
R = TypeVar("R", bound=tuple[Any, ...])


def usable_cores() -> int:
    """CPU cores that this process may use; all of them where the system has no such list, as on macOS."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def world_size() -> int:
    """Number of processes."""
    return dist.get_world_size() if dist.is_initialized() else 1


def rank() -> int:
    """This process's number, from 0."""
    return dist.get_rank() if dist.is_initialized() else 0


class _Gather(torch.autograd.Function):
    """Rows of all ranks, in rank order. Backward sums the gradients of all ranks for the local rows.

    rank 0: [a b]                 [a b c d]  on both ranks
    rank 1: [c d]   -- forward ->
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:  # noqa: ARG004
        return _all_rows(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:  # noqa: ARG004
        # A copy: autograd may give the same tensor to another branch, and all_reduce writes into it.
        grad = grads[0].clone(memory_format=torch.contiguous_format)
        dist.all_reduce(grad)
        return grad.chunk(dist.get_world_size())[dist.get_rank()]


def gather(batch: Encoded, fields: Iterable[str]) -> Encoded:
    """This rank's rows -> the rows of all ranks, differentiable.

    batch   every rank must have equally many rows; the collate function pads with rows of item = -1
    fields  the fields of Encoded to gather. Tokens that are not among them are not sent and come back with
            L = 0, because patches of a batch of 16k are gigabytes per rank. Tokens that are among them come
            back padded to the longest row of all ranks.
    """
    if world_size() == 1:
        return batch
    wanted = set(fields)
    longest = 0
    if "tokens" in wanted:
        longest = largest(batch.mask.shape[1], batch.mask.device)
    tokens, mask = _of_length(batch.tokens, longest), _of_length(batch.mask, longest)
    extra = batch.extra if "extra" in wanted else None
    local = batch._replace(tokens=tokens, mask=mask, extra=extra, places=None, precomputed=None)
    return each(_gathered, local)


def local_rows(gathered: R, number: int) -> R:
    """The `number` rows of this rank among gathered rows."""
    return rows(gathered, slice(rank() * number, (rank() + 1) * number))


def ddp_mean(mean: Mean) -> Tensor:
    """The value whose average over ranks, which DDP computes for gradients, is the mean over all rows."""
    rows_per_rank = all_reduce_mean(mean.number.detach().float())
    return mean.total / rows_per_rank.clamp(min=1e-8)


def all_reduce_mean(x: Tensor) -> Tensor:
    """Mean over ranks, without a gradient."""
    if world_size() > 1:
        x = x.detach().clone()
        dist.all_reduce(x)
        x = x / world_size()
    return x


def all_reduce_max(x: Tensor) -> Tensor:
    """The maximum over ranks."""
    if world_size() > 1:
        x = x.clone()
        dist.all_reduce(x, dist.ReduceOp.MAX)
    return x


def largest(number: int, device: torch.device) -> int:
    """The largest of the numbers of all ranks. device: of the collective"""
    return int(all_reduce_max(torch.tensor(number, device=device))) if world_size() > 1 else number


def broadcast_buffers(module: nn.Module) -> None:
    """Give every process the floating-point buffers of the first one, such as statistics of batch norm."""
    if world_size() > 1:
        for x in module.buffers():
            if x.is_floating_point():
                whole = x.contiguous()
                dist.broadcast(whole, 0)
                x.copy_(whole)


def all_gather_objects(local: T) -> list[T]:
    """A small object of every process, in rank order."""
    parts = [local] * world_size()
    if world_size() > 1:
        dist.all_gather_object(parts, local)
    return parts


def barrier() -> None:
    """Wait until every process calls it."""
    if world_size() > 1:
        dist.barrier()


_divided = False


@contextmanager
def divided() -> Iterator[None]:
    """Inside, all processes encode and rank together: each does a share, and each gets the whole result.

    They must make the same calls. Outside, a call computes everything itself, as the callbacks of the first
    process expect.
    """
    global _divided
    before, _divided = _divided, True
    try:
        yield
    finally:
        _divided = before


def workers() -> int:
    """The number of processes that divide the work of a call: 1 outside `divided`."""
    return world_size() if _divided else 1


def span(number: int, unit: int) -> range:
    """The share of this process in `number` rows: consecutive, and whole units but for the last rows."""
    units = -(-number // unit)
    first, last = ((rank() + i) * units // workers() if workers() > 1 else i * units for i in (0, 1))
    return range(min(first * unit, number), min(last * unit, number))


def part_of(items: Sequence[T]) -> Sequence[T]:
    """The share of this process in some items: every `workers()`-th."""
    return items[rank() :: workers()] if workers() > 1 else items


def max_over_workers(x: Tensor) -> Tensor:
    """The maximum over the processes that divide the work."""
    return all_reduce_max(x) if workers() > 1 else x


def sum_over_workers(x: Tensor) -> Tensor:
    """The sum over the processes that divide the work."""
    if workers() > 1:
        x = x.clone()
        dist.all_reduce(x)
    return x


def parts_of_workers(local: T) -> list[T]:
    """A small object of every process that divides the work, in rank order."""
    return all_gather_objects(local) if workers() > 1 else [local]


def rows_of_workers(local: R, device: torch.device) -> list[R]:
    """Rows of every process that divides the work, in rank order; their number and length may differ."""
    if workers() == 1:
        return [local]
    local = each(Tensor.contiguous, local)  # strides too are sent with what a tensor is like
    like: list[R] = all_gather_objects(each(lambda x: torch.empty_like(x, device="meta"), local))
    like[rank()] = local

    def sent(source: int, x: Tensor) -> Tensor:
        x = x if source == rank() else torch.empty_like(x, device=device)
        as_bytes = x.view(torch.uint8) if x.dtype == torch.bool else x  # gloo and nccl disagree about bool
        dist.broadcast(as_bytes, source)
        return x

    return [each(partial(sent, source), part) for source, part in enumerate(like)]


def _of_length(x: Tensor, length: int) -> Tensor:
    """Rows [N, L, ...] cut to, or filled with zeros up to, a length."""
    missing = length - x.shape[1]
    if missing <= 0:
        return x[:, :length]
    return torch.cat([x, x.new_zeros(len(x), missing, *x.shape[2:])], dim=1)


def _gathered(x: Tensor) -> Tensor:
    if x.is_floating_point():
        return cast(Tensor, _Gather.apply(x))
    return _all_rows(x)


def _all_rows(x: Tensor) -> Tensor:
    as_bytes = x.dtype == torch.bool  # gloo and nccl disagree about bool
    x = x.to(torch.uint8) if as_bytes else x
    parts = [torch.empty_like(x) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, x.contiguous())
    rows = torch.cat(parts)
    return rows.bool() if as_bytes else rows
