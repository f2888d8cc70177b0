"""Folders of sentence-transformers: what their files say, and the layers behind the transformer.

`modules.json` lists a Transformer, a Pooling, and any number of Dense and Normalize. Their types are names:
nothing is imported from them. A field that is not known is refused by name.
"""

import json
import sys
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, get_args

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from grainline.config import C, Config, parse
from grainline.encoders.pretrained.hub import weights_of
from grainline.encoders.text import at_end
from grainline.errors import UserError
from grainline.files import read_plain, read_settings
from grainline.nn.pooling import mean_pool
from grainline.weights import state_dict_mismatch

Pool = Literal["cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken"]
"""How states of tokens are summed up, by the names of sentence-transformers and in its order."""

ENDLESS = 1e9  # tokens; a tokenizer without a limit says 1e30


class _Module(Config):
    idx: int
    name: str
    path: str = Field(pattern=r"^(\w+(\.\w+)*)?$")
    type: str = Field(pattern=r"^sentence_transformers\.(\w+\.)+(Transformer|Pooling|Dense|Normalize)$")


class _Modules(Config):
    modules: list[_Module]


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
    count, place = mask.sum(1, keepdim=True), torch.arange(1, mask.shape[1] + 1, device=mask.device)
    summaries: dict[str, Callable[[], Tensor]] = {
        "cls": lambda: hidden[:, 0],
        "max": lambda: hidden.masked_fill(~mask[..., None], -torch.inf).amax(1),
        "mean": lambda: mean_pool(hidden, mask).vector,
        "mean_sqrt_len_tokens": lambda: mean_pool(hidden, mask).vector * count.to(hidden.dtype).sqrt(),
        "weightedmean": lambda: mean_pool(hidden * place[:, None] * 2 / (count[..., None] + 1), mask).vector,
        "lasttoken": lambda: at_end(hidden, mask),
    }
    return torch.cat([summaries[way]() for way in ways], -1)


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
    extra: dict[str, Any] = {"head": []}
    extra["pool"] = _pool(folder / pooling.path / "config.json", width)
    width, state = width * len(extra["pool"]), dict[str, Tensor]()
    for i, module in enumerate(others):
        place, fields = folder / module.path, dict[str, Any]()
        if module.type.endswith("Normalize"):
            _read(_Normalize, place / "config.json")
        else:
            fields = _read(_Dense, place / "config.json").model_dump()
            if fields["in_features"] != width:
                given = fields["in_features"]
                raise UserError(f"in_features in {place} is {given}, and {width} numbers come in")
            width, tensors = fields["out_features"], weights_of(place)
            if wrong := state_dict_mismatch(tensors, _dense(fields).state_dict()):
                raise UserError(f"{place} does not fit its config.json: {wrong}; fetch both again")
            state |= {f"{i}.{name}": x.float() for name, x in tensors.items()}
        extra["head"].append(fields)
    return extra, state


def _read(config: type[C], file: Path) -> C:
    return parse(config, read_settings(file), str(file))


def _modules(folder: Path) -> list[_Module]:
    """The modules of a folder in their order: a Transformer, a Pooling, and what else there is."""
    file = folder / "modules.json"
    try:
        content = json.loads(read_plain(file))
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{file} cannot be read: {error}; fetch it again") from None
    modules = parse(_Modules, {"modules": content}, str(file)).modules
    kinds = [module.type.rpartition(".")[2] for module in modules]
    if kinds[:2] != ["Transformer", "Pooling"] or {"Transformer", "Pooling"} & {*kinds[2:]}:
        raise UserError(f"{file} lists {', '.join(kinds)}; it must be Transformer, Pooling, then others")
    return modules


def context_of(folder: Path) -> int | None:
    """The longest text in tokens that the files beside the config.json of a transformer name."""
    names = sorted(folder.glob("sentence_*_config.json"))  # old folders have the kind of model in this name
    file = names[0] if names else folder / "sentence_bert_config.json"
    settings = _read(_Transformer, file)
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
