"""Losses as pure functions of local rows and the gathered rows of all processes: no parameters, no state.

beta_cal          beta-CAL of beta-CLIP: every text of an image with the image pooled by that text.
contrastive       Cross-entropy, sigmoid and triplet losses over a matrix of scores.
hide              HiDe of HiMo-CLIP: the principal part of the rows of a batch, with exact gradient.
text_conditioned  Losses and scores of images pooled by the text they are compared with (FLAIR, CAFT).
tiled/            Losses over all pairs of two lists of rows, computed in tiles.
"""
