"""AdamW: which parameters learn, at which learning rate and schedule, with how much weight decay.

This is the only place that freezes parameters. The first rule whose pattern matches the full name of a
parameter applies to it. A rule without parameters and a parameter without a rule are errors, because both are
usually typing mistakes. A parameter of fewer than two dimensions (biases, norms, scales) decays only if its
rule sets a decay; all others, tables too, take the base decay where their rule sets none.

`tune` of `model.image` and `model.text` stands for rules that come before all others. It decides over the
encoder alone: the projections and the layers of a method follow the rules of the recipe.

    frozen  nothing learns
    last:N  the last N layers and what reads them
    lora    adapters beside the weights (`step.add_lora`)
    all     everything

Layer-wise decay (BEiT, arXiv 2106.08254; timm) lowers the rate with depth.
"""

import itertools
import math
import re
from collections.abc import Sequence
from typing import Annotated, Any, Literal, NamedTuple

import torch
from pydantic import AfterValidator, Field
from torch import nn

from grainline.config import Config
from grainline.encoders.base import Layered
from grainline.encoders.pretrained.kind import PretrainedConfig
from grainline.errors import UserError, amount
from grainline.nn.attention import layer_lists
from grainline.weights import plain_name

# Schedules are functions of the step alone, so a resumed run needs no further state. Steps count from 0.
# Spans below 1 are a share of the run, from 1 on they are a number of steps.


def _whole_from_one(span: float) -> float:
    if span >= 1 and span != int(span):
        raise ValueError("below 1 it is a share of the run, from 1 on a whole number of steps")
    return span


def _increasing(milestones: tuple[float, ...]) -> tuple[float, ...]:
    if len({span < 1 for span in milestones}) > 1:
        raise ValueError("give all milestones as shares below 1, or all as numbers of steps")
    if any(b <= a for a, b in itertools.pairwise(milestones)):
        raise ValueError("milestones must grow from one to the next")
    return milestones


Span = Annotated[float, Field(ge=0), AfterValidator(_whole_from_one)]
"""A share of the run (below 1) or a number of steps (1, 2, 3, ...)."""

Factor = Annotated[float, Field(ge=0)]


class Constant(Config):
    """The base rate after the warm-up."""

    kind: Literal["constant"] = "constant"
    warmup: Span = 0.0  # a share of the run (below 1) or a number of steps


class Cosine(Config):
    """Half a cosine, from the base rate at the end of the warm-up to `final` times it after the last step.

    With `over="run"` the cosine starts at step 0 and the warm-up replaces its first part: the rate then drops
    a little at the end of the warm-up, as in the code of GroupViT.
    """

    kind: Literal["cosine"] = "cosine"
    warmup: Span = 0.05  # a share of the run (below 1) or a number of steps
    final: Factor = 0.0  # factor on the base rate after the last step
    first: Factor | None = None  # factor at step 0, from which the warm-up climbs; None: 1 / warmup
    over: Literal["rest", "run"] = "rest"  # the cosine begins after the warm-up, or with the run


class StepDecay(Config):
    """The base rate times `factor` once for every milestone that has been reached."""

    kind: Literal["step"] = "step"
    warmup: Span = 0.0  # a share of the run (below 1) or a number of steps
    milestones: Annotated[tuple[Span, ...], AfterValidator(_increasing)] = (0.5, 0.75)  # shares or steps
    factor: Factor = 0.1  # on the rate at each milestone


Schedule = Annotated[Constant | Cosine | StepDecay, Field(discriminator="kind")]


def rate(schedule: Constant | Cosine | StepDecay, step: int, total: int) -> float:
    """The factor on the base rate for the update at `step` of a run of `total` steps.

    The warm-up is a straight line from 1 / warmup at step 0 to 1 at its last step, or from `first` to 1 at
    the step after it; it ends with the run. The last step of a cosine is one step short of `final`, so that
    no update has rate 0. Steps past the end have the factor of the end.

    >>> [rate(Cosine(warmup=2), step, total=6) for step in (0, 1, 2)]
    [0.5, 1.0, 1.0]
    >>> round(rate(Cosine(warmup=2, final=0.1), 4, total=6), 4), rate(Cosine(warmup=2, final=0.1), 6, total=6)
    (0.55, 0.1)
    >>> [rate(StepDecay(milestones=(0.5, 0.75), factor=0.5), step, total=8) for step in (3, 4, 6)]
    [1.0, 0.5, 0.25]
    """
    warmup = min(steps_of(schedule.warmup, total), total)
    if step < warmup:
        first = schedule.first if isinstance(schedule, Cosine) else None
        return (step + 1) / warmup if first is None else first + (1.0 - first) * step / warmup
    if isinstance(schedule, Constant):
        return 1.0
    if isinstance(schedule, StepDecay):
        reached = sum(step >= steps_of(span, total) for span in schedule.milestones)
        return schedule.factor**reached
    start = warmup if schedule.over == "rest" else 0
    done = min((step - start) / max(total - start, 1), 1.0)
    return schedule.final + (1.0 - schedule.final) * (1.0 + math.cos(math.pi * done)) / 2.0


