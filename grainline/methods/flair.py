"""FLAIR: every caption of a picture is compared with the picture as that caption sees it.

Xiao et al., arXiv 2412.03561. In four steps:
  1. encode the picture into a summary and patches, and each of several short captions into one vector;
  2. each caption pools the patches by attention, or an empty slot beside them;
  3. sigmoid loss of what is pooled with the caption: a picture has all its captions as positives, and each
     other picture as a negative with one of its captions, drawn anew in every step;
  4. the same loss of the summary with captions; half of each.

It is the baseline of CAFT (arXiv 2602.02977). A long text is cut to the context, as there; with `chunks` it
is read in sub-captions whose vectors are averaged, which is the control for how much text is read.

Differs from the authors' code: drawn negatives are a function of seed, step and pictures, whatever the number
of processes; losses are divided by the number of pictures, or with `divisor` "candidates" as there, by how
many texts a picture is compared with; texts travel as they are, and not once for each picture.
"""

from typing import Literal

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from grainline.data.chunks import Chunking
from grainline.encoders.towers import Towers, TowersConfig, flat_parts
from grainline.losses.blocks import Blocks
from grainline.losses.lists import Lists
from grainline.losses.pairs import Logistic, pair_loss
from grainline.losses.pooled import Negatives, part_loss, part_pairs
from grainline.losses.scores import Dot
from grainline.methods.base import Method, dot
from grainline.methods.parts import (
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
from grainline.nn.condition import ConditionedPool
from grainline.nn.pool import mean_pool, unit
from grainline.nn.scale import LogitScale
from grainline.types import Clock, Encoded, Images, Mean, Pair, Term, Texts, full


class FLAIRConfig(TowersConfig):
    """Encoders, pooling and loss."""

    chunks: int = Field(1, gt=0)  # sub-captions whose mean is the text; 1: the text itself
    chunking: Chunking | None = None  # how a text falls into several; None: as in CAFT
    heads: int = Field(8, gt=0)  # of the pooling
    negatives: Negatives = "sampled"  # captions of other pictures: one of each, or the mean over all
    divisor: Literal["pictures", "candidates"] = "pictures"
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

    gathers = ("vector", "item", "image", "extra")  # texts travel as they are, patches do not
    blockwise = True

    def __init__(self, cfg: FLAIRConfig) -> None:
        super().__init__()
        self.cfg = cfg
        self.pairwise, self.distribution = cfg.scoring == "conditioned", True
        self.towers = Towers(cfg)
        self.size, self.grid = self.towers.image.size, self.towers.image.grid
        self.segmented = self.towers.segmented
        self.context, self.parts = self.towers.text.context, cfg.chunks
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
        pairs = part_pairs(pictures, captions, self.cfg.negatives, clock)
        scale, bias = self.scale(), self.bias
        pooled = part_loss(self.pool, (images.tokens, images.mask), told.vector, pairs, scale, bias)
        summary = summary_loss(images.vector, told.vector, pairs, scale, bias)
        terms = {"pooled": pooled, "summary": summary}
        if self.cfg.divisor == "candidates":
            count = _candidates(everyone.images, told)
            terms = {name: Mean(x.total, x.number * count) for name, x in terms.items()}
        fact = Term(None, Mean(scale.detach().sum(), scale.new_ones(())))
        return {name: Term(0.5, mean) for name, mean in terms.items()} | {"scale": fact}

    def row_loss(self, texts: Texts, encoded: Encoded) -> dict[str, Term]:  # noqa: ARG002
        return {}

    def heat(self, images: Encoded, texts: Encoded) -> Tensor:
        """Attention of text i to the patches of image i: [N, L]"""
        return part_heat(self.pool, images, texts)

    def attend(self, images: Encoded, texts: Encoded) -> Tensor:
        """Where text i looks in image i: [N, 1, L + 1]; the last one is the empty slot."""
        return attend(self.pool, images, texts)

    def segmentations(self, images: Images) -> tuple[Tensor, ...]:
        """The segment of each pixel at every stage, from fine to coarse; () for an encoder of patches."""
        return self.towers.segmentations(images)


def summary_loss(images: Tensor, texts: Tensor, pairs: Blocks | Lists, scale: Tensor, bias: Tensor) -> Mean:
    """The sigmoid loss of summaries with texts, over the same pairs as that of `part_loss`.

    images  [n, D] of unit length, texts [P, D] of everyone, of any length
    """
    rows = torch.cat([scale * images, bias.expand(len(images), 1)], 1)
    texts = unit(texts)
    cols = torch.cat([texts, texts.new_ones(len(texts), 1)], 1)
    return pair_loss(Dot(), Logistic(), (rows,), (cols,), pairs)[0]


def _candidates(images: Encoded, told: Parts) -> Tensor:
    """The captions of a picture and one of each other picture, over the number of pictures: []"""
    pictures = (images.item >= 0).sum()
    own = ((told.item >= 0) & (told.image >= 0)).sum() / pictures
    return (pictures + own - 1) / pictures
