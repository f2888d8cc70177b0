"""CAFT: parts of a picture meet parts of its caption, and the whole picture meets the whole caption.

Woo et al., arXiv 2602.02977. In five steps:
  1. the picture becomes superpixels, and these 64, then 32, then 16 segments (`encoders/cast.py`);
  2. a long caption becomes sub-captions, each read by itself; a second transformer makes a whole of them;
  3. every sub-caption pools the segments of the second stage, or an empty slot beside them;
  4. sigmoid loss of what is pooled with the sub-caption (equation 8), where each other picture is a negative
     with one of its sub-captions, drawn anew in every step, or with all of them;
  5. sigmoid loss of the last class token with the whole caption (equation 9), added to it.

The score is the cosine of the wholes, which an index can hold; scoring "conditioned" is CAFT++ (equation 10),
where pooled parts are added. Both score with the same weights.

Differs from the paper, where it is silent or cannot be meant: equations 8 and 9 have the labels that they
lack; "0.07" is a temperature, so that the scale begins at 1 / 0.07; drawn negatives are a function of seed,
step and pictures, whatever the number of processes; an empty place of a short text is seen by nobody, and the
sum over parts is scaled up to all places. Foils join the loss of the wholes only: a part of one may be true.
"""

from typing import Any, Literal, NamedTuple

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from grainline.data.chunks import Chunking
from grainline.encoders.caft_text import Composer, ComposerConfig
from grainline.encoders.towers import TowersConfig, image_kind
from grainline.errors import UserError
from grainline.losses.contrastive import sigmoid
from grainline.losses.text_conditioned import Negatives, part_loss, part_pairs
from grainline.methods.base import Method, dot
from grainline.methods.text_parts import (
    CHUNKING,
    Parts,
    apart,
    attend,
    held,
    keys_of,
    part_heat,
    pooled_cosines,
    read_parts,
)
from grainline.nn.pooling import ConditionedPool, unit
from grainline.nn.scale import LogitScale
from grainline.types import (
    CAPTION,
    FOIL,
    Clock,
    Encoded,
    Images,
    Mean,
    Pair,
    Term,
    Texts,
    full,
    rows,
    same_image,
)

FINE = 2
"""The stage that sub-captions pool, in the paper."""


class CAFTConfig(TowersConfig):
    """Encoders, composition, pooling, both losses and the score."""

    composer: ComposerConfig = ComposerConfig()
    chunks: int = Field(4, gt=0)  # sub-captions of a caption
    chunking: Chunking = CHUNKING  # where nothing is left to chance
    heads: int = Field(8, gt=0)  # of the pooling; the paper does not say
    negatives: Negatives = "sampled"  # sub-captions of other pictures: one of each, or the mean over all
    part: float = Field(1.0, ge=0)  # weight of the loss of parts
    whole: float = Field(1.0, ge=0)  # weight of the loss of wholes
    scale: float = Field(1 / 0.07, ge=1)  # of both losses, at the start
    max_scale: float = Field(100.0, gt=1)
    bias: float = -10.0  # of both losses, at the start
    scoring: Literal["vectors", "conditioned"] = "vectors"  # conditioned: CAFT++
    alpha: float = Field(0.3, ge=0, le=1)  # share of the parts in the score of CAFT++

    learns_tokens = masks_tokens = True

    @model_validator(mode="before")
    @classmethod
    def _read_early(cls, values: Any) -> Any:
        image = values.get("image") if isinstance(values, dict) else None
        if isinstance(image, dict) and image_kind(image) == "cast":
            return values | {"image": {"read": FINE} | image}
        return values

    @model_validator(mode="after")
    def _fits(self) -> "CAFTConfig":
        if self.width is not None and self.width % self.heads:
            raise ValueError(f"width {self.width} is not a multiple of {self.heads} heads of the pooling")
        if self.width is not None and self.width % self.composer.heads:
            raise ValueError(
                f"width {self.width} is not a multiple of {self.composer.heads} heads of composer"
            )
        if self.scale > self.max_scale:
            raise ValueError(f"scale {self.scale:g} is above max_scale {self.max_scale:g}")
        if self.part == self.whole == 0:
            raise ValueError("part and whole are both 0: nothing is left to learn")
        return self


class Told(NamedTuple):
    """What only this method reads of texts."""

    level: Tensor  # [M] as in Texts
    parts: Parts | None  # sub-captions as rows; None until pictures and texts meet


