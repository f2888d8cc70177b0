"""Scores of many pairs by a `Selector`, in tiles of bounded memory, and what a text selects.

With gradients, tiles are computed again in backward (activation checkpointing).
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from grainline.nn.patch_selection.selector import (
    CLASS,
    PATCH,
    REST,
    SLOT,
    Decide,
    Selection,
    SelectionImages,
    SelectionTexts,
    Selector,
    by_length,
    paired_texts,
    selection_texts,
)
from grainline.types import Encoded, full, rows

TILE_SIZE = {"cpu": 2**22}
"""Numbers in a tile of pairs, by the type of the device, OTHER_TILE_SIZE elsewhere. 16 MiB in float32."""
OTHER_TILE_SIZE = 2**27
MAX_TEXTS = 64  # of a tile: more of them make no product faster, and differ more in length
DENSE_FROM = 0.5
"""Share of the pairs of a batch above which it is cheaper to score all of them with gradients."""

Counts = Callable[[Tensor], Tensor]
"""From scores [N, M] to those that may need a gradient, bool."""


def score(selector: Selector, images: Encoded, texts: Encoded) -> Tensor:
    """Scores of all images with all texts: [N, M]; images may be precomputed.

    Where the tokens of images need gradients, as for Grad-CAM, they get them; decisions are constants.
    """
    if images.precomputed is None and torch.is_grad_enabled() and images.tokens.requires_grad:
        return selector.tile(selector.image_side(images, selector.top), selection_texts(texts), selector.top)
    return scores(selector, selector.load_side(images), selection_texts(texts), selector.top)


def heat(selector: Selector, images: Encoded, texts: Encoded) -> Tensor:
    """The share of every patch in the score of its own text, to first order: [N, L], signed

    patch . d score / d patch, with decisions as constants
    """
    with torch.enable_grad():
        patches = full(images.tokens).detach().requires_grad_()
        image_side = selector.image_side(images._replace(tokens=patches), selector.top)
        score = selector.tile(image_side, paired_texts(texts), selector.top)
        slope = torch.autograd.grad(score.sum(), patches)[0]
    return (patches.detach() * slope).sum(-1)


@torch.no_grad()
def scores(
    selector: Selector, image_side: SelectionImages, text_side: SelectionTexts, decide: Decide
) -> Tensor:
    """Scores of all images with all texts: [N, M], without gradients"""
    return _in_tiles(selector, image_side, text_side, decide)


def _in_tiles(
    selector: Selector, image_side: SelectionImages, text_side: SelectionTexts, decide: Decide
) -> Tensor:
    """Scores of all images with all texts: [N, M]; texts of similar length share a tile."""
    n, m = len(image_side.image), text_side.query.shape[1]
    limit = _pairs(selector, image_side.patches, text_side.words.shape[2])
    wide = max(1, min(m, limit // min(n, max(1, int(limit**0.5))), MAX_TEXTS))
    high = max(1, limit // wide)
    again = torch.is_grad_enabled()
    tile: Any = partial(checkpoint, selector.tile, use_reentrant=False) if again else selector.tile
    places, parts = zip(*by_length(text_side, wide), strict=True)
    lines = []
    for i in range(0, n, high):
        some = rows(image_side, slice(i, i + high))
        lines.append(torch.cat([tile(some, part, decide) for part in parts], 1))
    return torch.cat(lines)[:, torch.cat(places).argsort()]


def pairs(
    selector: Selector,
    image_side: SelectionImages,
    text_side: SelectionTexts,
    places: tuple[Tensor, Tensor],
    decide: Decide,
) -> Tensor:
    """Scores of single pairs, images `places[0]` with texts `places[1]`: [P], with gradients"""

    def compute(row: Tensor, column: Tensor) -> Tensor:
        texts = SelectionTexts(*(x[0][column][:, None] for x in text_side))
        return selector.tile(rows(image_side, row), texts, decide)[:, 0]

    limit = _pairs(selector, image_side.patches, text_side.words.shape[2])
    return _in_parts(compute, places, limit, 0)


def dense(
    selector: Selector, image_side: SelectionImages, text_side: SelectionTexts, decide: Decide
) -> Tensor:
    """Scores of all images with all texts: [N, M], with gradients"""
    pairs = len(image_side.image) * text_side.query.shape[1]
    if pairs <= _pairs(selector, image_side.patches, text_side.words.shape[2]):
        return selector.tile(image_side, text_side, decide)
    return _in_tiles(selector, image_side, text_side, decide)


def graded(selector: Selector, decide: Decide) -> Callable[[Encoded, Encoded, Counts], Tensor]:
    """Scores of a batch, with gradients only for the pairs that a triplet loss may need.

    All pairs are scored in tiles without gradients first. Those that may have a gradient are scored again
    with one, and the loss reads their second scores: the two scores of a pair differ by rounding, which may
    change which negative is the hardest. If most pairs may have a gradient, all of them are scored again.
    """

    def score_batch(images: Encoded, texts: Encoded, counts: Counts) -> Tensor:
        image_side, text_side = selector.image_side(images, decide), selection_texts(texts)
        first = scores(selector, SelectionImages(*(x.detach() for x in image_side)), text_side, decide)
        count = counts(first)
        count[0, 0] |= ~count.any()  # with processes that train together every parameter needs a gradient
        row, column = count.nonzero(as_tuple=True)
        if len(row) > DENSE_FROM * count.numel():
            return dense(selector, image_side, text_side, decide)
        again = pairs(selector, image_side, text_side, (row, column), decide)
        return first.index_put((row, column), again)

    return score_batch


def keep_shares(
    selector: Selector, image_side: SelectionImages, text_side: SelectionTexts, decide: Decide
) -> Tensor:
    """The share of patches that each pair keeps: [N, M], with gradients"""

    def compute(query: Tensor, item: Tensor) -> Tensor:
        return selector.choose(image_side, query, item, decide)[1].mean(-1)

    size = TILE_SIZE.get(image_side.patches.device.type, OTHER_TILE_SIZE)
    step = max(1, size // max(1, 8 * image_side.base.numel()))
    return _in_parts(compute, (text_side.query, text_side.item), step, 1)


def _in_parts(compute: Callable[..., Tensor], tensors: tuple[Tensor, ...], size: int, dim: int) -> Tensor:
    """compute(*tensors), of parts of so many entries along a dimension, which also is that of the result."""
    parts = list(zip(*(x.split(size, dim) for x in tensors), strict=True))
    if len(parts) == 1:
        return compute(*parts[0])
    return torch.cat([checkpoint(compute, *part, use_reentrant=False) for part in parts], dim)


def _pairs(selector: Selector, like: Tensor, words: int) -> int:
    """Most pairs of a tile, by the numbers that a pair takes there."""
    patches, width = selector.number, selector.width
    per_slot = 2 * width + 3 * patches if selector.slots is not None else 0
    numbers = selector.slot_number * per_slot + 6 * patches + words * (patches + 2 * width)
    return max(1, TILE_SIZE.get(like.device.type, OTHER_TILE_SIZE) // numbers)


@torch.no_grad()
def select(selector: Selector, images: Encoded, texts: Encoded) -> Selection:
    """The patches that text i selects in image i, for drawing. images: as a method encodes them

    for each pair, where a real token has a weight above 0:
        token[m] = the real token p with the greatest cosine[p, m]; cosine[m] = that cosine
        shares[p] = share of each patch in token p; of a slot, the mean over the branches of their weights

    Every token is a mean of patches, or the class token: with unit vectors in place of patches the same steps
    give the shares.
    """
    text_side, image_side = paired_texts(texts), selector.image_side(images, selector.top)
    score, keep = selector.decisions(image_side, text_side, selector.top)
    tokens = selector.pair_tokens(image_side, score, keep)
    cosine, weight = (x[:, 0] for x in selector.token_cosines(tokens, text_side))
    real = weight > 0
    masked = cosine.masked_fill(~real[..., None], -torch.inf)
    token = masked.argmax(1)
    units = torch.eye(selector.number, dtype=image_side.patches.dtype, device=image_side.patches.device)
    unit_side = selector.image_side(images, selector.top, units.expand(len(image_side.image), -1, -1))
    unit_tokens = selector.pair_tokens(unit_side, score, keep)
    shares = torch.cat([x.expand(len(real), 1, -1, -1) for x, _ in unit_tokens], 2)
    total = shares.sum(-1, keepdim=True)
    kinds = [SLOT if selector.slots else PATCH, *([REST] if selector.choice.use_rest else []), CLASS]
    return Selection(
        None if keep is None else keep[:, 0] > 0,
        image_side.keep > 0 if selector.dense else None,
        selector.relevance(cosine, weight, text_side.mask[:, 0]),
        [kind for kind, (x, _) in zip(kinds, tokens, strict=True) for _ in range(x.shape[2])],
        (shares / total.clamp(min=torch.finfo(total.dtype).tiny))[:, 0],
        real,
        text_side.mask[:, 0],
        token,
        masked.gather(1, token[:, None])[:, 0],
    )
