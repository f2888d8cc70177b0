"""The recipes of beta-CLIP: presets as specified, ablations, and a run that begins with a CLIP."""

import math
import re
import sys
import tomllib
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoints import OpenAI, save_state, tokenizer
from runs import call, complaint, logged, recipe

from grainline.loading import load
from grainline.recipes import names
from grainline.training.optim import Cosine, rate
from grainline.training.recipe import read_recipe

TABLE_8 = {  # which texts of other images are negatives, beside their captions
    "cs": {"sentences": 5, "phrases": 0},
    "cp": {"sentences": 0, "phrases": 30},
    "csp": {"sentences": 5, "phrases": 30},
}
ABLATIONS: dict[str, dict[str, Any]] = {
    **{f"beta_{100 * b:03.0f}": {"beta": b} for b in (0.0, 0.25, 0.75, 1.0)},
    **{f"bce_{100 * b:03.0f}": {"form": "bce", "beta": b} for b in (0.0, 0.25, 0.5, 0.75, 1.0)},
    "calibrated": {"beta": 0.75, "slot_decay": 0.05},
    "input_norm": {"input_norm": True},
    "group_112": {"group": 112},
    **{
        f"others_{form}_{row}": {
            "form": form, "beta": 1.0, "others": counts | {"weight": 10.0, "own": form == "ce"},
        }
        for form in ("ce", "bce")
        for row, counts in TABLE_8.items()
    },
    "k6": {},
    "k16": {},
}  # fmt: skip
PRESETS: dict[str, dict[str, Any]] = {  # sections 4, 7 and 8 of the method's specification
    "official": {"input_norm": False, "divisor": "slots", "padding": "candidates", "detach_keys": True},
    "paper": {"input_norm": True, "divisor": "rows", "padding": "masked", "detach_keys": False},
}


@pytest.mark.parametrize("name", PRESETS)
def test_presets(name: str) -> None:
    recipe = read_recipe(f"beta_clip/{name}", [])
    model, train, texts = recipe.model, recipe.train, recipe.data.texts
    assert {key: model[key] for key in PRESETS[name]} == PRESETS[name]
    assert (model["form"], model["beta"], model["slot_decay"]) == ("ce", 0.5, 0)
    assert (model["group"], model["heads"]) == (64, 8)
    assert (model["image"]["patches"], model["scale"], model["max_scale"]) == ("values", None, 100)
    assert (model["text"]["context"], model["text"]["frozen_positions"]) == (248, 20)
    assert model["pool_scale"] == pytest.approx(1 / 0.07)
    assert (texts.slots, texts.sentences, texts.phrases.max_phrases, texts.phrases.tokens) == (36, 5, 30, 30)
    assert (texts.captions, texts.phrases.phrase_filter) == (
        ("sampled", "official") if name == "official" else ("whole", "paper")
    )
    assert (train.global_batch_size, train.grad_accum) == (2048, 8)
    assert (train.max_steps, train.grad_clip) == (6070, None)
    optimizer = train.optimizer
    assert (optimizer.lr, optimizer.weight_decay) == (1e-5, 0.01)
    assert (optimizer.betas, optimizer.eps) == ((0.9, 0.98), 1e-8)
    warmup = 6 if name == "official" else 61
    assert optimizer.schedule == Cosine(warmup=warmup, first=1e-4, final=0.01)
    pool = Cosine(warmup=0, final=0.1) if name == "official" else Cosine(warmup=61, first=1e-6, final=0.1)
    assert (optimizer.rules[0].lr_factor, optimizer.rules[0].schedule) == (100, pool)
    if name == "paper":  # table 14: 1e-9 at first, 1e-5 and 1e-3 after a tenth of an epoch, 1e-4 at last
        for one, base, last in ((optimizer.schedule, 1e-5, 1e-7), (pool, 1e-3, 1e-4)):
            rates = [base * rate(one, step, 6070) for step in (0, 61, 6070)]
            assert rates == pytest.approx([1e-9, base, last])
    crop = recipe.data.crop
    assert crop is not None
    assert (crop.scale, crop.flip, crop.jitter) == ((0.5, 1.0), False, 0.0)


