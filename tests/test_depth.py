"""Lists of layers, and rates that fall with depth: in our encoders and in those of the library."""

import re
from typing import Any

import checkpoints
import pytest
import torch
import tuning
from torch import Tensor, nn

from grainline.encoders.base import Layered
from grainline.encoders.cast import Cast, CastConfig
from grainline.encoders.towers import Towers, TowersConfig
from grainline.errors import UserError
from grainline.nn.attention import layer_lists
from grainline.training.optim import (
    Constant,
    EncoderLayers,
    OptimizerConfig,
    ParamRule,
    build_optimizer,
    depth_levels,
    encoder_layers,
    param_groups,
    rates,
    set_rates,
)

ALL = ParamRule(pattern=".*")


def tensors(values: Any) -> Tensor:
    """One number that depends on all tensors of what a layer takes or gives."""
    flat = values if isinstance(values, tuple) else (values,)
    parts = [x.float().sum() for x in flat if isinstance(x, Tensor) and x.is_floating_point()]
    return torch.stack(parts).sum()


def seen_levels(place: EncoderLayers, call: Any) -> dict[str, int]:
    """The levels of an encoder's parameters by what depends on what, as autograd sees it."""
    points: list[Tensor] = []  # what goes into the first layer, then what comes out of each
    hooks = [place.layers[0].register_forward_pre_hook(lambda _, x: points.append(tensors(x)))]
    hooks += [
        layer.register_forward_hook(lambda _, __, x: points.append(tensors(x))) for layer in place.layers
    ]
    call()
    for hook in hooks:
        hook.remove()
    depth, result = len(place.layers), {}
    named = dict(place.encoder.named_parameters(prefix=place.name))
    for level, point in zip((depth + 1, *range(depth, 0, -1)), points, strict=False):
        grads = torch.autograd.grad(point, list(named.values()), retain_graph=True, allow_unused=True)
        for name, grad in zip(named, grads, strict=True):
            if grad is not None:
                result.setdefault(name, level)
    return {name: result.get(name, 0) for name in named}


@pytest.mark.parametrize("case", tuning.CASES)
def test_levels_are_those_at_which_a_parameter_first_has_an_effect(case: str) -> None:
    method: Any = tuning.method(case)
    images, texts = tuning.batch(method)
    calls = {
        "towers.image": lambda: method.towers.image(images.pixels),
        "towers.text": lambda: method.towers.text(texts.ids[:1, 0], texts.mask[:1, 0]),
    }
    expected = {name: 0 for name, _ in method.named_parameters()}
    for place in encoder_layers(method, "test"):
        expected |= seen_levels(place, calls[place.name])
    assert depth_levels(method) == expected
    assert set(expected.values()) >= {0, 1, 2, 3}


def test_the_rate_of_a_rule_is_multiplied_for_each_level() -> None:
    method = tuning.method("ours")
    rules = (ParamRule(pattern=r"towers\.text\..*", lr_factor=0.1), ALL)
    groups = param_groups(method, OptimizerConfig(lr=2.0, schedule=Constant(), rules=rules, layer_decay=0.5))
    result = {name: group["lr"] for group in groups for name in group["names"]}
    block = "stack.blocks.{}.attention.to_qkv.weight"
    assert len(result) == len(list(method.parameters()))
    assert result["towers.image.stem.weight"] == result["towers.image.class_token"] == 2.0 * 0.5**4
    assert [result[f"towers.image.{block.format(i)}"] for i in range(3)] == [0.25, 0.5, 1.0]
    assert [result[f"towers.text.{block.format(i)}"] for i in range(2)] == pytest.approx([0.05, 0.1])
    assert result["towers.text.words.weight"] == pytest.approx(0.025)
    assert (
        result["towers.image.norm.bias"]
        == result["towers.to_image.weight"]
        == result["scale.log_scale"]
        == 2.0
    )
    assert result["towers.text.norm.bias"] == pytest.approx(0.2)
    wd = {name: group["weight_decay"] for group in groups for name in group["names"]}
    assert (wd["towers.image.stem.weight"], wd["towers.image.class_token"]) == (0.2, 0.0)


