"""Cross-entropy over a vocabulary without stored logits, against F.cross_entropy with them."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from grainline.losses.tiled import pair_loss
from grainline.losses.tiled.pair_loss import vocabulary_loss


class Watch(TorchDispatchMode):
    """Keeps the number of elements of the largest tensor that was made."""

    largest = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if isinstance(out, Tensor):
            self.largest = max(self.largest, out.numel())
        return out


def inputs(tokens: int = 23, entries: int = 61, dtype: torch.dtype = torch.float64) -> tuple[Tensor, ...]:
    g = torch.Generator().manual_seed(0)
    hidden = torch.randn(tokens, 8, generator=g, dtype=dtype).requires_grad_()
    table = torch.randn(entries, 8, generator=g, dtype=dtype).requires_grad_()
    target = torch.randint(entries, (tokens,), generator=g)
    target[::5] = -1
    return hidden, table, target


@pytest.mark.parametrize("size", [1, 61 * 4, 2**20])
def test_value_and_gradients_are_those_of_stored_logits(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    monkeypatch.setattr(pair_loss, "TILE", {"cpu": size})
    hidden, table, target = inputs()
    actual = vocabulary_loss(hidden, table, target)
    expected = F.cross_entropy(hidden @ table.T, target, ignore_index=-1, reduction="sum")
    assert int(actual.number) == int((target >= 0).sum()) == 18
    torch.testing.assert_close(actual.total, expected, rtol=1e-13, atol=0)
    grads = [torch.autograd.grad(3.7 * x / 18, [hidden, table]) for x in (actual.total, expected)]
    torch.testing.assert_close(*grads, rtol=1e-11, atol=1e-13)
    assert grads[0][0][::5].abs().sum() == 0


def test_huge_logits_stay_finite() -> None:
    hidden, table, target = inputs(dtype=torch.float32)
    hidden = (1e4 * hidden).detach().requires_grad_()
    actual = vocabulary_loss(hidden, table, target)
    expected = F.cross_entropy(hidden @ table.T, target, ignore_index=-1, reduction="sum")
    torch.testing.assert_close(actual.total, expected)
    assert all(x.isfinite().all() for x in torch.autograd.grad(actual.total, [hidden, table]))


def test_a_batch_without_targets_is_nothing_and_has_gradients() -> None:
    hidden, table, target = inputs()
    actual = vocabulary_loss(hidden, table, torch.full_like(target, -1))
    assert float(actual.total.detach()) == float(actual.number) == 0
    assert all((x == 0).all() for x in torch.autograd.grad(actual.total, [hidden, table]))


def test_targets_beyond_the_table_are_left_out() -> None:
    hidden, table, target = inputs()
    target[3] = 61
    expected = F.cross_entropy(
        hidden @ table.T, target.where(target < 61, -1), ignore_index=-1, reduction="sum"
    )
    torch.testing.assert_close(vocabulary_loss(hidden, table, target).total, expected)


def test_half_precision_is_computed_in_float32_whatever_autocast_says() -> None:
    hidden, table, target = inputs(dtype=torch.float32)
    half = hidden.detach().bfloat16().requires_grad_()
    with torch.autocast("cpu", torch.bfloat16):
        actual = vocabulary_loss(half, table, target)
    expected = F.cross_entropy(half.float() @ table.T, target, ignore_index=-1, reduction="sum")
    torch.testing.assert_close(actual.total, expected)
    assert torch.autograd.grad(actual.total, half)[0].dtype == torch.bfloat16


def test_a_second_derivative_is_an_error() -> None:
    hidden, table, target = inputs()
    actual = vocabulary_loss(hidden, table, target)
    with pytest.raises(RuntimeError, match="differentiable once"):
        torch.autograd.grad(actual.total, hidden, create_graph=True)


def test_no_more_than_a_tile_of_logits_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """The largest tensor that any operation makes, of 4,000 tokens with 500 entries."""
    monkeypatch.setattr(pair_loss, "TILE", {"cpu": 500 * 100})
    hidden, table, target = inputs(4000, 500, torch.float32)
    with Watch() as watch:
        vocabulary_loss(hidden, table, target).total.backward()
    assert watch.largest == 500 * 100
