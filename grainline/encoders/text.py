"""A text transformer, causal or bidirectional, of any context length, trained from scratch.

A batch is cut at its longest text, and a batch of very unequal lengths is encoded in a few groups of similar
length, or on a GPU with several texts in a row; all of this changes nothing but the cost.
"""

from collections.abc import Callable
from itertools import pairwise
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from grainline.encoders.base import Layered, ScratchConfig, TextTokens, sizes_of
from grainline.nn.attention import PROJECTIONS, Stack
from grainline.nn.hashing import has_noise, some_rows
from grainline.nn.pooling import mean_pool
from grainline.nn.runtime import is_static, one_thread


class ScratchTextConfig(ScratchConfig):
    """Abstract: a text transformer from scratch; "B" has the sizes of CLIP ViT-B's text side."""

    sizes: ClassVar = sizes_of("toy 32 1 2, Mi 128 4 4, Ti 256 6 4, S 384 12 6, B 512 12 8, L 768 12 12")

    depth: int = Field(gt=0, le=1000)
    vocab: int = Field(8192, gt=256, le=10_000_000)  # tokens; training sets it to the size of its tokenizer
    context: int = Field(77, gt=2)  # longest text in tokens; longer ones are cut, counted and reported
    buckets: int = Field(4, ge=1)  # at most so many groups of similar length; 1 pads all to the longest


class TextConfig(ScratchTextConfig):
    """A transformer that gives one vector for a text."""

    causal: bool = True
    pool: Literal["end", "mean"] = "end"  # the end token's state, or the mean of all


class Grouping(Layered):
    """Abstract: a text encoder that reads a batch in groups of similar length."""

    buckets: int  # groups at most; how many there are depends on the batch
    context: int
    few_shapes: bool = False  # of groups, for compiled layers: lengths of LENGTHS, numbers of rows of ROWS

    def check_length(self, mask: Tensor) -> None:
        """ValueError where a text [M, L] has more tokens than the context; padding may be longer."""
        if not is_static() and mask.shape[1] > self.context and mask[:, self.context :].any():
            raise ValueError(f"a text has more than {self.context} tokens; the tokenizer must cut it there")

    def read_in_groups(
        self,
        read: Callable[[Tensor, Tensor], tuple[Tensor, ...]],
        ids: Tensor,
        mask: Tensor,
        dims: tuple[int | None, ...],
    ) -> tuple[Tensor, ...]:
        """read(ids, mask), computed group by group; ids [M, L] or states [M, L, W], mask [M, L]

        dims  of each tensor that `read` returns: the dimension of tokens (-1 or -2), padded to L, or None
        """
        if is_static():  # the caller keeps to the context
            return read(ids, mask)
        self.check_length(mask)
        lengths = mask.sum(1).cpu()
        order, places = length_groups(lengths, self.buckets, mask.device.type)
        back, order = order.argsort().to(mask.device), order.to(mask.device)
        parts = []
        for place, longest in places:
            rows = order[place]
            number = len(rows)
            if self.few_shapes:
                rows = torch.cat([rows, rows[:1].expand(-number % ROWS)])
                longest = next((x for x in LENGTHS if longest <= x < self.context), self.context)
            with some_rows(rows, len(ids)):
                part = read(*(_padded(x[rows, :longest], 1 - x.ndim, longest) for x in (ids, mask)))
            parts.append([_padded(x[:number], dim, ids.shape[1]) for x, dim in zip(part, dims, strict=True)])
        return tuple(torch.cat(column)[back] for column in zip(*parts, strict=True))

    def packs(self, ids: Tensor) -> bool:
        """Whether texts share rows: on a GPU, if no layer draws noise and the context is not very long."""
        return can_pack(ids) and self.context <= LONGEST and not (self.training and has_noise(self))

    def read_packed(
        self, read: Callable[[Tensor, Tensor, Tensor], Tensor], ids: Tensor, mask: Tensor, causal: bool
    ) -> Tensor:
        """Tokens [M, L, W], 0 for padding, of texts that share rows and read nothing of each other.

        read  ids [R, S], their positions in their texts [R, S], and a mask [R, 1, S, S] of what each token
              reads, -> [R, S, W]
        """
        self.check_length(mask)
        with one_thread():
            place = packed_rows(mask)
        text = place // mask.shape[1]  # below 0 where none is
        reads = (text[:, :, None] == text[:, None])[:, None]
        source, number = torch.where(place < 0, ~place, place), ids.numel()
        position = (source % mask.shape[1]).clamp(max=self.context - 1)  # padding may be longer
        x = read(ids.flatten()[source], position, reads.tril() if causal else reads)
        target = place.masked_fill(place < 0, number).flatten()  # behind all texts where no token stands
        out = x.new_zeros(number + 1, x.shape[-1]).index_copy(0, target, x.flatten(0, 1))
        return out[:number].unflatten(0, ids.shape)


