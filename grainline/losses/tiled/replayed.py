"""Losses over pairs as CUDA graphs (`nn/graphs.py`), where the host is the limit.

Few pairs by inner products are one graph, with their gradients: some 70 launches, whatever the number of
pairs. With 2,304 rows on each side, 64 images of beta-CLIP, the products take less than the launches.

Of many tiles, each a chunk of rows with all columns, the second is captured and replayed for those behind:
a tile of `chunked_cosine.py` is some 150 launches, and on an H200 the host took twice as long as the device.
The graph reads columns and adds to their sums where they are. Rows are copied into it, and their sums out of
it. It lives for one walk, since the next has its columns elsewhere; its memory goes to the graph of that one.
"""

import logging
import os
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from grainline.kernels.launch import capturing
from grainline.losses.tiled.operands import on_gpu
from grainline.losses.tiled.pair_mask import PairMatrix, RowIds
from grainline.losses.tiled.scores import Dot, Parts, only_once
from grainline.nn.graphs import VARIABLE, Graphs, side_stream

FEW = 2**23  # pairs; a graph has their logits, slopes and masks in memory, some 250 MB
LEAST = 4  # tiles; a capture takes as long as a tile
_GRAPHS = Graphs()
_LAST: dict[torch.device, Any] = {}  # the last graph of tiles
_FAILED: set[torch.device] = set()  # where tiles are not captured
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


Walk = Callable[[Any, Parts, Sequence[Any], Tensor], None]
"""What adds the gradients and losses of the tiles of a walk to sums: of the walk, tensors, sums, losses."""


class _Part(NamedTuple):
    """What a `Walk` takes: all tiles, or one tile as a walk of its own."""

    walk: Any
    tensors: Parts
    sums: Sequence[Any]
    losses: Tensor

    def with_rows(self, change: Callable[[Tensor], Tensor]) -> "_Part":
        """With a change of every tensor of rows, the sums and losses of rows among them."""
        blocks, shares, number = self.walk.blocks, self.walk.shares, self.walk.counts[0]
        lists = {name: change(getattr(blocks, name)) for name in _lists(blocks)}
        blocks = blocks._replace(rows=RowIds(*map(change, blocks.rows)), **lists)
        tensors, sums = (
            tuple(x if x is None or i >= number else change(x) for i, x in enumerate(some))
            for some in (self.tensors, self.sums)
        )
        walk = self.walk._replace(blocks=blocks, shares=(change(shares[0]), shares[1]))
        return _Part(walk, tensors, sums, change(self.losses))

    def tile(self, tile: Any) -> "_Part":
        """One of the tiles, by views."""
        part = self.with_rows(lambda x: x[tile.rows])
        alone = tile._replace(rows=slice(0, len(part.losses)))
        return part._replace(walk=part.walk._replace(tiles=(alone,)))

    def reads(self) -> list[Tensor]:
        """Of rows."""
        blocks = self.walk.blocks
        lists = [getattr(blocks, name) for name in _lists(blocks)]
        return [*self.tensors[: self.walk.counts[0]], self.walk.shares[0], *blocks.rows, *lists]

    def writes(self) -> list[Tensor]:
        """Of rows."""
        return [x for x in (*self.sums[: self.walk.counts[0]], self.losses) if x is not None]


def _lists(blocks: Any) -> list[str]:
    return [name for name in ("places", "same") if name in blocks._fields]


def repeats(walk: Any, tensors: Sequence[Tensor], sums: Sequence[Any]) -> bool:
    """Whether a tile is captured for those that follow."""
    tiles, learns = walk.tiles, any(x is not None for x in sums)
    if not (learns and walk.score.repeats and on_gpu(tensors[0]) and len(tiles) >= LEAST):
        return False
    alike = all(tile[1:] == tiles[0][1:] for tile in tiles)
    alike = alike and tensors[0].device not in _FAILED
    return alike and os.environ.get(VARIABLE) != "off" and not capturing()


def in_turn(each: Walk, walk: Any, tensors: Parts, sums: Sequence[Any], losses: Tensor) -> None:
    """All tiles, most of them by a graph."""
    whole = _Part(walk, tensors, sums, losses)
    first, second, *others = map(whole.tile, walk.tiles)
    each(*first)  # compiles, and fills what is made once
    copy = second.with_rows(torch.clone)

    def run() -> None:
        for x in copy.writes():
            x.zero_()
        each(*copy)

    run()  # what is captured has run as it is
    _copy(copy.writes(), second.writes())
    replay = captured(run, tensors[0].device)
    for tile in others:
        if replay is None or len(tile.losses) != len(copy.losses):
            each(*tile)
            continue
        _copy(tile.reads(), copy.reads())
        replay()
        _copy(copy.writes(), tile.writes())


def _copy(tensors: Sequence[Tensor], into: Sequence[Tensor]) -> None:
    for x, to in zip(tensors, into, strict=True):
        to.copy_(x)


def captured(function: Callable[[], None], device: torch.device) -> Callable[[], object] | None:
    """What replays the function; None where it is not captured. It does not run."""
    graph, side = torch.cuda.CUDAGraph(), side_stream(device)
    side.wait_stream(torch.cuda.current_stream(device))
    memory = _LAST[device].pool() if device in _LAST else None
    try:
        with torch.cuda.stream(side):
            graph.capture_begin(pool=memory, capture_error_mode="thread_local")
            try:
                function()
            finally:
                graph.capture_end()
    except Exception as error:  # whatever a driver or a library raises
        if any(type(x).__name__ == "OutOfMemoryError" for x in (error, error.__context__)):
            _LAST.pop(device, None)  # its memory may be what the next step lacks
            return None
        _FAILED.add(device)
        why = (str(error).strip().splitlines() or [type(error).__name__])[0]
        logging.getLogger(__name__).warning("tiles of a loss are no CUDA graph, and slower: %s", why)
        return None
    _LAST[device] = graph
    return graph.replay
