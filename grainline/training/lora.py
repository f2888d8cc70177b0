"""LoRA: small matrices that learn in place of large ones (Hu et al., arXiv 2106.09685), by the library peft.

A linear layer y = W x + b becomes y = W x + b + alpha / rank * B A x. A [rank, in] is initialised with noise
and B [out, rank] with zeros. A and B learn, and so do the parameters outside the encoders. All other weights
of the encoders are frozen, also against the rules. In rules, files and the optimizer state an adapted layer
has its old parameter names, and the matrices are `<layer>.lora_A.weight` and `<layer>.lora_B.weight`.
`weights.py` adds B A to W when it reads such a file into a model without adapters.
"""

import re
from typing import Any

import torch
from pydantic import Field
from torch import nn

from grainline.config import Config
from grainline.encoders.base import Layered
from grainline.errors import UserError
from grainline.nn.hashing import drop_by_rows
from grainline.training.optim import encoder_layers
from grainline.weights import LORA_SCALE


class LoraConfig(Config):
    """Rank and scale of the matrices, and the layers that get them."""

    rank: int = Field(8, gt=0)
    alpha: float = Field(16.0, gt=0)  # B A is multiplied by alpha / rank
    dropout: float = Field(0.0, ge=0, lt=1)  # of the inputs of A, in training
    # Regular expression for whole names of linear layers; None: the projections of attention.
    targets: str | None = None


def add_lora(method: nn.Module, cfg: LoraConfig) -> None:
    """Add the matrices to the linear layers that the config selects, in place.

    UserError without peft, for a wrong pattern, and for one that matches no linear layer.
    """
    targets = _attention(method) if cfg.targets is None else _matching(method, cfg.targets)
    try:
        from peft import LoraConfig as PeftConfig
        from peft import inject_adapter_in_model
    except ImportError as error:
        raise UserError(
            f"train.lora needs peft ({error}); install it with `pip install 'grainline[lora]'`"
        ) from None
    settings: dict[str, Any] = {"r": cfg.rank, "lora_alpha": cfg.alpha, "lora_dropout": cfg.dropout}
    pattern = "|".join(map(re.escape, targets))
    inject_adapter_in_model(PeftConfig(target_modules=pattern, **settings), method)
    for module in method.modules():
        if isinstance(module, Layered):
            drop_by_rows(module)
    method.register_buffer(LORA_SCALE, torch.tensor(cfg.alpha / cfg.rank))


def _linear(method: nn.Module) -> list[str]:
    """Names of the linear layers; those of nn.MultiheadAttention are of another class and never called."""
    return [name for name, module in method.named_modules() if type(module) is nn.Linear]


def _attention(method: nn.Module) -> list[str]:
    """The projections of attention in the layers of every encoder."""
    targets = []
    for place in encoder_layers(method, "train.lora"):
        pattern = re.compile(rf"{re.escape(place.path)}\.\d+\.(?:{place.encoder.attention})")
        names = [name for name in _linear(method) if pattern.fullmatch(name)]
        if not names:
            raise UserError(
                f"train.lora finds no projections of attention in {place.name}; name linear layers in "
                "train.lora.targets"
            )
        targets += names
    return targets


def _matching(method: nn.Module, targets: str) -> list[str]:
    try:
        pattern = re.compile(targets)
    except re.error as error:
        raise UserError(f"train.lora.targets {targets!r} is not a regular expression: {error}") from None
    names = _linear(method)
    matches = [name for name in names if pattern.fullmatch(name)]
    if not matches:
        some = ", ".join(names[:: max(1, len(names) // 4)][:4]) or "none"
        raise UserError(
            f"train.lora.targets {targets!r} matches no linear layer: it must match a whole name, "
            f"and this model has {len(names)}, among them {some}"
        )
    return matches
