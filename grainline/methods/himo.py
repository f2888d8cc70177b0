"""HiMo-CLIP: contrastive alignment with captions, and with their principal components in the batch.

Wu, Chen et al., arXiv 2511.06653. In four steps:
  1. encode image and caption into unit vectors of one shared space, as CLIP does;
  2. HiDe: project the captions of a batch onto the principal components that hold most of their variance
     (equation 1);
  3. MoLo: cross-entropy both ways between images and captions (equation 2), and again between images and
     the principal parts of captions (equation 3), added up (equation 4);
  4. afterwards nothing of this is left: the model is a CLIP and scores by cosine.

docs/methods/himo-clip.md says what differs from the authors' code. Several captions of one image are
positives of equal weight; foils join the first loss only: their principal part is nearly that of the caption
that they were made from.
"""

from typing import Literal

from pydantic import Field, model_validator

from grainline.losses.hide import MoLo, molo
from grainline.methods.clip import CLIP, CLIPConfig
from grainline.methods.shared import logged
from grainline.types import Clock, Pair, Term


class HiMoConfig(CLIPConfig):
    """Encoders, scale, the two losses and how the principal part is taken."""

    whole: float = Field(1.0, ge=0)  # weight of the loss over whole captions
    component: float = Field(1.0, ge=0)  # weight of the loss over their principal parts: lambda
    threshold: float = Field(0.9, gt=0, le=1)  # share of the variance that components hold: tau
    group: int | None = Field(None, gt=1)  # captions that share a basis; None: all of the global batch
    sides: Literal["texts", "both"] = "texts"  # "both" takes the principal part of images as well
    unit: bool = False  # bring principal parts to unit length
    detach_basis: bool = False  # components are constants of the backward pass
    smoothing: float = Field(0.0, ge=0, lt=1)  # of labels
    detach_keys: bool = False  # vectors learn as queries only

    @model_validator(mode="after")
    def _learns(self) -> "HiMoConfig":
        if self.whole == 0 and self.component == 0:
            raise ValueError("whole and component are both 0, so there is no loss; give one a weight")
        return self


class HiMo(CLIP):
    """Dual encoder with the monotonicity-aware contrastive loss."""

    config_class = HiMoConfig
    cfg: HiMoConfig

    def loss(self, local: Pair, gathered: Pair, clock: Clock) -> dict[str, Term]:  # noqa: ARG002
        scales = self.scale(), self.scale()  # each loss has its own gradient by the scale
        settings = MoLo(*(getattr(self.cfg, name) for name in MoLo._fields))
        return molo(local, gathered, scales, settings) | logged(scale=self.scale())
