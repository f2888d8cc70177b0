"""Cross-entropy over a large vocabulary: the logits of a batch are never stored.

The logits of a token are its products with all rows of a table, often that of word vectors; for 4,096
captions of 16 tokens and 49,408 entries they would take 12 GB. Here the logits of some tokens at a time
become losses and gradients at once, in the forward pass; the backward pass scales these gradients.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from grainline.losses.tiled.operands import Operands, exact, fused, operands
from grainline.losses.tiled.pair_loss import LOG2E, only_once, scaled, zeros
from grainline.types import Mean, from_host, full

TILE = {"cpu": 2**22}
"""Logits of a tile: 16 MiB in float32 on a CPU, and ELSEWHERE 256 MiB, where there is more to keep busy."""
ELSEWHERE = 2**26
SHARES = 2.0**-12
"""hidden / rest is stored in units of so much times that of hidden. rest is between 1 and the number of
entries: values are 2**12 at most, and those of a token to which 2**16 entries are alike 2**-4."""


def vocabulary_loss(hidden: Tensor, table: Tensor, target: Tensor) -> Mean:
    """The sum of the cross-entropies of tokens over a vocabulary, and their number.

    hidden  [T, W] what is known of each token
    table   [V, W] the vectors of all entries; no bias
    target  [T] int64 in 0..V-1; a token with another one is left out

    for i with 0 <= target[i] < V:
        total += -log_softmax(hidden[i] @ table.T)[target[i]]
        number += 1

    Computed at least in float32, whatever autocast says, but for operands of products on a GPU; sums over
    tokens in float64. Differentiable once.
    """
    entries = len(table)
    counts = from_host(lambda target: ((target >= 0) & (target < entries)).nonzero()[:, 0], target)
    hidden, target = full(hidden)[counts], target[counts]
    if hidden.dtype != table.dtype:
        table = table.to(hidden.dtype)
    total: Tensor = _OnePass.apply(torch.is_grad_enabled(), hidden, table, target)
    return Mean(total, counts.new_full((), len(counts)))


class _OnePass(torch.autograd.Function):
    """Losses and gradients out of one walk over the tokens."""

    @staticmethod
    def forward(ctx: Any, learns: bool, hidden: Tensor, table: Tensor, target: Tensor) -> Tensor:
        sums = zeros((hidden, table), [learns and want for want in ctx.needs_input_grad[1:3]])
        size = max(1, TILE.get(hidden.device.type, ELSEWHERE) // len(table))
        with exact(hidden):
            by = operands(hidden)
            given = hidden, table, target, sums, size
            losses = _in_half(by, *given) if by.dtype else _in_full(*given)
        ctx.sums = sums
        return losses.double().sum().to(losses.dtype)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        only_once()
        return None, *scaled(ctx, grads[0]), None


Sums = Sequence[Tensor | None]


def _in_full(hidden: Tensor, table: Tensor, target: Tensor, sums: Sums, size: int) -> Tensor:
    """The losses of all tokens, some at a time; their gradients are added to the sums."""
    losses = hidden.new_zeros(len(hidden))
    logits = hidden.new_empty(min(size, len(hidden)), len(table))
    for start in range(0, len(hidden), size):
        part = slice(start, start + size)
        parts = None if sums[0] is None else sums[0][part], sums[1]
        losses[part] = _tile(hidden[part], table, target[part], logits[: len(target[part])], parts)
    return losses


def _tile(hidden: Tensor, table: Tensor, target: Tensor, logits: Tensor, sums: Sums) -> Tensor:
    """The losses of some tokens [t]. `logits` [t, V] is written to.

    The gradient by the logits is exp(logit - top) / rest, less 1 at the target. It is never formed: its
    factors are scaled by 1 / rest, and the target is subtracted by itself.
    """
    torch.mm(hidden, table.T, out=logits)
    hit = logits.gather(1, target[:, None])[:, 0]
    top = logits.amax(1)
    exps = torch.add(top[:, None] * -LOG2E, logits, alpha=LOG2E, out=logits).exp2_()
    rest = exps.sum(1)
    by_hidden, by_table = sums
    if by_hidden is not None:
        torch.mm(exps, table, out=by_hidden).div_(rest[:, None]).sub_(table[target])
    if by_table is not None:
        by_table.addmm_(exps.T, hidden / rest[:, None]).index_add_(0, target, hidden, alpha=-1)
    return rest.log() + top - hit


def _in_half(by: Operands, hidden: Tensor, table: Tensor, target: Tensor, sums: Sums, size: int) -> Tensor:
    """As `_in_full`, with operands in half precision. A tile is as few launches as can be: on an H200 the
    host took longer over 46 of them than the device.
    """
    tokens, entries = by.scaled(hidden), by.scaled(table)
    unit, share = tokens.unit * entries.unit, tokens.unit * SHARES
    hit, top, rest = (hidden.new_zeros(len(hidden)) for _ in range(3))
    by_hidden, by_table = sums
    for start in range(0, len(hidden), size):
        part = slice(start, start + size)
        logits = by.wide(tokens.x[part], entries.x.T)
        hit[part] = logits.gather(1, target[part, None])[:, 0]
        exps, top[part], rest[part] = fused(exponentials)(logits, unit, by.dtype)
        del logits
        if by_hidden is not None:
            by.add_product(by_hidden[part], exps, entries.x)
        if by_table is not None:
            shares = torch.empty_like(tokens.x[part])
            by.add_product(
                by_table, exps.T, torch.div(hidden[part], (rest[part] * share)[:, None], out=shares)
            )
    if by_hidden is not None:
        by_hidden.mul_((entries.unit / rest)[:, None]).sub_(table[target])
    if by_table is not None:  # index_add_ has other bits in each run
        by_table.mul_(share).index_put_((target,), -hidden, accumulate=True)
    return rest.log() + top - hit * unit


def exponentials(logits: Tensor, unit: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """exp(logit - top) of rows of logits in a unit, as operands; top, and the sum: [t, V], [t], [t]"""
    logits = logits * unit
    top = logits.amax(1)
    exps = ((logits - top[:, None]) * LOG2E).exp2()
    return exps.to(dtype), top, exps.sum(1)
