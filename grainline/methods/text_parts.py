"""Sub-captions: read each by itself, laid out over all processes, and asked of segments."""

from typing import NamedTuple

import torch
from torch import Tensor

from grainline.data.chunks import Chunking
from grainline.distributed import most
from grainline.encoders.towers import Towers
from grainline.losses.text_conditioned import kept_for, pooled_scores
from grainline.losses.tiled.pair_mask import Keys
from grainline.nn.hashing import equal_texts
from grainline.nn.late import distinct_rows
from grainline.nn.pooling import ConditionedPool, Held
from grainline.types import Encoded, Texts, full

CHUNKING = Chunking(splitter="period_space")
"""How evaluation cuts a text in CAFT: Table 6 of the paper comes out with it."""


class Parts(NamedTuple):
    """Sub-captions as rows of their own, padded to as many as any process has."""

    vector: Tensor  # [P, D] as the text encoder leaves them, not of unit length
    item: Tensor  # [P] int64, an id of its own; -1 = padding
    image: Tensor  # [P] int64, as in Texts


def read_parts(towers: Towers, texts: Texts) -> tuple[Tensor, Tensor]:
    """Every part of every text, read by itself: [M, S, D] not of unit length, 0 without one; [M, S] bool.

    Parts that several texts share are read once.
    """
    mask = texts.mask.any(-1)
    first, back = distinct_rows(texts.ids.masked_fill(~texts.mask, -1).flatten(0, 1))
    ids, real = texts.ids.flatten(0, 1)[first], texts.mask.flatten(0, 1)[first]
    with equal_texts(ids, real):
        read = towers.text(ids, real)
    vector = full(towers.to_text(read.pooled))[back].unflatten(0, mask.shape)
    return vector.masked_fill(~mask[..., None], 0.0), mask


def apart(texts: Encoded, kept: Tensor) -> Parts:
    """The tokens of texts, of those rows that are kept, as rows.

    texts  [M] with a token for each part
    kept   [M] bool

    How many there are is read on the host, and agreed on by all processes.
    """
    real = texts.mask & kept[:, None]
    place = real.flatten().nonzero()[:, 0]
    row, slot = place // real.shape[1], place % real.shape[1]
    more = int(most(torch.tensor(len(place), device=place.device))) - len(place)
    nothing = place.new_full((more,), -1)
    # Below any number of parts that a text can have, ids of parts are as unique as those of texts.
    item = torch.cat([texts.item[row] * SLOTS + slot, nothing])
    vector = torch.cat(
        [texts.tokens.flatten(0, 1)[place], texts.tokens.new_zeros(more, texts.tokens.shape[2])]
    )
    return Parts(vector, item, torch.cat([texts.image[row], nothing]))


def attend(pool: ConditionedPool, images: Encoded, texts: Encoded) -> Tensor:
    """Where each part of text i looks in picture i: [N, S, L + 1], sums to 1; the last one is the empty slot.

    The mean over the heads, in full precision. A place without a part has zeros.
    """
    weight = full(pool(texts.tokens, images.tokens, images.mask).weight)
    return weight.masked_fill(~texts.mask[..., None], 0.0)


def part_heat(pool: ConditionedPool, images: Encoded, texts: Encoded) -> Tensor:
    """The mean of `attend` over the parts of text i, without the empty slot: [N, L], sums to 1 at most."""
    number = texts.mask.sum(1, keepdim=True).clamp(min=1)
    return attend(pool, images, texts)[..., :-1].sum(1) / number


def held(pool: ConditionedPool, images: Encoded) -> Encoded:
    """The same pictures with keys and values of the pool side by side as tokens: [N, L, 2 D]

    A space has one width for good, so the width of tokens says which of both they are. Gradients are kept for
    tokens that need one.
    """
    if _are_held(pool, images):
        return images
    with kept_for(images.tokens):
        key, value, _ = pool.keys(images.tokens)
    return images._replace(tokens=torch.cat([x.transpose(1, 2).flatten(2) for x in (key, value)], -1))


def pooled_cosines(pool: ConditionedPool, images: Encoded, texts: Encoded) -> Tensor:
    """Cosine of each part of a text with what it pools of a picture, the mean over its parts: [N, M]

    images  with segments as tokens, or as `held` gives them

    0 for a text without parts.
    """
    halves = held(pool, images).tokens.chunk(2, -1)
    key, value = (half.unflatten(-1, (pool.heads, -1)).transpose(1, 2) for half in halves)
    return pooled_scores(pool, Held(key, value, images.mask), texts.tokens, texts.mask) / texts.mask.shape[1]


def _are_held(pool: ConditionedPool, images: Encoded) -> bool:
    width, found = pool.to_out.in_features, images.tokens.shape[-1]
    assert found in (width, 2 * width), (found, width)
    return found == 2 * width


SLOTS = 2**16  # parts of a text, at most


def keys_of(item: Tensor, image: Tensor) -> Keys:
    """Keys of rows that are all compared with each other."""
    return Keys(item, image, torch.zeros_like(item), torch.arange(len(item), device=item.device))
