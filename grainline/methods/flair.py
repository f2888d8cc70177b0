"""FLAIR: every caption of an image is compared with the image pooled by that caption.

Xiao et al., arXiv 2412.03561. In four steps:
  1. encode the image into a summary and patches, and each of several short captions into one vector;
  2. each caption pools the patches by attention, or an empty slot beside them;
  3. sigmoid loss of what is pooled with the caption: an image has all its captions as positives, and each
     other image as a negative with one of its captions, sampled anew in every step;
  4. sigmoid loss of the summary with every caption of the batch; half of each.

Both losses are divided as in the authors' code: the first by the texts that an image meets in it, the second
by all captions, so that the first weighs much more: 78 against 10 at the start, with 256 images of 8
captions.

It is the baseline of CAFT (arXiv 2602.02977). A long text is cut to the context, as there; with `chunks` it
is read in sub-captions whose vectors are averaged, which is the control for how much text is read.

Differs from the authors' code: sampled negatives are a function of seed, step and images; losses are divided
by counts over all processes; texts travel once, not once for each image.
"""

from typing import Literal

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from grainline.encoders.towers import flat_parts, read_parts
from grainline.losses.text_conditioned import flair_means
from grainline.methods.base import dot
from grainline.methods.shared import LogitScale, logged
from grainline.methods.text_parts import ConditionedConfig, ConditionedMethod, Parts
from grainline.nn.pooling import ConditionedPool, mean_pool, unit
from grainline.types import Clock, Encoded, Pair, Term, Texts


class FLAIRConfig(ConditionedConfig):
    """Chunks of long texts, and the score."""

    chunks: int = Field(1, gt=0)  # sub-captions whose mean is the text; 1: the text itself
    scoring: Literal["vectors", "conditioned"] = "conditioned"

    @model_validator(mode="after")
    def _fits(self) -> "FLAIRConfig":
        if self.chunking is not None and self.chunks == 1:
            raise ValueError("chunking says how a text falls into several chunks: set chunks above 1")
        return self


class FLAIR(ConditionedMethod):
    """Dual encoder with text-conditioned pooling."""

    config_class = FLAIRConfig
    cfg: FLAIRConfig

    def __init__(self, cfg: FLAIRConfig) -> None:
        super().__init__(cfg)
        self.pairwise = cfg.scoring == "conditioned"
        self.chunking = None if cfg.chunks == 1 else self.chunking
        self.pool = ConditionedPool(self.towers.space, cfg.heads)
        self.scale = LogitScale(cfg.scale, cfg.max_scale)
        self.bias = nn.Parameter(torch.full((1,), cfg.bias))

    def encode_texts(self, texts: Texts) -> Encoded:
        """tokens: the text, not of unit length; of several chunks their mean"""
        if self.chunking is None:
            ids, mask = flat_parts(texts)
            texts = texts._replace(ids=ids[:, None], mask=mask[:, None])
        pooled = mean_pool(*read_parts(self.towers, texts)).vector
        real = texts.mask.any(-1).any(-1, keepdim=True)
        return Encoded(unit(pooled), pooled[:, None], real, texts.item, texts.image)

    def before_gather(self, local: Pair) -> Pair:
        """Texts as the loss compares them: not of unit length, without anything else."""
        texts = local.texts
        return Pair(local.images, texts._replace(extra=Parts.of(texts, foils=True)))

    def score(self, images: Encoded, texts: Encoded) -> Tensor:
        """Cosine of each text with what it pools of each image; or cosines of summaries."""
        return self.part_cosines(images, texts) if self.pairwise else dot(images, texts)

    def loss(self, local: Pair, gathered: Pair, clock: Clock) -> dict[str, Term]:
        images, parts = local.images, gathered.texts.extra
        scale, bias = self.scale(), self.bias
        pooled = self.part_loss(images, parts, clock, scale, bias)
        terms = flair_means(pooled, images, gathered.images.item, parts, scale, bias)
        return {name: Term(0.5, mean) for name, mean in terms.items()} | logged(scale=scale)
