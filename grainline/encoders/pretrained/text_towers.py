"""Text encoders of the transformers library that know no images, also in folders of sentence-transformers.

In a folder of sentence-transformers `modules.json` lists a Transformer, a Pooling, then Dense and Normalize.
Their types are names: nothing is imported from them. An unknown field is refused by name.
"""

import json
import sys
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, get_args

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from grainline.config import C, Config, parse
from grainline.encoders.pretrained.adapters import TextEncoder
from grainline.encoders.pretrained.clip_towers import ClipText
from grainline.encoders.pretrained.hub import readable, weights_of
from grainline.encoders.pretrained.kind import Options, Pool, Source, longer
from grainline.encoders.pretrained.library import LibraryKind
from grainline.encoders.pretrained.siglip_towers import SiglipText
from grainline.encoders.text import at_end
from grainline.errors import UserError
from grainline.files import read_plain, read_settings
from grainline.nn.pooling import mean_pool
from grainline.weights import state_dict_mismatch

SHIFTED = ("camembert", "mpnet", "roberta", "xlm-roberta")  # positions begin behind the id of padding
TABLE = "embeddings.position_embeddings"
CONTEXT = 512  # where neither a table nor a file limits the length of texts
ENDLESS = 1e9  # tokens; a tokenizer without a limit says 1e30


