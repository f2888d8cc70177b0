"""One training step, the average of weights over steps, and what a run changes in layers: LoRA, compiling.

With `chunk` the step is GradCache (Gao et al., arXiv 2101.06983), for batches whose activations do not fit in
memory: encode without storing activations, compute the loss of the whole batch, and encode again chunk by
chunk in the backward pass. Each chunk is an activation checkpoint, so there is no second code path: autocast
and row losses are repeated, the noise of layers depends on rows (`nn/hashing.py`), and
DistributedDataParallel runs one forward and one backward pass.
"""

import re
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, TypeVar

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.checkpoint import checkpoint

from grainline.config import Config
from grainline.distributed import ddp_mean, gather
from grainline.encoders.base import Layered
from grainline.encoders.pretrained.adapters import FixedNorm
from grainline.encoders.text import Grouping
from grainline.errors import UserError
from grainline.losses.tiled.scores import half_products
from grainline.methods.base import Method
from grainline.nn.attention import layer_lists
from grainline.nn.hashing import IMAGES, TEXTS, drop_by_rows, number_places, present, rows_of, using
from grainline.training.optim import compile_pattern, encoder_layers, is_under, tuned, whole_names
from grainline.types import Clock, Encoded, Images, Mean, Pair, Term, Texts, concat, rows
from grainline.weights import LORA_SCALE, plain_name

T = TypeVar("T", Images, Texts)


