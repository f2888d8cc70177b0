"""Losses and scores of pictures that are pooled by the very text they are compared with (FLAIR, CAFT).

A pair of a picture and a text has a summary of the picture of its own, which is why these are no products of
two vectors. `conditioned.py` computes their cosines in tiles; here is what is done once for each picture and
once for each text.
"""

from typing import Literal, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from grainline.losses.blocks import Blocks, Keys
from grainline.losses.conditioned import Dense, Gram, PooledCosine
from grainline.losses.job import exact
from grainline.losses.lists import Lists, drawn, every
from grainline.losses.pairs import Logistic, pair_loss
from grainline.losses.scores import Parts
from grainline.types import Clock, Mean, full

Negatives = Literal["sampled", "all"]
"""Of every other picture: one caption by lot, or each of its captions with an equal share of the weight."""

Segments = tuple[Tensor, Tensor | None]
"""[n, L, D] segments of pictures, with their mask [n, L] bool, True = real; None: all are."""


class Pool(Protocol):
    """What is asked of a `nn.condition.ConditionedPool`."""

    to_out: nn.Linear

    def queries(self, texts: Tensor) -> Tensor: ...

    def keys(self, segments: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor | None]: ...


def part_pairs(pictures: Keys, captions: Keys, negatives: Negatives, clock: Clock) -> Blocks | Lists:
    """Which captions each picture is compared with in `part_loss`.

    pictures  [n] mine; captions [P] everyone's: no item = padding, no image = a foil, a negative of all
    """
    return drawn(pictures, captions, clock) if negatives == "sampled" else every(pictures, captions)


def part_loss(
    pool: Pool, segments: Segments, texts: Tensor, pairs: Blocks | Lists, scale: Tensor, bias: Tensor
) -> Mean:
    """The sigmoid loss of parts of captions with what they pool of pictures; its mean over pictures.

    segments  of my pictures, texts [P, D] of everyone, not of unit length; scale and bias of one element

    for i of my pictures:
        for j of the captions of all:
            cosine = pool(texts[j], segments[i]) . texts[j], both at length 1
            logit = scale * cosine + bias
            j describes i:      total += log(1 + exp(-logit))
            j is a foil:        total += log(1 + exp(logit))
            else, K captions describe the same picture as j does, and
                "all":          total += log(1 + exp(logit)) / K
                "sampled":      total += log(1 + exp(logit)) if the lot fell on j
        number += 1

    Computed at least in float32, whatever autocast says.
    """
    with exact(texts):
        score, rows, way = seen(pool, *segments)
        cols = asked(pool, texts)
        shared = (*way, full(scale), full(bias))
        (found,) = pair_loss(score, Logistic(), rows, cols, pairs, shared=shared)
    return found


def seen(pool: Pool, segments: Tensor, mask: Tensor | None) -> tuple[PooledCosine, Parts, Parts]:
    """What pictures give to the cosines with all texts: the cheaper way, its rows and its parameters."""
    key, value, mask = pool.keys(full(segments), mask)
    shut = key.new_zeros(len(key), key.shape[2])
    if mask is not None:
        shut = shut.masked_fill(~mask, -torch.inf)
    # The empty slot is one more key and value of zeros, which is never shut.
    key, value, shut = F.pad(key, (0, 0, 0, 1)), F.pad(value, (0, 0, 0, 1)), F.pad(shut, (0, 1))
    out, bias = pool.to_out.weight, pool.to_out.bias
    size = bias @ bias
    _, heads, slots, _ = value.shape
    if heads * slots >= len(out):
        return Dense(), (key, value, shut), (out.T @ out, bias @ out, size)
    behind = torch.einsum("nhld,ohd->nhlo", value, out.unflatten(1, (heads, -1))).flatten(1, 2)  # [n, P, D]
    return Gram(), (key, value, behind @ behind.transpose(1, 2), behind @ bias, shut), (size,)


def asked(pool: Pool, texts: Tensor) -> Parts:
    """What texts give to the cosines with all pictures: queries, u and c"""
    texts = full(texts)
    unit = F.normalize(texts, dim=-1)
    query = pool.queries(texts)
    return query, (unit @ pool.to_out.weight).view_as(query), unit @ pool.to_out.bias
