"""Checkpoints of methods that papers published, in the layouts of their authors' code.

FLAIR (Xiao et al., arXiv 2412.03561), beta-CLIP (Zohra, Zhao et al., arXiv 2512.12678), FG-CLIP (Xie et al.,
arXiv 2505.05071) and LAPS (Fu et al., CVPR 2024). Long-CLIP, HiMo-CLIP, SmartCLIP and DeBias-CLIP are state
dicts of a CLIP (`clip_towers.py`).
"""

import math
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from grainline.encoders.pretrained import kind_of
from grainline.encoders.pretrained.archive import Stored
from grainline.encoders.pretrained.clip_towers import Clip, Names, renamed
from grainline.encoders.pretrained.hub import library, weights_of
from grainline.encoders.pretrained.kind import Kind, Options, Pretrained, Published, Source, sides_of
from grainline.encoders.pretrained.library import Weights, plain, tokenizer_of
from grainline.encoders.pretrained.preprocess import KNOWN
from grainline.errors import UserError
from grainline.nn.positions import KEEP


class PooledClip(Clip):
    """Abstract: a CLIP, and a pool that texts condition, in one state dict."""

    names: ClassVar[Names]  # of the CLIP: OpenAI's are ours
    in_blocks: ClassVar[Names] = ()
    pool: ClassVar[str]  # with what the names of the pool begin
    own: ClassVar[Names]  # of the method's layers
    openai: ClassVar[bool]  # its activation is the quick GELU
    published: ClassVar[Published]

    def read_file(self, file: Path, stored: Stored, options: Options, settings: Mapping[str, Any]) -> Source:
        rest, parts = dict[str, Tensor](), dict[str, Tensor]()
        for name, x in stored.tensors.items():
            own = name.startswith((self.pool, "logit_"))
            if own and ".in_proj_" in name:
                three, last = x.chunk(3), name.rpartition("_")[2]
                names = (f"pool.to_{part}.{last}" for part in ("query", "key", "value"))
                parts |= dict(zip(names, three, strict=True))
            elif own:
                parts[renamed(name, self.own)] = x if x.ndim else x.reshape(1)
            if not own or name == "logit_scale":
                rest[renamed(name, self.names, self.in_blocks)] = x
        quick = self.openai if options.quick_gelu is None else options.quick_gelu
        stored, options = stored._replace(tensors=_joined(rest)), options._replace(quick_gelu=quick)
        source = super().read_file(file, stored, options, settings)
        return source._replace(published=self.published._replace(parts=parts))


class Flair(PooledClip):
    """FLAIR, of open_clip's trainer."""

    names = (("image_post.proj", "visual.proj"), ("text_post.proj", "text_projection"))
    pool = "visual_proj."
    own = (
        ("visual_proj.attn.out_proj.", "pool.to_out."), ("visual_proj.ln_q.", "pool.norm_query."),
        ("visual_proj.ln_k.", "pool.norm_key."), ("visual_proj.ln_v.", "pool.norm_value."),
        ("logit_scale", "scale.log_scale"), ("logit_bias", "bias"),
    )  # fmt: skip
    openai = False
    published = Published("flair")


class BetaClip(PooledClip):
    """beta-CLIP, whose patches keep to their own values in the last block."""

    names = (
        ("visual.blocks.", "visual.transformer.resblocks."), ("visual.patch_embed.proj.", "visual.conv1."),
        ("visual.cls_token", "visual.class_embedding"), ("visual.pos_embed", "visual.positional_embedding"),
        ("visual.norm_pre.", "visual.ln_pre."), ("visual.norm.", "visual.ln_post."),
        ("image_projection", "visual.proj"),
    )  # fmt: skip
    in_blocks = (
        (".norm1.", ".ln_1."), (".norm2.", ".ln_2."), (".attn.qkv.", ".attn.in_proj_"),
        (".attn.proj.", ".attn.out_proj."), (".mlp.fc1.", ".mlp.c_fc."), (".mlp.fc2.", ".mlp.c_proj."),
    )  # fmt: skip
    pool = "text_conditioned_patches_block."
    own = (
        (f"{pool}attn.out_proj.", "pool.to_out."), (f"{pool}ln_2.", "pool.norm."),
        (f"{pool}mlp.c_fc.", "pool.widen."), (f"{pool}mlp.c_proj.", "pool.narrow."),
        (f"{pool}logit_scale", "pool_scale.log_scale"), ("logit_scale", "scale.log_scale"),
    )  # fmt: skip
    openai = True
    published = Published("beta_clip", {"image": {"patches": "values"}})


