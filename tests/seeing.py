"""A small method that pools a picture by a text, and scores pairs in two ways."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from grainline.methods import METHODS
from grainline.methods.base import Method
from grainline.methods.clip import CLIP, CLIPConfig
from grainline.nn.cross import CrossPool
from grainline.types import Clock, Encoded, Images, Pair, Term, Texts, rows

NAME = "seer"


class SeerConfig(CLIPConfig):
    """A CLIP with a block over it."""

    scoring: Literal["vectors", "conditioned"] = "vectors"


class Seer(Method):
    """A CLIP with a pooling block over its image tokens."""

    def __init__(self, cfg: SeerConfig) -> None:
        super().__init__()
        self.clip = CLIP(CLIPConfig(**cfg.model_dump(exclude={"scoring"})))
        self.pool = CrossPool(self.clip.towers.space, heads=4)
        self.pairwise, self.distribution = cfg.scoring == "conditioned", False
        self.size, self.grid, self.context = self.clip.size, self.clip.grid, self.clip.context

    def encode_images(self, images: Images) -> Encoded:
        return self.clip.encode_images(images)

    def encode_texts(self, texts: Texts) -> Encoded:
        return self.clip.encode_texts(texts)

    def see(self, images: Encoded, texts: Encoded) -> Tensor:
        return F.normalize(self.pool(texts.vector[:, None], images.tokens)[:, 0], dim=-1)

    def score(self, images: Encoded, texts: Encoded) -> Tensor:
        if not self.pairwise:
            return self.clip.score(images, texts)
        i, j = torch.cartesian_prod(torch.arange(len(images.item)), torch.arange(len(texts.item))).T
        told = rows(texts, j)
        return (self.see(rows(images, i), told) * told.vector).sum(1).view(len(images.item), -1)

    def loss(self, mine: Pair, everyone: Pair, clock: Clock) -> dict[str, Term]:
        return self.clip.loss(mine, everyone, clock)

    def row_loss(self, texts: Texts, encoded: Encoded) -> dict[str, Term]:
        return self.clip.row_loss(texts, encoded)

    def heat(self, images: Encoded, texts: Encoded) -> Tensor:
        return self.clip.heat(images, texts)


@contextmanager
def known() -> Iterator[None]:
    """The method among all others."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(METHODS, NAME, (Seer, SeerConfig))
        yield
