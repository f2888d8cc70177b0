"""The encoder from superpixels to ever fewer segments, against pixels and images taken one at a time."""

import copy
import math
import re
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from grainline.config import parse
from grainline.encoders.cast import Cast, CastConfig, CastTokens, Stage, segments
from grainline.errors import UserError
from grainline.nn.grouping import GraphPool
from grainline.nn.superpixels import inside, label_of
from grainline.training.optim import depth_levels
from grainline.training.step import LoraConfig, add_lora, recompute_layers

SIZE, CELL = 16, 4
SMALL: dict[str, Any] = {
    "width": 16,
    "heads": 2,
    "depths": [1, 2, 1],
    "groups": [6, 3],
    "size": SIZE,
    "stride": 2,
    "superpixels": {"cell": CELL, "iterations": 3},
}


def cast(**changes: Any) -> Cast:
    """In float64 and evaluation mode, with no parameter at a value that hides it."""
    model = Cast(CastConfig.model_validate(SMALL | changes))
    with torch.no_grad():
        for p in model.parameters():
            p += 0.1 * torch.randn_like(p)
    return model.double().eval()


def images(number: int = 3) -> Tensor:
    return torch.randint(0, 256, (number, 3, SIZE, SIZE), dtype=torch.uint8).double() / 255


def regions(number: int = 3) -> Tensor:
    """Labels at random under the contract; in the first image superpixels 0, 5 and 10 are empty."""
    names = label_of(torch.arange(9)[:, None, None].expand(-1, SIZE, SIZE), CELL)
    weight = torch.rand(number, 9, SIZE, SIZE).masked_fill(~inside(SIZE, CELL), -1.0)
    weight[0, torch.isin(names, torch.tensor([0, 5, 10]))] = -1.0
    return label_of(weight.argmax(1), CELL)


def real(tokens: CastTokens) -> list[Tensor]:
    """All that an encoder says, without what stands in places that are not real."""
    actual = [tokens.pooled, tokens.label, *tokens.weights]
    for tokens_, mask in tokens.stages:
        actual += [mask, tokens_[mask]]
    return actual


def same(a: CastTokens, b: CastTokens) -> bool:
    return all(torch.equal(x, y) for x, y in zip(real(a), real(b), strict=True))


# Superpixel tokens


@pytest.mark.parametrize("positions", ["waves", "learnt"])
def test_a_superpixel_is_the_mean_over_its_pixels_of_features_and_positions(positions: str) -> None:
    model, pixels, label = cast(positions=positions), images(2), regions(2)
    with torch.no_grad():
        actual = model.superpixel_tokens(pixels, label)
        features = model.stem((pixels - model.mean) / model.spread)
    for n in range(2):
        for s in range(16):
            rows = []
            for y, x in (label[n] == s).nonzero().tolist():
                row, column = y // 2, x // 2
                place = model.position[row * 8 + column].detach()
                if positions == "waves":
                    speed = [10_000 ** (-i / 4) for i in range(4)]
                    turns = [row * v for v in speed], [column * v for v in speed]
                    place = torch.tensor([f(v) for at in turns for f in (math.sin, math.cos) for v in at])
                rows.append(features[n, :, row, column] + place)
            assert bool(actual.mask[n, s]) == bool(rows)
            mean = torch.stack(rows).mean(0) if rows else torch.zeros(16).double()
            torch.testing.assert_close(actual.tokens[n, s], mean, rtol=1e-5, atol=1e-5)
    assert (~actual.mask).nonzero().tolist() == [[0, 0], [0, 5], [0, 10]]


# The whole encoder


def test_images_are_what_their_real_tokens_give_one_image_at_a_time() -> None:
    """Without masks: empty superpixels are taken out instead."""
    model, pixels, label = cast(), images(), regions()
    with torch.no_grad():
        record = model(pixels, label)
        for n in range(3):
            start = model.superpixel_tokens(pixels[n : n + 1], label[n : n + 1])
            x = torch.cat([model.class_token[None, None], start.tokens[:, start.mask[0]]], dim=1)
            stages = []
            for layer in model.layers:
                if isinstance(layer, GraphPool):
                    stages.append(x)
                    actual = layer(x[:, 1:], x[:, 0], torch.ones(1, x.shape[1] - 1, dtype=torch.bool))
                    assert actual.mask.all()
                    x = torch.cat([actual.cls[:, None], actual.tokens], dim=1)
                else:
                    x = layer(x)
            torch.testing.assert_close(record.pooled[n], model.norm(x[0, 0]))
            for stage, expected in zip(record.stages, [*stages, x], strict=True):
                torch.testing.assert_close(stage.tokens[n, stage.mask[n]], expected[0, 1:])
    assert [tuple(stage.tokens.shape) for stage in record.stages] == [(3, 16, 16), (3, 6, 16), (3, 3, 16)]
    assert [tuple(weight.shape) for weight in record.weights] == [(3, 16, 6), (3, 6, 3)]
    assert (model.width, model.size, model.grid) == (16, SIZE, None)


