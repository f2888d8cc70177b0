"""The Text Group Transformer: hand-worked cases of its specification, and a slow program of each block."""

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from make import CLOCK, VOCAB, batch, build
from torch import Tensor, nn

from grainline.config import parse
from grainline.encoders.tgt_text import Decoder, DecoderConfig, Grouper, GrouperConfig
from grainline.errors import UserError
from grainline.methods.base import HasTokenGroups
from grainline.methods.tgt import TGT
from grainline.nn.grouping import (
    Assignment,
    GroupingBlock,
    gumbel,
    hard_assignment,
    pooled_groups,
    soft_assignment,
)
from grainline.nn.hashing import share_of
from grainline.training.step import Objective, step
from grainline.types import Images, Mean, Texts, rows

RAW = torch.tensor([[[2.0, 0.0, 1.0], [0.0, 1.0, 3.0]]])  # two groups, three tokens
REAL = torch.ones(1, 3, dtype=torch.bool)
VALUES = torch.tensor([[[1.0, 0.0], [0.0, 2.0], [2.0, 2.0]]])
START = torch.tensor([[[0.5, 0.5], [1.0, -1.0]]])


def made(*changes: str, case: str = "tgt") -> TGT:
    method = build(case, *changes)
    assert isinstance(method, TGT)
    return method


def captions(number: int, seed: int = 0, longest: int = 14) -> tuple[Images, Texts]:
    """Random captions of 4 to `longest` tokens, one for each image."""
    g = torch.Generator().manual_seed(seed)
    length = torch.randint(4, longest + 1, (number,), generator=g)
    mask = (torch.arange(longest) < length[:, None])[:, None]
    ids = torch.randint(3, VOCAB, (number, 1, longest), generator=g)
    place = torch.arange(number)
    return (
        Images(torch.rand(number, 3, 8, 8, generator=g), place),
        Texts(ids, mask, place, place, torch.zeros_like(place)),
    )


def test_the_softmax_runs_over_groups() -> None:
    soft = soft_assignment(RAW, REAL)[0]
    columns = [[0.880797, 0.119203], [0.268941, 0.731059], [0.119203, 0.880797]]
    torch.testing.assert_close(soft.T, torch.tensor(columns), atol=1e-6, rtol=0)
    over_keys = torch.tensor([0.665241, 0.090031, 0.244728])
    assert not torch.allclose(soft[0], over_keys, atol=1e-2)
    torch.testing.assert_close(hard_assignment(RAW, REAL), torch.tensor([[[1.0, 0.0, 0.0], [0.0, 1.0, 1.0]]]))


@pytest.mark.parametrize(
    ("eps", "expected"), [(0.0, [[1.5, 0.5], [2.0, 1.0]]), (1.0, [[1.0, 0.5], [5 / 3, 1 / 3]])]
)
def test_pooling(eps: float, expected: list[list[float]]) -> None:
    actual = START + pooled_groups(hard_assignment(RAW, REAL), VALUES, eps)
    torch.testing.assert_close(actual[0], torch.tensor(expected))


def test_pooling_leaves_padding_out() -> None:
    mask = torch.tensor([[True, True, False]])
    hard = hard_assignment(RAW, mask)
    assert (hard[..., 2] == 0).all()
    assert (soft_assignment(RAW, mask)[..., 2] == 0).all()
    actual = START + pooled_groups(hard, VALUES, 1.0)
    torch.testing.assert_close(actual[0], torch.tensor([[1.0, 0.5], [1.0, 0.0]]))


def test_gradients_pass_the_hard_assignment_as_those_of_the_softmax() -> None:
    raw = RAW.clone().requires_grad_()
    (hard_assignment(raw, REAL)[0, 0] * torch.tensor([1.0, 2.0, 3.0])).sum().backward()
    assert raw.grad is not None
    expected = torch.tensor([0.104994, 0.393224, 0.314981])
    torch.testing.assert_close(raw.grad[0], torch.stack([expected, -expected]), atol=1e-6, rtol=0)


def test_noise_decides_which_group_a_token_goes_to() -> None:
    noise = torch.zeros_like(RAW)
    noise[0, 1, 0] = 2.5
    assert hard_assignment(RAW, REAL, noise)[0, 1, 0] == 1
    assert hard_assignment(RAW, REAL)[0, 1, 0] == 0


def test_gumbel_noise_has_the_moments_of_its_distribution_and_no_infinity() -> None:
    torch.manual_seed(0)
    noise = gumbel(share_of(torch.arange(400_000) * 21))  # of all numbers from the smallest to the largest
    assert noise.isfinite().all()
    assert abs(float(noise.mean()) - 0.5772) < 0.01
    assert abs(float(noise.var()) - math.pi**2 / 6) < 0.02


