"""Two processes with half of the batch each compute the gradients of one process with all of it."""

import os
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from make import CASES, CLOCK, VOCAB, batch, build
from processes import exit_codes, free_port, start_ranks
from safetensors.torch import load_file, save_file
from torch.nn.parallel import DistributedDataParallel

from grainline.distributed import all_reduce_mean, ddp_mean, gather
from grainline.methods import METHODS
from grainline.training.step import Objective, step
from grainline.types import Encoded, Images, Mean, Texts, rows

KINDS = {"whole": None, "cached": 3}
WAYS = [(case, kind) for case in CASES for kind in KINDS if kind == "whole" or case in METHODS]
"""Every method in chunks too; test_contract has its other settings in chunks."""
DESCRIBED = ("seps", "seps-dense", "seps-joint")
MINE = ([0, 1, 2, 4], [3, 5, 6, 7])  # both ranks hold padding texts, and not equally many


def exact(both: tuple[Images, Texts]) -> tuple[Images, Texts]:
    """Images in float64, so that the order of a sum does not show."""
    return both[0]._replace(pixels=both[0].pixels.double()), both[1]


def described(rank: int | None = None) -> tuple[Images, Texts]:
    """The batch with descriptions of up to 3 windows of 7 words on the first rank, and 2 of 4 on the second.

    rank  whose rows to give, with windows and words no longer than its own, as a loader makes them; None: all
    """
    images, texts = exact(batch(8))
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(3, VOCAB, (8, 3, 7), generator=generator)
    length = torch.tensor(  # words of each window of each image
        [[7, 2, 5], [3, 0, 0], [7, 6, 0], [4, 2, 0], [1, 7, 1], [2, 0, 0], [3, 3, 0], [1, 4, 0]]
    )
    mask = torch.arange(7) < length[..., None]
    image = images.image
    images = images._replace(dense=Texts(ids * mask, mask, image, image, torch.zeros_like(image)))
    order = torch.tensor([*MINE[0], *MINE[1]] if rank is None else MINE[rank])
    images = rows(images, order)
    dense = images.dense
    assert dense is not None
    there = dense.mask.any(0)  # [S, L]
    parts, words = (int(there.any(d).nonzero().max()) + 1 for d in (1, 0))
    assert rank is None or (parts, words) == ((3, 7), (2, 4))[rank]
    short = dense._replace(ids=dense.ids[:, :parts, :words], mask=dense.mask[:, :parts, :words])
    return images._replace(dense=short), rows(texts, torch.stack([2 * order, 2 * order + 1], 1).flatten())


def worker(rank: int, port: int, out: Path) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    grads = {}
    ours = torch.tensor(MINE[rank])
    images, texts = exact(batch(8))
    images, texts = rows(images, ours), rows(texts, torch.stack([2 * ours, 2 * ours + 1], 1).flatten())
    for case, kind in WAYS:
        method = build(case).double()
        objective: Any = DistributedDataParallel(Objective(method))
        objective(images, texts, CLOCK, KINDS[kind]).total.backward()
        grads |= {f"{case}/{kind}/{name}": p.grad.clone() for name, p in method.named_parameters()}
    for case, kind in product(DESCRIBED, KINDS):
        method = build(case).double()
        objective = DistributedDataParallel(Objective(method))
        loss = objective(*described(rank), CLOCK, KINDS[kind])
        loss.total.backward()
        name = f"described/{case}/{kind}"
        grads |= {f"{name}/{of}": p.grad.clone() for of, p in method.named_parameters()}
        grads[f"{name}/loss"] = all_reduce_mean(loss.total)
    grads |= pieces(rank)
    if rank == 0:
        save_file(grads, out)
    dist.barrier()
    dist.destroy_process_group()
    # DistributedDataParallel keeps gloo's threads alive beyond that (torch 2.13), and where one still holds a
    # tensor when the interpreter ends, it aborts the process: 1 run of some 15. All is said, so end here.
    os._exit(0)


def pieces(rank: int) -> dict[str, torch.Tensor]:
    """What gather, finish and average give where the ranks hold different things."""
    x = torch.full((2, 3), float(rank), requires_grad=True)
    ids = torch.tensor([2 * rank, 2 * rank + 1])
    encoded = Encoded(x, torch.ones(2, 4, 3), torch.ones(2, 4, dtype=torch.bool), ids, ids)
    everyone = gather(encoded, ("vector", "item", "image"))
    with_tokens = gather(encoded, ("vector", "tokens", "mask", "item", "image"))
    unequal = torch.full((2, 3 + rank, 3), 1.0, requires_grad=True)
    long = gather(
        Encoded(x.detach(), unequal, torch.ones(2, 3 + rank, dtype=torch.bool), ids, ids),
        ("vector", "tokens", "mask"),
    )
    (long.tokens * (rank + 1)).sum().backward()
    assert unequal.grad is not None
    (everyone.vector * torch.arange(1.0, 5.0)[:, None] * (rank + 1)).sum().backward()
    assert x.grad is not None
    y, z = (torch.full((n, 3), 1.0, requires_grad=True) for n in (2, 4))
    other = 1.0 * z  # made before the gathering, so that its backward comes after it
    (gather(encoded._replace(vector=y), ("vector",)).vector + other).mul(torch.ones(4, 3)).sum().backward()
    assert y.grad is not None
    assert z.grad is not None
    return {
        "gradient through a sum": y.grad,
        "gradient of what was added": z.grad,
        "gathered items": everyone.item,
        "gathered tokens": torch.tensor([everyone.tokens.shape[1], with_tokens.tokens.shape[1]]),
        "gathered mask": with_tokens.mask,
        "mask of unequal lengths": long.mask,
        "tokens of unequal lengths": long.tokens.detach(),
        "gradient of unequal lengths": unequal.grad,
        "gathered gradient": x.grad,
        "finished": all_reduce_mean(ddp_mean(Mean(torch.tensor(6.0 * rank), torch.tensor(1 + rank)))),
    }


