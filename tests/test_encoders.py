"""Encoders against slow programs in float64: one image, one text, one head at a time, no padding at all."""

import itertools
import math
from collections.abc import Callable
from typing import Any

import checkpoints
import pytest
import torch
import tuning
from torch import Tensor, nn

from grainline.config import parse
from grainline.encoders.pretrained import build_pretrained
from grainline.encoders.text import TextConfig, TextTransformer, length_groups, packed_rows
from grainline.encoders.towers import Towers, TowersConfig, flat_parts
from grainline.encoders.vit import Around, ViT, ViTConfig
from grainline.errors import UserError
from grainline.methods.shared import LogitScale, clamp_scales
from grainline.nn.attention import Block, Stack, attend
from grainline.nn.pooling import AttentionPool, mean_pool, unit
from grainline.training.step import LoraConfig, add_lora
from grainline.types import Images, Texts, rows

MEAN, SPREAD = (0.5, 0.375, 0.25), (0.25, 0.5, 0.125)  # exact in float32
VIT = {"width": 12, "depth": 2, "heads": 3, "patch": 4, "size": 8, "mean": MEAN, "std": SPREAD}
TEXT = {"width": 12, "depth": 2, "heads": 3, "vocab": 300, "context": 20}


def vit(**changes: Any) -> ViT:
    return shaken(ViT(ViTConfig(**VIT | changes)))


def text(**changes: Any) -> TextTransformer:
    return shaken(TextTransformer(TextConfig(**TEXT | changes)))


def shaken(module: Any) -> Any:
    """Float64 and no parameter at a value that hides it: biases are not 0, gains not 1."""
    with torch.no_grad():
        for p in module.parameters():
            p += 0.1 * torch.randn_like(p)
    return module.double().eval()


def close(a: Tensor, b: Tensor) -> None:
    torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10)


# The slow programs


def linear(layer: nn.Linear, x: Tensor) -> Tensor:
    return torch.stack([layer.weight @ row + layer.bias for row in x])


def norm(layer: nn.LayerNorm, x: Tensor) -> Tensor:
    centred = x - x.mean(-1, keepdim=True)
    return centred / (centred.square().mean(-1, keepdim=True) + layer.eps).sqrt() * layer.weight + layer.bias


def gelu(x: Tensor) -> Tensor:
    return 0.5 * x * (1 + torch.erf(x / math.sqrt(2)))


def mlp(layers: nn.Sequential, x: Tensor) -> Tensor:
    first, _, last = layers
    return linear(last, gelu(linear(first, x)))  # type: ignore[arg-type]


def attended(q: Tensor, k: Tensor, v: Tensor, record: Callable[[int, int], bool]) -> Tensor:
    """q [n, c], k and v [L, c] -> [n, c], by sums over single tokens."""
    q, k, v = q.detach(), k.detach(), v.detach()
    out = torch.zeros_like(q)
    for i in range(len(q)):
        places = [j for j in range(len(k)) if record(i, j)]
        fits = [math.exp(float(q[i] @ k[j]) / math.sqrt(q.shape[1])) for j in places]
        for fit, j in zip(fits, places, strict=True):
            out[i] += fit / sum(fits) * v[j]
    return out


def everything(_i: int, _j: int) -> bool:
    return True


def slow_block(block: Any, x: Tensor, causal: bool) -> Tensor:
    """x [L, W], all of it real."""
    part, width = x.shape[1] // block.attention.heads, x.shape[1]
    qkv = linear(block.attention.to_qkv, norm(block.norm1, x))
    heads = []
    for h in range(block.attention.heads):
        q, k, v = (qkv[:, n * width + h * part : n * width + (h + 1) * part] for n in range(3))
        heads.append(attended(q, k, v, lambda i, j: j <= i or not causal))
    x = x + linear(block.attention.to_out, torch.cat(heads, dim=1))
    return x + mlp(block.mlp, norm(block.norm2, x))


