"""A vision transformer from fine to coarse, over superpixels instead of squares (CAST, arXiv 2210.00314).

A small convolutional stem reads the image, or a pretrained encoder does (`encoder`); superpixels take the
mean of its features. Blocks follow in stages, and between two stages graph pooling makes few tokens of many
(`nn.grouping`): a segment of a later stage consists of whole segments of an earlier one. In CAFT (arXiv
2602.02977) the second stage is compared with the parts of a text, and the last class token with the whole.

A superpixel may be empty. Empty ones, and groups for which there were too few tokens, are in no attention,
mean or group: their values change nothing.
"""

from itertools import pairwise
from typing import ClassVar, Literal, NamedTuple

import torch
import torch.nn.functional as F
from pydantic import Field, model_validator
from torch import Tensor, nn

from grainline.encoders.base import ImageTokens, PixelEncoder, ScratchImageConfig
from grainline.encoders.pretrained import encoder_inside
from grainline.encoders.pretrained.kind import PretrainedImageConfig
from grainline.encoders.superpixels import SuperpixelConfig, Superpixels
from grainline.encoders.vit import waves
from grainline.nn.attention import PROJECTIONS, Stack
from grainline.nn.grouping import GraphPool
from grainline.nn.superpixels import pool_cells

LONGEST = 10_000
"""Radians that the shortest wave of the positions turns while the longest turns one, as in CAST."""