@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory: pytest.TempPathFactory) -> dict[str, torch.Tensor]:
    out = tmp_path_factory.mktemp("ranks") / "grads.safetensors"
    assert exit_codes(start_ranks(worker, 2, free_port(), out)) == [0, 0]
    return load_file(out)


@pytest.mark.parametrize("case", CASES)
def test_two_ranks_are_one(case: str, two_ranks: dict[str, torch.Tensor]) -> None:
    method = build(case).double()
    images, texts = exact(batch(8))
    order = torch.tensor([*MINE[0], *MINE[1]])  # of the ranks together: slices of it are groups of HiMo-CLIP
    both = torch.stack([2 * order, 2 * order + 1], 1).flatten()
    step(method, rows(images, order), rows(texts, both), CLOCK)
    kinds = [kind for of, kind in WAYS if of == case]
    for kind, (name, p) in product(kinds, method.named_parameters()):
        key = f"{case}/{kind}/{name}"
        torch.testing.assert_close(
            two_ranks[key], p.grad, rtol=1e-9, atol=1e-12, msg=lambda m, key=key: f"{key}: {m}"
        )


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("case", DESCRIBED)
def test_descriptions_of_other_lengths_on_each_rank_change_nothing(
    case: str, kind: str, two_ranks: dict[str, torch.Tensor]
) -> None:
    method = build(case).double()
    loss = Objective(method)(*described(), CLOCK)
    loss.total.backward()
    expected = {name: p.grad for name, p in method.named_parameters()} | {"loss": loss.total.detach()}
    assert loss.total > 0
    for name, value in expected.items():
        actual = two_ranks[f"described/{case}/{kind}/{name}"]
        torch.testing.assert_close(
            actual, value, rtol=1e-9, atol=1e-12, msg=lambda m, name=name: f"{name}: {m}"
        )
    plain = build(case).double()  # and the descriptions do change something
    images, texts = described()
    assert images.dense is not None
    other = rows(images.dense, torch.arange(8).flip(0))
    assert Objective(plain)(images._replace(dense=other), texts, CLOCK).total != loss.total


def test_gather_keeps_rank_order_and_leaves_out_tokens_that_no_loss_reads(
    two_ranks: dict[str, torch.Tensor],
) -> None:
    assert two_ranks["gathered items"].tolist() == [0, 1, 2, 3]
    assert two_ranks["gathered tokens"].tolist() == [0, 4]
    assert two_ranks["gathered mask"].dtype == torch.bool
    assert two_ranks["gathered mask"].all()


def test_tokens_of_unequal_lengths_are_filled_up_to_the_longest_of_all_ranks(
    two_ranks: dict[str, torch.Tensor],
) -> None:
    expected = torch.tensor([[True] * 3 + [False]] * 2 + [[True] * 4] * 2)
    assert torch.equal(two_ranks["mask of unequal lengths"], expected)
    assert torch.equal(two_ranks["tokens of unequal lengths"], expected[..., None].expand(-1, -1, 3).float())
    assert torch.equal(two_ranks["gradient of unequal lengths"], torch.full((2, 3, 3), 3.0))


def test_gather_sums_what_both_ranks_say_about_my_rows(two_ranks: dict[str, torch.Tensor]) -> None:
    # rank 0 weighs rows by 1, 2, 3, 4, rank 1 by twice that; rank 0 holds the first two rows
    assert two_ranks["gathered gradient"].tolist() == [[3.0] * 3, [6.0] * 3]


def test_gather_leaves_the_gradients_of_others_alone(two_ranks: dict[str, torch.Tensor]) -> None:
    # A sum hands one and the same tensor to both of its terms.
    assert two_ranks["gradient through a sum"].tolist() == [[2.0] * 3] * 2
    assert two_ranks["gradient of what was added"].tolist() == [[1.0] * 3] * 4


def test_finish_averages_over_rows_and_not_over_ranks(two_ranks: dict[str, torch.Tensor]) -> None:
    assert float(two_ranks["finished"]) == pytest.approx(6.0 / 3)
