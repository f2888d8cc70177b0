"""Losses and scores of images that are pooled by the very text they are compared with (FLAIR, CAFT).

A pair of an image and a text has a summary of the image of its own, which is why these are no products of
two vectors. `losses/tiled/conditioned_cosine.py` computes their cosines in tiles; here is what is done once
for each image and once for each text."""

from typing import Literal, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from grainline.losses.tiled.conditioned_cosine import BLOCKS, Dense, Gram, Outward, PooledCosine
from grainline.losses.tiled.pair_loss import SigmoidLoss, pair_loss
from grainline.losses.tiled.pair_mask import PairMatrix, RowIds
from grainline.losses.tiled.sampled_pairs import SampledPairs, all_negatives, sample_negatives
from grainline.losses.tiled.scores import Parts
from grainline.losses.tiled.walk import exact
from grainline.types import Clock, Mean, full

Negatives = Literal["sampled", "all"]
"""Of every other image: one caption by lot, or each of its captions with an equal share of the weight."""

Segments = tuple[Tensor, Tensor | None]
"""[n, L, D] segments of images, with their mask [n, L] bool, True = real; None: all are."""


Held = tuple[Tensor, Tensor, Tensor | None]
"""Keys and values [N, heads, L, d] and the mask [N, L] of images: a `nn.pooling.KeyValue`."""

FEW = 10_000
"""Pairs of scores that are not worth a QR decomposition."""

ROOM = 2**23
"""Numbers that scores make of images before a text comes, at a time: 32 MiB in float32."""


class Pool(Protocol):
    """What is asked of a `nn.pooling.ConditionedPool`."""

    to_out: nn.Linear

    def queries(self, texts: Tensor) -> Tensor: ...

    def keys(self, segments: Tensor, mask: Tensor | None = None) -> Held: ...


def part_pairs(
    image_ids: RowIds, captions: RowIds, negatives: Negatives, clock: Clock
) -> PairMatrix | SampledPairs:
    """Which captions each image is compared with in `part_loss`.

    images  [n] mine; captions [P] everyone's: no item = padding, no image = a foil, a negative of all
    """
    return (
        sample_negatives(image_ids, captions, clock)
        if negatives == "sampled"
        else all_negatives(image_ids, captions)
    )


def part_loss(
    pool: Pool,
    segments: Segments,
    texts: Tensor,
    pairs: PairMatrix | SampledPairs,
    scale: Tensor,
    bias: Tensor,
) -> Mean:
    """The sigmoid loss of parts of captions with what they pool of images; its mean over images.

    segments  of my images, texts [P, D] of everyone, not of unit length; scale and bias of one element

    for i of my images:
        for j of the captions of all:
            cosine = pool(texts[j], segments[i]) . texts[j], both at length 1
            logit = scale * cosine + bias
            j describes i:      total += log(1 + exp(-logit))
            j is a foil:        total += log(1 + exp(logit))
            else, K captions describe the same image as j does, and
                "all":          total += log(1 + exp(logit)) / K
                "sampled":      total += log(1 + exp(logit)) if the lot fell on j
        number += 1

    Computed at least in float32, whatever autocast says.
    """
    with exact(texts):
        score, rows, shared = image_side(pool, *segments)
        cols, shared = text_side(pool, texts), (*shared, full(scale), full(bias))
        (found,) = pair_loss(score, SigmoidLoss(), rows, cols, pairs, shared=shared)
    return found


def pooled_scores(pool: Pool, key_values: Held, texts: Tensor, told: Tensor | None = None) -> Tensor:
    """Every image against every text in parts: [N, M], at least in float32

    held   what `pool.keys` gives, of N images; it may be kept, on half precision too, for products in that
    texts  [M, S, D] the parts of texts, not of unit length; told [M, S] bool, True = real; None: all are

    for n, m:
        total = sum of cos(pool(texts[m, s], image n), texts[m, s]) over s with told[m, s]
        score[n, m] = total * S / (number of s with told[m, s])    (0 for a text without parts)

    A gradient passes to what is held where that has one, as in maps of what a score owes to segments; else
    none is kept, whatever the weights need.
    """
    number, parts, _ = texts.shape
    told = texts.new_ones(number, parts) if told is None else told
    with exact(texts), kept_for(key_values[0]):
        cols = text_side(pool, texts.flatten(0, 1))
        share = told.to(cols[2].dtype) * (parts / told.sum(1, keepdim=True).clamp(min=1))
        out = cols[2].new_empty(len(key_values[0]), number)
        most = _at_once(pool, key_values, number * parts)
        for start in range(0, len(out), most):
            here = slice(start, start + most)
            some = (
                key_values[0][here],
                key_values[1][here],
                None if key_values[2] is None else key_values[2][here],
            )
            _fill(out[here], _kept(pool, some, number * parts), cols, share)
    return out


