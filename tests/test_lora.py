"""Adapters: what they compute, what learns, what stands on disk, and runs that go on bit for bit."""

import re
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import tuning
from make import CLOCK
from runs import RECIPE, call, logged
from safetensors.torch import load_file, save_file
from torch import Tensor

from grainline.errors import UserError
from grainline.loading import load
from grainline.methods.base import Method
from grainline.training import step as steps
from grainline.training.optim import OptimizerConfig, ParamRule, param_groups, train_mode
from grainline.training.step import LoraConfig, add_lora, step
from grainline.weights import LORA_SCALE, load_weights, plain_state_dict, save_weights

ALL = ParamRule(pattern=".*")


def adapted(case: str, name: str = "clip", **settings: Any) -> Method:
    """A method with adapters that already learnt something."""
    method = tuning.method(case, name)
    torch.manual_seed(5)
    add_lora(method, LoraConfig(**{"rank": 2, "alpha": 3.0} | settings))
    with torch.no_grad():
        for path, p in method.named_parameters():
            if ".lora_B." in path:
                p.normal_(std=0.3)
    return method


def groups_of(method: Method, *rules: ParamRule, layer_decay: float | None = None) -> dict[str, float]:
    """Rates by name of what learns."""
    groups = param_groups(method, OptimizerConfig(lr=1.0, rules=rules, layer_decay=layer_decay))
    return {name: group["lr"] for group in groups for name in group["names"]}


def encoded(method: Method) -> tuple[Tensor, Tensor]:
    torch.manual_seed(2)
    images, texts = tuning.batch(method)
    with torch.no_grad():
        return method.encode_images(images).vector, method.encode_texts(texts).vector


# What adapters are


def test_an_adapted_layer_adds_b_times_a() -> None:
    method: Any = adapted("ours")
    layer = method.towers.image.stack.blocks[1].attention.to_out
    path, state, x = (
        "towers.image.stack.blocks.1.attention.to_out",
        plain_state_dict(method),
        torch.randn(3, 32),
    )
    slow = x @ state[f"{path}.weight"].T + state[f"{path}.bias"]
    slow += 3.0 / 2 * (x @ state[f"{path}.lora_A.weight"].T) @ state[f"{path}.lora_B.weight"].T
    torch.testing.assert_close(layer(x), slow)


def test_training_begins_at_the_model_as_it_was() -> None:
    plain, fresh = tuning.method("clip"), tuning.method("clip")
    add_lora(fresh, LoraConfig())
    for a, b in zip(encoded(plain), encoded(fresh), strict=True):
        assert torch.equal(a, b)


NUMBERS = {"ours": 2 * 5, "clip": 4 * 5, "siglip": 4 * 4, "vit and bert": 4 * 4, "swin": 4 * 3 + 2 * 2}


@pytest.mark.parametrize("case", NUMBERS)
def test_by_default_the_projections_of_attention_in_both_encoders_are_adapted(case: str) -> None:
    names = [name for name in plain_state_dict(adapted(case)) if name.endswith(".lora_A.weight")]
    assert len(names) == NUMBERS[case], names
    assert not any(
        word in name for name in names for word in ("mlp", "fc", "dense.") if "attention.output" not in name
    )


def test_targets_name_other_layers() -> None:
    method = adapted("ours", targets=r"towers\.text\..*\.mlp\..*|towers\.to_image")
    names = {
        name.removesuffix(".lora_A.weight")
        for name in plain_state_dict(method)
        if name.endswith(".lora_A.weight")
    }
    assert names == {f"towers.text.stack.blocks.{i}.mlp.{j}" for i in (0, 1) for j in (0, 2)} | {
        "towers.to_image"
    }
    learning = groups_of(method, ALL)
    assert {name for name in learning if ".lora_" not in name} == {"towers.to_text.weight", "scale.log_scale"}


def test_no_target_is_a_layer_that_is_never_called() -> None:
    """SigLIP's head reads the weights of its last projection: an adapter there would learn nothing."""
    names = plain_state_dict(adapted("siglip", targets=r"towers\.image\..*out_proj"))
    assert {name for name in names if ".lora_A." in name} == {
        f"towers.image.model.encoder.layers.{i}.self_attn.out_proj.lora_A.weight" for i in (0, 1)
    }