def slow_pool(pool: AttentionPool, x: Tensor) -> Tensor:
    """x [L, W] -> [W]"""
    width = x.shape[1]
    part = width // pool.heads
    q, kv = linear(pool.to_query, pool.query[None])[0], linear(pool.to_key_value, x)
    heads = []
    for h in range(pool.heads):
        k, v = (kv[:, n * width + h * part : n * width + (h + 1) * part] for n in range(2))
        heads.append(attended(q[None, h * part : (h + 1) * part], k, v, everything)[0])
    out = linear(pool.to_out, torch.cat(heads)[None])
    return (out + mlp(pool.mlp, norm(pool.norm, out)))[0]


def slow_patches(stem: nn.Conv2d, image: Tensor) -> Tensor:
    """[3, H, W] -> [L, W] in reading order."""
    side = stem.kernel_size[0]
    out = []
    for top, left in itertools.product(range(0, image.shape[1], side), range(0, image.shape[2], side)):
        cut = image[:, top : top + side, left : left + side]
        out.append(torch.stack([(w * cut).sum() for w in stem.weight]) + stem.bias)
    return torch.stack(out)


def slow_conv(weight: Tensor, image: Tensor, last: bool) -> Tensor:
    """3 x 3, stride 2, a border of one zero before the image, of the last one behind it."""
    padded = torch.nn.functional.pad(image, (0, 1, 0, 1) if last else (1, 0, 1, 0))
    half = image.shape[1] // 2
    out = image.new_zeros(len(weight), half, half)
    for channel, i, j in itertools.product(range(len(weight)), range(half), range(half)):
        out[channel, i, j] = (weight[channel] * padded[:, 2 * i : 2 * i + 3, 2 * j : 2 * j + 3]).sum()
    return out


def slow_stem(stem: nn.Sequential, image: Tensor) -> Tensor:
    """The small convolutions: [3, H, W] -> [L, W]."""
    around = stem[-1] if isinstance(stem[-1], Around) else None
    convs = stem[:-1] if around else stem
    for i in range(0, len(convs) - 1, 4):
        conv, group = stem[i + 1], stem[i + 2]
        assert isinstance(conv, nn.Conv2d)
        assert isinstance(group, nn.GroupNorm)
        image = slow_conv(conv.weight, image, last=i == len(convs) - 5)
        image = (image - image.mean()) / (image.var(correction=0) + group.eps).sqrt()
        image = gelu(image * group.weight[:, None, None] + group.bias[:, None, None])
    last = convs[-1]
    assert isinstance(last, nn.Conv2d)
    cells = image.flatten(1).T
    out = torch.stack([last.weight[:, :, 0, 0] @ cell + last.bias for cell in cells])
    return slow_around(around, out, image.shape[1]) if around else out


def slow_around(around: Around, cells: Tensor, side: int) -> Tensor:
    """Every cell of [side * side, W] and what the 3 x 3 cells around it hold."""
    even = (cells - cells.mean()) / (cells.var(correction=0) + around.norm.eps).sqrt()
    even = gelu(even * around.norm.weight + around.norm.bias)
    out = []
    for place, cell in enumerate(cells):
        row, column = divmod(place, side)
        output = around.look.bias
        for down in (-1, 0, 1):
            for right in (-1, 0, 1):
                if 0 <= row + down < side and 0 <= column + right < side:
                    other = even[(row + down) * side + column + right]
                    output = output + around.look.weight[:, :, down + 1, right + 1] @ other
        out.append(cell + output)
    return torch.stack(out)


