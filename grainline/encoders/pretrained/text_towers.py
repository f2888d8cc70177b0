"""Text encoders of the transformers library that know no images, also in folders of sentence-transformers.

A new kind is a row of `KINDS`: widths and tables are read off the library's model.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from grainline.encoders.pretrained import sentence_folders as folders
from grainline.encoders.pretrained.adapters import TextEncoder
from grainline.encoders.pretrained.clip_towers import ClipText
from grainline.encoders.pretrained.kind import Options, Source, longer
from grainline.encoders.pretrained.library import LibraryKind
from grainline.encoders.pretrained.siglip_towers import SiglipText
from grainline.errors import UserError

SHIFTED = ("camembert", "mpnet", "roberta", "xlm-roberta")  # positions begin behind the id of padding
TABLE = "embeddings.position_embeddings"
CONTEXT = 512  # where neither a table nor a file limits the length of texts


class LibraryText(TextEncoder):
    """A text model of the library and what is behind it in a folder of sentence-transformers.

    Where layers are behind it, each token passes them as a text of this token alone would.
    """

    before = ("model.embeddings", "model.embeddings_project", "model.embed_tokens", "model.encoder")
    behind = ("model.final_layer_norm", "model.final_norm", "model.sentence_head")
    attention = (
        r"(.*\.)?(([qkvo]|query|key|value|in|out|pos|pos_key|pos_query|pos_q)(_proj|_lin)?"
        r"|attn\.(Wqkv|Wo)|attention\.(output\.)?dense)"
    )

    def __init__(self, model: Any, architecture: Mapping[str, Any]) -> None:
        config, self.offset = architecture["config"], _offset(architecture)
        self.ways, head = architecture.get("pool", ["cls"]), architecture.get("head", [])
        self.plain = not head and len(self.ways) == 1
        widths = [len(self.ways) * _width(config), *(step["out_features"] for step in head if step)]
        context = architecture.get("context") or config.get("max_position_embeddings", CONTEXT) - self.offset
        super().__init__(model, width=widths[-1], context=context, vocab=config["vocab_size"])
        if getattr(getattr(model, "embeddings", None), "position_embeddings", None) is not None:
            self.table = TABLE
        if not hasattr(model, "sentence_head"):
            model.sentence_head = folders.head_of(head)
        for module in model.modules():
            if hasattr(module, "pos_dropout"):  # DeBERTa's on a table, which belongs to no text
                module.pos_dropout = nn.Identity()

    def read(self, ids: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        model: Any = self.model
        attended = mask | ~mask.any(1, keepdim=True)  # a row of padding attends to itself: no NaN
        places = torch.arange(ids.shape[1], device=ids.device)[None] + self.offset
        extra = {"position_ids": places} if self.offset else {}  # the library would count by the ids
        hidden = model(input_ids=ids, attention_mask=attended.long(), **extra).last_hidden_state
        summary = model.sentence_head(folders.pooled(hidden, attended, self.ways))
        return hidden if self.plain else model.sentence_head(hidden.repeat(1, 1, len(self.ways))), summary

    def freeze_positions(self, count: int) -> None:
        super().freeze_positions(count + self.offset)


class Text(LibraryKind):
    """A model that reads a text as a whole, summed up by its first token."""

    grid, pool, part = None, "cls", ""
    left_out = (
        r"(pooler|cls|(pre_)?classifier|qa_outputs|(lm_|mask_)?predictions|lm_head|sop_classifier|"
        r"(generator|discriminator)_\w+|vocab_\w+|(classification_)?head|decoder)\b.*"
    )

    def check(self, name: str, config: dict[str, Any], options: Options) -> None:
        super().check(name, config, options)
        if self.name in SHIFTED and config.get("pad_token_id") is None:
            raise UserError(f"{name} names no pad_token_id, and positions of {self.name} begin behind it")

    def read(self, folder: Path, options: Options) -> Source:
        source = super().read(place := folders.transformer_of(folder), options)
        architecture, state, config = source.architecture, dict(source.state), source.architecture["config"]
        limits = folders.context_of(place), config.get("max_position_embeddings", 0) - _offset(architecture)
        context = min((limit for limit in limits if limit and limit > 0), default=CONTEXT)
        architecture |= {"pool": [self.pool], "context": context}
        if (folder / "modules.json").is_file():
            fields, weights = folders.read_folder(folder, _width(config))
            state |= {f"{self.part}sentence_head.{name}": x for name, x in weights.items()}
            architecture |= fields
        return source._replace(architecture=architecture, state=state)

    def model(self, architecture: Mapping[str, Any]) -> nn.Module:
        model = super().model(architecture)
        head = folders.head_of(architecture.get("head", []))
        model.get_submodule(self.part.rstrip(".")).add_module("sentence_head", head)
        return model

    def fit(self, source: Source, options: Options) -> Source:
        architecture, config = source.architecture, source.architecture["config"]
        if options.context is not None:
            architecture["context"] = options.context
            if config.get("max_relative_positions", 0) < 0:  # DeBERTa's are as many as its positions
                config["max_relative_positions"] = config["max_position_embeddings"]
            if (table := source.state.get(f"{TABLE}.weight")) is not None:
                offset = _offset(architecture)
                config["max_position_embeddings"] = offset + options.context
                table = torch.cat([table[:offset], longer(table[offset:], options)])
                source.state[f"{TABLE}.weight"] = table
        if options.pool is not None:
            width = _width(config)
            read = [step["in_features"] for step in architecture.get("head", []) if step]
            if read and read[0] != width:
                wrong = f"gives {width} numbers, and the first Dense of the checkpoint reads {read[0]}"
                raise UserError(f"pool {options.pool} {wrong}; leave model.text.pool out")
            architecture["pool"] = [options.pool]
        return super().fit(source, options._replace(pool=None))

    def sides(self, model: Any, architecture: Mapping[str, Any]) -> tuple[None, Any]:
        return None, LibraryText(model.get_submodule(self.part.rstrip(".")), architecture)


class T5(Text):
    """The encoder of a model with a decoder, which is left out. The mean of the tokens sums up a text."""

    suffix, pool, part = "EncoderModel", "mean", "encoder."


class TextSide(LibraryKind):
    """The text side of a CLIP or SigLIP in a folder of its own."""

    grid, row = None, "embeddings.position_embedding.weight"
    left_out = r"text_projection\b.*"

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.text_encoder = ClipText if name == "clip_text_model" else SiglipText


def _width(config: Mapping[str, Any]) -> int:
    """Width of the states of tokens."""
    return int(next(config[name] for name in ("hidden_size", "dim", "d_model") if name in config))


def _offset(architecture: Mapping[str, Any]) -> int:
    """Rows of the table of positions that stand before the first."""
    pad = 1 if architecture["kind"] == "mpnet" else architecture["config"].get("pad_token_id")
    return int(pad) + 1 if architecture["kind"] in SHIFTED else 0
