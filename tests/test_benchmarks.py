"""Benchmarks that import much of the package still run, in sizes that take a second, and are right."""

import gc

import pytest
import torch

from benchmarks.bench_gpu_steps import tflop
from benchmarks.harness import seconds


def test_operations_of_products_that_are_added_count() -> None:
    """A sum with a type of its own has one argument more, which torch's own count takes for a shape."""
    with torch.device("meta"):
        rows, cols, total = torch.empty(4, 8), torch.empty(8, 16), torch.empty(4, 16)
    product = 2 * 4 * 8 * 16
    for call in (
        lambda: rows @ cols,
        lambda: torch.addmm(total, rows, cols),
        lambda: torch.addmm(total, rows.half(), cols.half(), out_dtype=torch.float32),
        lambda: total.addmm_(rows, cols),
        lambda: torch.baddbmm(total[None], rows[None], cols[None]),
    ):
        assert tflop(call) * 1e12 == pytest.approx(product)


def test_no_garbage_is_collected_while_a_call_is_timed() -> None:
    collects: list[bool] = []
    seconds(lambda: collects.append(gc.isenabled()))
    assert collects == [False]
