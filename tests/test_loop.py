"""The training loop against the same run written out step by step."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from make import TINY
from safetensors.torch import load_file

from grainline.config import parse
from grainline.data.batches import collate
from grainline.data.dataset import Batches, TrainSet
from grainline.data.scenes.source import Scenes
from grainline.data.texts import TextsConfig
from grainline.data.tokenizers.tokenizer import Tokenizer
from grainline.data.transforms import TrainTransform
from grainline.errors import UserError
from grainline.methods.base import Method
from grainline.methods.clip import CLIP, CLIPConfig
from grainline.training import loop
from grainline.training.log import read_log
from grainline.training.loop import Run, Validation, train_loop
from grainline.training.optim import rate
from grainline.training.recipe import TrainConfig
from grainline.training.step import compile_layers, step
from grainline.types import Clock
from grainline.weights import MODEL, RAW

CPU = torch.device("cpu")
SETTINGS: dict[str, Any] = {
    "max_steps": 6,
    "global_batch_size": 8,
    "precision": "fp32",
    "log_every": 2,
    "optimizer": {"lr": 0.03, "weight_decay": 0.1, "eps": 1e-3, "schedule": {"kind": "cosine", "warmup": 2}},
}


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    source = Scenes("scenes:train?count=12", size=32)
    return Tokenizer.train((source[i].whole for i in range(12)), 600)


def samples(tokenizer: Tokenizer) -> TrainSet:
    """A little more than a batch, so that epochs end inside batches."""
    source, texts = Scenes("scenes:train?count=11", size=32), TextsConfig(foils=1, subset=0.9)
    return TrainSet(source, tokenizer, TrainTransform(8), texts, context=24, seed=5)


def method(tokenizer: Tokenizer) -> CLIP:
    """A scale that begins above its maximum, so that clamping shows."""
    torch.manual_seed(0)
    values = {**TINY, "text": {**TINY["text"], "vocab": tokenizer.vocab}, "scale": 20.0, "max_scale": 9.0}  # type: ignore[dict-item]
    return CLIP(parse(CLIPConfig, values, "test"))


def job(out: Path, tokenizer: Tokenizer, **settings: Any) -> Run:
    cfg = TrainConfig.model_validate({**SETTINGS, "seed": 5} | settings)
    return Run(out, method(tokenizer), samples(tokenizer), cfg, 0, 0.0, None)


def by_hand(tokenizer: Tokenizer, accumulate: int, clip: float | None, reshuffle: bool) -> CLIP:
    """The run of SETTINGS, as a reader of the documentation would write it."""
    slow, data, clipped = method(tokenizer), samples(tokenizer), 0
    optimizer = torch.optim.AdamW(
        [
            {"params": [p for p in slow.parameters() if p.dim() >= 2], "weight_decay": 0.1},
            {"params": [p for p in slow.parameters() if p.dim() < 2], "weight_decay": 0.0},
        ],
        lr=0.03, betas=(0.9, 0.98), eps=1e-3, fused=True,
    )  # fmt: skip
    cfg = TrainConfig.model_validate(SETTINGS)
    plan = iter(Batches(11, 8 // accumulate, 5, range(6 * accumulate), reshuffle=reshuffle))
    for number in range(6):
        optimizer.zero_grad()
        for _ in range(accumulate):
            batch = collate([data[draw] for draw in next(plan)])
            step(slow, batch.images, batch.texts, Clock(number))
        for p in slow.parameters():
            assert p.grad is not None
            p.grad /= accumulate
        if clip is not None:
            clipped += float(torch.nn.utils.clip_grad_norm_(slow.parameters(), clip)) > clip
        for group in optimizer.param_groups:
            group["lr"] = 0.03 * rate(cfg.optimizer.schedule, number, 6)
        optimizer.step()
        slow.scale.clamp_()
    assert clipped or clip is None, "else clipping is not tested"
    return slow


@pytest.mark.parametrize(
    ("accumulate", "clip", "reshuffle"), [(1, None, True), (2, 0.5, True), (1, 0.5, False)]
)
def test_a_run_is_the_loop_that_anyone_would_write(
    tmp_path: Path, tokenizer: Tokenizer, accumulate: int, clip: float | None, reshuffle: bool
) -> None:
    run = job(tmp_path, tokenizer, grad_accum=accumulate, grad_clip=clip, reshuffle=reshuffle)
    before = method(tokenizer).state_dict()
    train_loop(run, CPU, None)
    slow = by_hand(tokenizer, accumulate, clip, reshuffle).state_dict()
    assert float(slow["scale.log_scale"].exp()) < 9.001
    for name, value in run.method.state_dict().items():
        torch.testing.assert_close(
            value, slow[name], rtol=1e-4, atol=1e-5, msg=lambda m, name=name: f"{name}: {m}"
        )
    assert any((slow[name] - before[name]).abs().max() > 0.01 for name in slow), "else nothing was compared"


def test_a_moving_average_is_the_slow_one_is_validated_and_changes_no_step(
    tmp_path: Path, tokenizer: Tokenizer
) -> None:
    validated: list[dict[str, torch.Tensor]] = []

    def validate(method: Method) -> Validation:
        validated.append({name: x.clone() for name, x in method.state_dict().items()})
        return Validation({"sum": 1.0})

    plain, settings = job(tmp_path / "plain", tokenizer), {"save_every": 1, "keep_checkpoints": 9}
    run = job(tmp_path / "run", tokenizer, ema=0.25, validate_every=3, **settings)._replace(validate=validate)
    train_loop(plain, CPU, None)
    train_loop(run, CPU, None)
    slow = {name: x.double() for name, x in method(tokenizer).state_dict().items()}
    for t in range(6):
        folder, decay = (
            tmp_path / "run" / "checkpoints" / f"step-0000000{t + 1}",
            min(0.25, (1 + t) / (10 + t)),
        )
        raw, average = load_file(folder / RAW), load_file(folder / MODEL)
        slow = {name: decay * x + (1 - decay) * raw[name].double() for name, x in slow.items()}
        for name, x in average.items():
            torch.testing.assert_close(x, slow[name].float(), rtol=1e-6, atol=1e-7)
        assert t % 3 < 2 or all(torch.equal(x, average[name]) for name, x in validated[t // 3].items())
    assert all(torch.equal(x, raw[name]) for name, x in plain.method.state_dict().items())
    assert all(torch.equal(x, average[name]) for name, x in run.method.state_dict().items()), "as the report"
    assert max((average[name] - x).abs().max() for name, x in raw.items()) > 1e-3
    assert len(validated) == 2


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")  # torch's own, while it compiles
@pytest.mark.parametrize(
    "change", [{"grad_cache_chunk": 3}, {"activation_checkpointing": True}, {"compile": True}], ids=str
)
def test_saving_memory_and_time_changes_no_weight(
    tmp_path: Path, tokenizer: Tokenizer, change: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The compiler itself is left out: not every machine has one."""
    monkeypatch.setattr(loop, "compile_layers", partial(compile_layers, backend="eager"))
    plain, saving = job(tmp_path / "a", tokenizer), job(tmp_path / "b", tokenizer, **change)
    train_loop(plain, CPU, None)
    train_loop(saving, CPU, None)
    for a, b in zip(plain.method.parameters(), saving.method.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def test_the_log_has_a_line_every_so_often_and_at_the_end_of_every_epoch(
    tmp_path: Path, tokenizer: Tokenizer
) -> None:
    train_loop(job(tmp_path, tokenizer, max_steps=5), CPU, None)
    lines = read_log(tmp_path)
    assert [line["step"] for line in lines if line["kind"] == "train"] == [2, 3, 4, 5]
    assert [line["step"] for line in lines if line["kind"] == "epoch"] == [2, 3, 5]
    last = [line for line in lines if line["kind"] == "train"][-1]
    assert last["terms"]["loss"] == pytest.approx(last["terms"]["i2t"] + last["terms"]["t2i"])
    assert last["epoch"] == pytest.approx(40 / 11)


def test_a_batch_that_cannot_be_made_is_an_error_that_says_why(tmp_path: Path, tokenizer: Tokenizer) -> None:
    with pytest.raises(
        UserError,
        match=r"_size 12 is more than the 11 images of the data; lower it: train.global_batch_size=11",
    ):
        train_loop(job(tmp_path, tokenizer, global_batch_size=12), CPU, None)
    with pytest.raises(ValueError, match="batch 8 is not a multiple of grad_accum 3"):
        TrainConfig.model_validate({**SETTINGS, "grad_accum": 3})


@pytest.mark.parametrize(("processes", "accumulate", "most"), [(3, 1, 2), (7, 1, 4), (3, 2, 2), (16, 1, 8)])
def test_processes_that_cannot_share_a_batch_learn_how_many_can(
    processes: int, accumulate: int, most: int
) -> None:
    cfg = TrainConfig.model_validate({**SETTINGS, "grad_accum": accumulate})
    with pytest.raises(UserError, match=f"the largest number of processes that divides it is {most}$"):
        cfg.require_batch(100, processes, True)
    cfg.require_batch(100, most, True)
