"""SigLIP and SigLIP 2, for images of one size or of any shape (NaFlex), and FG-CLIP 2, built on the latter.

Images of any shape come as patches in rows (`Images.pixels`). Rows behind the last patch are masked.
SigLIPs for one size are also files of open_clip, which builds the image side by timm. Its ViTs have the GELU;
a few have its approximation by tanh, as all SigLIPs of transformers. Vectors differ by 5e-5 between both.
"""

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from grainline.encoders.base import ImageTokens
from grainline.encoders.pretrained import clip_towers as clip
from grainline.encoders.pretrained.adapters import ImageEncoder
from grainline.encoders.pretrained.archive import Stored
from grainline.encoders.pretrained.hub import library, weights_of
from grainline.encoders.pretrained.kind import Options, Published, Source, sides_of
from grainline.encoders.pretrained.library import TwoSided, Weights, pad_of, plain, tokenizer_of
from grainline.encoders.pretrained.preprocess import KNOWN, check_agreement, of_open_clip, open_clip_settings
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


class SiglipText(clip.ClipText):
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

    def read_file(self, file: Path, stored: Stored, options: Options, settings: Mapping[str, Any]) -> Source:  # noqa: ARG002
        tensors = stored.tensors
        where, pixels, model, image, text = open_clip_settings(file, settings, "siglip")
        if absent := next((name for name in _TABLES if name not in tensors), None):
            raise UserError(f"{file} is a SigLIP of open_clip without {absent}; give a complete one")
        conv, grid, rows, words, head = (tensors[name] for name in _TABLES)
        width, patch, columns = len(conv), conv.shape[-1], rows.shape[1]
        heads = text.get("heads", _HEADS.get(columns, 0))
        second = len(words) >= 256_000  # tokens of SigLIP 2
        # Without settings: those of the published models of these sizes.
        name = image.get("timm_model_name", "vit_so400m_patch16" if width >= 1152 and patch == 16 else "")
        tanh = re.match(r"vit_(so400m_patch16|giantopt)", str(name)), "act_kwargs" in text
        if not settings:
            tanh = tanh[0], second
        acts = ["gelu_pytorch_tanh" if one else "gelu" for one in tanh]
        see = clip.tower(file, tensors, "visual.trunk.blocks.", width, heads, "fc1")
        size = clip.size_of(math.isqrt(grid.shape[1]), patch, image)
        see |= {"hidden_act": acts[0], "image_size": size, "patch_size": patch}
        read = clip.tower(file, tensors, "text.transformer.resblocks.", columns, heads)
        read |= {"hidden_act": acts[1], "max_position_embeddings": len(rows), "vocab_size": len(words)}
        check_agreement(where, (image, see), (text, read), (model, {"projection_dim": width}))
        pad = pad_of(file.parent, {"pad_token_id": 0 if second else 1})
        read |= {"projection_size": len(head), "pad_token_id": pad}
        config = plain(library().SiglipConfig(vision_config=see, text_config=read).to_dict())
        pixels = of_open_clip(pixels, where if settings else str(file), size, self.pixels)
        architecture = {"kind": self.name, "config": config, "pad": pad, **pixels}
        return Source(architecture, from_timm_names(tensors), tokenizer_of(file.parent))


class SiglipVision(Siglip):
    """SiglipVisionModel, the image side alone."""

    grid, row, text_encoder = "embeddings.position_embedding.weight", "", None


_HEADS = {768: 12, 1024: 16, 1152: 16}  # by the width of texts; images have as many
_TABLES = (
    "visual.trunk.patch_embed.proj.weight", "visual.trunk.pos_embed", "text.positional_embedding",
    "text.token_embedding.weight", "text.text_projection.weight",
)  # fmt: skip
_TIMM = (  # names of open_clip and timm, those of transformers
    ("visual.trunk.blocks.", "vision_model.encoder.layers."),
    ("visual.trunk.patch_embed.proj.", "vision_model.embeddings.patch_embedding."),
    ("visual.trunk.pos_embed", "vision_model.embeddings.position_embedding.weight"),
    ("visual.trunk.norm.", "vision_model.post_layernorm."),
    ("visual.trunk.attn_pool.latent", "vision_model.head.probe"),
    ("visual.trunk.attn_pool.proj.", "vision_model.head.attention.out_proj."),
    ("visual.trunk.attn_pool.norm.", "vision_model.head.layernorm."),
    ("visual.trunk.attn_pool.", "vision_model.head."),
    ("text.text_projection.", "text_model.head."),
    *((f"text.{theirs}", ours) for theirs, ours in clip.NAMES),
)
_IN_TIMM_BLOCKS = (
    (".norm", ".layer_norm"), (".attn.proj.", ".attn.out_proj."), (".attn.qkv.", ".attn.in_proj_"),
    *clip.IN_BLOCKS,
)  # fmt: skip


def from_timm_names(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """A SigLIP of open_clip by the names of transformers."""
    state = clip.from_open_clip_names(tensors, _TIMM, _IN_TIMM_BLOCKS)
    pool, table = "vision_model.head.", "vision_model.embeddings.position_embedding.weight"
    for part in ("weight", "bias"):
        both = [state.pop(f"{pool}{name}.{part}") for name in ("q", "kv") if f"{pool}{name}.{part}" in state]
        if both:
            state[f"{pool}attention.in_proj_{part}"] = torch.cat(both)
    scalars = {name: state[name].reshape(1) for name in ("logit_scale", "logit_bias") if name in state}
    return state | scalars | {table: state[table].flatten(0, -2)}


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
