"""A small method that pools an image by a text, and scores pairs in two ways."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from grainline.encoders.towers import TowersConfig
from grainline.losses.contrastive import both_ways
from grainline.methods import METHODS
from grainline.methods.base import Method, dot
from grainline.methods.shared import LogitScale
from grainline.nn.pooling import CrossPool
from grainline.types import Clock, Encoded, Pair, Term, rows

NAME = "seer"


class SeerConfig(TowersConfig):
    """A CLIP with a block over it."""

    scoring: Literal["vectors", "conditioned"] = "vectors"


class Seer(Method):
    """A CLIP with a pooling block over its image tokens."""

    config_class = SeerConfig

    def __init__(self, cfg: SeerConfig) -> None:
        super().__init__(cfg)
        self.scale = LogitScale(1 / 0.07, 100.0)
        self.pool = CrossPool(self.towers.space, heads=4)
        self.pairwise = cfg.scoring == "conditioned"

    def pool_images(self, images: Encoded, texts: Encoded) -> Tensor:
        return F.normalize(self.pool(texts.vector[:, None], images.tokens)[:, 0], dim=-1)

    def score(self, images: Encoded, texts: Encoded) -> Tensor:
        if not self.pairwise:
            return dot(images, texts)
        i, j = torch.cartesian_prod(torch.arange(len(images.item)), torch.arange(len(texts.item))).T
        report = rows(texts, j)
        return (self.pool_images(rows(images, i), report) * report.vector).sum(1).view(len(images.item), -1)

    def loss(self, local: Pair, gathered: Pair, clock: Clock) -> dict[str, Term]:  # noqa: ARG002
        scale = self.scale()
        return both_ways(lambda images, texts: scale * dot(images, texts), local, gathered)


@contextmanager
def known() -> Iterator[None]:
    """The method among all others."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(METHODS, NAME, f"{__name__}:Seer")
        yield