def test_noise_is_drawn_in_training_alone_and_follows_the_generator() -> None:
    torch.manual_seed(0)
    block, groups, tokens = Assignment(8), torch.randn(4, 3, 8), torch.randn(4, 9, 8)
    mask = torch.ones(4, 9, dtype=torch.bool)

    def call() -> Tensor:
        return block(groups, tokens, mask).hard.detach()

    first, second = call(), call()
    assert not torch.equal(first, second)
    state = torch.get_rng_state()
    third = call()
    torch.set_rng_state(state)
    assert torch.equal(third, call())
    block.eval()
    state = torch.get_rng_state()
    assert torch.equal(call(), call())
    assert torch.equal(state, torch.get_rng_state())
    torch.testing.assert_close(block(groups, tokens, mask).hard.sum(1), torch.ones(4, 9))


def literal(hard: Tensor, values: Tensor, eps: float) -> Tensor:
    """Equation 4 as it stands."""
    return hard / (hard.sum(-1, keepdim=True) + eps) @ values


@pytest.mark.parametrize("eps", [1.0, 0.5, 1e-6])
def test_empty_groups_give_no_gradient_below_eps_1(eps: float) -> None:
    """Values are those of equation 4, and so are gradients, with those of empty groups taken out below 1.

    The gradients are compared through the assignment: `seen` is what arrives at its hard form.
    """
    g = torch.Generator().manual_seed(0)
    raw = torch.randn(6, 4, 5, generator=g).double()
    raw[0, 2], raw[1, 1:] = -9.0, -9.0  # an empty group, and a text whose first group takes everything
    mask = torch.arange(5) < torch.tensor([[5], [5], [3], [1], [4], [0]])
    values, toward = (torch.randn(6, n, 3, generator=g).double() for n in (5, 4))
    actual, asked = [], []
    for pool in (pooled_groups, literal):
        hard = hard_assignment(raw, mask).requires_grad_()
        given = values.clone().requires_grad_()
        actual.append(pool(hard, given, eps))
        (actual[-1] * toward).sum().backward()
        asked.append((hard, given))
    torch.testing.assert_close(actual[0], actual[1], rtol=1e-12, atol=0)
    (hard, given), (other, also) = asked
    assert hard.grad is not None
    assert other.grad is not None
    torch.testing.assert_close(given.grad, also.grad, rtol=1e-12, atol=0)
    empty = hard.detach().sum(-1) < 0.5
    assert 8 <= int(empty.sum()) < empty.numel() - 6
    torch.testing.assert_close(hard.grad[~empty], other.grad[~empty], rtol=1e-12, atol=0)
    assert float(other.grad[empty].abs().max()) > 1 / eps / 2  # what drowns all others
    if eps < 1:
        assert (hard.grad[empty] == 0).all()
    else:  # as in the code of GroupViT
        assert torch.equal(hard.grad, other.grad)


def slow_assignment(block: Assignment, groups: Tensor, tokens: Tensor, length: int) -> Tensor:
    """One text, token by token, without noise."""
    out = []
    keys = [block.to_key(t) for t in tokens[:length]]
    raws = [[float(block.to_query(g) @ k) / len(k) ** 0.5 for g in groups] for k in keys]
    owner = [max(range(len(groups)), key=raw.__getitem__) for raw in raws]
    for number, group in enumerate(groups):
        local = [block.to_value(t) for t, o in zip(tokens, owner, strict=False) if o == number]
        total = sum(local, torch.zeros_like(group))
        out.append(group + block.to_out(total / (len(local) + block.eps)))
    return torch.stack(out)


def slow_block(block: GroupingBlock, groups: Tensor, tokens: Tensor, length: int) -> Tensor:
    """One text, as the docstring of the block says."""
    x, t = block.norm_groups(groups), block.norm_tokens(tokens)[:length]
    x = block.norm_mixed(torch.stack([block.mix(x[:, c]) for c in range(x.shape[1])], 1))
    a = block.attention
    q, k, v = a.to_query(x), a.to_key(t), a.to_value(t)
    heads = [
        ((qh @ kh.T) / qh.shape[1] ** 0.5).softmax(1) @ vh
        for qh, kh, vh in zip(*(y.chunk(a.heads, 1) for y in (q, k, v)), strict=True)
    ]
    x = x + a.to_out(torch.cat(heads, 1))
    x = block.norm_read(x + block.mlp_attended(block.norm_attended(x)))
    x = slow_assignment(block.assign, x, t, length)
    return x + block.mlp_assigned(block.norm_assigned(x))


