"""The `Selector` of SEPS and LAPS: scores of pairs in which the text selects patches of the image.

A pair has no vector, so scores are computed pair by pair; `scoring.py` does many of them. What does not
depend on the text is computed once for each image: `image_side`, and `precompute` for scoring many texts and
for an index.
"""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from grainline.nn.patch_selection.types import (
    Decide,
    SelectionConfig,
    SelectionExtra,
    SelectionImages,
    SelectionPrecomputed,
    SelectionTexts,
)
from grainline.nn.pooling import unit
from grainline.nn.selection import (
    Predictor,
    Relevance,
    Slots,
    aggregated,
    hard_topk,
    number_of_patches,
    number_of_slots,
    rest_token,
    stretched,
    weighted_score,
)
from grainline.types import Encoded, each, full, vectors_only

MAX_LOGIT_RANGE = 30.0  # of a slot: exp(-30) has a square in float32
HALF_LOGIT_RANGE = 8.0  # and exp(-8) all digits in float16
SINGULAR = 1e-13  # the share by which the diagonal of inner products grows
TINY = torch.finfo(torch.float32).tiny
MIN_TEXTS = 8  # fewer do not pay for the QR decomposition of each image
MAX_WORK = 2.5
"""Multiplications, as a multiple of the plain way's, up to which this way is faster, since it has no softmax
over patches for each slot. Measured at width 128, 64 patches, 12 slots, where the break-even is 2.6."""


class FastCosines(NamedTuple):
    """Images with the QR decomposition of their patches: fast cosines of aggregated patches with the words of
    many texts, without gradients.

    Let an image have patches V [L, D] with logits [C, L], and a pair the decisions d [L], at least one of
    which is 1. A token is E d V / s, where E = exp(logits - their maximum) and s = E d; with the
    description's weights W [C, L] it is E d V / s + W V. Its cosine with a word w of length 1 is the same for
    s times the token:

        cosine = (E d (V w) + s W (V w)) / |E d V + s W V|

    V w is one product for all pairs of an image, E d (V w) one of [C, L] with [L, t M]. The length needs only
    inner products of patches: the transpose of V is Q R, and the rows of the transpose of R have the same
    ones in L < D dimensions. Lengths by inner products would lose twice the digits where patches nearly
    cancel. A GPU decomposes one image after the other; there R is the Cholesky factor of the inner products
    in float64, which has the digits that squares of float32 take.

    In half precision all tensors are float16 and sums float32, and patches are in units of the largest number
    of their image, which cancels. Cosines are right to 1e-3 where no patch is 300 times as long as those that
    a token is of, at the widest range of logits.
    """

    patches: Tensor  # [n, L, D]
    weight: Tensor  # [n, C, L] E
    basis: Tensor  # [n, L, L] rows with the inner products of patches, 0 above the diagonal
    dense_weight: Tensor  # [n, C, L] W; C = 0 without the branch of the description
    dense_basis: Tensor  # [n, C, L] W times the basis

    @classmethod
    def of(cls, image_side: SelectionImages, half: bool = False) -> "FastCosines":
        """Images for which `pays` is true."""
        weight = (image_side.logits - image_side.logits.amax(-1, keepdim=True)).exp().contiguous()
        patches = image_side.patches
        if half:
            patches = patches / patches.abs().amax((1, 2), keepdim=True).clamp(min=TINY)
        basis = _basis(patches)
        logits = image_side.logits[:, : image_side.slots.shape[1]]
        dense = logits.masked_fill((image_side.keep == 0)[:, None], -torch.inf).softmax(-1)
        fast = cls(patches, weight, basis, dense, dense @ basis)
        return cls(*(x.half() for x in fast)) if half else fast

    def cosines(self, words: Tensor, keep: Tensor) -> Tensor:
        """Cosines of the aggregated patches of n images with the words of t texts: [n, t, C, M]

        words [t, M, D] unit length, keep [n, t, L] decisions, 1 or 0
        """
        t, m = words.shape[:2]
        words, keep = words.to(self.patches.dtype), keep.to(self.patches.dtype)
        near = self.patches @ words.flatten(0, 1).mT  # [n, L, t M]
        selected = near.unflatten(-1, (t, m)) * keep.mT[..., None]
        product = (self.weight @ selected.flatten(2)).unflatten(-1, (t, m))  # [n, C, t, M]
        total = keep @ self.weight.mT  # [n, t, C]
        if self.dense_weight.shape[1]:
            product.addcmul_((self.dense_weight @ near).view_as(product), total.mT[..., None])
        return product.transpose(1, 2) / self._lengths(keep, total).maximum(1e-12 * full(total))[..., None]

    def _lengths(self, keep: Tensor, total: Tensor) -> Tensor:
        """Norm of s times each token: [n, t, C]"""
        weight = (self.weight[:, None] * keep[:, :, None]).flatten(1, 2)  # [n, t C, L]
        half = self.basis.shape[1] // 2  # the patches of the first half are 0 in the last dimensions
        parts = (0, slice(0, half)), (half, slice(half, None))
        length = torch.stack([self._length(weight[..., i:], total, i, of) for i, of in parts])
        return torch.linalg.vector_norm(length, dim=0)

    def _length(self, weight: Tensor, total: Tensor, first: int, of: slice) -> Tensor:
        """Norm of s times each token over some dimensions of the basis: [n, t, C]"""
        token = (weight @ self.basis[:, first:, of]).unflatten(1, total.shape[1:])
        if self.dense_weight.shape[1]:
            token.addcmul_(self.dense_basis[:, None, :, of], total[..., None])
        return torch.linalg.vector_norm(token, dim=-1, dtype=torch.promote_types(token.dtype, torch.float32))