def test_ablations_differ_from_the_official_preset_in_what_they_say() -> None:
    prefix = "beta_clip/ablations/"
    there = {name.removeprefix(prefix) for name in names() if name.startswith(prefix)}
    assert there == {*ABLATIONS, "k1", "unconditioned"}
    official = read_recipe("beta_clip/official", [])
    for name, changes in ABLATIONS.items():
        result = read_recipe(prefix + name, [])
        assert result.model == official.model | changes
        phrases = {"k6": 0, "k16": 10}.get(name, 30)
        expected = official.data.texts.model_copy(
            update={"phrases": official.data.texts.phrases.model_copy(update={"max_phrases": phrases})}
        )
        assert result.data.texts == expected
        large = {"global_batch_size": 3584, "max_steps": 3470} if name == "group_112" else {}
        assert result.train == official.train.model_copy(update=large)


def test_controls_have_the_encoders_the_images_and_the_rates_of_the_official_preset() -> None:
    official = read_recipe("beta_clip/official", [])
    for name, slots in (("k1", 1), ("unconditioned", 6)):
        result = read_recipe(f"beta_clip/ablations/{name}", [])
        assert result.method == "clip"
        assert {key: result.model[key] for key in ("image", "text", "pretrained")} == {
            key: official.model[key] for key in ("image", "text", "pretrained")
        }
        assert (result.data.texts.slots, result.data.texts.phrases.max_phrases) == (slots, 0)
        assert result.data.crop == official.data.crop
        assert result.train.optimizer.rules[-1].lr_factor == 1
        same = {"rules": result.train.optimizer.rules}
        assert result.train == official.train.model_copy(
            update={"optimizer": official.train.optimizer.model_copy(update=same)}
        )


def test_a_run_from_an_openai_file_learns_its_pooling_fast_and_measures(tmp_path: Path) -> None:
    torch.manual_seed(0)
    save_state(OpenAI(vocab=tokenizer().vocab), tmp_path / "quickgelu.safetensors")
    tokenizer().save(tmp_path)
    run, scenes = tmp_path / "run", 'data.paths=["scenes:train?count=12"]'
    assert call(
        "train", "beta_clip/official", "--out", run, "--set", scenes, "train.max_steps=2",
        "train.global_batch_size=6",
        "train.grad_accum=2", "train.log_every=1", "train.save_every=2", "train.precision=fp32",
        "train.optimizer.schedule.warmup=1", "data.workers=0", "model.image.size=32", "model.group=2",
        "data.texts.phrases.provider=rules", "data.texts.phrases.max_phrases=4",
        f"model.pretrained={tmp_path / 'quickgelu.safetensors'}",
    ) == 0  # fmt: skip
    line = next(line for line in logged(run) if line["kind"] == "train")
    assert {"loss", "i2t", "t2i", "pooled i2t", "pooled t2i"} == line["terms"].keys()
    assert line["facts"]["scale"] == pytest.approx(math.exp(2), rel=1e-3)  # that of the file
    assert line["facts"]["pooled scale"] == pytest.approx(1 / 0.07, rel=0.01)
    method = load(run, device="cpu").method
    assert (method.grid, method.size, method.context) == ((8, 8), 32, 248)
    assert call("evaluate", run, "--data", "scenes:dev?count=4", "--suite", "fg-ovd") == 0
    assert call("convert", run, tmp_path / "folder") == 0
    ours, theirs = load(run, device="cpu"), load(tmp_path / "folder", device="cpu")
    texts = ["a red disc", "a small star left of a box"]
    torch.testing.assert_close(ours.encode(texts=texts).vector, theirs.encode(texts=texts).vector)


def test_conditioned_scores_have_no_form_in_other_programs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    assert (
        call("train", recipe(tmp_path, "beta_clip"), "--out", run, "--set", "model.scoring=conditioned") == 0
    )
    assert "beta_clip scores pairs by their tokens" in complaint(capsys, "convert", run, tmp_path / "folder")


def test_recipes_name_extras_that_exist() -> None:
    pyproject = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text())
    extras = set(pyproject["project"]["optional-dependencies"])
    named = {
        (path.name, extra)
        for path in files("grainline").joinpath("recipes").rglob("*.yaml")
        for extra in re.findall(r"extra `(\w+)`", path.read_text())
    }
    assert ("official.yaml", "text") in named
    assert {extra for _, extra in named} <= extras


@pytest.mark.parametrize("name", ["beta_clip/official", "beta_clip/paper"])
def test_a_missing_provider_of_phrases_is_reported_before_a_checkpoint_is_read(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "spacy", None)
    run = tmp_path / "run"
    result = complaint(
        capsys, "train", name, "--data", "scenes:train?count=8", "--out", run,
        "--set", f"model.pretrained={tmp_path / 'no_checkpoint_here'}",
    )  # fmt: skip
    assert "provider spacy:en_core_web_sm: spaCy is not installed; pip install 'grainline[text]'" in result
    assert not run.exists()