def slow_vit(model: ViT, image: Tensor, pool: str) -> tuple[Tensor, Tensor]:
    """One image [3, H, W] in 0..1 -> pooled [W], patches [L, W]."""
    stem: Any = model.stem
    normalised = torch.stack([(image[c] - MEAN[c]) / SPREAD[c] for c in range(3)])
    x = slow_patches(stem, normalised) if isinstance(stem, nn.Conv2d) else slow_stem(stem, normalised)
    x = x + model.position
    if pool == "class":
        x = torch.cat([model.class_token[None], x])
    for block in model.stack.blocks:
        x = slow_block(block, x, causal=False)
    x = norm(model.norm, x)
    if pool == "class":
        return x[0], x[1:]
    if model.pool is None:
        return x.mean(0), x
    return slow_pool(model.pool, x), torch.stack([slow_pool(model.pool, token[None]) for token in x])


def slow_text(model: TextTransformer, ids: Tensor) -> tuple[Tensor, Tensor]:
    """The ids of one text [L], none of them padding -> pooled [W], tokens [L, W]."""
    x = torch.stack([model.words.weight[i] + model.position[place] for place, i in enumerate(ids)])
    for block in model.stack.blocks:
        x = slow_block(block, x, model.causal)
    x = norm(model.norm, x)
    return (x[-1] if model.pool == "end" else x.mean(0)), x


# Images


@pytest.mark.parametrize("pool", ["class", "mean", "attention"])
@pytest.mark.parametrize("stem", ["patch", "conv", "overlap"])
def test_a_vit_is_its_slow_program(stem: str, pool: str) -> None:
    model = vit(stem=stem, pool=pool)
    pixels = torch.rand(2, 3, 8, 8, dtype=torch.float64)
    output = model(pixels)
    assert output.patches.shape == (2, 4, 12)
    assert (output.cls is not None) == (pool == "class")
    for n in range(2):
        pooled, patches = slow_vit(model, pixels[n], pool)
        close(output.pooled[n], pooled)
        close(output.patches[n], patches)
        if output.cls is not None:
            close(output.cls[n], pooled)


@pytest.mark.parametrize("patch", [2, 4, 8, 16])
def test_a_cell_of_the_conv_stem_reads_around_the_centre_of_its_patch(patch: int) -> None:
    model: Any = ViT(ViTConfig(**VIT | {"patch": patch, "size": 8 * patch, "stem": "conv"}))
    pixels = torch.zeros(1, 1, 8 * patch, 8 * patch, requires_grad=True)
    x = pixels  # the windows alone, all weights one
    for layer in model.stem[:-1]:
        if isinstance(layer, nn.ZeroPad2d):
            x = layer(x)
        elif isinstance(layer, nn.Conv2d):
            x = torch.nn.functional.conv2d(x, torch.ones(1, 1, 3, 3), stride=2)
    x[0, 0, 3, 5].backward()
    weight = pixels.grad[0, 0]
    places = torch.arange(8 * patch) + 0.5
    down, across = (weight.sum(1) @ places / weight.sum()), (weight.sum(0) @ places / weight.sum())
    assert (down - 3.5 * patch, across - 5.5 * patch) == (0.5, 0.5)


def test_positions_that_begin_as_waves_tell_rows_from_columns() -> None:
    begins = ViT(ViTConfig(**VIT | {"positions": "waves", "width": 16, "heads": 2})).position.detach()
    for place in range(4):
        angles = [[x * 20 ** (-i / 4) for i in range(4)] for x in divmod(place, 2)]
        wanted = [wave(angle) for axis in angles for wave in (math.sin, math.cos) for angle in axis]
        torch.testing.assert_close(begins[place], torch.tensor(wanted))


def test_pixels_as_bytes_and_as_floats_agree() -> None:
    pixels = torch.randint(0, 256, (2, 3, 8, 8), dtype=torch.uint8)
    for model in (vit(), vit().float()):
        dtype = model.position.dtype
        a, b = model(pixels), model(pixels.to(dtype) / 255)
        torch.testing.assert_close(a.pooled, b.pooled, rtol=1e-5, atol=1e-5)
        assert a.pooled.dtype == dtype


# Texts


