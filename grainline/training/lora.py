"""LoRA: small matrices that learn in place of large ones (Hu et al., arXiv 2106.09685), by the library peft.

A linear layer y = W x + b becomes y = W x + b + alpha / rank * B A x. A [rank, in] begins with noise and B
[out, rank] with zeros, so that training begins at the model as it was.

What learns: A and B of every adapted layer, and what stands in no encoder (projections, scale, bias). All
else in the encoders is held, whatever the rules say; a rule that decides over nothing else is an error. To
the rules, in files and in the optimizer's state an adapted layer keeps its names, and its matrices are
`<layer>.lora_A.weight` and `<layer>.lora_B.weight`.

`weights.py` adds B A to W when it reads such a file into a model without adapters.
"""

import re

import torch
from pydantic import Field
from torch import nn

from grainline.config import Config
from grainline.encoders.base import Layered
from grainline.errors import UserError
from grainline.nn.hashing import drop_by_rows
from grainline.training.depth import encoders, inside
from grainline.weights import LORA_SCALE, plain


class LoraConfig(Config):
    """How large the matrices are, how much they count, and which layers get them."""

    rank: int = Field(8, gt=0)
    alpha: float = Field(16.0, gt=0)  # what is learnt counts alpha / rank times
    dropout: float = Field(0.0, ge=0, lt=1)  # of the inputs of A, in training
    targets: str | None = (
        None  # regular expression for whole names of linear layers; None: those of attention
    )


def add_lora(method: nn.Module, cfg: LoraConfig) -> None:
    """Give the linear layers that the config means their matrices, in place.

    UserError without peft, for a bad pattern, and where no layer is meant.
    """
    targets = _attention(method) if cfg.targets is None else _matching(method, cfg.targets)
    try:
        from peft import LoraConfig as PeftConfig
        from peft import inject_adapter_in_model
    except ImportError as error:
        raise UserError(
            f"train.lora needs peft ({error}); install it with `pip install 'grainline[lora]'`"
        ) from None
    pattern = "|".join(map(re.escape, targets))
    inject_adapter_in_model(
        PeftConfig(
            r=cfg.rank,
            lora_alpha=cfg.alpha,  # type: ignore[arg-type]
            lora_dropout=cfg.dropout,
            target_modules=pattern,
        ),
        method,
    )
    for module in method.modules():
        if isinstance(module, Layered):
            drop_by_rows(module)
    method.register_buffer(LORA_SCALE, torch.tensor(cfg.alpha / cfg.rank))


def held(model: nn.Module) -> set[str]:
    """The parameters that adapters keep as they are, by plain name; none in a model without adapters."""
    names = [name for name, _ in model.named_parameters()]
    adapted = {name.partition(".lora_A.")[0] for name in names if ".lora_A." in name}
    if not adapted:
        return set()
    places = adapted | {name for name, module in model.named_modules() if isinstance(module, Layered)}
    base = [name for name in names if ".lora_A." not in name and ".lora_B." not in name]
    return {plain(name) for name in base if any(inside(name, place) for place in places)}


def _linear(method: nn.Module) -> list[str]:
    """Not those of nn.MultiheadAttention, of a other class: it reads weights and calls no layer."""
    return [name for name, module in method.named_modules() if type(module) is nn.Linear]


def _attention(method: nn.Module) -> list[str]:
    """The projections of attention in the layers of every encoder."""
    found = []
    for place in encoders(method, "train.lora"):
        pattern = re.compile(rf"{re.escape(place.list)}\.\d+\.(?:{place.encoder.attention})")
        mine = [name for name in _linear(method) if pattern.fullmatch(name)]
        if not mine:
            raise UserError(
                f"train.lora finds no projections of attention in {place.name}; name linear layers in "
                "train.lora.targets"
            )
        found += mine
    return found


def _matching(method: nn.Module, targets: str) -> list[str]:
    try:
        pattern = re.compile(targets)
    except re.error as error:
        raise UserError(f"train.lora.targets {targets!r} is not a regular expression: {error}") from None
    names = _linear(method)
    found = [name for name in names if pattern.fullmatch(name)]
    if not found:
        some = ", ".join(names[:: max(1, len(names) // 4)][:4]) or "none"
        raise UserError(
            f"train.lora.targets {targets!r} matches no linear layer: it must match a whole name, "
            f"and this model has {len(names)}, among them {some}"
        )
    return found
