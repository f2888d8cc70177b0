"""Losses over all pairs of two lists of rows, computed in tiles.

conditioned_cosine  The cosine of a text with what it pools of an image, for all pairs, without pooling
                    one out in full.
pair_loss           Losses over all pairs of two lists of rows, in tiles: the matrix of their scores is
                    never stored.
pair_mask           Which pairs of rows belong together: described by ids, never a matrix of all pairs.
sampled_pairs       Some pairs of two sides: for each row a list of columns.
scores              Scores of pairs by tiles, and how gradients pass through them: one half of a loss in
                    `pair_loss.py`.
vocabulary          Cross-entropy over a large vocabulary: the logits of a batch are never stored.
walk                What both kinds of losses in `pair_loss.py` share: the walk over tiles, and the sums
                    of their gradients.
"""
