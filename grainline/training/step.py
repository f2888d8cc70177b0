"""One training step, and the same step for batches whose activations do not fit in memory.

`cached_step` is GradCache (Gao et al., arXiv 2101.06983): encode without keeping activations, compare the
whole batch, encode again chunk by chunk to pass the gradients on. Written as recomputation of each chunk, it
needs no second code path: autocast and losses of single rows are repeated as they were, the noise of layers
belongs to rows (`nn/hashing.py`), and DistributedDataParallel sees one forward and one backward.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.checkpoint import checkpoint

from grainline.distributed import finish, gather
from grainline.encoders.base import Layered
from grainline.errors import UserError
from grainline.methods.base import Method
from grainline.nn.attention import layer_lists
from grainline.nn.hashing import IMAGES, TEXTS, number_places, present, rows_of, using
from grainline.types import Clock, Encoded, Images, Mean, Pair, Term, Texts, concat, rows

T = TypeVar("T", Images, Texts)


class Loss(NamedTuple):
    """What a step minimises."""

    total: Tensor  # [] with a gradient; averaged over ranks it is the loss of the global batch
    terms: dict[str, Tensor]  # [] each, without gradients, for the log
    facts: dict[str, Tensor]  # [] each, without gradients: means over the global batch that no total counts


class Objective(nn.Module):
    """A method with its loss, from a batch to a number: what DistributedDataParallel wraps.

    Encoders run in `precision`, losses always in float32: a scale of 100 on cosines of 8 bits is off by 0.4.
    """

    def __init__(self, method: Method, precision: torch.dtype = torch.float32) -> None:
        super().__init__()
        number_places(method)
        self.method, self.precision = method, precision

    def forward(self, images: Images, texts: Texts, clock: Clock, chunk: int | None = None) -> Loss:
        """Encode, exchange, compare.

        images, texts  this rank's rows; every rank holds equally many
        chunk          rows whose activations are kept at a time; None keeps all
        """
        method = self.method

        def see(part: Images) -> Encoded:
            with rows_of(clock, IMAGES, part.image):
                return method.encode_images(part)

        def read_some(part: Texts) -> tuple[Encoded, dict[str, Term]]:
            with rows_of(clock, TEXTS, part.item):
                return self._read(part)

        with torch.autocast(images.pixels.device.type, self.precision, self.precision != torch.float32):
            seen = _in_chunks(see, images, len(images.image), chunk)
            read = _in_chunks(read_some, texts, len(texts.item), chunk)
            mine = method.meet(Pair(concat(seen), concat([encoded for encoded, _ in read])))
        alone = [terms for _, terms in read]
        everyone = Pair(gather(mine.images, method.gathers), gather(mine.texts, method.gathers))
        terms = method.loss(mine, everyone, clock) | {
            name: _summed([t[name] for t in alone]) for name in alone[0]
        }
        values = {
            name: term.weight * finish(term.mean) for name, term in terms.items() if term.weight is not None
        }
        facts = {name: finish(term.mean).detach() for name, term in terms.items() if term.weight is None}
        total = torch.stack(list(values.values())).sum()
        return Loss(total, {name: value.detach() for name, value in values.items()}, facts)

    def _read(self, texts: Texts) -> tuple[Encoded, dict[str, Term]]:
        encoded = self.method.encode_texts(texts)
        return encoded, self.method.row_loss(texts, encoded)


def step(method: Method, images: Images, texts: Texts, clock: Clock) -> dict[str, Tensor]:
    """Gradients of one batch, added to `.grad`. Returns the terms of the loss."""
    loss: Loss = Objective(method)(images, texts, clock)
    loss.total.backward()
    return loss.terms


def cached_step(method: Method, images: Images, texts: Texts, clock: Clock, chunk: int) -> dict[str, Tensor]:
    """The gradients of `step` with the activations of at most `chunk` images or texts at a time."""
    loss: Loss = Objective(method)(images, texts, clock, chunk)
    loss.total.backward()
    return loss.terms


def _in_chunks(encode: Callable[[T], Any], batch: T, length: int, chunk: int | None) -> list[Any]:
    if chunk is None:
        return [encode(batch)]
    parts = [rows(batch, slice(i, i + chunk)) for i in range(0, length, chunk)]
    return [checkpoint(encode, part, use_reentrant=False) for part in parts]


def _summed(terms: list[Term]) -> Term:
    total = torch.stack([term.mean.total for term in terms]).sum()
    number = torch.stack([term.mean.number for term in terms]).sum()
    return Term(terms[0].weight, Mean(total, number))


# Layers that keep only their inputs for the backward pass, and layers that are compiled.
#
# Both replace the `forward` of each layer that `nn.attention` finds, in our encoders and in those of
# libraries. What hangs on the call of a layer, such as the hooks of sharding, stays outside and happens once.
#
# The library of Hugging Face has a switch of its own for the first. It is not used: it changes its name from
# version to version, it does nothing for a layer in evaluation mode although what stands below may learn, and
# on texts it makes frozen tables ask for gradients.


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
