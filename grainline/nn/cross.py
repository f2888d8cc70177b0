"""Pooling by a text: the picture as these words see it (the block of beta-CLIP, arXiv 2512.12678)."""

import torch
from torch import Tensor, nn

from grainline.nn.block import attend


class CrossPool(nn.Module):
    """Every text reads the patches of its picture by attention; an MLP follows.

        q, k, v = W_q t, W_k p, W_v p        (behind a LayerNorm each, with `input_norm`)
        o = W_o attention(q, k, v)           (without the text itself: it would leak into the picture)
        out = o + W_2 quick_gelu(W_1 LN(o))

    Attention begins as that of nn.MultiheadAttention does: Xavier-uniform over the three projections stacked.
    """

    def __init__(self, width: int, heads: int = 8, mlp_ratio: float = 4.0, input_norm: bool = False) -> None:
        super().__init__()
        if width % heads:
            raise ValueError(f"width {width} is not a multiple of {heads} heads")
        self.heads = heads
        self.input_norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(3 if input_norm else 0))
        self.to_query, self.to_key, self.to_value = (nn.Linear(width, width) for _ in range(3))
        self.to_out = nn.Linear(width, width)
        self.norm = nn.LayerNorm(width)
        self.widen = nn.Linear(width, int(width * mlp_ratio))
        self.narrow = nn.Linear(int(width * mlp_ratio), width)
        bound = (6 / (width + 3 * width)) ** 0.5
        for layer in (self.to_query, self.to_key, self.to_value):
            nn.init.uniform_(layer.weight, -bound, bound)
        for layer in (self.to_query, self.to_key, self.to_value, self.to_out):
            nn.init.zeros_(layer.bias)

    def forward(self, texts: Tensor, patches: Tensor) -> Tensor:
        """texts [N, K, D], the K texts of each picture, patches [N, L, D] -> [N, K, D], not of unit length

        texts [1, K, D] are asked of every picture. Keys and values are computed once for each patch, whatever
        K is, and queries once for each text.
        """
        keys = values = patches
        if self.input_norms:
            ask, look, take = self.input_norms
            texts, keys, values = ask(texts), look(patches), take(patches)
        q, k, v = (
            x.unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for x in (self.to_query(texts), self.to_key(keys), self.to_value(values))
        )  # [N, heads, K or L, D / heads]
        out = attend(q.expand(len(k), -1, -1, -1), k, v, None, causal=False)
        out = self.to_out(out.transpose(1, 2).flatten(2))
        hidden = self.widen(self.norm(out))
        return out + self.narrow(hidden * torch.sigmoid(1.702 * hidden))
