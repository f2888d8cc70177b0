"""Losses as pure functions of local rows and the gathered rows of all processes: no parameters, no state.

For one's own loop there are functions of tensors, in `functional.py` (docs/losses.md):

    from grainline.losses import info_nce, sigmoid, himo_loss, beta_cal, flair_loss, caft_loss, seps_triplet

batch             Losses of local rows with those of all processes, as terms; which texts are whose.
calibrated        beta-CAL of beta-CLIP: every text of an image with the image pooled by that text.
contrastive       Cross-entropy, sigmoid and triplet losses over a matrix of scores.
functional        The functions of tensors.
hide              HiDe of HiMo-CLIP: the principal part of the rows of a batch, with exact gradient.
molo              MoLo of HiMo-CLIP: captions, and their principal parts, against images.
text_conditioned  Losses and scores of images pooled by the text they are compared with (FLAIR, CAFT).
tiled/            Losses over all pairs of two lists of rows, computed in tiles.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from grainline.losses.functional import (
        beta_cal,
        caft_loss,
        flair_loss,
        himo_loss,
        info_nce,
        seps_triplet,
        sigmoid,
    )
    from grainline.losses.molo import MoLo

__all__ = [
    "MoLo",
    "beta_cal",
    "caft_loss",
    "flair_loss",
    "himo_loss",
    "info_nce",
    "seps_triplet",
    "sigmoid",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'grainline.losses' has no attribute {name!r}")
    from grainline.losses import functional

    return getattr(functional, name)


def __dir__() -> list[str]:
    return sorted(__all__)
