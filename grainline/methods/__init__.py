"""All methods by name. A plain dict: adding one is adding a line.

base              What every method can do: six verbs, and two optional steps (docs/layout.md).
beta_clip         beta-CLIP: every caption, sentence and phrase is aligned with the picture as that text
                  sees it.
caft              CAFT: parts of a picture meet parts of its caption, and the whole picture meets the
                  whole caption.
clip              CLIP: a picture and its caption are one vector each, and each finds the other among the
                  batch.
flair             FLAIR: every caption of a picture is compared with the picture as that caption sees it.
himo              HiMo-CLIP: a picture finds its caption, and the part of the caption that sets it apart
                  in the batch.
laps              LAPS: the patches of a picture that a caption calls for, as fewer tokens, against its
                  words.
maxsim            MaxSim: every sentence of a caption looks for its own place in the picture.
seps              SEPS: the patches of a picture that a caption and a description call for, against the
                  words of the caption.
shared            Steps that several methods share, as functions.
siglip            SigLIP: every picture and caption of the batch is a yes-or-no question of its own.
text_parts        Sub-captions: read each by itself, laid out over all processes, and asked of segments.
tgt               TGT (Text Group Transformer): the tokens of a caption fall into groups that a picture
                  can be found by.
vse               VSE++: a picture and its caption are one vector each; the hardest other one of the batch
                  is pushed away.
patch_selection/  Methods in which a text chooses the patches of an image that it is compared with (SEPS,
                  LAPS).
"""

from grainline.encoders.towers import TowersConfig
from grainline.methods.base import Method
from grainline.methods.beta_clip import BetaCLIP, BetaCLIPConfig
from grainline.methods.caft import CAFT, CAFTConfig
from grainline.methods.clip import CLIP, CLIPConfig
from grainline.methods.flair import FLAIR, FLAIRConfig
from grainline.methods.himo import HiMo, HiMoConfig
from grainline.methods.laps import LAPS, LAPSConfig
from grainline.methods.maxsim import MaxSim, MaxSimConfig
from grainline.methods.seps import SEPS, SEPSConfig
from grainline.methods.siglip import SigLIP, SigLIPConfig
from grainline.methods.tgt import TGT, TGTConfig
from grainline.methods.vse import VSE, VSEConfig

METHODS: dict[str, tuple[type[Method], type[TowersConfig]]] = {
    "clip": (CLIP, CLIPConfig),
    "siglip": (SigLIP, SigLIPConfig),
    "himo": (HiMo, HiMoConfig),
    "beta_clip": (BetaCLIP, BetaCLIPConfig),
    "flair": (FLAIR, FLAIRConfig),
    "caft": (CAFT, CAFTConfig),
    "tgt": (TGT, TGTConfig),
    "maxsim": (MaxSim, MaxSimConfig),
    "seps": (SEPS, SEPSConfig),
    "laps": (LAPS, LAPSConfig),
    "vse": (VSE, VSEConfig),
}
