"""The `Selector` of SEPS and LAPS: scores of pairs in which the text selects patches of the image.

A pair has no vector, so scores are computed pair by pair; `scoring.py` does many of them. What does not
depend on the text is computed once for each image: `image_side`, and `precompute` for scoring many texts and
for an index.
"""

from collections.abc import Callable, Iterator
from typing import Literal, NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from grainline.nn.hashing import logistic
from grainline.nn.pooling import unit
from grainline.nn.selection import (
    Matching,
    Predictor,
    Relevance,
    Slots,
    aggregated,
    gumbel_st,
    hard_topk,
    number_of_patches,
    number_of_slots,
    rest_token,
    stretched,
    weighted_score,
)
from grainline.types import Clock, Encoded, each, full, vectors_only

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
    parts = full(texts.vector), unit(texts.tokens), texts.mask, texts.item
    return SelectionTexts(*(x[None] for x in parts))


def paired_texts(texts: Encoded) -> SelectionTexts:
    """Texts of which text i is compared with image i alone."""
    return SelectionTexts(*(x[0][:, None] for x in selection_texts(texts)))


def by_length(text_side: SelectionTexts, number: int) -> Iterator[tuple[Tensor, SelectionTexts]]:
    """Chunks of at most `number` texts, by length, trimmed to the longest of each; with their indices."""
    place = torch.arange(1, text_side.mask.shape[2] + 1, device=text_side.mask.device)
    length, order = (text_side.mask[0] * place).amax(-1).sort(stable=True)  # up to the last word
    longest = length[number - 1 :: number].tolist() + length[-1:].tolist()
    for chunk, longest_of_chunk in zip(order.split(number), longest, strict=False):
        query, words, mask, item = (x[:, chunk] for x in text_side)
        words, mask = (x[:, :, : max(1, longest_of_chunk)].contiguous() for x in (words, mask))
        yield chunk, SelectionTexts(query, words, mask, item)


