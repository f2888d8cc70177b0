"""Positions for longer texts and larger images, against slow programs: one number at a time."""

import math

import pytest
import torch
from torch import Tensor

from grainline.nn.positions import stretch_keep, stretch_linear, to_context, to_grid


def close(a: Tensor, b: Tensor) -> None:
    torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10)


def table(rows: int) -> Tensor:
    return torch.randn(rows, 5, dtype=torch.float64)


def test_long_clips_stretch_is_the_loop_of_its_paper_from_77_to_248() -> None:
    p = table(77)
    new = torch.zeros(248, 5, dtype=torch.float64)
    for i in range(20):
        new[i] = p[i]
    for j in range(56):
        for r in range(4):
            new[20 + 4 * j + r] = ((4 - r) * p[20 + j] + r * p[21 + j]) / 4
    for r in range(4):
        new[244 + r] = p[76] + r * (p[76] - p[75]) / 4
    close(stretch_keep(p), new)
    close(to_context(p, 248, "keep"), new)


def test_long_clips_stretch_of_squares_has_the_numbers_of_hand_calculation() -> None:
    new = to_context(torch.arange(77, dtype=torch.float64)[:, None] ** 2, 248, "keep").flatten()
    close(new[19:24], torch.tensor([361, 400, 410.25, 420.5, 430.75], dtype=torch.float64))
    close(new[243:], torch.tensor([5738.25, 5776, 5813.75, 5851.5, 5889.25], dtype=torch.float64))


@pytest.mark.parametrize(("rows", "ratio", "keep"), [(5, 3, 2), (6, 2, 5), (4, 1, 0), (3, 5, 1)])
def test_the_stretch_has_any_ratio_and_keeps_any_number_of_rows(rows: int, ratio: int, keep: int) -> None:
    p = table(rows)
    slow = [p[i] for i in range(keep)]
    beyond = torch.cat([p, p[-1:] + (p[-1:] - p[-2:-1])])
    for j in range(keep, rows):
        slow += [((ratio - r) * beyond[j] + r * beyond[j + 1]) / ratio for r in range(ratio)]
    close(stretch_keep(p, ratio, keep), torch.stack(slow))
    assert len(slow) == ratio * rows - (ratio - 1) * keep


def test_a_table_of_20_positions_has_nothing_to_stretch() -> None:
    with pytest.raises(ValueError, match="nothing to stretch"):
        stretch_keep(table(20))


@pytest.mark.parametrize(("rows", "length"), [(5, 9), (5, 12), (7, 4), (3, 3), (2, 5)])
def test_the_linear_stretch_goes_from_the_first_position_to_the_last(rows: int, length: int) -> None:
    p = table(rows)
    slow = []
    for i in range(length):
        place = i * (rows - 1) / (length - 1)
        below = min(math.floor(place), rows - 2)
        slow.append((1 - (place - below)) * p[below] + (place - below) * p[below + 1])
    close(stretch_linear(p, length), torch.stack(slow))


def test_a_shorter_context_is_the_beginning_of_the_table_either_way() -> None:
    p = table(30)
    assert torch.equal(to_context(p, 12, "keep"), p[:12])
    assert torch.equal(to_context(p, 12, "linear"), p[:12])
    assert torch.equal(to_context(p, 30, "linear"), p)


@pytest.mark.parametrize(
    ("length", "ratio"), [(78, 2), (134, 2), (135, 3), (191, 3), (192, 4), (248, 4), (249, 5)]
)
def test_the_keep_stretch_takes_the_smallest_ratio_that_is_long_enough(length: int, ratio: int) -> None:
    p = table(77)
    close(to_context(p, length, "keep"), stretch_keep(p, ratio)[:length])


def cubic(x: float, a: float = -0.75) -> float:
    """Keys's kernel."""
    x = abs(x)
    if x <= 1:
        return (a + 2) * x**3 - (a + 3) * x**2 + 1
    return a * (x**3 - 5 * x**2 + 8 * x - 4) if x < 2 else 0.0


@pytest.mark.parametrize(("old", "new"), [((3, 3), (5, 5)), ((4, 4), (2, 2)), ((2, 3), (4, 7))])
@pytest.mark.parametrize("lead", [0, 1])
def test_a_grid_is_resized_by_the_bicubic_loop_and_the_class_token_stays(
    old: tuple[int, int], new: tuple[int, int], lead: int
) -> None:
    p = table(lead + old[0] * old[1])
    grid = p[lead:].view(*old, 5)
    out = torch.zeros(*new, 5, dtype=torch.float64)
    for row in range(new[0]):
        for column in range(new[1]):
            y = (row + 0.5) * old[0] / new[0] - 0.5
            x = (column + 0.5) * old[1] / new[1] - 0.5
            for dy in range(-1, 3):
                for dx in range(-1, 3):
                    a, b = math.floor(y) + dy, math.floor(x) + dx
                    inside = grid[min(max(a, 0), old[0] - 1), min(max(b, 0), old[1] - 1)]
                    out[row, column] += cubic(y - a) * cubic(x - b) * inside
    close(to_grid(p, old, new, lead), torch.cat([p[:lead], out.flatten(0, 1)]))


def test_a_grid_of_the_same_size_is_the_same_table() -> None:
    p = table(10)
    assert to_grid(p, (3, 3), (3, 3), 1) is p


def test_a_table_that_is_no_such_grid_is_refused() -> None:
    with pytest.raises(ValueError, match="no grid of 3 x 3 behind 0"):
        to_grid(table(10), (3, 3), (6, 6), 0)
