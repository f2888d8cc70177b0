"""All images against all texts in tiles: ranks without the whole score matrix, and scores of some pairs.

Ranks are counted, not sorted. A first pass finds the score of the best positive of every row and column
(only tiles that hold a positive are computed), a second pass counts the negatives that reach it. Both
passes cut the same tiles, so a pair has the same bits in both and equality means equality. Scores of pairs
from the first pass are cached for the second, as far as memory allows.

Scores of dot-product methods are summed in float64 and rounded to float32: they do not depend on the tile
they fall into, so neither the memory limit nor the order of rows decides a tie, and equal vectors do tie.
"""

from collections.abc import Callable
from itertools import product
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from grainline.distributed import max_over_workers, part_of, sum_over_workers, workers
from grainline.errors import UserError
from grainline.evaluation.statistics import Ranks, refuse_nan
from grainline.methods.base import dot
from grainline.types import Encoded, rows, same_image, to

MEMORY = 256 * 2**20
SIDE = 1024  # larger tiles are slower: what is computed from one no longer fits the caches

Tile = Callable[[slice, slice], Tensor]


class Scorer(Protocol):
    """The part of a method that evaluation uses."""

    pairwise: bool  # False promises score(images, texts) == images.vector @ texts.vector.T
    blockwise: bool  # True promises that score holds no more of a pair than its score

    def precompute(self, images: Encoded) -> Encoded: ...

    def score(self, images: Encoded, texts: Encoded) -> Tensor: ...


class Cosine:
    """Scores of unit vectors, whatever the method itself would score."""

    pairwise = blockwise = False

    def precompute(self, images: Encoded) -> Encoded:
        return images

    def score(self, images: Encoded, texts: Encoded) -> Tensor:
        return dot(images, texts)


class Both(NamedTuple):
    """Ranks in both directions."""

    i2t: Ranks  # of every image
    t2i: Ranks  # of every text
    first: Tensor  # [texts] int64, the row of the image that each text finds first; of equals the first row