@pytest.mark.parametrize(
    ("targets", "said"),
    [
        ("attention", "'attention' matches no linear layer: it must match a whole name"),
        ("(to_out", "'(to_out' is not a regular expression"),
    ],
)
def test_a_mistake_in_the_targets_is_one_line(targets: str, said: str) -> None:
    with pytest.raises(UserError, match=re.escape(said)):
        adapted("ours", targets=targets)


def test_without_peft_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(UserError, match=r"needs peft .*; install it with `pip install 'grainline\[lora\]'`"):
        add_lora(tuning.method("ours"), LoraConfig())


# What learns


@pytest.mark.parametrize("case", ["ours", "siglip"])
def test_adapters_learn_and_what_stands_in_no_encoder(case: str) -> None:
    method = adapted(case)
    learning = groups_of(method, ALL)
    outside = {"towers.to_image.weight", "towers.to_text.weight", "scale.log_scale"}
    assert {name for name in learning if ".lora_" not in name} == outside
    assert sum(".lora_" in name for name in learning) == 2 * NUMBERS[case]
    torch.manual_seed(0)
    train_mode(method)
    step(method, *tuning.batch(method), CLOCK)
    grads = {name for name, p in method.named_parameters() if p.grad is not None}
    assert grads == {name for name, p in method.named_parameters() if p.requires_grad}
    assert len(grads) == len(learning)


def test_rules_and_depth_decide_over_adapters_and_the_rest() -> None:
    method = adapted("ours")
    rules = (
        ParamRule(pattern="scale.*", lr_factor=0),
        ParamRule(pattern=r"towers\.text\..*", lr_factor=0),
        ParamRule(pattern=r".*\.lora_A\..*", lr_factor=2),
    )
    learning = groups_of(method, *rules, ALL, layer_decay=0.5)
    block = "towers.image.stack.blocks.{}.attention.to_qkv.lora_{}.weight"
    assert [learning[block.format(i, "A")] for i in range(3)] == [0.25, 0.5, 1.0]
    assert learning[block.format(0, "B")] == 0.125
    assert not any(name.startswith(("towers.text", "scale")) for name in learning)


def test_a_rule_over_weights_that_lora_freezes_is_an_error() -> None:
    message = r"rule 'towers\.image\.stem.*' matches only weights that train.lora freezes (towers.image.stem."
    with pytest.raises(UserError, match=re.escape(message)):
        groups_of(adapted("ours"), ParamRule(pattern=r"towers\.image\.stem.*"), ALL)
    groups_of(adapted("ours"), ParamRule(pattern=r"towers\.image\.stem.*", lr_factor=0), ALL)


