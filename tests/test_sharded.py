"""Two processes that hold half of everything train as two that hold all of it, and as one alone."""

import json
import os
import shutil
from collections.abc import Callable, Iterable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from make import CASES as ALL
from make import CLOCK, TINY, batch, build
from processes import exit_codes, free_port, start_ranks
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from grainline.config import parse
from grainline.data.dataset import TrainSet
from grainline.data.scenes.source import Scenes
from grainline.data.texts import TextsConfig
from grainline.data.tokenizers.tokenizer import Tokenizer
from grainline.data.transforms import TrainTransform
from grainline.distributed import workers, world_size
from grainline.methods.base import Method
from grainline.methods.clip import CLIP, CLIPConfig
from grainline.training.log import read_log
from grainline.training.loop import Run, Validation, train_loop
from grainline.training.optim import OptimizerConfig, build_optimizer
from grainline.training.parallel import accumulation_step, clip_grad_norm, data_parallel, full_tensor, shard
from grainline.training.recipe import TrainConfig
from grainline.training.step import Objective, recompute_layers, step
from grainline.types import Images, Texts, concat, rows, to
from grainline.weights import load_weights

CPU = torch.device("cpu")
DEEP = ("image.depth=2", "text.depth=3", "text.buckets=1")
LIKE_OTHERS = {  # in layers and in how they are called; they differ in losses, which test_two_ranks has
    "himo-groups", "beta_clip-groups", "beta_clip-others", "beta_clip-others_bce",
    "tgt-shorter", "tgt-baseline", "seps-sparse", "seps-dense", "seps-joint", "vse-hardest",
    "himo", "maxsim", "vse", "laps", "clip-mean", "beta_clip-pairs", "flair-vectors", "tgt-minimal",
    "clip-frozen-pretrained",
}  # fmt: skip
CASES = [case for case in ALL if case not in LIKE_OTHERS]
KINDS = {"whole": (None, False), "cached": (3, False), "recomputed": (None, True), "both": (3, True)}
APART = ("clip", "caft")  # cases with every way to save memory; the others have both
WAYS = [(case, kind) for case in CASES for kind in KINDS if case in APART or kind == "both"]
MINE = ([0, 1, 2, 4], [3, 5, 6, 7])
LIMIT = timedelta(seconds=120)  # for one exchange; processes that wait for each other end with an error
SETTINGS: dict[str, Any] = {
    "max_steps": 4,
    "global_batch_size": 8,
    "precision": "fp32",
    "log_every": 1,
    "save_every": 2,
    "keep_checkpoints": 9,
    "validate_every": 2,
    "grad_clip": 0.3,
    "seed": 5,
    "optimizer": {
        "lr": 0.03,
        "eps": 1e-3,
        "schedule": {"kind": "cosine", "warmup": 2},
        "rules": [
            {"pattern": r"towers\.text\.words\..*", "lr_factor": 0},
            {"pattern": r"towers\.image\.stack\.blocks\.0\..*", "lr_factor": 0},
            {"pattern": ".*"},
        ],
    },
}
RUNS: dict[str, dict[str, Any]] = {
    "plain": {},
    "saving": {"grad_accum": 2, "grad_cache_chunk": 2, "activation_checkpointing": True, "ema": 0.5},
    "bf16": {"precision": "bf16"},
}
SPREADS = {"ddp": False, "sharded": True}


def deep(case: str) -> tuple[str, ...]:
    """Several layers a side; checkpoints of others have two as they are, and segments a layer a stage."""
    if case.endswith("-segments"):
        return DEEP[1:]
    return () if case.endswith("pretrained") else DEEP


# What the two processes do


def worker(rank: int, port: int, out: Path) -> None:
    torch.set_num_threads(1)
    start = f"tcp://127.0.0.1:{port}"
    dist.init_process_group("gloo", init_method=start, rank=rank, world_size=2, timeout=LIMIT)
    actual = gradients(rank, CPU, WAYS) | sizes(rank) | unlike_lengths(rank)
    train_all(rank, out)
    if rank == 0:
        save_file({name: x.contiguous() for name, x in actual.items()}, out / "found.safetensors")
    dist.barrier()
    dist.destroy_process_group()
    os._exit(0)  # as in test_two_ranks


def exact(both: tuple[Images, Texts], device: torch.device = CPU) -> tuple[Images, Texts]:
    return to(both[0]._replace(pixels=both[0].pixels.double()), device), to(both[1], device)


