"""Maps by gradients: which image tokens raise the score of a pair, after Grad-CAM (arXiv 1610.02391).

The score is differentiated by the tokens of the image as it is read, `Encoded.tokens`. That needs no place
inside any encoder, so it is the same for every method whose scores read tokens. One that scores by vectors
alone has no such gradient.

A token times its gradient tells, to first order, what the score loses if the token is set to zero. Where a
method brings tokens to one length before it scores, as by a LayerNorm, the gradient stands at right angles to
the token and that is 0 everywhere. Hence a second map, of what the score loses if the token is set to the
mean token of its image.
"""

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from grainline.errors import UserError
from grainline.evaluation.score import Scorer
from grainline.methods.base import Method
from grainline.types import Encoded, Images, rows

ROUNDING = 1e-5
"""Of the lengths of a token and of its gradient: a product below is the error of float32, and counts as 0."""


class Slopes(NamedTuple):
    """Both maps of N pairs, 0 at masked tokens."""

    plain: Tensor  # [N, L] >= 0
    centred: Tensor  # [N, L] >= 0


def gradient_heat(method: Scorer, images: Encoded, texts: Encoded) -> Slopes:
    """What every token of image i does for its score with text i.

    images, texts  N rows with tokens, as they are encoded

    for i:
        S = score(image i, text i)
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


# Attention maps: which patches the last attention takes up for the score of a pair, after ReCLIP's Grad-CAM.
#
# ReCLIP (Subramanian et al., arXiv 2204.05991) takes the class token's row of Id + mean over heads of
# relu(gradient * attention) in the last block, without the class token itself, where Id adds nothing. Its
# scores read the class token alone. Here the rows of all tokens are summed: where nothing else is read, the
# gradient of all other rows is 0 and the map is ReCLIP's; where a score reads patches, what they
# take up counts as well, and an encoder without a class token needs no other rule.
#
# The weights are captured in the call of scaled dot-product attention, where they are computed, so this needs
# no place inside any encoder: our own transformers and those of the library call the same function. Decisions
# of a score, such as which patches stay, are held fixed.


class AttentionCapture(TorchFunctionMode):
    """While it is entered, attention over all patches is computed openly, and its last weights are captured.

    Only what comes after these weights has a gradient. patches: how many there are; a class token before
    them is one more.
    """

    def __init__(self, patches: int) -> None:
        super().__init__()
        self.patches = patches
        self.weight: Tensor | None = None  # [N, heads, rows that look, patches or 1 + patches]

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is not F.scaled_dot_product_attention or not self._over_patches(args[1], kwargs):
            return func(*args, **kwargs)
        query, key, value = args[:3]
        scale = kwargs.get("scale") or query.shape[-1] ** -0.5
        weight = (query @ key.transpose(-1, -2) * scale).softmax(-1)
        self.weight = weight.detach().requires_grad_()
        return self.weight @ value

    def _over_patches(self, key: Tensor, kwargs: dict[str, Any]) -> bool:
        """Whether these are keys of all patches of the one image, not of a description or a window."""
        plain = kwargs.get("attn_mask") is None and not kwargs.get("is_causal")
        one = len(key) == 1 and key.shape[-2] - self.patches in (0, 1)
        return plain and one and torch.is_grad_enabled()


def attention_heat(method: Method, images: Images, texts: Encoded) -> Tensor:
    """What every patch of one image gives to its scores with texts, through the last attention: [M, L] >= 0

    images  one image; texts  [M] with tokens

    for text j:
        S = score(image, text j)
        A = weights of the last attention [heads, rows, columns], G = dS / dA
        for patch p, whose column is c:
            heat[j, p] = sum over rows r: mean over heads h of relu(G[h, r, c] * A[h, r, c])

    L is the number of patches on the grid of the encoder. Raises UserError where no attention goes over all
    of them.
    """
    assert method.grid is not None, "image tokens on no grid; ask `require_patch_grid` first"
    with torch.enable_grad():
        with AttentionCapture(method.grid[0] * method.grid[1]) as capture:
            encoded = method.encode_images(images)
        if capture.weight is None:
            raise no_attention_map("image encoder", "never attends to all patches at once")
        slopes = [
            _slope(method, encoded, rows(texts, slice(j, j + 1)), capture.weight)
            for j in range(len(texts.vector))
        ]
    weight = capture.weight.detach()[0]
    heat = (torch.stack(slopes) * weight).relu().mean(1).sum(1)  # [M, columns]
    return heat[:, -capture.patches :].float()


def _slope(method: Scorer, encoded: Encoded, text: Encoded, weight: Tensor) -> Tensor:
    """dS / dA: [heads, rows, columns]; 0 where the score does not read what the attention made"""
    score = method.score(encoded, text).sum()
    (slope,) = torch.autograd.grad(score, weight, retain_graph=True)
    return slope[0]


def require_patch_grid(method: Method, name: str) -> None:
    """Raise UserError for a method whose image tokens lie on no grid of patches."""
    if method.grid is None:
        raise no_attention_map(f"image encoder of {name}", "has no grid of patches")


def no_attention_map(what: str, why: str) -> UserError:
    """The error where there is no attention to make a map of."""
    return UserError(f"the {what} {why}, so it has no attention map; leave out --set map_from=attention")
