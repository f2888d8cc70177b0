"""The weights of a method in one safetensors file: written atomically, read strictly.

The file carries the name of the class it belongs to, because two methods may well have the same parameters.

Adapters (`training/lora.py`) go into the file beside the weights that they belong to, all under plain names.
Read into a method that has none, they are added to those weights: whoever loads a model meets none.
"""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch import Tensor, nn

from grainline.errors import UserError
from grainline.files import STATE, Corrupt, reason, replacing, unseal, write_tensors

MODEL = "model.safetensors"
LORA_SCALE = "lora_scale"
"""A number among the weights of a method with adapters: what their product counts."""


def save_weights(path: Path, method: nn.Module) -> None:
    """Write the weights to one file, atomically. UserError when the disk is full or closed to us."""
    with replacing(path) as place:
        write_weights(place, method, state_of(method))


def load_weights(path: Path, method: nn.Module) -> None:
    """Fill the method from a safetensors file, or from the folder that holds it as model.safetensors.

    The seal of a checkpoint is checked first, as far as weights go: its optimizer may be missing. Every name,
    shape and dtype has to fit, else a UserError says what does not, and the method stays as it was.
    """
    file = path / MODEL if path.is_dir() else path
    if (file.parent / STATE).is_file():
        try:
            unseal(file.parent, only=(file.name,))
        except Corrupt as error:
            raise UserError(
                f"checkpoint {file.parent} is corrupt: {error}; choose another checkpoint of the run"
            ) from None
    fill(method, read_weights(file, method))


def write_weights(path: Path, method: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Write the file where it stands, for callers that see to atomicity and to sharded weights themselves."""
    write_tensors(path, weights, {"class": type(method).__name__})


def plain(name: str) -> str:
    """The name of a parameter without what peft puts in; others stay as they are.

    >>> plain("text.to_out.base_layer.weight"), plain("text.to_out.lora_A.default.weight")
    ('text.to_out.weight', 'text.to_out.lora_A.weight')
    """
    return re.sub(r"\.base_layer(?=\.)|(?<=\.lora_[AB])\.default(?=\.)", "", name)


def state_of(method: nn.Module) -> dict[str, Tensor]:
    """All weights and buffers of a method by plain name."""
    return {plain(name): x for name, x in method.state_dict().items()}


def fill(method: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Put weights by plain name, which are known to fit, into a method."""
    method.load_state_dict({name: weights[plain(name)] for name in method.state_dict()}, strict=True)


def merged(found: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Weights with adapters as weights without: W + scale * B @ A. What has no counterpart stays as it is.

    >>> import torch
    >>> found = {"to.weight": torch.zeros(2, 2), LORA_SCALE: torch.tensor(3.0)}
    >>> found |= {"to.lora_A.weight": torch.tensor([[1.0, 2.0]]), "to.lora_B.weight": torch.ones(2, 1)}
    >>> merged(found)
    {'to.weight': tensor([[3., 6.],
            [3., 6.]])}
    """
    out = {name: x for name, x in found.items() if name != LORA_SCALE}
    for name in [name for name in out if name.endswith(".lora_A.weight")]:
        stem = name.removesuffix(".lora_A.weight")
        weight, other = f"{stem}.weight", f"{stem}.lora_B.weight"
        if weight not in out or other not in out:
            continue
        a, b = out[name], out[other]
        if a.shape[:1] == b.shape[1:] and (*b.shape[:1], *a.shape[1:]) == out[weight].shape:
            out[weight] = out[weight] + found[LORA_SCALE] * (b @ a)
            del out[name], out[other]
    return out


def read_weights(path: Path, method: nn.Module) -> dict[str, Tensor]:
    """The tensors of a weights file, by plain name, once they are known to fit the method."""
    mine = type(method).__name__
    if not path.is_file():  # safetensors would say so without the number of the error
        raise UserError(f"no weights at {path}; give a safetensors file or a checkpoint folder")
    try:
        with safe_open(path, "pt") as file:
            theirs = (file.metadata() or {}).get("class", mine)
        found: dict[str, Tensor] = load_file(path)
    except (OSError, SafetensorError) as error:
        raise UserError(
            f"weights {path} cannot be read: {reason(error)}; give a safetensors file or a checkpoint folder"
        ) from None
    if theirs != mine:
        raise UserError(f"{path} holds a {theirs}, not a {mine}: use the recipe that it was trained with")
    wanted = state_of(method)
    if LORA_SCALE in found and LORA_SCALE not in wanted:
        found = merged(found)
    wrong = misfit(found, wanted)
    if wrong:
        raise UserError(f"{path} does not fit this {mine}: {wrong}; use the recipe that it was trained with")
    return found


def misfit(found: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> str:
    """What keeps the tensors of a file from filling those of a model; empty where they fit."""
    differs = {
        f"{name} is {_form(found[name])} in the file and {_form(wanted[name])} here"
        for name in found.keys() & wanted.keys()
        if _form(found[name]) != _form(wanted[name])
    }
    missing, unknown = wanted.keys() - found.keys(), found.keys() - wanted.keys()
    return listed({"missing": missing, "unknown": unknown, "of another form": differs})


def listed(kinds: Mapping[str, Iterable[str]]) -> str:
    """How many of each kind there are, and the first three by name.

    >>> listed({"missing": {"b", "a", "d", "c"}, "unknown": {"x"}, "of another form": set()})
    '4 missing (a, b, c, ...), 1 unknown (x)'
    """
    parts = []
    for kind, names in kinds.items():
        first = sorted(names)
        if first:
            parts.append(f"{len(first)} {kind} ({', '.join(first[:3])}{', ...' if len(first) > 3 else ''})")
    return ", ".join(parts)


def _form(x: Tensor) -> str:
    return f"{str(x.dtype).removeprefix('torch.')} {list(x.shape)}"
