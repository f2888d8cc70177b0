"""Layers that keep only their inputs for the backward pass, and layers that are compiled.

Both replace the `forward` of each layer that `nn.layers` finds, in our encoders and in those of libraries.
What hangs on the call of a layer, such as the hooks of sharding, stays outside and happens once.

The library of Hugging Face has a switch of its own for the first. It is not used: it changes its name from
version to version, it does nothing for a layer in evaluation mode although what stands below may learn, and
on texts it makes frozen tables ask for gradients.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.checkpoint import checkpoint

from grainline.encoders.base import Layered
from grainline.errors import UserError
from grainline.nn.layers import layer_lists
from grainline.nn.noise import present, using

VARIANTS = 16
"""How often a layer may be compiled: for training and measuring, the first shapes and then any shape."""


def recompute_layers(model: nn.Module) -> None:
    """From now on the backward pass computes the activations of each layer again, with the same noise.

    UserError for a model without layers, and for layers with running statistics, which would count twice.
    """
    for name, layer in _layers(model, "train.recompute"):
        if any(isinstance(module, _BatchNorm) for module in layer.modules()):
            raise UserError(
                f"train.recompute cannot compute {name} twice: its running statistics would count each "
                "batch twice; leave it out"
            )
        _wrap(layer, partial(_recomputed, layer.forward))


def compile_layers(model: nn.Module, backend: str | Callable[..., Any] = "inductor") -> None:
    """From now on each layer runs as `torch.compile` makes it. To be called before `recompute_layers`.

    A layer that cannot be compiled as a whole is a UserError when it is called first, not a slower run.
    """
    layers = _layers(model, "train.compile")
    # All layers share the library's few lines of code, and each may be compiled for several shapes and modes;
    # beyond a limit, 8 by default, torch gives up.
    limits: Any = torch._dynamo.config
    limits.cache_size_limit = max(limits.cache_size_limit, VARIANTS * len(layers))
    limits.accumulated_cache_size_limit = max(limits.accumulated_cache_size_limit, VARIANTS * len(layers))
    for name, layer in layers:
        compiled = torch.compile(layer.forward, backend=backend, fullgraph=True)
        _wrap(layer, partial(_compiled, compiled, name))


def _layers(model: nn.Module, option: str) -> list[tuple[str, nn.Module]]:
    """Every layer by name; each encoder has some, and so has the model."""
    lists = layer_lists(model)
    for name, module in model.named_modules():
        if isinstance(module, Layered) and not any(path.startswith(f"{name}.") for path in lists):
            raise UserError(f"{option} finds no list of layers in the encoder {name}; leave it out")
    if not lists:
        raise UserError(f"{option} finds no list of layers in this model; leave it out")
    return [(f"{path}.{i}", layer) for path, layers in lists.items() for i, layer in enumerate(layers)]


def _wrap(layer: nn.Module, forward: Callable[..., Any]) -> None:
    layer.forward = forward


def _recomputed(forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Tensors go as positions where the layer was given them so: their device is where noise is repeated."""
    if not torch.is_grad_enabled():
        return forward(*args, **kwargs)
    rows = present()  # the backward pass stands outside the block that says which rows they are

    def again(*args: Any) -> Any:
        with using(rows):
            return forward(*args, **kwargs)

    return checkpoint(again, *args, use_reentrant=False)


def _compiled(forward: Callable[..., Any], name: str, *args: Any, **kwargs: Any) -> Any:
    try:
        return forward(*args, **kwargs)
    except torch._dynamo.exc.TorchDynamoException as error:
        reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise UserError(f"train.compile cannot compile {name}: {reason}; leave it out") from error
