"""FLAIR: every caption of a picture is compared with the picture as that caption sees it.

Xiao et al., arXiv 2412.03561. In four steps:
  1. encode the picture into a summary and patches, and each of several short captions into one vector;
  2. each caption pools the patches by attention, or an empty slot beside them;
  3. sigmoid loss of what is pooled with the caption: a picture has all its captions as positives, and each
     other picture as a negative with one of its captions, drawn anew in every step;
  4. sigmoid loss of the summary with every caption of the batch; half of each.

Both losses are divided as in the authors' code: the first by the texts that an image meets in it, the second
by all captions. So the first weighs much more: 78 against 10 at the start, with 256 images of 8 captions.

It is the baseline of CAFT (arXiv 2602.02977). A long text is cut to the context, as there; with `chunks` it
is read in sub-captions whose vectors are averaged, which is the control for how much text is read.

Differs from the authors' code: drawn negatives are a function of seed, step and pictures, whatever the number
of processes; losses are divided by counts over all processes; texts travel as they are, and not once for each
picture.
"""

from typing import Literal

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from grainline.data.chunks import Chunking
from grainline.encoders.towers import TowersConfig, flat_parts
from grainline.losses.text_conditioned import Negatives, part_loss, part_pairs
from grainline.losses.tiled.pair_loss import Logistic, pair_loss
from grainline.losses.tiled.pair_mask import Blocks
from grainline.losses.tiled.scores import Dot
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
from grainline.nn.pooling import ConditionedPool, mean_pool, unit
from grainline.nn.scale import LogitScale
from grainline.types import Clock, Encoded, Images, Mean, Pair, Term, Texts, full


class FLAIRConfig(TowersConfig):
    """Encoders, pooling and loss."""

    chunks: int = Field(1, gt=0)  # sub-captions whose mean is the text; 1: the text itself
    chunking: Chunking | None = None  # how a text falls into several; None: as in CAFT
    heads: int = Field(8, gt=0)  # of the pooling
    negatives: Negatives = "sampled"  # of the pooled loss: one caption of each other image, or their mean
    scale: float = Field(1 / 0.07, ge=1)  # of both losses, at the start
    max_scale: float = Field(100.0, gt=1)
    bias: float = -10.0  # of both losses, at the start
    scoring: Literal["vectors", "conditioned"] = "conditioned"
    learns_tokens = masks_tokens = True

    @model_validator(mode="after")
    def _fits(self) -> "FLAIRConfig":
        if self.width is not None and self.width % self.heads:
            raise ValueError(f"width {self.width} is not a multiple of {self.heads} heads of the pooling")
        if self.scale > self.max_scale:
            raise ValueError(f"scale {self.scale:g} is above max_scale {self.max_scale:g}")
        if self.chunking is not None and self.chunks == 1:
            raise ValueError("chunking says how a text falls into several chunks: set chunks above 1")
        return self


