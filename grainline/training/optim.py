"""AdamW: which parameters learn, at which learning rate and schedule, with how much weight decay.

This is the only place that freezes parameters. The first rule whose pattern matches the full name of a
parameter applies to it; those that `model.image.tune` and `model.text.tune` stand for come first. A rule
without parameters and a parameter without a rule are errors, because both are usually typing mistakes. A
parameter of fewer than two dimensions (biases, norms, scales) decays only if its rule sets a decay; all
others, tables too, take the base decay where their rule sets none.

Layer-wise decay (BEiT, arXiv 2106.08254; timm) lowers the rate with depth. It and `tune` of a pretrained
side are in `training/tune.py`.
"""

import itertools
import math
import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

import torch
from pydantic import AfterValidator, Field
from torch import nn

from grainline.config import Config
from grainline.errors import UserError
from grainline.training.tune import depth_levels, frozen_names, is_under, tune_rules, tuned
from grainline.weights import plain_name

# Schedules are functions of the step alone, so a resumed run needs no further state. Steps count from 0.
# Spans below 1 are a share of the run, from 1 on they are a number of steps.


def _whole_from_one(span: float) -> float:
    if span >= 1 and span != int(span):
        raise ValueError("below 1 it is a share of the run, from 1 on a whole number of steps")
    return span


def _increasing(milestones: tuple[float, ...]) -> tuple[float, ...]:
    shares = {span < 1 for span in milestones}
    if len(shares) > 1:
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
    warmup: Span = 0.0


class Cosine(Config):
    """Half a cosine, from the base rate at the end of the warm-up to `final` times it after the last step.

    With `over="run"` the cosine starts at step 0 and the warm-up replaces its first part: the rate then drops
    a little at the end of the warm-up, as in the code of GroupViT.
    """

    kind: Literal["cosine"] = "cosine"
    warmup: Span = 0.05
    final: Factor = 0.0
    first: Factor | None = None  # factor at step 0, from which the warm-up climbs; None: 1 / warmup
    over: Literal["rest", "run"] = "rest"


class StepDecay(Config):
    """The base rate times `factor` once for every milestone that has been reached."""

    kind: Literal["step"] = "step"
    warmup: Span = 0.0
    milestones: Annotated[tuple[Span, ...], AfterValidator(_increasing)] = (0.5, 0.75)
    factor: Factor = 0.1


Schedule = Annotated[Constant | Cosine | StepDecay, Field(discriminator="kind")]


def rate(schedule: Constant | Cosine | StepDecay, step: int, total: int) -> float:
    """The factor on the base rate for the update at `step` of a run of `total` steps.

    The warm-up is a straight line from 1 / warmup at step 0 to 1 at its last step, or from `first` to 1 at
    the step after it. The last step of a cosine is one step short of `final`, so that no update has rate 0.
    Steps past the end have the factor of the end.

    >>> [rate(Cosine(warmup=2), step, total=6) for step in (0, 1, 2)]
    [0.5, 1.0, 1.0]
    >>> round(rate(Cosine(warmup=2, final=0.1), 4, total=6), 4), rate(Cosine(warmup=2, final=0.1), 6, total=6)
    (0.55, 0.1)
    >>> [rate(StepDecay(milestones=(0.5, 0.75), factor=0.5), step, total=8) for step in (3, 4, 6)]
    [1.0, 0.5, 0.25]

    A warm-up that is longer than the run ends with it.
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
    """A span in steps: a share of the run is rounded to the nearest step.

    >>> steps_of(0.05, total=1000), steps_of(30, total=1000)
    (50, 30)
    """
    return round(span * total) if span < 1 else int(span)


# Which parameters learn, and how.

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
    groups = param_groups(model, cfg)
    devices = {parameter.device.type for group in groups for parameter in group["params"]}
    fused = True if devices <= {"cpu", "cuda"} else None
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
    parameters = {plain_name(name): p for name, p in model.named_parameters()}
    adapted = frozen_names(model)
    depths = {} if cfg.layer_decay is None else depth_levels(model)
    groups: list[dict[str, Any]] = []
    tune = [ParamRule(pattern=pattern, lr_factor=factor) for pattern, factor in tune_rules(model)]
    rules = (*tune, *cfg.rules)
    for rule, matches in zip(rules, _by_rule(parameters, rules, [*tuned(model)]), strict=True):
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
            "model.image.tune: frozen, or where it is no checkpoint by a first rule of "
            f"train.optimizer.rules, {{pattern: '{pattern}', lr_factor: 0}}, and leave it out of LoRA"
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
    parameters: Mapping[str, nn.Parameter], rules: Sequence[ParamRule], towers: Sequence[str]
) -> list[dict[str, nn.Parameter]]:
    """For each rule, the parameters for which it is the first match. towers: those that have `tune`"""
    patterns = [compile_pattern(rule.pattern, f"rule '{rule.pattern}'") for rule in rules]
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
    for pattern, matched in zip(patterns, matches, strict=True):
        if matched:
            continue
        earlier = [name for name in parameters if pattern.fullmatch(name)]
        if earlier and all(any(is_under(name, tower) for tower in towers) for name in earlier):
            if pattern.pattern == ".*":  # nothing is left for it
                continue
            tower = next(tower for tower in towers if is_under(earlier[0], tower)).removeprefix("towers.")
            raise UserError(
                f"rule '{pattern.pattern}' applies to nothing: model.{tower}.tune decides over all of its "
                f"{len(earlier)} parameters ({earlier[0]}, ...); drop the rule, or leave tune out"
            )
        if earlier:
            raise UserError(
                f"rule '{pattern.pattern}' applies to nothing: earlier rules match all of its {len(earlier)} "
                f"parameters ({earlier[0]}, ...); put the narrower rule first, or drop this one"
            )
        raise UserError(f"rule '{pattern.pattern}' matches no parameter: {whole_names(list(parameters))}")
    return matches


def compile_pattern(pattern: str, what: str) -> re.Pattern[str]:
    """A pattern for names of parameters or layers. UserError about `what` if it is no regular expression."""
    try:
        return re.compile(pattern)
    except re.error as error:
        raise UserError(
            f"{what} is not a regular expression: {error}; write a dot in a name as \\."
        ) from None


def whole_names(names: Sequence[str]) -> str:
    """Advice for a pattern that matches none of these names."""
    some = ", ".join(names[:: max(1, len(names) // 4)][:4]) or "none"
    return f"it must match a whole name, and this model has {len(names)}, among them {some}"
