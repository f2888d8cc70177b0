"""Losses over all pairs of two lists of rows, computed in tiles.

conditioned_cosine  The cosine of a text with the image pooled by it, for all pairs.
pair_loss           Losses over all pairs; the matrix of their scores is never stored.
pair_mask           Which rows are pairs: all of them by ids, or some, with a list of columns for each row.
scores              Scores of tiles, how gradients pass through them, and the precision of their products.
vocabulary          Cross-entropy over a large vocabulary; the logits of a batch are never stored.
"""
