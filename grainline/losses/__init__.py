"""Losses as pure functions of local rows and the gathered rows of all processes: no parameters, no state.

For one's own loop there are functions of tensors, in `functional.py` (docs/losses.md):

    from grainline.losses import info_nce, sigmoid, himo_loss, beta_cal, flair_loss, caft_loss, seps_triplet

calibrated        beta-CAL of beta-CLIP: every text of an image with the image pooled by that text.
contrastive       Cross-entropy, sigmoid and triplet losses over a matrix of scores; which texts are whose.
functional        The functions of tensors.
hide              HiDe and MoLo of HiMo-CLIP: principal parts of a batch with exact gradient, and both losses.
text_conditioned  Losses and scores of images pooled by the text they are compared with (FLAIR, CAFT).
tiled/            Losses over all pairs of two lists of rows, computed in tiles.
"""

from grainline.losses.functional import (
    beta_cal,
    caft_loss,
    flair_loss,
    himo_loss,
    info_nce,
    seps_triplet,
    sigmoid,
)
from grainline.losses.hide import MoLo

__all__ = ["MoLo", "beta_cal", "caft_loss", "flair_loss", "himo_loss", "info_nce", "seps_triplet", "sigmoid"]
