"""Runs that begin with the weights of an earlier run."""

import shutil
from pathlib import Path

import pytest
import torch
from runs import call, logged
from safetensors.torch import load_file

from grainline.loading import load

SMALL = (
    "data.paths=[\"scenes:train?count=12\"]", "train.max_steps=2", "train.global_batch_size=6",
    "train.save_every=2",
    "train.log_every=1", "data.workers=0", "data.tokenizer_samples=12", "model.image.width=32",
    "model.image.depth=1", "model.image.heads=2", "model.image.size=32", "model.text.width=32",
    "model.text.depth=1", "model.text.heads=2", "model.width=16", "train.optimizer.schedule.warmup=0", 
    "model.text.vocab=600",
)  # fmt: skip


@pytest.fixture(scope="module")
def clip_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("begin") / "clip"
    assert call("train", "clip/patches", "--out", run, "--set", *SMALL) == 0
    return run


def test_another_method_begins_with_the_encoders_of_a_run(
    clip_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "beta"
    rest = ("data.tokenizer_samples=3", f"init_from={clip_run / 'last'}", "train.optimizer.lr=1e-9")
    assert call("train", "beta_clip/scenes", "--out", run, "--set", *SMALL, *rest) == 0
    assert (
        f"starts from {clip_run / 'last'}; 15 tensors of pool, pool_scale are new" in capsys.readouterr().err
    )
    before, after = load(clip_run, device="cpu"), load(run, device="cpu")
    for name, x in before.method.state_dict().items():
        torch.testing.assert_close(after.method.state_dict()[name], x, rtol=1e-5, atol=1e-6)
    assert before.tokenizer.encode(["a red disc"], 16) == after.tokenizer.encode(["a red disc"], 16)
    line = next(line for line in logged(run) if line["kind"] == "train")
    assert {"pooled i2t", "pooled t2i", "i2t", "t2i"} <= line["terms"].keys()


def test_a_stopped_run_goes_on_from_its_own_weights(clip_run: Path, tmp_path: Path) -> None:
    runs = {name: tmp_path / name for name in ("whole", "parts")}
    shutil.copytree(clip_run, tmp_path / "first")
    rest = (*SMALL, f"init_from={tmp_path / 'first'}", "train.max_steps=4")
    assert call("train", "clip/patches", "--out", runs["whole"], "--set", *rest) == 0
    assert call("train", "clip/patches", "--out", runs["parts"], "--set", *rest) == 0
    (runs["parts"] / "last").rename(tmp_path / "gone")
    shutil.rmtree(tmp_path / "first")  # it is not needed any more
    again = ("--resume", "--checkpoint", "step-00000002", "--set", *rest)
    assert call("train", "clip/patches", "--out", runs["parts"], *again) == 0
    whole, parts = (load_file(run / "last" / "model.safetensors") for run in runs.values())
    assert all(torch.equal(whole[name], parts[name]) for name in whole)


def test_encoders_of_other_sizes_are_refused(
    clip_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for changes, said in (
        (["model.width=8"], "towers.to_image.weight is (16, 32) in"),
        (["model.image.depth=2"], "has no towers.image.stack.blocks.1"),
        (["data.tokenizer=x"], "leave data.tokenizer out"),
        (["init_from=nowhere/at/all"], "no model at"),
    ):
        begin = [f"init_from={clip_run}"]
        code = call("train", "clip/patches", "--out", tmp_path / "x", "--set", *SMALL, *begin, *changes)
        err = capsys.readouterr().err
        assert code == 2, err
        assert said in err
        assert "Traceback" not in err
