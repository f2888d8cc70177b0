"""Pooling that says where it looked."""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from grainline.types import full


class Pooled(NamedTuple):
    """A summary and the weights it was made with."""

    vector: Tensor  # [..., W]
    weight: Tensor  # [..., L] sums to 1: the heat map, for free


class AttentionPool(nn.Module):
    """One learnt query reads all tokens (the MAP head of Zhai et al., arXiv 2106.04560, as in SigLIP)."""

    def __init__(self, width: int, heads: int, mlp_ratio: float = 4.0) -> None:
        super().__init__()
        self.heads = heads
        self.query = nn.Parameter(torch.randn(width) * width**-0.5)
        self.to_query = nn.Linear(width, width)
        self.to_key_value = nn.Linear(width, 2 * width)
        self.to_out = nn.Linear(width, width)
        self.norm = nn.LayerNorm(width)
        self.mlp = nn.Sequential(
            nn.Linear(width, int(width * mlp_ratio)), nn.GELU(), nn.Linear(int(width * mlp_ratio), width)
        )

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Pooled:
        """x [N, L, W], mask [N, L] bool or None -> Pooled([N, W], [N, L] mean over heads)"""
        query = self.to_query(self.query).unflatten(0, (self.heads, -1))  # [heads, W/heads]
        key, value = (
            self.to_key_value(x).unflatten(-1, (2, self.heads, -1)).unbind(2)
        )  # [N, L, heads, W/heads]
        fit = torch.einsum("hc,nlhc->nhl", query, key) * query.shape[-1] ** -0.5
        if mask is not None:
            fit = fit.masked_fill(~mask[:, None], -torch.inf)
        weight = full(fit).softmax(-1)
        out = self._out(torch.einsum("nhl,nlhc->nhc", weight.to(value.dtype), value).flatten(1))
        return Pooled(out, weight.mean(1))

    def each(self, x: Tensor) -> Tensor:
        """What the summary would be if it looked at one token only: [N, L, W] -> [N, L, W]

        That puts tokens into the space of the summary, for heat maps (Zhou et al., arXiv 2112.01071, do so
        for the attention pool of CLIP's ResNets).
        """
        return self._out(self.to_key_value(x).chunk(2, -1)[1])

    def _out(self, value: Tensor) -> Tensor:
        out = self.to_out(value)
        return out + self.mlp(self.norm(out))


def mean_pool(x: Tensor, mask: Tensor) -> Pooled:
    """The mean of the real tokens: x [N, L, W], mask [N, L]; zeros where nothing is real.

    >>> mean_pool(torch.tensor([[[1.0], [3.0], [9.0]]]), torch.tensor([[True, True, False]])).vector
    tensor([[2.]])
    """
    weight = mask.to(x.dtype) / mask.sum(-1, keepdim=True).clamp(min=1)
    return Pooled(torch.einsum("nl,nlw->nw", weight, x.masked_fill(~mask[..., None], 0.0)), weight)


def unit(x: Tensor) -> Tensor:
    """x [..., D] at length 1, in full precision: cosines of half-precision vectors lose the third digit."""
    return F.normalize(full(x), dim=-1)