def share(both: tuple[Images, Texts], rank: int, world: int = 2) -> tuple[Images, Texts]:
    """This process's rows of a batch of 8, everything where it is alone."""
    own = torch.tensor(MINE[rank] if world == 2 else range(8), device=both[0].image.device)
    return rows(both[0], own), rows(both[1], torch.stack([2 * own, 2 * own + 1], 1).flatten())


def gradients(rank: int, device: torch.device, ways: Iterable[tuple[str, str]]) -> dict[str, Tensor]:
    """Of methods in ways to save memory; and the norm that clipping finds."""
    actual = {}
    for case, kind in ways:
        chunk, recompute = KINDS[kind]
        method = build(case, *deep(case)).double().to(device)
        if recompute:
            recompute_layers(method)
        objective: Any = Objective(method)
        shard(objective, device)
        images, texts = share(exact(batch(8), device), rank, dist.get_world_size())
        with accumulation_step(objective, last=True):
            objective(images, texts, CLOCK, chunk).total.backward()
        parameters = dict(method.named_parameters())
        assert all(isinstance(p, DTensor) for p in parameters.values())
        actual |= {f"{case}/{kind}/{name}": gradient(p).cpu() for name, p in parameters.items()}
        actual[f"{case}/{kind}/norm"] = clip_grad_norm(parameters.values(), 0.1).cpu()
        actual[f"{case}/{kind}/clipped"] = clip_grad_norm(parameters.values(), 1e9).cpu()
    return actual


def gradient(p: nn.Parameter) -> Tensor:
    assert p.grad is not None
    return full_tensor(p.grad)


def sizes(rank: int) -> dict[str, Tensor]:
    """Bytes of this process after a step: parameters, gradients, optimizer state."""
    return {
        f"bytes/{name}": torch.tensor([sum(map(local_bytes, x)) for x in stepped(rank, sharded)])
        for name, sharded in SPREADS.items()
    }


def stepped(rank: int, sharded: bool) -> tuple[list[Tensor], list[Any], list[Tensor]]:
    """What a step leaves in memory."""
    method = build("clip", "image.width=64", "text.width=64", *DEEP)
    objective: Any = Objective(method)
    if sharded:
        shard(objective, CPU)
    optimizer = build_optimizer(method, OptimizerConfig())
    objective = objective if sharded else data_parallel(objective, CPU)
    objective(*share(batch(8), rank), CLOCK).total.backward()
    optimizer.step()
    parameters = list(method.parameters())
    states = [x for state in optimizer.state.values() for x in state.values()]
    return [*parameters], [p.grad for p in parameters], states


def local_bytes(x: Tensor) -> int:
    own = x.to_local() if isinstance(x, DTensor) else x
    return own.numel() * own.element_size()


def unlike_lengths(rank: int) -> dict[str, Tensor]:
    """A step on texts that one process alone would read in one group and the other in two."""
    method = build("clip", "image.depth=2", "text.depth=2").double()
    objective: Any = Objective(method)
    shard(objective, CPU)
    objective(*mixed(rank), CLOCK).total.backward()
    return {f"mixed/{name}": gradient(p) for name, p in method.named_parameters()}


def mixed(rank: int) -> tuple[Images, Texts]:
    """Sixteen images with a text each: all of 24 tokens, or half of them of 2."""
    g = torch.Generator().manual_seed(rank)
    lengths = torch.tensor([24, 24 if rank == 0 else 2]).repeat(8)
    number = torch.arange(16) + 16 * rank
    ids = torch.randint(3, 300, (16, 1, 24), generator=g)
    mask = (torch.arange(24) < lengths[:, None])[:, None]
    pixels = torch.rand(16, 3, 8, 8, generator=g).double()
    return Images(pixels, number), Texts(ids, mask, number, number, torch.zeros_like(number))


def train_all(rank: int, out: Path) -> None:
    """Every run both ways, and runs that go on where another was half way."""
    for name, settings in RUNS.items():
        for spread, sharded in SPREADS.items():
            run = job(out / f"{name}-{spread}", settings, sharded)
            train_loop(run, CPU, None)
            assert all(isinstance(p, DTensor) == sharded for p in run.method.parameters())
    for begun in SPREADS:
        for ended, sharded in SPREADS.items():
            there = out / f"saving-{begun}-then-{ended}"
            if rank == 0:
                shutil.copytree(out / f"saving-{begun}", there)
            dist.barrier()
            train_loop(job(there, RUNS["saving"], sharded), CPU, there / "checkpoints" / "step-00000002")


