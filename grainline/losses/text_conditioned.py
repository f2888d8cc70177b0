"""Losses and scores of images that are pooled by the text they are compared with (FLAIR, CAFT).

Each pair has its own summary of the image. `losses/tiled/conditioned_cosine.py` computes the cosines in
tiles; here is what is computed once for each image and once for each text.
"""

from typing import Literal, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from grainline.losses.tiled.chunked_cosine import ChunkedDense
from grainline.losses.tiled.conditioned_cosine import BLOCKS, Dense, Gram, Outward
from grainline.losses.tiled.kernel_cosine import KernelDense, fits
from grainline.losses.tiled.kernel_lists import KernelLists, fits_lists, lists_of
from grainline.losses.tiled.operands import Operands, exact, on_gpu, operands
from grainline.losses.tiled.pair_loss import SigmoidLoss, pair_loss
from grainline.losses.tiled.pair_mask import (
    PairMatrix,
    Pairs,
    RowIds,
    SampledMask,
    SampledPairs,
    all_negatives,
    row_ids,
    sample_negatives,
    without_waits,
)
from grainline.losses.tiled.scores import Dot, Parts, Score
from grainline.nn.pooling import ConditionedPool, KeyValue
from grainline.types import Clock, Encoded, Mean, full, rows

Negatives = Literal["sampled", "all"]
"""Of every other image: one random caption, or each of its captions with an equal share of the weight."""

Segments = tuple[Tensor, Tensor | None]
"""[n, L, D] segments of images, with their mask [n, L] bool, True = real; None: all are."""

FEW = 10_000  # pairs of scores that are not worth a QR decomposition
ROOM = 2**23  # numbers that scores compute of images before a text comes, at a time: 32 MiB in float32


class TextRows(Protocol):
    """Texts, or parts of texts, as rows of all processes."""

    @property
    def vector(self) -> Tensor: ...  # [P, D] of any length

    @property
    def item(self) -> Tensor: ...  # [P] int64, -1 = padding

    @property
    def image(self) -> Tensor: ...  # [P] int64, -1 = a foil


def part_pairs(
    image_ids: RowIds, captions: RowIds, negatives: Negatives, clock: Clock, max_pairs: int | None = None
) -> Pairs:
    """The captions that each image is compared with in `part_loss`.

    image_ids [n] local; captions [P] of all processes: no item = padding, no image = a foil, a negative of
    all
    max_pairs  no image has more sampled captions (`kernel_lists.max_pairs`), if the host knows such a number:
               on a GPU a small one makes sampled negatives faster
    """
    if on_gpu(captions.item):
        pairs = without_waits(image_ids, captions, negatives, clock)
        return pairs._replace(max_pairs=max_pairs) if isinstance(pairs, SampledMask) else pairs
    if negatives == "sampled":
        return sample_negatives(image_ids, captions, clock)
    return all_negatives(image_ids, captions)


