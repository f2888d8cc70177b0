"""The methods: one file per paper, and the table of their names.

base              The interface of a method, and its optional verbs.
beta_clip         beta-CLIP: every caption, sentence and phrase with the image as that text sees it.
caft              CAFT: parts of an image with parts of its caption, and both wholes.
clip              CLIP: cross-entropy of images and captions, one vector each.
flair             FLAIR: every caption of an image with the image as that caption sees it.
heat              Heat of texts over one image, for all methods.
himo              HiMo-CLIP: an image with its caption, and with the principal part of the caption.
laps              LAPS: the patches that a caption selects, as fewer tokens, against its words.
maxsim            MaxSim: every sentence of a caption finds its own place in the image.
mosaic            Mosaic: visual words of an image, with a text as its whole and its sentences.
seps              SEPS: the patches that a caption and a description select, against the words of the caption.
siglip            SigLIP: binary classification of all pairs of images and captions.
tgt               TGT (Text Group Transformer): the tokens of a caption fall into groups.
vse               VSE++: triplets with the hardest negatives of the batch.
shared            What several methods share: the scale of logits, losses, texts by image.
text_parts        Sub-captions and text-conditioned pooling, for CAFT and FLAIR.
patch_words       Patches against words: encoding, triplets, the method around a `Selector` (SEPS, LAPS).
"""

from grainline.config import load_class
from grainline.methods.base import Method

METHODS: dict[str, str] = {
    "clip": "grainline.methods.clip:CLIP",
    "siglip": "grainline.methods.siglip:SigLIP",
    "himo": "grainline.methods.himo:HiMo",
    "beta_clip": "grainline.methods.beta_clip:BetaCLIP",
    "flair": "grainline.methods.flair:FLAIR",
    "caft": "grainline.methods.caft:CAFT",
    "tgt": "grainline.methods.tgt:TGT",
    "maxsim": "grainline.methods.maxsim:MaxSim",
    "mosaic": "grainline.methods.mosaic:Mosaic",
    "seps": "grainline.methods.seps:SEPS",
    "laps": "grainline.methods.laps:LAPS",
    "vse": "grainline.methods.vse:VSE",
}


def method_class(name: str, where: str = "method") -> type[Method]:
    """The class of a method by its name here, or by "my_module:MyMethod"; see `config.load_class`."""
    cls: type[Method] = load_class(name, Method, METHODS, where)
    return cls
