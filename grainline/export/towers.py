"""The two halves of a method as functions of tensors: what a graph is made of.

Their inputs and outputs have the names that the graphs give them.
"""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from grainline.methods.base import Method
from grainline.types import Encoded, Images, Texts

OUTPUTS = ("vector", "tokens", "token_mask")


class Outputs(NamedTuple):
    """What both towers return, by the names in OUTPUTS."""

    vector: Tensor  # [N, D] float32, unit length
    tokens: Tensor  # [N, L, D] float32
    token_mask: Tensor  # [N, L] bool, True = real token


class ImageTower(nn.Module):
    """Pixels to vectors and tokens."""

    def __init__(self, method: Method) -> None:
        super().__init__()
        self.method = method

    def forward(self, pixels: Tensor) -> Outputs:
        """pixels [N, 3, size, size] uint8 in 0..255; mean and spread are inside"""
        number = torch.zeros(pixels.shape[0], dtype=torch.int64, device=pixels.device)
        return _outputs(self.method.encode_images(Images(pixels, number)))


class TextTower(nn.Module):
    """Ids to vectors and tokens."""

    def __init__(self, method: Method) -> None:
        super().__init__()
        self.method = method

    def forward(self, ids: Tensor, mask: Tensor) -> Outputs:
        """ids int64, mask bool: [M, L], or [M, S, L] for a method that reads parts; L <= context"""
        if self.method.parts == 1:
            ids, mask = ids[:, None], mask[:, None]
        number = torch.zeros(ids.shape[0], dtype=torch.int64, device=ids.device)
        return _outputs(self.method.encode_texts(Texts(ids, mask, number, number, number)))


def given(texts: Texts, parts: int) -> tuple[Tensor, Tensor]:
    """Ids and mask as the text tower of a method with so many parts takes them."""
    return (texts.ids[:, 0], texts.mask[:, 0]) if parts == 1 else (texts.ids, texts.mask)


def _outputs(encoded: Encoded) -> Outputs:
    return Outputs(encoded.vector, encoded.tokens, encoded.mask)
