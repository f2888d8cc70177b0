"""Which parameters learn, how fast, and with how much decay. The only place where anything is frozen.

A list of rules says it: the first rule whose pattern matches the full name of a parameter decides over it.
A rule without a parameter and a parameter without a rule are errors, because both are typing mistakes.

Weight decay is for matrices, not for offsets: a parameter of fewer than two dimensions (biases, norms,
scales, the temperature) decays only if its own rule gives a decay. Everything else takes the base decay where
its rule gives none; that includes embedding and position tables.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import torch
from pydantic import Field
from torch import Tensor, nn

from grainline.config import Config
from grainline.errors import UserError
from grainline.train.schedule import Cosine, Schedule, rate

Beta = Annotated[float, Field(ge=0, lt=1)]


class Rule(Config):
    """What holds for the parameters whose full name matches the pattern."""

    pattern: str  # regular expression for the whole name
    lr: float = Field(default=1.0, ge=0, allow_inf_nan=False)  # times the base learning rate; 0 freezes
    decay: float | None = Field(
        default=None, ge=0, allow_inf_nan=False
    )  # None: the base decay, for matrices only
    schedule: Schedule | None = None  # None: the schedule of the run


class OptimizerConfig(Config):
    """AdamW, its base values and the rules that bend them."""

    lr: float = Field(default=5e-4, gt=0, allow_inf_nan=False)
    decay: float = Field(default=0.2, ge=0, allow_inf_nan=False)
    betas: tuple[Beta, Beta] = (0.9, 0.98)
    eps: float = Field(default=1e-6, gt=0)
    schedule: Schedule = Cosine()
    rules: tuple[Rule, ...] = (Rule(pattern=".*"),)


def build_optimizer(model: nn.Module, cfg: OptimizerConfig) -> torch.optim.AdamW:
    """AdamW over the parameters that the rules let learn; the others no longer require gradients.

    The fused kernel is used where it exists, which is on CPU and CUDA: it makes one pass over the
    state instead of one for each operation. It works element by element, so its result depends neither on
    the number of threads nor on chance. It rounds differently from the unfused loop, so a run is
    bit-identical only to runs on the same kind of device.
    """
    groups = param_groups(model, cfg.rules, cfg.lr, cfg.decay, cfg.schedule)
    devices = {parameter.device.type for group in groups for parameter in group["params"]}
    fused = True if devices <= {"cpu", "cuda"} else None
    return torch.optim.AdamW(groups, lr=cfg.lr, betas=cfg.betas, eps=cfg.eps, weight_decay=0.0, fused=fused)


def param_groups(
    model: nn.Module, rules: Sequence[Rule], lr: float, decay: float, schedule: Schedule
) -> list[dict[str, Any]]:
    """Optimizer groups in the order of the rules; frozen parameters are left out and marked as such.

    A rule makes at most two groups, first its matrices, then its parameters of fewer than two dimensions.
    Beside what AdamW reads, a group holds `names` (of `params`, one for one), `rule` (the pattern),
    `base_lr` and `schedule`, from which `set_rates` computes `lr`.

    >>> model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2, bias=False))
    >>> rules = [Rule(pattern=r"0\\..*", lr=0.5), Rule(pattern=".*", decay=0.3)]
    >>> for group in param_groups(model, rules, lr=0.1, decay=0.2, schedule=Cosine()):
    ...     print(group["names"], group["lr"], group["weight_decay"])
    ['0.weight'] 0.05 0.2
    ['0.bias'] 0.05 0.0
    ['1.weight'] 0.1 0.3

    UserError for a bad pattern, a rule without a parameter, a parameter without a rule, and only frozen ones.
    """
    owned = _by_rule(dict(model.named_parameters()), rules)
    groups: list[dict[str, Any]] = []
    for rule, mine in zip(rules, owned, strict=True):
        for parameter in mine.values():
            parameter.requires_grad_(rule.lr > 0)
        if rule.lr == 0:
            continue
        own = {"lr": lr * rule.lr, "base_lr": lr * rule.lr, "rule": rule.pattern}
        own["schedule"] = schedule if rule.schedule is None else rule.schedule
        for flat in (False, True):
            part = {name: p for name, p in mine.items() if (p.dim() < 2) == flat}
            default = 0.0 if flat else decay
            wd = default if rule.decay is None else rule.decay
            if part:
                groups.append({"params": list(part.values()), "names": list(part), "weight_decay": wd} | own)
    if not groups:
        raise UserError("every rule has lr 0, so nothing would learn: give at least one rule a rate above 0")
    return groups


def set_rates(optimizer: torch.optim.Optimizer, step: int, total: int) -> dict[str, float]:
    """Set every group's rate for the update at `step` (from 0) of `total`; returns the rates by rule."""
    for group in optimizer.param_groups:
        group["lr"] = group["base_lr"] * rate(group["schedule"], step, total)
    return {group["rule"]: group["lr"] for group in optimizer.param_groups}


