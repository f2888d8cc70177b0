"""Graph pooling: many tokens of a picture become few, each the mean of a soft group (CAST, arXiv 2210.00314).

N   pictures        L   tokens before        M   groups        W   width
"""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from grainline.nn.block import Attention
from grainline.nn.farthest import farthest_points
from grainline.nn.noise import Dropout
from grainline.nn.pool import mean_pool, unit
from grainline.types import full

SHARPNESS = 5.0
"""Factor on the cosines of the assignment: it stays soft, 0.7 at most for one of 64 groups."""


class Grouped(NamedTuple):
    """Tokens after pooling, and where they come from."""

    tokens: Tensor  # [N, M, W] zeros where the mask is False
    cls: Tensor  # [N, W]
    mask: Tensor  # [N, M] bool, True = a real group; False where fewer than M valid tokens differ
    weight: Tensor  # [N, L, M] how much of each token goes to each group: rows sum to 1, or to 0 if invalid
    picked: Tensor  # [N, M] int64, the token that each group is built around; no meaning outside the mask


class GraphPool(nn.Module):
    """L tokens to M, after their blocks; the class token takes the same way without the mean.

        y   = x + attention(LN1(x));  y -= mean(y);  y += shift
        i   = M tokens that lie far apart among x
        p   = softmax over groups of 5 cos(y, y[i]), in float32
        h   = dropout(GELU(W1 LN2(x)))
        out = W2 LN3(p-weighted mean of h) + x[i]
        cls = W2 LN3(dropout(GELU(W1 LN2(cls)))) + cls

    Invalid tokens are in no attention, mean, pick or group. What is added is the picked token, not a mean.
    """

    def __init__(
        self,
        width: int,
        heads: int,
        number: int,
        *,
        mlp_ratio: float = 4.0,
        dropout: float = 0.1,
        depth: int = 1,  # layers of the whole encoder, this one included: all write into the same stream
    ) -> None:
        super().__init__()
        hidden = int(width * mlp_ratio)
        self.number = number
        self.norm1, self.norm2, self.norm3 = (nn.LayerNorm(size) for size in (width, width, hidden))
        self.attention = Attention(width, heads)
        self.shift = nn.Parameter(0.01 * torch.randn(width))
        self.widen, self.narrow = nn.Linear(width, hidden), nn.Linear(hidden, width)
        self.act, self.drop, self.drop_cls = nn.GELU(), Dropout(dropout), Dropout(dropout)
        for layer, spread in (
            (self.attention.to_qkv, width**-0.5),
            (self.attention.to_out, width**-0.5),
            (self.widen, (2 * width) ** -0.5),
            (self.narrow, (2 * depth * hidden) ** -0.5),  # its inputs have spread 1
        ):
            nn.init.normal_(layer.weight, std=spread)
            nn.init.zeros_(layer.bias)

    def forward(self, x: Tensor, cls: Tensor, valid: Tensor) -> Grouped:
        """x [N, L, W], cls [N, W], valid [N, L] bool -> M = `number` groups, M <= L"""
        picked, mask = farthest_points(x, valid, self.number)
        weight = self._assigned(x, valid, picked, mask)
        share = weight / weight.sum(1, keepdim=True).clamp(min=torch.finfo(weight.dtype).tiny)
        hidden = self.drop(self.act(self.widen(self.norm2(x))))
        tokens = self.narrow(self.norm3(share.mT.to(hidden.dtype) @ hidden)) + taken(x, picked)
        alone = self.narrow(self.norm3(self.drop_cls(self.act(self.widen(self.norm2(cls))))))
        return Grouped(tokens.masked_fill(~mask[..., None], 0.0), cls + alone, mask, weight, picked)

    def _assigned(self, x: Tensor, valid: Tensor, picked: Tensor, mask: Tensor) -> Tensor:
        """How much of each token goes to each group: [N, L, M]"""
        y = full(x + self.attention(self.norm1(x), valid, causal=False))
        with torch.autocast(x.device.type, enabled=False):
            y = unit(y - mean_pool(y, valid).vector[:, None] + self.shift)
            fit = SHARPNESS * (y @ taken(y, picked).mT)
            real = mask | ~mask.any(1, keepdim=True)  # without a group, any will do: no NaN
            weight = fit.masked_fill(~real[:, None], -torch.inf).softmax(-1)
        return weight.masked_fill(~valid[..., None], 0.0)


def taken(x: Tensor, index: Tensor) -> Tensor:
    """Some tokens of each picture: x [N, L, W], index [N, M] -> [N, M, W]"""
    return x.gather(1, index[..., None].expand(-1, -1, x.shape[2]))
