"""Two stages: candidates by vector, and their order by the method's own score.

For methods that score pair by pair (`pairwise`), where scoring every pair takes long. Each direction takes
the candidates of its own queries, and ranks them by their scores with its own queries. Three rules:
  1. candidates are the images, or texts, whose vectors are closest to that of the query; where vectors tie,
     a false candidate goes before a true one, and then the earlier row;
  2. a true candidate that is not among them has the number of all candidates as its rank: its place by
     vector was never compared with the scores of the others;
  3. where the shortlist holds all candidates, the ranks are those of `retrieval_ranks`, to the last bit.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from grainline.errors import UserError
from grainline.evaluation.ranks import Ranks, ranks
from grainline.evaluation.score import (
    MEMORY,
    Both,
    Cosine,
    Scorer,
    check,
    prepared,
    retrieval_ranks,
    tile_of,
    tile_side,
    tops,
)
from grainline.types import Encoded, rows, same_image

LISTED = "listed"  # in the outcomes of queries: whether a true candidate stands in the shortlist
EXACT = "exact"  # there too: ranks by the scores of all pairs
KEYED = 3  # times the memory that a key takes for each pair, of that of a product
PLACES = 2**30  # images and texts together, at most


class ListedRanks(NamedTuple):
    """Ranks of one direction."""

    ranks: Ranks  # [Q]
    listed: Tensor  # [Q] bool, a true candidate stands in the shortlist


def refuse_plain(method: Scorer, name: str) -> None:
    """Raise UserError where vectors are all that is compared: they need no second stage."""
    if not method.pairwise:
        raise UserError(
            f"shortlist is for methods that score pair by pair; {name} compares vectors, all of them: "
            "leave it out, or choose another --scoring where the method has one"
        )


@torch.no_grad()
def shortlist_ranks(
    method: Scorer, images: Encoded, texts: Encoded, shortlist: int, memory: int = MEMORY
) -> Both[ListedRanks]:
    """Rank of the best positive of every image and every text among the candidates of its shortlist.

    images  N rows, texts  M rows, as in `retrieval_ranks`; shortlist  candidates of a query

    for each query:
        near = the `shortlist` candidates whose vectors have the largest products with its own
        if some of near are true:
            best = the highest score of these
            rank = 1 + number of false ones in near that score >= best
        else:
            rank = number of candidates, of images or of texts

    Raises UserError as `retrieval_ranks` does, and for a method that does not score pair by pair.
    """
    refuse_plain(method, "this method")
    check(images, texts)
    images, _ = prepared(method, images, texts)
    row = max(x.tokens.element_size() * x.tokens[0].numel() + 8 * x.vector.shape[1] for x in (images, texts))
    block = max(1, min(tile_side(method, images, texts, memory) ** 2, memory // row))  # scored together
    whole = [shortlist >= len(side.image) for side in (texts, images)]
    dense = retrieval_ranks(method, images, texts, memory) if any(whole) else None
    near = None if all(whole) else candidates(images, texts, shortlist, memory)
    text = (texts.image >= 0).nonzero()[:, 0]

    def of_image(i: int, near: Tensor) -> Tensor:
        return method.score(rows(images, slice(i, i + 1)), rows(texts, near))[0].float()

    def of_text(i: int, near: Tensor) -> Tensor:
        return method.score(rows(images, near), rows(texts, slice(i, i + 1)))[:, 0].float()

    image = torch.arange(len(images.image), device=text.device)
    out = []
    for way, (score, queries, side, others) in enumerate(
        ((of_image, image, images, texts), (of_text, text, texts, images))
    ):
        if whole[way]:
            assert dense is not None
            out.append(ListedRanks(dense[way], torch.ones_like(dense[way].tied)))
            continue
        assert near is not None
        out.append(_ranked(score, near[way], queries, side, others, block))
    return Both(*out)


def candidates(images: Encoded, texts: Encoded, number: int, memory: int = MEMORY) -> tuple[Tensor, Tensor]:
    """The texts closest to every image, and the images closest to every text, by vector: [N, k], [M, k]

    Where products tie, false ones go before true ones, and then each in the order of their rows.
    """
    plain = Cosine()
    side = tile_side(plain, images, texts, memory // KEYED)
    a, b = prepared(plain, images, texts)
    tile = tile_of(plain, a, b)

    def key(r: slice, c: slice) -> Tensor:
        """Score, truth and place in one integer; in a row or column, r + c orders as the place does."""
        bits = (tile(r, c) + 0.0).view(torch.int32).long()  # + 0.0: there are two zeros
        order = torch.where(bits < 0, bits ^ 0x7FFFFFFF, bits)  # rises as the floats do
        false = ~same_image(rows(a, r), rows(b, c))
        place = [torch.arange(x.start, x.stop, device=bits.device) for x in (r, c)]
        return (2 * order + false) * PLACES - (place[0][:, None] + place[1])

    near = tops(key, side, (len(a.image), len(b.image)), number)
    return near.i2t.row, near.t2i.row


def _ranked(
    score: Callable[[int, Tensor], Tensor],
    near: Tensor,
    queries: Tensor,
    side: Encoded,
    others: Encoded,
    block: int,
) -> ListedRanks:
    """Ranks of some queries of a side among their candidates near [Q, k], rows of the others."""
    total = len(others.image)
    rank = torch.full_like(queries, total)
    tied, listed = torch.zeros_like(queries).bool(), torch.zeros_like(queries).bool()
    for place, query in enumerate(queries.tolist()):
        row = near[query].to(others.image.device)
        true = others.image[row] == side.image[query]
        if bool(true.any()):
            value = torch.cat([score(query, part) for part in row.split(block)])
            one = ranks(value[None], true[None])
            rank[place], tied[place], listed[place] = one.rank[0], one.tied[0], True
    return ListedRanks(Ranks(rank, tied), listed)