def test_the_log_gets_the_lowest_and_the_highest_rate_of_a_rule() -> None:
    method = tuning.method("ours")
    rules = (ParamRule(pattern=r"towers\.text\..*"), ParamRule(pattern=r"scale\..*", lr_factor=0.5), ALL)
    cfg = OptimizerConfig(lr=1.0, rules=rules, layer_decay=0.5, schedule=Constant(warmup=2))
    optimizer = build_optimizer(method, cfg)
    expected = {
        r"towers\.text\..* lowest": 0.0625,
        r"towers\.text\..* highest": 0.5,
        r"scale\..*": 0.25,
        ".* lowest": 0.03125,
        ".* highest": 0.5,
    }
    set_rates(optimizer, 0, 4)
    assert rates(optimizer) == pytest.approx(expected)


class Known(Layered):
    """An encoder whose parts have names, and one that is named nowhere if so wished."""

    before, behind, attention = ("stem",), ("norm",), "to_qkv"

    def __init__(self, lists: int = 1, odd: bool = False) -> None:
        super().__init__()
        self.stem, self.norm = nn.Linear(2, 2), nn.LayerNorm(2)
        for i in range(lists):
            self.add_module(f"layers{i}", nn.ModuleList([nn.Linear(2, 2)]))
        if odd:
            self.stemless = nn.Linear(2, 2)


def outer(**parts: nn.Module) -> nn.Module:
    return nn.ModuleDict(parts)


UNKNOWN = {
    "no encoder": (outer(image=nn.Linear(2, 2)), "layer_decay works on encoders that name their layers"),
    "no layers": (outer(image=Known(0)), "needs one list of layers in the encoder image, which has 0"),
    "two lists": (outer(image=Known(2)), "needs one list of layers in the encoder image, which has 2"),
    "a part without a place": (outer(image=Known(odd=True)), "whether 'stemless.weight' is before or after"),
    "layers in no encoder": (
        outer(image=Known(), text=nn.ModuleList([nn.Linear(2, 2)])),
        "finds the layers text outside the encoders",
    ),
}


@pytest.mark.parametrize("kind", UNKNOWN)
def test_layers_of_unknown_depth_are_an_error_and_no_guess(kind: str) -> None:
    model, message = UNKNOWN[kind]
    with pytest.raises(UserError, match=re.escape(message)):
        param_groups(model, OptimizerConfig(layer_decay=0.5))
    param_groups(model, OptimizerConfig())


def test_our_towers_have_one_list_a_side() -> None:
    side = {"width": 16, "depth": 3, "heads": 2}
    cfg = {"image": side | {"patch": 4, "size": 8}, "text": side | {"vocab": 300, "context": 8}, "width": 8}
    result = layer_lists(Towers(TowersConfig.model_validate(cfg)))
    assert [len(layers) for layers in result.values()] == [3, 3]
    assert [name.partition(".")[0] for name in result] == ["image", "text"]


def test_a_network_whose_weights_are_buffers_has_no_layers() -> None:
    cfg = {"name": "toy", "size": 32, "groups": [3], "depths": [1, 1]}
    network = {"superpixels": {"kind": "sfcn", "cell": 16, "checkpoint": "weights.tar"}}
    model = Cast(CastConfig.model_validate(cfg | network))
    assert list(model.superpixels.buffers())
    assert [(name, len(layers)) for name, layers in layer_lists(model).items()] == [("layers", 3)]


@pytest.mark.parametrize(
    ("kind", "depths"), [("clip", [3, 2]), ("siglip", [2, 2]), ("vit", [2]), ("bert", [2]), ("swin", [2])]
)
def test_models_of_the_library_have_one_list_a_side_and_stages_count_as_layers(
    kind: str, depths: list[int]
) -> None:
    result = layer_lists(checkpoints.FAMILIES[kind]())
    assert [len(layers) for layers in result.values()] == depths, list(result)
