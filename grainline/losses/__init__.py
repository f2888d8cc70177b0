"""Losses as pure functions: mine against everyone's, no ranks, no parameters, no state.

beta_cal          beta-CAL of beta-CLIP (arXiv 2512.12678): every text of an image with the image as
                  that text sees it.
contrastive       Losses over a matrix of scores between my rows and everyone's.
hide              What sets the rows of a batch apart: their principal part, with an exact gradient that
                  is always finite.
text_conditioned  Losses and scores of images that are pooled by the very text they are compared with
                  (FLAIR, CAFT).
triplet           Losses of SEPS and its neighbours: triplets with a margin, and the share of patches that
                  stays.
tiled/            Losses over all pairs of two lists of rows, computed in tiles.
"""
