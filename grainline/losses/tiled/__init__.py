"""Losses over all pairs of two lists of rows, computed in tiles.

pair_loss   Losses over all pairs, or over a vocabulary; the matrix of their scores is never stored.
pair_mask   Which rows are pairs: all of them by ids, or some, with a list of columns for each row.
scores      Scores of tiles, their gradients, and the precision of their products; cosines of pooled images.
"""
