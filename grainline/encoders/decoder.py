"""A small decoder that says a caption again from a few vectors: it shows what they hold of the caption.

It writes from left to right. Its table of words, in and out, is that of the text encoder, so it has none of
its own.
"""

import torch
from pydantic import Field
from torch import Tensor, nn

from grainline.config import Config
from grainline.nn.block import Attention, CrossAttention


class DecoderConfig(Config):
    """Size of the one layer; its width is that of the text encoder."""

    heads: int = Field(1, gt=0)  # of self-attention and of attention to the vectors
    hidden: int = Field(512, gt=0)  # of its MLP


class Decoder(nn.Module):
    """One pre-norm layer: x + Attention, causal; x + attention to the vectors; x + MLP; then LayerNorm."""

    def __init__(self, cfg: DecoderConfig, width: int, context: int) -> None:
        super().__init__()
        self.position = nn.Parameter(torch.randn(context, width) * 0.01)
        self.norm_self, self.attention = nn.LayerNorm(width), Attention(width, cfg.heads)
        self.norm_cross, self.cross = nn.LayerNorm(width), CrossAttention(width, cfg.heads)
        self.norm_mlp = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, cfg.hidden), nn.GELU(), nn.Linear(cfg.hidden, width))
        self.norm = nn.LayerNorm(width)

    def forward(self, words: Tensor, vectors: Tensor, mask: Tensor | None = None) -> Tensor:
        """What is known of the next token at each place: [M, L, W]

        words    [M, L, W] word vectors of the tokens so far, padding on the right
        vectors  [M, K, W] what the caption is said from
        mask     [M, K] bool, True = real; None: all are
        """
        x = words + self.position[: words.shape[1]]
        x = x + self.attention(self.norm_self(x), None, True)
        x = x + self.cross(self.norm_cross(x), vectors, mask)
        return self.norm(x + self.mlp(self.norm_mlp(x)))
