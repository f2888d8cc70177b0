"""Things that turn pixels or token ids into tokens. Each file: config, then class.

base         What an encoder is to a method: pixels or ids in; tokens and a pooled vector of its own width
             out.
cast         A vision transformer from fine to coarse, over superpixels instead of squares (CAST).
superpixels  Superpixels of a batch of images, by one of three ways under the contract of `nn.superpixels`.
text         A text transformer, causal or bidirectional, of any context length, trained from scratch.
tgt_text     The text side of the Text Group Transformer: tokens to groups, and a caption decoded from them.
towers       Two encoders and the projections of both into one shared space: the trunk of every dual encoder.
vit          A plain vision transformer, trained from scratch (Dosovitskiy et al., arXiv 2010.11929).
pretrained/  Encoders with weights that others trained: CLIP, SigLIP, ViT, Swin, BERT, GroupViT.
"""