def train_mode(model: nn.Module) -> None:
    """model.train(), except that a module whose parameters are all frozen keeps its eval behaviour.

    What has no parameters of its own, such as dropout, goes with the module it is in.
    """
    model.train()
    for module in model.modules():
        parameters = list(module.parameters())
        if parameters and not any(parameter.requires_grad for parameter in parameters):
            module.eval()


def layerwise(prefix: str, depth: int, factor: float) -> list[Rule]:
    """Rules that let deeper blocks learn faster: block i of `depth` gets factor ** (depth - i).

    prefix  plain name of the list of blocks, such as "image_encoder.blocks"; block 0 is prefix.0

    The last block gets `factor`, so that heads, at 1, stand one level above it. What feeds the first block
    (patch embedding, tables) belongs at factor ** (depth + 1), by a rule of its own. Put these rules first.

    >>> [(rule.pattern, rule.lr) for rule in layerwise("text.blocks", depth=2, factor=0.5)]
    [('text\\\\.blocks\\\\.0\\\\..*', 0.25), ('text\\\\.blocks\\\\.1\\\\..*', 0.5)]
    """
    return [Rule(pattern=rf"{re.escape(prefix)}\.{i}\..*", lr=factor ** (depth - i)) for i in range(depth)]


def _by_rule(parameters: Mapping[str, nn.Parameter], rules: Sequence[Rule]) -> list[dict[str, nn.Parameter]]:
    """For each rule the parameters it decides over: those that it is the first to match."""
    patterns = [_compiled(rule.pattern) for rule in rules]
    owned: list[dict[str, nn.Parameter]] = [{} for _ in rules]
    for name, parameter in parameters.items():
        first = next((i for i, pattern in enumerate(patterns) if pattern.fullmatch(name)), None)
        if first is None:
            raise UserError(
                f"no rule matches parameter {name!r}: the rules are "
                f"{', '.join(r.pattern for r in rules) or 'none'}; "
                "add one for it, or end the list with '.*'"
            )
        owned[first][name] = parameter
    for pattern, mine in zip(patterns, owned, strict=True):
        if not mine:
            _complain(pattern, parameters)
    return owned


def _complain(pattern: re.Pattern[str], parameters: Mapping[str, Tensor]) -> None:
    taken = [name for name in parameters if pattern.fullmatch(name)]
    if taken:
        raise UserError(
            f"rule '{pattern.pattern}' decides over nothing: earlier rules match all of its {len(taken)} "
            f"parameters ({taken[0]}, ...); put the narrower rule first, or drop this one"
        )
    names = list(parameters)
    some = names[:: max(1, len(names) // 4)][:4]
    raise UserError(
        f"rule '{pattern.pattern}' matches no parameter: it must match a whole name, "
        f"and this model has {len(names)}, among them {', '.join(some)}"
    )


def _compiled(pattern: str) -> re.Pattern[str]:
    try:
        return re.compile(pattern)
    except re.error as error:
        raise UserError(
            f"rule '{pattern}' is not a regular expression: {error}; write a dot in a name as \\."
        ) from None
