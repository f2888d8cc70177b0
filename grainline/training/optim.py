"""The optimizer: which parameters learn, at which learning rate, with how much weight decay.

This is the only place that freezes parameters. The first rule whose pattern matches the full name of a
parameter applies to it. A rule without parameters and a parameter without a rule are errors, because both are
usually typing mistakes. A parameter of fewer than two dimensions (biases, norms, scales) decays only if its
rule sets a decay; all others, tables too, take the base decay where their rule sets none.

Layer-wise decay (BEiT, arXiv 2106.08254; timm) lowers the rate with depth: `depth_levels`.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, NamedTuple, NoReturn

import torch
from pydantic import Field
from torch import Tensor, nn

from grainline.config import Config
from grainline.encoders.base import Layered
from grainline.errors import UserError
from grainline.nn.attention import layer_lists
from grainline.training.schedule import Cosine, Schedule, rate
from grainline.weights import plain_name

Beta = Annotated[float, Field(ge=0, lt=1)]


class ParamRule(Config):
    """Settings of the parameters whose full name matches the pattern."""

    pattern: str  # regular expression for the whole name
    lr_factor: float = Field(default=1.0, ge=0)  # times the base learning rate; 0 freezes
    weight_decay: float | None = Field(default=None, ge=0)  # None: the base decay, for matrices only
    schedule: Schedule | None = None  # None: the schedule of the run


class OptimizerConfig(Config):
    """AdamW: base values, and rules for parameters that differ from them."""

    lr: float = Field(default=5e-4, gt=0)
    weight_decay: float = Field(default=0.2, ge=0)
    betas: tuple[Beta, Beta] = (0.9, 0.98)
    eps: float = Field(default=1e-6, gt=0)
    schedule: Schedule = Cosine()
    rules: tuple[ParamRule, ...] = (ParamRule(pattern=".*"),)
    layer_decay: float | None = Field(default=None, gt=0, le=1)  # times the rate, for each level down


def build_optimizer(model: nn.Module, cfg: OptimizerConfig) -> torch.optim.AdamW:
    """AdamW over the parameters that the rules train; the others no longer require gradients.

    The fused kernel on CPU and CUDA makes one pass over the state. It is elementwise and deterministic, but
    rounds differently from the unfused loop: a run is bit-identical only to runs on the same kind of device.
    """
    groups = param_groups(model, cfg.rules, cfg.lr, cfg.weight_decay, cfg.schedule, cfg.layer_decay)
    devices = {parameter.device.type for group in groups for parameter in group["params"]}
    fused = True if devices <= {"cpu", "cuda"} else None
    return torch.optim.AdamW(groups, lr=cfg.lr, betas=cfg.betas, eps=cfg.eps, weight_decay=0.0, fused=fused)


def param_groups(
    model: nn.Module,
    rules: Sequence[ParamRule],
    lr: float,
    decay: float,
    schedule: Schedule,
    layer_decay: float | None = None,
) -> list[dict[str, Any]]:
    """Parameter groups for AdamW in the order of the rules; other parameters no longer require gradients.

    A rule makes at most two groups, first its matrices, then its parameters of fewer than two dimensions;
    with `layer_decay`, two for each level, the deepest first. A group also has `names` (plain names of
    `params`), `rule` (the pattern), and `base_lr` and `schedule`, from which `set_rates` computes `lr`.

    >>> model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2, bias=False))
    >>> rules = [ParamRule(pattern=r"0\\..*", lr_factor=0.5), ParamRule(pattern=".*", weight_decay=0.3)]
    >>> for group in param_groups(model, rules, lr=0.1, decay=0.2, schedule=Cosine()):
    ...     print(group["names"], group["lr"], group["weight_decay"])
    ['0.weight'] 0.05 0.2
    ['0.bias'] 0.05 0.0
    ['1.weight'] 0.1 0.3

    UserError for a wrong pattern, a rule without parameters, a parameter without a rule, no rule that trains.
    """
    parameters = {plain_name(name): p for name, p in model.named_parameters()}
    adapted = frozen_names(model)
    depths = {} if layer_decay is None else depth_levels(model)
    groups: list[dict[str, Any]] = []
    for rule, matches in zip(rules, _by_rule(parameters, rules), strict=True):
        learning = {name: p for name, p in matches.items() if rule.lr_factor > 0 and name not in adapted}
        for name, parameter in matches.items():
            parameter.requires_grad_(name in learning)
        if rule.lr_factor > 0 and not learning:
            raise UserError(
                f"rule '{rule.pattern}' matches only weights that train.lora freezes ({next(iter(matches))}, "
                "...); drop it, or name adapters, .*\\.lora_[AB]\\.weight"
            )
        for level in sorted({depths.get(name, 0) for name in learning}, reverse=True):
            part = {name: p for name, p in learning.items() if depths.get(name, 0) == level}
            base = lr * rule.lr_factor * (layer_decay or 1.0) ** level
            rates = {"lr": base, "base_lr": base, "schedule": rule.schedule or schedule}
            for flat, default in ((False, decay), (True, 0.0)):
                names = [name for name, p in part.items() if (p.dim() < 2) == flat]
                wd = default if rule.weight_decay is None else rule.weight_decay
                group = {"params": [part[name] for name in names], "names": names, "weight_decay": wd}
                groups += [group | rates | {"rule": rule.pattern}] if names else []
    if not groups:
        raise UserError("every rule has lr_factor 0, so nothing would learn: set one of them above 0")
    return groups


def set_rates(optimizer: torch.optim.Optimizer, step: int, total: int) -> None:
    """Set every group's rate for the update at `step` (from 0) of `total`."""
    for group in optimizer.param_groups:
        group["lr"] = group["base_lr"] * rate(group["schedule"], step, total)


