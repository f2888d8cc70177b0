"""Cross-entropies over tiles: exponentials that two sides share or do not, and logits that are kept."""

import pytest
import torch
from torch import Tensor

from grainline.losses.tiled.pair_loss import SoftmaxLoss, log_sum, pair_loss
from grainline.losses.tiled.pair_mask import PairMatrix, RowIds
from grainline.losses.tiled.scores import Dot
from grainline.types import Mean


def blocks(number: int, groups: int = 1) -> PairMatrix:
    """Three rows an image; of nine rows one is padding, and of eleven one is of no image."""
    place = torch.arange(number)
    image, item = place // 3, place.clone()
    image[place % 11 == 4] = -1
    item[place % 9 == 7] = -1
    keys = RowIds(item, image, place * groups // number, place % 3)
    return PairMatrix(keys, keys, 1.0, 0.5)


def spread(largest: float, dtype: torch.dtype, number: int = 36) -> tuple[Tensor, Tensor]:
    """Rows whose logits lie all around -largest, for the first, to all around largest, for the last."""
    direction = torch.zeros(8, dtype=dtype)
    direction[0] = 1.0
    v = direction * torch.linspace(-largest, largest, number, dtype=dtype)[:, None]
    v = v + 0.5 * torch.randn(number, 8, dtype=dtype)
    t = direction + 0.1 * torch.randn(number, 8, dtype=dtype)
    return v.requires_grad_(), t.requires_grad_()


def slow(v: Tensor, t: Tensor, which: PairMatrix) -> tuple[Tensor, Tensor]:
    """Both sums of losses, from the whole matrix in float64, row by row."""
    where = which.where(dtype=torch.float64)
    assert where.real is not None
    actual = []
    for logits, weight, real in (
        (v.double() @ t.double().T, where.weight, where.real),
        (t.double() @ v.double().T, where.weight.T, where.real.T),
    ):
        losses = [
            logits[i][real[i]].logsumexp(0) - (weight[i] * logits[i]).sum() / weight[i].sum()
            for i in range(len(logits))
            if weight[i].sum() > 0
        ]
        actual.append(torch.stack(losses).sum())
    return actual[0], actual[1]


@pytest.mark.parametrize("side", [5, 12, 512])
@pytest.mark.parametrize("largest", [1.0, 12.0, 20.0, 100.0, 400.0])
@pytest.mark.parametrize(("dtype", "limit"), [(torch.float64, 1e-12), (torch.float32, 1e-5)])
def test_however_far_apart_the_logits_are(
    largest: float, side: int, dtype: torch.dtype, limit: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("grainline.losses.tiled.scores.CACHED", side)
    (v, t), which = spread(largest, dtype), blocks(36, 2)
    actual = [mean.total for mean in pair_loss(Dot(), SoftmaxLoss(True), (v,), (t,), which)]
    expected = slow(v, t, which)
    for a, b in zip(actual, expected, strict=True):
        assert float((a - b).detach().abs()) <= limit * float(b.detach())
    grads, exact = (torch.autograd.grad(x[0] + 3 * x[1], (v, t)) for x in (actual, expected))
    for a, b in zip(grads, exact, strict=True):
        assert float((a - b).abs().max()) <= limit * max(1.0, float(b.abs().max()))


def test_sums_of_exponentials_of_what_is_not_finite() -> None:
    inf = torch.inf
    for values in (
        [[1.0, 2.0, -inf], [-inf, -inf, -inf]],
        [[-inf, -inf, -inf], [-inf, -inf, -inf]],
        [[0.0, 90.0, -90.0], [200.0, -200.0, -inf]],
        [[inf, 1.0, 0.0], [0.0, 0.0, -inf]],
        [[torch.nan, 1.0, 0.0], [0.0, 0.0, 1.0]],
    ):
        logits = torch.tensor(values)
        for axis in (0, 1):
            torch.testing.assert_close(log_sum(logits, axis), logits.logsumexp(axis), equal_nan=True)


def test_groups_without_rows_and_tiles_of_padding_alone_say_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("grainline.losses.tiled.scores.CACHED", 4)
    place = torch.arange(16)
    item = place.masked_fill((place >= 4) & (place < 9), -1)
    keys = RowIds(item, place // 2, place // 8 * 3, place % 2)  # groups 0 and 3 of four
    v, t = spread(3.0, torch.float64, 16)
    actual = pair_loss(Dot(), SoftmaxLoss(True), (v,), (t,), PairMatrix(keys, keys, 1.0, 0.5))
    for a, b in zip(actual, slow(v, t, PairMatrix(keys, keys, 1.0, 0.5)), strict=True):
        assert_same(a, Mean(b, torch.tensor(11.0)))
    (grad,) = torch.autograd.grad(actual[0].total + actual[1].total, t)
    assert torch.equal(grad[4:9], torch.zeros(5, 8, dtype=torch.float64))


def assert_same(actual: Mean, expected: Mean) -> None:
    torch.testing.assert_close(actual.total, expected.total, rtol=1e-12, atol=1e-12)
    assert float(actual.number) == float(expected.number)
