"""All methods by name. A plain dict: adding one is adding a line."""

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
