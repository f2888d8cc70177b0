"""SigLIP and SigLIP 2, for images of one size or of any shape (NaFlex), and FG-CLIP 2, built on the latter.

Images of any shape come as patches in rows (`Images.pixels`). Rows behind the last patch are masked.
"""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from grainline.encoders.base import ImageTokens
from grainline.encoders.pretrained.adapters import ImageEncoder
from grainline.encoders.pretrained.clip_towers import ClipText
from grainline.encoders.pretrained.hub import weights_of
from grainline.encoders.pretrained.kind import Options, Published, Source, sides_of
from grainline.encoders.pretrained.library import TwoSided, Weights
from grainline.encoders.pretrained.preprocess import KNOWN
from grainline.errors import UserError
from grainline.nn.positions import KEEP


class SiglipImage(ImageEncoder):
    """The image side: patches, and an attention pool that sums up."""

    def read(self, hidden: Tensor) -> ImageTokens:
        """Each patch as the attention pool would summarise an image of this patch alone."""
        head: Any = self.model.head
        width, attention = hidden.shape[-1], head.attention
        value = F.linear(hidden, attention.in_proj_weight[2 * width :], attention.in_proj_bias[2 * width :])
        each = attention.out_proj(value)
        return ImageTokens(head(hidden), None, each + head.mlp(head.layernorm(each)))


class SiglipText(ClipText):
    """The text side, which was trained on padding, without a mask, and sums up at the last position."""

    whole = True

    def read(self, ids: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:  # noqa: ARG002
        model: Any = self.model
        hidden = model.head(model(input_ids=ids).last_hidden_state)
        return hidden, hidden[:, -1]


class Siglip(TwoSided):
    """SiglipModel."""

    vectors, image_encoder = True, SiglipImage
    text_encoder: Any = SiglipText
    grid: str | None = "vision_model.embeddings.position_embedding.weight"
    pixels = KNOWN["siglip"]

    def check(self, name: str, config: dict[str, Any], options: Options) -> None:  # noqa: ARG002
        if not sides_of({"config": config})["image"].get("vision_use_head", True):
            raise UserError(f"{name} has no attention pool (vision_use_head), so no vector for an image")


class SiglipVision(Siglip):
    """SiglipVisionModel, the image side alone."""

    grid, row, text_encoder = "embeddings.position_embedding.weight", "", None


class NaflexImage(SiglipImage):
    """The image side: patches, and an attention pool; `dense` is a second one, for each patch (FG-CLIP 2)."""

    segmented = True
    behind = (*SiglipImage.behind, "dense")

    def __init__(self, model: nn.Module, architecture: Mapping[str, Any], dense: nn.Module | None) -> None:
        config, most = sides_of(architecture)["image"], architecture["max_num_patches"][-1]
        size = config["patch_size"] * math.ceil(math.sqrt(most))
        super().__init__(model, architecture, width=config["hidden_size"], size=size, grid=None)
        self.dense: Any = dense

    def forward(self, pixels: Tensor) -> ImageTokens:
        """pixels [N, 3, 1 + L, p * p] uint8 or float -> ImageTokens"""
        digits = (pixels[:, 0, 0, :4].float() * (1 if pixels.dtype == torch.uint8 else 255)).round().long()
        shapes = digits[:, ::2] * 256 + digits[:, 1::2]  # [N, 2] rows and columns
        number, length = shapes.prod(1), pixels.shape[2] - 1
        longest = int(number.max()) if len(number) else length
        mask = torch.arange(length, device=pixels.device) < number[:, None]
        real, rows = mask[:, :longest], self.normalised(pixels[:, :, 1 : 1 + longest])
        out = self.model(
            pixel_values=rows.permute(0, 2, 3, 1).flatten(2),
            pixel_attention_mask=real.long(),
            spatial_shapes=shapes,
        )
        hidden, head = out.last_hidden_state, self.dense
        if head is None:
            each = self.read(hidden).patches
        else:
            each = head.attention(hidden, hidden, hidden, key_padding_mask=~real, need_weights=False)[0]
            each = each + head.mlp(head.layernorm(each))
        tokens = ImageTokens(out.pooler_output, None, F.pad(each, (0, 0, 0, length - longest)), mask)
        return tokens if self.training else tokens._replace(places=patch_places(shapes, self.size))


def patch_places(shapes: Tensor, size: int) -> Tensor:
    """The patch of each pixel of images of N rows and columns of patches, pressed into a square: [N, S, S]"""
    middle = 2 * torch.arange(size, device=shapes.device) + 1
    row, column = (middle * number[:, None] // (2 * size) for number in shapes.unbind(1))
    return (row[:, :, None] * shapes[:, 1, None, None] + column[:, None]).to(torch.int16)


class Naflex(Siglip):
    """Siglip2Model."""

    grid = None
    pixels = KNOWN["siglip2"]

    def read(self, folder: Path, options: Options) -> Source:
        source = super().read(folder, options)
        side = sides_of(source.architecture)["image"]["patch_size"]
        if source.architecture["patch_size"] not in (None, side):
            raise UserError(f"{folder} cuts other patches than its model reads, of {side} pixels; fetch both")
        source.architecture["patch_size"] = side
        return source._replace(published=Published("siglip"))

    def sides(self, model: Any, architecture: Mapping[str, Any]) -> tuple[Any, Any]:
        image = NaflexImage(model.vision_model, architecture, getattr(model, "dense_feature_head", None))
        return image, SiglipText(model.text_model, architecture)


class FgClip2(Naflex):
    """FG-CLIP 2: short, longer and box texts each have a head, and longer ones positions of their own."""

    model_type = "siglip2"

    def read(self, folder: Path, options: Options) -> Source:
        source = super().read(folder, options)
        source.architecture["max_num_patches"] = [128, 256, 576, 784, 1024]  # as in the authors' examples
        return source

    def weights(self, folder: Path, config: dict[str, Any], options: Options) -> Weights:
        """The weights of one of the three ways; the config gets the length of its texts."""
        state, text = weights_of(folder), config["text_config"]
        table = "text_model.embeddings.position_embedding"
        own = [f"{table}_ori.weight", f"{table}_res.weight"]
        own += [f"{head}text_head.{part}" for head in ("long", "box") for part in ("weight", "bias")]
        if not state.keys() >= {*own}:
            raise UserError(f"{folder} is an FG-CLIP 2 that lacks one of {', '.join(own)}; fetch it again")
        extra = {key: state.pop(key) for key in own}
        short = (options.context or math.inf) <= text["max_position_embeddings"]  # any other is long
        way = options.walk_type or ("short" if short else "long")
        if way == "long":
            first, rest = (extra[key] for key in own[:2])
            state[f"{table}.weight"] = torch.cat([first[:KEEP], rest[KEEP:]])
            text["max_position_embeddings"] = len(rest)
        if way != "short":
            head = [part for part in extra if part.startswith(f"{way}text_head.")]
            state |= {f"text_model.head.{part.split('.')[1]}": extra[part] for part in head}
        return state, [key for key in own if not key.startswith(f"{way}text_head.")][2 * (way == "long") :]

    def filled(self, place: Path, config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Weights:
        dense = {key: x.float() for key, x in tensors.items() if key.startswith("dense_feature_head.")}
        state, left_out = super().filled(place, config, {k: tensors[k] for k in tensors.keys() - dense})
        return state | dense, left_out

    def model(self, architecture: Mapping[str, Any]) -> nn.Module:
        model: Any = super().model(architecture)
        model.dense_feature_head = type(model.vision_model.head)(model.vision_model.config)
        return model