class Selector(nn.Module):
    """Scores of pairs, and all parameters of the score."""

    def __init__(self, choice: SelectionConfig, width: int, patches: int) -> None:
        """patches  number of patches of an image"""
        super().__init__()
        self.choice, self.width, self.number = choice, width, patches
        self.keep_number = number_of_patches(patches, choice.keep_ratio)
        ratio = choice.aggregation_ratio
        slots = None if ratio is None else number_of_slots(patches, choice.keep_ratio, ratio)
        self.slots = None if slots is None else Slots(width, slots)
        self.slot_number = slots or 0
        self.predictor = Predictor(width) if choice.beta < 0.5 else None
        self.relevance = Relevance(choice.top_k, choice.matching, choice.leaky_cosine)

    @property
    def sparse(self) -> bool:
        """Whether a text selects patches."""
        return self.choice.branches != "dense"

    @property
    def dense(self) -> bool:
        """Whether the description selects patches in a branch of its own."""
        return self.choice.branches in ("both", "dense")

    def top(self, score: Tensor, image: Tensor, item: Tensor) -> Tensor:  # noqa: ARG002
        """Decisions of evaluation: 1 for the `keep_number` highest scores, else 0: [n, t, L]"""
        return hard_topk(score, self.keep_number)

    def image_side(self, images: Encoded, decide: Decide, values: Tensor | None = None) -> SelectionImages:
        """Images as a method encodes them, with patches as tokens and a `SelectionExtra`.

        values  [n, L, W] averaged into tokens in place of the patches, which still decide; the class token is
                0 then. None: the patches
        """
        patches, extra = images.tokens[:], images.extra  # a view: the gradients of each call are summed first
        assert isinstance(extra, SelectionExtra), "images of another method, or without their extra"
        if values is None:
            values, cls = patches, extra.cls
        else:
            cls = values.new_zeros(len(values), values.shape[-1])
        logits = patches.new_zeros(len(patches), 0, self.number)
        if self.slots is not None:
            logits = self.slots(patches)
        base, by_description = self._scores_without_text(patches, images.vector, extra.description)
        keep, slots, rest = torch.zeros_like(base), values[:, :0], torch.zeros_like(cls)
        has_rest = images.mask.new_zeros(len(patches))
        if self.dense:
            no_item = torch.full_like(images.image, -1)[:, None]
            keep = decide(by_description[:, None], images.image, no_item)[:, 0]
            rest, has_rest = rest_token(by_description, values, keep)
            if self.slots is not None:
                slots = aggregated(logits, values, keep)
        length = _lengths(values)
        return SelectionImages(
            values, logits, base, keep, slots, rest, has_rest, cls, extra.has_cls, length, images.image
        )

    def _scores_without_text(
        self, patches: Tensor, image: Tensor, description: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Scores of patches before the text adds its share, [n, L], and with the description in its place."""
        beta = self.choice.beta
        with torch.no_grad():
            directions = unit(patches)
            by_image, by_description = (
                self._attention((directions @ x[..., None])[..., 0]) for x in (full(image), full(description))
            )
        predicted = None if self.predictor is None else self.predictor(patches)
        if self.choice.branches == "joint":
            score = weighted_score(predicted, by_description + 2 * by_image, beta)
            return score / (1 + 2 * beta), by_description
        both = by_image + by_description
        return weighted_score(predicted, by_image, beta), weighted_score(predicted, both, beta)

    def _attention(self, cosine: Tensor) -> Tensor:
        return stretched(cosine) if self.choice.stretch else full(cosine)

    @torch.no_grad()
    def precompute(self, images: Encoded) -> Encoded:
        """The same images with a `SelectionPrecomputed` in place of tokens and extra."""
        if images.precomputed is not None:
            return images
        side = self.image_side(images, self.top)
        precomputed = SelectionPrecomputed(*side[: len(SelectionPrecomputed._fields)])
        return vectors_only(images)._replace(precomputed=precomputed)

    def load_side(self, images: Encoded) -> SelectionImages:
        """Images as evaluation compares them with texts, precomputed (in half precision, too) or not."""
        if images.precomputed is None:
            whole = images._replace(tokens=full(images.tokens), extra=each(full, images.extra))
            return self.image_side(whole, self.top)
        precomputed: SelectionPrecomputed = each(full, images.precomputed)
        return SelectionImages(*precomputed, length=_lengths(precomputed.patches), image=images.image)

    def choose(
        self, image_side: SelectionImages, query: Tensor, item: Tensor, decide: Decide
    ) -> tuple[Tensor, Tensor]:
        """Scores of patches and decisions of each pair: [n, t, L] both"""
        share = self.choice.beta / (1 + 2 * self.choice.beta if self.choice.branches == "joint" else 1)
        with torch.no_grad():
            product = query @ image_side.patches.mT  # [n, t, L]
            by_text = share * self._attention(product / image_side.length[:, None])
        score = image_side.base[:, None] + by_text
        return score, decide(score, image_side.image, item)

    def tile(self, image_side: SelectionImages, text_side: SelectionTexts, decide: Decide) -> Tensor:
        """Scores of n images with t texts: [n, t]. Images share the texts, or each has t of its own."""
        score, keep = self.decisions(image_side, text_side, decide)
        tokens = self.pair_tokens(image_side, score, keep)
        cosines, weights = self.token_cosines(tokens, text_side)
        return self.relevance(cosines, weights, text_side.mask)

    def decisions(
        self, image_side: SelectionImages, text_side: SelectionTexts, decide: Decide
    ) -> tuple[Tensor | None, Tensor | None]:
        """The result of `choose`, or None and None where texts select no patches (not `sparse`)."""
        if not self.sparse:
            return None, None
        return self.choose(image_side, text_side.query, text_side.item, decide)

    def pair_tokens(
        self, image_side: SelectionImages, score: Tensor | None, keep: Tensor | None
    ) -> list[tuple[Tensor, Tensor]]:
        """The image tokens of each pair with their weights: patches or slots, the rest, the class token

        [n, t or 1, P, W] and [n, t or 1, P] each
        """
        rest = [self._rest(image_side, score, keep)] if self.choice.use_rest else []
        cls = image_side.cls
        alone = cls[:, None, None], image_side.has_cls[:, None, None].to(cls.dtype)
        return [self._tokens(image_side, keep), *rest, alone]

    def token_cosines(
        self, tokens: list[tuple[Tensor, Tensor]], text_side: SelectionTexts
    ) -> tuple[Tensor, Tensor]:
        """Cosines of tokens with words, [n, t, P, M], and the weights of the tokens, [n, t, P]."""
        shape = len(tokens[0][0]), text_side.query.shape[1]
        cosines = [_cosines(x, text_side.words).expand(*shape, -1, -1) for x, _ in tokens]
        return torch.cat(cosines, 2), torch.cat([weight.expand(*shape, -1) for _, weight in tokens], 2)

    def _tokens(self, image_side: SelectionImages, keep: Tensor | None) -> tuple[Tensor, Tensor]:
        """The selected patches, or their slots, with weights: [n, t or 1, P, D] and [n, t or 1, P]"""
        patches = image_side.patches[:, None]
        if self.slots is None:
            dense = image_side.keep[:, None]
            return patches, dense if keep is None else 1 - (1 - dense) * (1 - keep)
        slots = image_side.slots[:, None] if self.dense else 0.0
        if keep is not None:
            slots = slots + aggregated(image_side.logits[:, None], patches, keep)
        assert isinstance(slots, Tensor)
        return slots, slots.new_ones(slots.shape[:3])

    def _rest(
        self, image_side: SelectionImages, score: Tensor | None, keep: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """One token of the dropped patches, the mean over both branches. [n, t or 1, 1, D], weight"""
        rest, number = image_side.rest[:, None], image_side.has_rest[:, None].to(image_side.rest.dtype)
        total = rest * number[..., None]
        if score is not None and keep is not None:
            by_text, has_rest = rest_token(score, image_side.patches[:, None], keep)
            share = has_rest.to(by_text.dtype)
            total, number = total + by_text * share[..., None], number + share
        token = total / number.clamp(min=1)[..., None]
        return token[:, :, None], (number > 0).to(token.dtype)[..., None]


def _cosines(tokens: Tensor, words: Tensor) -> Tensor:
    """Cosines of tokens [n, t or 1, P, D] with unit words [n or 1, t, M, D]: [n, t or 1, P, M]"""
    length = torch.linalg.vector_norm(tokens, dim=-1, keepdim=True).clamp(min=1e-12)
    if words.shape[0] == 1 and tokens.shape[1] > 1 and tokens.shape[2] == 1:  # no copies of words
        return torch.einsum("ntd,tmd->ntm", tokens[:, :, 0], words[0])[:, :, None] / length
    if words.shape[0] > 1 or tokens.shape[1] > 1:
        return (tokens @ words.mT) / length
    product = tokens[:, 0] @ words[0].flatten(0, 1).mT  # [n, P, t M]
    return product.unflatten(-1, words.shape[1:3]).transpose(1, 2) / length


def _lengths(patches: Tensor) -> Tensor:
    with torch.no_grad():
        return torch.linalg.vector_norm(full(patches), dim=-1).clamp(min=1e-12)
