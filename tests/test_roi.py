"""RoI pooling against loops in float64 that follow the definition point by point."""

import itertools
import math

import numpy as np
import pytest
import torch
from torch import Tensor

from grainline.nn.pooling import CHUNK, roi_align


def bilinear(field: np.ndarray, y: float, x: float) -> np.ndarray:
    """The value of [H, W, D] at a point, as torchvision's CPU kernel finds it."""
    height, width, depth = field.shape
    if y < -1 or y > height or x < -1 or x > width:
        return np.zeros(depth)
    y, x = max(y, 0.0), max(x, 0.0)
    y0, x0 = int(y), int(x)
    if y0 >= height - 1:
        y0 = y1 = height - 1
        y = float(y0)
    else:
        y1 = y0 + 1
    if x0 >= width - 1:
        x0 = x1 = width - 1
        x = float(x0)
    else:
        x1 = x0 + 1
    b, a = y - y0, x - x0
    top = (1 - a) * field[y0, x0] + a * field[y0, x1]
    bottom = (1 - a) * field[y1, x0] + a * field[y1, x1]
    return np.asarray((1 - b) * top + b * bottom)


def slow(maps: Tensor, boxes: Tensor, owner: Tensor, scale: tuple[float, float]) -> np.ndarray:
    """roi_align of torchvision with aligned=True, one bin and adaptive samples, written out."""
    out = np.zeros((len(boxes), maps.shape[3]))
    for r, (box, n) in enumerate(zip(boxes.double().tolist(), owner.tolist(), strict=True)):
        left, right = (side * scale[1] - 0.5 for side in box[::2])
        top, bottom = (side * scale[0] - 0.5 for side in box[1::2])
        rows, columns = math.ceil(bottom - top), math.ceil(right - left)
        for p, q in itertools.product(range(rows), range(columns)):
            y = top + (p + 0.5) * (bottom - top) / rows
            x = left + (q + 0.5) * (right - left) / columns
            out[r] += bilinear(maps[n].double().numpy(), y, x)
        out[r] /= max(rows * columns, 1)
    return out


def case(seed: int, number: int = 40) -> tuple[Tensor, Tensor, Tensor]:
    """Maps of 7 by 5 cells, and boxes in units of 10 a cell: small, large and partly outside."""
    g = torch.Generator().manual_seed(seed)
    maps = torch.randn(3, 7, 5, 2, generator=g, dtype=torch.float64)
    corner = torch.rand(number, 2, generator=g) * torch.tensor([60.0, 80.0]) - 15
    boxes = torch.cat([corner, corner + torch.rand(number, 2, generator=g) ** 3 * 70 + 0.5], 1)
    return maps, boxes, torch.randint(0, 3, (number,), generator=g)


@pytest.mark.parametrize("scale", [(0.1, 0.1), (0.07, 0.13)])
def test_pooling_is_that_of_a_slow_loop(scale: tuple[float, float]) -> None:
    maps, boxes, owner = case(1)
    boxes = torch.cat([boxes, torch.tensor([[90.0, 90.0, 99.0, 99.0]])])
    owner = torch.cat([owner, owner[:1]])
    pooled = roi_align(maps, boxes, owner, scale)
    assert np.abs(pooled.numpy() - slow(maps, boxes, owner, scale)).max() < 1e-9


def test_values_that_are_known() -> None:
    across = torch.arange(14.0).expand(1, 14, 14)[..., None]
    down = across.transpose(1, 2)
    none = torch.tensor([0])

    def pooled(field: Tensor, *box: float) -> float:
        return roi_align(field, torch.tensor([box]), none).item()

    assert pooled(across, 2, 3, 6, 9) == 3.5  # 4.0 would be the pooling that is not aligned
    assert pooled(down, 2, 3, 6, 9) == pytest.approx(5.5)
    assert pooled(across, 0, 0, 14, 14) == pytest.approx(6.5)
    assert pooled(across, 5, 5, 6, 6) == 5.0  # exactly one cell
    assert pooled(across, 5, 5, 5, 8) == 0.0  # no width


def test_no_rectangles_and_more_than_are_pooled_at_a_time() -> None:
    maps, boxes, of = case(1, number=CHUNK + 9)
    alone = torch.cat([roi_align(maps, boxes[i : i + 1], of[i : i + 1]) for i in range(len(of))])
    assert torch.allclose(roi_align(maps, boxes, of), alone, atol=1e-12)
    assert roi_align(maps, boxes[:0], of[:0]).shape == (0, 2)
    half = roi_align(maps.bfloat16(), boxes, of)
    assert half.dtype == torch.bfloat16


def test_the_gradient_reaches_the_map() -> None:
    maps, boxes, of = case(2, number=4)
    maps = maps[:, :3, :3].requires_grad_()
    assert torch.autograd.gradcheck(lambda x: roi_align(x, boxes / 10, of), (maps,))