class CastConfig(ScratchImageConfig):
    """`name` such as "B" fills in width, heads and depths of about the size of that ViT; other fields win."""

    sizes: ClassVar = {
        "toy": {"width": 32, "heads": 2, "depths": (1, 1, 1, 1)},
        "Mi": {"width": 128, "heads": 4, "depths": (2, 1, 1, 1)},
        "Ti": {"width": 192, "heads": 3, "depths": (3, 3, 3, 2)},
        "S": {"width": 384, "heads": 6, "depths": (3, 3, 3, 2)},
        "B": {"width": 768, "heads": 12, "depths": (3, 3, 3, 2)},
    }

    depths: tuple[int, ...] = Field(min_length=1)  # blocks of each stage
    groups: tuple[int, ...] = (64, 32, 16)  # tokens of each stage but the first, which has the superpixels
    read: int | None = Field(None, ge=1)  # the stage whose tokens are the image's, from 1; None: the last
    superpixels: SuperpixelConfig = SuperpixelConfig()
    encoder: PretrainedImageConfig | None = None  # its cells are the features, in place of a stem
    stride: int = Field(8, gt=0)  # side in pixels of the square behind one cell of the stem's features
    stem: Literal["group", "batch"] = "group"  # the norm in it
    positions: Literal["waves", "learnt"] = "waves"
    mlp_ratio: float = Field(4.0, gt=0)
    dropout: float = Field(0.1, ge=0.0, lt=1.0)  # inside graph pooling

    @model_validator(mode="after")
    def _fits(self) -> "CastConfig":
        cell, stages = self.superpixels.cell, len(self.depths)
        number = (self.size // cell) ** 2
        falling = all(more > fewer > 0 for more, fewer in pairwise((number, *self.groups)))
        doubles, between = self.stride >= 2 and self.stride.bit_count() == 1, stages - 1
        wrong = {
            f"size {self.size} is not a multiple of superpixels.cell {cell}": self.size % cell,
            f"stride {self.stride} is not a power of two, at least 2": not doubles,
            f"superpixels.cell {cell} is not a multiple of stride {self.stride}": cell % self.stride,
            f"{stages} depths need {between} groups, not {len(self.groups)}": between != len(self.groups),
            f"depths {self.depths} must be above 0": min(self.depths) <= 0,
            f"read {self.read} is no stage: there are {stages}": (self.read or 1) > stages,
            f"groups {self.groups} must fall, from below the {number} superpixels to above 0": not falling,
        }
        if message := next((message for message, applies in wrong.items() if applies), None):
            raise ValueError(message)
        return self


class Stage(NamedTuple):
    """The tokens of a stage, after its blocks."""

    tokens: Tensor  # [N, n, W]
    mask: Tensor  # [N, n] bool, True = a real segment


class CastTokens(NamedTuple):
    """An image at every grain, from fine to coarse, before any projection into a shared space."""

    pooled: Tensor  # [N, W] the class token behind the last stage, behind a LayerNorm
    stages: tuple[Stage, ...]  # of superpixels first; no norm behind their blocks
    label: Tensor  # [N, S, S] int64, the superpixel of each pixel
    weights: tuple[Tensor, ...]  # [N, n, m] how much of each token of a stage goes to each of the next


class Cast(PixelEncoder):
    """Pixels to superpixels, to segments of every stage, and to a pooled vector.

    Blocks and graph pools stand one after the other in one list of layers. Drop path rises over the blocks.
    """

    before, behind = ("encoder", "stem", "position", "class_token"), ("norm", "norm_read")
    attention = PROJECTIONS
    position: Tensor

    def __init__(self, cfg: CastConfig) -> None:
        super().__init__(cfg.mean, cfg.std)
        self.width, self.size, self.grid = cfg.width, cfg.size, None
        self.cell = cfg.superpixels.cell
        self.superpixels = Superpixels(cfg.superpixels, cfg.size)
        wanted = f"a grid for images of {cfg.size} pixels"
        self.encoder = encoder_inside(cfg.encoder, "image", lambda x: x.grid and x.size == cfg.size, wanted)
        width = None if self.encoder is None else self.encoder.width
        self.stem = _stem(cfg) if width is None else nn.Conv2d(width, cfg.width, 1)
        self.side = cfg.size // cfg.stride  # of the map of features
        if cfg.positions == "learnt":
            self.position = nn.Parameter(torch.randn(self.side**2, cfg.width) * 0.02)
        else:
            self.register_buffer("position", waves(self.side, self.side, cfg.width, LONGEST))
        self.class_token = nn.Parameter(torch.randn(cfg.width) * 0.02)
        self.layers = _layers(cfg)
        self.norm = nn.LayerNorm(cfg.width)
        # Tokens of the last stage stand where the class token stands, behind the same norm.
        self.stage = (cfg.read or len(cfg.depths)) - 1
        self.norm_read = None if self.stage == len(cfg.depths) - 1 else nn.LayerNorm(cfg.width)

    def read(self, pixels: Tensor, regions: Tensor | None = None) -> ImageTokens:
        """The tokens of one stage, and outside training that of each pixel. Arguments as in `forward`."""
        result = self(pixels, regions)
        tokens, mask = result.stages[self.stage]
        patches = (self.norm_read or self.norm)(tokens)
        places = None
        if not self.training:
            small = torch.uint8 if tokens.shape[1] <= 256 else torch.int32
            places = segments(result)[self.stage].to(small)
        return ImageTokens(result.pooled, result.pooled, patches, mask, places)

    def forward(self, pixels: Tensor, regions: Tensor | None = None) -> CastTokens:
        """Images to tokens. No value is read by the host.

        pixels   [N, 3, S, S] uint8 or float
        regions  [N, S, S] int64 superpixels computed before, under the contract of `nn.superpixels`
        """
        label = self.superpixels(pixels) if regions is None else regions
        tokens, mask = self.superpixel_tokens(pixels, label)
        cls = self.class_token.to(tokens.dtype).expand(tokens.shape[0], -1)
        x, real = _with_class_token(cls, tokens, mask)
        stages, weights = [], []
        for layer in self.layers:
            if isinstance(layer, GraphPool):
                stages.append(Stage(x[:, 1:], mask))
                grouped = layer(x[:, 1:], x[:, 0], mask)
                weights.append(grouped.weight)
                mask = grouped.mask
                x, real = _with_class_token(grouped.cls, grouped.tokens, mask)
            else:
                x = layer(x, real)
        stages.append(Stage(x[:, 1:], mask))
        return CastTokens(self.norm(x[:, 0]), tuple(stages), label, tuple(weights))

    def superpixel_tokens(self, pixels: Tensor, label: Tensor) -> Stage:
        """The input of the first block: the mean of features and of their positions over each superpixel."""
        x = self._features(pixels)  # [N, W, side, side]
        x = x + self.position.T.unflatten(1, (self.side, self.side))
        pooled = pool_cells(x, label, self.cell)
        return Stage(pooled.tokens, pooled.mass > 0)

    def _features(self, pixels: Tensor) -> Tensor:
        """The map of features: those of the stem, or cells of a pretrained encoder between their centres."""
        if self.encoder is None:
            return self.stem(self.normalised(pixels))
        cells = self.encoder(pixels).patches.transpose(1, 2).unflatten(2, self.encoder.grid)
        return F.interpolate(self.stem(cells), (self.side, self.side), mode="bilinear")


def segments(result: CastTokens) -> tuple[Tensor, ...]:
    """The segment of each pixel at every stage, from fine to coarse: [N, S, S] int64 each, in 0..n-1

    Superpixels go whole to the group that takes most of them, and groups to groups, so that a later map joins
    segments of an earlier one and never cuts them.
    """
    maps = [result.label]
    for weight in result.weights:
        before = maps[-1].flatten(1)
        maps.append(weight.argmax(2).gather(1, before).view_as(result.label))
    return tuple(maps)


def _with_class_token(cls: Tensor, tokens: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """The class token in front of the others: [N, 1 + n, W], and their mask: [N, 1 + n] bool"""
    real = torch.cat([mask.new_ones(mask.shape[0], 1), mask], dim=1)
    return torch.cat([cls[:, None], tokens], dim=1), real


def _layers(cfg: CastConfig) -> nn.ModuleList:
    """The blocks of every stage, and a graph pool between two."""
    depth = sum(cfg.depths) + len(cfg.groups)
    blocks = iter(Stack(cfg.width, sum(cfg.depths), cfg.heads, cfg.mlp_ratio, cfg.drop_path).blocks)
    layers: list[nn.Module] = []
    for stage, number in enumerate(cfg.depths):
        if stage:
            settings = {"mlp_ratio": cfg.mlp_ratio, "dropout": cfg.dropout}
            layers.append(GraphPool(cfg.width, cfg.heads, cfg.groups[stage - 1], depth=depth, **settings))
        layers += [next(blocks) for _ in range(number)]
    return nn.ModuleList(layers)


def _stem(cfg: CastConfig) -> nn.Sequential:
    """3 x 3 convolutions of stride 2 that double the channels, one of stride 1, and a 1 x 1 one.

    At width 768 and stride 8 they have 96, 192, 384, 768 and 768 channels, as in CAST, which has BatchNorm
    behind each. That is `batch`, for comparison alone: with it a batch in chunks (GradCache) or over several
    processes gives other gradients than the same batch at once.
    """
    layers: list[nn.Module] = []
    before = 3
    for left in reversed(range(cfg.stride.bit_length())):
        after = max(16, cfg.width >> left) if left else cfg.width
        norm = nn.BatchNorm2d(after) if cfg.stem == "batch" else nn.GroupNorm(1, after)
        layers += [nn.Conv2d(before, after, 3, 2 if left else 1, 1, bias=False), norm, nn.ReLU()]
        before = after
    return nn.Sequential(*layers, nn.Conv2d(before, cfg.width, 1))