def kept_for(tensor: Tensor) -> torch.set_grad_enabled:
    """A block in which gradients are kept only if they are kept around it and the tensor needs one."""
    return torch.set_grad_enabled(torch.is_grad_enabled() and tensor.requires_grad)


def _fill(out: Tensor, given: tuple[PooledCosine, Parts, Parts], cols: Parts, share: Tensor) -> None:
    """Scores of some images with all texts, in tiles, into out [n, M]."""
    score, rows, shared = given
    parts = share.shape[1]
    height, width = score.sides(rows, cols, len(cols[2]))
    width = max(parts, width // parts * parts)
    for top in range(0, len(out), height):
        here = tuple(x[top : top + height] for x in rows)
        for left in range(0, len(cols[2]), width):
            cosine = score.tile(here, tuple(x[left : left + width] for x in cols), shared)
            some = slice(left // parts, left // parts + cosine.shape[1] // parts)
            out[top : top + height, some] = (cosine.unflatten(1, (-1, parts)) * share[some]).sum(-1)


def image_side(pool: Pool, segments: Tensor, mask: Tensor | None) -> tuple[PooledCosine, Parts, Parts]:
    """What images give to the cosines with all texts: the cheaper way, its rows and its parameters."""
    key, value, mask = pool.keys(full(segments), mask)
    if value.shape[1] * value.shape[2] < len(pool.to_out.bias):
        return _gram(pool, (key, value, mask))
    out, bias = pool.to_out.weight, pool.to_out.bias
    return Dense(), (key, value, *_mask_bias(key, mask)), (out.T @ out, bias @ out, bias @ bias)


def text_side(pool: Pool, texts: Tensor) -> Parts:
    """What texts give to the cosines with all images: queries, u and c"""
    texts = full(texts)
    unit = F.normalize(texts, dim=-1)
    query = pool.queries(texts)
    return query, (unit @ pool.to_out.weight).view_as(query), unit @ pool.to_out.bias


def _gram(pool: Pool, key_values: Held) -> tuple[PooledCosine, Parts, Parts]:
    key, value, mask = full(key_values[0]), full(key_values[1]), key_values[2]
    out, bias = pool.to_out.weight, pool.to_out.bias
    by_head = out.unflatten(1, (value.shape[1], -1))
    behind = torch.einsum("nhld,ohd->nhlo", value, by_head).flatten(1, 2)  # [n, heads * L, D]
    rows = key, value, behind @ behind.transpose(1, 2), behind @ bias, *_mask_bias(key, mask)
    return Gram(), rows, (bias @ bias,)


def _by_gram(pool: Pool, key_values: Held, texts: int) -> bool:
    """Whether what Gram makes of an image pays for so many texts."""
    _, heads, slots, _ = key_values[0].shape
    return heads * slots < len(pool.to_out.bias) and texts > 2 * slots


def _at_once(pool: Pool, key_values: Held, texts: int) -> int:
    """Images whose part is made at a time: some MiB of products of Gram; the other ways make none."""
    if not _by_gram(pool, key_values, texts):
        return max(1, len(key_values[0]))
    points = key_values[0].shape[1] * key_values[0].shape[2]
    return ROOM // max(1, points * (points + len(pool.to_out.bias))) or 1


def _kept(pool: Pool, key_values: Held, texts: int) -> tuple[PooledCosine, Parts, Parts]:
    """As `seen`, for scores; what is made once for each image or call must pay for so many texts."""
    key, value, mask = key_values
    out, bias = pool.to_out.weight, pool.to_out.bias
    alone = bias.new_ones(()), bias.new_zeros(())
    if _by_gram(pool, key_values, texts):
        score, rows, shared = _gram(pool, key_values)
        return score, rows, (*shared, *alone)
    rows = key, value, *_mask_bias(key, mask)
    if len(key) * texts > FEW:
        turn, triangle = torch.linalg.qr(out)
        return Outward(BLOCKS), rows, (triangle.to(key.dtype), turn.T @ bias, *alone)
    return Outward(1), rows, (out.to(key.dtype), bias, *alone)


def _mask_bias(key: Tensor, mask: Tensor | None) -> Parts:
    """0 and, where masked, -inf: ([n, L],); nothing where no segment is."""
    if mask is None:
        return ()
    return (full(key.new_zeros(mask.shape)).masked_fill(~mask, -torch.inf),)
