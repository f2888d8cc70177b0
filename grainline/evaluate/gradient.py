"""Gradient maps: which image tokens raise the score of a pair, after Grad-CAM (arXiv 1610.02391).

The score is differentiated by the tokens of the picture as it is read, `Encoded.tokens`. That needs no place
inside any encoder, so it is the same for every method whose scores read tokens. One that scores by vectors
alone has no such gradient.

A token times its gradient tells, to first order, what the score loses if the token is set to zero. Where a
method brings tokens to one length before it scores, as by a LayerNorm, the gradient stands at right angles to
the token and that is 0 everywhere. Hence a second map, of what the score loses if the token is set to the
mean token of its picture.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from grainline.evaluate.score import Scorer
from grainline.types import Encoded, rows

ROUNDING = 1e-5
"""Of the lengths of a token and of its gradient: a product below is the error of float32, and counts as 0."""


class Slopes(NamedTuple):
    """Both maps of N pairs, 0 at masked tokens."""

    plain: Tensor  # [N, L] >= 0
    centred: Tensor  # [N, L] >= 0


def gradient_heat(method: Scorer, images: Encoded, texts: Encoded) -> Slopes:
    """What every token of picture i does for its score with text i.

    images, texts  N rows with tokens, as they are encoded

    for i:
        S = score(picture i, text i)
        v, g = tokens[i], dS / d tokens[i]; m = mean of v over real tokens
        for real l:
            plain[i, l] = relu(sum over c of v[l, c] * g[l, c])
            centred[i, l] = relu(sum over c of (v[l, c] - m[c]) * g[l, c])

    Pairs are taken one by one, so that no pair has a part in another one's gradient. Raises ValueError for a
    method that scores by vectors, and RuntimeError for one whose scores let no gradient through.
    """
    if not method.pairwise:
        raise ValueError("scores of vectors have no gradient by tokens")
    pairs = (slice(i, i + 1) for i in range(len(texts.vector)))
    both = [_one(method, rows(images, pair), rows(texts, pair)) for pair in pairs]
    return Slopes(torch.cat([one.plain for one in both]), torch.cat([one.centred for one in both]))


def _one(method: Scorer, image: Encoded, text: Encoded) -> Slopes:
    with torch.enable_grad():
        tokens = image.tokens.detach().requires_grad_()
        score = method.score(image._replace(tokens=tokens), text)
        (slope,) = torch.autograd.grad(score.sum(), tokens)
    value, slope, real = tokens.detach().double(), slope.double(), image.mask[..., None]
    mean = value.masked_fill(~real, 0.0).sum(1, keepdim=True) / real.sum(1, keepdim=True).clamp(min=1)
    return Slopes(*(_product(x, slope).masked_fill(~image.mask, 0.0) for x in (value, value - mean)))


def _product(value: Tensor, slope: Tensor) -> Tensor:
    """relu of the inner products of tokens [1, L, D] with gradients, without what is rounding: [1, L]"""
    heat = (value * slope).sum(-1)
    least = ROUNDING * value.norm(dim=-1) * slope.norm(dim=-1)
    return heat.masked_fill(heat <= least, 0.0).float()