def steps_of(span: float, total: int) -> int:
    """A span in steps: a share of the run is rounded to the nearest step."""
    return round(span * total) if span < 1 else int(span)


Beta = Annotated[float, Field(ge=0, lt=1)]


class ParamRule(Config):
    """Settings of the parameters whose full name matches the pattern."""

    pattern: str  # regular expression for the whole name
    lr_factor: float = Field(default=1.0, ge=0)  # times the base learning rate; 0 freezes
    weight_decay: float | None = Field(default=None, ge=0)  # None: the base decay, for matrices only
    schedule: Schedule | None = None  # None: the schedule of the run


class OptimizerConfig(Config):
    """AdamW: base values, and rules for parameters that differ from them."""

    lr: float = Field(default=5e-4, gt=0)  # base learning rate
    weight_decay: float = Field(default=0.2, ge=0)  # decoupled, of matrices and tables
    betas: tuple[Beta, Beta] = (0.9, 0.98)  # decay of the two moments
    eps: float = Field(default=1e-6, gt=0)  # added to the root of the second moment
    schedule: Schedule = Cosine()  # of the rate, for rules without one of their own
    rules: tuple[ParamRule, ...] = (ParamRule(pattern=".*"),)  # the first that matches a name applies
    layer_decay: float | None = Field(default=None, gt=0, le=1)  # times the rate, for each level down


def build_optimizer(model: nn.Module, cfg: OptimizerConfig) -> torch.optim.AdamW:
    """AdamW over the parameters that the rules train; the others no longer require gradients.

    The fused kernel on CPU and CUDA makes one pass over the state. It is elementwise and deterministic, but
    rounds differently from the unfused loop: a run is bit-identical only to runs on the same kind of device.
    """
    groups = param_groups(model, cfg)
    fused = {p.device.type for group in groups for p in group["params"]} <= {"cpu", "cuda"} or None
    return torch.optim.AdamW(groups, lr=cfg.lr, betas=cfg.betas, eps=cfg.eps, weight_decay=0.0, fused=fused)


def param_groups(model: nn.Module, cfg: OptimizerConfig) -> list[dict[str, Any]]:
    """Parameter groups for AdamW in the order of the rules; other parameters no longer require gradients.

    A rule makes at most two groups, first its matrices, then its parameters of fewer than two dimensions;
    with `layer_decay`, two for each level, the deepest first. A group also has `names` (plain names of
    `params`), `rule` (the pattern), and `base_lr` and `schedule`, from which `set_rates` computes `lr`.

    >>> model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2, bias=False))
    >>> rules = ParamRule(pattern=r"0\\..*", lr_factor=0.5), ParamRule(pattern=".*", weight_decay=0.3)
    >>> for group in param_groups(model, OptimizerConfig(lr=0.1, rules=rules)):
    ...     print(group["names"], group["lr"], group["weight_decay"])
    ['0.weight'] 0.05 0.2
    ['0.bias'] 0.05 0.0
    ['1.weight'] 0.1 0.3

    UserError for a wrong pattern, a rule without parameters, a parameter without a rule, no rule that trains.
    """
    adapted, rules = frozen_names(model), (*tune_rules(model), *cfg.rules)
    depths = {} if cfg.layer_decay is None else depth_levels(model)
    groups: list[dict[str, Any]] = []
    for rule, matches in zip(rules, _by_rule(model, rules), strict=True):
        learning = {name: p for name, p in matches.items() if rule.lr_factor > 0 and name not in adapted}
        for name, parameter in matches.items():
            parameter.requires_grad_(name in learning)
        if rule.lr_factor > 0 and not learning:
            wrong = f"matches only weights that train.lora freezes ({next(iter(matches))}, ...)"
            advice = r"drop it, or name adapters, .*\.lora_[AB]\.weight"
            raise UserError(f"rule '{rule.pattern}' {wrong}; {advice}")
        for level in sorted({depths.get(name, 0) for name in learning}, reverse=True):
            part = {name: p for name, p in learning.items() if depths.get(name, 0) == level}
            base = cfg.lr * rule.lr_factor * (cfg.layer_decay or 1.0) ** level
            rates = {"lr": base, "base_lr": base, "schedule": rule.schedule or cfg.schedule}
            for flat, default in ((False, cfg.weight_decay), (True, 0.0)):
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
    named: dict[str, float] = {}
    for rule in dict.fromkeys(group["rule"] for group in optimizer.param_groups):
        lrs = [group["lr"] for group in optimizer.param_groups if group["rule"] == rule]
        low, high = min(lrs), max(lrs)
        named |= {rule: high} if low == high else {f"{rule} lowest": low, f"{rule} highest": high}
    return named


