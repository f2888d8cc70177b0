"""beta-CLIP: what meets what, its losses on worked numbers and against loops, and scores without a leak."""

import itertools
import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from make import CLOCK, TINY, batch, build
from torch import Tensor

from grainline.config import override, parse
from grainline.distributed import ddp_mean
from grainline.errors import UserError
from grainline.methods.beta_clip import BetaCLIP, BetaCLIPConfig, BetaCLIPExtra
from grainline.methods.shared import clamp_scales
from grainline.training.optim import param_groups
from grainline.training.recipe import read_recipe
from grainline.training.step import Objective, step
from grainline.types import CAPTION, FOIL, PHRASE, SENTENCE, Encoded, Pair, Term, rows

F64 = torch.float64
V = torch.tensor([[1, 0], [0.6, 0.8], [-0.8, 0.6], [0, -1]], dtype=F64)
T = torch.tensor([[0.8, 0.6], [0, 1], [-1, 0], [-0.6, -0.8]], dtype=F64)
CLS = torch.tensor([[0.8, 0.6], [-0.6, -0.8]], dtype=F64)
near = dict(abs=1e-5)


def beta_clip(**values: Any) -> BetaCLIP:
    settings = TINY | {"scale": 5.0, "pool_scale": 5.0} | values
    torch.manual_seed(0)
    return BetaCLIP(parse(BetaCLIPConfig, settings, "test")).double().eval()


def images_of(vector: Tensor, tokens: Tensor | None = None) -> Encoded:
    key = torch.arange(len(vector))
    tokens = vector[:, None, :][:, :0] if tokens is None else tokens
    return Encoded(vector, tokens, tokens.new_ones(tokens.shape[:2]).bool(), key, key)


def texts_of(vector: Tensor, image: list[int], level: list[int], record: Tensor | None = None) -> Encoded:
    """Texts; one of no image and no level above 0 is padding, a foil is of no image but a candidate."""
    level_, image_ = torch.tensor(level), torch.tensor(image)
    item = torch.arange(len(vector)).masked_fill((image_ < 0) & (level_ != FOIL), -1)
    extra = BetaCLIPExtra(level_, torch.zeros_like(vector) if record is None else record)
    none = vector[:, None, :][:, :0]
    return Encoded(vector, none, none[..., 0].bool(), item, image_, extra)


def loss_terms(method: BetaCLIP, images: Encoded, texts: Encoded) -> dict[str, Term]:
    pair = Pair(images, texts)
    return method.loss(pair, pair, CLOCK)


def values(terms: dict[str, Term]) -> dict[str, float]:
    """Every mean, weights left out."""
    return {name: float(ddp_mean(term.mean).detach()) for name, term in terms.items()}


def four_rows(last: bool = True) -> tuple[Encoded, Encoded]:
    """The fixed case of the specification: two images, a caption and a sentence each."""
    return images_of(CLS), texts_of(
        T, [0, 0, 1, 1 if last else -1], [CAPTION, SENTENCE, CAPTION, SENTENCE if last else 0], V
    )


def drawn(number: int = 5, slots: int = 4, seed: int = 1) -> tuple[Encoded, Encoded]:
    """Images with patches; texts of all levels, some padding, one foil; what texts see is not there yet."""
    g = torch.Generator().manual_seed(seed)
    unit = lambda *shape: F.normalize(torch.randn(*shape, generator=g, dtype=F64), dim=-1)  # noqa: E731
    image = torch.arange(number).repeat_interleave(slots)
    level = torch.tensor([CAPTION, SENTENCE, SENTENCE, PHRASE][:slots]).repeat(number)
    for place, kind in ((2, 0), (7, 0), (10, FOIL)):
        image[place], level[place] = -1, kind
    seeing = images_of(unit(number, 16), unit(number, 6, 16))
    order = torch.tensor([3, 0, 4, 1, 2])[:number]  # ids of images are not their places
    seeing = seeing._replace(image=order, item=order)
    owner = torch.where(image < 0, -1, order[image.clamp(min=0)])
    return seeing, texts_of(unit(number * slots, 16), owner.tolist(), level.tolist())


