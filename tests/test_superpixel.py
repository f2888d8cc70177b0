"""Superpixels: the contract, pooling over them, k-means, and the network."""

import pytest
import torch
from torch import Tensor

from grainline.nn.superpixel import Cells, inside, label_of, neighbour_of, one_hot, pool_cells, square_grid


def some_labels(number: int, size: int, cell: int, seed: int = 0) -> Tensor:
    """Labels at random under the contract."""
    weight = torch.rand((number, 9, size, size), generator=torch.Generator().manual_seed(seed))
    return label_of((weight * inside(size, cell)).argmax(1), cell)


def some_association(number: int, size: int, cell: int) -> Tensor:
    weight = torch.rand((number, 9, size, size), generator=torch.Generator().manual_seed(7))
    return (weight + 0.01).masked_fill(~inside(size, cell), 0.0)


def slow_pool(features: Tensor, weight: Tensor, cell: int) -> tuple[Tensor, Tensor]:
    """The docstring of `pool_cells`, pixel by pixel, in float64."""
    number, channels = features.shape[:2]
    size, grid = weight.shape[-1], weight.shape[-1] // cell
    stride = size // features.shape[-1]
    total = torch.zeros(number, grid * grid, channels, dtype=torch.float64)
    mass = torch.zeros(number, grid * grid, dtype=torch.float64)
    for n in range(number):
        for y in range(size):
            for x in range(size):
                for a in range(9):
                    row, column = y // cell + a // 3 - 1, x // cell + a % 3 - 1
                    if 0 <= row < grid and 0 <= column < grid:
                        w = weight[n, a, y, x].double()
                        total[n, row * grid + column] += w * features[n, :, y // stride, x // stride]
                        mass[n, row * grid + column] += w
    return total / mass[..., None].clamp(min=1e-30), mass


def test_neighbours_are_numbered_row_by_row() -> None:
    size, cell = 12, 4
    label = torch.full((1, size, size), 4)
    expected = [[8, 7, 6], [5, 4, 3], [2, 1, 0]]  # the middle cell, as seen from each of the nine
    found = neighbour_of(label, cell)
    for row in range(3):
        for column in range(3):
            corner = found[0, 4 * row : 4 * row + 4, 4 * column : 4 * column + 4]
            assert (corner == expected[row][column]).all()


def test_labels_and_neighbours_are_inverse() -> None:
    label = some_labels(3, 20, 4)
    assert torch.equal(label_of(neighbour_of(label, 4), 4), label)
    assert set(label.flatten().tolist()) == set(range(25))


def test_inside_counts_the_cells_around() -> None:
    there = inside(16, 4)
    assert there.shape == (9, 16, 16)
    assert int(there[:, 0, 0].sum()) == 4
    assert there[[4, 5, 7, 8], 0, 0].all()
    assert int(there[:, 0, 5].sum()) == 6
    assert int(there[:, 5, 6].sum()) == 9
    assert there[[0, 1, 3, 4], 15, 15].all()
    assert int(there[:, 15, 15].sum()) == 4


@pytest.mark.parametrize(
    ("size", "cell", "side"), [(12, 4, 12), (12, 4, 6), (12, 4, 3), (8, 8, 2), (12, 6, 2)]
)
def test_pooling_is_the_mean_over_pixels(size: int, cell: int, side: int) -> None:
    features = torch.randn(2, 5, side, side)
    for weight in (one_hot(some_labels(2, size, cell), cell), some_association(2, size, cell)):
        found = pool_cells(features, weight, cell)
        tokens, mass = slow_pool(features, weight, cell)
        torch.testing.assert_close(found.tokens.double(), tokens, atol=1e-5, rtol=0)
        torch.testing.assert_close(found.mass.double(), mass, atol=1e-4, rtol=0)


def test_an_empty_superpixel_has_no_mass_and_no_token() -> None:
    label = square_grid(torch.zeros(1, 3, 12, 12), 4).label.clone()
    label[label == 4] = 1
    found = pool_cells(torch.ones(1, 2, 6, 6), one_hot(label, 4), 4)
    assert found.mass[0].tolist() == [16, 32, 16, 16, 0, 16, 16, 16, 16]
    assert (found.tokens[0, 4] == 0).all()
    assert (found.tokens[0, :4] == 1).all()


def test_the_square_grid_gives_plain_means_of_cells() -> None:
    cells = square_grid(torch.zeros(2, 3, 24, 24, dtype=torch.uint8), 8)
    assert isinstance(cells, Cells)
    assert cells.label.dtype == torch.int64
    assert cells.label[1, ::8, ::8].flatten().tolist() == list(range(9))
    assert torch.equal(cells.association, one_hot(cells.label, 8))
    features = torch.randn(2, 4, 12, 12)
    mean = features.unflatten(2, (3, 4)).unflatten(4, (3, 4)).mean((3, 5)).flatten(2).mT
    torch.testing.assert_close(pool_cells(features, cells.association, 8).tokens, mean, atol=1e-5, rtol=0)


def test_pooling_has_the_gradient_of_its_formula() -> None:
    features = torch.randn(1, 2, 4, 4, dtype=torch.float64, requires_grad=True)
    weight = some_association(1, 8, 4).double().requires_grad_()
    assert torch.autograd.gradcheck(lambda f, w: pool_cells(f, w, 4)[0], (features, weight))


def test_an_empty_superpixel_leaves_the_gradient_finite() -> None:
    features = torch.randn(1, 2, 4, 4, requires_grad=True)
    weight = torch.zeros(1, 9, 8, 8, requires_grad=True)
    pool_cells(features, weight, 4).tokens.sum().backward()  # type: ignore[no-untyped-call]
    assert features.grad is not None
    assert features.grad.isfinite().all()
    assert weight.grad is not None
    assert weight.grad.isfinite().all()


def test_pooling_sums_in_full_precision() -> None:
    features, weight = torch.randn(1, 3, 6, 6), one_hot(some_labels(1, 12, 4), 4)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = pool_cells(features, weight, 4)
    assert found.tokens.dtype == torch.float32
    torch.testing.assert_close(found.tokens, pool_cells(features, weight, 4).tokens, atol=0, rtol=0)


def test_a_map_that_does_not_fit_the_cells_is_refused() -> None:
    with pytest.raises(ValueError, match="side 5"):
        pool_cells(torch.zeros(1, 1, 5, 5), torch.zeros(1, 9, 12, 12), 4)
    with pytest.raises(ValueError, match="cells of 4"):
        pool_cells(torch.zeros(1, 1, 2, 2), torch.zeros(1, 9, 12, 12), 4)
