"""Attention maps: which patches the last attention takes up for the score of a pair, after ReCLIP's Grad-CAM.

ReCLIP (Subramanian et al., arXiv 2204.05991) takes the class token's row of Id + mean over heads of
relu(gradient * attention) in the last block, without the class token itself, where Id adds nothing. Its
scores read the class token alone. Here the rows of all tokens that look are added up: where nothing else is
read, the gradient of all other rows is 0 and the map is ReCLIP's; where a score reads patches, what they take
up counts as well, and an encoder without a class token needs no other rule.

The weights are caught where they are made, in the call of scaled dot-product attention, so that this needs no
place inside any encoder: our own transformers and those of the library call the same function. Decisions of a
score, such as which patches stay, are held fixed.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from grainline.errors import UserError
from grainline.evaluate.score import Scorer
from grainline.methods.base import Method
from grainline.types import Encoded, Images, rows


class Caught(TorchFunctionMode):
    """While it is entered, attention over all patches is computed openly, and its last weights are kept.

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
        """Whether these are keys of all patches of the one picture, not of a description or a window."""
        plain = kwargs.get("attn_mask") is None and not kwargs.get("is_causal")
        one = len(key) == 1 and key.shape[-2] - self.patches in (0, 1)
        return plain and one and torch.is_grad_enabled()


def attention_heat(method: Method, images: Images, texts: Encoded) -> Tensor:
    """What every patch of one picture gives to its scores with texts, through the last attention: [M, L] >= 0

    images  one picture; texts  [M] with tokens

    for text j:
        S = score(picture, text j)
        A = weights of the last attention [heads, rows, columns], G = dS / dA
        for patch p, whose column is c:
            heat[j, p] = sum over rows r: mean over heads h of relu(G[h, r, c] * A[h, r, c])

    L is the number of patches on the grid of the encoder. Raises UserError where no attention goes over all
    of them.
    """
    assert method.grid is not None, "image tokens on no grid; ask `refuse_unattended` first"
    with torch.enable_grad():
        with Caught(method.grid[0] * method.grid[1]) as caught:
            seen = method.encode_images(images)
        if caught.weight is None:
            raise unattended("image encoder", "never attends to all patches at once")
        slopes = [
            _slope(method, seen, rows(texts, slice(j, j + 1)), caught.weight)
            for j in range(len(texts.vector))
        ]
    weight = caught.weight.detach()[0]
    heat = (torch.stack(slopes) * weight).relu().mean(1).sum(1)  # [M, columns]
    return heat[:, -caught.patches :].float()


def _slope(method: Scorer, seen: Encoded, text: Encoded, weight: Tensor) -> Tensor:
    """dS / dA: [heads, rows, columns]; 0 where the score does not read what the attention made"""
    score = method.score(seen, text).sum()
    (slope,) = torch.autograd.grad(score, weight, retain_graph=True)
    return slope[0]


def refuse_unattended(method: Method, name: str) -> None:
    """Raise UserError for a method whose image tokens lie on no grid of patches."""
    if method.grid is None:
        raise unattended(f"image encoder of {name}", "has no grid of patches")


def unattended(what: str, why: str) -> UserError:
    """The error where there is no attention to make a map of."""
    return UserError(f"the {what} {why}, so it has no attention map; leave out --map attention")