class LibraryText(TextEncoder):
    """A text model of the library and the layers behind it, which each token passes as a text of itself."""

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
            model.sentence_head = head_of(head)
        for module in model.modules():
            if hasattr(module, "pos_dropout"):  # DeBERTa's on a table, which belongs to no text
                module.pos_dropout = nn.Identity()

    def read(self, ids: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        model: Any = self.model
        attended = mask | ~mask.any(1, keepdim=True)  # a row of padding attends to itself: no NaN
        places = torch.arange(ids.shape[1], device=ids.device)[None] + self.offset
        extra = {"position_ids": places} if self.offset else {}  # the library would count by the ids
        hidden = model(input_ids=ids, attention_mask=attended.long(), **extra).last_hidden_state
        summary = model.sentence_head(pooled(hidden, attended, self.ways))
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

    def check(self, name: str, config: dict[str, Any], options: Options) -> None:  # noqa: ARG002
        if self.name in SHIFTED and config.get("pad_token_id") is None:
            raise UserError(f"{name} names no pad_token_id, and positions of {self.name} begin behind it")

    def read(self, folder: Path, options: Options) -> Source:
        source = super().read(place := transformer_of(folder), options)
        architecture, state, config = source.architecture, dict(source.state), source.architecture["config"]
        limits = _longest(place), config.get("max_position_embeddings", 0) - _offset(architecture)
        context = min((limit for limit in limits if limit and limit > 0), default=CONTEXT)
        architecture |= {"pool": [self.pool], "context": context}
        if (folder / "modules.json").is_file():
            fields, weights = read_folder(folder, _width(config))
            state |= {f"{self.part}sentence_head.{name}": x for name, x in weights.items()}
            architecture |= fields
        return source._replace(architecture=architecture, state=state)

    def model(self, architecture: Mapping[str, Any]) -> nn.Module:
        model = super().model(architecture)
        head = head_of(architecture.get("head", []))
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
            read = [step["in_features"] for step in architecture.get("head", []) if step]
            if read and read[0] != _width(config):
                wrong = f"{_width(config)} numbers, and the first Dense of the checkpoint reads {read[0]}"
                raise UserError(f"pool {options.pool} gives {wrong}; leave model.text.pool out")
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


# The files of sentence-transformers: a config for each, and the layers behind the transformer.


class _Module(Config):
    idx: int
    name: str
    path: str = Field(pattern=r"^(\w+(\.\w+)*)?$")
    type: str = Field(pattern=r"^sentence_transformers\.(\w+\.)+(Transformer|Pooling|Dense|Normalize)$")


class _Settings(Config):
    version: Any = Field(None, alias="__version__")
    model_type: Literal["SentenceTransformer"] = "SentenceTransformer"
    prompts: dict[str, str | None] = Field({})
    default_prompt_name: Literal[None] = None
    similarity_fn_name: str | None = None  # no vector depends on it
    truncate_dim: Literal[None] = None


class _Transformer(Config):
    max_seq_length: int | None = Field(None, gt=2)
    do_lower_case: bool = False  # obeyed where the tokenizer is read
    transformer_task: Literal["feature-extraction"] = "feature-extraction"
    modality_config: dict[Literal["text"], dict[str, Literal["forward", "last_hidden_state"]]] | None = None
    module_output_name: Literal["token_embeddings"] = "token_embeddings"
    unpad_inputs: bool | None = None  # no vector depends on it


class _Pooling(Config):
    pooling_mode: Pool | list[Pool]
    embedding_dimension: int
    include_prompt: bool = True  # there are none


class _Normalize(Config):
    module_input_name: Literal["sentence_embedding"] = "sentence_embedding"
    module_output_name: Literal["sentence_embedding"] = "sentence_embedding"


class _Dense(_Normalize):
    in_features: int = Field(gt=0)
    out_features: int = Field(gt=0)
    bias: bool = True
    activation_function: str = Field(
        "torch.nn.Tanh", pattern=r"^torch\.nn\.(\w+\.)*(Identity|Tanh|ReLU|GELU|SiLU|Sigmoid)$"
    )
    use_residual: Literal[False] = False


class Normalize(nn.Module):
    """Vectors at length 1."""

    def forward(self, x: Tensor) -> Tensor:
        return F.normalize(x, dim=-1)


def head_of(steps: Sequence[Mapping[str, Any]]) -> nn.Sequential:
    """The layers behind the pooling, with fresh weights. steps: as `read_folder` has them"""
    return nn.Sequential(*(_dense(step) if step else Normalize() for step in steps))


def _dense(step: Mapping[str, Any]) -> nn.Sequential:
    linear = nn.Linear(step["in_features"], step["out_features"], bias=step["bias"])
    activation = getattr(nn, step["activation_function"].rpartition(".")[2])()
    return nn.Sequential(OrderedDict(linear=linear, activation=activation))


def pooled(hidden: Tensor, mask: Tensor, ways: Sequence[str]) -> Tensor:
    """The states of tokens [M, L, W] summed up in one or more ways, side by side: [M, ways * W]

    mask  [M, L] bool, True = real; real tokens stand on the left, at least one in each text
    """
    return torch.cat([_pooled(hidden, mask, way) for way in ways], -1)


def _pooled(hidden: Tensor, mask: Tensor, way: str) -> Tensor:
    if way == "cls":
        return hidden[:, 0]
    if way == "lasttoken":
        return at_end(hidden, mask)
    if way == "max":
        return hidden.masked_fill(~mask[..., None], -torch.inf).amax(1)
    count = mask.sum(1, keepdim=True)
    if way == "weightedmean":
        place = torch.arange(1, mask.shape[1] + 1, device=mask.device)
        hidden = hidden * place[:, None] * 2 / (count[..., None] + 1)
    mean = mean_pool(hidden, mask).vector
    return mean * count.to(hidden.dtype).sqrt() if way == "mean_sqrt_len_tokens" else mean


def transformer_of(folder: Path) -> Path:
    """The folder of the transformer: the folder itself, unless a modules.json says otherwise."""
    return folder / _modules(folder)[0].path if (folder / "modules.json").is_file() else folder


def read_folder(folder: Path, width: int) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Fields of a folder with a modules.json beside its transformer, and the weights of `head_of`.

    width    of the states of tokens
    returns  pool, how these are summed up; head, the fields of each Dense behind it, none for a Normalize
    """
    _, pooling, *others = _modules(folder)
    prompts = _read(_Settings, folder / "config_sentence_transformers.json").prompts
    if named := ", ".join(name for name, prompt in prompts.items() if prompt):
        print(f"{folder} has prompts ({named}), which are not put before texts", file=sys.stderr)
    pool, head, state = _pool(folder / pooling.path / "config.json", width), [], dict[str, Tensor]()
    width *= len(pool)
    for i, module in enumerate(others):
        place, fields = folder / module.path, dict[str, Any]()
        if module.type.endswith("Normalize"):
            _read(_Normalize, place / "config.json")
        else:
            fields = _read(_Dense, place / "config.json").model_dump()
            before, tensors = fields["in_features"], weights_of(place)
            if before != width:
                raise UserError(f"in_features in {place} is {before}, and {width} numbers come in")
            if wrong := state_dict_mismatch(tensors, _dense(fields).state_dict()):
                raise UserError(f"{place} does not fit its config.json: {wrong}; fetch both again")
            state |= {f"{i}.{name}": x.float() for name, x in tensors.items()}
            width = fields["out_features"]
        head.append(fields)
    return {"pool": pool, "head": head}, state


def _read(config: type[C], file: Path) -> C:
    return parse(config, read_settings(file), str(file))


def _modules(folder: Path) -> list[_Module]:
    """The modules of a folder in their order: a Transformer, a Pooling, then others."""
    file = folder / "modules.json"
    with readable(file):
        modules = [parse(_Module, module, str(file)) for module in json.loads(read_plain(file))]
    kinds = [module.type.rpartition(".")[2] for module in modules]
    if kinds[:2] != ["Transformer", "Pooling"] or {"Transformer", "Pooling"} & {*kinds[2:]}:
        raise UserError(f"{file} lists {', '.join(kinds)}; it must be Transformer, Pooling, then others")
    return modules


def _longest(folder: Path) -> int | None:
    """The longest text in tokens that the files beside the config.json of a transformer name."""
    names = sorted(folder.glob("sentence_*_config.json"))  # old folders have the kind of model in this name
    settings = _read(_Transformer, names[0] if names else folder / "sentence_bert_config.json")
    longest = read_settings(folder / "tokenizer_config.json").get("model_max_length")
    return settings.max_seq_length or (int(longest) if longest and longest < ENDLESS else None)


def _pool(file: Path, width: int) -> list[str]:
    fields, ends = read_settings(file), ("", "_token", "_tokens")  # of names in older versions
    names = {f"pooling_mode_{way}{end}": way for way in get_args(Pool) for end in ends}
    flags = [way for name, way in names.items() if fields.pop(name, False)]
    if "word_embedding_dimension" in fields:
        fields["embedding_dimension"] = fields.pop("word_embedding_dimension")
    pooling = parse(_Pooling, {"pooling_mode": flags or "mean"} | fields, str(file))
    if pooling.embedding_dimension != width:
        raise UserError(f"the embedding_dimension in {file} is not {width}, the width of the transformer")
    ways = pooling.pooling_mode
    return [ways] if isinstance(ways, str) else list(ways)
