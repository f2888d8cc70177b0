"""CLIP: Hugging Face folders, and state dicts with the names of OpenAI; and GroupViT.

Such state dicts are those of OpenAI itself, of open_clip and of Long-CLIP; shapes show widths and depths.
"""

import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_linear_bn_eval

from grainline.encoders.base import ImageTokens
from grainline.encoders.pretrained.adapters import ImageEncoder, TextEncoder
from grainline.encoders.pretrained.archive import NUMBERS, Stored
from grainline.encoders.pretrained.hub import library
from grainline.encoders.pretrained.kind import Options, Pretrained, Source, sides_of
from grainline.encoders.pretrained.library import TwoSided, plain, tokenizer_of
from grainline.encoders.pretrained.preprocess import KNOWN, check_agreement, of_open_clip, open_clip_settings
from grainline.encoders.text import at_end
from grainline.errors import UserError
from grainline.nn.attention import first_attends
from grainline.nn.positions import KEEP
from grainline.nn.runtime import is_static
from grainline.weights import state_dict_mismatch


class ClipImage(ImageEncoder):
    """The image side of a CLIP: patches, and a class token that sums up."""

    classed = True

    def keep_values(self) -> None:
        last: Any = self.model.get_submodule("encoder.layers")[-1]  # type: ignore[index]
        last.self_attn.__class__ = ValueOnly

    def read(self, hidden: Tensor) -> ImageTokens:
        x = self.model.post_layernorm(hidden)  # type: ignore[operator]  # the library does this to the first
        return ImageTokens(x[:, 0], x[:, 0], x[:, 1:])


class ValueOnly(nn.Module):
    """The library's attention of a CLIP, computed as `nn.attention.ValueAttention` does."""

    num_heads: int

    def forward(self, hidden_states: Tensor, attention_mask: None = None, **_: Any) -> tuple[Tensor, None]:
        """hidden_states [N, L, W] -> [N, L, W], and no weights"""
        assert attention_mask is None
        inputs = {"q": hidden_states[:, :1], "k": hidden_states, "v": hidden_states}
        projected = (self.get_submodule(f"{name}_proj")(x) for name, x in inputs.items())
        q, k, v = (x.unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for x in projected)
        return self.get_submodule("out_proj")(first_attends(q, k, v)), None


