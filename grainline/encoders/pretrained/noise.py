"""The noise of the transformers library's models, drawn by rows (`nn/noise.py`), not by torch's generator.

Their dropout layers and SwinDropPath are replaced. Dropout of attention weights is no layer: the library
passes its share to a function of attention, and lets others register one.
"""

from typing import Any

import torch
from torch import Tensor, nn

from grainline.nn.noise import DropPath, drop_by_rows, dropped

ATTENTION = "grainline_rows"
"""The name of our function of attention in the library's registry."""


def draw_by_rows(model: Any) -> None:
    """Let a model of the library draw all its noise by rows, in place; its weights keep their names.

    GroupViT has attention of its own, which is left alone.
    """
    for module in list(model.modules()):
        for name, child in module.named_children():
            if type(child).__name__ == "SwinDropPath":
                setattr(module, name, DropPath(child.drop_prob))
    drop_by_rows(model)
    if any(_attention_share(module) for module in model.modules()) and model._can_set_attn_implementation():
        from transformers import AttentionInterface, AttentionMaskInterface
        from transformers.masking_utils import sdpa_mask

        AttentionInterface.register(ATTENTION, attention)
        AttentionMaskInterface.register(ATTENTION, sdpa_mask)
        model.set_attn_implementation(ATTENTION)


def draws_by_process(model: nn.Module) -> list[str]:
    """The attention in the library's models whose dropout is still drawn from torch's generator, by name."""
    return [
        name
        for name, module in model.named_modules()
        if _attention_share(module) and module.config._attn_implementation != ATTENTION
    ]


def attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    **rest: Any,
) -> tuple[Tensor, Tensor | None]:
    """What the library's `sdpa_attention_forward` computes: [N, L, h, D] from [N, h, L, D], and no weights.

    With dropout all weights [N, h, L, L] are in memory at once.
    """
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    if not dropout:
        found: tuple[Tensor, Tensor | None] = sdpa_attention_forward(
            module, query, key, value, attention_mask, 0.0, scaling, is_causal, **rest
        )
        return found
    fit = query @ key.mT * (query.shape[-1] ** -0.5 if scaling is None else scaling)
    bias = rest.get("position_bias")
    fit = fit if bias is None else fit + bias
    if attention_mask is None:
        causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
        if causal:
            seen = torch.ones(fit.shape[-2:], dtype=torch.bool, device=fit.device).tril()
            fit = fit.masked_fill(~seen, -torch.inf)
    elif attention_mask.dtype == torch.bool:
        fit = fit.masked_fill(~attention_mask, -torch.inf)
    else:
        fit = fit + attention_mask
    weight = dropped(module, fit.softmax(-1, dtype=torch.float32).to(value.dtype), dropout)
    return (weight @ value).transpose(1, 2).contiguous(), None


def _attention_share(module: nn.Module) -> float:
    """The share of its weights that a module of attention drops in training; 0 for every other module."""
    if not hasattr(module, "config") or not any(hasattr(module, name) for name in ("k_proj", "key")):
        return 0.0
    found: Any = getattr(module, "attention_dropout", getattr(module, "dropout", 0.0))
    return float(getattr(found, "p", found))
