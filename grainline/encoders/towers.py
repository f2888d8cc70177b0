"""Two encoders and the projections of both into one shared space: the trunk of every dual-encoder method."""

import torch
from pydantic import Field
from torch import Tensor, nn

from grainline.config import Config
from grainline.encoders.text import TextConfig, TextTransformer
from grainline.encoders.vit import ViT, ViTConfig
from grainline.nn.pool import unit
from grainline.types import Encoded, Images, Texts, full


class TowersConfig(Config):
    """The two encoders of a method, and the width of the space that they share."""

    image: ViTConfig
    text: TextConfig
    width: int = Field(512, gt=0)


class Towers(nn.Module):
    """Pictures and texts to unit vectors, and to tokens in the same space.

    Tokens are projected only outside training: no dual-encoder loss reads them, heat maps and indexes do.
    """

    def __init__(self, cfg: TowersConfig) -> None:
        super().__init__()
        self.image = ViT(cfg.image)
        self.text = TextTransformer(cfg.text)
        self.to_image = nn.Linear(self.image.width, cfg.width, bias=False)
        self.to_text = nn.Linear(self.text.width, cfg.width, bias=False)
        for layer in (self.to_image, self.to_text):
            nn.init.normal_(layer.weight, std=layer.in_features**-0.5)

    def encode_images(self, images: Images) -> Encoded:
        """images of N rows -> Encoded [N, D], tokens = patches"""
        seen = self.image(images.pixels)
        patches = seen.patches[:, :0] if self.training else seen.patches
        mask = torch.ones(patches.shape[:2], dtype=torch.bool, device=patches.device)
        vector = unit(self.to_image(seen.pooled))
        return Encoded(vector, self._tokens(self.to_image, patches), mask, images.image, images.image)

    def encode_texts(self, texts: Texts) -> Encoded:
        """texts of M rows, their S parts read one after the other -> Encoded [M, D], tokens = words"""
        ids, mask = flat_parts(texts)
        read = self.text(ids, mask)
        keep = 0 if self.training else ids.shape[1]
        vector = unit(self.to_text(read.pooled))
        return Encoded(
            vector,
            self._tokens(self.to_text, read.tokens[:, :keep]),
            read.mask[:, :keep],
            texts.item,
            texts.image,
        )

    def _tokens(self, project: nn.Linear, tokens: Tensor) -> Tensor:
        if tokens.shape[1] == 0:
            return full(tokens).new_zeros(tokens.shape[0], 0, project.out_features)
        return full(project(tokens))


def flat_parts(texts: Texts) -> tuple[Tensor, Tensor]:
    """The parts of each text as one run of tokens with all padding on the right: ids and mask [M, S * L]."""
    if texts.ids.shape[1] == 1:
        return texts.ids[:, 0], texts.mask[:, 0]
    ids, mask = texts.ids.flatten(1), texts.mask.flatten(1)
    order = (~mask).int().argsort(dim=1, stable=True)  # real tokens first, in their order
    return ids.gather(1, order), mask.gather(1, order)
