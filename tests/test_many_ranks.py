"""Any method trains alike on one, two and three processes: losses, gradients, noise of layers."""

import os
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import tuning
from make import batch, build
from processes import exit_codes, start_ranks
from safetensors.torch import load_file, save_file
from torch import Tensor

from grainline.distributed import all_reduce_mean
from grainline.methods import METHODS
from grainline.methods.base import Method
from grainline.training.step import LoraConfig, Objective, add_lora, recompute_layers
from grainline.types import Clock, Images, Texts, rows

WORLDS = (3, 2)
LIMIT = timedelta(seconds=120)  # for one exchange
WHOLE = 12  # images over all processes


DROP = ("image.drop_path=0.3", "text.drop_path=0.3")
OTHERS = {
    "caft": ("heads=2", "composer.heads=2", "composer.drop_path=0.3"),
    "tgt": ("text.groups=3", "text.later=1", "text.position_dropout=0.5"),
    "seps": ("keep_ratio=0.75", "aggregation_ratio=0.7"),
    "laps": ("keep_ratio=0.75", "aggregation_ratio=0.7"),
}
NOISY = {name: (name, (*DROP, *OTHERS.get(name, ()))) for name in METHODS} | {
    "caft-segments": ("caft-segments", (*DROP, "image.dropout=0.3")),
    "flair-segments": ("flair-segments", ("image.dropout=0.3",)),
    "tgt-minimal": ("tgt-minimal", DROP),
}
LIBRARY = {f"library {case}": case for case in ("clip", "siglip", "vit and bert", "swin")}
KEPT = {1: (None, False), 3: (None, True), 2: (2, True)}
"""Chunks, and whether activations are computed again, by the number of processes."""


def noisy(case: str) -> Method:
    """A method with all the noise that it can have; layers of the library have dropout of their own."""
    if case == "lora":
        method = build("clip")
        add_lora(method, LoraConfig(rank=2, dropout=0.3))
        with torch.no_grad():
            for name, parameter in method.named_parameters():
                if "lora_B" in name:
                    parameter.add_(0.1)  # they begin with zeros, behind which no noise shows
        return method
    if case in LIBRARY:
        return tuning.method(LIBRARY[case], noise=0.3)
    name, changes = NOISY[case]
    return build(name, *changes)


def noisy_batch(case: str, method: Method, rank: int, world: int) -> tuple[Images, Texts]:
    """This process's rows, in float64, its texts no longer than the longest of them."""
    if case in LIBRARY:
        torch.manual_seed(0)
        images, texts = tuning.batch(method, WHOLE)
        ours = texts_of = torch.arange(rank, WHOLE, world)
    else:
        images, texts = batch(WHOLE)
        texts.ids[3, 1], texts.mask[3, 1] = texts.ids[0, 1], texts.mask[0, 1]  # one part of two images
        texts.ids[20, 0], texts.mask[20, 0] = texts.ids[0, 1], texts.mask[0, 1]
        dense = images.dense
        assert dense is not None
        two = dense._replace(ids=dense.ids.view(WHOLE, 2, 3), mask=dense.mask.view(WHOLE, 2, 3))
        images = images._replace(dense=two)
        ours = torch.arange(rank, WHOLE, world)
        texts_of = torch.stack([2 * ours, 2 * ours + 1], 1).flatten()
    images, texts = rows(images, ours), rows(texts, texts_of)
    longest = int(texts.mask.sum(-1).max())
    texts = texts._replace(ids=texts.ids[..., :longest], mask=texts.mask[..., :longest])
    return images._replace(pixels=images.pixels.double()), texts


def trained(case: str, rank: int, world: int, training: bool = True) -> dict[str, Tensor]:
    """Terms of the loss in two steps, over all processes."""
    chunk, recompute = KEPT[world]
    method = noisy(case).double().train(training)
    images, texts = noisy_batch(case, method, rank, world)
    if recompute:
        recompute_layers(method)
    objective, actual = Objective(method), {}
    for step in range(2):
        loss = objective(images, texts, Clock(step, 0.5, seed=7), chunk)
        loss.total.backward()
        actual |= {f"{case}/{step}/{name}": all_reduce_mean(x) for name, x in loss.terms.items()}
        learning = [p for p in method.parameters() if p.requires_grad]
        grads = [p.grad for p in learning if p.grad is not None]
        assert len(grads) == len(learning)
        mean_grads = all_reduce_mean(torch.cat([grad.flatten() for grad in grads]))
        with torch.no_grad():
            for p, grad in zip(learning, mean_grads.split([p.numel() for p in learning]), strict=True):
                p -= 0.05 * grad.view_as(p)
                p.grad = None
    return actual


TRAINED = (*NOISY, *LIBRARY, "lora")


def worker(rank: int, out: Path) -> None:
    """One of three processes; it also takes part where fewer of them work."""
    torch.set_num_threads(1)
    for world in WORLDS:
        if rank < world:
            start = f"file://{out}/start-{world}"
            dist.init_process_group("gloo", init_method=start, rank=rank, world_size=world, timeout=LIMIT)
            actual = {name: x for case in TRAINED for name, x in trained(case, rank, world).items()}
            if rank == 0:
                save_file(actual, out / f"{world}.safetensors")
            dist.barrier()
            dist.destroy_process_group()
    os._exit(0)  # as in test_two_ranks


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("ranks")
    assert set(exit_codes(start_ranks(worker, max(WORLDS), place))) == {0}
    return place


@pytest.mark.parametrize("case", TRAINED)
def test_any_number_of_processes_chunks_and_passes_has_the_noise_of_one(case: str, out: Path) -> None:
    alone, calm = trained(case, 0, 1), trained(case, 0, 1, training=False)
    first = [name for name in alone if f"{case}/0/" in name]
    assert any(not torch.allclose(alone[name], calm[name], rtol=1e-3) for name in first), "without noise"
    for world in WORLDS:
        actual = load_file(out / f"{world}.safetensors")
        for name, x in alone.items():
            words = f"{world} processes, {name}"
            torch.testing.assert_close(
                actual[name], x, rtol=1e-6, atol=1e-9, msg=lambda m, words=words: f"{words}: {m}"
            )
