"""Farthest point sampling against loops in float64."""

from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from grainline.data.open_source import open_source
from grainline.nn.grouping import farthest_points
from grainline.nn.runtime import may_round

SHAPES = [(20, 5, 3), (40, 16, 8), (64, 33, 64), (7, 7, 2)]


def slow_points(x: Tensor, valid: Tensor, number: int) -> list[int]:
    """The docstring of `farthest_points`, for one set; ends early where no token is left that differs."""
    at = valid.nonzero().flatten().tolist()
    tokens = x.double()
    apart = (tokens[:, None] - tokens).norm(dim=2).tolist()
    from_mean = (tokens - tokens[at].mean(0)).norm(dim=1).tolist()
    picks: list[int] = []
    for _ in range(number):
        unlike = [i for i in at if all(apart[i][k] > 0 for k in picks)]
        if not unlike:
            break
        picks.append(max(unlike, key=lambda i: min([from_mean[i], *(apart[i][k] for k in picks)])))
    return picks


@pytest.mark.parametrize(("tokens", "number", "width"), SHAPES)
def test_picks_are_those_of_loops_in_float64(tokens: int, number: int, width: int) -> None:
    torch.manual_seed(tokens)
    x = torch.randn(6, tokens, width)
    valid = torch.rand(6, tokens) < 0.8
    valid[0] = True
    for mask in (None, valid):
        actual = farthest_points(x, mask, number)
        assert (actual.token.dtype, actual.token.shape) == (torch.int64, (6, number))
        for i in range(6):
            expected = slow_points(x[i], valid[i] if mask is not None else torch.ones(tokens).bool(), number)
            assert actual.token[i, : len(expected)].tolist() == expected
            assert actual.mask[i].tolist() == [k < len(expected) for k in range(number)]


def test_picks_among_patches_of_photographs_are_those_of_loops(shared_data: Path) -> None:
    source = open_source(str(shared_data / "flickr8k" / "dev-0000.tar"))
    for i in range(2):
        pixels = (
            torch.from_numpy(
                np.array(Image.open(BytesIO(source[i].image)).convert("RGB").resize((112, 112)))
            ).float()
            / 255
        )
        x = pixels.unflatten(0, (14, 8)).unflatten(2, (14, 8)).transpose(1, 2).flatten(0, 1).flatten(1)
        expected = slow_points(x, torch.ones(len(x), dtype=torch.bool), 16)
        assert farthest_points(x[None], None, 16).token[0].tolist() == expected


def test_a_token_equal_to_the_mean_is_picked_last_and_is_no_surplus() -> None:
    x = torch.tensor([-1.0, -1.0, 0.0, 1.0, 1.0, -2.0, 2.0])[None, :, None]
    actual = farthest_points(x, None, 6)
    assert x[0, actual.token[0, :5], 0].tolist() == [-2, 2, -1, 1, 0]
    assert actual.mask.tolist() == [[True] * 5 + [False]]


def test_an_invalid_token_neither_is_picked_nor_moves_the_mean() -> None:
    x, valid = torch.randn(4, 30, 8), torch.rand(4, 30) < 0.6
    other = torch.where(valid[..., None], x, 1e6 * torch.randn(4, 30, 8))
    one, two = farthest_points(x, valid, 8), farthest_points(other, valid, 8)
    assert torch.equal(one.token, two.token)
    assert valid.gather(1, one.token).all()
    assert one.mask.all()


@pytest.mark.parametrize("kinds", [1, 2, 5])
def test_equal_tokens_are_picked_once_and_the_rest_is_surplus(kinds: int) -> None:
    torch.manual_seed(kinds)
    for width in (3, 768):
        kind = torch.cat([torch.arange(kinds), torch.randint(kinds, (40 - kinds,))])[torch.randperm(40)]
        x = torch.randn(kinds, width)[kind][None] + 3
        actual = farthest_points(x, None, 8)
        assert int(actual.mask.sum()) == min(kinds, 8)
        assert len(set(kind[actual.token[actual.mask]].tolist())) == min(kinds, 8)
        assert ((actual.token >= 0) & (actual.token < 40)).all()


def test_few_valid_tokens_and_none_at_all() -> None:
    x, valid = torch.randn(2, 12, 4), torch.zeros(2, 12, dtype=torch.bool)
    valid[0, [3, 7]] = True
    actual = farthest_points(x, valid, 4)
    assert actual.mask.tolist() == [[True, True, False, False], [False] * 4]
    assert set(actual.token[0, :2].tolist()) == {3, 7}


def test_distances_from_the_mean_are_exact_beside_a_common_offset() -> None:
    """Tokens in many dimensions lie nearest to the mean, whose rounding beside 1000 would swap picks."""
    moved = torch.randn(16, 100, 768) + 1000
    assert torch.equal(
        farthest_points(moved, None, 32).token, farthest_points(moved.double(), None, 32).token
    )


def test_half_precision_around_it_changes_nothing() -> None:
    x = torch.randn(16, 64, 32, requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16):
        actual = farthest_points(x, None, 32)
    assert torch.equal(actual.token, farthest_points(x, None, 32).token)
    assert not actual.token.requires_grad
    double = farthest_points(x.double(), None, 32).token
    assert torch.equal(actual.token, double)
    half = x.to(torch.bfloat16)
    assert torch.equal(farthest_points(half, None, 32).token, farthest_points(half.double(), None, 32).token)


@pytest.mark.gpu
def test_tf32_does_not_change_the_picks() -> None:
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    x = torch.randn(16, 197, 768)
    expected = farthest_points(x.double(), None, 64).token
    before = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision("high")
        actual = farthest_points(x.cuda(), None, 64).token.cpu()
    finally:
        torch.set_float32_matmul_precision(before)
    assert (actual == expected).float().mean() >= 0.999


def test_whether_products_may_be_rounded_is_known_whichever_way_it_was_set(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse() -> str:
        raise RuntimeError("set by the newer names")

    gpu, cpu = torch.device("cuda"), torch.device("cpu")
    for actual, expected in ((lambda: "highest", False), (lambda: "high", True), (refuse, True)):
        monkeypatch.setattr(torch, "get_float32_matmul_precision", actual)
        assert may_round(gpu) is expected
        assert not may_round(cpu)
