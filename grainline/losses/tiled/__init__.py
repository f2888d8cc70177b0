"""Losses over all pairs of two lists of rows, computed in tiles.

chunked_cosine      The same on a GPU, a chunk of images with all texts at a time.
conditioned_cosine  The cosine of a text with the image pooled by it, for all pairs.
kernel_cosine       That with kernels of Triton, and kernel_lists for sampled negatives.
kernel_dots         Losses over inner products in half precision, with such kernels.
operands            Products with operands in half precision.
pair_loss           Losses over all pairs; the matrix of their scores is never stored.
pair_mask           Which rows are pairs: all of them by ids, or some, with a list of columns for each row.
scores              Scores of tiles and how gradients pass through them.
vocabulary          Cross-entropy over a large vocabulary; the logits of a batch are never stored.
"""
