"""Benchmarks that import much of the package still run, in sizes that take a second, and are right."""

import gc
from types import SimpleNamespace

import pytest
import torch

from benchmarks import bench_pairs, bench_seps
from benchmarks.bench_gpu_steps import tflop
from benchmarks.harness import seconds


def test_pairs_of_seps_in_tiles_are_those_of_the_loop_over_captions() -> None:
    batch = bench_seps.Batch(4, 6).double()
    assert bench_seps._apart(batch).amax() < 1e-11
    batch = bench_seps.Batch(5, 5).double()
    losses = bench_seps.tiled_loss(batch), bench_seps.looped_loss(batch)
    torch.testing.assert_close(*losses, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("sizes", [(72,), (72, 144)])
def test_growth_is_measured_over_two_sizes_or_not(
    sizes: tuple[int, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bench_pairs, "fresh_peak", lambda _module, _way, number: SimpleNamespace(more=number))
    bench_pairs.main(["--repeats", "1", "--sizes", *map(str, sizes)])
    growth = [line for line in capsys.readouterr().out.splitlines() if "grows with" in line]
    assert bool(growth) == (len(sizes) > 1)


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
