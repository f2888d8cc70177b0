"""Pooling by texts against loops, and patches that keep their own value in the last block."""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from checkpoints import images, whole
from pydantic import ValidationError
from torch import Tensor, nn

from grainline.build import Description, start
from grainline.config import parse
from grainline.encoders.towers import Towers
from grainline.encoders.vit import ViT, ViTConfig
from grainline.errors import UserError
from grainline.methods.clip import CLIPConfig
from grainline.nn.pooling import CrossPool


def moved(module: nn.Module) -> Any:
    """In float64, with no parameter at a value that hides it."""
    with torch.no_grad():
        for p in module.parameters():
            p += 0.3 * torch.randn_like(p)
    return module.double().eval()


def pool_loop(pool: CrossPool, text: Tensor, patches: Tensor) -> Tensor:
    """One text and the patches [L, D] of its image -> [D], head by head and patch by patch."""
    keys = values = list(patches)
    if pool.input_norms:
        ask, look, take = pool.input_norms
        text, keys, values = ask(text), [look(p) for p in patches], [take(p) for p in patches]
    size = len(text) // pool.heads
    out = []
    for head in range(pool.heads):
        part = slice(head * size, (head + 1) * size)
        query = pool.to_query(text)[part]
        fits = [(query @ pool.to_key(p)[part] / size**0.5).exp() for p in keys]
        taken = [fit * pool.to_value(p)[part] for fit, p in zip(fits, values, strict=True)]
        out.append(torch.stack(taken).sum(0) / sum(fits))
    o = pool.to_out(torch.cat(out))
    hidden = pool.widen(pool.norm(o))
    return o + pool.narrow(hidden / (1 + (-1.702 * hidden).exp()))


@pytest.mark.parametrize("input_norm", [False, True])
def test_pooling_is_the_loop_in_value_and_gradient(input_norm: bool) -> None:
    pool = moved(CrossPool(12, heads=3, input_norm=input_norm))
    texts, patches = (F.normalize(torch.randn(2, k, 12).double(), dim=-1) for k in (3, 5))
    texts.requires_grad_()
    patches.requires_grad_()
    slow = torch.stack([torch.stack([pool_loop(pool, t, patches[i]) for t in texts[i]]) for i in range(2)])
    fast = pool(texts, patches)
    torch.testing.assert_close(fast, slow)
    direction = torch.randn_like(fast)
    learnt = (texts, patches, *pool.parameters())
    for a, b in zip(*(torch.autograd.grad((x * direction).sum(), learnt) for x in (fast, slow)), strict=True):
        torch.testing.assert_close(a, b)


def test_texts_attend_to_every_image_and_patches_are_projected_once() -> None:
    pool = moved(CrossPool(8, heads=2))
    texts, patches = torch.randn(1, 50, 8).double(), torch.randn(3, 6, 8).double()
    sizes: list[int] = []
    for layer in (pool.to_query, pool.to_key, pool.to_value):
        layer.register_forward_hook(lambda *call: sizes.append(call[1][0].numel()))
    out = pool(texts, patches)
    assert sizes == [texts.numel(), patches.numel(), patches.numel()]
    torch.testing.assert_close(out, pool(texts.repeat(3, 1, 1), patches))


def test_parameters_and_beginning_are_those_of_the_block_of_beta_clip() -> None:
    pool = CrossPool(512)
    assert sum(p.numel() for p in pool.parameters()) == 3_151_360
    more = sum(p.numel() for p in CrossPool(64, input_norm=True).parameters())
    assert more - sum(p.numel() for p in CrossPool(64).parameters()) == 6 * 64
    theirs = nn.MultiheadAttention(512, 8)
    bound = float(theirs.in_proj_weight.detach().abs().max())
    for layer in (pool.to_query, pool.to_key, pool.to_value):
        assert float(layer.weight.detach().abs().max()) == pytest.approx(bound, rel=1e-3)
        assert not layer.bias.any()
    assert not pool.to_out.bias.any()
    with pytest.raises(ValueError, match="width 10 is not a multiple of 8 heads"):
        CrossPool(10)


