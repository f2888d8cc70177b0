"""Maps of a score over the image tokens: by gradients of tokens, and by the last attention.

Both are after Grad-CAM (arXiv 1610.02391) and need no place inside an encoder, so they are the same for every
method whose scores read tokens. A method that scores by vectors alone has no gradient map.
"""

from typing import Any

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
NO_MAP = "so it has no attention map; leave out --set map_from=attention"


def gradient_heat(method: Scorer, images: Encoded, texts: Encoded) -> tuple[Tensor, Tensor]:
    """The part of every token of image i in its score with text i: plain and centred, [N, L] >= 0 each

    images, texts  N rows with tokens, as they are encoded; both maps are 0 at masked tokens

    for i:
        S = score(image i, text i)
        v, g = tokens[i], dS / d tokens[i]; m = mean of v over real tokens
        for real l:
            plain[i, l] = relu(sum over c of v[l, c] * g[l, c])
            centred[i, l] = relu(sum over c of (v[l, c] - m[c]) * g[l, c])

    To first order, `plain` is how much the score falls if the token is set to zero, and `centred` if it is
    set to the mean token of its image. Where a method scales tokens to one length before it scores, as by a
    LayerNorm, the gradient is at right angles to the token, and `plain` is 0 everywhere. Pairs are taken one
    by one. Raises ValueError for a method that scores by vectors.
    """
    if not method.pairwise:
        raise ValueError("scores of vectors have no gradient by tokens")
    maps = []
    for i in range(len(texts.vector)):
        image, text = rows(images, slice(i, i + 1)), rows(texts, slice(i, i + 1))
        with torch.enable_grad():
            tokens = image.tokens.detach().requires_grad_()
            score = method.score(image._replace(tokens=tokens), text)
            (slope,) = torch.autograd.grad(score.sum(), tokens)
        value, slope, real = tokens.detach().double(), slope.double(), image.mask[..., None]
        mean = value.masked_fill(~real, 0.0).sum(1, keepdim=True) / real.sum(1, keepdim=True).clamp(min=1)
        both = torch.stack([value, value - mean])  # [2, 1, L, D]
        heat = (both * slope).sum(-1)
        rounding = ROUNDING * both.norm(dim=-1) * slope.norm(dim=-1)
        maps.append(heat.masked_fill(heat <= rounding, 0.0).masked_fill(~image.mask, 0.0).float())
    plain, centred = torch.cat(maps, dim=1)
    return plain, centred


# The map of the last attention is after ReCLIP (Subramanian et al., arXiv 2204.05991), which takes the row of
# the class token of Id + mean over heads of relu(gradient * attention), without the class token itself. Here
# the rows of all tokens are summed: where a score reads the class token alone, as in ReCLIP, the gradient of
# all other rows is 0 and the map is the same.
#
# Weights are captured in the call of scaled dot-product attention, which all transformers here share.


class AttentionCapture(TorchFunctionMode):
    """While it is entered, attention over all patches is computed openly, and its last weights are captured.

    Only the operations after these weights have a gradient. A class token may stand before the patches.
    """

    def __init__(self, patches: int) -> None:
        super().__init__()
        self.patches = patches
        self.weight: Tensor | None = None  # [N, heads, rows that look, patches or 1 + patches]

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is not F.scaled_dot_product_attention or not torch.is_grad_enabled():
            return func(*args, **kwargs)
        query, key, value = args[:3]
        # Keys of all patches of the one image, not of a description or a window.
        plain = kwargs.get("attn_mask") is None and not kwargs.get("is_causal") and len(key) == 1
        if not plain or key.shape[-2] - self.patches not in (0, 1):
            return func(*args, **kwargs)
        scale = kwargs.get("scale") or query.shape[-1] ** -0.5
        weight = (query @ key.transpose(-1, -2) * scale).softmax(-1)
        self.weight = weight.detach().requires_grad_()
        return self.weight @ value


def attention_heat(method: Method, images: Images, texts: Encoded) -> Tensor:
    """The part of every patch of one image in its scores with texts, by the last attention: [M, L] >= 0

    images  one image; texts  [M] with tokens

    for text j:
        S = score(image, text j)
        A = weights of the last attention [heads, rows, columns], G = dS / dA
        for patch p, whose column is c:
            heat[j, p] = sum over rows r: mean over heads h of relu(G[h, r, c] * A[h, r, c])

    L is the number of patches on the grid of the encoder. Raises UserError where no attention goes over all
    of them.
    """
    assert method.grid is not None, "image tokens on no grid; call `require_patch_grid` first"
    with torch.enable_grad():
        with AttentionCapture(method.grid[0] * method.grid[1]) as capture:
            encoded = method.encode_images(images)
        if capture.weight is None:
            raise UserError(f"the image encoder never attends to all patches at once, {NO_MAP}")
        slopes = []
        for j in range(len(texts.vector)):
            score = method.score(encoded, rows(texts, slice(j, j + 1))).sum()
            (slope,) = torch.autograd.grad(score, capture.weight, retain_graph=True)
            slopes.append(slope[0])  # [heads, rows, columns]
    weight = capture.weight.detach()[0]
    heat = (torch.stack(slopes) * weight).relu().mean(1).sum(1)  # [M, columns]
    return heat[:, -capture.patches :].float()


def require_patch_grid(method: Method, name: str) -> None:
    """Raise UserError for a method whose image tokens lie on no grid of patches."""
    if method.grid is None:
        raise UserError(f"the image encoder of {name} has no grid of patches, {NO_MAP}")
