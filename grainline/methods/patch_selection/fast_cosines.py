"""Cosines of aggregated patches with words, for many texts, without gradients: what texts share is made once.

Let a picture have patches V [L, D] with logits [C, L], and a pair the decisions d [L], at least one of them
1. A token is E d V / s, where E = exp(logits - their maximum) and s = E d; with the description's weights W
[C, L] it is E d V / s + W V. Its cosine with a word w of length 1 is the same for s times the token:

    cosine = (E d (V w) + s W (V w)) / |E d V + s W V|

V w is one product for all pairs of a picture, E d (V w) one of [C, L] with [L, t M]. For the length only
inner products of patches count: the transpose of V is Q R, and the rows of the transpose of R have the same
ones in L < D dimensions. A length by inner products would be a difference of squares, which loses twice the
digits where patches nearly cancel; this loses what their sum does.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from grainline.methods.patch_selection.types import Seen, Told

SPREAD = 30.0
"""How far the logits of a slot may lie apart: exp(-SPREAD) has a square in float32."""
MANY = 8
"""Texts from which on a decomposition of each picture pays."""
GAIN = 2.5
"""Both ways take as long where this one multiplies 2.6 times as much: width 128, 64 patches, 12 slots."""


class Turned(NamedTuple):
    """Pictures whose patches are turned into as many dimensions as there are patches."""

    patches: Tensor  # [n, L, D]
    weight: Tensor  # [n, C, L] E
    basis: Tensor  # [n, L, L] rows with the inner products of patches, 0 above the diagonal
    described: Tensor  # [n, C, L] W; C = 0 without the branch of the description
    mixed: Tensor  # [n, C, L] W of the basis

    @classmethod
    def of(cls, seen: Seen) -> "Turned":
        """Pictures with logits that `pays` finds close enough."""
        weight = (seen.logits - seen.logits.amax(-1, keepdim=True)).exp().contiguous()
        basis = torch.linalg.qr(seen.patches.mT, mode="r").R.mT.contiguous()
        logits = seen.logits[:, : seen.merged.shape[1]]
        described = logits.masked_fill((seen.kept == 0)[:, None], -torch.inf).softmax(-1)
        return cls(seen.patches, weight, basis, described, described @ basis)

    def cosines(self, words: Tensor, kept: Tensor) -> Tensor:
        """Of the aggregated patches of n pictures with the words of t texts: [n, t, C, M]

        words [t, M, D] unit length, kept [n, t, L] decisions, 1 or 0
        """
        t, most = words.shape[:2]
        near = self.patches @ words.flatten(0, 1).mT  # [n, L, t M]
        chosen = near.unflatten(-1, (t, most)) * kept.mT[..., None]
        found = (self.weight @ chosen.flatten(2)).unflatten(-1, (t, most))  # [n, C, t, M]
        total = kept @ self.weight.mT  # [n, t, C]
        if self.described.shape[1]:
            found.addcmul_((self.described @ near).view_as(found), total.mT[..., None])
        weight = (self.weight[:, None] * kept[:, :, None]).flatten(1, 2)  # [n, t C, L]
        half = self.basis.shape[1] // 2  # the patches of the first half are 0 in the last dimensions
        parts = (0, slice(0, half)), (half, slice(half, None))
        length = torch.stack([self._length(weight[..., i:], total, i, of) for i, of in parts])
        length = torch.linalg.vector_norm(length, dim=0).maximum(1e-12 * total)
        return found.transpose(1, 2) / length[..., None]

    def _length(self, weight: Tensor, total: Tensor, first: int, of: slice) -> Tensor:
        """Of s times the tokens in some dimensions, from patches that are not all 0 there: [n, t, C]"""
        token = (weight @ self.basis[:, first:, of]).unflatten(1, total.shape[1:])
        if self.described.shape[1]:
            token.addcmul_(self.mixed[:, None, :, of], total[..., None])
        return torch.linalg.vector_norm(token, dim=-1)


def pays(seen: Seen, told: Told) -> bool:
    """Whether pictures are worth turning for these texts, and their logits lie close enough.

    Texts of one batch, told [1, t, ...]. Counted are multiplications of a pair; what is saved beside them, a
    softmax over patches for each slot, makes up for GAIN times as many.
    """
    (count, number, width), texts, slots = seen.patches.shape, told.mask.shape[1], seen.logits.shape[1]
    if not count or texts < MANY or number >= width or not slots:
        return False
    words = int(told.mask.sum()) / texts
    mine = number * (words * width + slots * words + slots * number)
    if mine > GAIN * slots * width * (number + words):
        return False
    apart = seen.logits.amax(-1) - seen.logits.amin(-1)
    return bool(apart.amax() <= SPREAD)
