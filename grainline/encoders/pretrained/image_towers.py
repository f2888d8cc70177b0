"""Image encoders of the transformers library that know no texts: one table of all kinds.

Tokens are the last patches, or the cells of the last feature map in reading order. What sums up an image is
what the library's own classifier or pooler of the kind reads: the class token where it is trained to, else
the mean, behind the same norm as every cell. DINOv2's classifier reads class token and mean side by side;
here it is the class token alone, as in its pooler. Registers and DEiT's distillation token are neither.
"""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from grainline.encoders.base import ImageTokens
from grainline.encoders.pretrained.adapters import ImageEncoder
from grainline.encoders.pretrained.kind import Options, Pretrained, Source, sides_of
from grainline.encoders.pretrained.library import LibraryKind
from grainline.encoders.pretrained.preprocess import IMAGENET, KNOWN
from grainline.errors import UserError

_TABLE = "embeddings.position_embeddings"
_CUT = {**KNOWN["bit"], **IMAGENET, "margin": 256 / 224}
_CONVNEXT = {**KNOWN["convnext"], **IMAGENET}


class Tower(NamedTuple):
    """A kind in the table: settings of the library, and what is known of the last hidden state."""

    pixels: Mapping[str, Any]  # how images are prepared where the folder does not say it
    lead: int = 0  # tokens before the patches without registers; the first sums up the image
    table: str = ""  # of positions, a row for each patch behind those of the tokens before
    step: int = 0  # another size of images must be a multiple of it; 0: of the side of a patch
    any_size: bool = False  # the library reads images of any size
    norm: str = ""  # a norm behind the model: of the mean, and here of every patch too


TOWERS = {
    "vit": Tower(KNOWN["vit"], 1, _TABLE),
    "deit": Tower({**KNOWN["deit"], **IMAGENET}, 2, _TABLE),
    "vit_msn": Tower(_CUT, 1, _TABLE),
    "ijepa": Tower({**KNOWN["vit"], **IMAGENET}, 0, _TABLE),
    "beit": Tower(KNOWN["beit"], 1, _TABLE, norm="pooler.layernorm"),
    "dinov2": Tower(_CUT, 1, _TABLE, any_size=True),
    "dinov2_with_registers": Tower(_CUT, 1, _TABLE, any_size=True),
    "dinov3_vit": Tower(KNOWN["dinov3vit"], 1, any_size=True),
    "dinov3_convnext": Tower(KNOWN["dinov3vit"], 1, step=32, any_size=True),
    "swin": Tower(KNOWN["swin"], 0, _TABLE),
    "swinv2": Tower(KNOWN["swin"], 0, _TABLE),
    "convnext": Tower(_CONVNEXT, step=32, any_size=True, norm="layernorm"),
    "convnextv2": Tower(_CONVNEXT, step=32, any_size=True, norm="layernorm"),
    "resnet": Tower(_CONVNEXT, step=32, any_size=True),
    "regnet": Tower(_CONVNEXT, step=32, any_size=True),
    "efficientnet": Tower({**KNOWN["efficientnet"], **IMAGENET}, step=32, any_size=True),
    "mobilenet_v1": Tower(KNOWN["mobilenetv1"], step=32, any_size=True),
    "mobilenet_v2": Tower(KNOWN["mobilenetv2"], step=32, any_size=True),
}


class VisionImage(ImageEncoder):
    """An image model of the library, by its row of the table."""

    def __init__(self, model: Any, architecture: Mapping[str, Any]) -> None:
        """The architecture has the shape of an image's last hidden state, [1, L, W] or [1, W, R, C]."""
        tower, config = TOWERS[architecture["kind"]], sides_of(architecture)["image"]
        lead, shape = tower.lead + config.get("num_register_tokens", 0), architecture["hidden"]
        side = shape[2] if len(shape) == 4 else math.isqrt(shape[1] - lead)
        width = shape[1] if len(shape) == 4 else shape[2]
        super().__init__(model, architecture, width=width, grid=(side, side))
        self.lead = lead
        self.norm = tower.norm if f"{tower.norm}.weight" in model.state_dict() else ""
        self.classed = tower.lead > 0 and not self.norm

    def read(self, hidden: Tensor) -> ImageTokens:
        x = hidden.flatten(2).transpose(1, 2) if hidden.ndim == 4 else hidden
        patches = x[:, self.lead :]
        if self.classed:
            return ImageTokens(x[:, 0], x[:, 0], patches)
        norm: Any = self.model.get_submodule(self.norm) if self.norm else nn.Identity()
        return ImageTokens(norm(patches.mean(1)), None, norm(patches))


class Vision(LibraryKind):
    """A kind in the table."""

    image_encoder = VisionImage
    left_out = r"(pooler|decoder|lm_head|\w*classifier|segmentation_head)\b.*|embeddings\.mask_token"

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.tower = tower = TOWERS[name]
        self.pixels, self.any_size = tower.pixels, tower.any_size
        self.grid, self.lead, self.antialias = tower.table, tower.lead, "registers" in name
        self.averaged = not tower.lead and not tower.norm

    def check(self, name: str, config: dict[str, Any], options: Options) -> None:
        super().check(name, config, options)
        config.setdefault("image_size", 224)  # where a network does not say what it was trained on
        if (pool := config.get("pooling_type", "mean")) != "mean":
            raise UserError(f"{name} sums up images by their {pool}; only means can be read")
        for noise in {"pos_embed_shift", "pos_embed_jitter", "pos_embed_rescale"} & config.keys():
            config[noise] = None  # in training, from torch's generator

    def check_size(self, config: Mapping[str, Any], size: int) -> None:
        super().check_size({"patch_size": self.tower.step or config["patch_size"]}, size)
        least = config.get("window_size", 0) * config.get("patch_size", 1)
        least <<= len(config.get("depths", [0])) - 1
        if size < least:
            wrong = f"size {size} is smaller than a window of the last stage"
            raise UserError(f"{wrong}; this Swin needs {least} at least")

    def fit(self, source: Source, options: Options) -> Source:
        config = source.architecture["config"]
        before, source = config["image_size"], super().fit(source, options)
        if self.name == "beit":  # a table of each layer, a row for each distance of two patches
            old, new = (2 * (side // config["patch_size"]) - 1 for side in (before, config["image_size"]))
            for name in [name for name in source.state if name.endswith("relative_position_bias_table")]:
                table = source.state[name]
                grid = table[:-3].unflatten(0, (old, old)).permute(2, 0, 1)[None]
                grid = F.interpolate(grid, (new, new), mode="bilinear")[0]
                source.state[name] = torch.cat([grid.permute(1, 2, 0).flatten(0, 1), table[-3:]])
        return source

    @torch.no_grad()
    def split(self, model: Any, architecture: Mapping[str, Any]) -> Pretrained:
        if "hidden" not in architecture:  # it is measured once: run folders have it
            side = architecture["config"]["image_size"]
            hidden = model.eval()(pixel_values=torch.zeros(1, 3, side, side)).last_hidden_state
            architecture = {**architecture, "hidden": list(hidden.shape)}
        return super().split(model, architecture)