def padded(lengths: list[int], width: int, vocab: int = 300) -> tuple[Tensor, Tensor]:
    mask = torch.arange(width) < torch.tensor(lengths)[:, None]
    return torch.randint(0, vocab, mask.shape), mask


@pytest.mark.parametrize("pool", ["end", "mean"])
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("buckets", [1, 3])
def test_a_text_transformer_is_its_slow_program(buckets: int, causal: bool, pool: str) -> None:
    model = text(causal=causal, pool=pool, buckets=buckets)
    ids, mask = padded([3, 20, 1, 7, 2], 20)
    read = model(ids, mask)
    assert read.tokens.shape == (5, 20, 12)
    assert torch.equal(read.mask, mask)
    for m in range(5):
        pooled, tokens = slow_text(model, ids[m][mask[m]])
        close(read.pooled[m], pooled)
        close(read.tokens[m][mask[m]], tokens)


@pytest.mark.parametrize("pool", ["end", "mean"])
@pytest.mark.parametrize("causal", [True, False])
def test_neither_groups_nor_packing_changes_outputs_or_gradients(
    causal: bool, pool: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lengths = [0, *torch.randint(1, 18, (39,)).tolist()]
    ids, mask = padded(lengths, 18)
    weight = torch.randn(40, 12, dtype=torch.float64)
    result, shapes = [], list[tuple[int, ...]]()
    for way in (1, 2, 5, "few shapes", "packed"):
        torch.manual_seed(7)
        model = text(causal=causal, pool=pool, buckets=way if isinstance(way, int) else 3)
        shapes.clear()
        model.stack.register_forward_pre_hook(lambda _, args: shapes.append(tuple(args[0].shape[:2])))
        model.few_shapes = way == "few shapes"
        monkeypatch.setattr("grainline.encoders.text.can_pack", lambda _, way=way: way == "packed")
        read = model(ids, mask)
        if way == "few shapes":
            assert {shape[0] for shape in shapes} == {64}
            assert {shape[1] for shape in shapes} <= {16, 20}, "the context is 20"
        if way == "packed":
            assert shapes == [(3, 128)], "some 380 tokens"
        loss = (read.pooled * weight).sum() + (read.tokens * mask[..., None]).square().sum()
        loss.backward()
        result.append([read.pooled, read.tokens * mask[..., None], *(p.grad for p in model.parameters())])
    for other in result[1:]:
        for a, b in zip(result[0], other, strict=True):
            assert a is not None
            close(a, b)


@pytest.mark.parametrize("learns", ["all", "some positions", "adapters"])
def test_packing_changes_nothing_of_a_clip_of_the_library(
    learns: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With more tokens in all than it has positions."""
    config = checkpoints.clip().config.to_dict()
    architecture = {"kind": "clip", "config": config, "mean": [0.5] * 3, "spread": [0.5] * 3, "pad": 0}
    lengths = [0, *torch.randint(1, 30, (19,)).tolist()]
    ids, mask = padded(lengths, 33)
    weight = torch.randn(20, 64, dtype=torch.float64)
    result = []
    for way in ("groups", "packed"):
        torch.manual_seed(7)
        model: Any = build_pretrained(architecture).text
        if learns == "some positions":
            model.freeze_positions(5)
        model = model.double().train()
        if learns == "adapters":
            add_lora(model, LoraConfig(rank=2, targets=".*[qv]_proj"))
            for p in (p for p in model.parameters() if p.requires_grad):
                nn.init.normal_(p)
        rows_read: list[tuple[int, ...]] = []
        model.model.encoder.layers[0].register_forward_pre_hook(
            lambda _, args, read=rows_read: read.append(tuple(args[0].shape[:2]))
        )
        monkeypatch.setattr("grainline.encoders.text.can_pack", lambda _, way=way: way == "packed")
        read = model(ids, mask)
        assert (rows_read == [(1, 320)]) == (way == "packed")
        (read.pooled * weight).sum().add((read.tokens * mask[..., None]).square().sum()).backward()
        learnt = [p.grad for p in model.parameters() if p.requires_grad]
        result.append([read.pooled, read.tokens * mask[..., None], *learnt])
    for a, b in zip(*result, strict=True):
        assert a is not None
        close(a, b)


def test_texts_of_others_of_the_library_are_padded(monkeypatch: pytest.MonkeyPatch) -> None:
    """They have attention, padding or noise of their own; so has a CLIP with dropout in training."""
    monkeypatch.setattr("grainline.encoders.text.can_pack", lambda _: True)
    ids = torch.zeros(2, 4, dtype=torch.int64)
    for kind, packs in (("clip", True), ("siglip", False), ("groupvit", False), ("bert", False)):
        model: Any = tuning.encoders(kind, noise=0.0).text
        assert model.train().packs(ids) == packs, kind
    noisy: Any = tuning.encoders("clip", noise=0.1).text
    assert not noisy.train().packs(ids)
    assert noisy.eval().packs(ids)


@pytest.mark.parametrize("pool", ["end", "mean"])
@pytest.mark.parametrize("causal", [True, False])
def test_rows_of_padding_are_finite_and_leave_the_others_alone(causal: bool, pool: str) -> None:
    model = text(causal=causal, pool=pool)
    ids, mask = padded([4, 0, 6, 0], 9)
    read = model(ids, mask)
    assert read.tokens.isfinite().all()
    assert torch.equal(read.pooled[[1, 3]], torch.zeros(2, 12, dtype=torch.float64))
    close(read.pooled[[0, 2]], model(ids[[0, 2]], mask[[0, 2]]).pooled)
    read.pooled.sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
    assert model(*padded([0, 0], 5)).pooled.isfinite().all()


def test_padding_may_be_longer_than_the_context_but_a_text_may_not() -> None:
    model = text()
    ids, mask = padded([20, 5], 31)
    close(model(ids, mask).pooled, model(ids[:, :20], mask[:, :20]).pooled)
    with pytest.raises(ValueError, match="more than 20 tokens; the tokenizer must cut it there"):
        model(*padded([21, 5], 31))


# Groups of similar length


def cost(groups: list[tuple[int, int]]) -> int:
    """Computed tokens of groups of (rows, longest), and 64 for starting each."""
    return sum(count * longest + 64 for count, longest in groups)


def brute_force(lengths: list[int], most: int) -> int:
    """The least cost over all ways to cut the sorted lengths into at most `most` runs."""
    ordered = sorted(lengths)
    costs = []
    for number in range(most):
        for cuts in itertools.combinations(range(1, len(ordered)), number):
            runs = itertools.pairwise([0, *cuts, len(ordered)])
            costs.append(cost([(b - a, ordered[b - 1]) for a, b in runs]))
    return min(costs)


@pytest.mark.parametrize("most", [1, 2, 3, 4])
def test_groups_are_the_cheapest_there_are(most: int) -> None:
    g = torch.Generator().manual_seed(most)
    for _ in range(15):
        lengths = torch.randint(1, 250, (int(torch.randint(1, 12, (), generator=g)),), generator=g)
        order, result = length_groups(lengths, most)
        assert len(result) <= most
        assert cost([(len(order[part]), longest) for part, longest in result]) == brute_force(
            lengths.tolist(), most
        )


def test_layers_that_draw_for_each_row_read_padded_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("grainline.encoders.text.can_pack", lambda _: True)
    ids = torch.zeros(2, 4, dtype=torch.int64)
    assert text().train().packs(ids)
    assert not text(drop_path=0.1).train().packs(ids)
    assert text(drop_path=0.1).eval().packs(ids)
    model = text().train()
    model.stack.blocks[0].mlp.append(nn.Dropout(0.1))
    assert not model.packs(ids)


@pytest.mark.parametrize("longest", [0, 1, 40, 130, 512])
def test_every_token_stands_in_one_row_and_texts_stand_whole(longest: int) -> None:
    g = torch.Generator().manual_seed(longest)
    mask = torch.arange(600) < torch.randint(0, longest + 1, (300, 1), generator=g)
    mask[7] = torch.rand(600, generator=g) < longest / 1000  # its tokens are no run
    place = packed_rows(mask)
    mask[:, 0] |= ~mask.any(1)  # one token of an empty text
    real = place[place >= 0]
    assert torch.equal(real.sort().values, mask.flatten().nonzero()[:, 0])
    assert place.shape[1] % 64 == 0
    assert max(128, int(mask.sum(1).max())) <= place.shape[1] <= 512
    for text in range(300):
        rows, columns = ((place // 600 == text) & (place >= 0)).nonzero(as_tuple=True)
        assert len(rows.unique()) <= 1
        assert torch.equal(columns, torch.arange(len(columns)) + (columns[0] if len(columns) else 0))
        assert torch.equal(place[rows, columns] % 600, mask[text].nonzero()[:, 0]), "in their order"


def test_a_text_without_tokens_has_the_same_first_token_in_a_shared_row(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Which patch selection compares."""
    ids, mask = padded([4, 0, 7], 9)
    model = text()
    result = []
    for packed in (False, True):
        monkeypatch.setattr("grainline.encoders.text.can_pack", lambda _, packed=packed: packed)
        result.append(model(ids, mask))
    close(result[0].tokens[:, 0], result[1].tokens[:, 0])
    assert result[1].tokens[1, 0].abs().sum() > 0
    close(result[0].pooled, result[1].pooled)


def test_there_are_few_shapes_of_rows_that_texts_share() -> None:
    mask = torch.arange(77) < 30
    shapes = {tuple(packed_rows(mask.repeat(number, 1)).shape) for number in range(2000, 2400, 7)}
    assert shapes == {(512, 128), (544, 128), (576, 128), (608, 128)}


def test_rows_that_texts_share_are_nearly_full() -> None:
    short, long = ((12, 4, 77), (28, 9, 77), (60, 20, 77), (90, 30, 77)), ((110, 10, 248), (150, 50, 248))
    for mean, std, context in (*short, *long):
        g = torch.Generator().manual_seed(0)
        length = torch.normal(float(mean), float(std), (4000, 1), generator=g).round().clamp(3, context)
        mask = torch.arange(context) < length
        assert packed_rows(mask).numel() <= 1.12 * int(mask.sum()), mean
    for length, most in ((77, 1.08), (65, 1.17), (128, 1.04), (300, 1.1)):
        mask = torch.ones(1000, length, dtype=torch.bool)
        assert packed_rows(mask).numel() <= most * mask.numel(), length


# Blocks, pools, scales


def test_drop_path_skips_branches_of_whole_rows_and_makes_up_for_it() -> None:
    block = shaken(Block(4, 2, drop_path=0.25))
    x = torch.randn(1, 3, 4, dtype=torch.float64).expand(4000, -1, -1)
    with torch.no_grad():
        out = block.train()(x)
        still = (out == x).all((1, 2)).double().mean()
        assert float(still) == pytest.approx(0.25**2, abs=0.02)  # both branches skipped
        close(block.eval()(x)[0], slow_block(block, x[0], causal=False))
        first = block.attention(block.norm1(x[:1]), None, False)
    one_of_four = {
        tuple((x[0] + a / 0.75 * first[0]).flatten().round(decimals=6).tolist()) for a in (0.0, 1.0)
    }
    message = {tuple(row.flatten().round(decimals=6).tolist()) for row in out}
    assert len(message) == 4
    assert one_of_four <= message  # the rows whose MLP was skipped


def test_drop_path_grows_to_its_value_at_the_last_block() -> None:
    rates = [block.skip_mlp.rate for block in Stack(4, 5, 2, drop_path=0.4).blocks]
    assert rates == pytest.approx([0.0, 0.1, 0.2, 0.3, 0.4])
    assert [block.skip_attention.rate for block in Stack(4, 1, 2, drop_path=0.4).blocks] == [0.4]


def test_blocks_begin_with_the_spreads_of_clip() -> None:
    width, depth = 256, 3
    for block in Stack(width, depth, 4).blocks:
        for layer, spread in (
            (block.attention.to_qkv, width**-0.5),
            (block.attention.to_out, width**-0.5 * (2 * depth) ** -0.5),
            (block.mlp[0], (2 * width) ** -0.5),
            (block.mlp[2], width**-0.5 * (2 * depth) ** -0.5),
        ):
            assert float(layer.weight.detach().std()) == pytest.approx(spread, rel=0.03)
            assert not layer.bias.any()


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


def test_an_attention_pool_looks_at_real_tokens_only_and_says_where() -> None:
    pool = shaken(AttentionPool(12, 3))
    x, mask = torch.randn(3, 6, 12, dtype=torch.float64), padded([6, 2, 4], 6)[1]
    out = pool(x, mask)
    for n in range(3):
        close(out.vector[n], slow_pool(pool, x[n][mask[n]]))
    close(out.weight.sum(-1), torch.ones(3, dtype=torch.float64))
    assert not out.weight[~mask].any()


def test_a_mean_pool_of_nothing_is_zero_even_beside_odd_numbers() -> None:
    x = torch.tensor([[[1.0], [torch.nan]], [[torch.inf], [2.0]]])
    out = mean_pool(x, torch.tensor([[True, False], [False, False]]))
    assert out.vector.tolist() == [[1.0], [0.0]]
    assert out.weight.tolist() == [[1.0, 0.0], [0.0, 0.0]]


def test_unit_vectors_are_made_in_full_precision() -> None:
    x = torch.randn(5, 64).bfloat16()
    assert unit(x).dtype == torch.float32
    torch.testing.assert_close(unit(x).norm(dim=-1), torch.ones(5))


def test_a_scale_stays_between_one_and_its_maximum_and_never_sticks_there() -> None:
    scale = LogitScale(10.0, 100.0)
    assert float(scale().detach()) == pytest.approx(10.0)
    assert scale.log_scale.shape == (1,)
    for value, kept in ((500.0, 100.0), (0.01, 1.0), (42.0, 42.0)):
        with torch.no_grad():
            scale.log_scale.fill_(math.log(value))
        clamp_scales(nn.ModuleList([nn.Linear(1, 1), scale]))
        assert float(scale().detach()) == pytest.approx(kept)
        (grad,) = torch.autograd.grad(scale().sum(), scale.log_scale)
        assert float(grad) == pytest.approx(kept)  # d exp(s) / ds


# Towers


def test_the_parts_of_a_text_are_read_one_after_the_other() -> None:
    ids = torch.randint(1, 300, (3, 4, 5))
    mask = torch.rand(3, 4, 5) < 0.5
    flat, real = flat_parts(Texts(ids, mask, *[torch.arange(3)] * 3))
    assert flat.shape == real.shape == (3, 20)
    for n in range(3):
        message = [int(ids[n, s, place]) for s in range(4) for place in range(5) if mask[n, s, place]]
        assert flat[n][real[n]].tolist() == message
        assert real[n].tolist() == [True] * len(message) + [False] * (20 - len(message))


def test_towers_project_into_one_space_and_keep_tokens_out_of_training() -> None:
    cfg = TowersConfig(image=ViTConfig(**VIT), text=TextConfig(**TEXT | {"width": 18}), width=7)
    towers = shaken(Towers(cfg))
    images = Images(torch.rand(2, 3, 8, 8, dtype=torch.float64), torch.tensor([4, 9]))
    ids, mask = padded([3, 6], 6)
    texts = Texts(ids[:, None], mask[:, None], torch.tensor([7, 8]), torch.tensor([9, -1]), torch.zeros(2))
    a, b = towers.encode_images(images), towers.encode_texts(texts)
    pooled, patches = slow_vit(towers.image, images.pixels[1], "class")
    close(a.vector[1], (towers.to_image.weight @ pooled) / (towers.to_image.weight @ pooled).norm())
    close(a.tokens[1], patches @ towers.to_image.weight.T)
    assert (a.item.tolist(), a.image.tolist()) == ([4, 9], [4, 9])
    message, words = slow_text(towers.text, ids[0, :3])
    close(b.vector[0], (towers.to_text.weight @ message) / (towers.to_text.weight @ message).norm())
    close(b.tokens[0, :3], words @ towers.to_text.weight.T)
    assert (b.item.tolist(), b.image.tolist(), b.mask.sum(1).tolist()) == ([7, 8], [9, -1], [3, 6])
    close(towers.encode_texts(rows(texts, slice(0, 1))).vector, b.vector[:1])
    towers.train()
    quick = towers.encode_images(images), towers.encode_texts(texts)
    assert [x.tokens.shape for x in quick] == [(2, 0, 7), (2, 0, 7)]
    assert [x.mask.shape for x in quick] == [(2, 0), (2, 0)]
    close(quick[0].vector, a.vector)


# Sizes


def count(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


def blocks(width: int, depth: int) -> int:
    """Attention 4 w^2 + 4 w, MLP 8 w^2 + 5 w, two norms 4 w."""
    return depth * (12 * width**2 + 13 * width)


@pytest.mark.parametrize(
    ("name", "width", "depth", "grid"), [("B/16", 768, 12, 14), ("L/14", 1024, 24, 16), ("S/16", 384, 12, 14)]
)
def test_vits_of_a_name_have_the_published_sizes(name: str, width: int, depth: int, grid: int) -> None:
    with torch.device("meta"):
        model = ViT(ViTConfig(name=name))  # type: ignore[call-arg]
        output = model(torch.zeros(2, 3, 224, 224, dtype=torch.uint8))
    patch = 224 // grid
    stem = 3 * patch**2 * width + width
    assert count(model) == stem + grid**2 * width + width + blocks(width, depth) + 2 * width
    assert (output.pooled.shape, output.patches.shape) == ((2, width), (2, grid**2, width))
    if name == "B/16":  # the published trunk has a position for the class token as well
        assert count(model) == 85_798_656 - 768


@pytest.mark.parametrize(("name", "width"), [("B", 512), ("L", 768)])
def test_texts_of_a_name_have_the_sizes_of_clip(name: str, width: int) -> None:
    with torch.device("meta"):
        model = TextTransformer(TextConfig(name=name, vocab=49_408))  # type: ignore[call-arg]
    assert count(model) == 49_408 * width + 77 * width + blocks(width, 12) + 2 * width


@pytest.mark.parametrize(
    ("cls", "values", "said"),
    [
        (
            ViTConfig,
            {"name": "H/14"},
            "allowed are toy, Mi, Ti, S, B, L, a slash and the patch side, such as B/16",
        ),
        (ViTConfig, {"name": "B"}, "such as B/16"),
        (ViTConfig, VIT | {"size": 9}, "size 9 is not a multiple of patch 4"),
        (ViTConfig, VIT | {"heads": 5}, "width 12 is not a multiple of 5 heads"),
        (ViTConfig, VIT | {"stem": "conv", "patch": 6, "size": 12}, "patch 6 is not a power of two"),
        (TextConfig, {"name": "H"}, "name 'H' is not known; allowed are toy, Mi, Ti, S, B, L"),
        (TextConfig, TEXT | {"heads": 5}, "width 12 is not a multiple of 5 heads"),
    ],
)
def test_encoders_that_cannot_be_are_named_with_what_can(cls: Any, values: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError) as error:
        parse(cls, values, "here")
    assert said in str(error.value)
