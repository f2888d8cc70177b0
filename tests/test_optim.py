"""Rules, groups, rates, frozen modules and the optimizer."""

import re

import pytest
import torch
from make import build
from pydantic import ValidationError
from torch import Tensor, nn

from grainline.errors import UserError
from grainline.training.optim import (
    Constant,
    Cosine,
    OptimizerConfig,
    ParamRule,
    StepDecay,
    build_optimizer,
    param_groups,
    rates,
    set_rates,
    train_mode,
)
from grainline.training.step import LoraConfig, add_lora


class Small(nn.Module):
    """Two towers with what real ones have: norms, dropout, tables, a scale."""

    def __init__(self) -> None:
        super().__init__()
        self.image = nn.ModuleDict({"blocks": nn.ModuleList(self.block() for _ in range(3))})
        self.text = nn.Sequential(nn.Embedding(7, 4), nn.Dropout(0.5), nn.Linear(4, 4))
        self.log_scale = nn.Parameter(torch.zeros(1))

    def block(self) -> nn.Module:
        return nn.Sequential(nn.LayerNorm(4), nn.Linear(4, 4), nn.BatchNorm1d(4))

    def forward(self, x: Tensor) -> Tensor:
        for block in self.image["blocks"]:  # type: ignore[union-attr]
            x = block(x)
        return self.log_scale.exp() * (x @ self.text(torch.arange(5)).T)


ALL = ParamRule(pattern=".*")


def groups_of(model: nn.Module, *rules: ParamRule) -> list[dict[str, object]]:
    return param_groups(model, OptimizerConfig(lr=0.1, rules=rules))


def where(groups: list[dict[str, object]], name: str) -> dict[str, object]:
    actual = [group for group in groups if name in group["names"]]  # type: ignore[operator]
    assert len(actual) == 1, f"{name} is in {len(actual)} groups"
    return actual[0]


def test_the_first_rule_that_matches_decides() -> None:
    groups = groups_of(
        Small(),
        ParamRule(pattern=r"image\..*\.1\.weight", lr_factor=0.5),
        ParamRule(pattern=r"image\..*", lr_factor=2.0),
        ALL,
    )
    assert where(groups, "image.blocks.1.1.weight")["lr"] == pytest.approx(0.05)
    assert where(groups, "image.blocks.1.0.weight")["lr"] == pytest.approx(0.2)
    assert where(groups, "log_scale")["lr"] == pytest.approx(0.1)


def test_every_parameter_is_in_exactly_one_group_beside_its_own_name() -> None:
    model = Small()
    groups = groups_of(model, ParamRule(pattern=r"text\..*", lr_factor=0.5), ALL)
    pairs = [pair for g in groups for pair in zip(g["names"], g["params"], strict=True)]  # type: ignore[call-overload]
    assert sorted(name for name, _ in pairs) == sorted(name for name, _ in model.named_parameters())
    assert all(dict(model.named_parameters())[name] is parameter for name, parameter in pairs)


def test_only_matrices_decay_unless_a_rule_says_so() -> None:
    groups = groups_of(
        Small(),
        ParamRule(pattern=r"image\.blocks\.0\..*", weight_decay=0.7),
        ParamRule(pattern=r"text\.2.*", weight_decay=0),
        ALL,
    )
    assert where(groups, "image.blocks.1.1.weight")["weight_decay"] == 0.2
    assert where(groups, "text.0.weight")["weight_decay"] == 0.2  # a table of embeddings is a matrix
    for flat in ("image.blocks.1.1.bias", "image.blocks.1.0.weight", "log_scale"):
        assert where(groups, flat)["weight_decay"] == 0.0
    assert where(groups, "image.blocks.0.1.weight")["weight_decay"] == 0.7
    assert where(groups, "image.blocks.0.0.bias")["weight_decay"] == 0.7
    assert where(groups, "text.2.weight")["weight_decay"] == 0.0


def test_a_rate_of_zero_freezes_and_a_later_rule_set_thaws() -> None:
    model = Small()
    groups = groups_of(model, ParamRule(pattern=r"image\..*", lr_factor=0), ALL)
    assert not any(str(name).startswith("image") for g in groups for name in g["names"])  # type: ignore[attr-defined]
    assert [n for n, p in model.named_parameters() if p.requires_grad] == [
        "log_scale", "text.0.weight", "text.2.weight", "text.2.bias",
    ]  # fmt: skip
    groups_of(model, ALL)
    assert all(p.requires_grad for p in model.parameters())


def test_frozen_modules_stay_in_eval_with_all_that_is_inside_them() -> None:
    model = Small()
    groups_of(
        model,
        ParamRule(pattern=r"image\.blocks\.[01]\..*", lr_factor=0),
        ParamRule(pattern=r"text\.0\..*", lr_factor=0),
        ALL,
    )
    train_mode(model)
    blocks = model.image["blocks"]
    assert [block.training for block in blocks] == [False, False, True]  # type: ignore[union-attr]
    assert not blocks[0][2].training  # type: ignore[index]
    assert model.text[1].training, "dropout of a module that learns is on"
    assert not model.text[0].training
    groups_of(model, ParamRule(pattern=r"text\..*", lr_factor=0), ALL)
    train_mode(model)
    assert not model.text[1].training, "dropout of a frozen module is off"