@pytest.mark.parametrize("form", ["minimal", "full"])
@pytest.mark.parametrize("eps", [1.0, 1e-6])
@torch.no_grad()
def test_a_block_is_the_slow_program(form: str, eps: float) -> None:
    torch.manual_seed(0)
    block: Any = Assignment(16, eps) if form == "minimal" else GroupingBlock(16, 3, 4, eps)
    slow: Any = slow_assignment if form == "minimal" else slow_block
    block.double().eval()
    for p in block.parameters():
        nn.init.normal_(p, std=0.5)
    groups, tokens = torch.randn(5, 3, 16).double(), torch.randn(5, 7, 16).double()
    lengths = [7, 4, 1, 6, 2]
    mask = torch.arange(7) < torch.tensor(lengths)[:, None]
    actual = block(groups, tokens, mask).groups
    expected = torch.stack([slow(block, *x) for x in zip(groups, tokens, lengths, strict=True)])
    torch.testing.assert_close(actual, expected)


def test_parameters_of_both_forms() -> None:
    def count(module: nn.Module) -> int:
        return sum(p.numel() for p in module.parameters())

    assert count(GroupingBlock(128, 4, 4)) == 397_636
    assert count(Assignment(128)) == 66_048


def grouper(**changes: Any) -> Grouper:
    torch.manual_seed(0)
    values = {"name": "toy", "vocab": VOCAB, "context": 77, "groups": 3, "later": 1, "depth": 2}
    return Grouper(parse(GrouperConfig, values | changes, "test")).eval()


def test_reading_in_groups_of_length_changes_nothing() -> None:
    model = grouper()
    _, texts = captions(40)
    ids, mask = texts.ids[:, 0], texts.mask[:, 0]
    mask[:30, 5:] = False
    actual = model(ids, mask)
    model.buckets = 1
    torch.testing.assert_close(model(ids, mask), actual, atol=1e-5, rtol=1e-5)


def test_tokens_read_the_groups_and_each_other_in_both_directions() -> None:
    model = grouper()
    _, texts = captions(1)
    ids, mask = texts.ids[:, 0], texts.mask[:, 0]
    before = model(ids, mask).soft
    later = ids.clone()
    later[0, int(mask.sum()) - 1] = 7
    assert not torch.allclose(model(later, mask).soft[:, :, 0], before[:, :, 0], atol=1e-8)


@pytest.mark.parametrize("form", ["minimal", "full"])
def test_a_short_text_is_read_as_if_it_had_fewer_groups(form: str) -> None:
    model = grouper(form=form, tokens_per_group=4.0)
    _, texts = captions(3)
    ids, mask = texts.ids[:, 0], torch.arange(14) < torch.tensor([[3], [7], [14]])
    actual = model(ids, mask)
    assert actual.mask.tolist() == [[True, False, False], [True, True, False], [True, True, True]]
    torch.testing.assert_close(actual.soft.sum(1), mask.float())
    assert (actual.soft[~actual.mask] == 0).all()
    for text in range(2):
        torch.testing.assert_close(actual.pooled[text], actual.tokens[text][actual.mask[text]].mean(0))
        with torch.no_grad():  # what the others begin as changes nothing
            model.groups[text + 1 :] += torch.randn(2 - text, 32)
        again = model(ids, mask)
        torch.testing.assert_close(again.pooled[: text + 1], actual.pooled[: text + 1])
        assert not torch.allclose(again.pooled[2], actual.pooled[2], atol=1e-4)
        model = grouper(form=form, tokens_per_group=4.0)
    model.tokens_per_group = None
    torch.testing.assert_close(model(ids[2:], mask[2:]).pooled, actual.pooled[2:])


def test_reconstruction_reads_no_group_that_is_not_used() -> None:
    method = build("tgt-shorter")
    _, texts = batch()
    encoded = method.encode_texts(texts)
    used = encoded.extra.used
    assert 0 < int((~used).sum()) < used.numel()
    assert torch.equal(encoded.mask, used)
    vectors = encoded.extra.vectors + (~used)[..., None].float()
    other = encoded._replace(extra=encoded.extra._replace(vectors=vectors))
    actual, expected = (method.row_loss(texts, x)["reconstruction"].mean.total for x in (other, encoded))
    assert torch.equal(actual, expected)
    facts = method.row_loss(texts, encoded)
    assert int(facts["empty groups"].mean.number) == int(used[texts.item >= 0].sum())


