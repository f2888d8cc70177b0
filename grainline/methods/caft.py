"""CAFT: parts of an image are aligned with parts of its caption, and the whole image with the whole caption.

Woo et al., arXiv 2602.02977. In five steps:
  1. the image becomes superpixels, and these 64, then 32, then 16 segments (`encoders/cast.py`);
  2. a long caption becomes sub-captions, each read by itself; a second transformer makes a whole of them
     (equations 1 to 3);
  3. every sub-caption pools the segments of the second stage, or an empty slot beside them;
  4. sigmoid loss of what is pooled with the sub-caption (equation 8), where each other image is a negative
     with one of its sub-captions, sampled anew in every step, or with all of them;
  5. sigmoid loss of the last class token with the whole caption (equation 9), added to it.

The score is the cosine of the wholes, which an index can hold; scoring "conditioned" is CAFT++ (equation 10),
where pooled parts are added, with the same weights.

docs/methods/caft.md says what the paper leaves open. Foils join the loss of the wholes only: a part of one
may be true.
"""

from typing import Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
from pydantic import Field, model_validator
from torch import Tensor, nn

from grainline.config import Config
from grainline.encoders.base import Layered
from grainline.encoders.towers import image_kind, read_parts
from grainline.errors import UserError
from grainline.losses.contrastive import sigmoid_loss
from grainline.methods.shared import LogitScale, logged, whole_captions
from grainline.methods.text_parts import ConditionedConfig, ConditionedMethod, Parts
from grainline.nn.attention import PROJECTIONS, Stack
from grainline.nn.pooling import ConditionedPool, unit
from grainline.types import Clock, Encoded, Images, Pair, Term, Texts

FINE = 2
"""The stage that sub-captions pool, in the paper."""

BLEND = 0.2  # share of the MLP, in CLIP-Adapter


class ComposerConfig(Config):
    """Size of the transformer; its width is that of the shared space."""

    depth: int = Field(4, gt=0)
    heads: int = Field(8, gt=0)
    bottleneck: int | None = Field(None, gt=0)  # hidden width of the adapter; None: a quarter of the width
    adapter: Literal["residual", "blend"] = "residual"  # t + MLP(t), or 0.8 t + 0.2 MLP(t) as in CLIP-Adapter
    drop_path: float = Field(0.0, ge=0.0, lt=1.0)


class Composer(Layered):
    """Sub-captions to their caption: the Whole-caption Transformer, equation 3.

    An adapter turns every sub-caption a little (CLIP-Adapter, arXiv 2110.04544); a class token stands in
    front of them, and each place has a learnt vector; in a transformer all attend to all, and the class token
    at its end is the caption.
    """

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


class CAFTConfig(ConditionedConfig):
    """Composition, both losses and the score."""

    composer: ComposerConfig = ComposerConfig()
    chunks: int = Field(4, gt=0)  # sub-captions of a caption
    part: float = Field(1.0, ge=0)  # weight of the loss of parts
    whole: float = Field(1.0, ge=0)  # weight of the loss of wholes
    scoring: Literal["vectors", "conditioned"] = "vectors"  # conditioned: CAFT++
    alpha: float = Field(0.3, ge=0, le=1)  # share of the parts in the score of CAFT++

    @model_validator(mode="before")
    @classmethod
    def _read_early(cls, values: Any) -> Any:
        image = values.get("image") if isinstance(values, dict) else None
        if isinstance(image, dict) and image_kind(image) == "cast":
            return values | {"image": {"read": FINE} | image}
        return values

    @model_validator(mode="after")
    def _fits(self) -> "CAFTConfig":
        if self.width is not None and self.width % self.composer.heads:
            raise ValueError(
                f"width {self.width} is not a multiple of {self.composer.heads} heads of composer"
            )
        if self.part == self.whole == 0:
            raise ValueError("part and whole are both 0: nothing is left to learn")
        return self


class CAFTExtra(NamedTuple):
    """The fields of texts that only the loss reads."""

    level: Tensor  # [M] as in Texts
    parts: Parts | None  # sub-captions as rows; None before `before_gather`


class CAFT(ConditionedMethod):
    """Dual encoder with a hierarchy on both sides."""

    config_class = CAFTConfig
    cfg: CAFTConfig
    tokens_in_text_space = False  # segments meet sub-captions through the pooling, and wholes never

    def __init__(self, cfg: CAFTConfig) -> None:
        super().__init__(cfg)
        self.pairwise = cfg.scoring == "conditioned"
        space = self.towers.space
        self.to_part = nn.Linear(self.towers.image.width, space, bias=False)
        nn.init.normal_(self.to_part.weight, std=self.towers.image.width**-0.5)
        self.composer = Composer(cfg.composer, space, cfg.chunks)
        self.pool = ConditionedPool(space, cfg.heads)
        self.part_scale, self.whole_scale = (LogitScale(cfg.scale, cfg.max_scale) for _ in range(2))
        self.part_bias, self.whole_bias = (nn.Parameter(torch.full((1,), cfg.bias)) for _ in range(2))

    def encode_images(self, images: Images) -> Encoded:
        """tokens: segments in the shared space, not of unit length"""
        return self.towers.encode_images(images, self.to_part)

    def encode_texts(self, texts: Texts) -> Encoded:
        """tokens: sub-captions, not of unit length. ValueError for more of them than are composed."""
        parts, mask = read_parts(self.towers, texts, self.parts)
        whole = unit(self.composer(parts, mask))
        return Encoded(whole, parts, mask, texts.item, texts.image, CAFTExtra(texts.level, None))

    def before_gather(self, local: Pair) -> Pair:
        """Lay out the sub-captions of images as rows, so that no empty place travels."""
        texts = local.texts
        parts = Parts.of(texts, foils=False)
        return Pair(local.images, texts._replace(extra=texts.extra._replace(parts=parts)))

    def score(self, images: Encoded, texts: Encoded) -> Tensor:
        """Cosines of wholes; in CAFT++ with those of pooled parts, summed over the places of a caption."""
        whole = super().score(images, texts)
        if not self.pairwise:
            return whole
        parts = self.parts * self.part_cosines(images, texts)
        return (1 - self.cfg.alpha) * whole + self.cfg.alpha * parts

    def loss(self, local: Pair, gathered: Pair, clock: Clock) -> dict[str, Term]:
        cfg, parts = self.cfg, gathered.texts.extra.parts
        # Of weight 0 too: processes that average gradients need one of every parameter.
        scale, bias = self.part_scale(), self.part_bias
        part = self.part_loss(local.images, parts, clock, scale, bias)
        texts = whole_captions(gathered.texts)
        if cfg.whole and not len(texts.item) and len(parts.item):
            raise UserError(
                "caft learns from whole captions, and data.texts.per_image is 0: set it to 1, or "
                "model.whole to 0"
            )
        whole = sigmoid_loss(local, gathered._replace(texts=texts), self.whole_scale(), self.whole_bias)
        return {"part": Term(cfg.part, part), "whole": Term(cfg.whole, whole)} | logged(
            part_scale=self.part_scale(), whole_scale=self.whole_scale()
        )
