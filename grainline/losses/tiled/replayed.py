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


class _Copy(NamedTuple):
    """A tile as a walk of its own, whose rows are copies, and the sums of these."""

    walk: Any
    tensors: Parts
    sums: list[Any]
    losses: Tensor

    def run(self, each: Walk) -> None:
        """The tile, with new sums of its rows."""
        for x in (*self.sums[: self.walk.counts[0]], self.losses):
            if x is not None:
                x.zero_()
        each(self.walk, self.tensors, self.sums, self.losses)

    def fill(self, other: "_Copy") -> None:
        """Take the rows of another tile."""
        for into, x in zip(_rows(self.walk, self.tensors), _rows(other.walk, other.tensors), strict=True):
            into.copy_(x)

    def empty(self, other: "_Copy") -> None:
        """Write the sums of rows to those of another tile."""
        rows = self.walk.counts[0]
        for x, into in zip((*self.sums[:rows], self.losses), (*other.sums[:rows], other.losses), strict=True):
            if x is not None:
                into.copy_(x)


def _rows(walk: Any, tensors: Sequence[Tensor]) -> list[Tensor]:
    """All that is of rows."""
    blocks = walk.blocks
    return [
        *tensors[: walk.counts[0]],
        walk.shares[0],
        *blocks.rows,
        *(getattr(blocks, x) for x in _lists(blocks)),
    ]


def _lists(blocks: Any) -> list[str]:
    return [name for name in ("places", "same") if name in blocks._fields]


def _part(walk: Any, tile: Any, tensors: Sequence[Tensor], sums: Sequence[Any], losses: Tensor) -> _Copy:
    """A tile by views of its rows."""
    number, blocks = walk.counts[0], walk.blocks

    def cut(some: Sequence[Any]) -> list[Any]:
        return [x if x is None or i >= number else x[tile.rows] for i, x in enumerate(some)]

    lists = {name: getattr(blocks, name)[tile.rows] for name in _lists(blocks)}
    blocks = blocks._replace(rows=RowIds(*(x[tile.rows] for x in blocks.rows)), **lists)
    alone = tile._replace(rows=slice(0, tile.rows.stop - tile.rows.start))
    shares = walk.shares[0][tile.rows], walk.shares[1]
    walk = walk._replace(blocks=blocks, tiles=(alone,), shares=shares)
    return _Copy(walk, tuple(cut(tensors)), cut(sums), losses[tile.rows])


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
    first, second, *others = (_part(walk, tile, tensors, sums, losses) for tile in walk.tiles)
    each(*first)  # compiles, and fills what is made once
    copy = _with_rows_of_its_own(second)
    copy.run(each)  # what is captured has run as it is
    copy.empty(second)
    replay = captured(partial(copy.run, each), tensors[0].device)
    for tile in others:
        if replay is None or len(tile.losses) != len(copy.losses):
            each(*tile)
            continue
        copy.fill(tile)
        replay()
        copy.empty(tile)


def _with_rows_of_its_own(part: _Copy) -> _Copy:
    walk, blocks, number = part.walk, part.walk.blocks, part.walk.counts[0]
    lists = {name: getattr(blocks, name).clone() for name in _lists(blocks)}
    blocks = blocks._replace(rows=RowIds(*(x.clone() for x in blocks.rows)), **lists)
    walk = walk._replace(blocks=blocks, shares=(walk.shares[0].clone(), walk.shares[1]))
    tensors, sums = (
        [x if x is None or i >= number else x.clone() for i, x in enumerate(some)]
        for some in (list(part.tensors), part.sums)
    )
    return _Copy(walk, tuple(tensors), sums, part.losses.clone())


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