def part_loss(
    pool: ConditionedPool,
    segments: Segments,
    texts: Tensor,
    pairs: Pairs,
    scale: Tensor,
    bias: Tensor,
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
    products are float16.
    """
    with exact(texts):
        score, of_images, shared = image_side(pool, *segments)
        cols, shared = text_side(pool, texts), (*shared, full(scale), full(bias))
        if on_gpu(texts) and not isinstance(pairs, SampledPairs):
            by = operands(full(texts))
            if isinstance(pairs, SampledMask) and fits_lists(score, pairs, by, of_images[0]):
                pairs, score = lists_of(pairs), KernelLists(by)
                of_images = (*of_images[:2], pairs.places, *of_images[2:])
            else:
                score = (KernelDense if fits(by, of_images[0]) else ChunkedDense)(by)
        return pair_loss(score, SigmoidLoss(), of_images, cols, pairs, shared=shared)[0]


def flair_means(
    pooled: Mean, images: Encoded, all_images: Tensor, parts: TextRows, scale: Tensor, bias: Tensor
) -> dict[str, Mean]:
    """Both losses of FLAIR, each divided as in the code of its authors.

    pooled      `part_loss` of local images
    images      local; all_images [N] are the items of those of all processes
    """
    sides = row_ids(images.item, images.image), row_ids(parts.item, parts.image)
    pairs = PairMatrix(*sides, look=not on_gpu(parts.vector))
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
    with exact(texts), grad_mode_for(key_values.key):
        return _scores(pool, key_values, texts, mask)


def _scores(pool: ConditionedPool, key_values: KeyValue, texts: Tensor, mask: Tensor | None) -> Tensor:
    number, parts, _ = texts.shape
    cols = text_side(pool, texts.flatten(0, 1))
    share = None
    if mask is not None:
        share = mask.to(cols[2].dtype) * (parts / mask.sum(1, keepdim=True).clamp(min=1))
    out = cols[2].new_empty(len(key_values.key), number)
    step = len(out) or 1
    if _by_gram(pool, key_values, number * parts):  # its products take some MiB of each image
        points = key_values.key.shape[1] * key_values.key.shape[2]
        step = ROOM // max(1, points * (points + len(pool.to_out.bias))) or 1
    for start in range(0, len(out), step):
        here = slice(start, start + step)
        _fill(out[here], _scoring_rows(pool, rows(key_values, here), number * parts), cols, (parts, share))
    return out


def grad_mode_for(tensor: Tensor) -> torch.set_grad_enabled:
    """A block in which gradients are stored only if they are stored around it and the tensor needs one."""
    return torch.set_grad_enabled(torch.is_grad_enabled() and tensor.requires_grad)


def _fill(
    out: Tensor, given: tuple[Score, Parts, Parts], cols: Parts, of_parts: tuple[int, Tensor | None]
) -> None:
    """Scores of some images with all texts, in tiles, into out [n, M].

    of_parts  how many parts a text has, and the share of each [M, S]; None: 1
    """
    (score, of_images, shared), (parts, share) = given, of_parts
    height, width = score.sides(of_images, cols, len(cols[2]))
    width = max(parts, width // parts * parts)
    for top in range(0, len(out), height):
        here = tuple(x[top : top + height] for x in of_images)
        for left in range(0, len(cols[2]), width):
            cosine = score.tile(here, tuple(x[left : left + width] for x in cols), shared)
            some = slice(left // parts, left // parts + cosine.shape[1] // parts)
            cosine = cosine.unflatten(1, (-1, parts))
            out[top : top + height, some] = (cosine if share is None else cosine * share[some]).sum(-1)


def image_side(pool: ConditionedPool, segments: Tensor, mask: Tensor | None) -> tuple[Score, Parts, Parts]:
    """The cheaper way to compute cosines, its tensors for images, and its parameters; on a GPU `Dense`."""
    key_values, out, bias = pool.keys(full(segments), mask), pool.to_out.weight, pool.to_out.bias
    if not on_gpu(segments) and key_values.value.shape[1] * key_values.value.shape[2] < len(bias):
        return _gram(pool, key_values)
    return Dense(), _rows(key_values), (out.T @ out, bias @ out, bias @ bias)


def text_side(pool: ConditionedPool, texts: Tensor) -> Parts:
    """The tensors of texts for cosines with all images: queries, u and c"""
    texts = full(texts)
    unit = F.normalize(texts, dim=-1)
    query = pool.queries(texts)
    return query, (unit @ pool.to_out.weight).view_as(query), unit @ pool.to_out.bias


def _gram(pool: ConditionedPool, key_values: KeyValue) -> tuple[Score, Parts, Parts]:
    key, value, mask = full(key_values.key), full(key_values.value), key_values.mask
    out, bias = pool.to_out.weight, pool.to_out.bias
    by_head = out.unflatten(1, (value.shape[1], -1))
    behind = torch.einsum("nhld,ohd->nhlo", value, by_head).flatten(1, 2)  # [n, heads * L, D]
    own = behind @ behind.transpose(1, 2), behind @ bias
    return Gram(), _rows(KeyValue(key, value, mask), *own), (bias @ bias,)


def _by_gram(pool: ConditionedPool, key_values: KeyValue, texts: int) -> bool:
    """Whether Gram, computed once for each image, pays for so many texts; there is none on a GPU."""
    _, heads, slots, _ = key_values.key.shape
    fits_width = heads * slots < len(pool.to_out.bias)
    return fits_width and texts > 2 * slots and not on_gpu(key_values.key)


def _scoring_rows(pool: ConditionedPool, key_values: KeyValue, texts: int) -> tuple[Score, Parts, Parts]:
    """As `image_side`, for scores; tensors of each image or call must pay for so many texts."""
    out, bias = pool.to_out.weight, pool.to_out.bias
    alone, dtype = (bias.new_ones(()), bias.new_zeros(())), key_values.key.dtype
    if _by_gram(pool, key_values, texts):
        score, of_images, shared = _gram(pool, key_values)
        return score, of_images, (*shared, *alone)
    if on_gpu(out) and not torch.is_grad_enabled():  # only losses have gradients of their own there
        by = Operands(dtype) if dtype.itemsize < 4 else operands(out)
        score = (KernelDense if fits(by, key_values.key) else ChunkedDense)(by)
        return score, _rows(key_values), (out.T @ out, bias @ out, bias @ bias, *alone)
    blocks, matrix, shift = 1, out, bias
    if len(key_values.key) * texts > FEW:
        turn, matrix = torch.linalg.qr(out)
        blocks, shift = BLOCKS, turn.T @ bias
    return Outward(blocks), _rows(key_values), (matrix.to(dtype), shift, *alone)


def _rows(key_values: KeyValue, *own: Tensor) -> Parts:
    """Keys, values, the tensors of one way, and with a mask [n, L] of 0, and -inf where masked."""
    key, value, mask = key_values
    if mask is None:
        return key, value, *own
    return key, value, *own, full(key.new_zeros(mask.shape)).masked_fill(~mask, -torch.inf)