def job(out: Path, settings: dict[str, Any], sharded: bool) -> Run:
    source = Scenes("scenes:train?count=11", size=32)
    tokenizer = Tokenizer.train((source[i].whole for i in range(11)), 600)
    cfg = TrainConfig.model_validate(SETTINGS | settings | {"fsdp": sharded})
    data = TrainSet(source, tokenizer, TrainTransform(8), TextsConfig(foils=1), context=24, seed=5)
    torch.manual_seed(0)
    return Run(out, made(tokenizer.vocab), data, cfg, 0, 0.0, measured)


def made(vocab: int) -> CLIP:
    """A scale that begins above its maximum, so that clamping shows."""
    deep = {"image": {**TINY["image"], "depth": 2}, "text": {**TINY["text"], "depth": 2, "vocab": vocab}}  # type: ignore[dict-item]
    return CLIP(parse(CLIPConfig, {**TINY, **deep, "scale": 20.0, "max_scale": 9.0}, "test"))


@torch.no_grad()
def measured(method: Method) -> Validation:
    """The other processes call the layers less often; with a sharded method that would hang."""
    assert not method.training
    assert workers() == world_size()
    images, texts = batch(8)
    observed = method.encode_images(images)
    number = 16 if dist.get_rank() == 0 else 8
    read = [method.encode_texts(rows(texts, slice(i, i + 4))) for i in range(0, number, 4)]
    return Validation({"sum": sum(float(method.score(observed, part).sum()) for part in read)})


# What must come of it


def test_shard_and_compile_are_one_or_the_other() -> None:
    with pytest.raises(ValueError, match="fsdp and compile do not go together"):
        TrainConfig.model_validate(SETTINGS | {"fsdp": True, "compile": True})


def started(target: Callable[..., None], world: int, *arguments: object) -> None:
    """Run `target(rank, port, ...)` in so many processes."""
    assert exit_codes(start_ranks(target, world, free_port(), *arguments)) == [0] * world


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sharded")
    started(worker, 2, folder)
    return folder


@pytest.fixture(scope="module")
def actual(out: Path) -> dict[str, Tensor]:
    return load_file(out / "found.safetensors")


def agree(actual: dict[str, Tensor], case: str, kind: str) -> None:
    """The gradients of a case are those of one process with the whole batch, and so is their norm."""
    method = build(case, *deep(case)).double()
    images, texts = exact(batch(8))
    order = torch.tensor(
        [*MINE[0], *MINE[1]]
    )  # of the processes together: slices of it are groups of HiMo-CLIP
    both = torch.stack([2 * order, 2 * order + 1], 1).flatten()
    step(method, rows(images, order), rows(texts, both), CLOCK)
    for name, p in method.named_parameters():
        torch.testing.assert_close(
            actual[f"{case}/{kind}/{name}"],
            p.grad,
            rtol=1e-9,
            atol=1e-12,
            msg=lambda m, name=name: f"{name}: {m}",
        )
    norm = torch.nn.utils.clip_grad_norm_(method.parameters(), 0.1)
    assert norm > 0.1, "else clipping is not tested"
    torch.testing.assert_close(actual[f"{case}/{kind}/norm"], norm)
    assert float(actual[f"{case}/{kind}/clipped"]) == pytest.approx(0.1, rel=1e-4)


@pytest.mark.parametrize(("case", "kind"), WAYS)
def test_two_halves_have_the_gradients_of_one_whole(case: str, kind: str, actual: dict[str, Tensor]) -> None:
    agree(actual, case, kind)


def test_texts_of_unlike_lengths_do_not_make_one_process_wait_for_the_other(
    actual: dict[str, Tensor],
) -> None:
    method = build("clip", "image.depth=2", "text.depth=2").double()
    images, texts = (concat(side) for side in zip(*(mixed(rank) for rank in range(2)), strict=True))
    step(method, images, texts, CLOCK)
    for name, p in method.named_parameters():
        torch.testing.assert_close(actual[f"mixed/{name}"], p.grad, rtol=1e-9, atol=1e-12)


def test_each_process_holds_half(actual: dict[str, Tensor]) -> None:
    parameters, gradients, states = (actual["bytes/sharded"] / actual["bytes/ddp"]).tolist()
    assert parameters == pytest.approx(0.5, abs=0.02)
    assert gradients == pytest.approx(0.5, abs=0.02)
    assert states == pytest.approx(0.5, abs=0.02)