# What meets what.


def test_each_text_pools_the_patches_of_its_own_image() -> None:
    method = beta_clip()
    images, texts = drawn()
    met = method.before_gather(Pair(images, texts)).texts.extra.pooled
    for i in range(len(texts.item)):
        if texts.image[i] < 0:
            assert met[i].abs().sum() == 0
            continue
        own = int((images.image == texts.image[i]).nonzero())
        patches = F.normalize(images.tokens[own : own + 1], dim=-1)
        expected = method.pool(texts.vector[i][None, None], patches)[0, 0]
        torch.testing.assert_close(met[i], F.normalize(expected, dim=-1))
        alone = method.pool_images(rows(images, slice(own, own + 1)), rows(texts, slice(i, i + 1)))
        torch.testing.assert_close(met[i], alone[0])


@pytest.mark.parametrize("others", [None, {"sentences": 1}])
@pytest.mark.parametrize("form", ["ce", "bce"])
def test_a_image_that_comes_twice_has_texts_of_its_own_each_time(form: str, others: Any) -> None:
    """As in a batch that lies across two epochs: the crops of one image differ."""
    method = beta_clip(form=form, others=others, group=2, whole=0)
    images, texts = drawn()
    first, again = images.image[0], images.image[2]  # of another group
    again_is_first = lambda x: torch.where(x == again, first, x)  # noqa: E731
    images = images._replace(image=again_is_first(images.image))
    texts = texts._replace(image=again_is_first(texts.image))
    whole = method.before_gather(Pair(images, texts))
    parts = [
        method.before_gather(Pair(rows(images, slice(i, i + 2)), rows(texts, slice(4 * i, 4 * i + 8))))
        for i in (0, 2, 4)
    ]
    calls = [part.texts.extra.pooled for part in parts]
    torch.testing.assert_close(whole.texts.extra.pooled, torch.cat(calls))
    actual = values(method.loss(whole, whole, CLOCK))
    apart = [values(method.loss(part, part, CLOCK)) for part in parts]
    counted = {"others": 2}  # the last group has no other image, so it is in no mean of those
    for name in actual.keys() & {"pooled", "pooled i2t", "pooled t2i", "others"}:
        mean = sum(one[name] for one in apart) / counted.get(name, 3)
        assert actual[name] == pytest.approx(mean, rel=1e-6), name


def test_without_the_loss_of_summaries_no_parameter_is_left_out() -> None:
    """DistributedDataParallel ends a run whose step does not use all of them."""
    method = build("beta_clip", "whole=0", "image.pool=attention", "image.patches=attention")
    step(method, *batch(), CLOCK)
    assert [name for name, p in method.named_parameters() if p.grad is None] == []
    assert float(method.scale.log_scale.grad.abs()) == 0


# Losses on worked numbers.


def test_cross_entropy_and_the_loss_of_summaries_on_four_rows() -> None:
    actual = values(loss_terms(beta_clip(), *four_rows()))
    assert actual["pooled i2t"] == pytest.approx(1.318226, **near)
    assert actual["pooled t2i"] == pytest.approx(1.317775, **near)
    assert (actual["i2t"], actual["t2i"]) == (
        pytest.approx(0.000267, **near),
        pytest.approx(0.000483, **near),
    )


@pytest.mark.parametrize(
    ("beta", "expected"), [(0, 0.384667), (0.25, 0.944667), (0.75, 1.584667), (1, 1.784667)]
)
def test_both_directions_count_half(beta: float, expected: float) -> None:
    terms = loss_terms(beta_clip(beta=beta, whole=0, pooled=3), *four_rows())
    total = sum(term.weight * float(ddp_mean(term.mean).detach()) for term in terms.values() if term.weight)
    assert total == pytest.approx(3 * expected, abs=3e-5)


