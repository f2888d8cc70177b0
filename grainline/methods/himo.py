"""HiMo-CLIP: contrastive alignment with captions, and with their principal components in the batch.

Wu, Chen et al., arXiv 2511.06653. In four steps:
  1. encode image and caption into unit vectors of one shared space, as CLIP does;
  2. HiDe: project the captions of a batch onto the principal components that hold most of their variance
     (equation 1);
  3. MoLo: cross-entropy both ways between images and captions (equation 2), and again between images and
     the principal parts of captions (equation 3), added up (equation 4);
  4. afterwards nothing of this is left: the model is a CLIP and scores by cosine.

Differs from the authors' code: a group of captions is as large as `group` says, whatever the number of
processes; vectors learn as queries and as candidates, unless `detach_keys` says otherwise; the gradient
through the basis is finite where captions repeat. Several captions of one image are positives of equal
weight; foils join the first loss only: their principal part is nearly that of the caption that they were made
from.
"""

from typing import Literal

import torch.nn.functional as F
from pydantic import Field, model_validator

from grainline.distributed import local_rows
from grainline.losses.hide import Principal, principal_part
from grainline.methods.base import dot
from grainline.methods.clip import CLIP, CLIPConfig
from grainline.methods.shared import both_ways, logged
from grainline.types import Clock, Encoded, Mean, Pair, Term


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
        terms: dict[str, Term] = {}
        if self.cfg.whole > 0:
            terms |= self._contrast(local, gathered, self.cfg.whole)
        if self.cfg.component > 0:
            texts, principal = self._principal(gathered.texts)
            images = self._principal(gathered.images)[0] if self.cfg.sides == "both" else gathered.images
            parts = Pair(images, texts)
            own = parts
            if local.images is not gathered.images or local.texts is not gathered.texts:  # several processes
                own = Pair(*(local_rows(part, len(x.item)) for part, x in zip(parts, local, strict=True)))
            named = self._contrast(own, parts, self.cfg.component)
            terms |= {f"component {name}": term for name, term in named.items()}
            terms |= _statistics(gathered.texts, texts, principal)
        return terms | logged(scale=self.scale())

    def _contrast(self, local: Pair, gathered: Pair, weight: float) -> dict[str, Term]:
        """Equations 2 and 3: cross-entropy both ways over scaled dot products."""
        scale, cfg = self.scale(), self.cfg
        return both_ways(
            lambda a, b: scale * dot(a, b), local, gathered, weight, cfg.smoothing, cfg.detach_keys
        )

    def _principal(self, side: Encoded) -> tuple[Encoded, Principal]:
        """Equation 1: the principal parts of captions, or of images. Foils and padding become padding."""
        cfg, real = self.cfg, (side.item >= 0) & (side.image >= 0)
        principal = principal_part(
            side.vector, real, cfg.threshold, group=cfg.group, detach_basis=cfg.detach_basis
        )
        rows = F.normalize(principal.rows, dim=-1) if cfg.unit else principal.rows
        return side._replace(vector=rows, item=side.item.masked_fill(~real, -1)), principal


def _statistics(texts: Encoded, parts: Encoded, principal: Principal) -> dict[str, Term]:
    """Statistics of a batch for the log: the variance that principal parts keep, their norms and cosines."""
    real = (parts.item >= 0).float()
    norm = parts.vector.detach().norm(dim=-1)
    cosine = F.cosine_similarity(parts.vector.detach(), texts.vector.detach(), dim=-1)
    groups = (principal.size > 0).float()
    return {
        name: Term(None, Mean((value * weight).sum(), weight.sum()))
        for name, value, weight in (
            ("components", principal.components, groups),
            ("variance kept", principal.share, groups),
            ("principal norm", norm, real),
            ("principal cosine", cosine, real),
        )
    }