def weights(run: Path, place: str = "last") -> dict[str, Tensor]:
    return load_file(run / place / "model.safetensors")


def close(a: dict[str, Tensor], b: dict[str, Tensor], atol: float) -> None:
    assert a.keys() == b.keys()
    for name, x in a.items():
        torch.testing.assert_close(b[name], x, rtol=0, atol=atol, msg=lambda m, name=name: f"{name}: {m}")


@pytest.mark.parametrize(("name", "atol"), [("plain", 1e-5), ("saving", 1e-5), ("bf16", 1e-3)])
def test_a_sharded_run_has_the_weights_optimizer_state_and_log_of_a_replicated_one(
    out: Path, name: str, atol: float
) -> None:
    ddp, sharded = (out / f"{name}-{spread}" for spread in SPREADS)
    close(weights(ddp), weights(sharded), atol)
    assert float(weights(sharded)["scale.log_scale"].exp()) < 9.001
    slots = [load_file(run / "last" / "optimizer.safetensors") for run in (ddp, sharded)]
    close(*slots, atol=10 * atol)
    assert not any("words" in key or "image.stack.blocks.0" in key for key in slots[1])
    moved = (
        (weights(sharded, "checkpoints/step-00000002")["towers.to_text.weight"])
        - weights(sharded)["towers.to_text.weight"]
    )
    assert moved.abs().max() > 100 * atol / 10, "else nothing was compared"
    for a, b in zip(read_log(ddp), read_log(sharded), strict=True):
        assert a["kind"] == b["kind"]
        if a["kind"] == "train":
            assert b["norm"] == pytest.approx(a["norm"], rel=100 * atol)
            assert b["terms"] == pytest.approx(a["terms"], rel=100 * atol)


def test_a_checkpoint_of_a_sharded_run_is_like_any_other(out: Path) -> None:
    files = [
        sorted(str(p.relative_to(run)) for p in run.rglob("*") if p.is_file())
        for run in (out / "saving-ddp", out / "saving-sharded")
    ]
    assert files[0] == files[1]
    ddp, sharded = (
        json.loads((out / f"saving-{spread}" / "last" / "state.json").read_text()) for spread in SPREADS
    )
    for key in ("version", "ranks", "trained", "untouched"):
        assert sharded[key] == ddp[key]


def test_a_sharded_run_measures_the_weights_that_it_saves(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dist, "get_rank", lambda: 0)
    run = out / "saving-sharded"
    lines = [line for line in read_log(run) if line["kind"] == "validation"]
    assert [line["step"] for line in lines] == [2, 4]
    for line in lines:
        path = run / "checkpoints" / f"step-{line['step']:08d}"
        method = made(len(weights(run)["towers.text.words.weight"])).eval()
        load_weights(path, method)
        assert line["metrics"]["sum"] == pytest.approx(measured(method)[0]["sum"], rel=1e-6)


@pytest.mark.parametrize("begun", SPREADS)
@pytest.mark.parametrize("ended", SPREADS)
def test_a_run_goes_on_from_the_middle_whichever_way_it_was_spread(out: Path, begun: str, ended: str) -> None:
    left_alone, resumed = out / f"saving-{ended}", out / f"saving-{begun}-then-{ended}"
    close(weights(left_alone), weights(resumed), atol=0 if begun == ended else 1e-5)
    for part in ("optimizer.safetensors", "rng.safetensors"):
        slots = [load_file(run / "last" / part) for run in (left_alone, resumed)]
        close(*slots, atol=0 if begun == ended else 1e-4)


ON_GPUS = [(case, kind) for case in ("clip", "maxsim") for kind in KINDS]


def cuda_worker(rank: int, port: int, world: int, out: Path) -> None:
    device = torch.device("cuda", rank)
    torch.cuda.set_device(device)
    start = f"tcp://127.0.0.1:{port}"
    dist.init_process_group("nccl", init_method=start, rank=rank, world_size=world, timeout=LIMIT)
    actual = gradients(rank, device, ON_GPUS)
    if rank == 0:
        save_file({name: x.contiguous() for name, x in actual.items()}, out)
    dist.barrier()
    dist.destroy_process_group()


@pytest.mark.gpu
def test_shards_on_gpus_have_the_gradients_of_one_cpu(tmp_path: Path) -> None:
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    world = min(2, torch.cuda.device_count())
    started(cuda_worker, world, world, tmp_path / "found.safetensors")
    actual = load_file(tmp_path / "found.safetensors")
    for case, kind in ON_GPUS:
        agree(actual, case, kind)
