"""A plain vision transformer, trained from scratch (Dosovitskiy et al., arXiv 2010.11929).

The stem cuts patches, or reads them through a few small convolutions, which learns faster from little data
(Xiao et al., arXiv 2106.14881). With "overlap" each cell then reads the cells around it, for things that are
larger than a cell.
"""

from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from pydantic import Field, model_validator
from torch import Tensor, nn

from grainline.encoders.base import ImageTokens, PixelEncoder, ScratchImageConfig, sizes_of
from grainline.nn.attention import PROJECTIONS, Attention, Stack, ValueAttention
from grainline.nn.pooling import AttentionPool


class ViTConfig(ScratchImageConfig):
    """`name` such as "B/16" fills in width, depth, heads and patch; fields given with it win."""

    sizes: ClassVar = sizes_of("toy 32 1 2, Mi 128 6 4, Ti 192 12 3, S 384 12 6, B 768 12 12, L 1024 24 16")

    depth: int = Field(gt=0, le=1000)
    patch: int = Field(gt=0)
    stem: Literal["patch", "conv", "overlap"] = "patch"
    positions: Literal["noise", "waves"] = "noise"  # initial values of the learnt vectors of the places
    pool: Literal["class", "mean", "attention"] = "class"
    patches: Literal["attention", "values"] = "attention"  # what they take up in the last block

    @classmethod
    def _size(cls, name: str) -> dict[str, Any]:
        size, _, patch = name.partition("/")
        if size not in cls.sizes or not patch.isdigit():
            raise ValueError(f"allowed are {', '.join(cls.sizes)}, a slash and the patch side, such as B/16")
        return cls.sizes[size] | {"patch": int(patch)}

    @model_validator(mode="after")
    def _fits(self) -> "ViTConfig":
        if self.size % self.patch:
            raise ValueError(f"size {self.size} is not a multiple of patch {self.patch}")
        if self.patches == "values" and self.pool != "class":
            raise ValueError(f"patches: values need pool: class, not {self.pool}: its summary reads them")
        if self.stem != "patch" and self.patch & (self.patch - 1):
            raise ValueError(f"the conv stem halves the image: patch {self.patch} is not a power of two")
        return self


class ViT(PixelEncoder):
    """Pixels to patches, a class token where the config pools by one, and a pooled vector."""

    before, behind, attention = ("stem", "position", "class_token"), ("norm", "pool"), PROJECTIONS

    def __init__(self, cfg: ViTConfig) -> None:
        super().__init__(cfg.mean, cfg.std)
        self.width, self.size = cfg.width, cfg.size
        self.grid = (cfg.size // cfg.patch, cfg.size // cfg.patch)
        self.stem = nn.Conv2d(3, cfg.width, cfg.patch, cfg.patch) if cfg.stem == "patch" else _conv_stem(cfg)
        noise = torch.randn(self.grid[0] * self.grid[1], cfg.width) * 0.02
        self.position = nn.Parameter(noise if cfg.positions == "noise" else waves(*self.grid, cfg.width))
        self.class_token = nn.Parameter(torch.randn(cfg.width) * 0.02) if cfg.pool == "class" else None
        self.classed = self.class_token is not None
        last = ValueAttention if cfg.patches == "values" else Attention
        self.stack = Stack(cfg.width, cfg.depth, cfg.heads, drop_path=cfg.drop_path, last=last)
        self.norm = nn.LayerNorm(cfg.width)
        self.pool = AttentionPool(cfg.width, cfg.heads) if cfg.pool == "attention" else None

    def forward(self, pixels: Tensor) -> ImageTokens:
        """pixels [N, 3, H, W] uint8 or float -> ImageTokens with L = grid[0] * grid[1]

        Outside training the patches behind an attention pool are in the space of its summary.
        """
        x = self.stem(self.normalised(pixels)).flatten(2).transpose(1, 2)  # [N, L, W]
        x = x + self.position
        if self.class_token is not None:
            x = torch.cat([self.class_token.to(x.dtype).expand(x.shape[0], 1, -1), x], dim=1)
        x = self.norm(self.stack(x))
        if self.class_token is not None:
            return ImageTokens(x[:, 0], x[:, 0], x[:, 1:])
        if self.pool is None:
            return ImageTokens(x.mean(1), None, x)
        return ImageTokens(self.pool(x).vector, None, x if self.training else self.pool.each(x))


def waves(rows: int, columns: int, width: int, longest: float = 20) -> Tensor:
    """Sines and cosines of row and column, a quarter of the width each: [rows * columns, width]

    Frequencies fall geometrically from 1 radian a cell to 1 / `longest` (Vaswani et al., arXiv 1706.03762,
    section 3.5, with 10,000 for texts).

    >>> waves(2, 2, 4)  # sine and cosine of the row, then of the column
    tensor([[0.0000, 1.0000, 0.0000, 1.0000],
            [0.0000, 1.0000, 0.8415, 0.5403],
            [0.8415, 0.5403, 0.0000, 1.0000],
            [0.8415, 0.5403, 0.8415, 0.5403]])
    """
    quarter = width // 4
    speed = longest ** -(torch.arange(quarter) / quarter)
    down, across = (torch.arange(n)[:, None] * speed for n in (rows, columns))
    down, across = down.repeat_interleave(columns, 0), across.repeat(rows, 1)
    return torch.cat([down.sin(), down.cos(), across.sin(), across.cos()], dim=1)


def _conv_stem(cfg: ViTConfig) -> nn.Sequential:
    """3 x 3 convolutions of stride 2 down to one cell a patch, then a 1 x 1 one to the full width.

    GroupNorm, not BatchNorm: what an image becomes must not depend on its batch. A window of three with
    stride 2 cannot lie in the middle of its two cells. All begin too early but the last, which ends too late:
    a token then reads around the centre of its patch, half a pixel off, and not half a patch beside it.
    """
    layers: list[nn.Module] = []
    before = 3
    for doublings in reversed(range(cfg.patch.bit_length() - 1)):
        after = max(16, cfg.width >> doublings)
        pad = nn.ZeroPad2d((1, 0, 1, 0) if doublings else (0, 1, 0, 1))
        layers += [pad, nn.Conv2d(before, after, 3, 2, bias=False), nn.GroupNorm(1, after), nn.GELU()]
        before = after
    layers.append(nn.Conv2d(before, cfg.width, 1))
    return nn.Sequential(*layers, *([Around(cfg.width)] if cfg.stem == "overlap" else []))


class Around(nn.Module):
    """Adds to every cell what stands in the 3 x 3 cells around it: [N, W, G, G] -> the same."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(1, width)
        self.look = nn.Conv2d(width, width, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.look(F.gelu(self.norm(x)))