@torch.no_grad()
def retrieval_ranks(method: Scorer, images: Encoded, texts: Encoded, memory: int = MEMORY) -> Both:
    """Rank of the best positive of every image and every text that describes one, ties counted as wrong.

    Positives come from the `image` ids. Texts of no image (`image` = -1, foils) are candidates for every
    image and no query. `memory` bounds the bytes of a tile with all that is computed from it; for pairwise
    methods the temporaries inside `method.score` are estimated.

    Raises UserError for an image without a text, a text of an image that is not there, NaN scores, and a
    memory limit too small for one pair.
    """
    check(images, texts)
    room = memory // 4 if method.pairwise else 0  # a product is cheaper than keeping it
    n, m = len(images.image), len(texts.image)
    side = tile_side(method, images, texts, memory - room)
    if workers() > 1:  # some four tiles for each of them
        side = min(side, max(1, int((n * m / workers()) ** 0.5) // 2))
    images, texts = prepared(method, images, texts)
    tile = _once(tile_of(method, images, texts), room)
    positive = _positive(images, texts, side)
    tiles = part_of(list(product(_cuts(n, side), _cuts(m, side))))
    # Scores of the best positives; -inf for a text that describes no image.
    row, column = (torch.full((number,), -torch.inf, device=images.image.device) for number in (n, m))
    for r, c in tiles:
        mask = positive(r, c)
        if mask is not None:
            score = tile(r, c).masked_fill(~mask, -torch.inf)
            torch.maximum(row[r], score.amax(1), out=row[r])
            torch.maximum(column[c], score.amax(0), out=column[c])
    row, column = max_over_workers(row), max_over_workers(column)
    ahead = [
        Ranks(torch.zeros_like(best, dtype=torch.int64), torch.zeros_like(best, dtype=torch.bool))
        for best in (row, column)
    ]
    nan = torch.zeros((), dtype=torch.int64, device=row.device)
    first = torch.full_like(column, -torch.inf), torch.zeros_like(ahead[1].rank)  # scores, and their rows
    for r, c in tiles:
        score, mask = tile(r, c), positive(r, c)
        top, place = score.max(0)
        first[1][c] = torch.where(top > first[0][c], place + r.start, first[1][c])
        torch.maximum(first[0][c], top, out=first[0][c])
        if bool(score.sum().isnan()):  # a cheap sum first; inf - inf is NaN too and counts as none
            nan += score.isnan().sum()
        _add(rows(ahead[0], r), score, row[r][:, None], mask, 1)
        _add(rows(ahead[1], c), score, column[c][None], mask, 0)
    refuse_nan(int(sum_over_workers(nan)), n * m)
    i2t, t2i = (Ranks(sum_over_workers(one.rank) + 1, sum_over_workers(one.tied.int()) > 0) for one in ahead)
    query, best = texts.image >= 0, max_over_workers(first[0])
    place = -max_over_workers(-first[1].masked_fill(first[0] < best, n))
    return Both(i2t, Ranks(t2i.rank[query], t2i.tied[query]), place[query])


@torch.no_grad()
def all_scores(method: Scorer, images: Encoded, texts: Encoded, memory: int = MEMORY) -> Tensor:
    """The scores of all pairs, [N, M] float32: for few queries. `memory` as in `retrieval_ranks`."""
    side = tile_side(method, images, texts, memory)
    images, texts = prepared(method, images, texts)
    tile = tile_of(method, images, texts)
    rows_of, columns = _cuts(len(images.vector), side), _cuts(len(texts.vector), side)
    return torch.cat([torch.cat([tile(r, c) for c in columns], 1) for r in rows_of])


def pair_scores(method: Scorer, images: Encoded, texts: Encoded, row: Tensor) -> Tensor:
    """Score of every text with one image: [M]. row: [M] int64, the row of `images` of each text"""
    images, texts = prepared(method, images, texts)
    if not method.pairwise:
        a, b = images.vector, texts.vector
        blocks = [slice(i, i + SIDE) for i in range(0, len(row), SIDE)]
        return torch.cat([(a[row[x]].double() * b[x].double()).sum(1).float() for x in blocks])
    out = texts.vector.new_zeros(len(row), dtype=torch.float32)
    with torch.no_grad():
        for i in row.unique().tolist():
            text = (row == i).nonzero()[:, 0]
            out[text] = method.score(rows(images, slice(i, i + 1)), rows(texts, text))[0].float()
    return out


def tile_side(method: Scorer, images: Encoded, texts: Encoded, memory: int = MEMORY) -> int:
    """Side of the square tiles that stay within `memory` bytes."""
    width = images.vector.shape[1]
    patches, words = images.tokens.shape[1], texts.tokens.shape[1]
    # Per pair: the product in float64, the score in float32, a masked copy, masks. A pairwise score may hold
    # every patch against every word and a pooled vector, each twice; one in blocks holds of every word the
    # vector, itself at length 1, and two projections of it.
    pair, row = 24, 8 * width  # the float64 copy of one row
    if method.pairwise and method.blockwise:
        pair, row = pair + 8, row + 16 * words * width
    elif method.pairwise:
        pair += 8 * (patches * words + patches + words + width)
    side = int(((row**2 + pair * memory) ** 0.5 - row) / pair)
    if side < 1:
        raise UserError(f"a memory limit of {memory} bytes is too small: one pair needs {pair + 2 * row}")
    return min(side, SIDE)


def check(images: Encoded, texts: Encoded) -> None:
    """Every image has a text, every text an image; no padding, no image twice."""
    assert bool((images.item >= 0).all()), "drop padding rows first"
    assert bool((texts.item >= 0).all()), "drop padding rows first"
    assert len(images.image.unique()) == len(images.image), "an image stands in the gallery once"
    described = texts.image[texts.image >= 0]
    alone = int((~torch.isin(images.image, described)).sum())
    unmatched = int((~torch.isin(described, images.image)).sum())
    if alone or unmatched or len(images.image) == 0:
        raise UserError(
            f"{len(images.image)} images, {alone} of them without a text, and {unmatched} texts of images"
            " that are not among them; retrieval needs at least one image, and every image and text matched"
        )


def prepared(method: Scorer, images: Encoded, texts: Encoded) -> tuple[Encoded, Encoded]:
    """Both sides as tiles read them: images precomputed, or vectors on a device that has float64."""
    if method.pairwise:
        return method.precompute(images), texts
    has_double = images.vector.device.type in ("cpu", "cuda")
    return (images, texts) if has_double else (to(images, "cpu"), to(texts, "cpu"))


def tile_of(method: Scorer, images: Encoded, texts: Encoded) -> Tile:
    """The function that scores a tile: rows and columns to [n, m] float32."""
    if method.pairwise:
        return lambda r, c: method.score(rows(images, r), rows(texts, c)).float()
    a, b = images.vector, texts.vector
    return lambda r, c: (a[r].double() @ b[c].double().T).float()


def _once(tile: Tile, room: int) -> Tile:
    """The same tiles, cached from the first time to the second as far as room bytes allow."""
    cache: dict[tuple[int, int], Tensor] = {}

    def once(r: slice, c: slice) -> Tensor:
        place = r.start, c.start
        if place in cache:
            return cache.pop(place)
        score = tile(r, c)
        if sum(x.nbytes for x in cache.values()) + score.nbytes <= room:
            cache[place] = score
        return score

    return once


def _cuts(number: int, side: int) -> list[slice]:
    return [slice(i, min(i + side, number)) for i in range(0, number, side)]


def _positive(images: Encoded, texts: Encoded, side: int) -> Callable[[slice, slice], Tensor | None]:
    """The positives of a tile, or None where it holds none, which is most tiles."""
    ids_of = [
        [set(x.image[i : i + side].tolist()) for i in range(0, len(x.image), side)] for x in (images, texts)
    ]

    def positive(r: slice, c: slice) -> Tensor | None:
        if ids_of[0][r.start // side].isdisjoint(ids_of[1][c.start // side]):
            return None
        return same_image(rows(images, r), rows(texts, c))

    return positive


def _add(into: Ranks, score: Tensor, best: Tensor, positive: Tensor | None, dim: int) -> None:
    """Add a tile's negatives that reach the best positive, in place on views of the ranks."""
    reach, equal = score >= best, score == best
    if positive is not None:
        reach &= ~positive
        equal &= ~positive
    into.rank.add_(reach.count_nonzero(dim))
    into.tied.logical_or_(equal.count_nonzero(dim) > 0)