class CAFT(Method):
    """Dual encoder with a hierarchy on both sides."""

    cfg: CAFTConfig
    gathers = ("vector", "item", "image", "extra")  # sub-captions travel as they are, segments do not
    blockwise = True

    def __init__(self, cfg: CAFTConfig) -> None:
        super().__init__(cfg)
        self.pairwise, self.distribution = cfg.scoring == "conditioned", True
        self.matched = False  # segments meet sub-captions through the pooling, and wholes never
        self.parts, self.chunking = cfg.chunks, cfg.chunking
        space = self.towers.space
        self.to_part = nn.Linear(self.towers.image.width, space, bias=False)
        nn.init.normal_(self.to_part.weight, std=self.towers.image.width**-0.5)
        self.composer = Composer(cfg.composer, space, cfg.chunks)
        self.pool = ConditionedPool(space, cfg.heads)
        self.part_scale, self.whole_scale = (LogitScale(cfg.scale, cfg.max_scale) for _ in range(2))
        self.part_bias, self.whole_bias = (nn.Parameter(torch.full((1,), cfg.bias)) for _ in range(2))

    def encode_images(self, images: Images) -> Encoded:
        """tokens: segments in the shared space, not of unit length"""
        seen = self.towers.see(images)
        vector, tokens = unit(self.towers.to_image(seen.pooled)), full(self.to_part(seen.patches))
        return Encoded(vector, tokens, seen.real(), images.image, images.image, None, seen.places)

    def encode_texts(self, texts: Texts) -> Encoded:
        """tokens: sub-captions, not of unit length. ValueError for more of them than are composed."""
        over = texts.ids.shape[1] - self.parts
        if over > 0 and not bool(texts.mask[:, self.parts :].any()):
            texts = texts._replace(ids=texts.ids[:, : self.parts], mask=texts.mask[:, : self.parts])
        elif over > 0:
            raise ValueError(f"a text has more than {self.parts} parts; the method composes no more")
        parts, mask = read_parts(self.towers, texts)
        whole = unit(self.composer(parts, mask))
        return Encoded(whole, parts, mask, texts.item, texts.image, Told(texts.level, None))

    def meet(self, mine: Pair) -> Pair:
        """Lay sub-captions of pictures out as rows of their own, so that no empty place travels."""
        texts = mine.texts
        told = apart(texts, (texts.item >= 0) & (texts.image >= 0))
        return Pair(mine.images, texts._replace(extra=texts.extra._replace(parts=told)))

    def held(self, images: Encoded) -> Encoded:
        """tokens: keys and values of the pooling, side by side: [N, L, 2 D]"""
        return held(self.pool, images) if self.pairwise else images

    def score(self, images: Encoded, texts: Encoded) -> Tensor:
        """Cosines of wholes; in CAFT++ with those of pooled parts, summed over the places of a caption."""
        if not self.pairwise:
            return dot(images, texts)
        parts = self.parts * pooled_cosines(self.pool, images, texts)
        return (1 - self.cfg.alpha) * dot(images, texts) + self.cfg.alpha * parts

    def loss(self, mine: Pair, everyone: Pair, clock: Clock) -> dict[str, Term]:
        cfg, images, told = self.cfg, mine.images, everyone.texts.extra.parts
        # Of weight 0 too: what a step leaves out altogether is an error where processes average gradients.
        pictures, captions = keys_of(images.item, images.image), keys_of(told.item, told.image)
        pairs = part_pairs(pictures, captions, cfg.negatives, clock)
        segments = images.tokens, images.mask
        part = part_loss(self.pool, segments, told.vector, pairs, self.part_scale(), self.part_bias)
        texts = _captions(everyone.texts)
        if cfg.whole and not len(texts.item) and bool((told.item >= 0).any()):
            raise UserError(
                "caft learns from whole captions, and data.texts.per_image is 0: set it to 1, or "
                "model.whole to 0"
            )
        logits = self.whole_scale() * dot(images, texts) + self.whole_bias  # [n, captions of everyone]
        real = (images.item >= 0)[:, None] & (texts.item >= 0)
        whole = sigmoid(logits, same_image(images, texts), real)
        scales = {"part scale": self.part_scale(), "whole scale": self.whole_scale()}
        return {"part": Term(cfg.part, part), "whole": Term(cfg.whole, whole)} | {
            name: Term(None, Mean(x.detach().sum(), x.new_ones(()))) for name, x in scales.items()
        }

    def heat(self, images: Encoded, texts: Encoded) -> Tensor:
        """Attention of the sub-captions of text i to the segments of image i, their mean: [N, L]"""
        return part_heat(self.pool, images, texts)

    def attend(self, images: Encoded, texts: Encoded) -> Tensor:
        """Where each sub-caption of text i looks in image i: [N, S, L + 1], the empty slot last."""
        return attend(self.pool, images, texts)


def _captions(texts: Encoded) -> Encoded:
    """The rows that are wholes: captions and foils."""
    level = texts.extra.level
    kept = ((level == CAPTION) | (level == FOIL)) & (texts.item >= 0)
    return rows(texts._replace(extra=None), kept.nonzero()[:, 0])