def train_mode(model: nn.Module) -> None:
    """model.train(), but a module whose parameters are all frozen stays in eval mode.

    A module without parameters, such as dropout, has the mode of the module that contains it.
    """
    model.train()
    for module in model.modules():
        parameters = list(module.parameters())
        if parameters and not any(parameter.requires_grad for parameter in parameters):
            module.eval()


def _by_rule(model: nn.Module, rules: Sequence[ParamRule]) -> list[dict[str, nn.Parameter]]:
    """For each rule, the parameters by plain name for which it is the first match."""
    parameters = {plain_name(name): p for name, p in model.named_parameters()}
    patterns = [compile_pattern(rule.pattern, f"rule '{rule.pattern}'") for rule in rules]
    matches: list[dict[str, nn.Parameter]] = [{} for _ in rules]
    for name, parameter in parameters.items():
        first = next((i for i, pattern in enumerate(patterns) if pattern.fullmatch(name)), None)
        if first is None:
            listed = ", ".join(rule.pattern for rule in rules) or "none"
            advice = "add one for it, or end the list with '.*'"
            raise UserError(f"no rule matches parameter {name!r}: the rules are {listed}; {advice}")
        matches[first][name] = parameter
    for pattern, matched in zip(patterns, matches, strict=True):
        names = [name for name in parameters if pattern.fullmatch(name)]
        towers = [next((tower for tower in tuned(model) if is_under(name, tower)), "") for name in names]
        if matched or (pattern.pattern == ".*" and all(towers)):  # nothing is left for the latter
            continue
        if not names:
            raise UserError(f"rule '{pattern.pattern}' matches no parameter: {whole_names(list(parameters))}")
        some = f"all of its {len(names)} parameters ({names[0]}, ...)"
        why = f"earlier rules match {some}; put the narrower rule first, or drop this one"
        if all(towers):
            tune = f"model.{towers[0].removeprefix('towers.')}.tune"
            why = f"{tune} decides over {some}; drop the rule, or leave tune out"
        raise UserError(f"rule '{pattern.pattern}' applies to nothing: {why}")
    return matches


def compile_pattern(pattern: str, what: str) -> re.Pattern[str]:
    """A pattern for names of parameters or layers. UserError about `what` if it is no regular expression."""
    try:
        return re.compile(pattern)
    except re.error as error:
        wrong = f"{what} is not a regular expression: {error}"
        raise UserError(f"{wrong}; write a dot in a name as \\.") from None


