"""Parts of texts, encoded one by one, and pooling of image tokens by them, for CAFT and FLAIR.

MaxSim reads the sentences of texts in the same way.
"""

from typing import NamedTuple

import torch
from pydantic import Field, model_validator
from torch import Tensor

from grainline.data.texts import Chunking
from grainline.distributed import largest_of, world_size
from grainline.encoders.towers import Towers, TowersConfig
from grainline.losses.text_conditioned import Negatives, grad_mode_for, part_loss, part_pairs, pooled_scores
from grainline.losses.tiled.kernel_lists import Counts, count, max_pairs
from grainline.losses.tiled.pair_mask import row_ids
from grainline.methods.base import Method
from grainline.nn.hashing import equal_texts
from grainline.nn.pooling import ConditionedPool, KeyValue
from grainline.nn.runtime import is_static
from grainline.types import Clock, Encoded, Mean, Texts, by_host, from_host, full, mirror, vectors_only

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
        if self.scale > self.max_scale:
            raise ValueError(f"scale {self.scale:g} is above max_scale {self.max_scale:g}")
        return self


class Parts(NamedTuple):
    """Parts of texts as rows, padded to the largest number of any process."""

    vector: Tensor  # [P, D] as the text encoder returns them, not of unit length
    item: Tensor  # [P] int64, unique ids; -1 = padding
    image: Tensor  # [P] int64, as in Texts
    max_pairs: int | None = None  # no image has more of those of all processes, where they are sampled

    @classmethod
    def of(cls, texts: Encoded, foils: bool) -> "Parts":
        """The tokens of texts. foils: also of texts that describe no image"""

        def layout(mask: Tensor, item: Tensor, image: Tensor) -> tuple[Tensor, ...]:
            keep = (item >= 0) & ((image >= 0) | foils)
            place = (mask & keep[:, None]).flatten().nonzero()[:, 0]
            row, slot = place // mask.shape[1], place % mask.shape[1]
            return place, item[row] * SLOTS + slot, image[row]

        place, item, image = from_host(layout, texts.mask, texts.item, texts.image)
        longest, *numbers = largest_of((len(place), *by_host(count, item, image)), place.device)
        padding = longest - len(place)
        no_id = place.new_full((padding,), -1)
        zeros = texts.tokens.new_zeros(padding, texts.tokens.shape[2])
        vector = torch.cat([texts.tokens.flatten(0, 1)[place], zeros])
        item, image = torch.cat([item, no_id]), torch.cat([image, no_id])
        return cls(vector, item, image, max_pairs(Counts(*numbers), world_size()))


def read_parts(towers: Towers, texts: Texts, max_parts: int | None = None) -> tuple[Tensor, Tensor]:
    """Every part of every text, encoded by itself: [M, S, D] not of unit length, 0 for padding; [M, S] bool.

    Parts that several texts share are encoded once. ValueError for a text of more than `max_parts` parts.
    """
    if max_parts and texts.ids.shape[1] > max_parts:
        if by_host(lambda mask: bool(mask[:, max_parts:].any()), texts.mask):
            raise ValueError(f"a text has more than {max_parts} parts; the method composes no more")
        ids, mask = mirror(lambda *both: tuple(x[:, :max_parts] for x in both), texts.ids, texts.mask)
        texts = texts._replace(ids=ids, mask=mask)
    mask = mirror(lambda mask: mask.any(-1), texts.mask)
    first, back = from_host(
        lambda ids, mask: distinct_rows(ids.masked_fill(~mask, -1).flatten(0, 1)), texts.ids, texts.mask
    )
    ids = texts.ids.flatten(0, 1)[first]
    real = mirror(lambda mask, first: mask.flatten(0, 1)[first], texts.mask, first)
    with equal_texts(ids, real):
        vector = full(towers.to_text(towers.text(ids, real).pooled))
    vector = vector[back].unflatten(0, mask.shape)
    return vector.masked_fill(~mask[..., None], 0.0), mask