def can_pack(ids: Tensor) -> bool:
    return ids.is_cuda


LONGEST = 512  # tokens of a text, and of a row
FULL = 1.05  # tokens of rows for each real one, at which no longer rows are tried
ATTENTION = 3072  # tokens of a row where attention costs as much as all else: six times the width, here 512


def packed_rows(mask: Tensor) -> Tensor:
    """Places of texts [M, L] that share rows: [R, S] in the flattened mask, its complement where none stands.

    The longest text that still fits comes next; of a text without tokens the first place stands there. S is
    a multiple of 64 from 128 on, and there are few different R: layers are compiled, and attention planned,
    for each shape. Longer rows are tried until few places are empty. Complements are different places,
    because the gradient by a word or position sums what has it in turn.
    """
    device, mask = mask.device, mask.cpu()
    mask = mask | (~mask.any(1, keepdim=True) & (torch.arange(mask.shape[1]) == 0))
    length = mask.sum(1)
    longest = int(length.max()) if len(length) else 0
    counts, total, tries = length.bincount().tolist(), int(length.sum()), []
    for size in range(max(128, 64 * -(-longest // 64)), LONGEST + 1, 64):
        parts, number = _rows_of(list(counts), size)
        tries.append((number * size * (ATTENTION + size), size, number, parts))
        if number * size <= FULL * total:
            break
    _, size, number, parts = min(tries)
    step = 2 ** max(0, number.bit_length() - 5)
    height = step * max(1, -(-number // step))
    place = ~(torch.arange(height * size) % max(1, mask.numel())).view(height, size)
    long, each, rows, first, start = torch.tensor(parts, dtype=torch.int64).view(-1, 5).T
    many, order = each * rows, length.argsort(stable=True)
    within = torch.arange(int(many.sum())) - (many.cumsum(0) - many).repeat_interleave(many)
    long, each, first, start = (x.repeat_interleave(many) for x in (long, each, first, start))
    begin = (first + within // each) * size + start + within % each * long
    count = length[order]
    within = torch.arange(int(count.sum())) - (count.cumsum(0) - count).repeat_interleave(count)
    real = mask.flatten().nonzero()[:, 0]
    ahead = (length.cumsum(0) - length)[order].repeat_interleave(count)
    place.view(-1)[begin.repeat_interleave(count) + within] = real[ahead + within]
    return place.to(device)


def _rows_of(left: list[int], size: int) -> tuple[list[list[int]], int]:
    """Patterns of rows of `size` tokens, from the numbers of texts by length; and the number of rows.

    A pattern is [length, texts in a row, rows, first row, tokens in front], by length. As many rows as there
    can be of one pattern are filled at once: a batch has a few hundred patterns.
    """
    lengths = [n for n in range(len(left) - 1, 0, -1) if left[n]]
    parts, number = [], 0
    while lengths:
        free, pattern = size, []
        for n in lengths:
            if each := min(left[n], free // n):
                pattern.append((n, each, size - free))
                free -= n * each
        rows = min(left[n] // each for n, each, _ in pattern)
        for n, each, start in pattern:
            parts.append([n, each, rows, number, start])
            left[n] -= each * rows
        number += rows
        lengths = [n for n in lengths if left[n]]
    return sorted(parts), number


LENGTHS = 16, 24, 32, 48, 64  # and the context
ROWS = 64


def _padded(x: Tensor, dim: int | None, length: int) -> Tensor:
    return x if dim is None else F.pad(x, (0, 0) * (-1 - dim) + (0, length - x.shape[dim]))


def read_at_once(model: nn.Module) -> None:
    """Let every text encoder inside a model call its layers once for a batch, whatever the lengths."""
    for module in model.modules():
        if isinstance(module, Grouping):
            module.buckets = 1


class TextTransformer(Grouping):
    """Token ids to tokens and a pooled vector."""

    before, behind, attention = ("words", "position"), ("norm",), PROJECTIONS

    def __init__(self, cfg: TextConfig) -> None:
        super().__init__()
        self.width, self.context = cfg.width, cfg.context
        self.causal, self.pool, self.buckets = cfg.causal, cfg.pool, cfg.buckets
        self.words = nn.Embedding(cfg.vocab, cfg.width)
        self.position = nn.Parameter(torch.randn(cfg.context, cfg.width) * 0.01)
        self.stack = Stack(cfg.width, cfg.depth, cfg.heads, drop_path=cfg.drop_path)
        self.norm = nn.LayerNorm(cfg.width)
        nn.init.normal_(self.words.weight, std=0.02)

    def forward(self, ids: Tensor, mask: Tensor) -> TextTokens:
        """ids [M, L], mask [M, L] -> TextTokens of the same L; padding may be longer than the context"""
        if not is_static() and self.packs(ids):
            packed = self.read_packed(self._read_packed, ids, mask, self.causal)
            tokens, pooled = self._pool(packed, mask)
        else:
            tokens, pooled = self.read_in_groups(self._read, ids, mask, (-2, None))
        return TextTokens(pooled, tokens, mask)

    def _read(self, ids: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        x = self.norm(self.stack(self.words(ids) + self.position[: ids.shape[1]], mask, self.causal))
        return self._pool(x, mask)

    def _read_packed(self, ids: Tensor, position: Tensor, reads: Tensor) -> Tensor:
        return self.norm(self.stack(self.words(ids) + F.embedding(position, self.position), reads))

    def _pool(self, x: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        if self.pool == "mean":
            return x, mean_pool(x, mask).vector
        return x, at_end(x, mask) * mask.any(1, keepdim=True)


def at_end(x: Tensor, mask: Tensor) -> Tensor:
    """The last real token of each text, the first where none is real: x [M, L, W], mask [M, L] -> [M, W]"""
    last = (mask.sum(1) - 1).clamp(min=0)
    return x[torch.arange(x.shape[0], device=x.device), last]


GROUP_COST = {"cuda": 4096, "cpu": 64}
"""What one group more costs, in tokens: measured on two cores of a CPU; on a GPU calculated from launches."""


def length_groups(
    lengths: Tensor, max_groups: int, device: str = "cpu"
) -> tuple[Tensor, list[tuple[slice, int]]]:
    """Rows in at most `max_groups` groups of similar length, so that little padding is computed.

    lengths  [M] real tokens of each row, on the host
    device   type of the device that computes
    returns  row numbers [M], shortest first; of each group its part of these, and the longest, 1 at least

    The cuts minimise the number of padded tokens plus GROUP_COST for each group, over groups of neighbours in
    sorted order, on a grid of 16 quantiles.

    >>> length_groups(torch.tensor([5, 90, 4, 88]), max_groups=2)
    (tensor([2, 0, 3, 1]), [(slice(0, 2, None), 5), (slice(2, 4, None), 90)])
    """
    order = lengths.argsort(stable=True)
    length = lengths[order].clamp(min=1).tolist()
    grid = sorted({len(length) * i // 16 for i in range(17)})
    start = GROUP_COST.get(device, GROUP_COST["cpu"])
    best: dict[int, tuple[int, list[int]]] = {0: (0, [0])}  # up to a place: cost, and the cuts so far
    for _ in range(max_groups):
        step = dict(best)
        for a, (cost, cuts) in best.items():
            for b in grid[grid.index(a) + 1 :]:
                total = cost + (b - a) * length[b - 1] + start
                if b not in step or total < step[b][0]:
                    step[b] = (total, [*cuts, b])
        best = step
    return order, [(slice(a, b), length[b - 1]) for a, b in pairwise(best[len(length)][1])]
