"""Image encoders that know no texts: one table of those of the transformers library, and EfficientNet-Lite.

Tokens are the last patches, or the cells of the last feature map in reading order. What sums up an image is
what the library's own classifier or pooler of the kind reads: the class token where it is trained to (of
DINOv2 alone, as in its pooler), else the mean, behind the same norm as every cell.
"""

import math
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from grainline.encoders.base import ImageTokens
from grainline.encoders.pretrained.adapters import FixedNorm, ImageEncoder
from grainline.encoders.pretrained.archive import Stored
from grainline.encoders.pretrained.kind import Kind, Options, Pretrained, Source, sides_of
from grainline.encoders.pretrained.library import LibraryKind
from grainline.encoders.pretrained.preprocess import IMAGENET, KNOWN
from grainline.errors import UserError
from grainline.nn.runtime import is_static
from grainline.weights import state_dict_mismatch

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

    def check(self, name: str, config: dict[str, Any], options: Options) -> None:  # noqa: ARG002
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
            raise UserError(f"size {size} is below a window of the last stage, which needs {least} at least")

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


# EfficientNet-Lite, from a file with the names of efficientnet-pytorch: EfficientNet (Tan and Le, arXiv
# 1905.11946) without squeeze-and-excitation, with ReLU6, and with stem and head of one width. The weights are
# of TensorFlow: convolutions pad as "same" does there, and pixels are (byte - 127) / 128.

STRIDE = 32
STEM, HEAD = 32, 1280  # channels
STAGES = (  # blocks, kernel, stride of the first block, expansion, channels; in Lite0
    (1, 3, 1, 1, 16), (2, 3, 2, 6, 24), (2, 5, 2, 6, 40), (3, 3, 2, 6, 80), (3, 5, 1, 6, 112),
    (4, 5, 2, 6, 192), (1, 3, 1, 6, 320),
)  # fmt: skip
SIZES = {  # width and depth multipliers, side of the images
    "Lite0": (1.0, 1.0, 224), "Lite1": (1.0, 1.1, 240), "Lite2": (1.1, 1.2, 260), "Lite3": (1.2, 1.4, 280),
    "Lite4": (1.4, 1.8, 300),
}  # fmt: skip
PIECE = 4  # images that pass the network together on a CPU: what they become fits its cache


