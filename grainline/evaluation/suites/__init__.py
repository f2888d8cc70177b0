"""Suites: from encodings to outcomes, and from outcomes to metrics.

annotations    Captions with their annotated phrases; and the same with their words in another order.
baselines      tIoU of groups of tokens against phrases, and the rules and clusterings to compare with.
cola           Multi-object accuracy, as COLA measures it: does each of two captions find its own of two
               images?
comprehension  Referring expressions: of the boxes in an image, which one does an expression refer to?
expressions    What the suites of referring expressions share; scores and IoU of boxes.
fgovd          Fine-grained descriptions of regions: does the right one score higher than all that are
               almost right?
gradient_maps  Which image tokens raise a score, and which the last attention reads.
grouped        The groups that a model makes of the tokens of captions, and clusters of their states.
inactivity     Does a text that has nothing to do with an image attend to nothing?
monotonicity   Monotonicity: does an image score higher, the more of its caption is read?
phrases        Phrases: are the groups that a model makes of the tokens of a caption its annotated
               phrases?
ranking        Pairwise ranking accuracy: the share of probes whose right pair scores higher than the
               wrong one.
referring      Referring segmentation: does the heat of an expression cover the thing that it refers to?
registry       Suites: from encodings to a result.
retrieval      Retrieval both ways, fold by fold: ranks as outcomes, and metrics from ranks.
similarity     Similarity: how alike an image looks to its own texts; and retrieval in a gallery made from
               own captions.
stability      Stability: how much does a sentence that has nothing to do with the image change a score?
transfer       Transfer: a model that was trained on one set is measured by retrieval on another, without
               any tuning.
zeroshot       Classification by prompts: is the class of an image the one whose prompts fit it best?
"""
