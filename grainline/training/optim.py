"""Which parameters learn, how fast, and with how much decay. The only place where anything is frozen.

A list of rules says it: the first rule whose pattern matches the full name of a parameter decides over it.
A rule without a parameter and a parameter without a rule are errors, because both are typing mistakes.

Weight decay is for matrices, not for offsets: a parameter of fewer than two dimensions (biases, norms,
scales, the temperature) decays only if its own rule gives a decay. Everything else takes the base decay where
its rule gives none; that includes embedding and position tables.

Two things multiply with the rules: rates that fall with depth (`training/depth.py`), and adapters, which hold
the weights that they stand beside (`training/lora.py`).
"""

import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import torch
from pydantic import Field
from torch import Tensor, nn

from grainline.config import Config
from grainline.errors import UserError
from grainline.training.depth import levels
from grainline.training.lora import held
from grainline.training.schedule import Cosine, Schedule, rate
from grainline.weights import plain

Beta = Annotated[float, Field(ge=0, lt=1)]


class Rule(Config):
    """What holds for the parameters whose full name matches the pattern."""

    pattern: str  # regular expression for the whole name
    lr: float = Field(default=1.0, ge=0)  # times the base learning rate; 0 freezes
    decay: float | None = Field(default=None, ge=0)  # None: the base decay, for matrices only
    schedule: Schedule | None = None  # None: the schedule of the run


class OptimizerConfig(Config):
    """AdamW, its base values and the rules that bend them."""

    lr: float = Field(default=5e-4, gt=0)
    decay: float = Field(default=0.2, ge=0)
    betas: tuple[Beta, Beta] = (0.9, 0.98)
    eps: float = Field(default=1e-6, gt=0)
    schedule: Schedule = Cosine()
    rules: tuple[Rule, ...] = (Rule(pattern=".*"),)
    layer_decay: float | None = Field(default=None, gt=0, le=1)  # times the rate, for each level down


def build_optimizer(model: nn.Module, cfg: OptimizerConfig) -> torch.optim.AdamW:
    """AdamW over the parameters that the rules let learn; the others no longer require gradients.

    The fused kernel is used where it exists, which is on CPU and CUDA: it makes one pass over the
    state instead of one for each operation. It works element by element, so its result depends neither on
    the number of threads nor on chance. It rounds differently from the unfused loop, so a run is
    bit-identical only to runs on the same kind of device.
    """
    groups = param_groups(model, cfg.rules, cfg.lr, cfg.decay, cfg.schedule, cfg.layer_decay)
    devices = {parameter.device.type for group in groups for parameter in group["params"]}
    fused = True if devices <= {"cpu", "cuda"} else None
    return torch.optim.AdamW(groups, lr=cfg.lr, betas=cfg.betas, eps=cfg.eps, weight_decay=0.0, fused=fused)


def param_groups(
    model: nn.Module,
    rules: Sequence[Rule],
    lr: float,
    decay: float,
    schedule: Schedule,
    layer_decay: float | None = None,
) -> list[dict[str, Any]]:
    """Optimizer groups in the order of the rules; frozen parameters are left out and marked as such.

    A rule makes at most two groups, first its matrices, then its parameters of fewer than two dimensions.
    With `layer_decay` it makes two for each level of depth that it reaches, the lowest first.
    Beside what AdamW reads, a group holds `names` (of `params`, one for one, plain), `rule` (the pattern),
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
    parameters = {plain(name): p for name, p in model.named_parameters()}
    owned = _by_rule(parameters, rules)
    kept = held(model)
    depths = {} if layer_decay is None else levels(model)
    groups: list[dict[str, Any]] = []
    for rule, mine in zip(rules, owned, strict=True):
        learning = {name: p for name, p in mine.items() if rule.lr > 0 and name not in kept}
        for name, parameter in mine.items():
            parameter.requires_grad_(name in learning)
        if rule.lr > 0 and not learning:
            raise UserError(
                f"rule '{rule.pattern}' decides only over weights that train.lora holds ({next(iter(mine))}, "
                "...); drop it, or name adapters, .*\\.lora_[AB]\\.weight"
            )
        for level in sorted({depths.get(name, 0) for name in learning}, reverse=True):
            part = {name: p for name, p in learning.items() if depths.get(name, 0) == level}
            base = lr * rule.lr * (layer_decay or 1.0) ** level
            own = {"lr": base, "base_lr": base, "schedule": rule.schedule or schedule}
            groups += [group | own for group in _by_decay(part, rule, decay)]
    if not groups:
        raise UserError("every rule has lr 0, so nothing would learn: give at least one rule a rate above 0")
    return groups


def set_rates(optimizer: torch.optim.Optimizer, step: int, total: int) -> dict[str, float]:
    """Set every group's rate for the update at `step` (from 0) of `total`; returns `rates`."""
    for group in optimizer.param_groups:
        group["lr"] = group["base_lr"] * rate(group["schedule"], step, total)
    return rates(optimizer)


def rates(optimizer: torch.optim.Optimizer) -> dict[str, float]:
    """The present rates by rule; of a rule whose rates fall with depth the lowest and the highest."""
    by_rule: dict[str, list[float]] = {}
    for group in optimizer.param_groups:
        by_rule.setdefault(group["rule"], []).append(group["lr"])
    found: dict[str, float] = {}
    for rule, all_of_it in by_rule.items():
        low, high = min(all_of_it), max(all_of_it)
        found |= {rule: high} if low == high else {f"{rule} lowest": low, f"{rule} highest": high}
    return found


def require_frozen(model: nn.Module, prefix: str, why: str) -> None:
    """UserError, which begins with `why`, where a parameter whose plain name begins with the prefix learns.

    For a model whose optimizer has been built.
    """
    named = ((plain(name), parameter) for name, parameter in model.named_parameters())
    learning = [name for name, parameter in named if name.startswith(prefix) and parameter.requires_grad]
    if learning:
        pattern = re.escape(prefix) + ".*"
        raise UserError(
            f"{why}, but {len(learning)} of its parameters learn ({learning[0]}, ...): freeze them by a "
            f"first rule of train.optimizer.rules, {{pattern: '{pattern}', lr: 0}}, without adapters there"
        )


def train_mode(model: nn.Module) -> None:
    """model.train(), except that a module whose parameters are all frozen keeps its eval behaviour.

    What has no parameters of its own, such as dropout, goes with the module it is in.
    """
    model.train()
    for module in model.modules():
        parameters = list(module.parameters())
        if parameters and not any(parameter.requires_grad for parameter in parameters):
            module.eval()


def _by_decay(learning: Mapping[str, nn.Parameter], rule: Rule, decay: float) -> list[dict[str, Any]]:
    """The parameters of a rule as at most two groups: matrices, and those of fewer than two dimensions."""
    groups = []
    for flat, default in ((False, decay), (True, 0.0)):
        part = {name: p for name, p in learning.items() if (p.dim() < 2) == flat}
        wd = default if rule.decay is None else rule.decay
        if part:
            own = {"params": list(part.values()), "names": list(part), "weight_decay": wd}
            groups.append(own | {"rule": rule.pattern})
    return groups


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
