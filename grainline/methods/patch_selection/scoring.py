"""Many pairs of pictures and texts whose patches the text chooses, in tiles of bounded memory.

A tile is as large as its numbers allow. Where gradients are asked for, tiles are computed again in backward.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from grainline.methods.patch_selection.fast_cosines import Turned, pays
from grainline.methods.patch_selection.selector import Selector
from grainline.methods.patch_selection.types import BEHIND, Decide, Seen, Told, beside, by_length, told_of
from grainline.types import Encoded, full, rows

ROOM = {"cpu": 2**22}
"""Numbers that a tile of pairs holds, by the type of the device; OTHER_ROOM elsewhere. 16 MiB in float32."""
OTHER_ROOM = 2**27
WIDE = 64
"""Texts that a tile has at most: more of them make no product faster, and are less alike in length."""


def score(selector: Selector, images: Encoded, texts: Encoded) -> Tensor:
    """Every picture with every text: [N, M]; pictures may be held already.

    Where the tokens of pictures ask for gradients, as for a map, they get them, decisions held fixed.
    """
    if torch.is_grad_enabled() and images.tokens.requires_grad:
        return selector.tile(selector.seen(images, selector.top), told_of(texts), selector.top)
    return scores(selector, selector.unpacked(images), told_of(texts), selector.top)


def heat(selector: Selector, images: Encoded, texts: Encoded) -> Tensor:
    """What every patch adds to the score of its own text, to first order: [N, L + 2], signed

    patch . d score / d patch, decisions held fixed; 0 for the tokens behind the patches.
    """
    with torch.enable_grad():
        patches = full(images.tokens[:, :-BEHIND]).detach().requires_grad_()
        tokens = torch.cat([patches, full(images.tokens[:, -BEHIND:])], 1)
        seen = selector.seen(images._replace(tokens=tokens), selector.top)
        found = selector.tile(seen, beside(texts), selector.top)
        slope = torch.autograd.grad(found.sum(), patches)[0]
    return nn.functional.pad((patches.detach() * slope).sum(-1), (0, BEHIND))


@torch.no_grad()
def scores(selector: Selector, seen: Seen, told: Told, decide: Decide) -> Tensor:
    """Every picture with every text: [N, M], without gradients"""
    n, m = len(seen.image), told.query.shape[1]
    turns = selector.sparse and pays(seen, told)
    most = _pairs(selector, seen.patches, told.words.shape[2], turns)
    wide = min(m, max(1, most if turns else most // min(n, max(1, int(most**0.5)))), WIDE)
    high = max(1, most // (wide + _as_pairs(selector, told.words.shape[2], turns)))
    out = seen.patches.new_zeros(n, m)
    parts = list(by_length(told, wide))
    for i in range(0, n, high):
        some = rows(seen, slice(i, i + high))
        turned = Turned.of(some) if turns else None
        for place, part in parts:
            out[i : i + high, place] = selector.tile(some, part, decide, turned)
    return out


def pairs(selector: Selector, seen: Seen, told: Told, of: tuple[Tensor, Tensor], decide: Decide) -> Tensor:
    """Scores of single pairs, pictures `of[0]` with texts `of[1]`: [P], with gradients"""

    def compute(row: Tensor, column: Tensor, *everything: Tensor) -> Tensor:
        a, b = Seen(*everything[: len(seen)]), Told(*everything[len(seen) :])
        each = Told(*(x[0][column][:, None] for x in b))
        return selector.tile(rows(a, row), each, decide)[:, 0]

    most = _pairs(selector, seen.patches, told.words.shape[2])
    parts = [x.split(most) for x in of]
    again = len(parts[0]) > 1
    found: list[Any] = [
        checkpoint(compute, i, j, *seen, *told, use_reentrant=False) if again else compute(i, j, *seen, *told)
        for i, j in zip(*parts, strict=True)
    ]
    return torch.cat(found) if found else seen.patches.new_zeros(0)


def dense(selector: Selector, seen: Seen, told: Told, decide: Decide) -> Tensor:
    """Scores of every picture with every text: [N, M], with gradients"""

    def compute(*everything: Tensor) -> Tensor:
        return selector.tile(Seen(*everything[: len(seen)]), Told(*everything[len(seen) :]), decide)

    n, m = len(seen.image), told.query.shape[1]
    most = _pairs(selector, seen.patches, told.words.shape[2])
    if n * m <= most:
        return compute(*seen, *told)
    wide = min(m, max(1, most // min(n, max(1, int(most**0.5)))))
    high = max(1, most // wide)
    lines = []
    for i in range(0, n, high):
        some = rows(seen, slice(i, i + high))
        parts = [Told(*(x[:, j : j + wide] for x in told)) for j in range(0, m, wide)]
        found: list[Any] = [checkpoint(compute, *some, *part, use_reentrant=False) for part in parts]
        lines.append(torch.cat(found, 1))
    return torch.cat(lines)


def staying_shares(selector: Selector, seen: Seen, told: Told, decide: Decide) -> Tensor:
    """The mean of the decisions of each pair over all patches: [N, M], with gradients"""

    def compute(query: Tensor, item: Tensor, *everything: Tensor) -> Tensor:
        return selector.choose(Seen(*everything), query, item, decide)[1].mean(-1)

    step = max(1, ROOM.get(seen.patches.device.type, OTHER_ROOM) // max(1, 8 * seen.base.numel()))
    query, item = told.query.split(step, 1), told.item.split(step, 1)
    if len(query) == 1:
        return compute(told.query, told.item, *seen)
    found: list[Any] = [
        checkpoint(compute, q, i, *seen, use_reentrant=False) for q, i in zip(query, item, strict=True)
    ]
    return torch.cat(found, 1)


def _pairs(selector: Selector, like: Tensor, words: int, turned: bool = False) -> int:
    """How many pairs a tile may have."""
    return max(1, ROOM.get(like.device.type, OTHER_ROOM) // _numbers(selector, words, turned))


def _numbers(selector: Selector, words: int, turned: bool) -> int:
    """How many numbers a pair takes in a tile, about."""
    slots, patches, width = selector.slot_number, selector.number, selector.width
    if turned:
        return 2 * slots * patches + 8 * patches + words * (2 * patches + 4 * slots) + 2 * width
    per_slot = 2 * width + 3 * patches if selector.slots is not None else 0
    return slots * per_slot + 6 * patches + words * (patches + 2 * width)


def _as_pairs(selector: Selector, words: int, turned: bool) -> int:
    """As how many pairs a picture counts that is turned, for what it holds itself."""
    own = selector.number * (selector.width + selector.number + 3 * selector.slot_number)
    return own // _numbers(selector, words, turned) if turned else 0
