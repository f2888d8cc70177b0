"""The recipes of HiMo-CLIP: presets as specified, ablations, and a run that begins with a CLIP."""

from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoints import OpenAI, save_state, tokenizer
from runs import call, logged
from safetensors.torch import load_file

from grainline.encoders.pretrained import load_pretrained
from grainline.loading import load
from grainline.recipes import names
from grainline.training.recipe import read_recipe

ABLATIONS: dict[str, dict[str, Any]] = {
    "global_only": {"component": 0.0},
    "component_only": {"whole": 0.0},
    "double_global": {"component": 0.0, "whole": 2.0},
    "both_sides": {"sides": "both"},
    "detached_basis": {"detach_basis": True},
    "threshold_60": {"threshold": 0.6},
    "threshold_70": {"threshold": 0.7},
    "threshold_80": {"threshold": 0.8},
    "threshold_85": {"threshold": 0.85},
    "threshold_95": {"threshold": 0.95},
    "lambda_050": {"component": 0.5},
    "lambda_200": {"component": 2.0},
}
PRESETS: dict[str, dict[str, Any]] = {  # section 11 of the method's specification
    "official": {"group": 128, "unit": False, "smoothing": 0.1, "detach_keys": True},
    "paper": {"group": None, "unit": True, "smoothing": 0.0, "detach_keys": False},
}


@pytest.mark.parametrize("name", PRESETS)
def test_presets(name: str) -> None:
    recipe = read_recipe(f"himo/{name}", [])
    model, train = recipe.model, recipe.train
    assert {key: model[key] for key in PRESETS[name]} == PRESETS[name]
    assert (model["threshold"], model["component"], model["scale"], model["max_scale"]) == (0.9, 1, 100, None)
    assert (model["text"]["context"], model["text"]["frozen_positions"]) == (248, 20)
    assert train.reshuffle == (name == "paper")
    assert (train.global_batch_size, train.optimizer.lr, train.optimizer.betas) == (1024, 1e-6, (0.9, 0.999))
    assert [rule.weight_decay for rule in train.optimizer.rules] == [0.01]
    assert recipe.data.texts.subset == 0
    assert recipe.data.crop is None


def test_ablations_differ_from_the_official_preset_in_what_they_say() -> None:
    there = {name.removeprefix("himo/ablations/") for name in names() if name.startswith("himo/ablations/")}
    assert there == set(ABLATIONS)
    official = read_recipe("himo/official", [])
    for name, changes in ABLATIONS.items():
        result = read_recipe(f"himo/ablations/{name}", [])
        assert result.model == official.model | changes
        assert (result.data, result.train) == (official.data, official.train)


def test_a_run_from_an_openai_file_keeps_its_first_positions_and_frees_its_scale(tmp_path: Path) -> None:
    torch.manual_seed(0)
    save_state(OpenAI(vocab=tokenizer().vocab), tmp_path / "quickgelu.safetensors")
    tokenizer().save(tmp_path)
    run, scenes = tmp_path / "run", 'data.paths=["scenes:train?count=18"]'
    assert call(
        "train", "himo/official", "--out", run, "--set", scenes, "train.max_steps=3",
        "train.global_batch_size=6",
        "train.grad_cache_chunk=null", "train.log_every=1", "train.save_every=3", "train.optimizer.lr=1e-2",
        "train.optimizer.schedule.warmup=1", "train.precision=fp32", "data.workers=0", "model.image.size=32",
        f"model.pretrained={tmp_path / 'quickgelu.safetensors'}", "model.group=4",
    ) == 0  # fmt: skip
    before: Any = load_pretrained(str(tmp_path / "quickgelu.safetensors"), context=248)
    text: Any = load(run, device="cpu").method.get_submodule("towers.text")
    assert text.context == 248
    after, old = (side.library_state()[f"{side.table}.weight"] for side in (text, before.text))
    assert (after == old).all(1).tolist() == [i < 20 for i in range(248)]
    facts = [line["facts"] for line in logged(run) if line["kind"] == "train"]
    assert facts[0]["scale"] == pytest.approx(100)
    assert max(line["scale"] for line in facts) > 100
    assert all(1 <= line["components"] <= 3 and 0.9 <= line["variance kept"] <= 1 for line in facts)
    assert call("convert", run, tmp_path / "folder") == 0
    joined = load_file(tmp_path / "folder" / "model.safetensors")
    name = "text_model.embeddings.position_embedding.weight"
    positions = next(x for key, x in joined.items() if key.endswith(name))
    assert torch.equal(positions, after)