class MovingAverage:
    """The exponential moving average of what learns, and of running statistics, which are float32 like it.

    After t updates the next one decays the average by min(decay, (1 + t) / (10 + t)), so that it soon
    forgets the first weights. It is elementwise: of sharded weights each process averages its part.
    """

    def __init__(self, method: nn.Module, decay: float) -> None:
        self.decay = decay
        learns = [x for x in method.parameters() if x.requires_grad]
        counts = [x for name, x in method.named_buffers() if name.endswith(("running_mean", "running_var"))]
        self.averages = {x: x.detach().clone() for x in (*learns, *counts)}
        named = *method.named_parameters(remove_duplicate=False), *method.named_buffers()
        self.weights = {plain_name(name): self.averages[x] for name, x in named if x in self.averages}

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Add the current weights. step: how many updates were made before the last one"""
        decay = min(self.decay, (1 + step) / (10 + step))
        torch._foreach_lerp_(list(self.averages.values()), list(self.averages), 1 - decay)

    @torch.no_grad()
    def swap(self) -> None:
        """Exchange the average and the weights of the method; a second call undoes it, bit for bit."""
        for x, average in self.averages.items():
            before = x.clone()
            x.copy_(average)
            average.copy_(before)


class Loss(NamedTuple):
    """The loss of a step. Its terms and facts are for the log: [] each, without gradients."""

    total: Tensor  # [] with a gradient; averaged over ranks it is the loss of the global batch
    terms: dict[str, Tensor]
    facts: dict[str, Tensor]  # means over the global batch that are not part of the total


class Objective(nn.Module):
    """A method with its loss as one module, which DistributedDataParallel or FSDP2 wraps.

    Encoders run in `precision`, losses always in float32: the error of bf16 cosines times 100 is 0.4.
    """

    def __init__(self, method: Method, precision: torch.dtype = torch.float32) -> None:
        super().__init__()
        number_places(method)
        self.method, self.precision = method, precision

    def forward(self, images: Images, texts: Texts, clock: Clock, chunk: int | None = None) -> Loss:
        """Encode the local rows, gather those of all processes, and compute the loss.

        images, texts  the rows of this process; all processes have equally many
        chunk          rows whose activations are in memory at a time; None: all
        """
        method = self.method

        def encode_images(part: Images) -> Encoded:
            with rows_of(clock, IMAGES, part.image):
                return method.encode_images(part)

        def encode_texts(part: Texts) -> tuple[Encoded, dict[str, Term]]:
            with rows_of(clock, TEXTS, part.item):
                encoded = method.encode_texts(part)
                terms = method.row_loss(part, encoded)
                return encoded, {n: x.over(len(part.item)) for n, x in terms.items()}

        with torch.autocast(images.pixels.device.type, self.precision, self.precision != torch.float32):
            image_chunks = _in_chunks(encode_images, images, len(images.image), chunk)
            text_chunks = _in_chunks(encode_texts, texts, len(texts.item), chunk)
            texts_encoded = concat([encoded for encoded, _ in text_chunks])
            local = method.before_gather(Pair(concat(image_chunks), texts_encoded))
        row_terms: list[dict[str, Term]] = [terms for _, terms in text_chunks]
        gathered = Pair(gather(local.images, method.gathers), gather(local.texts, method.gathers))
        with half_products(self.precision != torch.float32):
            terms = {n: x.over(1) for n, x in method.loss(local, gathered, clock).items()}
        for name, first in row_terms[0].items():
            means = [chunk[name].mean for chunk in row_terms]
            mean = Mean(*(torch.stack(part).sum() for part in zip(*means, strict=True)))
            terms[name] = Term(first.weight, mean)
        values = {name: x.weight * ddp_mean(x.mean) for name, x in terms.items() if x.weight is not None}
        facts = {name: ddp_mean(x.mean).detach() for name, x in terms.items() if x.weight is None}
        total = torch.stack(list(values.values())).sum()
        return Loss(total, {name: value.detach() for name, value in values.items()}, facts)


def step(
    method: Method, images: Images, texts: Texts, clock: Clock, chunk: int | None = None
) -> dict[str, Tensor]:
    """Add the gradients of one batch to `.grad` and return the terms of the loss. chunk as in `Objective`"""
    loss: Loss = Objective(method)(images, texts, clock, chunk)
    loss.total.backward()
    return loss.terms


def _in_chunks(encode: Callable[[T], Any], batch: T, length: int, chunk: int | None) -> list[Any]:
    if chunk is None:
        return [encode(batch)]
    parts = [rows(batch, slice(i, i + chunk)) for i in range(0, length, chunk)]
    return [checkpoint(encode, part, use_reentrant=False) for part in parts]


# LoRA (Hu et al., arXiv 2106.09685), by the library peft: a linear layer y = W x + b becomes
# y = W x + b + alpha / rank * B A x. A [rank, in] is initialised with noise and B [out, rank] with zeros. A
# and B learn, and so do the parameters outside the encoders. All other weights of the encoders are frozen,
# also against the rules; with `tune` (training/optim.py) only encoders that say `lora` are adapted. In rules,
# files and the optimizer state an adapted layer has its old parameter names, and the matrices are
# `<layer>.lora_A.weight` and `<layer>.lora_B.weight`. `weights.py` adds B A to W when it reads such a file
# into a model without adapters.


class LoraConfig(Config):
    """Rank and scale of the matrices, and the layers that get them."""

    rank: int = Field(8, gt=0)  # of the product B A
    alpha: float = Field(16.0, gt=0)  # B A is multiplied by alpha / rank
    dropout: float = Field(0.0, ge=0, lt=1)  # of the inputs of A, in training
    # Regular expression for whole names of linear layers; None: the projections of attention.
    targets: str | None = None


def add_lora(method: nn.Module, cfg: LoraConfig | None) -> None:
    """Add the matrices to the linear layers that the config or `tune` selects, in place.

    UserError without peft, for a wrong pattern, for one that matches no linear layer, and where `tune` is set
    but nowhere `lora`.
    """
    tune = {tower: side.tune for tower, side in tuned(method).items()}
    towers = [tower for tower in tune if tune[tower] == "lora"]
    if tune and cfg and not towers:
        others = " and ".join(f"model.{tower[7:]}.tune is {how}" for tower, how in tune.items())
        advice = "set tune: lora for a side, or leave train.lora out"
        raise UserError(f"train.lora is set, and {others}: {advice}")
    if cfg is None and not towers:
        return
    cfg = cfg or LoraConfig()
    targets = _lora_targets(method, cfg.targets, towers)
    try:
        from peft import LoraConfig as PeftConfig
        from peft import inject_adapter_in_model
    except ImportError as error:
        advice = "install it with `pip install 'grainline[lora]'`"
        raise UserError(f"train.lora needs peft ({error}); {advice}") from None
    settings: dict[str, Any] = {"r": cfg.rank, "lora_alpha": cfg.alpha, "lora_dropout": cfg.dropout}
    pattern = "|".join(map(re.escape, targets))
    inject_adapter_in_model(PeftConfig(target_modules=pattern, **settings), method)
    for module in method.modules():
        if isinstance(module, Layered):
            drop_by_rows(module)
    method.register_buffer(LORA_SCALE, torch.tensor(cfg.alpha / cfg.rank))


def _lora_targets(method: nn.Module, targets: str | None, towers: list[str]) -> list[str]:
    """Names of the linear layers that match, or of the projections of attention in every encoder.

    towers  the encoders to look in; none: the whole method
    """
    # Those of nn.MultiheadAttention are of another class and never called.
    linear = [name for name, module in method.named_modules() if type(module) is nn.Linear]
    linear = [name for name in linear if any(is_under(name, tower) for tower in towers or [""])]
    if targets is not None:
        pattern = compile_pattern(targets, f"train.lora.targets {targets!r}")
        names = [name for name in linear if pattern.fullmatch(name)]
        if not names:
            raise UserError(f"train.lora.targets {targets!r} matches no linear layer: {whole_names(linear)}")
        return names
    names = []
    for place in encoder_layers(method, "train.lora", *towers):
        pattern = re.compile(rf"{re.escape(place.path)}\.\d+\.(?:{place.encoder.attention})")
        projections = [name for name in linear if pattern.fullmatch(name)]
        if not projections:
            wrong = f"train.lora finds no projections of attention in {place.name}"
            raise UserError(f"{wrong}; name linear layers in train.lora.targets")
        names += projections
    return names


# Activation checkpointing and compilation replace the `forward` of the layers of `nn.attention`. Hooks
# on the call of a layer, such as those of FSDP2, stay outside and run once. The switch of the transformers
# library is not used: its name changes between versions, it skips layers in evaluation mode although modules
# below may learn, and for texts it makes frozen tables require gradients.


def recompute_layers(model: nn.Module) -> None:
    """Activation checkpointing: the backward pass computes each layer again, with the same noise."""
    for name, layer in _layers(model, "train.activation_checkpointing"):
        counts = (isinstance(x, _BatchNorm) and not isinstance(x, FixedNorm) for x in layer.modules())
        if any(counts):
            wrong = f"train.activation_checkpointing cannot compute {name} twice"
            raise UserError(f"{wrong}: its running statistics would count each batch twice; leave it out")
        layer.forward = partial(_recomputed, layer.forward)


def compile_layers(model: nn.Module, backend: str | Callable[..., Any] = "inductor") -> None:
    """`torch.compile` every layer. Call it before `recompute_layers`.

    A layer that cannot be compiled as a whole is a UserError at its first call.
    """
    layers = _layers(model, "train.compile")
    # All layers share the code of `forward`, and each may be compiled some 16 times (training and validation,
    # static and dynamic shapes); torch stops compiling at a limit, 8 by default.
    config: Any = torch._dynamo.config
    config.cache_size_limit = max(config.cache_size_limit, 16 * len(layers))
    config.accumulated_cache_size_limit = max(config.accumulated_cache_size_limit, 16 * len(layers))
    for name, layer in layers:
        compiled = torch.compile(layer.forward, backend=backend, fullgraph=True)
        layer.forward = partial(_compiled, compiled, name)
    for module in model.modules():
        if isinstance(module, Grouping):
            module.few_shapes = True


def _layers(model: nn.Module, option: str) -> list[tuple[str, nn.Module]]:
    """Every layer by name. UserError for an encoder, or a model, without a list of layers."""
    lists = layer_lists(model)
    for name, module in model.named_modules():
        if isinstance(module, Layered) and not any(path.startswith(f"{name}.") for path in lists):
            raise UserError(f"{option} finds no list of layers in the encoder {name}; leave it out")
    if not lists:
        raise UserError(f"{option} finds no list of layers in this model; leave it out")
    return [(f"{path}.{i}", layer) for path, layers in lists.items() for i, layer in enumerate(layers)]


def _recomputed(forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Positional tensors stay positional: `checkpoint` reads the device of its noise from them."""
    if not torch.is_grad_enabled():
        return forward(*args, **kwargs)
    rows = present()  # the backward pass runs outside the block that sets the rows

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