def _basis(patches: Tensor) -> Tensor:
    """Rows with the inner products of patches [n, L, D], 0 above the diagonal: [n, L, L]"""
    if patches.is_cuda:
        return _factor(patches)
    return torch.linalg.qr(patches.mT, mode="r").R.mT.contiguous()


def _factor(patches: Tensor) -> Tensor:
    """`_basis` by a Cholesky decomposition in float64."""
    wide = patches.double()
    products = wide @ wide.mT
    diagonal = products.diagonal(dim1=1, dim2=2)
    diagonal *= 1 + SINGULAR  # patches may be the same
    diagonal += torch.finfo(wide.dtype).tiny  # or 0
    return torch.linalg.cholesky_ex(products).L.to(patches.dtype)


def pays(image_side: SelectionImages, text_side: SelectionTexts, half: bool = False) -> bool:
    """Whether fast cosines of these images and texts [1, t, ...] are faster, and their logits allow them."""
    count, number, width = image_side.patches.shape
    texts, slots = text_side.mask.shape[1], image_side.logits.shape[1]
    if not count or texts < MIN_TEXTS or number >= width or not slots:
        return False
    words = int(text_side.mask.sum()) / texts
    work = number * (words * width + slots * words + slots * number)
    if work > MAX_WORK * slots * width * (number + words):
        return False
    span = image_side.logits.amax(-1) - image_side.logits.amin(-1)
    return bool(span.amax() <= (HALF_LOGIT_RANGE if half else MAX_LOGIT_RANGE))


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
        return (
            weighted_score(predicted, by_image, beta),
            weighted_score(predicted, by_image + by_description, beta),
        )

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

    def tile(
        self,
        image_side: SelectionImages,
        text_side: SelectionTexts,
        decide: Decide,
        fast: FastCosines | None = None,
    ) -> Tensor:
        """Scores of n images with t texts: [n, t]. Images share the texts, or each has t of its own.

        fast  of the same images, with shared texts: the same scores in less time, but no gradients
        """
        score, keep = self.decisions(image_side, text_side, decide)
        if fast is None or keep is None:
            tokens = self.pair_tokens(image_side, score, keep)
            cosines, weights = self.token_cosines(tokens, text_side, len(image_side.image))
        else:
            others = self.token_cosines(
                self._other_tokens(image_side, score, keep), text_side, len(image_side.image)
            )
            cosine = fast.cosines(text_side.words[0], keep)
            both = zip((cosine, cosine.new_ones(cosine.shape[:3])), others, strict=True)
            cosines, weights = (torch.cat(x, 2) for x in both)
        return self.relevance(cosines, weights, text_side.mask)

    def decisions(
        self, image_side: SelectionImages, text_side: SelectionTexts, decide: Decide
    ) -> tuple[Tensor | None, Tensor | None]:
        """The result of `choose`, or None and None where texts select no patches (not `sparse`)."""
        return (
            self.choose(image_side, text_side.query, text_side.item, decide) if self.sparse else (None, None)
        )

    def pair_tokens(
        self, image_side: SelectionImages, score: Tensor | None, keep: Tensor | None
    ) -> list[tuple[Tensor, Tensor]]:
        """The image tokens of each pair with their weights: patches or slots, the rest, the class token

        [n, t or 1, P, W] and [n, t or 1, P] each
        """
        return [self._tokens(image_side, keep), *self._other_tokens(image_side, score, keep)]

    def token_cosines(
        self, tokens: list[tuple[Tensor, Tensor]], text_side: SelectionTexts, number: int
    ) -> tuple[Tensor, Tensor]:
        """Cosines of tokens with words, [n, t, P, M], and the weights of the tokens, [n, t, P]."""
        shape = number, text_side.query.shape[1]
        cosines = [_cosines(x, text_side.words).expand(*shape, -1, -1) for x, _ in tokens]
        return torch.cat(cosines, 2), torch.cat([weight.expand(*shape, -1) for _, weight in tokens], 2)

    def _other_tokens(
        self, image_side: SelectionImages, score: Tensor | None, keep: Tensor | None
    ) -> list[tuple[Tensor, Tensor]]:
        """The token of the dropped patches, if the config has one, and the class token."""
        rest = [self._rest(image_side, score, keep)] if self.choice.use_rest else []
        cls = image_side.cls
        return [*rest, (cls[:, None, None], image_side.has_cls[:, None, None].to(cls.dtype))]

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
