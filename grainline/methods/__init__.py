"""All methods by name. A plain dict: adding one is adding a line."""

from grainline.config import Config
from grainline.methods.base import Method
from grainline.methods.beta_clip import BetaCLIP, BetaCLIPConfig
from grainline.methods.caft import CAFT, CAFTConfig
from grainline.methods.clip import CLIP, CLIPConfig
from grainline.methods.flair import FLAIR, FLAIRConfig
from grainline.methods.himo import HiMo, HiMoConfig
from grainline.methods.maxsim import MaxSim, MaxSimConfig
from grainline.methods.siglip import SigLIP, SigLIPConfig
from grainline.methods.tgt import TGT, TGTConfig

METHODS: dict[str, tuple[type[Method], type[Config]]] = {
    "clip": (CLIP, CLIPConfig),
    "siglip": (SigLIP, SigLIPConfig),
    "himo": (HiMo, HiMoConfig),
    "beta_clip": (BetaCLIP, BetaCLIPConfig),
    "flair": (FLAIR, FLAIRConfig),
    "caft": (CAFT, CAFTConfig),
    "tgt": (TGT, TGTConfig),
    "maxsim": (MaxSim, MaxSimConfig),
}
