"""On a GPU: the same values and gradients as on the CPU, and superpixels that do not wait for the device.

All skip without CUDA. What waits is found by torch, which can raise where the host reads from the device.
"""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from make import CASES, CLOCK, build
from make import batch as batch_of
from torch import Tensor

from grainline import kernels as launch
from grainline.encoders.superpixels import SuperpixelConfig, Superpixels
from grainline.losses.calibrated import beta_bce, beta_ce_both
from grainline.losses.text_conditioned import part_loss, part_pairs
from grainline.losses.tiled import scores
from grainline.losses.tiled.pair_loss import vocabulary_loss
from grainline.losses.tiled.pair_mask import PairMatrix, RowIds, row_ids
from grainline.losses.tiled.scores import half_products
from grainline.methods.base import Method
from grainline.nn import superpixels
from grainline.nn.grouping import farthest_points
from grainline.nn.pooling import ConditionedPool, unit
from grainline.nn.superpixels import kmeans
from grainline.training.step import Objective, step
from grainline.types import Images, Texts, to

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]


@contextmanager
def unwaited() -> Iterator[None]:
    """Raise where the host waits for the device."""
    torch.cuda.synchronize()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that it does not find every wait
            torch.cuda.set_sync_debug_mode("error")
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def prepared(case: str, device: str, dtype: torch.dtype = torch.float64) -> tuple[Method, Images, Texts]:
    images, texts = batch_of(6)
    images = images._replace(pixels=images.pixels.to(dtype))
    return build(case).to(dtype).to(device), to(images, device), to(texts, device)


