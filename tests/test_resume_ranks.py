"""A run that goes on with another number of processes ends as one that a single process trained."""

import os
import shutil
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from make import TINY
from processes import exit_codes, start_ranks
from safetensors.torch import load_file
from torch import nn

from grainline.config import parse
from grainline.data.dataset import TrainSet
from grainline.data.scenes.source import Scenes
from grainline.data.texts import TextsConfig
from grainline.data.tokenizers.tokenizer import Tokenizer
from grainline.data.transforms import TrainTransform
from grainline.methods.clip import CLIP, CLIPConfig
from grainline.training.log import read_log
from grainline.training.loop import Run, train_loop
from grainline.training.recipe import TrainConfig

CPU = torch.device("cpu")
LIMIT = timedelta(seconds=120)  # for one exchange
SETTINGS: dict[str, Any] = {
    "max_steps": 6,
    "global_batch_size": 6,
    "precision": "fp32",
    "log_every": 1,
    "save_every": 3,
    "keep_checkpoints": 9,
    "seed": 5,
    "optimizer": {"lr": 0.03, "eps": 1e-3, "schedule": {"kind": "cosine", "warmup": 2}},
}
SPREADS = {"replicated": False, "sharded": True}


def job(out: Path, sharded: bool) -> Run:
    """A run with noise of every kind that data and our encoders have."""
    source = Scenes("scenes:train?count=11", size=32)
    tokenizer = Tokenizer.train((source[i].whole for i in range(11)), 600)
    texts = TextsConfig(subset=0.7, word_dropout=0.3)
    data = TrainSet(source, tokenizer, TrainTransform(8), texts, context=24, seed=5)
    sides: Any = {
        side: {**TINY[side], "depth": 2, "drop_path": 0.4}  # type: ignore[dict-item]
        for side in ("image", "text")
    }
    sides["text"]["vocab"] = tokenizer.vocab
    torch.manual_seed(0)
    method = CLIP(parse(CLIPConfig, {**TINY, **sides}, "test"))
    return Run(out, method, data, TrainConfig.model_validate(SETTINGS | {"fsdp": sharded}), 0, 0.0, None)


def loose(out: Path) -> Run:
    """A run with a layer of torch that draws from the generator of its process."""
    run = job(out, sharded=False)
    towers: Any = run.method.get_submodule("towers")
    towers.to_text = nn.Sequential(nn.Dropout(0.1), towers.to_text)
    return run


def goes_on(begun: Path, out: Path, sharded: bool) -> None:
    """What is left of a run after its third step, in a folder of its own."""
    if not dist.is_initialized() or dist.get_rank() == 0:
        shutil.copytree(begun, out)
    if dist.is_initialized():
        dist.barrier()
    train_loop(job(out, sharded), CPU, out / "checkpoints" / "step-00000003")


def worker(rank: int, out: Path) -> None:
    """One of three processes; two of them begin, and all three go on."""
    torch.set_num_threads(1)
    for world in (2, 3):
        if rank < world:
            start = f"file://{out}/start-{world}"
            dist.init_process_group("gloo", init_method=start, rank=rank, world_size=world, timeout=LIMIT)
            for spread, sharded in SPREADS.items():
                if world == 2:
                    train_loop(job(out / f"{spread}-2", sharded), CPU, None)
                    if not sharded:
                        train_loop(loose(out / "loose"), CPU, None)
                else:
                    goes_on(out / f"{spread}-2", out / f"{spread}-3", sharded)
            dist.barrier()
            dist.destroy_process_group()
    os._exit(0)  # as in test_two_ranks


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("runs")
    ranks = start_ranks(worker, 3, place)
    train_loop(job(place / "alone", sharded=False), CPU, None)
    assert exit_codes(ranks) == [0, 0, 0]
    for spread in SPREADS:
        goes_on(place / f"{spread}-2", place / f"{spread}-1", sharded=False)
    return place


@pytest.mark.parametrize("world", [1, 2, 3])
@pytest.mark.parametrize("spread", SPREADS)
def test_a_run_goes_on_with_the_processes_that_are_left(out: Path, spread: str, world: int) -> None:
    alone, run = out / "alone", out / f"{spread}-{world}"
    losses = [
        [line["terms"] for line in read_log(folder) if line["kind"] == "train"] for folder in (alone, run)
    ]
    assert len(losses[0]) == 6
    for one, other in zip(*losses, strict=True):
        assert other == pytest.approx(one, rel=1e-5)
    for name, x in load_file(alone / "last" / "model.safetensors").items():
        actual = load_file(run / "last" / "model.safetensors")[name]
        torch.testing.assert_close(actual, x, rtol=0, atol=1e-5, msg=lambda m, name=name: f"{name}: {m}")
    reports = [
        [line for line in read_log(folder) if line["kind"] == "epoch"][-1]["samples"]
        for folder in (alone, run)
    ]
    assert reports[0] == reports[1] == 36
    said = [line["text"] for line in read_log(run) if line["kind"] == "note"]
    changed = f"resumed at step 3 with {world} processes, before 2"
    assert said == [changed] * (world != 2)


def test_what_the_runs_have_in_common_is_not_that_nothing_was_drawn(out: Path) -> None:
    calm = job(out / "calm", sharded=False)
    for module in calm.method.modules():
        if hasattr(module, "rate"):
            module.rate = 0.0  # type: ignore[assignment]
    train_loop(calm, CPU, None)
    weights = [load_file(out / name / "last" / "model.safetensors") for name in ("alone", "calm")]
    assert any((weights[1][name] - x).abs().max() > 1e-3 for name, x in weights[0].items())


def test_noise_that_each_process_draws_for_itself_is_named_in_the_log(out: Path) -> None:
    said = [line["text"] for line in read_log(out / "loose") if line["kind"] == "note"]
    assert said == [
        "the noise of towers.to_text.0 differs between processes, so losses depend on their number"
    ]
