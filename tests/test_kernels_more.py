"""Kernels of superpixels and of selected patches in Triton's interpreter, against torch and loops."""

from typing import Any

import pytest
import torch
from test_kernels import interpreted
from test_superpixel import FITS, image, slow_connected, slow_kmeans, some_fits

from grainline.kernels import launch
from grainline.nn import superpixels
from grainline.nn.superpixels import hard, kmeans


def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The kernels that are called from now on. One that is refused raises."""
    names: list[str] = []

    def recorded(name: str, kernel: Any, _: Any) -> Any:
        names.append(name)
        return kernel()

    monkeypatch.setattr(launch, "run", recorded)
    return names


@pytest.fixture
def called(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    return calls(monkeypatch)


@interpreted
@pytest.mark.parametrize(("cell", "size", "steps"), [(4, 12, 3), (5, 15, 2), (2, 34, 2), (33, 33, 1)])
def test_superpixels_by_a_kernel_are_those_by_products(
    cell: int, size: int, steps: int, called: list[str]
) -> None:
    pixels = image(size, seed=3)
    expected, found = superpixels._by_products(pixels, cell, 10.0, steps), kmeans(pixels, cell, 10.0, steps)
    assert called == ["kmeans"]
    assert torch.equal(found, expected)
    if size < 20:
        assert found[1].tolist() == slow_kmeans(pixels[1], cell, 10.0, steps)
        assert torch.equal(kmeans(pixels / 255, cell, 10.0, steps), found)


@interpreted
@FITS
def test_superpixels_are_connected_by_a_kernel_as_by_flood_fill(
    cell: int, grid: int, values: int, smooth: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    from grainline.kernels import kmeans as kernels

    block = 32 if cell * grid < 16 else 256
    monkeypatch.setattr(kernels, "PIECES", (block, kernels.PIECES[1]))
    monkeypatch.setattr(kernels, "JOIN", (block, kernels.JOIN[1]))
    fit = some_fits(2, cell, grid, values, smooth)
    label = hard(fit, cell)
    expected = [slow_connected(label[i].tolist(), fit[i].tolist(), cell) for i in range(2)]
    kernels.connect(label, fit, cell)
    assert label.tolist() == expected


@interpreted
def test_superpixels_by_a_kernel_break_ties_and_keep_centres_without_pixels(called: list[str]) -> None:
    uniform = torch.full((1, 3, 9, 9), 77, dtype=torch.uint8)
    uniform[..., 4, 4] = 0
    found = kmeans(uniform, 3, 0.0, 1)  # place counts nothing
    assert found[0, 0, ::3].tolist() == [0, 0, 1], "the lower number of the cells that have its colour"
    assert torch.equal(found, superpixels._by_products(uniform, 3, 0.0, 1))
    generator = torch.Generator().manual_seed(364)  # one centre loses its last pixel
    noise = torch.randint(0, 256, (1, 3, 9, 9), generator=generator, dtype=torch.uint8)
    assert kmeans(noise, 3, 1.0, 5)[0].tolist() == slow_kmeans(noise[0], 3, 1.0, 5)
    assert called == ["kmeans"] * 2
    with pytest.raises(RuntimeError, match="don't multiply up"):
        kmeans(noise[..., :6], 3, 1.0, 1)
    assert len(called) == 2, "images are squares"