def _joined(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The same with queries, keys and values in one, as OpenAI has them, and without timm's leading 1."""
    out = dict(tensors)
    for name in tensors:
        three = [name.replace(".q_proj.", f".{letter}_proj.") for letter in "qkv"]
        if ".attn.q_proj." in name and all(one in out for one in three):
            out[name.replace("q_proj.", "in_proj_")] = torch.cat([out.pop(one) for one in three])
    for name, width in (("class_embedding", 1), ("positional_embedding", 2)):
        if f"visual.{name}" in out and out[f"visual.{name}"].ndim > width:
            out[f"visual.{name}"] = out[f"visual.{name}"].flatten(0, -width)
    return out


class FgClip(Clip):
    """FG-CLIP: a context of up to 77 tokens takes CLIP's own positions, any other a second set."""

    model_type = "clip"

    def read(self, folder: Path, options: Options) -> Source:
        source = super().read(folder, options)
        # The authors squash images before the processor of the folder, which then finds a square. Their dense
        # features pass the last block without attention.
        architecture = source.architecture | {"kind": "clip", "resize": "squash", "margin": 1.0}
        published = Published("clip", {"image": {"patches": "values"}})
        return source._replace(architecture=architecture, published=published)

    def weights(self, folder: Path, config: dict[str, Any], options: Options) -> Weights:
        """The weights of one of the two ways; the config gets the length of its texts."""
        state, text = weights_of(folder), config["text_config"]
        table = "text_model.embeddings.position_embedding"
        own = [f"{table}_ori.weight", f"{table}_res.weight", "text_filip_projection.weight"]
        if not state.keys() >= {*own}:
            raise UserError(f"{folder} is an FG-CLIP that lacks one of {', '.join(own)}; fetch it again")
        first, rest, projection = (state.pop(key) for key in own)
        if options.context is None or options.context > text["max_position_embeddings"]:
            state[f"{table}.weight"] = torch.cat([first[:KEEP], rest[KEEP:]])
            state["text_projection.weight"] = projection
            text["max_position_embeddings"] = len(rest)
        own += sorted(key for key in state if key.startswith("logit_scale_"))  # of its other losses
        return {key: x for key, x in state.items() if key not in own}, own


HEADS = 12  # of the ViT-base and the BERT-base that LAPS builds; no file says it
_LAPS = {
    "image": "img_enc.visual_encoder.", "text": "txt_enc.bert.",
    "to_image": "img_enc.vision_proj.", "to_text": "txt_enc.fc.", "slots": "cross_net.aggr_net.",
}  # fmt: skip


class Laps(Kind):
    """LAPS: encoders of the library side by side, each with a linear layer of its own into one space.

    Copies of the code of SEPS write the same layout.
    """

    def read_file(self, file: Path, stored: Stored, options: Options, settings: Mapping[str, Any]) -> Source:  # noqa: ARG002
        ratios = [stored.settings.get(name) for name in ("sparse_ratio", "aggr_ratio")]
        if not all(isinstance(x, float) and 0 < x < 1 for x in ratios):
            raise UserError(f"{file} is a LAPS without sparse_ratio and aggr_ratio in its opt; give another")
        tensors = {name: x for name, x in stored.tensors.items() if not name.endswith(_PLACES)}
        parts = {part: _below(prefix, tensors) for part, prefix in _LAPS.items()}
        if unknown := [name for name in tensors if not name.startswith(tuple(_LAPS.values()))]:
            raise UserError(f"{file} is a LAPS with {unknown[0]}; give the file of its training")
        sides = {"image": "swin" if any(".blocks." in name for name in parts["image"]) else "vit"}
        sides["text"] = "bert"
        size, width = stored.settings.get("img_res", 224), len(parts["slots"]["weight.0.weight"])
        see, read = (_deduced(kind, parts[side], size) for side, kind in sides.items())
        heads = {side: bool(parts[f"to_{side}"]) for side in sides}
        config = {"vision_config": see, "text_config": read, "projection_dim": width, "heads": heads}
        architecture = {"kind": self.name, "sides": sides, "config": config, "pad": 0, **KNOWN["swin"]}
        state, left_out = dict[str, Tensor](), [f"{_LAPS['slots']}weight.3.bias"]  # it cancels
        for side, kind, one in _sides(architecture):
            own, out = kind.filled(file, one["config"], parts[side])
            state |= {f"{side}.{name}": x for name, x in own.items()}
            state |= {f"to_{side}.0.{name}": x for name, x in parts[f"to_{side}"].items()}
            left_out += [f"{_LAPS[side]}{name}" for name in out]
        slots = {name.replace("weight.", "selector.slots.mlp.", 1): x for name, x in parts["slots"].items()}
        slots.pop("selector.slots.mlp.3.bias", None)
        if "scale" in slots:
            slots["selector.slots.scale"] = slots.pop("scale").reshape(1)
        choice = dict(zip(("keep_ratio", "aggregation_ratio"), ratios, strict=True))
        words = tokenizer_of(file.parent)
        if words is None:
            print(f"no tokenizer beside {file}: bert-base-uncased of the hub is taken", file=sys.stderr)
            words = "bert-base-uncased"
        return Source(architecture, state, words, tuple(left_out), Published("laps", choice, slots))

    def model(self, architecture: Mapping[str, Any]) -> nn.Module:
        model, config = nn.ModuleDict(), architecture["config"]
        for side, kind, one in _sides(architecture):
            model[side], width = kind.model(one), one["config"]["hidden_size"]
            layers = [nn.Linear(width, config["projection_dim"])] if config["heads"][side] else []
            model[f"to_{side}"] = nn.Sequential(*layers)
        return model

    def split(self, model: Any, architecture: Mapping[str, Any]) -> Pretrained:
        image, text = (kind.split(model[side], one) for side, kind, one in _sides(architecture))
        heads = model["to_image"], model["to_text"]
        return Pretrained(image.image, text.text, dict(architecture), heads=heads)

    def space(self, architecture: Mapping[str, Any]) -> int:
        return int(architecture["config"]["projection_dim"])

    def fit(self, source: Source, options: Options) -> Source:
        for side, kind, one in _sides(source.architecture):
            own = Options(size=options.size) if side == "image" else options._replace(size=None)
            fitted = kind.fit(Source(one, _below(f"{side}.", source.state)), own).state
            source.state.update({f"{side}.{name}": x for name, x in fitted.items()})
        return source


_PLACES = ("position_ids", "relative_position_index")  # numbers of places, which older versions store


def _sides(architecture: Mapping[str, Any]) -> Iterator[tuple[str, Any, dict[str, Any]]]:
    """Each side of a LAPS, image first: its name, its kind and its own architecture."""
    for side, kind in architecture["sides"].items():
        one = {**architecture, "kind": kind, "config": sides_of(architecture)[side]}
        yield side, kind_of(one), one


def _below(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors whose names begin with a prefix, without it."""
    return {name.removeprefix(prefix): x for name, x in tensors.items() if name.startswith(prefix)}


def _number(prefix: str, tensors: Mapping[str, Tensor]) -> int:
    """How many layers have names that begin with a prefix."""
    return len({name.split(".")[0] for name in _below(prefix, tensors)})


def _deduced(kind: str, tensors: Mapping[str, Tensor], size: int) -> dict[str, Any]:
    """The config of the library for a ViT, a Swin or a BERT, by the shapes. size: of a Swin's images"""
    patches, layers, own = "embeddings.patch_embeddings.projection.weight", "encoder.layer.", dict[str, Any]()
    if kind != "swin":
        own["num_hidden_layers"], own["num_attention_heads"] = _number(layers, tensors), HEADS
        own["intermediate_size"] = len(tensors[f"{layers}0.intermediate.dense.bias"])
    if kind == "bert":
        words, places = (tensors[f"embeddings.{name}_embeddings.weight"] for name in ("word", "position"))
        own |= {"vocab_size": len(words), "hidden_size": words.shape[1]}
        return plain(library().BertConfig(**own, max_position_embeddings=len(places)).to_dict())
    width, _, _, patch = tensors[patches].shape
    own["patch_size"] = patch
    if kind == "vit":
        side = math.isqrt(tensors["embeddings.position_embeddings"].shape[1] - 1)
        return plain(library().ViTConfig(**own, hidden_size=width, image_size=side * patch).to_dict())
    stages = [f"encoder.layers.{i}.blocks." for i in range(_number("encoder.layers.", tensors))]
    tables = [tensors[f"{stage}0.attention.self.relative_position_bias_table"] for stage in stages]
    own |= {"image_size": size, "embed_dim": width, "depths": [_number(stage, tensors) for stage in stages]}
    own |= {"num_heads": [x.shape[1] for x in tables], "window_size": (math.isqrt(len(tables[0])) + 1) // 2}
    return plain(library().SwinConfig(**own).to_dict())
