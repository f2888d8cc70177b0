"""From the vectors of sub-captions to one of the whole caption: the Whole-caption Transformer of CAFT.

Woo et al., arXiv 2602.02977, equations 2 to 4: an adapter turns every sub-caption a little (CLIP-Adapter,
arXiv 2110.04544); a class token stands in front of them, and each place has a learnt vector; in a transformer
all attend to all, and the class token at its end is the caption.

Differs from the paper: it leaves open what attention reads (here no causal mask, or the class token in front
would read nothing), and it writes nothing of empty places, which nothing attends to here.
"""

from typing import Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from grainline.config import Config
from grainline.encoders.base import Layered
from grainline.nn.attention import PROJECTIONS, Stack


class ComposerConfig(Config):
    """Size of the transformer; its width is that of the shared space."""

    depth: int = Field(4, gt=0)
    heads: int = Field(8, gt=0)
    bottleneck: int | None = Field(None, gt=0)  # hidden width of the adapter; None: a quarter of the width
    adapter: Literal["residual", "blend"] = "residual"  # t + MLP(t), or 0.8 t + 0.2 MLP(t) as in CLIP-Adapter
    drop_path: float = Field(0.0, ge=0.0, lt=1.0)


BLEND = 0.2  # share of the MLP, in CLIP-Adapter


class Composer(Layered):
    """Sub-captions to their caption."""

    before, behind, attention = ("adapter", "class_token", "position"), ("norm", "project"), PROJECTIONS

    def __init__(self, cfg: ComposerConfig, width: int, parts: int) -> None:
        super().__init__()
        self.adapter = Adapter(width, cfg.bottleneck or max(1, width // 4), cfg.adapter == "blend")
        self.class_token = nn.Parameter(torch.randn(width) * 0.01)
        self.position = nn.Parameter(torch.randn(parts + 1, width) * 0.01)
        self.stack = Stack(width, cfg.depth, cfg.heads, drop_path=cfg.drop_path)
        self.norm = nn.LayerNorm(width)
        self.project = nn.Linear(width, width, bias=False)
        nn.init.normal_(self.project.weight, std=width**-0.5)

    def forward(self, parts: Tensor, mask: Tensor) -> Tensor:
        """parts [M, S, W] not of unit length, mask [M, S] bool -> captions [M, W], 0 for one without parts"""
        x = self.adapter(parts.masked_fill(~mask[..., None], 0.0))
        x = torch.cat([self.class_token.to(x.dtype).expand(x.shape[0], 1, -1), x], 1)
        x = self.stack(x + self.position[: x.shape[1]], F.pad(mask, (1, 0), value=True))
        return self.project(self.norm(x[:, 0])) * mask.any(1, keepdim=True)


class Adapter(nn.Module):
    """A bottleneck, added to the identity. The residual form is the identity at the start."""

    def __init__(self, width: int, hidden: int, blend: bool) -> None:
        super().__init__()
        self.blend = blend
        self.narrow, self.widen = nn.Linear(width, hidden, bias=False), nn.Linear(hidden, width, bias=False)
        if not blend:
            nn.init.zeros_(self.widen.weight)

    def forward(self, x: Tensor) -> Tensor:
        """x [..., W] -> the same"""
        change = self.widen(F.relu(self.narrow(x)))
        return (1 - BLEND) * x + BLEND * F.relu(change) if self.blend else x + change