MISTAKES = {
    "a typing mistake": (
        [ParamRule(pattern="visual.*"), ALL],
        "rule 'visual.*' matches no parameter: it must match a whole name, and this model has 22, among ",
    ),
    "a parameter left out": (
        [ParamRule(pattern="image.*"), ParamRule(pattern="text.*")],
        "no rule matches parameter 'log_scale': the rules are image.*, text.*; add one for it",
    ),
    "no rules": ([], "no rule matches parameter 'log_scale': the rules are none; add one for it"),
    "half a name": (
        [ParamRule(pattern="text"), ALL],
        "rule 'text' matches no parameter: it must match a whole name",
    ),
    "a rule in the shade": (
        [ALL, ParamRule(pattern=r"text\..*")],
        r"rule 'text\..*' applies to nothing: earlier rules match all of its 3 parameters (text.0.weight",
    ),
    "no regular expression": (
        [ParamRule(pattern="(image"), ALL],
        "rule '(image' is not a regular expression: ",
    ),
    "all frozen": (
        [ParamRule(pattern=".*", lr_factor=0)],
        "every rule has lr_factor 0, so nothing would learn",
    ),
}


@pytest.mark.parametrize("kind", MISTAKES)
def test_a_mistake_in_the_rules_is_one_line_for_the_user(kind: str) -> None:
    rules, start = MISTAKES[kind]
    with pytest.raises(UserError) as caught:
        groups_of(Small(), *rules)
    assert str(caught.value).startswith(start)
    assert "\n" not in str(caught.value)


def test_a_rule_with_a_negative_rate_or_an_unknown_field_is_refused() -> None:
    with pytest.raises(ValidationError, match="greater than or equal to 0"):
        ParamRule(pattern=".*", lr_factor=-1)
    with pytest.raises(ValidationError, match="no field factor"):
        ParamRule.model_validate({"pattern": ".*", "factor": 1})
    with pytest.raises(ValidationError, match="less than 1"):
        OptimizerConfig(betas=(0.9, 1.0))


def test_each_group_follows_its_own_schedule() -> None:
    decay = StepDecay(milestones=(6,), factor=0.1)
    rules = (
        ParamRule(pattern=r"text\..*", lr_factor=0.5, schedule=decay),
        ParamRule(pattern="log_scale", schedule=Constant()),
        ALL,
    )
    optimizer = build_optimizer(Small(), OptimizerConfig(lr=0.2, schedule=Cosine(warmup=4), rules=rules))
    set_rates(optimizer, 1, 12)
    assert rates(optimizer) == pytest.approx({r"text\..*": 0.1, "log_scale": 0.2, ".*": 0.1})
    set_rates(optimizer, 8, 12)
    assert rates(optimizer) == pytest.approx({r"text\..*": 0.01, "log_scale": 0.2, ".*": 0.1})
    assert {g["rule"]: g["lr"] for g in optimizer.param_groups} == pytest.approx(
        {r"text\..*": 0.01, "log_scale": 0.2, ".*": 0.1}
    )


def test_the_optimizer_makes_the_steps_of_adamw() -> None:
    """Decoupled decay and bias-corrected moments, written out in float64 for one matrix and one vector."""
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    cfg = OptimizerConfig(lr=0.1, weight_decay=0.5, betas=(0.8, 0.95), eps=1e-3, schedule=Constant())
    slow = {name: (p.detach().double().clone(), 0.0, 0.0) for name, p in model.named_parameters()}
    optimizer = build_optimizer(model, cfg)
    for step in range(1, 4):
        set_rates(optimizer, step - 1, 3)
        for name, parameter in model.named_parameters():
            parameter.grad = torch.randn_like(parameter)
            (x, m, v), g = slow[name], parameter.grad.double()
            m, v = 0.8 * m + 0.2 * g, 0.95 * v + 0.05 * g * g
            x = x * (0.95 if name == "weight" else 1.0)
            x = x - 0.1 * (m / (1 - 0.8**step)) / ((v / (1 - 0.95**step)).sqrt() + 1e-3)
            slow[name] = x, m, v
        optimizer.step()
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.detach().double(), slow[name][0], rtol=1e-5, atol=1e-6)


# `tune` of a side from a checkpoint, against rules


def learning(model: nn.Module, cfg: OptimizerConfig) -> dict[str, tuple[float, float]]:
    """Rate and decay of each parameter that learns."""
    groups = param_groups(model, cfg)
    names = {name: (group["lr"], group["weight_decay"]) for group in groups for name in group["names"]}
    assert len(names) == sum(parameter.requires_grad for parameter in model.parameters())
    return names