@pytest.mark.parametrize("few", [False, True])
def test_what_stands_in_an_empty_superpixel_changes_no_output(
    few: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, pixels, label = cast(), images(), regions()
    start = model.superpixel_tokens(pixels, label)
    mask = start.mask & (torch.arange(16) < 4) if few else start.mask
    calls = []
    for other in (0.0, 100.0):
        tokens = torch.where(mask[..., None], start.tokens, other * torch.randn_like(start.tokens))
        monkeypatch.setattr(model, "superpixel_tokens", lambda *_, t=tokens: Stage(t, mask))
        calls.append(model(pixels, label))
    assert same(*calls)
    assert not mask.all()
    if few:
        assert calls[0].stages[1].mask.sum(1).tolist() == mask.sum(1).tolist()
        assert calls[0].stages[2].mask.all()


def test_bytes_are_numbers_between_0_and_1_and_known_regions_are_not_computed() -> None:
    model, pixels = cast().float(), images().float()
    record = model(pixels)
    rows = (pixels * 255).round().to(torch.uint8)
    assert same(record, model(rows))
    assert same(record, model(pixels, record.label))
    other = model(pixels, regions())
    assert not torch.equal(other.label, record.label)
    assert not torch.allclose(other.pooled, record.pooled)


def test_noise_is_of_training_alone() -> None:
    model, pixels = cast(drop_path=0.5), images()
    assert same(model(pixels), model(pixels))
    model.train()
    assert not torch.allclose(model(pixels).pooled, model(pixels).pooled)
    model = cast(dropout=0.0).train()
    assert same(model(pixels), model.eval()(pixels))


@pytest.mark.parametrize("train", [False, True])
def test_bfloat16_is_finite_forward_and_backward(train: bool) -> None:
    model, pixels = cast().float().train(train), images().float()
    label = regions()
    label[1] = label_of(torch.full((1, SIZE, SIZE), 4), CELL)
    pixels[1] = 0.5  # one colour
    with torch.autocast("cpu", torch.bfloat16):
        record = model(pixels, label)
    loss = record.pooled.float().square().sum() + sum(x.tokens.float().square().sum() for x in record.stages)
    loss.backward()
    assert all(torch.isfinite(x).all() for x in real(record))
    assert all(p.grad is not None and torch.isfinite(p.grad).all() for p in model.parameters())
    if not train:
        torch.testing.assert_close(record.pooled.float(), model(pixels, label).pooled, rtol=0.1, atol=0.2)


# Segments


def test_segments_are_nested_and_made_by_the_group_that_takes_most() -> None:
    model, pixels, label = cast(), images(), regions()
    with torch.no_grad():
        record = model(pixels, label)
    maps = segments(record)
    assert torch.equal(maps[0], label)
    for n in range(3):
        for fine, coarse, weight in zip(maps, maps[1:], record.weights, strict=False):
            parts = fine[n].unique().tolist()
            for part in parts:
                of = coarse[n][fine[n] == part].unique().tolist()
                assert of == [int(weight[n, part].argmax())], "a part is in two wholes"
    counts = [[len(actual[n].unique()) for n in range(3)] for actual in maps]
    assert [max(row) <= most for row, most in zip(counts, (16, 6, 3), strict=True)] == [True] * 3
    assert counts[1:] == [[6] * 3, [3] * 3], "every group owns the token that it is built around"


# Places of the parameters


def test_every_layer_has_its_level_and_a_graph_pool_is_a_layer() -> None:
    model = cast(positions="learnt")
    actual = depth_levels(model)
    kinds = [type(layer).__name__ for layer in model.layers]
    assert kinds == ["Block", "GraphPool", "Block", "Block", "GraphPool", "Block"]
    assert actual["class_token"] == actual["position"] == actual["stem.0.weight"] == 7
    assert [actual[f"layers.{i}.attention.to_qkv.weight"] for i in range(6)] == [6, 5, 4, 3, 2, 1]
    assert actual["layers.1.shift"] == 5
    assert actual["norm.bias"] == 0
    assert set(actual) == {name for name, _ in model.named_parameters()}
    assert {p.ndim for name, p in model.named_parameters() if name in ("class_token", "layers.1.shift")} == {
        1
    }


def test_layers_can_be_computed_again_and_adapted() -> None:
    plain = cast(drop_path=0.3).train()
    saving, adapted = copy.deepcopy(plain), copy.deepcopy(plain).eval()
    recompute_layers(nn.ModuleDict({"image": saving}))
    pixels = images()
    for model in (plain, saving):
        torch.manual_seed(3)
        record = model(pixels)
        (record.pooled.square().sum() + record.stages[1].tokens.square().sum()).backward()
    for (name, p), q in zip(plain.named_parameters(), saving.named_parameters(), strict=True):
        assert p.grad is not None, name
        torch.testing.assert_close(p.grad, q[1].grad)
    before = adapted(pixels)
    add_lora(adapted, LoraConfig(rank=2))
    torch.testing.assert_close(adapted(pixels).pooled, before.pooled)
    owners = {name.partition(".lora_A")[0] for name, _ in adapted.named_parameters() if ".lora_A." in name}
    assert owners == {f"layers.{i}.attention.{part}" for i in range(6) for part in ("to_qkv", "to_out")}


# Config


def test_the_base_size_is_that_of_the_paper() -> None:
    """103.3 M parameters, with three pools and eleven blocks."""
    with torch.device("meta"):
        model = Cast(CastConfig(name="B"))  # type: ignore[call-arg]
    assert sum(p.numel() for p in model.parameters()) == 103_332_960
    sizes = [layer.out_channels for layer in model.stem if isinstance(layer, nn.Conv2d)]
    strides = [layer.stride[0] for layer in model.stem if isinstance(layer, nn.Conv2d)]
    assert (sizes, strides) == ([96, 192, 384, 768, 768], [2, 2, 2, 1, 1])


WRONG = {
    "name": ({"name": "X"}, "name 'X' is not known; allowed are toy, Mi, Ti, S, B"),
    "size": ({"size": 18}, "size 18 is not a multiple of superpixels.cell 4"),
    "stride": ({"stride": 3}, "stride 3 is not a power of two, at least 2"),
    "one": ({"stride": 1}, "stride 1 is not a power of two, at least 2"),
    "cell": ({"stride": 8}, "superpixels.cell 4 is not a multiple of stride 8"),
    "depths": ({"depths": [1, 1]}, "2 depths need 1 groups, not 2"),
    "no blocks": ({"depths": [1, 0, 1]}, "depths (1, 0, 1) must be above 0"),
    "many groups": (
        {"groups": [16, 3]},
        "groups (16, 3) must fall, from below the 16 superpixels to above 0",
    ),
    "rising": ({"groups": [3, 6]}, "groups (3, 6) must fall"),
    "none": ({"groups": [3, 0]}, "groups (3, 0) must fall"),
    "heads": ({"heads": 3}, "width 16 is not a multiple of 3 heads"),
    "waves": ({"width": 18}, "width 18 is not a multiple of 4, as positions of waves need it"),
    "std": ({"std": [0.1, 0.0, 0.1]}, "must be above 0 in every colour"),
    "unknown": ({"patch": 4}, "unknown field 'patch'; allowed here: name, width, heads"),
}


@pytest.mark.parametrize("kind", WRONG)
def test_a_wrong_setting_is_one_line(kind: str) -> None:
    changes, message = WRONG[kind]
    with pytest.raises(UserError, match=re.escape(message)) as caught:
        parse(CastConfig, SMALL | changes, "image")
    assert "\n" not in str(caught.value)


def test_fields_beside_a_name_win() -> None:
    cfg = parse(CastConfig, {"name": "Mi", "width": 64, "groups": [32, 16, 8]}, "image")
    assert (cfg.width, cfg.heads, cfg.depths, cfg.groups) == (64, 4, (2, 1, 1, 1), (32, 16, 8))
