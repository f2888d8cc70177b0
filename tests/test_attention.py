"""Attention as it is written out for bfloat16 on a CPU, and as SDPA computes it, against float64."""

import pytest
import torch

from grainline.nn.attention import attend


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", ["all", "padded", "causal"])
def test_attention_is_the_same_in_every_precision(kind: str, dtype: torch.dtype) -> None:
    inputs = [torch.randn(3, 2, 7, 4, dtype=dtype, requires_grad=True) for _ in range(3)]
    exact = [x.detach().double().requires_grad_() for x in inputs]
    output = torch.tensor([[True] * 7, [True] * 4 + [False] * 3, [True] + [False] * 6])[:, None, None]
    mask, causal = (output if kind == "padded" else None), kind == "causal"
    fit = exact[0] @ exact[1].transpose(-1, -2) / 2
    hidden = (
        torch.ones(7, 7).triu(1).bool() if causal else ~output if kind == "padded" else torch.zeros(1).bool()
    )
    slow = fit.masked_fill(hidden, -torch.inf).softmax(-1) @ exact[2]
    fast = attend(*inputs, mask, causal)
    near = {"rtol": 0.03, "atol": 0.03} if dtype == torch.bfloat16 else {"rtol": 1e-5, "atol": 1e-6}
    torch.testing.assert_close(fast.double(), slow, **near)
    fast.square().sum().backward()
    slow.square().sum().backward()
    near = {"rtol": 0.1, "atol": 0.1} if dtype == torch.bfloat16 else {"rtol": 1e-4, "atol": 1e-5}
    for x, y in zip(inputs, exact, strict=True):
        torch.testing.assert_close(x.grad.double(), y.grad, **near)