@pytest.mark.parametrize("name", ["clip", "maxsim"])
def test_chunks_repeat_the_noise_of_adapters(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Against the same chunks with their activations kept; the noise is that of dropout before A."""
    grads = []
    for recomputed in (True, False):
        method = adapted("ours", name, dropout=0.5)
        groups_of(method, ALL)
        train_mode(method)
        if not recomputed:
            monkeypatch.setattr(steps, "checkpoint", lambda encode, part, use_reentrant: encode(part))  # noqa: ARG005
        torch.manual_seed(0)
        data = tuning.batch(method)
        torch.manual_seed(1)
        step(method, *data, CLOCK, chunk=3)
        grads.append({path: p.grad for path, p in method.named_parameters() if p.requires_grad})
    torch.testing.assert_close(*grads)
    quiet = adapted("ours", name, dropout=0.0)
    groups_of(quiet, ALL)
    torch.manual_seed(0)
    step(quiet, *tuning.batch(quiet), CLOCK)
    path = "towers.image.stack.blocks.0.attention.to_qkv.lora_B.default.weight"
    assert not torch.allclose(grads[0][path], quiet.get_parameter(path).grad), "else there was no noise"


# On disk


@pytest.mark.parametrize("case", NUMBERS)
def test_a_plain_method_reads_adapters_as_a_part_of_its_weights(case: str, tmp_path: Path) -> None:
    method, plain = adapted(case), tuning.method(case)
    save_weights(tmp_path / "x.safetensors", method)
    with torch.no_grad():
        for p in plain.parameters():
            p.zero_()
    load_weights(tmp_path / "x.safetensors", plain)
    before = tuning.method(case)
    for a, b, c in zip(encoded(method), encoded(plain), encoded(before), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)
        assert not torch.allclose(a, c, atol=1e-3), "else the adapters did nothing"
    result = load_file(tmp_path / "x.safetensors")
    adapters = {name for name in result if ".lora_A." in name or ".lora_B." in name}
    assert result.keys() - adapters == plain.state_dict().keys() | {LORA_SCALE}


BROKEN = {
    "half of an adapter": (
        lambda x: x.pop("towers.to_image.lora_B.weight"),
        r"1 unknown \(towers.to_image.lora_A",
    ),
    "unequal halves": (
        lambda x: x.update({"towers.to_image.lora_B.weight": torch.zeros(16, 3)}),
        "2 unknown .towers.to_image.lora_A.weight, towers.to_image.lora_B.weight",
    ),
    "an adapter of nothing": (lambda x: x.pop("towers.to_image.weight"), "1 missing .towers.to_image.weight"),
    "no scale": (lambda x: x.pop(LORA_SCALE), "2 unknown .towers.to_image.lora_A.weight"),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_a_file_with_half_of_an_adapter_is_refused(kind: str, tmp_path: Path) -> None:
    method = adapted("ours", targets=r"towers\.to_image")
    save_weights(tmp_path / "x.safetensors", method)
    result = load_file(tmp_path / "x.safetensors")
    change, message = BROKEN[kind]
    change(result)
    save_file(result, tmp_path / "x.safetensors", {"class": "CLIP"})
    with pytest.raises(UserError, match=message):
        load_weights(tmp_path / "x.safetensors", tuning.method("ours"))


# Runs

LORA = (
    "train.lora={rank: 2, alpha: 4, dropout: 0.3}",
    "train.optimizer.layer_decay=0.5",
    "train.optimizer.lr=0.05",
    "train.keep_checkpoints=9",
    "train.grad_cache_chunk=5",
)


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of six steps with all its checkpoints, the recipe beside it."""
    folder = tmp_path_factory.mktemp("lora")
    (folder / "clip.yaml").write_text(RECIPE)
    assert call("train", folder / "clip.yaml", "--out", folder / "run", "--set", *LORA) == 0
    return folder / "run"


def weights(out: Path, place: str = "last") -> dict[str, Tensor]:
    return load_file(out / place / "model.safetensors")


def test_only_adapters_and_heads_move(done: Path) -> None:
    early, late = weights(done, "checkpoints/step-00000002"), weights(done)
    moved = {name for name, x in late.items() if not torch.equal(x, early[name])}
    assert {name for name in moved if ".lora_" not in name} == {
        "towers.to_image.weight",
        "towers.to_text.weight",
        "scale.log_scale",
    }
    assert {name for name in late if ".lora_" in name} <= moved
    slots = load_file(done / "last" / "optimizer.safetensors")
    assert {name.partition("/")[2] for name in slots} == moved


def test_a_resumed_run_ends_with_the_same_bits(done: Path, tmp_path: Path) -> None:
    shutil.copy(done.parent / "clip.yaml", tmp_path)
    again = Path(shutil.copytree(done, tmp_path / "run"))
    arguments = ("train", tmp_path / "clip.yaml", "--out", again, "--resume", "--checkpoint", "step-00000002")
    assert call(*arguments, "--set", *LORA) == 0
    one, two = weights(done), weights(again)
    assert one.keys() == two.keys()
    assert all(torch.equal(x, two[name]) for name, x in one.items())
    assert logged(again) == logged(done)
    rates = next(line for line in logged(done) if line["kind"] == "train")["lr"]
    assert rates[".* lowest"] == pytest.approx(
        0.25 * rates[".* highest"]
    )  # two layers; their tables are held


def test_a_run_is_loaded_as_a_plain_model_without_peft(done: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "peft", None)
    model, result = load(done), weights(done)
    assert not any("lora" in name for name in model.method.state_dict())
    layer = "towers.text.stack.blocks.1.attention.to_qkv"
    expected = (
        result[f"{layer}.weight"] + 2.0 * result[f"{layer}.lora_B.weight"] @ result[f"{layer}.lora_A.weight"]
    )
    torch.testing.assert_close(model.method.state_dict()[f"{layer}.weight"], expected, rtol=1e-6, atol=1e-7)
    assert not torch.equal(expected, result[f"{layer}.weight"])
    assert model.encode(texts=["a red circle"]).vector.shape == (1, 32)
