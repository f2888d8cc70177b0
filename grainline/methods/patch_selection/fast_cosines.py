"""Fast cosines of aggregated patches with the words of many texts, without gradients.

Let an image have patches V [L, D] with logits [C, L], and a pair the decisions d [L], at least one of which
is 1. A token is E d V / s, where E = exp(logits - their maximum) and s = E d; with the description's weights
W [C, L] it is E d V / s + W V. Its cosine with a word w of length 1 is the same for s times the token:

    cosine = (E d (V w) + s W (V w)) / |E d V + s W V|

V w is one product for all pairs of an image, E d (V w) one of [C, L] with [L, t M]. The length needs only
inner products of patches: the transpose of V is Q R, and the rows of the transpose of R have the same ones in
L < D dimensions. Lengths by inner products would lose twice the digits where patches nearly cancel.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from grainline.methods.patch_selection.types import SelectionImages, SelectionTexts

MAX_LOGIT_RANGE = 30.0  # of a slot: exp(-30) has a square in float32
MIN_TEXTS = 8  # fewer do not pay for the QR decomposition of each image
MAX_WORK = 2.5
"""Multiplications, as a multiple of the plain way's, up to which this way is faster, since it has no softmax
over patches for each slot. Measured at width 128, 64 patches, 12 slots, where the break-even is 2.6."""


class FastCosines(NamedTuple):
    """Images with the QR decomposition of their patches."""

    patches: Tensor  # [n, L, D]
    weight: Tensor  # [n, C, L] E
    basis: Tensor  # [n, L, L] rows with the inner products of patches, 0 above the diagonal
    dense_weight: Tensor  # [n, C, L] W; C = 0 without the branch of the description
    dense_basis: Tensor  # [n, C, L] W times the basis

    @classmethod
    def of(cls, image_side: SelectionImages) -> "FastCosines":
        """Images for which `pays` is true."""
        weight = (image_side.logits - image_side.logits.amax(-1, keepdim=True)).exp().contiguous()
        basis = torch.linalg.qr(image_side.patches.mT, mode="r").R.mT.contiguous()
        logits = image_side.logits[:, : image_side.slots.shape[1]]
        dense = logits.masked_fill((image_side.keep == 0)[:, None], -torch.inf).softmax(-1)
        return cls(image_side.patches, weight, basis, dense, dense @ basis)

    def cosines(self, words: Tensor, keep: Tensor) -> Tensor:
        """Cosines of the aggregated patches of n images with the words of t texts: [n, t, C, M]

        words [t, M, D] unit length, keep [n, t, L] decisions, 1 or 0
        """
        t, m = words.shape[:2]
        near = self.patches @ words.flatten(0, 1).mT  # [n, L, t M]
        selected = near.unflatten(-1, (t, m)) * keep.mT[..., None]
        product = (self.weight @ selected.flatten(2)).unflatten(-1, (t, m))  # [n, C, t, M]
        total = keep @ self.weight.mT  # [n, t, C]
        if self.dense_weight.shape[1]:
            product.addcmul_((self.dense_weight @ near).view_as(product), total.mT[..., None])
        weight = (self.weight[:, None] * keep[:, :, None]).flatten(1, 2)  # [n, t C, L]
        half = self.basis.shape[1] // 2  # the patches of the first half are 0 in the last dimensions
        parts = (0, slice(0, half)), (half, slice(half, None))
        length = torch.stack([self._length(weight[..., i:], total, i, of) for i, of in parts])
        length = torch.linalg.vector_norm(length, dim=0).maximum(1e-12 * total)
        return product.transpose(1, 2) / length[..., None]

    def _length(self, weight: Tensor, total: Tensor, first: int, of: slice) -> Tensor:
        """Norm of s times each token over some dimensions of the basis: [n, t, C]"""
        token = (weight @ self.basis[:, first:, of]).unflatten(1, total.shape[1:])
        if self.dense_weight.shape[1]:
            token.addcmul_(self.dense_basis[:, None, :, of], total[..., None])
        return torch.linalg.vector_norm(token, dim=-1)


def pays(image_side: SelectionImages, text_side: SelectionTexts) -> bool:
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
    return bool(span.amax() <= MAX_LOGIT_RANGE)
