"""Parts that belong to no paper.

attention    The pre-norm transformer block and a stack of them.
grouping     Many tokens to few: graph pooling of CAST with farthest point sampling, groups of GroupViT.
hashing      Random numbers from hashes of ids: the same in any order, batch and number of processes.
pooling      Pooling: mean and attention, by a text, by a text that may look at nothing, over rectangles.
patch_selection/  Scores of pairs in which a text selects patches of the image (SEPS, LAPS).
positions    Tables of learnt positions, for longer texts and larger images than they were learnt on.
runtime      What modules ask about how they run: while a graph is exported, and in which precision.
selection    Which patches stay for a text and how they become fewer, and the score of what stays (SEPS).
superpixels  Superpixels under one contract, and the mean of a feature map over them.
upsample     From values of image tokens to maps over pixels, to contrast against other texts, and to words.
"""
