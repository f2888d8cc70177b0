"""SigLIP: binary classification of every pair of image and caption in the batch.

Zhai et al., arXiv 2303.15343. In three steps:
  1. encode image and caption into unit vectors of one shared space;
  2. scale all cosines of the batch and shift them by a learnt bias;
  3. a sigmoid loss for each pair, summed over texts and averaged over images (equation 1).

Differs from the paper: several captions of one image are all positives; foils join as negatives of every
image. The bias starts at -10 as in section 3, because negatives are many.
"""

import torch
from pydantic import Field
from torch import nn

from grainline.encoders.towers import TowersConfig
from grainline.losses.contrastive import sigmoid_loss
from grainline.methods.base import Method
from grainline.methods.shared import LogitScale
from grainline.types import Clock, Pair, Term


class SigLIPConfig(TowersConfig):
    """Encoders, and the scale and bias of the logits."""

    scale: float | None = Field(None, gt=0)  # at the start; None: that of the checkpoint, else 10
    max_scale: float | None = Field(1000.0, gt=1)  # guards against overflow; None: no bound, as in the paper
    bias: float | None = None  # at the start; None: that of the checkpoint, else -10


class SigLIP(Method):
    """Dual encoder with the pairwise sigmoid loss."""

    config_class = SigLIPConfig
    reads_words = False

    def __init__(self, cfg: SigLIPConfig) -> None:
        super().__init__(cfg)
        self.scale = LogitScale(cfg.scale or 10.0, cfg.max_scale)
        self.bias = nn.Parameter(torch.full((1,), -10.0 if cfg.bias is None else cfg.bias))

    def loss(self, local: Pair, gathered: Pair, clock: Clock) -> dict[str, Term]:  # noqa: ARG002
        return {"pairs": Term(1.0, sigmoid_loss(local, gathered, self.scale(), self.bias))}
