"""Parts of texts, encoded one by one, and pooling of image tokens by them, for CAFT and FLAIR.

MaxSim reads the sentences of texts in the same way.
"""

from typing import NamedTuple

import torch
from pydantic import Field, model_validator
from torch import Tensor

from grainline.data.texts import Chunking
from grainline.distributed import largest
from grainline.encoders.towers import TowersConfig
from grainline.losses.text_conditioned import Negatives, grad_mode_for, part_loss, part_pairs, pooled_scores
from grainline.losses.tiled.pair_mask import row_ids
from grainline.methods.base import Method
from grainline.nn.pooling import ConditionedPool, KeyValue
from grainline.types import Clock, Encoded, Mean, full, vectors_only

SLOTS = 2**16  # more than the parts of any text


class ConditionedConfig(TowersConfig):
    """Encoders, text-conditioned pooling and its sigmoid loss."""

    chunks: int = Field(gt=0)  # parts that a caption is read in
    # how a text falls into several in evaluation (training has random chunks); None: as in table 6 of CAFT
    chunking: Chunking | None = None
    heads: int = Field(8, gt=0)  # of the pooling; CAFT's paper does not say
    negatives: Negatives = "sampled"  # parts of other images: one of each image, or the mean over all
    scale: float = Field(1 / 0.07, ge=1)  # of the losses, at the start
    max_scale: float = Field(100.0, gt=1)
    bias: float = -10.0  # of the losses, at the start

    learns_tokens = masks_tokens = True

    @model_validator(mode="after")
    def _fits_pooling(self) -> "ConditionedConfig":
        if self.width is not None and self.width % self.heads:
            raise ValueError(f"width {self.width} is not a multiple of {self.heads} heads of the pooling")
        if self.chunking is not None and self.chunking.whole:
            raise ValueError("chunking.whole is for a method that reads a text as a whole as well, mosaic")
        if self.scale > self.max_scale:
            raise ValueError(f"scale {self.scale:g} is above max_scale {self.max_scale:g}")
        return self


class Parts(NamedTuple):
    """Parts of texts as rows, padded to the largest number of any process."""

    vector: Tensor  # [P, D] as the text encoder returns them, not of unit length
    item: Tensor  # [P] int64, unique ids; -1 = padding
    image: Tensor  # [P] int64, as in Texts

    @classmethod
    def of(cls, texts: Encoded, foils: bool) -> "Parts":
        """The tokens of texts. foils: also of texts that describe no image"""
        keep = (texts.item >= 0) & ((texts.image >= 0) | foils)
        place = (texts.mask & keep[:, None]).flatten().nonzero()[:, 0]
        row, slot = place // texts.mask.shape[1], place % texts.mask.shape[1]
        item, image = texts.item[row] * SLOTS + slot, texts.image[row]
        padding = largest(len(place), place.device) - len(place)
        no_id = place.new_full((padding,), -1)
        zeros = texts.tokens.new_zeros(padding, texts.tokens.shape[2])
        vector = torch.cat([texts.tokens.flatten(0, 1)[place], zeros])
        item, image = torch.cat([item, no_id]), torch.cat([image, no_id])
        return cls(vector, item, image)


class ConditionedMethod(Method):
    """A method whose texts pool the tokens of images by `self.pool`."""

    gathers = ("vector", "item", "image", "extra")  # texts travel as rows of parts, image tokens do not
    precomputed_class = KeyValue
    blockwise = True
    heat_is_distribution = True
    reads_words = False
    pool: ConditionedPool
    cfg: ConditionedConfig

    def __init__(self, cfg: ConditionedConfig) -> None:
        super().__init__(cfg)
        self.parts = cfg.chunks
        self.chunking = cfg.chunking or Chunking(splitter="period_space")

    def precompute(self, images: Encoded) -> Encoded:
        """precomputed: a `KeyValue` of the pooling, with gradients if the tokens have them"""
        if images.precomputed is not None or not self.pairwise:
            return images
        with grad_mode_for(images.tokens):
            key_values = self.pool.keys(images.tokens, images.mask)
        return vectors_only(images)._replace(precomputed=key_values)

    def part_cosines(self, images: Encoded, texts: Encoded) -> Tensor:
        """The mean cosine of the parts of a text with what they pool of an image: [N, M]; 0 without parts"""
        key_values: KeyValue = self.precompute(images).precomputed
        return pooled_scores(self.pool, key_values, texts.tokens, texts.mask) / texts.mask.shape[1]

    def part_loss(self, images: Encoded, parts: Parts, clock: Clock, scale: Tensor, bias: Tensor) -> Mean:
        """The sigmoid loss of parts with what they pool of images; see `losses/text_conditioned.py`."""
        sides = row_ids(images.item, images.image), row_ids(parts.item, parts.image)
        pairs = part_pairs(*sides, self.cfg.negatives, clock)
        return part_loss(self.pool, (images.tokens, images.mask), parts.vector, pairs, scale, bias)

    def attention(self, images: Encoded, texts: Encoded) -> Tensor:
        """Attention of each part of text i over the tokens of image i: [N, S, L + 1], the empty slot last.

        The mean over the heads, in full precision; the weights of padding are 0.
        """
        weight = full(self.pool(texts.tokens, images.tokens, images.mask).weight)
        return weight.masked_fill(~texts.mask[..., None], 0.0)

    def heat(self, images: Encoded, texts: Encoded) -> Tensor:
        """The mean of `attention` over parts of text i, without the empty slot: [N, L], sums to 1 at most."""
        number = texts.mask.sum(1, keepdim=True).clamp(min=1)
        return self.attention(images, texts)[..., :-1].sum(1) / number