class ClipText(TextEncoder):
    """The text side of a CLIP or GroupViT: causal, summed up by its last real token.

    No mask is needed: padding stands on the right, which causal attention does not read. In a text with one
    end token OpenAI, open_clip and transformers take the same state. In several parts in a row it is the end
    of the last, the only one that attends to all.
    """

    table = "embeddings.position_embedding"

    def __init__(self, model: nn.Module, architecture: Mapping[str, Any]) -> None:
        config = sides_of(architecture)["text"]
        width = config.get("projection_size") or config["hidden_size"]  # the first is SigLIP's
        context, vocab = config["max_position_embeddings"], config["vocab_size"]
        super().__init__(model, width=width, context=context, vocab=vocab, pad=architecture["pad"])
        self.packable = architecture["kind"].startswith("clip")  # others have attention of their own

    def read(self, ids: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        hidden = self.model(input_ids=ids).last_hidden_state
        return hidden, at_end(hidden, mask)

    def _packed(self, ids: Tensor, position: Tensor, reads: Tensor) -> Tensor:
        """Part by part, because the library's model takes no more tokens than it has positions."""
        model: Any = self.model
        x = model.embeddings.token_embedding(ids) + model.embeddings.position_embedding(position)
        out = model.encoder(inputs_embeds=x, attention_mask=reads, is_causal=False)
        hidden: Tensor = model.final_layer_norm(out.last_hidden_state)
        return hidden


class Clip(TwoSided):
    """CLIP, of whatever origin."""

    quick, image_encoder = True, ClipImage
    text_encoder: Any = ClipText
    grid, lead = "vision_model.embeddings.position_embedding.weight", 1
    pixels = KNOWN["clip"]

    def check(self, name: str, config: dict[str, Any], options: Options) -> None:  # noqa: ARG002
        if options.quick_gelu is not None:
            for side in sides_of({"config": config}).values():
                side["hidden_act"] = "quick_gelu" if options.quick_gelu else "gelu"

    def read_file(self, file: Path, stored: Stored, options: Options, settings: Mapping[str, Any]) -> Source:
        state = _tidy(stored.tensors)
        if "logit_bias" in state:
            raise UserError(f"{file} has a logit_bias, as SigLIP has: give the Hugging Face folder of it")
        where, pixels, model, image, text = open_clip_settings(file, settings, "clip")
        quick = options.quick_gelu
        if quick is None:  # files of OpenAI and of Long-CLIP have signs of it
            openai = stored.script or {*NUMBERS[:3]} <= stored.tensors.keys()
            long = any(name.endswith("positional_embedding_res") for name in stored.tensors)
            named = any("quickgelu" in name.lower() for name in (file.name, stored.name))
            quick = bool(model.get("quick_gelu")) if settings else openai or long or named
        config = _deduced(file, state, quick, (image, text) if settings else None)
        see, read = config["vision_config"], config["text_config"]
        check_agreement(where, (image, see), (text, read), (model, config))
        pixels = of_open_clip(pixels, where if settings else str(file), see["image_size"])
        architecture = {"kind": "clip", "config": config, "pad": 0, **pixels}
        wrong = state_dict_mismatch(state, to_open_clip_names(Clip("clip").model(architecture).state_dict()))
        if wrong:
            raise UserError(f"{file} does not fit the CLIP of its shapes: {wrong}; give a whole state dict")
        if options.quick_gelu is None and not quick and not settings:
            assumed = "plain GELU and heads by the widths are assumed (quick_gelu=True is for OpenAI's)"
            print(f"{file} does not say its activation and heads: {assumed}", file=sys.stderr)
        left_out = tuple({_UNUSED} & {name.partition(".")[0] for name in stored.tensors})
        return Source(architecture, from_open_clip_names(state), tokenizer_of(file.parent), left_out)


class ClipVision(Clip):
    """The image side alone, with its projection where config.json names the class that has one."""

    suffix, row, text_encoder = "ModelWithProjection", "", None
    unused = r"visual_projection\.weight"

    def check(self, name: str, config: dict[str, Any], options: Options) -> None:
        super().check(name, config, options)
        config["projected"] = "CLIPVisionModelWithProjection" in (config.get("architectures") or ())

    def space(self, architecture: Mapping[str, Any]) -> int | None:
        return super().space(architecture) if architecture["config"]["projected"] else None

    def _strip(self, model: Any) -> list[str]:
        return [] if model.config.projected else super()._strip(model)


Names = tuple[tuple[str, str], ...]
NAMES: Names = (  # theirs, those of transformers; the first that a name begins with decides
    ("visual.transformer.resblocks.", "vision_model.encoder.layers."),
    ("visual.class_embedding", "vision_model.embeddings.class_embedding"),
    ("visual.positional_embedding", "vision_model.embeddings.position_embedding.weight"),
    ("visual.conv1.", "vision_model.embeddings.patch_embedding."),
    ("visual.ln_pre.", "vision_model.pre_layrnorm."),
    ("visual.ln_post.", "vision_model.post_layernorm."),
    ("visual.proj", "visual_projection.weight"),
    ("transformer.resblocks.", "text_model.encoder.layers."),
    ("token_embedding.", "text_model.embeddings.token_embedding."),
    ("positional_embedding", "text_model.embeddings.position_embedding.weight"),
    ("ln_final.", "text_model.final_layer_norm."),
    ("text_projection", "text_projection.weight"),
)
IN_BLOCKS: Names = (
    (".ln_1.", ".layer_norm1."), (".ln_2.", ".layer_norm2."), (".attn.", ".self_attn."),
    (".mlp.c_fc.", ".mlp.fc1."), (".mlp.c_proj.", ".mlp.fc2."),
)  # fmt: skip
_UNUSED = "mask_net"  # layers of SmartCLIP that only its training reads


def heads_of(side: str, width: int) -> int:
    """Heads 64 wide, or 16 in the images of ViT-H, ViT-g and ViT-bigG. 0: no CLIP has this width."""
    return 16 if side == "image" and width in (1280, 1408, 1664) else 0 if width % 64 else width // 64


def _tidy(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The state dict by OpenAI's own names: without numbers, with one table of text positions."""
    state = {k: x for k, x in tensors.items() if k.partition(".")[0] not in (*NUMBERS, _UNUSED)}
    if "text.positional_embedding" in state:  # open_clip's models with a text tower of its own
        state = {name.removeprefix("text."): x for name, x in state.items()}
    if {"positional_embedding", "positional_embedding_res"} <= state.keys():
        # Long-CLIP has the first positions in a table of their own, where they never train.
        rest = state.pop("positional_embedding_res")[KEEP:]
        state["positional_embedding"] = torch.cat([state["positional_embedding"][:KEEP], rest])
    if "logit_scale" in state and state["logit_scale"].numel() == 1:
        state["logit_scale"] = state["logit_scale"].reshape(())
    return state


_TABLES = (  # tensors from whose shapes the architecture is deduced
    "visual.conv1.weight", "visual.positional_embedding", "positional_embedding", "token_embedding.weight",
    "visual.proj",
)  # fmt: skip


def _deduced(
    file: Path, state: Mapping[str, Tensor], quick: bool, settings: tuple[Mapping[str, Any], ...] | None
) -> dict[str, Any]:
    """The config, from the shapes of the tensors. settings: of images and texts by open_clip, with heads"""
    absent = [name for name in _TABLES if name not in state or state[name].ndim < 2 or not len(state[name])]
    if absent and any(name.startswith(("vision_model.", "text_model.")) for name in state):
        raise UserError(f"{file} has the names of a Hugging Face model, whose config.json is needed too")
    if absent:
        wrong = f"no {absent[0]} in it, but {', '.join(sorted(state)[:2]) or 'nothing'}"
        allowed = "OpenAI, open_clip (no ResNets, of timm SigLIP alone), Long-CLIP, FLAIR, beta-CLIP and LAPS"
        raise UserError(f"{file} is no CLIP with a plain vision transformer: {wrong}; allowed are {allowed}")
    conv, places, rows, words, out = (state[name] for name in _TABLES)
    width, patch, side = len(conv), conv.shape[-1], math.isqrt(len(places) - 1)
    heads, (see, read) = (heads_of("image", width), heads_of("text", rows.shape[1])), settings or ({}, {})
    if settings:  # with the defaults of open_clip
        heads = width // see.get("head_width", 64), read.get("heads", 8)
    image = tower(file, state, "visual.transformer.resblocks.", width, heads[0])
    text = tower(file, state, "transformer.resblocks.", rows.shape[1], heads[1])
    # The end token has the highest id: that is how OpenAI finds it. Its padding is 0, which is a word too.
    text |= {"bos_token_id": len(words) - 2, "eos_token_id": len(words) - 1, "pad_token_id": 0}
    act = "quick_gelu" if quick else "gelu"
    image |= {"image_size": size_of(side, patch, see), "patch_size": patch, "hidden_act": act}
    text |= {"max_position_embeddings": len(rows), "vocab_size": len(words), "hidden_act": act}
    whole = library().CLIPConfig(vision_config=image, text_config=text, projection_dim=out.shape[1])
    return plain(whole.to_dict())


def size_of(side: int, patch: int, settings: Mapping[str, Any]) -> int:
    """The side of images: `side` patches and the rest at the edge that open_clip's settings name."""
    sizes = range(side * patch, side * patch + patch)
    return next((size for size in sizes if settings.get("image_size") in (size, [size, size])), sizes[0])


def tower(
    file: Path, state: Mapping[str, Tensor], prefix: str, width: int, heads: int, first: str = "c_fc"
) -> dict[str, Any]:
    """Depth, heads and the width of the MLP of one of the two transformers; first: layer of this MLP"""
    blocks = {name.removeprefix(prefix): x for name, x in state.items() if name.startswith(prefix)}
    if f"0.mlp.{first}.bias" not in blocks:
        raise UserError(f"{file} has no {prefix}0.mlp.{first}.bias, so no transformer that could be read")
    if not heads or width % heads:
        raise UserError(f"heads of width {width} in {file} are unknown; known are CLIPs with heads of 64")
    return {
        "hidden_size": width,
        "num_hidden_layers": len({name.split(".")[0] for name in blocks}),
        "num_attention_heads": heads,
        "intermediate_size": len(blocks[f"0.mlp.{first}.bias"]),
    }


def from_open_clip_names(
    state: Mapping[str, Tensor], names: Names = NAMES, parts: Names = IN_BLOCKS
) -> dict[str, Tensor]:
    """A state dict of OpenAI or open_clip by the names of transformers, queries, keys and values split."""
    out: dict[str, Tensor] = {}
    for name, x in state.items():
        ours = renamed(name, names, parts)
        if ".in_proj_" in ours:
            for letter, part in zip("qkv", x.chunk(3), strict=True):
                out[ours.replace("in_proj_", f"{letter}_proj.")] = part
        else:
            out[ours] = x.T if name in ("visual.proj", "text_projection") else x
    return out


def to_open_clip_names(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The inverse of `from_open_clip_names`."""
    out: dict[str, Tensor] = {}
    names, parts = ([(b, a) for a, b in pairs] for pairs in (NAMES, IN_BLOCKS))
    for name, x in state.items():
        theirs = renamed(name, names, parts)
        if ".q_proj." in name:
            key, value = (state[name.replace(".q_proj.", f".{letter}_proj.")] for letter in "kv")
            out[theirs.replace("q_proj.", "in_proj_")] = torch.cat([x, key, value])
        elif ".k_proj." not in name and ".v_proj." not in name:
            out[theirs] = (x.T if theirs in ("visual.proj", "text_projection") else x).contiguous()
    return out


def renamed(name: str, names: Iterable[tuple[str, str]], parts: Iterable[tuple[str, str]] = ()) -> str:
    """A name with another beginning, the first of `names` that fits, and with all `parts` replaced."""
    for old, new in names:
        if name.startswith(old):
            name = new + name.removeprefix(old)
            break
    for old, new in parts:
        name = name.replace(old, new)
    return name


class GroupViTImage(ImageEncoder):
    """The image side: groups, which their mean sums up."""

    segmented = True

    def __init__(self, model: nn.Module, architecture: Mapping[str, Any]) -> None:
        super().__init__(model, architecture, grid=None)

    def train(self, mode: bool = True) -> "GroupViTImage":
        """No noise even where it learns: the assignment of groups stays as in evaluation."""
        super().train(mode)
        self.model.eval()
        return self

    def forward(self, pixels: Tensor) -> ImageTokens:
        placed = not self.training and not is_static()
        options = {"output_attentions": True} if placed else {}
        out = self.model(pixel_values=self.normalised(pixels), **options)
        tokens = self.read(out.last_hidden_state)
        return tokens._replace(places=group_places(out.attentions, self.size)) if placed else tokens


@torch.no_grad()
def group_places(maps: Sequence[Tensor], size: int) -> Tensor:
    """The group of each pixel, [N, size, size]: GroupViT's way to segment, without its threshold.

    maps  of each stage [N, K, L], how much of every token each of K groups takes; the tokens of the first
          stage are patches in a square, those of the others the groups before them

    The product of all maps is the share of a patch that each last group takes, interpolated between the
    centres of patches. A pixel belongs to the group with the largest share.
    """
    share = maps[0].float()
    for later in maps[1:]:
        share = later.float() @ share
    side = math.isqrt(share.shape[2])
    small = torch.uint8 if share.shape[1] <= 256 else torch.int64
    places = []
    for images in share.unflatten(2, (side, side)).split(16):  # 26 MB of maps, for 8 groups at 224 pixels
        places.append(F.interpolate(images, (size, size), mode="bilinear").argmax(1).to(small))
    return torch.cat(places)


class GroupViT(TwoSided):
    """GroupViTModel, whose heads have two layers each."""

    averaged, image_encoder, text_encoder = True, GroupViTImage, ClipText
    grid = "vision_model.embeddings.position_embeddings"
    pixels = KNOWN["groupvit"]

    def split(self, model: Any, architecture: Mapping[str, Any]) -> Pretrained:
        heads = _two_layers(model.visual_projection), _two_layers(model.text_projection)
        return super().split(model, architecture)._replace(heads=heads)


def _two_layers(head: Any) -> nn.Sequential:
    """A head (linear, batch norm, ReLU, linear) with its batch norm, which stays, in the first layer."""
    first, norm, relu, last = head.eval()
    return nn.Sequential(fuse_linear_bn_eval(first, norm), relu, last)
