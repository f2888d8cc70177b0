"""Pooling by a text that may also look at nothing, as in FLAIR (arXiv 2412.03561) and CAFT (2602.02977).

A text reads the segments of a picture, or its patches. Beside them stands an empty slot, a key and a value of
zeros: a text that finds nothing puts its weight there, and what it pooled shrinks towards a constant.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from grainline.nn.pool import Pooled
from grainline.types import full


class Held(NamedTuple):
    """What a picture gives to every text that reads it: computed once, and kept where it is read again."""

    key: Tensor  # [N, heads, L, D / heads]
    value: Tensor  # [N, heads, L, D / heads]
    mask: Tensor | None  # [N, L] bool, True = real segment; None: all are


class ConditionedPool(nn.Module):
    """Every text reads the segments of a picture and an empty slot, in several heads.

    For each head:
        q, k, u = W_q LN_q(t) + b_q, W_k LN_k(v) + b_k, W_v LN_v(v) + b_v
        a[l] = exp(q . k[l] / sqrt(d)) / (1 + sum over l' of exp(q . k[l'] / sqrt(d)))
        z = sum over l of a[l] u[l]
    out = W_o (z of all heads side by side) + b_o

    This is nn.MultiheadAttention with add_zero_attn behind three LayerNorms, and begins as that does. Nothing
    of the text itself is added to what it pools, or the picture would hold the text.
    """

    def __init__(self, width: int, heads: int = 8) -> None:
        super().__init__()
        if width % heads:
            raise ValueError(f"width {width} is not a multiple of {heads} heads")
        self.heads = heads
        self.norm_query, self.norm_key, self.norm_value = (nn.LayerNorm(width) for _ in range(3))
        self.to_query, self.to_key, self.to_value = (nn.Linear(width, width) for _ in range(3))
        self.to_out = nn.Linear(width, width)
        bound = (6 / (width + 3 * width)) ** 0.5  # Xavier, over the three matrices stacked
        for layer in (self.to_query, self.to_key, self.to_value):
            nn.init.uniform_(layer.weight, -bound, bound)
        for layer in (self.to_query, self.to_key, self.to_value, self.to_out):
            nn.init.zeros_(layer.bias)

    def queries(self, texts: Tensor) -> Tensor:
        """texts [..., D], not of unit length -> [..., heads, D / heads], divided by sqrt(D / heads)"""
        query = self.to_query(self.norm_query(texts)).unflatten(-1, (self.heads, -1))
        return query * query.shape[-1] ** -0.5

    def keys(self, segments: Tensor, mask: Tensor | None = None) -> Held:
        """segments [N, L, D], mask [N, L] bool -> keys and values, which no text has a part in"""
        key, value = (
            layer(norm(segments)).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for layer, norm in ((self.to_key, self.norm_key), (self.to_value, self.norm_value))
        )
        return Held(key, value, mask)

    def read(self, queries: Tensor, held: Held) -> Pooled:
        """queries [N, K, heads, d] of the texts of each picture -> Pooled([N, K, D], [N, K, L + 1])

        The weights are means over the heads, the last one is that of the empty slot. Queries [1, K, heads, d]
        are asked of every picture. A picture without real segments gives `to_out.bias`; its empty slot is 1.
        """
        fit = full(queries.transpose(1, 2) @ held.key.transpose(-1, -2))  # [N, heads, K, L]
        if held.mask is not None:
            fit = fit.masked_fill(~held.mask[:, None, None], -torch.inf)
        weight = F.pad(fit, (0, 1)).softmax(-1)  # [N, heads, K, L + 1]
        seen = weight[..., :-1].to(held.value.dtype) @ held.value  # [N, heads, K, d]
        return Pooled(self.to_out(seen.transpose(1, 2).flatten(2)), weight.mean(1))

    def forward(self, texts: Tensor, segments: Tensor, mask: Tensor | None = None) -> Pooled:
        """The K texts of each picture, or with texts [1, K, D] the same ones of all, with what they pool.

        texts [N, K, D], segments [N, L, D], mask [N, L] bool -> as in `read`, nothing of unit length
        """
        return self.read(self.queries(texts), self.keys(segments, mask))
