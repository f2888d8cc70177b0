"""The data of patch selection: settings, both sides of pairs, and selections."""

from collections.abc import Callable, Iterator
from typing import Literal, NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor

from grainline.nn.hashing import logistic
from grainline.nn.pooling import unit
from grainline.nn.selection import Matching, gumbel_st
from grainline.types import Clock, Encoded, full

Branches = Literal["both", "sparse", "dense", "joint"]
"""Patches are selected by text and description separately, by one, or by both in one score (equation 3)."""


class SelectionConfig(NamedTuple):
    """How patches are selected, aggregated and matched."""

    keep_ratio: float  # share of the patches that is kept
    aggregation_ratio: float | None  # share of those that aggregation leaves; None: no aggregation
    beta: float = 0.5  # weight of each attention score; 1 - 2 beta: of the predictor; from 0.5 on without it
    branches: Branches = "sparse"
    matching: Matching = "mean"
    top_k: int = 5  # best cosines that a network of the matching reads
    leaky_cosine: bool = False
    use_rest: bool = True  # one token of all dropped patches
    stretch: bool = True  # attention scores are cosines at range 0..1 ("Norm" of SEPS); False: raw cosines


class SelectionExtra(NamedTuple):
    """Tensors of an image besides its patches: `Encoded.extra`."""

    cls: Tensor  # [N, D] the class token in the shared space; 0 without one
    has_cls: Tensor  # [N] bool
    description: Tensor  # [N, D] direction of the description; 0 without one


class SelectionPrecomputed(NamedTuple):
    """All of an image that does not depend on the text: `Encoded.precomputed`."""

    patches: Tensor  # [n, L, D]
    logits: Tensor  # [n, C, L] aggregation logits of each patch for each slot; C = 0 without aggregation
    base: Tensor  # [n, L] scores of patches without the share of the text
    keep: Tensor  # [n, L] decisions of the description; 0 without that branch
    slots: Tensor  # [n, C, D] patches aggregated by the description; C = 0 without that branch or aggregation
    rest: Tensor  # [n, D] token of the patches that the description drops
    has_rest: Tensor  # [n] bool, whether it drops any
    cls: Tensor  # [n, D]
    has_cls: Tensor  # [n] bool


class SelectionImages(NamedTuple):
    """Images as scores of pairs read them: `SelectionPrecomputed`, lengths and ids."""

    patches: Tensor
    logits: Tensor
    base: Tensor
    keep: Tensor
    slots: Tensor
    rest: Tensor
    has_rest: Tensor
    cls: Tensor
    has_cls: Tensor
    length: Tensor  # [n, L] norms of the patches, above 0
    image: Tensor  # [n] ids


class SelectionTexts(NamedTuple):
    """Texts as scores of pairs read them. The first dimension is 1, or that of the images."""

    query: Tensor  # [1, t, D] unit length
    words: Tensor  # [1, t, M, D] unit length
    mask: Tensor  # [1, t, M] bool
    item: Tensor  # [1, t] ids


class Selection(NamedTuple):
    """The patches of image i that text i selects, and the best token for each of its M words, among P."""

    by_text: Tensor | None  # [N, L] bool, patches that the text keeps; None: texts select nothing
    by_description: Tensor | None  # [N, L] bool; None: the description has no branch of its own
    score: Tensor  # [N]
    kind: list[str]  # [P] what the tokens are: PATCH, SLOT, REST or CLASS
    shares: Tensor  # [N, P, L] shares of the patches in each token; they sum to 1, or to 0 in a class token
    real: Tensor  # [N, P] bool, tokens that are compared
    words: Tensor  # [N, M] bool, words that are
    token: Tensor  # [N, M] the best token of each word
    cosine: Tensor  # [N, M] its cosine with the word, before the leaky ReLU


@runtime_checkable
class SelectsPatches(Protocol):
    """A method that compares the words of a text with patches of the image that the text selects."""

    def select_patches(self, images: Encoded, texts: Encoded) -> Selection:
        """The tokens of image i that text i selects. images: as `encode_images` returns them"""


PATCH, SLOT, REST, CLASS = "patch", "aggregated token", "rest", "class token"

Decide = Callable[[Tensor, Tensor, Tensor], Tensor]
"""From scores [n, t, L] with ids of images [n] and texts [1, t] or [n, t] to decisions [n, t, L]."""


def gumbel_decisions(clock: Clock) -> Decide:
    """Decisions of training: random, by straight-through Gumbel softmax."""

    def decide(score: Tensor, image: Tensor, item: Tensor) -> Tensor:
        noise = logistic(clock, image, item, score.shape[-1])
        return gumbel_st(score, noise.to(score.dtype))

    return decide


def selection_texts(texts: Encoded) -> SelectionTexts:
    """Texts as scores of pairs read them."""
    return SelectionTexts(
        full(texts.vector)[None],
        unit(texts.tokens)[None],
        texts.mask[None],
        texts.item[None],
    )


def paired_texts(texts: Encoded) -> SelectionTexts:
    """Texts of which text i is compared with image i alone."""
    return SelectionTexts(*(x[0][:, None] for x in selection_texts(texts)))


def _lengths(mask: Tensor) -> Tensor:
    """[1, M, W] bool -> the place behind the last word: [M]"""
    return (mask[0] * torch.arange(1, mask.shape[2] + 1, device=mask.device)).amax(-1)


def by_length(text_side: SelectionTexts, number: int) -> Iterator[tuple[Tensor, SelectionTexts]]:
    """Chunks of at most `number` texts, by length, trimmed to the longest of each; with their indices."""
    length, order = _lengths(text_side.mask).sort(stable=True)
    longest = length[number - 1 :: number].tolist() + length[-1:].tolist()
    for chunk, longest_of_chunk in zip(order.split(number), longest, strict=False):
        query, words, mask, item = (x[:, chunk] for x in text_side)
        words, mask = (x[:, :, : max(1, longest_of_chunk)].contiguous() for x in (words, mask))
        yield chunk, SelectionTexts(query, words, mask, item)
