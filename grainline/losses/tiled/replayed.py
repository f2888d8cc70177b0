"""A loss over few pairs by inner products, with its gradients, as one CUDA graph (`nn/graphs.py`).

Loss and gradients are some 70 launches, whatever the number of pairs. With 2,304 rows on each side, 64 images
of beta-CLIP, the products take less than the launches.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from grainline.losses.tiled.operands import on_gpu
from grainline.losses.tiled.pair_mask import PairMatrix, RowIds
from grainline.losses.tiled.scores import Dot, only_once
from grainline.nn.graphs import Graphs

FEW = 2**23  # pairs; a graph has their logits, slopes and masks in memory, some 250 MB
_GRAPHS = Graphs()
_IDS = len(RowIds._fields)


def few(tensors: Sequence[Tensor]) -> bool:
    """Whether rows and columns are few enough, and learn on a GPU."""
    learns = torch.is_grad_enabled() and any(x.requires_grad for x in tensors)
    return on_gpu(tensors[0]) and learns and 0 < len(tensors[0]) * len(tensors[-1]) <= FEW


def replays(walk: Any, tensors: Sequence[Tensor]) -> bool:
    """Whether a loss is computed here: all its pairs are one tile of inner products."""
    blocks = walk.blocks
    return (
        few(tensors)
        and isinstance(walk.score, Dot)
        and isinstance(blocks, PairMatrix)
        and blocks.against is None
        and len(walk.tiles) == 1
    )


class Replayed(torch.autograd.Function):
    """The means of a function of `pair_loss.py`, with the gradients of each computed at once."""

    @staticmethod
    def forward(ctx: Any, function: Any, walk: Any, *tensors: Tensor) -> tuple[Tensor, ...]:
        wanted = ctx.needs_input_grad[2:]
        (tile,), blocks = walk.tiles, walk.blocks
        given = (*blocks.rows, *blocks.cols, *walk.shares, *tensors)
        both = getattr(walk.loss, "columns", False)
        choices = function, type(walk.loss), both, walk.score.by.dtype, str(tile), wanted
        state = *choices, blocks.own, blocks.sibling, blocks.decay
        flat = _GRAPHS.run(partial(_whole, function, walk, wanted), given, (), state)
        shapes = [x.shape for x, want in zip(tensors, wanted, strict=True) if want]
        sizes = [shape.numel() for shape in shapes]
        means = 4 if both else 2
        out, rest = flat[:means].unbind(), flat[means:].split(sizes * (means // 2))
        ctx.sums = [x.view(shape) for x, shape in zip(rest, shapes * (means // 2), strict=True)]
        ctx.mark_non_differentiable(*out[1::2])
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        only_once()
        wanted = ctx.needs_input_grad[2:]
        number = sum(wanted)
        by_mean = [ctx.sums[i::number] for i in range(number)]
        sums = iter([sum(grad * x for grad, x in zip(grads[::2], some, strict=True)) for some in by_mean])
        return None, None, *(next(sums) if want else None for want in wanted)


def _whole(function: Any, walk: Any, wanted: Sequence[bool], *given: Tensor) -> Tensor:
    """All means, and behind them the gradients by each mean, in one row. given: ids, shares, tensors"""
    rows, cols = RowIds(*given[:_IDS]), RowIds(*given[_IDS : 2 * _IDS])
    shares, tensors = given[2 * _IDS : 2 * _IDS + 2], given[2 * _IDS + 2 :]
    blocks = walk.blocks._replace(rows=rows, cols=cols)
    ctx = _Context((False, False, *wanted))
    out = function.forward(ctx, walk._replace(blocks=blocks, shares=shares), True, *tensors)
    one = torch.ones_like(out[0])
    parts = [torch.stack(out)]
    for mean in range(0, len(out), 2):
        by = [one if place == mean else 0 * one for place in range(len(out))]
        parts += [x.flatten() for x in function.backward(ctx, *by)[2:] if x is not None]
    return torch.cat(parts)


class _Context:
    """What a function of autograd uses of its context, where it is called without autograd."""

    def __init__(self, needs_input_grad: Sequence[bool]) -> None:
        self.needs_input_grad = needs_input_grad
        self.saved_tensors: tuple[Tensor, ...] = ()

    def save_for_backward(self, *tensors: Tensor) -> None:
        self.saved_tensors = tensors

    def mark_non_differentiable(self, *_: Tensor) -> None:
        """No tensor has a gradient here."""
