"""Cross-entropy over a large vocabulary: the logits of a batch are never stored.

The logits of a token are its products with all rows of a table, often that of word vectors; for 4,096
captions of 16 tokens and 49,408 entries they would take 12 GB. Here the logits of some tokens at a time
become losses and gradients at once, in the forward pass; the backward pass scales these gradients.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from grainline.kernels import fused
from grainline.losses.tiled.pair_loss import exp_from, scaled, zeros
from grainline.losses.tiled.scores import add_product, exact, half_operands, only_once, product
from grainline.types import Mean, full

TILE = {"cpu": 2**22}
"""Logits of a tile: 16 MiB in float32 on a CPU, and ELSEWHERE 256 MiB, where there is more to keep busy."""
ELSEWHERE = 2**26


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
    counts = ((target >= 0) & (target < entries)).nonzero()[:, 0]
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
            losses = _losses(hidden, table, target, sums, size)
        ctx.sums = sums
        return losses.double().sum().to(losses.dtype)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        only_once()
        return None, *scaled(ctx, grads[0]), None


def _losses(
    hidden: Tensor, table: Tensor, target: Tensor, sums: Sequence[Tensor | None], size: int
) -> Tensor:
    """The losses of all tokens, `size` at a time; their gradients are added to the sums.

    The gradient by the logits is exp(logit - top) / rest, less 1 at the target. It is never formed: its
    factors are scaled by 1 / rest, and the target is subtracted by itself.
    """
    losses, half, (by_hidden, by_table) = hidden.new_zeros(len(hidden)), half_operands(hidden), sums
    entries = table.bfloat16() if half else table
    for start in range(0, len(hidden), size):
        part = slice(start, start + size)
        logits = product(hidden[part], entries.T, half)
        exps, top, rest = fused(exponentials)(logits)
        losses[part] = rest.log() + top - logits.gather(1, target[part, None])[:, 0]
        del logits
        if by_hidden is not None:
            by_hidden[part] = product(exps, entries, half) / rest[:, None] - table[target[part]]
        add_product(by_table, exps.T, hidden[part] / rest[:, None], half)
    if by_table is not None:  # index_add_ has other bits in each run on a GPU
        by_table.index_put_((target,), -hidden, accumulate=True)
    return losses


def exponentials(logits: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """exp(logit - top) of rows of logits; top, and the sum: [t, V], [t], [t]"""
    top = logits.amax(1)
    exps = exp_from(logits, top[:, None])
    return exps, top, exps.sum(1)
