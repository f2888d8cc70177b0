"""Weight files: the weights of a method in one safetensors file, written atomically and read strictly.

The file has the name of the method's class, because two methods may have the same parameters. Adapters
(`training/step.py`) are stored with the weights, all under plain names. A method without adapters that reads
such a file adds them to its weights.
"""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch import Tensor, nn

from grainline.errors import UserError
from grainline.files import STATE, Corrupt, reason, replacing, unseal, write_tensors
from grainline.types import finite

MODEL = "model.safetensors"
RAW = "raw.safetensors"  # beside MODEL where that is a moving average: the weights that were averaged
LORA_SCALE = "lora_scale"
"""A buffer of a method with adapters: the factor on their product."""

_COUNTS = "position_ids", "num_batches_tracked", "relative_position_index"  # integers beside weights


def save_weights(path: Path, method: nn.Module) -> None:
    """Write the weights to one file, atomically. UserError if the file cannot be written."""
    with replacing(path) as place:
        write_weights(place, method, plain_state_dict(method))


def load_weights(path: Path, method: nn.Module) -> None:
    """Fill the method from a safetensors file, or from the folder that holds it as model.safetensors.

    In a checkpoint folder the sha256 of the file is checked first; the optimizer may be missing. UserError
    unless every name, shape and dtype fits; the method is unchanged then.
    """
    file = path / MODEL if path.is_dir() else path
    if (file.parent / STATE).is_file():
        try:
            unseal(file.parent, only=(file.name,))
        except Corrupt as error:
            raise UserError(f"checkpoint {file.parent} is corrupt: {error}; choose another one") from None
    fill(method, read_weights(file, method))


def check_numbers(weights: Mapping[str, Tensor], where: str | Path) -> None:
    """UserError for weights that are NaN, infinite or integers. where: their file"""
    whole = {name for name, x in weights.items() if not x.is_floating_point()}
    wrong = summarize_names(
        {
            "with NaN or infinite numbers": {name for name, x in weights.items() if not finite(x)},
            "without floats": {name for name in whole if not name.endswith(_COUNTS)},
        }
    )
    if wrong:
        raise UserError(f"tensors of {where} cannot be weights: {wrong}; take another checkpoint")


def write_weights(path: Path, method: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Write the file in place, for callers that handle atomicity and sharded weights."""
    write_tensors(path, weights, {"class": type(method).__name__})


def plain_name(name: str) -> str:
    """The name of a parameter without the parts that peft inserts.

    >>> plain_name("text.to_out.base_layer.weight"), plain_name("text.to_out.lora_A.default.weight")
    ('text.to_out.weight', 'text.to_out.lora_A.weight')
    """
    return re.sub(r"\.base_layer(?=\.)|(?<=\.lora_[AB])\.default(?=\.)", "", name)


def plain_state_dict(method: nn.Module) -> dict[str, Tensor]:
    """All weights and buffers of a method by plain name."""
    return {plain_name(name): x for name, x in method.state_dict().items()}


def fill(method: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Load weights by plain name into a method; they must fit."""
    method.load_state_dict({name: weights[plain_name(name)] for name in method.state_dict()}, strict=True)


def merge_lora(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Merge adapters into weights: W + scale * B @ A. Adapters without a matching weight stay as they are.

    >>> import torch
    >>> weights = {"to.weight": torch.zeros(2, 2), LORA_SCALE: torch.tensor(3.0)}
    >>> weights |= {"to.lora_A.weight": torch.tensor([[1.0, 2.0]]), "to.lora_B.weight": torch.ones(2, 1)}
    >>> merge_lora(weights)
    {'to.weight': tensor([[3., 6.],
            [3., 6.]])}
    """
    out = {name: x for name, x in weights.items() if name != LORA_SCALE}
    for name in [name for name in out if name.endswith(".lora_A.weight")]:
        stem = name.removesuffix(".lora_A.weight")
        weight, other = f"{stem}.weight", f"{stem}.lora_B.weight"
        if weight not in out or other not in out:
            continue
        a, b = out[name], out[other]
        if a.shape[:1] == b.shape[1:] and (*b.shape[:1], *a.shape[1:]) == out[weight].shape:
            out[weight] = out[weight] + weights[LORA_SCALE] * (b @ a)
            del out[name], out[other]
    return out


def read_weights(path: Path, method: nn.Module) -> dict[str, Tensor]:
    """The tensors of a weights file by plain name. UserError unless all of them fit the method."""
    expected = type(method).__name__
    if not path.is_file():  # the error of safetensors would not have a number
        raise UserError(f"no weights at {path}; give a safetensors file or a checkpoint folder")
    try:
        with safe_open(path, "pt") as file:
            stored = (file.metadata() or {}).get("class", expected)
        weights: dict[str, Tensor] = load_file(path)
    except (OSError, SafetensorError) as error:
        raise UserError(f"weights {path} cannot be read: {reason(error)}; give a safetensors file") from None
    if stored != expected:
        raise UserError(f"{path} holds a {stored}, not a {expected}: use the recipe that it was trained with")
    wanted = plain_state_dict(method)
    if LORA_SCALE in weights and LORA_SCALE not in wanted:
        weights = merge_lora(weights)
    wrong = state_dict_mismatch(weights, wanted)
    if wrong:
        raise UserError(f"{path} does not fit this {expected}: {wrong}; use the recipe of its training")
    check_numbers({name: x for name, x in weights.items() if x.is_floating_point()}, path)
    return weights


def state_dict_mismatch(weights: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> str:
    """Why the tensors of a file do not fit those of a model; empty if they fit."""
    differs = {
        f"{name} is {_form(weights[name])} in the file and {_form(wanted[name])} here"
        for name in weights.keys() & wanted.keys()
        if _form(weights[name]) != _form(wanted[name])
    }
    missing, unknown = wanted.keys() - weights.keys(), weights.keys() - wanted.keys()
    return summarize_names({"missing": missing, "unknown": unknown, "of another form": differs})


def summarize_names(kinds: Mapping[str, Iterable[str]]) -> str:
    """How many of each kind there are, and the first three by name.

    >>> summarize_names({"missing": {"b", "a", "d", "c"}, "unknown": {"x"}, "of another form": set()})
    '4 missing (a, b, c, ...), 1 unknown (x)'
    """
    lists = {kind: sorted(names) for kind, names in kinds.items()}
    return ", ".join(
        f"{len(names)} {kind} ({', '.join(names[:3])}{', ...' * (len(names) > 3)})"
        for kind, names in lists.items()
        if names
    )


def _form(x: Tensor) -> str:
    return f"{str(x.dtype).removeprefix('torch.')} {list(x.shape)}"
