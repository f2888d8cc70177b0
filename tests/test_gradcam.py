"""Attention maps against the last block written out, and against hooks in the library's models."""

from pathlib import Path
from typing import Any

import pytest
import torch
from indexes import saved, tiny_model
from make import batch, build
from runs import call, complaint
from torch import Tensor

from grainline.errors import UserError
from grainline.evaluation.result import read
from grainline.evaluation.suites.gradient_maps import AttentionCapture, attention_heat, require_patch_grid
from grainline.methods.base import Method
from grainline.types import Encoded, Images, rows

HEADS = 2


def exact(case: str, *changes: str) -> tuple[Method, Images, Encoded]:
    """A method in double precision, an image, and two texts with all their tokens."""
    method = build(case, *changes).double()
    images, texts = batch(4)
    images = rows(images._replace(pixels=images.pixels.double()), slice(1, 2))
    with torch.no_grad():
        return method, images, method.encode_texts(rows(texts, torch.tensor([0, 4])))


def written_out(method: Any, images: Images, text: Encoded) -> tuple[Tensor, Tensor]:
    """Weights and gradients of the last attention of our own transformer: [heads, R, C] both."""
    vit = method.towers.image
    blocks = list(vit.stack.blocks)
    last = blocks[-1]
    stored: list[Tensor] = []

    def forward(x: Tensor, mask: Any, causal: bool) -> Tensor:
        assert mask is None
        assert not causal
        q, k, v = last.attention.to_qkv(x)[0].chunk(3, -1)
        side = q.shape[-1] // HEADS
        out, weights = [], []
        for h in range(HEADS):
            part = slice(h * side, (h + 1) * side)
            fit = torch.stack(
                [torch.stack([(a * b).sum() / side**0.5 for b in k[:, part]]) for a in q[:, part]]
            )
            weights.append(fit.exp() / fit.exp().sum(1, keepdim=True))
        weight = torch.stack(weights)
        weight.retain_grad()
        stored.append(weight)
        for h in range(HEADS):
            out.append(weight[h] @ v[:, h * side : (h + 1) * side])
        return last.attention.to_out(torch.cat(out, -1))[None]

    usual = last.attention.forward
    last.attention.forward = forward
    try:
        method.score(method.encode_images(images), text).sum().backward()
    finally:
        last.attention.forward = usual
        method.zero_grad()
    assert stored[0].grad is not None
    return stored[0].detach(), stored[0].grad


def slow(weight: Tensor, grad: Tensor, patches: int) -> list[float]:
    """The definition of the map, number by number."""
    first = weight.shape[2] - patches
    out = []
    for p in range(patches):
        total = 0.0
        for r in range(weight.shape[1]):
            each = [float(grad[h, r, first + p] * weight[h, r, first + p]) for h in range(len(weight))]
            total += sum(max(x, 0.0) for x in each) / len(weight)
        out.append(total)
    return out


OWN = ("clip", "clip-mean", "maxsim", "seps", "laps", "vse", "beta_clip-pairs")


@pytest.mark.parametrize("case", OWN)
def test_maps_are_those_of_the_last_block_written_out(case: str) -> None:
    method, images, texts = exact(case)
    got = attention_heat(method, images, texts)
    for j in range(2):
        weight, grad = written_out(method, images, rows(texts, slice(j, j + 1)))
        torch.testing.assert_close(got[j].tolist(), slow(weight, grad, 4), rtol=1e-5, atol=1e-9)
    assert got.shape == (2, 4)
    assert (got > 0).any()
    assert not got.requires_grad
    assert all(p.grad is None for p in method.parameters())
    with torch.no_grad():
        assert torch.equal(attention_heat(method, images, texts), got)


def test_of_a_class_token_alone_it_is_the_map_of_reclip() -> None:
    method, images, texts = exact("clip")
    weight, grad = written_out(method, images, rows(texts, slice(0, 1)))
    assert (grad[:, 1:] == 0).all()
    reclip = torch.eye(5, dtype=torch.float64) + (grad * weight).relu().mean(0)
    torch.testing.assert_close(
        attention_heat(method, images, texts)[0].double(), reclip[0, 1:], rtol=1e-5, atol=1e-9
    )


@pytest.mark.parametrize("case", ["clip-pretrained", "siglip-pretrained"])
def test_maps_of_the_librarys_models_are_those_of_hooks(case: str) -> None:
    method, images, texts = exact(case)
    got = attention_heat(method, images, texts)
    model: Any = method.get_submodule("towers.image.model")
    model.set_attn_implementation("eager")
    stored: list[Tensor] = []

    def hook(_: Any, __: Any, out: Any) -> None:
        out[1].retain_grad()
        stored.append(out[1])

    handle = model.encoder.layers[-1].self_attn.register_forward_hook(hook)
    for j in range(2):
        stored.clear()
        method.score(method.encode_images(images), rows(texts, slice(j, j + 1))).sum().backward()
        assert stored[0].grad is not None
        expected = slow(stored[0].detach()[0], stored[0].grad[0], 4)  # the library's softmax is of float32
        torch.testing.assert_close(got[j].tolist(), expected, rtol=1e-4, atol=1e-8)
    handle.remove()
    assert (got > 0).any()


def test_only_attention_over_all_patches_of_one_image_is_caught() -> None:
    x = torch.randn(1, 2, 5, 8)
    attend = torch.nn.functional.scaled_dot_product_attention
    with AttentionCapture(4) as capture:
        attend(x[:, :, :3], x[:, :, :3], x[:, :, :3])
        attend(x, x, x, is_causal=True)
        attend(x, x, x, attn_mask=torch.ones(5, 5).bool())
        attend(x.repeat(2, 1, 1, 1), x.repeat(2, 1, 1, 1), x.repeat(2, 1, 1, 1))
        with torch.no_grad():
            attend(x, x, x)
        assert capture.weight is None
        open_ = attend(x, x, x)
        first = capture.weight
        attend(x[:, :, :1], x[:, :, 1:], x[:, :, 1:])
    torch.testing.assert_close(open_, attend(x, x, x))
    assert first is not None
    assert capture.weight is not None
    assert (first.shape[2:], capture.weight.shape[2:]) == ((5, 5), (1, 4))


def test_what_has_no_attention_over_all_patches_is_refused() -> None:
    method, images, texts = exact("clip")
    method.towers.image.grid = (3, 3)
    with pytest.raises(UserError, match="never attends to all patches at once"):
        attention_heat(method, images, texts)
    method.towers.image.grid = None
    with pytest.raises(UserError, match="image encoder of clip has no grid of patches"):
        require_patch_grid(method, "clip")


def test_the_command_measures_attention_where_it_is_requested(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ask = ["evaluate", saved(tiny_model("clip"), tmp_path / "model"), "--data", "scenes:dev?count=2&size=40"]
    ask += ["--suite", "comprehension", "--set"]
    out, page = tmp_path / "a.json", tmp_path / "a.html"
    assert call(*ask, "map_from=attention", "--json", out, "--html", page) == 0
    accuracy, among = map(read(out).metric, ("box accuracy, attention map", "a right box among them"))
    assert 0 <= accuracy.value <= among.value
    assert "attention map" in page.read_text()
    assert "must be 'gradient' or 'attention'" in complaint(capsys, *ask, "map_from=x")
