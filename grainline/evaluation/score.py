"""All images against all texts in tiles: ranks and best matches without ever holding the score matrix.

Ranks are counted, not sorted. A first pass finds the score of the best positive of every row and column
(only tiles that hold a positive are computed), a second pass counts the negatives that reach it. Both
passes cut the same tiles, so a pair has the same bits in both and equality means equality. What was scored
pair by pair in the first pass is kept for the second, as far as memory allows.

Scores of dot-product methods are summed in float64 and rounded to float32. That makes them independent of
the tile they fall into, so that neither the memory limit nor the order of rows decides a tie, and equal
vectors do tie.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from grainline.errors import UserError
from grainline.evaluation.ranks import Ranks, refuse_nan
from grainline.methods.base import dot
from grainline.types import Encoded, rows, same_image, to

MEMORY = 256 * 2**20
SIDE = 1024  # larger tiles are slower: what is computed from one no longer fits the caches

Tile = Callable[[slice, slice], Tensor]


class Scorer(Protocol):
    """What evaluation asks of a method."""

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

    i2t: Ranks  # [N] one per image
    t2i: Ranks  # [Q] one per text that describes an image, in the order of the texts


class Top(NamedTuple):
    """The best candidates of every query, best first; the order of exact ties is not defined."""

    row: Tensor  # [Q, k] int64, rows of the other side
    score: Tensor  # [Q, k] float32


class BothTops(NamedTuple):
    """The best candidates in both directions."""

    i2t: Top  # [N, k] texts of every image
    t2i: Top  # [M, k] images of every text


def retrieval_ranks(method: Scorer, images: Encoded, texts: Encoded, memory: int = MEMORY) -> Both:
    """Rank of the best positive of every image and every text, ties counted as wrong.

    Positives come from the `image` ids. Texts of no image (`image` = -1, foils) are candidates for every
    image and no query. `memory` bounds the bytes of a tile with all that is computed from it; for pairwise
    methods the temporaries inside `method.score` are estimated.

    Raises UserError for an image without a text, a text of an image that is not there, NaN scores, and a
    memory limit too small for one pair.
    """
    check(images, texts)
    room = memory // 4 if method.pairwise else 0  # a product is cheaper than keeping it
    side = tile_side(method, images, texts, memory - room)
    images, texts = prepared(method, images, texts)
    tile = _once(tile_of(method, images, texts), room)
    best = _best_positive(tile, side, images, texts)
    counted = _count(tile, side, images, texts, best)
    query = texts.image >= 0
    t2i = Ranks(counted.t2i.rank[query], counted.t2i.tied[query])
    return Both(counted.i2t, t2i)


@torch.no_grad()
def topk(method: Scorer, images: Encoded, texts: Encoded, k: int, memory: int = MEMORY) -> BothTops:
    """The k best texts of every image and the k best images of every text (fewer where there are fewer).

    images  N rows, texts  M rows; `memory` as in retrieval_ranks.
    """
    assert k >= 1, k
    side = tile_side(method, images, texts, memory)
    images, texts = prepared(method, images, texts)
    return tops(tile_of(method, images, texts), side, (len(images.image), len(texts.image)), k)


def tops(tile: Tile, side: int, shape: tuple[int, int], k: int) -> BothTops:
    """The k best of every row and column of what a function of tiles gives, in shape [N, M]."""
    of_rows: dict[int, Top] = {}
    of_columns: dict[int, Top] = {}
    for r, c in _tiles(*shape, side):
        score = tile(r, c)
        of_rows[r.start] = _merged(of_rows.get(r.start), score, c.start, k)
        of_columns[c.start] = _merged(of_columns.get(c.start), score.T, r.start, k)
    return BothTops(_stacked(of_rows), _stacked(of_columns))


def pair_scores(method: Scorer, images: Encoded, texts: Encoded, of: Tensor) -> Tensor:
    """Score of every text with one chosen image: [M].

    of  [M] int64, row of `images` that text i is compared with
    """
    images, texts = prepared(method, images, texts)
    if not method.pairwise:
        a, b = images.vector, texts.vector
        return torch.cat(
            [
                (a[of[i : i + SIDE]].double() * b[i : i + SIDE].double()).sum(1).float()
                for i in range(0, len(of), SIDE)
            ]
        )
    out = texts.vector.new_zeros(len(of), dtype=torch.float32)
    with torch.no_grad():
        for row in of.unique().tolist():
            mine = (of == row).nonzero()[:, 0]
            out[mine] = method.score(rows(images, slice(row, row + 1)), rows(texts, mine))[0].float()
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
    lost = int((~torch.isin(described, images.image)).sum())
    if alone or lost or len(images.image) == 0:
        raise UserError(
            f"{len(images.image)} images, {alone} of them without a text, and {lost} texts of images that "
            "are not among them; retrieval needs at least one image, and every image and text matched"
        )


def prepared(method: Scorer, images: Encoded, texts: Encoded) -> tuple[Encoded, Encoded]:
    """Both sides as tiles read them: images held, or vectors on a device that has float64."""
    if method.pairwise:
        return method.precompute(images), texts
    here = images.vector.device.type in ("cpu", "cuda")
    return (images, texts) if here else (to(images, "cpu"), to(texts, "cpu"))


def tile_of(method: Scorer, images: Encoded, texts: Encoded) -> Tile:
    """The function that scores a tile: rows and columns to [n, m] float32."""
    if method.pairwise:
        return lambda r, c: method.score(rows(images, r), rows(texts, c)).float()
    a, b = images.vector, texts.vector
    return lambda r, c: (a[r].double() @ b[c].double().T).float()


def _once(tile: Tile, room: int) -> Tile:
    """The same tiles, kept from the first time to the second as long as they take no more than room bytes."""
    kept: dict[tuple[int, int], Tensor] = {}

    def once(r: slice, c: slice) -> Tensor:
        place = r.start, c.start
        if place in kept:
            return kept.pop(place)
        score = tile(r, c)
        if sum(x.nbytes for x in kept.values()) + score.nbytes <= room:
            kept[place] = score
        return score

    return once


def _tiles(n: int, m: int, side: int) -> Iterator[tuple[slice, slice]]:
    for i in range(0, n, side):
        for j in range(0, m, side):
            yield slice(i, min(i + side, n)), slice(j, min(j + side, m))


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


class _Best(NamedTuple):
    """Score of the best positive."""

    row: Tensor  # [N]
    column: Tensor  # [M], -inf for a text that describes no image


@torch.no_grad()
def _best_positive(tile: Tile, side: int, images: Encoded, texts: Encoded) -> _Best:
    positive = _positive(images, texts, side)
    n, m = len(images.image), len(texts.image)
    nothing = torch.full((n + m,), -torch.inf, device=images.image.device)
    best = _Best(nothing[:n], nothing[n:])
    for r, c in _tiles(n, m, side):
        mask = positive(r, c)
        if mask is not None:
            score = tile(r, c).masked_fill(~mask, -torch.inf)
            torch.maximum(best.row[r], score.amax(1), out=best.row[r])
            torch.maximum(best.column[c], score.amax(0), out=best.column[c])
    return best


@torch.no_grad()
def _count(tile: Tile, side: int, images: Encoded, texts: Encoded, best: _Best) -> Both:
    positive = _positive(images, texts, side)
    n, m = len(images.image), len(texts.image)
    out = Both(
        *(Ranks(torch.ones_like(x, dtype=torch.int64), torch.zeros_like(x, dtype=torch.bool)) for x in best)
    )
    nan = 0
    for r, c in _tiles(n, m, side):
        score, mask = tile(r, c), positive(r, c)
        if bool(score.sum().isnan()):  # a cheap sum first; inf - inf is NaN too and counts as none
            nan += int(score.isnan().sum())
        _add(Ranks(out.i2t.rank[r], out.i2t.tied[r]), score, best.row[r][:, None], mask, 1)
        _add(Ranks(out.t2i.rank[c], out.t2i.tied[c]), score, best.column[c][None], mask, 0)
    refuse_nan(nan, n * m)
    return out


def _add(into: Ranks, score: Tensor, best: Tensor, positive: Tensor | None, dim: int) -> None:
    """Add a tile's negatives that reach the best positive, in place on views of the ranks."""
    reach, equal = score >= best, score == best
    if positive is not None:
        reach &= ~positive
        equal &= ~positive
    into.rank.add_(reach.count_nonzero(dim))
    into.tied.logical_or_(equal.count_nonzero(dim) > 0)


def _merged(so_far: Top | None, score: Tensor, offset: int, k: int) -> Top:
    """The k best of what was there and of a new tile."""
    new = score.topk(min(k, score.shape[1]), dim=1)
    row, value = new.indices + offset, new.values
    if so_far is not None:
        row, value = torch.cat([so_far.row, row], 1), torch.cat([so_far.score, value], 1)
    kept = value.topk(min(k, value.shape[1]), dim=1)
    return Top(row.gather(1, kept.indices), kept.values)


def _stacked(blocks: dict[int, Top]) -> Top:
    ordered = [blocks[start] for start in sorted(blocks)]
    return Top(torch.cat([b.row for b in ordered]), torch.cat([b.score for b in ordered]))
