"""Losses and scores of images that are pooled by the text they are compared with (FLAIR, CAFT).

Each pair has its own summary of the image. `losses/tiled/scores.py` computes the cosines in
tiles; here is what is computed once for each image and once for each text.
"""

from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from grainline.losses.tiled.pair_loss import SigmoidLoss, pair_loss
from grainline.losses.tiled.pair_mask import (
    PairMatrix,
    Pairs,
    RowIds,
    all_negatives,
    row_ids,
    sample_negatives,
)
from grainline.losses.tiled.scores import ConditionedCosine, Dot, Parts, exact, half_operands, on_gpu
from grainline.nn.pooling import ConditionedPool, KeyValue
from grainline.types import Clock, Encoded, Mean, full

Negatives = Literal["sampled", "all"]
"""Of every other image: one random caption, or each of its captions with an equal share of the weight."""

Segments = tuple[Tensor, Tensor | None]
"""[n, L, D] segments of images, with their mask [n, L] bool, True = real; None: all are."""


def part_pairs(image_ids: RowIds, captions: RowIds, negatives: Negatives, clock: Clock) -> Pairs:
    """The captions that each image is compared with in `part_loss`.

    image_ids [n] local; captions [P] of all processes: no item = padding, no image = a foil, a negative of
    all
    """
    if negatives == "sampled":
        return sample_negatives(image_ids, captions, clock)
    return all_negatives(image_ids, captions)


def part_loss(
    pool: ConditionedPool, segments: Segments, texts: Tensor, pairs: Pairs, scale: Tensor, bias: Tensor
) -> Mean:
    """The sigmoid loss of parts of captions with what they pool of images; its mean over images.

    segments of local images, texts [P, D] of all processes, not of unit length; scale and bias of one element

    for each local image i:
        for each caption j:
            cosine = pool(texts[j], segments[i]) . texts[j], both at length 1
            logit = scale * cosine + bias
            j describes i:      total += log(1 + exp(-logit))
            j is a foil:        total += log(1 + exp(logit))
            else, K captions describe the same image as j does, and
                "all":          total += log(1 + exp(logit)) / K
                "sampled":      total += log(1 + exp(logit)) if j is sampled for i
        number += 1

    Computed at least in float32, whatever autocast says; on a GPU, in training in half precision, operands of
    products are bfloat16.
    """
    with exact(texts):
        images, mixing = image_side(pool, pool.keys(full(segments[0]), segments[1]))
        score, shared = ConditionedCosine(half_operands(full(texts))), (*mixing, full(scale), full(bias))
        return pair_loss(score, SigmoidLoss(), images, text_side(pool, texts), pairs, shared=shared)[0]


def flair_means(
    pooled: Mean, images: Encoded, all_images: Tensor, parts: Any, scale: Tensor, bias: Tensor
) -> dict[str, Mean]:
    """Both losses of FLAIR, each divided as in the code of its authors.

    pooled      `part_loss` of local images
    images      local; all_images [N] are the items of those of all processes
    parts       texts, or parts of texts, of all processes: vector [P, D] of any length, item and image [P]
    """
    pairs = PairMatrix(row_ids(images.item, images.image), row_ids(parts.item, parts.image))
    summary = summary_loss(images.vector, parts.vector, pairs, scale, bias)
    dtype = pooled.total.dtype  # of the numbers of images, at least 1, and of captions of all processes
    number = (all_images >= 0).sum().clamp(min=1).to(dtype)
    count = ((parts.item >= 0) & (parts.image >= 0)).sum().to(dtype)
    return {  # B / (B + K - 1) and 1 / K of a mean over images
        "pooled": Mean(pooled.total * number / (number + count / number - 1).clamp(min=1), pooled.number),
        "summary": Mean(summary.total * number / count.clamp(min=1), summary.number),
    }


def summary_loss(images: Tensor, texts: Tensor, pairs: PairMatrix, scale: Tensor, bias: Tensor) -> Mean:
    """The sigmoid loss of summaries with the texts of all processes; its mean over images.

    images  [n, D] of unit length, texts [P, D] of any length; scale and bias of one element

    for each local image i:
        for each caption j:
            logit = scale * images[i] . texts[j] / |texts[j]| + bias
            j describes i:  total += log(1 + exp(-logit))
            else:           total += log(1 + exp(logit))
        number += 1
    """
    rows = torch.cat([scale * images, bias.expand(len(images), 1)], 1)
    texts = F.normalize(full(texts), dim=-1)
    cols = torch.cat([texts, texts.new_ones(len(texts), 1)], 1)
    return pair_loss(Dot(), SigmoidLoss(), (rows,), (cols,), pairs)[0]


def pooled_scores(
    pool: ConditionedPool, key_values: KeyValue, texts: Tensor, mask: Tensor | None = None
) -> Tensor:
    """Every image against every text in parts: [N, M], at least in float32

    key_values  `pool.keys` of N images; in half precision their products are in half precision
    texts       [M, S, D] the parts of texts, not of unit length; mask [M, S] bool, True = real; None: all are

    for n, m:
        total = sum of cos(pool(texts[m, s], image n), texts[m, s]) over s with mask[m, s]
        score[n, m] = total * S / (number of s with mask[m, s])    (0 for a text without parts)

    Gradients pass to the keys if those need one, as for maps of what a score owes to segments; else none are
    stored, whatever the weights need.
    """
    number, parts, _ = texts.shape
    with exact(texts), grad_mode_for(key_values.key):
        cols = text_side(pool, texts.flatten(0, 1))
        images, mixing = image_side(pool, key_values)
        alone = cols[2].new_ones(()), cols[2].new_zeros(())
        half = on_gpu(texts) and (key_values.key.itemsize < 4 or half_operands(cols[2]))
        score = ConditionedCosine(half and not torch.is_grad_enabled())
        out = cols[2].new_empty(len(images[0]), number)
        height, width = score.sides(images, cols, len(cols[2]))
        width = max(1, width // parts)  # texts with all their parts
        for top in range(0, len(out), height):
            part = tuple(x[top : top + height] for x in images)
            for left in range(0, number, width):
                some = tuple(x[left * parts : (left + width) * parts] for x in cols)
                cosine = score.tile(part, some, (*mixing, *alone)).unflatten(1, (-1, parts))
                if mask is not None:
                    real = mask[left : left + width]
                    cosine = cosine * real * (parts / real.sum(1, keepdim=True).clamp(min=1))
                out[top : top + height, left : left + width] = cosine.sum(-1)
        return out


def grad_mode_for(tensor: Tensor) -> torch.set_grad_enabled:
    """A block in which gradients are stored only if they are stored around it and the tensor needs one."""
    return torch.set_grad_enabled(torch.is_grad_enabled() and tensor.requires_grad)


def image_side(pool: ConditionedPool, key_values: KeyValue) -> tuple[Parts, Parts]:
    """The tensors of images for cosines with all texts, and S, w and |b_o|^2

    A mask becomes [n, L] of 0, and -inf where masked.
    """
    key, value, mask = key_values
    out, bias = pool.to_out.weight, pool.to_out.bias
    off = () if mask is None else (full(key.new_zeros(mask.shape)).masked_fill(~mask, -torch.inf),)
    return (key, value, *off), (out.T @ out, bias @ out, bias @ bias)


def text_side(pool: ConditionedPool, texts: Tensor) -> Parts:
    """The tensors of texts for cosines with all images: queries, u and c"""
    texts = full(texts)
    unit = F.normalize(texts, dim=-1)
    query = pool.queries(texts)
    return query, (unit @ pool.to_out.weight).view_as(query), unit @ pool.to_out.bias