def rates(optimizer: torch.optim.Optimizer) -> dict[str, float]:
    """The current learning rates by rule; with layer-wise decay, the lowest and the highest of each rule."""
    by_rule: dict[str, list[float]] = {}
    for group in optimizer.param_groups:
        by_rule.setdefault(group["rule"], []).append(group["lr"])
    named: dict[str, float] = {}
    for rule, lrs in by_rule.items():
        low, high = min(lrs), max(lrs)
        named |= {rule: high} if low == high else {f"{rule} lowest": low, f"{rule} highest": high}
    return named


def require_frozen(model: nn.Module, prefix: str, why: str) -> None:
    """UserError with `why` if a parameter below the prefix learns; call it after `build_optimizer`."""
    named = ((plain_name(name), parameter) for name, parameter in model.named_parameters())
    learning = [name for name, parameter in named if name.startswith(prefix) and parameter.requires_grad]
    if learning:
        pattern = re.escape(prefix) + ".*"
        raise UserError(
            f"{why}, but {len(learning)} of its parameters learn ({learning[0]}, ...): freeze them by "
            "a first rule of train.optimizer.rules, "
            f"{{pattern: '{pattern}', lr_factor: 0}}, and leave it out of LoRA"
        )


def train_mode(model: nn.Module) -> None:
    """model.train(), but a module whose parameters are all frozen stays in eval mode.

    A module without parameters, such as dropout, has the mode of the module that contains it.
    """
    model.train()
    for module in model.modules():
        parameters = list(module.parameters())
        if parameters and not any(parameter.requires_grad for parameter in parameters):
            module.eval()


def _by_rule(
    parameters: Mapping[str, nn.Parameter], rules: Sequence[ParamRule]
) -> list[dict[str, nn.Parameter]]:
    """For each rule, the parameters for which it is the first match."""
    patterns = []
    for rule in rules:
        try:
            patterns.append(re.compile(rule.pattern))
        except re.error as error:
            hint = "write a dot in a name as \\."
            raise UserError(f"rule '{rule.pattern}' is not a regular expression: {error}; {hint}") from None
    matches: list[dict[str, nn.Parameter]] = [{} for _ in rules]
    for name, parameter in parameters.items():
        first = next((i for i, pattern in enumerate(patterns) if pattern.fullmatch(name)), None)
        if first is None:
            listed = ", ".join(rule.pattern for rule in rules) or "none"
            raise UserError(
                f"no rule matches parameter {name!r}: the rules are {listed}; add one for it, or end the "
                "list with '.*'"
            )
        matches[first][name] = parameter
    for pattern, names in zip(patterns, matches, strict=True):
        if not names:
            _no_match(pattern, parameters)
    return matches