def test_left_out_positions() -> None:
    _, texts = captions(3)
    ids, mask = texts.ids[:, 0], texts.mask[:, 0]
    order = torch.arange(14).flip(0)
    whole = torch.ones_like(mask)
    model = grouper(position_dropout=1.0, form="minimal")
    assert not torch.allclose(model(ids, whole).pooled, model(ids[:, order], whole).pooled, atol=1e-5)
    state = torch.get_rng_state()
    model.train()  # without positions a text is the set of its tokens; the noise goes with them
    soft = model(ids, whole).soft
    torch.set_rng_state(state)
    torch.testing.assert_close(model(ids[:, order], whole).soft[:, :, order], soft)
    assert mask.any()


class Known(nn.Module):
    """In place of the decoder: says what gives each target a known loss."""

    def __init__(self, values: Tensor) -> None:
        super().__init__()
        self.values = values

    def forward(self, words: Tensor, vectors: Tensor, mask: Tensor) -> Tensor:  # noqa: ARG002
        return self.values


@pytest.mark.parametrize(("mean", "expected"), [("tokens", 5 / 6), ("captions", 2.5)])
def test_reconstruction_is_a_mean_over_tokens_or_over_captions(mean: str, expected: float) -> None:
    """Losses 1, 2 of one caption and four times 0.5 of another: 5 / 6 over tokens, in chunks too."""
    method: Any = made(f"mean={mean}").double()
    losses = torch.tensor([[1.0, 2.0, 9.0, 9.0], [0.5, 0.5, 0.5, 0.5]]).double()
    # Of two words that differ, log(1 + exp(-x)) is the loss where x is how far the right one is ahead.
    ahead = -torch.log(torch.expm1(losses))
    table = torch.zeros(2, 32).double()
    table[1, 0] = 1.0
    method.towers.text.words = nn.Embedding.from_pretrained(table, freeze=False)
    method.decoder = Known(F.pad(ahead[..., None], (0, 31)))
    ids = torch.ones(2, 1, 5, dtype=torch.int64)
    mask = torch.tensor([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]]).bool()[:, None]
    place = torch.arange(2)
    texts = Texts(ids, mask, place, place, torch.zeros_like(place))
    whole = method.row_loss(texts, method.encode_texts(texts))["reconstruction"].mean
    assert float((whole.total / whole.number).detach()) == pytest.approx(expected)
    parts: list[Mean] = []
    for i in range(2):
        part = rows(texts, slice(i, i + 1))
        method.decoder.values = F.pad(ahead[i : i + 1, :, None], (0, 31))
        parts.append(method.row_loss(part, method.encode_texts(part))["reconstruction"].mean)
    totals, numbers = (torch.stack(x).sum().detach() for x in zip(*parts, strict=True))
    assert float(totals / numbers) == pytest.approx(expected)
    if mean == "tokens":
        naive = torch.stack([x.total / x.number for x in parts]).mean()
        assert float(naive.detach()) == pytest.approx(1.0)


def test_reconstruction_is_the_cross_entropy_of_the_next_token_of_true_captions() -> None:
    method = made().double()
    assert method.decoder is not None
    _, texts = batch()
    encoded = method.encode_texts(texts)
    actual = method.row_loss(texts, encoded)["reconstruction"].mean
    total, number = 0.0, 0
    for i, item in enumerate(texts.item):
        if item < 0 or i == 1:  # padding, and the foil
            continue
        length = int(texts.mask[i].sum())
        ids = torch.cat([part[real] for part, real in zip(texts.ids[i], texts.mask[i], strict=True)])
        assert len(ids) == length
        known = method.decoder(method.words(ids[None, :-1]), encoded.extra.vectors[i : i + 1])[0]
        total += float(F.cross_entropy(known @ method.words.weight.T, ids[1:], reduction="sum").detach())
        number += length - 1
    assert int(actual.number) == number
    assert float(actual.total.detach()) == pytest.approx(total, rel=1e-10)


def test_the_decoder_is_causal_and_reads_the_vectors() -> None:
    torch.manual_seed(0)
    decoder = Decoder(DecoderConfig(), 16, 12).eval()
    words, vectors = torch.randn(2, 9, 16), torch.randn(2, 4, 16)
    before = decoder(words, vectors)
    words[:, 5] = torch.randn(2, 16)
    after = decoder(words, vectors)
    torch.testing.assert_close(after[:, :5], before[:, :5])
    assert not torch.allclose(after[:, 5], before[:, 5], atol=1e-3)
    assert not torch.allclose(after[:, 6:], before[:, 6:], atol=1e-5)
    assert not torch.allclose(decoder(words, torch.zeros_like(vectors))[:, :5], before[:, :5], atol=1e-3)