def gradients(method: Method) -> dict[str, Tensor]:
    return {name: p.grad.cpu() for name, p in method.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("chunked", [False, True])
def test_a_step_has_the_loss_and_the_gradients_of_the_cpu(case: str, chunked: bool) -> None:
    results = []
    for device in ("cpu", "cuda"):
        method, images, texts = prepared(case, device)
        terms = step(method, images, texts, CLOCK, 3 if chunked else None)
        results.append(({name: term.cpu() for name, term in terms.items()}, gradients(method)))
    for on_cpu, on_gpu in zip(*results, strict=True):
        torch.testing.assert_close(on_gpu, on_cpu, rtol=1e-6, atol=1e-8, check_dtype=False)


@pytest.mark.parametrize("case", CASES)
def test_scores_are_those_of_the_cpu(case: str) -> None:
    results = []
    for device in ("cpu", "cuda"):
        method, images, texts = prepared(case, device)
        with torch.no_grad():
            results.append(method.score(method.encode_images(images), method.encode_texts(texts)).cpu())
    torch.testing.assert_close(results[1], results[0], rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("kind", ["kmeans", "grid"])
def test_superpixels_are_those_of_the_cpu_and_wait_for_nothing(kind: str) -> None:
    pixels = torch.randint(0, 256, (5, 3, 64, 64), dtype=torch.uint8)
    here, there = Superpixels(SuperpixelConfig(kind=kind, cell=8), 64), pixels.cuda()
    expected = here(pixels)
    here(there)  # tables are copied on first use
    with unwaited():
        result = here(there)
    assert (result.cpu() == expected).float().mean() > 0.99  # ties of float32 aside, and pieces cut by them


def test_many_images_take_the_same_superpixels_as_few() -> None:
    pixels = torch.randint(0, 256, (70, 3, 32, 32), dtype=torch.uint8).cuda()
    assert torch.equal(kmeans(pixels, 8)[68:], kmeans(pixels[68:], 8))


def test_picking_waits_for_nothing() -> None:
    x = torch.randn(8, 197, 64).cuda()
    valid = (torch.rand(8, 197) < 0.9).cuda()
    farthest_points(x, valid, 16)
    with unwaited():
        farthest_points(x, valid, 16)


@pytest.mark.parametrize("negatives", ["all", "sampled"])
@pytest.mark.parametrize(("heads", "slots"), [(8, 64), (1, 64), (8, 196)])
def test_losses_in_half_precision_are_near_and_the_same_bits_in_each_run(
    negatives: Any, heads: int, slots: int
) -> None:
    """At sizes of training, against the CPU in float32."""
    runs: list[list[Tensor]] = []
    for device, half in (("cpu", False), ("cuda", True), ("cuda", True)):
        torch.manual_seed(0)
        pool = ConditionedPool(512, heads)
        segments, texts = torch.randn(64, slots, 512), torch.randn(256, 512)
        mask = torch.rand(64, slots) > 0.1
        learnt = [x.to(device).requires_grad_() for x in (segments, texts)]
        scale, bias = (torch.tensor([x], device=device) for x in (14.3, -10.0))
        place = torch.arange(256, device=device)
        pairs = part_pairs(row_ids(place[:64], place[:64]), row_ids(place, place // 4), negatives, CLOCK)
        with half_products(half):
            loss = part_loss(
                pool.to(device), (learnt[0], mask.to(device)), learnt[1], pairs, scale, bias
            ).total
            grads = torch.autograd.grad(loss, [*learnt, *pool.parameters()])
        runs.append([x.detach().cpu() for x in (loss, *grads)])
    assert not launch._refused
    expected, one, again = runs
    assert all(torch.equal(a, b) for a, b in zip(one, again, strict=True))
    largest = max(float(x.norm()) for x in expected[1:])
    for a, b in zip(one, expected, strict=True):
        assert float((a - b).norm()) <= 2e-2 * float(b.norm()) + 1e-3 * largest


@pytest.mark.parametrize("heads", [8, 1])
def test_the_memory_of_a_loss_is_linear_in_the_batch(heads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scores, "ROOM", 2**24)  # of a tile, at any batch
    pool = ConditionedPool(512, heads).cuda()

    def peak(number: int) -> int:
        segments, texts = torch.randn(number, 64, 512).cuda(), torch.randn(4 * number, 512).cuda()
        place = torch.arange(4 * number).cuda()
        pairs = part_pairs(row_ids(place[:number], place[:number]), row_ids(place, place // 4), "all", CLOCK)
        scale, bias = torch.tensor([14.3]).cuda(), torch.tensor([-10.0]).cuda()
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        with half_products(True):
            of_images = segments.requires_grad_(), None
            part_loss(pool, of_images, texts.requires_grad_(), pairs, scale, bias).total.backward()
        return torch.cuda.max_memory_allocated() - before

    peak(64)  # what libraries take once
    assert peak(512) <= 2.2 * peak(256)


@pytest.mark.parametrize("form", ["ce", "bce"])
def test_losses_over_inner_products_are_near_and_the_same_bits_in_each_run(form: str) -> None:
    """At a size of training: 256 images with 36 texts each, in four groups; against float32 by torch."""
    place = torch.arange(9216).cuda()
    keys = RowIds(place, place // 36, place // 2304, place % 36)
    pairs = PairMatrix(keys, keys, sibling=0.5, decay=0.1)
    v, t = (unit(torch.randn(9216, 512).cuda()) for _ in range(2))
    sides = [x.requires_grad_() for x in (v, unit(t + v))]

    def once(half: bool) -> list[Tensor]:
        with half_products(half):
            scaled = 14.3 * sides[0]
            if form == "ce":
                means = beta_ce_both(scaled, sides[1], pairs)
            else:
                means = (beta_bce(scaled, sides[1], pairs, "pairs"),)
        loss = sum(((i + 1) * mean.total / mean.number for i, mean in enumerate(means)), v.new_zeros(()))
        return [loss.detach(), *torch.autograd.grad(loss, sides)]

    result, again = once(True), once(True)
    assert not launch._refused
    assert all(map(torch.equal, result, again))
    for a, b in zip(result, once(False), strict=True):
        assert float((a - b).norm()) <= 1e-2 * float(b.norm())


def test_the_loss_over_a_vocabulary_is_near_and_the_same_bits_in_each_run() -> None:
    """In several tiles, in which entries are the target of many tokens."""
    hidden, table = torch.randn(3000, 512), 0.1 * torch.randn(49_408, 512)
    target = torch.randint(64, (3000,))

    def once(device: str, half: bool) -> list[Tensor]:
        sides = [x.to(device).requires_grad_() for x in (hidden, table)]
        with half_products(half):
            loss = vocabulary_loss(*sides, target.to(device))
        return [x.detach().cpu() for x in (loss.total, *torch.autograd.grad(loss.total, sides))]

    result, again = once("cuda", True), once("cuda", True)
    assert all(map(torch.equal, result, again))
    for a, b in zip(result, once("cpu", False), strict=True):
        assert float((a - b).norm()) <= 1e-2 * float(b.norm())


def test_superpixels_by_a_kernel_are_those_by_products() -> None:
    pixels = torch.nn.functional.interpolate(torch.rand(8, 3, 14, 14), 224, mode="bilinear").cuda()
    from grainline.kernels.kmeans import connect

    pixels = (255 * pixels).to(torch.uint8)
    expected, result = superpixels._by_products(pixels, 16, 10.0, 10), kmeans(pixels, 16)
    assert not launch._refused
    fit = superpixels._fit(pixels, 16, 10.0, 10)
    label = superpixels.hard(fit, 16)
    one_piece = superpixels.connected(label.cpu(), fit.cpu(), 16)
    connect(label, fit, 16)
    assert torch.equal(label.cpu(), one_piece)
    assert torch.equal(result, kmeans(pixels, 16))
    same = (result == expected).double().mean()
    assert float(same) > 0.995  # others are as near, but for rounding, and pieces are cut by them


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_step_in_low_precision_is_near_that_of_float64(dtype: torch.dtype) -> None:
    method, images, texts = prepared("caft-segments", "cuda")
    with torch.no_grad():
        expected = Objective(method)(images, texts, CLOCK).total
        method, images = method.float(), images._replace(pixels=images.pixels.float())
        result = Objective(method, dtype)(images, texts, CLOCK).total
    near = 1e-4 if dtype == torch.float32 else 2e-2
    torch.testing.assert_close(result, expected, rtol=near, atol=near, check_dtype=False)
