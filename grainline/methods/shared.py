"""Parts that several methods share: the scale of logits, terms for the log, settings of triplets."""

import math
from typing import Any, Literal

import torch
from pydantic import Field, field_validator
from torch import Tensor, nn

from grainline.encoders.towers import TowersConfig
from grainline.losses.contrastive import both_ways as both_ways  # methods from outside find it here
from grainline.types import CAPTION, FOIL, Encoded, Mean, Term, rows


class LogitScale(nn.Module):
    """exp(log_scale), kept in 1..maximum by `clamp_` after every optimiser step; a maximum of None: no bound.

    Clamping in forward would leave a scale that reached the bound without a gradient. The parameter has shape
    [1], not []: FSDP2 does not shard scalars.
    """

    def __init__(self, initial: float, maximum: float | None) -> None:
        super().__init__()
        self.maximum = maximum
        self.log_scale = nn.Parameter(torch.full((1,), math.log(initial)))

    def forward(self) -> Tensor:
        """The scale: [1]."""
        return self.log_scale.exp()

    @torch.no_grad()
    def clamp_(self) -> None:
        """Put the scale back between 1 and its maximum."""
        self.log_scale.clamp_(0.0, None if self.maximum is None else math.log(self.maximum))


def clamp_scales(model: nn.Module) -> None:
    """Clamp every LogitScale inside a model; the training loop calls it after each step."""
    for module in model.modules():
        if isinstance(module, LogitScale):
            module.clamp_()


def logged(**values: Tensor) -> dict[str, Term]:
    """Terms without a weight, for the log, such as learnt scales. `_` in a name becomes a space."""
    return {
        name.replace("_", " "): Term(None, Mean(x.detach().sum(), x.new_ones(())))
        for name, x in values.items()
    }


class TripletsConfig(TowersConfig):
    """Encoders, and when the negatives of a triplet loss count. An epoch is a round over the images."""

    margin: float = Field(0.2, gt=0)
    warmup: float = Field(1.0, ge=0)  # epochs in which the weight of the loss rises from 0 to 1; 0: 1 at once
    # epochs in which all negatives count, before the hardest alone do; None: as long as the warm-up
    hardest_after: float | Literal["never"] | None = None

    @field_validator("hardest_after", mode="before")
    @classmethod
    def _time(cls, value: Any) -> Any:
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not ((number and 0 <= value < math.inf) or value in ("never", None)):
            raise ValueError("allowed are a number of epochs from 0, never, or null: as long as warmup")
        return value


def whole_captions(texts: Encoded) -> Encoded:
    """The rows that are captions or foils. texts: with `level` in their extra"""
    level = texts.extra.level
    whole = ((level == CAPTION) | (level == FOIL)) & (texts.item >= 0)
    return rows(texts._replace(extra=None), whole.nonzero()[:, 0])
