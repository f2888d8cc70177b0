"""What pairs of images and texts are made of where texts choose patches: for `selector.py`, `scoring.py`."""

from collections.abc import Callable, Iterator
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from grainline.nn.hashing import logistic
from grainline.nn.pooling import unit
from grainline.nn.selection import Matching, gumbel_st
from grainline.types import Clock, Encoded, full

Branches = Literal["both", "sparse", "dense", "joint"]
"""What chooses patches: the text and the description apart, one alone, or both in one score (equation 3)."""

BEHIND = 2  # tokens behind the patches: the class token, and the description; masked where there is none


class Choice(NamedTuple):
    """How patches are chosen, and what becomes of them."""

    keep: float  # share of the patches that stays
    aggregate: float | None  # share of those that is left by aggregation; None: they stay as they are
    beta: float = 0.5  # weight of each attention score; 1 - 2 beta: of the predictor; from 0.5 on without it
    branches: Branches = "sparse"
    matching: Matching = "mean"
    best: int = 5  # finds that a network of the matching reads
    leaky: bool = False
    rest: bool = True  # a token of all patches that do not stay
    stretch: bool = True  # attention scores are cosines at range 0..1 ("Norm" of SEPS); False: raw cosines


class Seen(NamedTuple):
    """What is known of pictures before a text comes."""

    patches: Tensor  # [n, L, D]
    length: Tensor  # [n, L] of patches, above 0
    logits: Tensor  # [n, C, L] what each patch gives to each slot; C = 0 without aggregation
    base: Tensor  # [n, L] scores of patches but for the part of the text
    kept: Tensor  # [n, L] decisions by the description; 0 without that branch
    merged: Tensor  # [n, C, D] what it makes of the patches; C = 0 without that branch, or aggregation
    spare: Tensor  # [n, D] the rest that it leaves
    spared: Tensor  # [n] bool, whether there is any
    cls: Tensor  # [n, D]
    classed: Tensor  # [n] bool, whether there is a class token
    image: Tensor  # [n] ids


class Told(NamedTuple):
    """Texts as pairs read them. The first dimension is 1, or the same as that of the pictures beside them."""

    query: Tensor  # [1, t, D] unit length
    words: Tensor  # [1, t, M, D] unit length
    mask: Tensor  # [1, t, M] bool
    item: Tensor  # [1, t] ids


class Kept(NamedTuple):
    """What stays of picture i for text i, and what its words find: M words meet P tokens of the picture."""

    by_text: Tensor | None  # [N, L] bool, patches that stay for the text; None: texts choose nothing
    by_description: Tensor | None  # [N, L] bool; None: the description has no branch of its own
    score: Tensor  # [N]
    kind: list[str]  # [P] what the tokens are: PATCH, SLOT, REST or CLASS
    made_of: Tensor  # [N, P, L + 1] shares of patches, and of the class token, in each token; they sum to 1
    real: Tensor  # [N, P] bool, tokens that are compared
    told: Tensor  # [N, M] bool, words that are
    token: Tensor  # [N, M] which token each word finds
    found: Tensor  # [N, M] its cosine, before any leak


PATCH, SLOT, REST, CLASS = "patch", "aggregated token", "rest", "class token"

Decide = Callable[[Tensor, Tensor, Tensor], Tensor]
"""From scores [n, t, L] with ids of pictures [n] and texts [1, t] or [n, t] to decisions [n, t, L]."""


def drawn(clock: Clock) -> Decide:
    """Decisions of training: by lot, with a gradient."""

    def decide(score: Tensor, image: Tensor, item: Tensor) -> Tensor:
        noise = logistic(clock, image, item, score.shape[-1])
        return gumbel_st(score, noise.to(score.dtype))

    return decide


def told_of(texts: Encoded) -> Told:
    """Texts as pairs read them."""
    return Told(full(texts.vector)[None], unit(texts.tokens)[None], texts.mask[None], texts.item[None])


def beside(texts: Encoded) -> Told:
    """Text i beside picture i alone."""
    return Told(*(x[0][:, None] for x in told_of(texts)))


def by_length(told: Told, number: int) -> Iterator[tuple[Tensor, Told]]:
    """Parts of at most so many texts of similar length, without words that all of them lack; and places."""
    place = torch.arange(1, told.mask.shape[2] + 1, device=told.mask.device)
    length, order = (told.mask[0] * place).amax(-1).sort(stable=True)
    longest = length[number - 1 :: number].tolist() + length[-1:].tolist()
    for some, most in zip(order.split(number), longest, strict=False):
        query, words, mask, item = (x[:, some] for x in told)
        words, mask = (x[:, :, : max(1, most)].contiguous() for x in (words, mask))
        yield some, Told(query, words, mask, item)
