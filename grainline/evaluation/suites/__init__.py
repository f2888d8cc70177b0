"""Suites: from encodings to outcomes, and from outcomes to metrics.

cola            Multi-object accuracy of COLA: does each of two captions find its own of two images?
comprehension   Referring expressions: of the boxes in an image, which one does an expression refer to?
fgovd           Fine-grained descriptions of regions: the right one against foils.
gradient_maps   Which image tokens raise a score, and which the last attention reads.
grouped         Captions with marked phrases, the groups that a model makes of their tokens, and clusters.
inactivity      Does a text that has nothing to do with an image attend to nothing?
long_retrieval  Retrieval with long captions, both ways.
monotonicity    Does an image score higher, the more of its caption is read? Cumulative subtexts.
phrases         Are the groups that a model makes of the tokens of a caption its annotated phrases? Rules.
probes          The share of probes whose right pair scores higher than the wrong one.
referring       Referring segmentation: does the heat of an expression cover the thing that it refers to?
regions         What the suites of regions share; sums, means and IoU of boxes.
retrieval       Retrieval both ways, fold by fold: ranks as outcomes, and metrics from ranks.
similarity      How alike an image looks to its own texts; retrieval in a gallery made from own captions.
stability       How much does a sentence that has nothing to do with the image change a score?
zeroshot        Classification by prompts: is the class of an image the one whose prompts fit it best?
"""
