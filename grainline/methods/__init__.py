"""The methods: one file per paper, and the table of their names.

base              The interface of a method: six verbs, six optional ones, and what each of them promises.
beta_clip         beta-CLIP: every caption, sentence and phrase is aligned with the image as that text
                  sees it.
caft              CAFT: parts of an image meet parts of its caption, and the whole image meets the
                  whole caption.
clip              CLIP: an image and its caption are one vector each, and each finds the other among the
                  batch.
flair             FLAIR: every caption of an image is compared with the image as that caption sees it.
himo              HiMo-CLIP: an image finds its caption, and the part of the caption that sets it apart
                  in the batch.
laps              LAPS: the patches of an image that a caption calls for, as fewer tokens, against its
                  words.
maxsim            MaxSim: every sentence of a caption looks for its own place in the image.
seps              SEPS: the patches of an image that a caption and a description call for, against the
                  words of the caption.
shared            Steps that several methods share, as functions.
siglip            SigLIP: every image and caption of the batch is a yes-or-no question of its own.
text_parts        Sub-captions: read each by itself, laid out over all processes, and asked of segments.
tgt               TGT (Text Group Transformer): the tokens of a caption fall into groups that an image
                  can be found by.
vse               VSE++: an image and its caption are one vector each; the hardest other one of the batch
                  is pushed away.
patch_selection/  Methods in which a text chooses the patches of an image that it is compared with (SEPS,
                  LAPS).
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
    "seps": "grainline.methods.seps:SEPS",
    "laps": "grainline.methods.laps:LAPS",
    "vse": "grainline.methods.vse:VSE",
}


def method_class(name: str, where: str = "method", *, trust_code: bool = True) -> type[Method]:
    """The class of a method by its name here, or by "my_module:MyMethod"; see `config.load_class`."""
    cls: type[Method] = load_class(name, Method, METHODS, where, trust_code=trust_code)
    return cls
