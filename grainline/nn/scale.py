"""The temperature of a contrastive loss, as a learnt and bounded scale of its logits."""

import math

import torch
from torch import Tensor, nn


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