VIT = {"width": 16, "depth": 3, "heads": 2, "patch": 8, "size": 32}


def two_vits() -> tuple[ViT, ViT]:
    """With and without mixing in the last block, with the same weights."""
    stock = moved(ViT(ViTConfig(**VIT)))
    apart = ViT(ViTConfig(**VIT, patches="values")).double().eval()
    apart.load_state_dict(stock.state_dict(), strict=True)
    return stock, apart


def test_class_token_of_a_vit_is_as_before_and_patches_are_the_loop() -> None:
    stock, apart = two_vits()
    pixels = torch.rand(2, 3, 32, 32).double()
    before = []
    stock.stack.blocks[-1].register_forward_hook(lambda _, x, __: before.append(x[0]))
    mixed, own = stock(pixels), apart(pixels)
    torch.testing.assert_close(own.cls, mixed.cls, rtol=0, atol=1e-12)
    torch.testing.assert_close(own.pooled, mixed.pooled, rtol=0, atol=1e-12)
    assert (own.patches - mixed.patches).abs().max() > 0.1
    block = stock.stack.blocks[-1]
    weight, bias = (x.chunk(3)[2] for x in (block.attention.to_qkv.weight, block.attention.to_qkv.bias))
    for n in range(2):
        for j in range(16):
            x = before[0][n, 1 + j]
            y = x + block.attention.to_out(weight @ block.norm1(x) + bias)
            y = stock.norm(y + block.mlp(block.norm2(y)))
            torch.testing.assert_close(own.patches[n, j], y)


def test_a_patch_depends_on_itself_alone_in_the_last_block() -> None:
    _, apart = two_vits()
    x = torch.randn(1, 5, 16).double().requires_grad_()
    out = apart.stack.blocks[-1](x)
    (by_patch,) = torch.autograd.grad(out[0, 2].sum(), x, retain_graph=True)
    assert by_patch[0, 2].any()
    assert not by_patch[0, [0, 1, 3, 4]].any()
    (by_class,) = torch.autograd.grad(out[0, 0].square().sum(), x)
    assert by_class.any(-1).all()


def test_values_need_a_class_token() -> None:
    with pytest.raises(ValidationError, match="need pool: class, not mean"):
        ViTConfig(**VIT, pool="mean", patches="values")


def test_class_token_of_a_checkpoint_is_that_of_the_library_and_patches_are_the_loop(tmp_path: Path) -> None:
    whole("clip", tmp_path / "clip")
    towers: dict[str, Towers] = {}
    for patches in ("attention", "values"):
        values = {"pretrained": str(tmp_path / "clip"), "image": {"patches": patches}}
        begun: Any = start(Description("clip", parse(CLIPConfig, values, "test"))).method()
        towers[patches] = begun.towers.eval()
    assert list(towers["values"].state_dict()) == list(towers["attention"].state_dict())
    pixels = images(16)
    before: list[Tensor] = []
    model: Any = towers["attention"].image.model
    layer = model.encoder.layers[-1]
    layer.register_forward_hook(lambda _, x, __: before.append(x[0]))
    mixed, own = (towers[name].image(pixels) for name in ("attention", "values"))
    torch.testing.assert_close(own.cls, mixed.cls, rtol=0, atol=1e-6)
    x = before[0][:, 1:]
    y = x + layer.self_attn.out_proj(layer.self_attn.v_proj(layer.layer_norm1(x)))
    y = model.post_layernorm(y + layer.mlp(layer.layer_norm2(y)))
    torch.testing.assert_close(own.patches, y, rtol=1e-5, atol=1e-5)
    assert (own.patches - mixed.patches).abs().max() > 0.01


def test_values_of_another_kind_of_checkpoint_are_refused(tmp_path: Path) -> None:
    whole("siglip", tmp_path / "siglip")
    values = {"pretrained": str(tmp_path / "siglip"), "image": {"patches": "values"}}
    with pytest.raises(UserError, match="values need the image side of a CLIP, not of siglip"):
        start(Description("clip", parse(CLIPConfig, values, "test"))).method()
