"""SigLIP: every picture and caption of the batch is a yes-or-no question of its own.

Zhai et al., arXiv 2303.15343. In three steps:
  1. encode picture and caption into unit vectors of one shared space;
  2. scale all cosines of the batch and shift them by a learnt bias;
  3. a sigmoid loss for each pair, summed over texts and averaged over pictures (equation 1).

Differs from the paper: several captions of one picture are all positives; foils join as negatives of every
picture. The bias starts at -10 as in section 3, because negatives are many.
"""

import torch
from pydantic import Field
from torch import nn

from grainline.encoders.towers import TowersConfig
from grainline.losses.contrastive import sigmoid
from grainline.methods.base import Method, dot
from grainline.nn.scale import LogitScale
from grainline.types import Clock, Pair, Term, same_image


class SigLIPConfig(TowersConfig):
    """Encoders, and the scale and bias of the logits."""

    scale: float | None = Field(None, gt=0)  # at the start; None: that of the checkpoint, else 10
    max_scale: float | None = Field(1000.0, gt=1)  # guards against overflow; None: no bound, as in the paper
    bias: float | None = None  # at the start; None: that of the checkpoint, else -10


class SigLIP(Method):
    """Dual encoder with the pairwise sigmoid loss."""

    def __init__(self, cfg: SigLIPConfig) -> None:
        super().__init__(cfg)
        self.scale = LogitScale(cfg.scale or 10.0, cfg.max_scale)
        self.bias = nn.Parameter(torch.full((1,), -10.0 if cfg.bias is None else cfg.bias))

    def loss(self, mine: Pair, everyone: Pair, clock: Clock) -> dict[str, Term]:  # noqa: ARG002
        logits = self.scale() * dot(mine.images, everyone.texts) + self.bias  # [n, M]
        real = (mine.images.item >= 0)[:, None] & (everyone.texts.item >= 0)
        positive = same_image(mine.images, everyone.texts)
        return {"pairs": Term(1.0, sigmoid(logits, positive, real))}
