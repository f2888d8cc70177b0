"""SigLIP and SigLIP 2 for images of one size: Hugging Face folders, and files of open_clip.

open_clip builds the image side by timm, whose ViTs have the GELU; a few have its approximation by tanh, as
all SigLIPs of transformers have. Vectors differ by 5e-5 between both.
"""

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from grainline.encoders.base import ImageTokens
from grainline.encoders.pretrained import clip_towers as clip
from grainline.encoders.pretrained.adapters import ImageEncoder
from grainline.encoders.pretrained.archive import Stored
from grainline.encoders.pretrained.hub import library
from grainline.encoders.pretrained.kind import Options, Source, sides_of
from grainline.encoders.pretrained.library import TwoSided, pad_of, plain, tokenizer_of
from grainline.encoders.pretrained.preprocess import KNOWN, of_open_clip
from grainline.errors import UserError


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

    whole, packable = True, False

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

    def check(self, name: str, config: dict[str, Any], options: Options) -> None:
        super().check(name, config, options)
        if not sides_of({"config": config})["image"].get("vision_use_head", True):
            wrong = "has no attention pool (vision_use_head is false), so no vector for an image"
            raise UserError(f"{name} {wrong}")

    def read_file(self, file: Path, stored: Stored, options: Options, settings: Mapping[str, Any]) -> Source:  # noqa: ARG002
        tensors = stored.tensors
        where, pixels, model, image, text = clip.open_clip_settings(file, settings, _PLAIN)
        absent = next((name for name in _TABLES if name not in tensors), None)
        if absent:
            raise UserError(f"{file} is a SigLIP of open_clip without {absent}; give a complete one")
        conv, grid, rows, words, head = (tensors[name] for name in _TABLES)
        width, patch, columns = len(conv), conv.shape[-1], rows.shape[1]
        heads = text.get("heads", _HEADS.get(columns, 0))
        # Without settings: those of the published models of these sizes.
        name = image.get("timm_model_name", "vit_so400m_patch16" if width >= 1152 and patch == 16 else "")
        tanh = re.match(r"vit_(so400m_patch16|giantopt)", str(name)), "act_kwargs" in text
        if not settings:
            tanh = tanh[0], len(words) >= _VOCAB_2
        acts = ["gelu_pytorch_tanh" if one else "gelu" for one in tanh]
        see = clip.tower(file, tensors, "visual.trunk.blocks.", width, heads, "fc1")
        size = clip.size_of(math.isqrt(grid.shape[1]), patch, image)
        see |= {"hidden_act": acts[0], "image_size": size, "patch_size": patch}
        read = clip.tower(file, tensors, "text.transformer.resblocks.", columns, heads)
        read |= {"hidden_act": acts[1], "max_position_embeddings": len(rows), "vocab_size": len(words)}
        clip.check_agreement(where, (image, see), (text, read), (model, {"projection_dim": width}))
        pad = pad_of(file.parent, {"pad_token_id": 0 if len(words) >= _VOCAB_2 else 1})
        read |= {"projection_size": len(head), "pad_token_id": pad}
        config = plain(library().SiglipConfig(vision_config=see, text_config=read).to_dict())
        pixels = of_open_clip(pixels, where, size, self.pixels)
        architecture = {"kind": self.name, "config": config, "pad": pad, **pixels}
        return Source(architecture, from_timm_names(tensors), tokenizer_of(file.parent))


class SiglipVision(Siglip):
    """SiglipVisionModel, the image side alone."""

    grid, row, text_encoder = "embeddings.position_embedding.weight", "", None


_VOCAB_2 = 256_000  # tokens of SigLIP 2
_HEADS = {768: 12, 1024: 16, 1152: 16}  # by the width of texts; images have as many
_TABLES = (
    "visual.trunk.patch_embed.proj.weight", "visual.trunk.pos_embed", "text.positional_embedding",
    "text.token_embedding.weight", "text.text_projection.weight",
)  # fmt: skip
_PLAIN: dict[str, dict[str, Any]] = {  # settings that no tensor shows; None: any
    "vision_cfg": {"timm_model_name": None},
    "text_cfg": {
        "hf_tokenizer_name": None, "tokenizer_kwargs": {"clean": "canonicalize"}, "no_causal_mask": True,
        "proj_bias": True, "pool_type": "last", "norm_kwargs": {"eps": 1e-06},
        "act_kwargs": {"approximate": "tanh"},
    },
}  # fmt: skip
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
_IN_TIMM_BLOCKS = ((".norm", ".layer_norm"), (".attn.proj.", ".attn.out_proj."), *clip.IN_BLOCKS)


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