class FLAIR(Method):
    """Dual encoder with text-conditioned pooling."""

    cfg: FLAIRConfig
    gathers = ("vector", "item", "image", "extra")  # texts travel as they are, patches do not
    blockwise = True

    def __init__(self, cfg: FLAIRConfig) -> None:
        super().__init__(cfg)
        self.pairwise, self.distribution = cfg.scoring == "conditioned", True
        self.parts = cfg.chunks
        self.chunking = None if cfg.chunks == 1 else cfg.chunking or CHUNKING
        self.pool = ConditionedPool(self.towers.space, cfg.heads)
        self.scale = LogitScale(cfg.scale, cfg.max_scale)
        self.bias = nn.Parameter(torch.full((1,), cfg.bias))

    def encode_images(self, images: Images) -> Encoded:
        """tokens: patches in the shared space, not of unit length"""
        seen = self.towers.see(images)
        vector, tokens = unit(self.towers.to_image(seen.pooled)), full(self.towers.to_image(seen.patches))
        return Encoded(vector, tokens, seen.real(), images.image, images.image, None, seen.places)

    def encode_texts(self, texts: Texts) -> Encoded:
        """tokens: the text, not of unit length; of several chunks their mean"""
        if self.chunking is None:
            ids, mask = flat_parts(texts)
            texts = texts._replace(ids=ids[:, None], mask=mask[:, None])
        pooled = mean_pool(*read_parts(self.towers, texts)).vector
        real = texts.mask.any(-1).any(-1, keepdim=True)
        return Encoded(unit(pooled), pooled[:, None], real, texts.item, texts.image)

    def meet(self, mine: Pair) -> Pair:
        """Texts as the loss compares them: not of unit length, and nothing else of them travels."""
        texts = mine.texts
        return Pair(mine.images, texts._replace(extra=apart(texts, texts.item >= 0)))

    def held(self, images: Encoded) -> Encoded:
        """tokens: keys and values of the pooling, side by side: [N, L, 2 D]"""
        return held(self.pool, images) if self.pairwise else images

    def score(self, images: Encoded, texts: Encoded) -> Tensor:
        """Cosine of each text with what it pools of each picture; or cosines of summaries."""
        return pooled_cosines(self.pool, images, texts) if self.pairwise else dot(images, texts)

    def loss(self, mine: Pair, everyone: Pair, clock: Clock) -> dict[str, Term]:
        images, told = mine.images, everyone.texts.extra
        pictures, captions = keys_of(images.item, images.image), keys_of(told.item, told.image)
        scale, bias = self.scale(), self.bias
        pairs = part_pairs(pictures, captions, self.cfg.negatives, clock)
        pooled = part_loss(self.pool, (images.tokens, images.mask), told.vector, pairs, scale, bias)
        summary = summary_loss(images.vector, told.vector, Blocks(pictures, captions), scale, bias)
        number, count = _counts(everyone.images, told, pooled.total.dtype)
        terms = {  # B / (B + K - 1) and 1 / K of a mean over images
            "pooled": Mean(pooled.total * number / (number + count / number - 1).clamp(min=1), pooled.number),
            "summary": Mean(summary.total * number / count.clamp(min=1), summary.number),
        }
        fact = Term(None, Mean(scale.detach().sum(), scale.new_ones(())))
        return {name: Term(0.5, mean) for name, mean in terms.items()} | {"scale": fact}

    def heat(self, images: Encoded, texts: Encoded) -> Tensor:
        """Attention of text i to the patches of image i: [N, L]"""
        return part_heat(self.pool, images, texts)

    def attend(self, images: Encoded, texts: Encoded) -> Tensor:
        """Where text i looks in image i: [N, 1, L + 1]; the last one is the empty slot."""
        return attend(self.pool, images, texts)


def summary_loss(images: Tensor, texts: Tensor, pairs: Blocks, scale: Tensor, bias: Tensor) -> Mean:
    """The sigmoid loss of summaries with the texts of everyone; its mean over images.

    images  [n, D] of unit length, texts [P, D] of everyone, of any length; scale and bias of one element

    for i of my images:
        for j of the captions of all:
            logit = scale * images[i] . texts[j] / |texts[j]| + bias
            j describes i:  total += log(1 + exp(-logit))
            else:           total += log(1 + exp(logit))
        number += 1
    """
    rows = torch.cat([scale * images, bias.expand(len(images), 1)], 1)
    texts = unit(texts)
    cols = torch.cat([texts, texts.new_ones(len(texts), 1)], 1)
    return pair_loss(Dot(), Logistic(), (rows,), (cols,), pairs)[0]


def _counts(images: Encoded, told: Parts, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Images of all processes, at least 1, and their captions: [] both"""
    number = (images.item >= 0).sum().clamp(min=1)
    return number.to(dtype), ((told.item >= 0) & (told.image >= 0)).sum().to(dtype)