def whole_names(names: Sequence[str]) -> str:
    """Advice for a pattern that matches none of these names."""
    some = ", ".join(names[:: max(1, len(names) // 4)][:4]) or "none"
    return f"it must match a whole name, and this model has {len(names)}, among them {some}"


# `tune`, layers by depth, and the weights that adapters freeze.


def tuned(model: nn.Module) -> dict[str, PretrainedConfig]:
    """The encoders from a checkpoint that have `tune`, by their names: those of a side, or inside one."""
    config = getattr(model, "cfg", None)
    sides = {f"towers.{side}": getattr(config, side, None) for side in ("image", "text")}
    sides |= {f"{tower}.encoder": getattr(side, "encoder", None) for tower, side in sides.items()}
    return {tower: x for tower, x in sides.items() if isinstance(x, PretrainedConfig) and x.tune is not None}


def tune_rules(model: nn.Module) -> list[ParamRule]:
    """The rules that `tune` stands for, the narrower ones first. UserError for too many last layers."""
    rules = []
    for tower, side in tuned(model).items():
        name, learns = re.escape(tower), side.rate or 1.0
        if side.tune == "lora":
            rules.append(ParamRule(pattern=rf"{name}\..*\.lora_[AB]\.weight", lr_factor=learns))
        elif str(side.tune).startswith("last:"):
            pattern = _last_layers(model, tower, int(str(side.tune)[5:]))
            rules.append(ParamRule(pattern=pattern, lr_factor=learns))
        rules.append(ParamRule(pattern=rf"{name}\..*", lr_factor=learns if side.tune == "all" else 0.0))
    return rules


def _last_layers(model: nn.Module, tower: str, number: int) -> str:
    """A pattern for the parameters of the last layers of a tower and of what reads them."""
    option = f"model.{tower.removeprefix('towers.')}.tune"
    (place,) = encoder_layers(model, option, tower)
    depth = len(place.layers)
    if number > depth:
        wrong = f"{option} is last:{number}, and the encoder has {amount(depth, 'layer')}"
        raise UserError(f"{wrong}; give last:{depth} or fewer, or all")
    layers = (f"{place.path}.{i}" for i in range(depth - number, depth))
    parts = (*layers, *(f"{tower}.{part}" for part in place.encoder.behind))
    return rf"({'|'.join(map(re.escape, parts))})(\..*)?"


class EncoderLayers(NamedTuple):
    """An encoder and its list of layers, by their full names in a model."""

    name: str
    encoder: Layered
    path: str  # of the list
    layers: nn.ModuleList


def encoder_layers(model: nn.Module, option: str, *towers: str) -> list[EncoderLayers]:
    """The encoders of a model with their layers. UserError for an encoder without exactly one list of layers.

    option  the recipe field that needs them, for the message
    towers  names of the encoders; none: all
    """
    lists = layer_lists(model)
    modules = {name: x for name, x in model.named_modules() if not towers or name in towers}
    encoders = {name: x for name, x in modules.items() if isinstance(x, Layered)}
    if not encoders:
        raise UserError(f"{option} works on encoders that name their layers; this model has none")
    result = []
    for name, encoder in encoders.items():
        paths = [path for path in lists if is_under(path, name)]
        if len(paths) != 1:
            where = f"the encoder {name or 'of this model'}, which has {len(paths)}"
            raise UserError(f"{option} needs one list of layers in {where}; leave it out")
        result.append(EncoderLayers(name, encoder, paths[0], lists[paths[0]]))
    return result


def depth_levels(model: nn.Module) -> dict[str, int]:
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
    encoders = encoder_layers(model, "train.optimizer.layer_decay")
    for path in layer_lists(model):
        if not any(is_under(path, encoder.name) for encoder in encoders):
            wrong = f"finds the layers {path} outside the encoders, so their depth is unknown"
            raise UserError(f"train.optimizer.layer_decay {wrong}; leave it out and give rules")
    levels = {plain_name(name): 0 for name, _ in model.named_parameters()}
    for encoder in encoders:
        names = [name for name, _ in model.named_parameters() if is_under(name, encoder.name)]
        levels |= {plain_name(name): _level(name, encoder) for name in names}
    return levels


def _level(name: str, place: EncoderLayers) -> int:
    """The level of a parameter of an encoder."""
    part = name.removeprefix(f"{place.name}." * bool(place.name))
    if is_under(name, place.path):
        return len(place.layers) - int(name.removeprefix(f"{place.path}.").partition(".")[0])
    if any(is_under(part, before) for before in place.encoder.before):
        return len(place.layers) + 1
    if not any(is_under(part, behind) for behind in place.encoder.behind):
        layers = f"the layers of the encoder {place.name or 'of this model'}"
        wrong = f"does not know whether {part!r} is before or after {layers}"
        raise UserError(f"train.optimizer.layer_decay {wrong}; leave it out and give rules")
    return 0


def is_under(name: str, module: str) -> bool:
    """Whether a name is that of a module or of something inside it; "" is the model itself.

    >>> is_under("image.norm.bias", "image"), is_under("imagery.norm", "image"), is_under("scale", "")
    (True, False, True)
    """
    return not module or name == module or name.startswith(f"{module}.")


def frozen_names(model: nn.Module) -> set[str]:
    """Plain names of the parameters that adapters freeze; none without adapters, and where `tune` decides."""
    names = [name for name, _ in model.named_parameters()]
    adapted = {name.partition(".lora_A.")[0] for name in names if ".lora_A." in name}
    if not adapted or tuned(model):
        return set()
    places = adapted | {name for name, module in model.named_modules() if isinstance(module, Layered)}
    base = [name for name in names if ".lora_A." not in name and ".lora_B." not in name]
    return {plain_name(name) for name in base if any(is_under(name, place) for place in places)}
