"""MoLo of HiMo-CLIP (arXiv 2511.06653): captions, and their principal parts, against images.

Equation 2 is cross-entropy both ways between images and captions, equation 3 the same between images and the
principal parts of captions (`hide.py`), equation 4 their weighted sum.
"""

from typing import Literal, NamedTuple

import torch.nn.functional as F
from torch import Tensor

from grainline.distributed import local_rows
from grainline.losses.batch import both_ways
from grainline.losses.hide import Principal, principal_part
from grainline.types import Encoded, Mean, Pair, Term


class MoLo(NamedTuple):
    """The settings, as `HiMoConfig` has them."""

    whole: float = 1.0
    component: float = 1.0
    threshold: float = 0.9
    group: int | None = None
    sides: Literal["texts", "both"] = "texts"
    unit: bool = False
    detach_basis: bool = False
    smoothing: float = 0.0
    detach_keys: bool = False


def molo(local: Pair, gathered: Pair, scales: tuple[Tensor, Tensor], cfg: MoLo) -> dict[str, Term]:
    """Equation 4: the terms of both losses, and facts about the principal parts.

    scales  of the logits, of one element each: of captions, and of principal parts
    """
    terms: dict[str, Term] = {}
    if cfg.whole > 0:
        terms |= _contrast(local, gathered, scales[0], cfg.whole, cfg)
    if cfg.component > 0:
        texts, principal = _principal(gathered.texts, cfg)
        images = _principal(gathered.images, cfg)[0] if cfg.sides == "both" else gathered.images
        parts = Pair(images, texts)
        own = parts
        if local.images is not gathered.images or local.texts is not gathered.texts:  # several processes
            own = Pair(*(local_rows(part, len(x.item)) for part, x in zip(parts, local, strict=True)))
        named = _contrast(own, parts, scales[1], cfg.component, cfg)
        terms |= {f"component {name}": term for name, term in named.items()}
        terms |= _statistics(gathered.texts, texts, principal)
    return terms


def _contrast(local: Pair, gathered: Pair, scale: Tensor, weight: float, cfg: MoLo) -> dict[str, Term]:
    """Equations 2 and 3: cross-entropy both ways over scaled dot products."""
    return both_ways(
        lambda a, b: scale * (a.vector @ b.vector.T), local, gathered, weight, cfg.smoothing, cfg.detach_keys
    )


def _principal(side: Encoded, cfg: MoLo) -> tuple[Encoded, Principal]:
    """Equation 1: the principal parts of captions, or of images. Foils and padding become padding."""
    real = (side.item >= 0) & (side.image >= 0)
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
