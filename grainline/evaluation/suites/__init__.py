"""Suites: from encodings to outcomes, and from outcomes to metrics.

cola           Multi-object accuracy, as COLA measures it: does each of two captions find its own of two
               pictures?
comprehension  Referring expressions: of the boxes in a picture, which one does an expression speak of?
fgovd          Fine-grained descriptions of regions: does the right one score higher than all that are
               almost right?
inactivity     Inactivity: does a text that has nothing to do with a picture look at nothing?
monotonicity   Monotonicity: does a picture score higher, the more of its caption is read?
phrases        Phrases: are the groups that a model makes of the tokens of a caption its annotated
               phrases?
ranking        Pairwise ranking accuracy: the share of probes whose right pair scores higher than the
               wrong one.
referring      Referring segmentation: does the heat of an expression cover the thing that it speaks of?
registry       Suites: from encodings to a result.
retrieval      Retrieval both ways, fold by fold: ranks as outcomes, and metrics from ranks.
similarity     Similarity: how alike an image looks to its own texts; and retrieval in a gallery made from
               own captions.
stability      Stability: how much does a sentence that has nothing to do with the picture change a score?
transfer       Transfer: a model that was trained on one set is measured by retrieval on another, without
               any tuning.
zeroshot       Classification by prompts: is the class of a picture the one whose prompts fit it best?
"""
