"""Text-conditioned pooling with an empty slot against nn.MultiheadAttention and against loops."""

import pytest
import torch
from torch import Tensor, nn

from grainline.nn.pooling import ConditionedPool

WIDTH = 12


@pytest.fixture
def pool() -> ConditionedPool:
    """All parameters differ from their first values, biases included."""
    pool = ConditionedPool(WIDTH, 3).double()
    with torch.no_grad():
        for p in pool.parameters():
            p.add_(0.3 * torch.randn_like(p))
    return pool


def drawn() -> tuple[Tensor, Tensor, Tensor]:
    texts, segments = torch.randn(4, 5, WIDTH).double(), torch.randn(4, 7, WIDTH).double()
    mask = torch.rand(4, 7) > 0.4
    mask[0] = True
    mask[3] = False
    return texts, segments, mask


def library(pool: ConditionedPool) -> nn.MultiheadAttention:
    """The attention of torch with the same parameters."""
    attention = nn.MultiheadAttention(WIDTH, pool.heads, add_zero_attn=True, batch_first=True).double()
    into = pool.to_query, pool.to_key, pool.to_value
    with torch.no_grad():
        attention.in_proj_weight.copy_(torch.cat([layer.weight for layer in into]))
        attention.in_proj_bias.copy_(torch.cat([layer.bias for layer in into]))
        attention.out_proj.weight.copy_(pool.to_out.weight)
        attention.out_proj.bias.copy_(pool.to_out.bias)
    return attention


def test_it_is_the_attention_of_torch_with_a_zero_key_and_value_behind_three_norms(
    pool: ConditionedPool,
) -> None:
    texts, segments, mask = drawn()
    expected, weight = library(pool)(
        pool.norm_query(texts), pool.norm_key(segments), pool.norm_value(segments), key_padding_mask=~mask
    )
    result = pool(texts, segments, mask)
    torch.testing.assert_close(result.vector, expected)
    torch.testing.assert_close(result.weight, weight)  # torch too puts the empty slot last
    every = pool(texts, segments)
    torch.testing.assert_close(every.vector[0], result.vector[0])
    assert not torch.allclose(every.vector[1], result.vector[1])


def test_a_image_without_segments_gives_the_bias_and_an_empty_slot_of_one(pool: ConditionedPool) -> None:
    texts, segments, mask = drawn()
    segments.requires_grad_()
    result = pool(texts, segments, mask)
    torch.testing.assert_close(result.vector[3], pool.to_out.bias.expand(5, -1))
    assert (result.weight[3, :, -1] == 1).all()
    (by_segments,) = torch.autograd.grad(result.vector.sum(), segments)
    assert not by_segments[3].any()
    assert by_segments.isfinite().all()


def test_projected_images_serve_any_texts_and_texts_of_one_row_attend_to_all(pool: ConditionedPool) -> None:
    texts, segments, mask = drawn()
    stored = pool.keys(segments, mask)
    assert stored.key.shape == stored.value.shape == (4, 3, 7, 4)
    result = pool.read(pool.queries(texts[:1]), stored)
    torch.testing.assert_close(result.vector, pool(texts[:1].expand(4, -1, -1), segments, mask).vector)


def test_it_begins_as_the_attention_of_torch_does() -> None:
    pool, other = ConditionedPool(64, 8), nn.MultiheadAttention(64, 8)
    stacked = torch.cat([pool.to_query.weight, pool.to_key.weight, pool.to_value.weight])
    bound = other.in_proj_weight.abs().max()
    assert 0.98 < stacked.abs().max() / bound < 1.02
    assert 0.95 < stacked.std() / other.in_proj_weight.std() < 1.05
    assert 0.9 < pool.to_out.weight.std() / other.out_proj.weight.std() < 1.1
    assert not any(x.bias.any() for x in (pool.to_query, pool.to_key, pool.to_value, pool.to_out))


def test_half_precision_keeps_the_weights_in_full(pool: ConditionedPool) -> None:
    texts, segments, mask = drawn()
    single = pool.float()
    exact = single(texts.float(), segments.float(), mask)
    with torch.autocast("cpu", torch.bfloat16):
        result = single(texts.float(), segments.float(), mask)
    assert result.weight.dtype == torch.float32
    assert result.vector.dtype == torch.bfloat16
    torch.testing.assert_close(result.vector.float(), exact.vector, rtol=0.05, atol=0.05)


def test_heads_divide_the_width() -> None:
    with pytest.raises(ValueError, match="width 12 is not a multiple of 5 heads"):
        ConditionedPool(12, 5)