def conv_norm(x: Tensor, conv: nn.Conv2d, norm: Any) -> Tensor:
    """Convolution and norm as one: x [N, C, H, W] -> [N, D, ceil(H / stride), ceil(W / stride)]

    "same" of TensorFlow pads for that size, and an odd pixel stands on the right or below.
    """
    scale = norm.weight * (norm.running_var + norm.eps).rsqrt()
    weight, bias = conv.weight * scale.view(-1, 1, 1, 1), norm.bias - norm.running_mean * scale
    kernel, stride = conv.kernel_size[0], conv.stride[0]
    high, wide = (max((-(-n // stride) - 1) * stride + kernel - n, 0) for n in x.shape[2:])
    padding = (high // 2, wide // 2)
    if high % 2 or wide % 2:
        x, padding = F.pad(x, (wide // 2, wide - wide // 2, high // 2, high - high // 2)), (0, 0)
    return F.conv2d(x, weight, bias, stride, padding, groups=conv.groups)


_conv, _norm = partial(nn.Conv2d, bias=False), partial(FixedNorm, eps=1e-3)


class InvertedResidual(nn.Module):
    """Each pixel to more channels, each channel over its neighbours, back to few channels, and the sum."""

    def __init__(self, before: int, after: int, kernel: int, stride: int, expansion: int) -> None:
        super().__init__()
        width = before * expansion
        self.expands, self.adds = expansion > 1, stride == 1 and before == after
        if self.expands:
            self.expand_conv, self.bn0 = _conv(before, width, 1), _norm(width)
        self.depthwise_conv = _conv(width, width, kernel, stride, groups=width)
        self.bn1 = _norm(width)
        self.project_conv, self.bn2 = _conv(width, after, 1), _norm(after)

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu6(conv_norm(x, self.expand_conv, self.bn0), inplace=True) if self.expands else x
        y = F.relu6(conv_norm(y, self.depthwise_conv, self.bn1), inplace=True)
        y = conv_norm(y, self.project_conv, self.bn2)
        return y.add_(x) if self.adds else y


class EfficientNetLite(nn.Module):
    """The network without its classifier."""

    def __init__(self, width: float, depth: float) -> None:
        super().__init__()
        self.conv_stem, self.bn0 = _conv(3, STEM, 3, 2), _norm(STEM)
        blocks, before = [], STEM
        for i, (repeats, kernel, stride, expansion, channels) in enumerate(STAGES):
            # The closest multiple of 8 that is not below nine tenths of the channels.
            after = max(8, int(channels * width + 4) // 8 * 8)
            after += 8 * (after < 0.9 * channels * width)
            ends = i in (0, len(STAGES) - 1)
            for j in range(repeats if ends else math.ceil(repeats * depth)):
                blocks.append(InvertedResidual(before, after, kernel, 1 if j else stride, expansion))
                before = after
        self.blocks = nn.ModuleList(blocks)
        self.conv_head, self.bn1 = _conv(before, HEAD, 1), _norm(HEAD)

    def forward(self, x: Tensor) -> Tensor:
        """Normalised pixels [N, 3, H, W] -> [N, 1280, ceil(H / 32), ceil(W / 32)]"""
        x = x.contiguous(memory_format=torch.channels_last)
        x = F.relu6(conv_norm(x, self.conv_stem, self.bn0), inplace=True)
        for block in self.blocks:
            x = block(x)
        return F.relu6(conv_norm(x, self.conv_head, self.bn1), inplace=True)


class EfficientNetLiteImage(ImageEncoder):
    """The cells of the feature map in reading order; their mean sums up the image."""

    before = ("model.conv_stem", "model.bn0")
    behind = ("model.conv_head", "model.bn1")

    def forward(self, pixels: Tensor) -> ImageTokens:
        x = self.normalised(pixels)
        one_by_one = x.device.type == "cpu" and not torch.is_grad_enabled() and not is_static()
        pieces = x.split(PIECE) if one_by_one else (x,)
        return self.read(torch.cat([self.model(piece) for piece in pieces]).flatten(2).mT)


class EfficientNetLiteKind(Kind):
    """EfficientNet-Lite0 to 4."""

    averaged = True

    def read_file(self, file: Path, stored: Stored, options: Options, settings: Mapping[str, Any]) -> Source:  # noqa: ARG002
        """One of the SIZES: the one whose tensors have these names and shapes."""
        tensors = {name: x for name, x in stored.tensors.items() if not name.startswith("_fc.")}
        state = {name.replace("._", ".").removeprefix("_"): x for name, x in tensors.items()}
        with torch.device("meta"):
            sizes = {name: EfficientNetLite(*size[:2]).state_dict() for name, size in SIZES.items()}
        wrong = {name: state_dict_mismatch(state, size) for name, size in sizes.items()}
        closest = min(wrong, key=lambda name: len(wrong[name]))  # nothing is wrong with the right one
        if wrong[closest]:
            raise UserError(f"{file} is no EfficientNet-Lite; the closest is {closest}: {wrong[closest]}")
        width, depth, size = SIZES[closest]
        config = {"width": width, "depth": depth, "image_size": size, "patch_size": STRIDE}
        pixels = {"mean": [127 / 255] * 3, "spread": [128 / 255] * 3, "filter": "bicubic"}
        way = {"resize": "crop", "margin": (size + 32) / size}  # as the authors evaluate it
        left_out = ("_fc",) if "_fc.weight" in stored.tensors else ()
        return Source({"kind": self.name, "config": config, **pixels, **way}, state, None, left_out)

    def model(self, architecture: Mapping[str, Any]) -> EfficientNetLite:
        return EfficientNetLite(architecture["config"]["width"], architecture["config"]["depth"])

    def split(self, model: Any, architecture: Mapping[str, Any]) -> Pretrained:
        size = architecture["config"]["image_size"]
        grid = (-(-size // STRIDE),) * 2
        image = EfficientNetLiteImage(model, architecture, width=HEAD, size=size, grid=grid)
        return Pretrained(image.eval(), None, dict(architecture))