def test_groups_are_a_soft_assignment_without_noise() -> None:
    method = made()
    assert isinstance(method, HasTokenGroups)
    _, texts = batch()
    actual = method.train().token_groups(texts).weight
    assert actual.shape == (8, 3, 8)  # both parts of a text, one behind the other
    lengths = texts.mask.flatten(1).sum(1)
    real = torch.arange(8) < lengths[:, None]
    torch.testing.assert_close(actual.sum(1), real.float())
    assert torch.equal(actual, method.token_groups(texts).weight)


def test_the_baseline_decodes_from_its_one_vector() -> None:
    method = made("reconstruction=1", "text.pool=end", "text.causal=true", case="tgt-baseline")
    images, texts = captions(4)
    encoded = method.encode_texts(texts)
    assert encoded.extra.vectors.shape == (4, 1, 32)
    terms = step(method, images, texts, CLOCK)
    assert set(terms) == {"i2t", "t2i", "reconstruction"}
    assert method.decoder is not None
    value = method.decoder.cross.to_value.weight.grad
    assert value is not None
    assert value.abs().sum() > 0


def test_one_group_takes_every_token() -> None:
    method = made("text.groups=1")
    _, texts = captions(4)
    torch.testing.assert_close(method.token_groups(texts).weight[:, 0], texts.mask[:, 0].float())
    step(method.train(), *captions(4), CLOCK)
    query: Any = method.get_parameter("towers.text.stack.blocks.1.assign.to_query.weight")
    assert (query.grad == 0).all()  # nothing to choose from


def test_facts_count_tokens_groups_and_doubt() -> None:
    method = made()
    images, texts = captions(12)
    soft = method.token_groups(texts).weight
    mask = texts.mask[:, 0]
    owner = soft.argmax(1)
    taken = [[int(((o == k) & m).sum()) for k in range(3)] for o, m in zip(owner, mask, strict=True)]
    filled = [n for row in taken for n in row if n]
    doubt = [-float((p * p.log()).sum()) for p in soft.transpose(1, 2)[mask]]
    loss = Objective(method)(images, texts, CLOCK)
    expected = {
        "entropy": sum(doubt) / len(doubt),
        "tokens of a group": sum(filled) / len(filled),
        "empty groups": 1 - len(filled) / 36,
    }
    assert {name: float(x) for name, x in loss.facts.items()} == pytest.approx(expected, rel=1e-4)


def test_weights_of_nought_leave_a_term_and_its_parts_out() -> None:
    images, texts = captions(4)
    alone = made("reconstruction=0")
    assert alone.decoder is None
    assert set(step(alone, images, texts, CLOCK)) == {"i2t", "t2i"}
    blind = made("contrastive=0")
    for name, p in blind.named_parameters():
        p.requires_grad_(not name.startswith(("towers.image", "towers.to_image", "towers.to_text")))
    blind.towers.image.register_forward_hook(lambda *_: pytest.fail("an image was looked at"))
    assert set(step(blind.train(), images, texts, CLOCK)) == {"reconstruction"}
    trained = [p for p in blind.parameters() if p.requires_grad]
    assert all(p.grad is not None for p in trained)
    assert not blind.uses_images


def test_without_contrast_the_image_side_must_be_frozen() -> None:
    with pytest.raises(UserError, match=r"first rule .*towers\\\.\(image\|to_image\|to_text\)"):
        step(made("contrastive=0").train(), *captions(4), CLOCK)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (("contrastive=0", "reconstruction=0"), "nothing is left to learn"),
        (("image.pool=attention",), "mean of image tokens"),
        (("decoder.heads=5",), "no multiple of decoder.heads 5"),
        (("text.eps=0",), "text.eps"),
        (("text.groups=0",), "greater than 0"),
        (("text.tokens_per_group=.inf",), "finite"),
        (("scale=.inf",), "finite"),
    ],
)
def test_mistakes_in_the_config_are_one_line(changes: tuple[str, ...], said: str) -> None:
    with pytest.raises(UserError, match=said):
        made(*changes)


def test_a_learnt_scale_is_bounded_and_a_fixed_one_is_none() -> None:
    assert made().scale is None
    scale = made("learns_scale=true", "max_scale=50").scale
    assert scale is not None
    assert scale.maximum == 50
