"""Late interaction: tokens of a text look for their places among the tokens of an image, pair by pair.

MaxSim of Khattab & Zaharia (arXiv 2004.12832) in a smooth form: a token takes the mean of its cosines,
weighted by their softmax, which is their maximum when the softmax is sharp.
"""

from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from grainline.nn.runtime import is_static

BLOCK = 2**23
"""Cosines that are stored at a time; where there are more, blocks of texts are computed again in backward."""
CACHED = 2**18
"""The same on a CPU without gradients: blocks that stay in its cache take half the time."""


def late_score(
    images: Tensor, image_mask: Tensor, texts: Tensor, text_mask: Tensor, sharpness: float
) -> Tensor:
    """Every image against every text: [N, M]

    images [N, L, D], texts [M, S, D] unit tokens; image_mask [N, L], text_mask [M, S] bool, True = real

    for n, m:
        for s with text_mask[m, s]:
            cosine = [images[n, l] @ texts[m, s] for l with image_mask[n, l]]
            best[s] = (softmax(sharpness * cosine) * cosine).sum()
        score[n, m] = mean(best)    (0 for a text without tokens)

    Tokens that several texts share are compared once.
    """
    flat = texts.flatten(0, 1)
    first, back = distinct_rows(flat)
    tokens = flat[first]
    most = BLOCK if torch.is_grad_enabled() or images.device.type != "cpu" else CACHED
    step = max(1, most // max(1, image_mask.numel()))
    best = torch.cat(
        [_best(images, image_mask, tokens[i : i + step], sharpness) for i in range(0, len(tokens), step)], 1
    )
    each = best[:, back].unflatten(1, texts.shape[:2])  # [N, M, S]
    return each.masked_fill(~text_mask, 0.0).sum(-1) / text_mask.sum(-1).clamp(min=1)


def late_heat(
    images: Tensor, image_mask: Tensor, texts: Tensor, text_mask: Tensor, sharpness: float
) -> Tensor:
    """What every image token adds to the score of its own text: [N, L], rows sum to that score; N = M."""
    cosine = torch.einsum("nld,nsd->nsl", images, texts)
    weight = _weight(cosine, image_mask[:, None], sharpness) * text_mask[..., None]
    return (weight * cosine).sum(1) / text_mask.sum(-1, keepdim=True).clamp(min=1)


def distinct_rows(x: Tensor) -> tuple[Tensor, Tensor]:
    """The first index of each distinct row of x [R, D]: [U]; and the distinct row that each row equals: [R].
    In a static graph every row counts as distinct.

    >>> first, back = distinct_rows(torch.tensor([[2.0], [1.0], [2.0]]))
    >>> sorted(first.tolist()), first[back].tolist()
    ([0, 1], [0, 1, 0])
    """
    if is_static():
        index = torch.arange(x.shape[0], device=x.device)
        return index, index
    back, count = _same_sums(x.detach())
    number = torch.arange(len(x), device=x.device)
    first = torch.full((count,), len(x), device=x.device).scatter_reduce(0, back, number, "amin")
    return first, back


def _same_sums(x: Tensor) -> tuple[Tensor, int]:
    """Rows of equal bits, by number, and how many numbers there are.

    One sum for each row is far faster than `torch.unique` of rows, which is used if two different rows ever
    have the same sum.
    """
    whole = {8: torch.int64, 4: torch.int32, 2: torch.int16}[x.element_size()]
    bits = x.contiguous().view(whole).long()
    g = torch.Generator("cpu").manual_seed(0)
    weight = torch.randint(-(2**62), 2**62, (x.shape[1],), generator=g, dtype=torch.int64, device="cpu")
    sums, back = torch.unique((bits * weight.to(x.device)).sum(1), return_inverse=True)
    example = torch.empty_like(sums).scatter_(0, back, torch.arange(len(x), device=x.device))
    if not torch.equal(bits[example][back], bits):
        distinct, back = torch.unique(bits, dim=0, return_inverse=True)
        return back, len(distinct)
    return back, len(sums)


def _best(images: Tensor, image_mask: Tensor, tokens: Tensor, sharpness: float) -> Tensor:
    """The smooth maximum of every token in every image: [N, U]"""

    def compute(images: Tensor, tokens: Tensor) -> Tensor:
        cosine = torch.einsum("nld,ud->nul", images, tokens)
        return (_weight(cosine, image_mask[:, None], sharpness) * cosine).sum(-1)

    if torch.is_grad_enabled() and len(tokens) * image_mask.numel() > BLOCK // 2:
        best: Any = checkpoint(compute, images, tokens, use_reentrant=False)
        return best
    return compute(images, tokens)


def _weight(cosine: Tensor, image_mask: Tensor, sharpness: float) -> Tensor:
    return (sharpness * cosine).masked_fill(~image_mask, -torch.inf).softmax(-1)