def test_padding_stays_in_the_denominators_if_requested() -> None:
    method = beta_clip(padding="candidates")
    actual = values(loss_terms(method, *four_rows(last=False)))
    assert (actual["pooled i2t"] + actual["pooled t2i"]) / 2 == pytest.approx(0.862056, **near)
    binary = values(loss_terms(beta_clip(padding="candidates", form="bce"), *four_rows(last=False)))
    assert binary["pooled"] == values(loss_terms(beta_clip(form="bce"), *four_rows(last=False)))["pooled"]


def test_padding_that_is_a_candidate_reads_as_its_first_token_and_sees_its_image() -> None:
    method, plain = beta_clip(padding="candidates"), beta_clip()
    images, texts = batch(4)
    images = images._replace(pixels=images.pixels.double())
    pair = method.before_gather(Pair(method.encode_images(images), method.encode_texts(texts)))
    none = texts.item < 0
    one = torch.zeros_like(texts.mask)
    one[:, 0, 0] = True
    alone = plain.encode_texts(texts._replace(mask=one)).vector
    torch.testing.assert_close(pair.texts.vector[none], alone[none])
    torch.testing.assert_close(pair.texts.vector[~none], plain.encode_texts(texts).vector[~none])
    for i in none.nonzero()[:, 0].tolist():  # two slots an image
        record = plain.pool_images(
            rows(pair.images, slice(i // 2, i // 2 + 1)), rows(pair.texts, slice(i, i + 1))
        )
        torch.testing.assert_close(pair.texts.extra.pooled[i], record[0])
    foil = int((texts.level == FOIL).nonzero())
    assert pair.texts.extra.pooled[foil].abs().sum() == 0


@pytest.mark.parametrize(
    ("divisor", "whole", "padded"),
    [("rows", 1.137833, 3.729429 / 3), ("pairs", 0.284458, 0.414381), ("slots", 0.284458, 0.233089)],
)
def test_binary_form_and_its_divisors(divisor: str, whole: float, padded: float) -> None:
    method = beta_clip(form="bce", divisor=divisor)
    assert values(loss_terms(method, *four_rows()))["pooled"] == pytest.approx(whole, **near)
    assert values(loss_terms(method, *four_rows(last=False)))["pooled"] == pytest.approx(padded, **near)


def test_only_captions_and_foils_meet_the_summary() -> None:
    images, texts = drawn()
    actual = values(loss_terms(beta_clip(), images, texts))
    kept = (texts.extra.level == CAPTION) & (texts.image >= 0)
    captions, foils = texts.vector[kept], texts.vector[texts.extra.level == FOIL]
    own = torch.stack([images.vector[images.image == i][0] for i in texts.image[kept]])
    logits = 5 * own @ torch.cat([captions, foils]).T
    target = torch.arange(len(captions))
    assert actual["i2t"] == pytest.approx(float(F.cross_entropy(logits, target)))
    assert actual["t2i"] == pytest.approx(float(F.cross_entropy(logits[:, : len(captions)].T, target)))


def test_detached_keys_learn_as_queries_only() -> None:
    grads = {}
    for detached in (False, True):
        images, texts = four_rows()
        images = images._replace(vector=CLS.clone().requires_grad_())
        terms = loss_terms(beta_clip(detach_keys=detached), images, texts)
        sum(ddp_mean(terms[name].mean) for name in ("i2t", "t2i")).backward()
        assert images.vector.grad is not None
        grads[detached] = images.vector.grad
    images, texts = four_rows()
    x = CLS.clone().requires_grad_()
    F.cross_entropy(5 * x @ T[[0, 2]].T, torch.arange(2)).backward()
    torch.testing.assert_close(grads[True], x.grad)
    assert not torch.allclose(grads[True], grads[False])


# Images pooled by texts of others.


def pooled_by(method: BetaCLIP, images: Encoded, texts: Encoded, image: int, text: int) -> Tensor:
    patches = F.normalize(images.tokens[image : image + 1], dim=-1)
    return F.normalize(method.pool(texts.vector[text][None, None], patches)[0, 0], dim=-1)


def chosen_rows(texts: Encoded, sentences: int, phrases: int) -> list[int]:
    """The caption of each image, its first sentences and its first phrases."""
    number: dict[tuple[int, int], int] = {}
    most = {CAPTION: 1, SENTENCE: sentences, PHRASE: phrases}
    actual = []
    for i, (image, level) in enumerate(zip(texts.image.tolist(), texts.extra.level.tolist(), strict=True)):
        if image >= 0 and level in most:
            number[image, level] = number.get((image, level), 0) + 1
            if number[image, level] <= most[level]:
                actual.append(i)
    return actual


@pytest.mark.parametrize("own", [False, True], ids=["others alone", "as in the code"])
@pytest.mark.parametrize("group", [None, 3])
@pytest.mark.parametrize("counts", [(0, 0), (1, 1)])
def test_cross_entropy_with_negatives_of_others_is_the_loop(
    own: bool, group: int | None, counts: tuple[int, int]
) -> None:
    others = {"sentences": counts[0], "phrases": counts[1], "own": own}
    method = beta_clip(others=others, group=group, beta=0.3, whole=0)
    images, texts = drawn()
    tokens = images.tokens.clone().requires_grad_()
    said = texts.vector.clone().requires_grad_()
    images, texts = images._replace(tokens=tokens), texts._replace(vector=said)
    pair = method.before_gather(Pair(images, texts))
    terms = method.loss(pair, pair, CLOCK)
    actual = torch.stack([ddp_mean(terms[f"pooled {way}"].mean) for way in ("i2t", "t2i")])
    grads = torch.autograd.grad(actual.sum(), (tokens, said, method.pool.to_key.weight), retain_graph=True)

    place = {int(image): i for i, image in enumerate(images.image)}
    real = [i for i in range(len(texts.item)) if texts.image[i] >= 0]
    of = {i: place[int(texts.image[i])] for i in real}
    calls = {i: pooled_by(method, images, texts, of[i], i) for i in real}
    chosen = chosen_rows(texts, *counts)
    size, scale = group or len(images.item), method.pool_scale()[0]
    means: list[Tensor] = []
    for way in range(2):
        by_group: dict[int, list[Tensor]] = {}
        for i in real:
            here = [j for j in real if of[j] // size == of[i] // size]
            members = [p for p in range(len(images.item)) if p // size == of[i] // size]
            extra = []
            for p, j in itertools.product(members, [c for c in chosen if of[c] // size == of[i] // size]):
                if of[j] == p:
                    continue
                if way == 1:  # texts against what others' texts see
                    extra.append(scale * said[i] @ pooled_by(method, images, texts, p, j))
                elif own or of[j] != of[i]:  # images against those texts, once for each image
                    extra.append(scale * calls[i] @ said[j])
            pairs = [scale * (calls[i] @ said[j] if way == 0 else said[i] @ calls[j]) for j in here]
            weight = [1.0 if i == j else 0.3 * (of[i] == of[j]) for j in here]
            lse = torch.stack([*pairs, *extra]).logsumexp(0)
            loss = sum(w * (lse - x) for w, x in zip(weight, pairs, strict=True)) / sum(weight)
            by_group.setdefault(of[i] // size, []).append(loss)
        means.append(torch.stack([torch.stack(one).mean() for one in by_group.values()]).mean())
    expected = torch.stack(means)
    torch.testing.assert_close(actual, expected)
    exact = torch.autograd.grad(expected.sum(), (tokens, said, method.pool.to_key.weight))
    for one, other in zip(grads, exact, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("group", [None, 3])
def test_binary_negatives_of_others_are_the_loop(group: int | None) -> None:
    method = beta_clip(others={"sentences": 1, "weight": 7.0}, group=group, form="bce", whole=0)
    images, texts = drawn()
    tokens, said = images.tokens.clone().requires_grad_(), texts.vector.clone().requires_grad_()
    images, texts = images._replace(tokens=tokens), texts._replace(vector=said)
    pair = method.before_gather(Pair(images, texts))
    term = method.loss(pair, pair, CLOCK)["others"]
    learn = (tokens, said, method.pool.to_value.weight, method.pool_scale.log_scale)
    grads = torch.autograd.grad(ddp_mean(term.mean), learn, retain_graph=True)
    place = {int(image): i for i, image in enumerate(images.image)}
    size = group or len(images.item)
    losses = []
    for p, j in itertools.product(range(len(images.item)), chosen_rows(texts, 1, 0)):
        owner = place[int(texts.image[j])]
        if owner != p and owner // size == p // size:
            cosine = pooled_by(method, images, texts, p, j) @ said[j]
            losses.append(F.softplus(method.pool_scale()[0] * cosine))
    expected = torch.stack(losses).mean()
    assert term.weight == 7.0
    torch.testing.assert_close(ddp_mean(term.mean), expected)
    exact = torch.autograd.grad(expected, learn)
    for one, other in zip(grads, exact, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-8, atol=1e-10)


# Scores.


def test_conditioned_scores_pool_every_image_by_every_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("grainline.methods.beta_clip.PAIRS", 3)
    method = beta_clip(scoring="conditioned")
    images, texts = drawn()
    score = method.score(images, texts)
    for i, j in itertools.product(range(5), range(20)):
        one = method.pool_images(rows(images, slice(i, i + 1)), rows(texts, slice(j, j + 1)))[0]
        torch.testing.assert_close(score[i, j], one @ texts.vector[j])
    assert method.score(rows(images, slice(0, 0)), texts).shape == (0, 20)
    assert method.score(images, rows(texts, slice(0, 0))).shape == (5, 0)


def test_scores_are_cosines_of_summaries_by_default() -> None:
    images, texts = drawn()
    assert torch.equal(beta_clip().score(images, texts), images.vector @ texts.vector.T)


# What learns, and how.


def test_both_temperatures_stay_between_1_and_100() -> None:
    method = beta_clip()
    for scale in (method.scale, method.pool_scale):
        for before, after in ((6.0, math.log(100)), (-1.0, 0.0), (3.0, 3.0)):
            torch.nn.init.constant_(scale.log_scale, before)
            clamp_scales(method)
            assert float(scale.log_scale.detach()) == pytest.approx(after)


def test_the_pooling_has_rates_of_its_own() -> None:
    train = read_recipe("beta_clip/official", []).train.optimizer
    method = build("beta_clip")
    groups = param_groups(method, train)
    fast = {name for group in groups if group["lr"] == pytest.approx(1e-3) for name in group["names"]}
    slow = {name for group in groups if group["lr"] == pytest.approx(1e-5) for name in group["names"]}
    assert fast == {name for name, _ in method.named_parameters() if name.startswith("pool")}
    assert slow == {name for name, _ in method.named_parameters() if not name.startswith("pool")}
    for group in groups:
        flat = {method.get_parameter(name).dim() < 2 for name in group["names"]}
        assert flat == {group["weight_decay"] == 0}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (["width=12"], "width 12 is not a multiple of 8 heads"),
        (["form=bce", "others.own=true"], "others.own goes with form ce"),
        (["pool_scale=200"], "pool_scale 200 is above max_scale 100"),
    ],
)
def test_what_does_not_go_together_is_refused(change: list[str], said: str) -> None:
    with pytest.raises(UserError, match=said):
        parse(BetaCLIPConfig, override(TINY, change), "test")


def test_pooling_in_half_precision_leaves_full_cosines() -> None:
    calls: list[Pair] = []

    class Spied(BetaCLIP):
        def before_gather(self, local: Pair) -> Pair:
            calls.append(super().before_gather(local))
            return calls[-1]

    method = Spied(parse(BetaCLIPConfig, TINY, "test"))
    half = Objective(method, torch.bfloat16)(*batch(), CLOCK)
    whole = Objective(method)(*batch(), CLOCK)
    assert calls[0].texts.extra.pooled.dtype == torch.float32
    assert not torch.equal(calls[0].texts.extra.pooled, calls[1].texts.extra.pooled)
    torch.testing.assert_close(half.total, whole.total, rtol=0.02, atol=0.0)
