"""Graph pooling against loops in float64: one image, one token, one group at a time."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from grainline.nn.grouping import GraphPool, Grouped

WIDTH, HEADS, GROUPS = 8, 2, 4


def pool(**changes: Any) -> GraphPool:
    """In float64 and evaluation mode, with no parameter at a value that hides it."""
    module = GraphPool(WIDTH, HEADS, GROUPS, **changes)
    with torch.no_grad():
        for p in module.parameters():
            p += 0.2 * torch.randn_like(p)
    return module.double().eval()


def inputs(number: int = 3, tokens: int = 10) -> tuple[Tensor, Tensor, Tensor]:
    x, cls = torch.randn(number, tokens, WIDTH).double(), torch.randn(number, WIDTH).double()
    valid = torch.rand(number, tokens) < 0.7
    valid[0], valid[1, :GROUPS] = True, True
    return x, cls, valid


# The slow program


def norm(layer: nn.LayerNorm, x: Tensor) -> Tensor:
    mean = x.sum() / len(x)
    return (x - mean) / ((x - mean).square().sum() / len(x) + layer.eps).sqrt() * layer.weight + layer.bias


def linear(layer: nn.Linear, x: Tensor) -> Tensor:
    return torch.stack([row @ x for row in layer.weight]) + layer.bias


def gelu(x: Tensor) -> Tensor:
    return x * (1 + torch.erf(x / math.sqrt(2))) / 2


def attended(module: GraphPool, rows: list[Tensor]) -> list[Tensor]:
    qkv = [linear(module.attention.to_qkv, norm(module.norm1, row)) for row in rows]
    part, out = WIDTH // HEADS, []
    for local in qkv:
        heads = []
        for h in range(HEADS):
            at = slice(h * part, (h + 1) * part)
            fits = [
                math.exp(float(local[:WIDTH][at] @ row[WIDTH : 2 * WIDTH][at]) / part**0.5) for row in qkv
            ]
            values = [fit * row[2 * WIDTH :][at] for fit, row in zip(fits, qkv, strict=True)]
            heads.append(torch.stack(values).sum(0) / sum(fits))
        out.append(linear(module.attention.to_out, torch.cat(heads)))
    return out


def far_apart(rows: list[Tensor], number: int) -> list[int]:
    marks, picks = [torch.stack(rows).mean(0)], []
    for _ in range(number):
        far = [min(float((row - mark).square().sum()) for mark in marks) for row in rows]
        picks.append(max(range(len(rows)), key=lambda i: far[i]))
        marks.append(rows[picks[-1]])
    return picks


def slow_pool(module: GraphPool, x: Tensor, cls: Tensor) -> dict[str, Any]:
    """One image, valid tokens only: x [L, W], cls [W]"""
    rows = list(x)
    picks = far_apart(rows, GROUPS)
    y = [row + more for row, more in zip(rows, attended(module, rows), strict=True)]
    middle = torch.stack(y).sum(0) / len(y)
    y = [row - middle + module.shift for row in y]
    weight = torch.zeros(len(rows), GROUPS).double()
    for n in range(len(rows)):
        fits = [math.exp(5 * float(y[n] @ y[i]) / float(y[n].norm()) / float(y[i].norm())) for i in picks]
        for m, fit in enumerate(fits):
            weight[n, m] = fit / sum(fits)

    def widened(row: Tensor) -> Tensor:
        return gelu(linear(module.widen, norm(module.norm2, row)))

    def narrowed(row: Tensor) -> Tensor:
        return linear(module.narrow, norm(module.norm3, row))

    tokens = []
    for m, i in enumerate(picks):
        total = sum(float(weight[n, m]) * widened(rows[n]) for n in range(len(rows)))
        tokens.append(narrowed(total / float(weight[:, m].sum())) + rows[i])
    return {
        "tokens": torch.stack(tokens),
        "cls": narrowed(widened(cls)) + cls,
        "weight": weight,
        "picks": picks,
    }


def test_pooling_is_what_loops_over_single_tokens_give() -> None:
    module, (x, cls, valid) = pool(), inputs()
    actual = module(x, cls, valid)
    assert actual.mask.all()
    for i in range(len(x)):
        at = valid[i].nonzero().flatten()
        with torch.no_grad():
            slow = slow_pool(module, x[i, at], cls[i])
        assert actual.picked[i].tolist() == at[slow["picks"]].tolist()
        torch.testing.assert_close(actual.tokens[i], slow["tokens"], rtol=1e-6, atol=1e-6)
        torch.testing.assert_close(actual.cls[i], slow["cls"], rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(actual.weight[i, at], slow["weight"], rtol=1e-9, atol=1e-9)


def test_every_token_is_shared_out_and_every_group_owns_the_token_it_is_built_around() -> None:
    module, (x, cls, valid) = pool(), inputs(20, 30)
    actual = module(x, cls, valid)
    assert torch.equal(actual.weight.sum(2) > 0, valid)
    torch.testing.assert_close(actual.weight.sum(2), valid.double())
    owner = actual.weight.argmax(2).gather(
        1, actual.picked
    )  # the group that each group's own token is nearest to
    assert torch.equal(owner[actual.mask], torch.arange(GROUPS).expand(20, -1)[actual.mask])


@pytest.mark.parametrize("few", [False, True])
def test_what_stands_in_an_invalid_token_changes_nothing(few: bool) -> None:
    module, (x, cls, valid) = pool(), inputs()
    if few:
        valid[:, 3:] = False
    other = torch.where(valid[..., None], x, 50 * torch.randn_like(x))
    assert not torch.equal(x, other)
    grads = []
    for tokens in (x, other):
        leaf = tokens.clone().requires_grad_()
        actual: Grouped = module(leaf, cls, valid)
        (actual.tokens.square().sum() + actual.cls.sum() + actual.weight.square().sum()).backward()
        grads.append((actual, leaf.grad))
    (one, grad), (two, other_grad) = grads
    for a, b in zip(one, two, strict=True):
        if a.dtype == torch.int64:
            a, b = a.where(one.mask, 0), b.where(one.mask, 0)
        assert torch.equal(a, b)
    assert grad is not None
    assert torch.equal(grad, other_grad)
    assert not grad[~valid].any()
    if few:
        assert torch.equal(one.mask.sum(1), valid.sum(1).clamp(max=GROUPS))
        assert not one.tokens[~one.mask].any()
        assert not one.weight.mT[~one.mask].any()


def test_equal_tokens_make_one_group_and_nothing_valid_makes_none() -> None:
    module, (x, cls, valid) = pool(), inputs(2)
    x[0] = x[0, :1]
    valid[0], valid[1] = True, False
    leaf = x.clone().requires_grad_()
    actual = module(leaf, cls, valid)
    assert actual.mask.tolist() == [[True] + [False] * (GROUPS - 1), [False] * GROUPS]
    torch.testing.assert_close(actual.weight[0, :, 0], torch.ones(10).double())
    assert not actual.tokens[1].any()
    (actual.tokens.square().sum() + actual.cls.sum()).backward()
    assert leaf.grad is not None
    assert all(torch.isfinite(values).all() for values in (*actual, leaf.grad))


def test_half_precision_changes_no_pick_and_little_else() -> None:
    torch.manual_seed(1)
    module, (x, cls, valid) = pool().float(), inputs()
    exact = module(x.float(), cls.float(), valid)
    with torch.autocast("cpu", torch.bfloat16):
        rough = module(x.float(), cls.float(), valid)
    assert torch.equal(rough.picked, exact.picked)
    assert rough.weight.dtype == torch.float32
    torch.testing.assert_close(rough.weight.sum(2), valid.float())
    torch.testing.assert_close(rough.tokens.float(), exact.tokens, rtol=0.05, atol=0.1)