def distinct_rows(x: Tensor) -> tuple[Tensor, Tensor]:
    """The first index of each distinct row of x [R, D]: [U]; and the distinct row that each row equals: [R].
    In a static graph every row counts as distinct.

    >>> first, back = distinct_rows(torch.tensor([[2.0], [1.0], [2.0]]))
    >>> sorted(first.tolist()), first[back].tolist()
    ([0, 1], [0, 1, 0])
    """
    if is_static():
        index = torch.arange(x.shape[0], device=x.device)
        return index, index
    back, count = _same_sums(x.detach())
    number = torch.arange(len(x), device=x.device)
    first = torch.full((count,), len(x), device=x.device).scatter_reduce(0, back, number, "amin")
    return first, back


def _same_sums(x: Tensor) -> tuple[Tensor, int]:
    """Rows of equal bits, by number, and how many numbers there are.

    One sum for each row is far faster than `torch.unique` of rows, which is used if two different rows ever
    have the same sum.
    """
    whole = {8: torch.int64, 4: torch.int32, 2: torch.int16}[x.element_size()]
    bits = x.contiguous().view(whole).long()
    g = torch.Generator("cpu").manual_seed(0)
    weight = torch.randint(-(2**62), 2**62, (x.shape[1],), generator=g, dtype=torch.int64, device="cpu")
    sums, back = torch.unique((bits * weight.to(x.device)).sum(1), return_inverse=True)
    example = torch.empty_like(sums).scatter_(0, back, torch.arange(len(x), device=x.device))
    if not torch.equal(bits[example][back], bits):
        distinct, back = torch.unique(bits, dim=0, return_inverse=True)
        return back, len(distinct)
    return back, len(sums)


class PartPool(ConditionedPool):
    """A `ConditionedPool` with the loss and scores of images that texts in parts pool."""

    def loss(
        self, images: Encoded, parts: Parts, negatives: Negatives, clock: Clock, scale: Tensor, bias: Tensor
    ) -> Mean:
        """The sigmoid loss of parts with what they pool of images; see `losses/text_conditioned.py`."""
        sides = row_ids(images.item, images.image), row_ids(parts.item, parts.image)
        pairs = part_pairs(*sides, negatives, clock, parts.max_pairs)
        return part_loss(self, (images.tokens, images.mask), parts.vector, pairs, scale, bias)

    def precompute(self, images: Encoded) -> Encoded:
        """The same images with a `KeyValue` in place of tokens, with gradients if the tokens have them."""
        if images.precomputed is not None:
            return images
        with grad_mode_for(images.tokens):
            key_values = self.keys(images.tokens, images.mask)
        return vectors_only(images)._replace(precomputed=key_values)

    def cosines(self, images: Encoded, texts: Encoded) -> Tensor:
        """The mean cosine of the parts of a text with what they pool of an image: [N, M]; 0 without parts"""
        key_values: KeyValue = self.precompute(images).precomputed
        return pooled_scores(self, key_values, texts.tokens, texts.mask) / texts.mask.shape[1]


class ConditionedMethod(Method):
    """A method whose texts pool the tokens of images by `self.pool`."""

    gathers = ("vector", "item", "image", "extra")  # texts travel as rows of parts, image tokens do not
    precomputed_class = KeyValue
    blockwise = True
    heat_is_distribution = True
    reads_words = False
    pool: PartPool
    cfg: ConditionedConfig

    def __init__(self, cfg: ConditionedConfig) -> None:
        super().__init__(cfg)
        self.parts = cfg.chunks
        self.chunking = cfg.chunking or Chunking(splitter="period_space")

    def precompute(self, images: Encoded) -> Encoded:
        """precomputed: keys and values of the pooling, a `KeyValue`"""
        return self.pool.precompute(images) if self.pairwise else images

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