def rule(pattern: str, factor: float = 1) -> ParamRule:
    return ParamRule(pattern=pattern, lr_factor=factor)


IMAGE = r"towers\.image\..*"
LAST = r"towers\.image\.model\.(encoder\.layers\.1|post_layernorm)\..*"
LAYERS = r"towers\.image\.model\.(encoder\.layers|post_layernorm)\..*"
TUNES: dict[str, tuple[tuple[str, ...], tuple[ParamRule, ...]]] = {
    "frozen": (("image.tune=frozen",), (rule(IMAGE, 0),)),
    "all": (("image.tune=all", "image.rate=0.5"), (rule(IMAGE, 0.5),)),
    "last": (("image.tune=last:1", "image.rate=0.05"), (rule(LAST, 0.05), rule(IMAGE, 0))),
    "every layer": (("image.tune=last:2",), (rule(LAYERS), rule(IMAGE, 0))),
    "both": (
        ("image.tune=frozen", "text.tune=all", "text.rate=2"),
        (rule(IMAGE, 0), rule(r"towers\.text.*", 2)),
    ),
}


@pytest.mark.parametrize("layer_decay", [None, 0.5])
@pytest.mark.parametrize("case", TUNES)
def test_tune_is_what_its_rules_are(case: str, layer_decay: float | None) -> None:
    changes, rules = TUNES[case]
    model, plain = build("clip-pretrained", *changes), build("clip-pretrained")
    by_tune = learning(model, OptimizerConfig(lr=0.1, layer_decay=layer_decay))
    assert by_tune == learning(plain, OptimizerConfig(lr=0.1, rules=(*rules, ALL), layer_decay=layer_decay))
    assert {"towers.to_image.weight", "towers.to_text.weight", "scale.log_scale"} <= by_tune.keys()
    train_mode(model)
    assert model.towers.image.training == (case not in ("frozen", "both"))  # type: ignore[union-attr]
    if "last" in case:
        below, last = model.towers.image.model.encoder.layers  # type: ignore[union-attr]
        assert (below.training, last.training) == (False, True)
    if not model.towers.image.training:  # type: ignore[union-attr]
        pixels = torch.zeros(1, 3, 8, 8, dtype=torch.uint8)
        assert not model.towers.image(pixels).pooled.requires_grad  # type: ignore[union-attr, operator]


def test_tune_adapts_the_sides_that_say_so() -> None:
    model = build("clip-pretrained", "image.tune=lora", "image.rate=3", "text.tune=last:1")
    add_lora(model, None)
    rates = {name: lr for name, (lr, _) in learning(model, OptimizerConfig(lr=1.0)).items()}
    image = {name: lr for name, lr in rates.items() if name.startswith("towers.image.")}
    assert len(image) == 2 * 2 * 4  # A and B of the four projections of two layers
    assert all(re.search(r"\.lora_[AB]\.weight$", name) and lr == 3 for name, lr in image.items())
    text = {name for name in rates if name.startswith("towers.text.")}
    assert text == {name for name in text if re.search(r"layers\.1\.|final_layer_norm", name)} != set()
    untuned = build("clip-pretrained", "image.tune=lora")
    add_lora(untuned, LoraConfig(targets=".*q_proj"))
    names = learning(untuned, OptimizerConfig())
    assert "towers.text.model.embeddings.token_embedding.weight" in names  # without tune the rules decide
    assert sum(".lora_A." in name for name in names) == 2


TUNE_MISTAKES: dict[str, tuple[tuple[str, ...], tuple[ParamRule, ...], str]] = {
    "too many": (
        ("image.tune=last:3",),
        (ALL,),
        "model.image.tune is last:3, and the encoder has 2 layers; give last:2",
    ),
    "said twice": (
        ("text.tune=frozen",),
        (rule(r"towers\.text\..*", 0.5), ALL),
        "applies to nothing: model.text.tune decides over all of its 36 parameters",
    ),
    "adapters": (
        ("image.tune=all",),
        (ALL,),
        "train.lora is set, and model.image.tune is all: set tune: lora",
    ),
    "a typing mistake": (
        ("image.tune=last:0",),
        (ALL,),
        "allowed are frozen, last:N for N layers, lora and all",
    ),
    "a rate of what is frozen": (
        ("image.tune=frozen", "image.rate=2"),
        (ALL,),
        "rate 2 goes with tune: last:N",
    ),
    "a rate alone": (("image.rate=2",), (ALL,), "rate 2 goes with tune: last:N, lora or all"),
}


@pytest.mark.parametrize("kind", TUNE_MISTAKES)
def test_a_mistake_in_tune_is_one_line(kind: str) -> None:
    changes, rules, words = TUNE_MISTAKES[kind]

    def made() -> None:
        model = build("clip-pretrained", *changes)
        add_lora(model, LoraConfig() if kind == "adapters" else None)
        param_groups(model, OptimizerConfig(rules=rules))

    with pytest.raises(UserError, match=re.escape(words)) as caught:
        made()
    assert "\n" not in str(caught.value)
