"""Losses with sub-captions have the same value and gradients on one, two, three and four processes."""

import multiprocessing
import os
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from make import CLOCK, batch, build
from safetensors.torch import load_file, save_file
from torch import Tensor

from grainline.dist import average
from grainline.train.step import Objective
from grainline.types import Images, Texts, rows

CASES = {
    f"{case}/{negatives}": (case, f"negatives={negatives}")
    for case in ("caft", "caft-segments", "flair")
    for negatives in ("sampled", "all")
}
WORLDS = (4, 3, 2)
LIMIT = timedelta(seconds=120)  # for one exchange
WHOLE = 12  # pictures over all processes


def share(rank: int, world: int) -> tuple[Images, Texts]:
    """Every so many-th picture of a batch, in float64: parts of texts are not equally many then."""
    images, texts = batch(WHOLE)
    mine = torch.arange(rank, WHOLE, world)
    images = images._replace(pixels=images.pixels.double())
    return rows(images, mine), rows(texts, torch.stack([2 * mine, 2 * mine + 1], 1).flatten())


def measured(case: str, both: tuple[Images, Texts]) -> dict[str, Tensor]:
    """Terms of the loss and gradients over all processes: the mean of what each of them has."""
    name, change = CASES[case]
    method = build(name, change).double()
    loss = Objective(method)(*both, CLOCK, None)
    loss.total.backward()
    found = {f"{case}/term {term}": average(x) for term, x in loss.terms.items()}
    for parameter, x in method.named_parameters():
        assert x.grad is not None, parameter
        found[f"{case}/{parameter}"] = average(x.grad)
    return found


def worker(rank: int, out: Path) -> None:
    """One of four processes; it also takes part where fewer of them work."""
    torch.set_num_threads(1)
    for world in WORLDS:
        if rank < world:
            start = f"file://{out}/start-{world}"
            dist.init_process_group("gloo", init_method=start, rank=rank, world_size=world, timeout=LIMIT)
            found = {name: x for case in CASES for name, x in measured(case, share(rank, world)).items()}
            if rank == 0:
                save_file(found, out / f"{world}.safetensors")
            dist.barrier()
            dist.destroy_process_group()
    os._exit(0)  # as in test_two_ranks


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("ranks")
    context = multiprocessing.get_context("spawn")
    ranks = [context.Process(target=worker, args=(rank, place)) for rank in range(max(WORLDS))]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join(timeout=600)
        assert rank.exitcode == 0
    return place


@pytest.mark.parametrize("case", CASES)
def test_any_number_of_processes_has_the_losses_and_gradients_of_one(case: str, out: Path) -> None:
    alone = measured(case, share(0, 1))
    assert alone[f"{case}/term {'part' if case.startswith('caft') else 'pooled'}"] > 0
    for world in WORLDS:
        found = load_file(out / f"{world}.safetensors")
        for name, x in alone.items():
            told = f"{world} processes, {name}"
            torch.testing.assert_close(
                found[name], x, rtol=1e-9, atol=1e-12, msg=lambda m, told=told: f"{told}: {m}"
            )