def _no_match(pattern: re.Pattern[str], parameters: Mapping[str, Tensor]) -> NoReturn:
    earlier = [name for name in parameters if pattern.fullmatch(name)]
    if earlier:
        raise UserError(
            f"rule '{pattern.pattern}' applies to nothing: earlier rules match all of its {len(earlier)} "
            f"parameters ({earlier[0]}, ...); put the narrower rule first, or drop this one"
        )
    names = list(parameters)
    some = names[:: max(1, len(names) // 4)][:4]
    raise UserError(
        f"rule '{pattern.pattern}' matches no parameter: it must match a whole name, "
        f"and this model has {len(names)}, among them {', '.join(some)}"
    )


class EncoderLayers(NamedTuple):
    """An encoder and its list of layers, by their full names in a model."""

    name: str
    encoder: Layered
    path: str  # of the list
    layers: nn.ModuleList


def encoder_layers(model: nn.Module, option: str) -> list[EncoderLayers]:
    """The encoders of a model with their layers. UserError for an encoder without exactly one list of layers.

    option  the recipe field that needs them, for the message
    """
    lists = layer_lists(model)
    encoders = {name: module for name, module in model.named_modules() if isinstance(module, Layered)}
    if not encoders:
        raise UserError(f"{option} works on encoders that name their layers; this model has none")
    result = []
    for name, encoder in encoders.items():
        paths = [path for path in lists if is_under(path, name)]
        if len(paths) != 1:
            raise UserError(
                f"{option} needs one list of layers in the encoder {name or 'of this model'}, which has "
                f"{len(paths)}; leave it out"
            )
        result.append(EncoderLayers(name, encoder, paths[0], lists[paths[0]]))
    return result


def depth_levels(model: nn.Module, option: str = "train.optimizer.layer_decay") -> dict[str, int]:
    """The level of each parameter by its plain name (`weights.plain_name`). In an encoder of d layers:

    d + 1  before the first layer: patch embedding, tables, class token
    d - i  layer i of `nn.attention.layer_lists`, from 0, so the last layer has level 1; for Swin and GroupViT
           these are stages, and a module between two stages belongs to the one before it
    0      after the last layer: norm, pool; and everything outside the encoders: projections, scale, bias

    UserError for a list of layers outside the encoders, and for a part of an encoder without a level.

    >>> from grainline.encoders.text import TextConfig, TextTransformer
    >>> text = TextTransformer(TextConfig(width=8, depth=2, heads=2, vocab=300, context=8))
    >>> levels = depth_levels(text)
    >>> [levels[x] for x in ("words.weight", "stack.blocks.0.norm1.bias", "stack.blocks.1.norm1.bias")]
    [3, 2, 1]
    >>> levels["norm.weight"]
    0
    """
    encoders = encoder_layers(model, option)
    for path in layer_lists(model):
        if not any(is_under(path, encoder.name) for encoder in encoders):
            raise UserError(
                f"{option} finds the layers {path} outside the encoders, so their depth is unknown; "
                "leave it out and give rules"
            )
    names = [name for name, _ in model.named_parameters()]
    levels = dict.fromkeys(map(plain_name, names), 0)
    for encoder in encoders:
        levels |= {plain_name(x): _level(x, encoder, option) for x in names if is_under(x, encoder.name)}
    return levels


def is_under(name: str, module: str) -> bool:
    """Whether a name is that of a module or of something inside it; "" is the model itself.

    >>> is_under("image.norm.bias", "image"), is_under("imagery.norm", "image"), is_under("scale", "")
    (True, False, True)
    """
    return not module or name == module or name.startswith(f"{module}.")


def _level(name: str, place: EncoderLayers, option: str) -> int:
    depth = len(place.layers)
    part_name = name.removeprefix(f"{place.name}.") if place.name else name
    if is_under(name, place.path):
        return depth - int(name.removeprefix(f"{place.path}.").partition(".")[0])
    if any(is_under(part_name, part) for part in place.encoder.before):
        return depth + 1
    if any(is_under(part_name, part) for part in place.encoder.behind):
        return 0
    raise UserError(
        f"{option} does not know whether {part_name!r} is before or after the layers of the encoder "
        f"{place.name or 'of this model'}; leave it out and give rules"
    )


def frozen_names(model: nn.Module) -> set[str]:
    """Plain names of the parameters that adapters freeze; empty for a model without adapters."""
    names = [name for name, _ in model.named_parameters()]
    adapted = {name.partition(".lora_A.")[0] for name in names if ".lora_A." in name}
    if not adapted:
        return set()
    places = adapted | {name for name, module in model.named_modules() if isinstance(module, Layered)}
    base = [name for name in names if ".lora_A." not in name and ".lora_B." not in name]
    return {plain_name(name) for name in base if any(is_under(name, place) for place in places)}
