"""SEPS and LAPS against loops over their definitions, and what is asked of descriptions."""

import copy
import itertools
from typing import Any

import pytest
import torch
from make import TINY, batch, build
from pydantic import ValidationError
from torch import Tensor

from grainline.config import override, parse
from grainline.errors import UserError
from grainline.methods.heat import on_pixels
from grainline.methods.laps import LAPS, LAPSConfig
from grainline.methods.seps import SEPS, SEPSConfig
from grainline.nn.hashing import logistic
from grainline.nn.patch_selection import scoring
from grainline.types import Clock, Encoded, Images, Pair, Texts, each, full, rows

FINE = ("image.size=16", "keep_ratio=0.4", "aggregation_ratio=0.5")  # of 16 patches 7 stay, as 3 tokens
LATE = Clock(3, 2.0, 5)
KINDS = ("branches=both", "branches=sparse", "branches=dense", "branches=joint")
WAYS = [(x,) for x in KINDS] + [
    ("aggregation_ratio=null",),
    ("use_rest=false", "use_cls=false"),
    ("keep_ratio=1.0", "leaky_cosine=true", "matching=mean"),
    ("decision=hard_topk", "beta=0.5", "matching=topk", "top_k=2"),
]


def made(*changes: str) -> SEPS:
    torch.manual_seed(0)
    method = SEPS(parse(SEPSConfig, override(TINY, [*FINE, *changes]), "test"))
    for network in (method.selector.relevance.patches, method.selector.relevance.words):
        if network is not None:
            torch.nn.init.normal_(network[-1].weight)
    return method.double().eval()


def sides(method: Any, n: int = 4) -> tuple[Encoded, Encoded]:
    images, texts = images_and_texts(n)
    return method.encode_images(images), method.encode_texts(texts)


def images_and_texts(n: int = 4) -> tuple[Images, Texts]:
    images, texts = batch(n)
    g = torch.Generator().manual_seed(1)
    return images._replace(pixels=torch.rand(n, 3, 16, 16, generator=g).double()), texts


def norm(x: Tensor) -> Tensor:
    return (x - x.min()) / (x.max() - x.min() + 1e-8)


def unit(x: Tensor) -> Tensor:
    return x / x.norm(dim=-1, keepdim=True)


def patch_scores(method: Any, a: Encoded, words: Tensor) -> tuple[Tensor, ...]:
    """Of the patches of one image, in each branch: by a text, and by the description."""
    s, choice = method.selector, method.selector.choice
    v, report, beta = a.tokens[0], a.extra.description[0], choice.beta
    direction = unit(v.detach())
    by_text, by_told, by_image = (
        direction @ x.detach() for x in (unit(words.mean(0)), report, unit(v.mean(0)))
    )
    if getattr(method.cfg, "attention", "stretched") == "raw":
        return (by_text + by_image,)
    by_text, by_told, by_image = norm(by_text), norm(by_told), norm(by_image)
    own = 0.0 if s.predictor is None else (1 - 2 * beta) * s.predictor(v)
    if choice.branches == "joint":
        return ((own + beta * (by_text + by_told + 2 * by_image)) / (1 + 2 * beta),)
    sparse, dense = own + beta * (by_text + by_image), own + beta * (by_told + by_image)
    return {"both": (sparse, dense), "sparse": (sparse,), "dense": (dense,)}[choice.branches]


def decision(score: Tensor, number: int, clock: Clock | None, image: Tensor, item: Tensor) -> Tensor:
    """The best patches, or at some time of training those on which the lot falls."""
    if clock is None:
        kept = torch.zeros_like(score)
        kept[score.topk(number).indices] = 1.0
        return kept
    noise = logistic(clock, image, item[None], len(score))[0, 0].double()
    soft = torch.sigmoid(torch.log(score) - torch.log(1 - score) + noise)
    return (soft > 0.5).double() + soft - soft.detach()


def tokens_of(method: Any, a: Encoded, kept: list[Tensor], scores: tuple[Tensor, ...]) -> list[Tensor]:
    """The visual tokens of a pair, [P, D], with weights [P]."""
    s, v = method.selector, a.tokens[0]
    dropped = [d.detach() == 0 for d in kept]
    if s.slots is None:
        tokens, weight = v, 1 - torch.stack([1 - d for d in kept]).prod(0)
    else:
        logits, tokens = s.slots(v), torch.zeros_like(v[: s.slot_number])
        for d, drop in zip(kept, dropped, strict=True):
            top = logits.detach()[:, ~drop].amax(-1, keepdim=True)  # dropped patches reach no higher
            e = torch.where(drop, logits.minimum(top), logits).exp() * d
            tokens = tokens + (e / e.sum(-1, keepdim=True)) @ v
        weight = v.new_ones(len(tokens))
    spare = [x[drop].softmax(0) @ v[drop] for x, drop in zip(scores, dropped, strict=True) if drop.any()]
    beside = [torch.stack(spare).mean(0)] if s.choice.use_rest and spare else []
    beside += [a.extra.cls[0]] if a.extra.has_cls[0] else []
    if beside:
        tokens = torch.cat([tokens, torch.stack(beside)])
    return [tokens, torch.cat([weight, weight.new_ones(len(tokens) - len(weight))])]


def naive(method: Any, a: Encoded, b: Encoded, clock: Clock | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """Score of one image with one text, by the equations, and the share that each branch keeps."""
    s, words = method.selector, b.tokens[0][b.mask[0]]
    scores = patch_scores(method, a, words)
    none = torch.full_like(b.item, -1)
    items = [none if s.choice.branches == "dense" else b.item, none]  # the lot of a description knows no text
    kept = [decision(x, s.keep_number, clock, a.image, item) for x, item in zip(scores, items, strict=False)]
    tokens, weight = tokens_of(method, a, kept, scores)
    cosine = unit(tokens) @ unit(words).T
    cosine = torch.where(cosine < 0, 0.1 * cosine, cosine) if s.choice.leaky_cosine else cosine
    real = weight.detach() > 0
    patch, word = cosine.max(1).values, cosine[real].max(0).values
    total = cosine.new_zeros(())
    if s.relevance.means:
        total = (patch * weight).sum() / weight.sum() + word.mean()
    for network, x in ((s.relevance.patches, patch[real]), (s.relevance.words, word)):
        if network is not None:
            best = x.sort(descending=True).values.tolist()
            places = [min(i, len(best) - 1) for i in range(s.relevance.number)]
            total = total + network(x.sort(descending=True).values[places])[0]
    return total, kept[0].mean(), kept[-1].mean()


def looped(method: Any, a: Encoded, b: Encoded, clock: Clock | None = None) -> list[Tensor]:
    actual = [
        [naive(method, rows(a, slice(i, i + 1)), rows(b, slice(j, j + 1)), clock) for j in range(len(b.item))]
        for i in range(len(a.item))
    ]
    return [torch.stack([torch.stack([x[k] for x in row]) for row in actual]) for k in range(3)]


@pytest.mark.parametrize("changes", WAYS, ids=lambda x: "-".join(x))
@pytest.mark.parametrize("room", [1, 2**20], ids=["small", "large"])
def test_tiles_score_as_a_loop_over_pairs(
    changes: tuple[str, ...], room: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(scoring.TILE_SIZE, "cpu", room)
    method = made(*changes)
    a, b = sides(method)
    with torch.no_grad():
        b = rows(b, b.item >= 0)
        expected = looped(method, a, b)[0]
        torch.testing.assert_close(method.score(a, b), expected, rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(method.score(method.precompute(a), b), expected, rtol=1e-9, atol=1e-9)


@torch.no_grad()
def test_half_precision_counts_in_float32() -> None:
    method = made().float()
    halves = [each(lambda x: x.bfloat16() if x.is_floating_point() else x, one) for one in sides(made())]
    score = method.score(*halves)
    assert score.dtype == torch.float32
    torch.testing.assert_close(score, method.score(*(each(full, one) for one in halves)))


@pytest.mark.parametrize("room", [1, 2**20], ids=["small", "large"])
@pytest.mark.parametrize("attention", ["raw", "stretched"])
def test_laps_is_sparse_selection_with_means_and_leaky_cosines(
    attention: str, room: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its code adds raw cosines with weight 1; these also weigh the patches that do not stay."""
    monkeypatch.setitem(scoring.TILE_SIZE, "cpu", room)
    torch.manual_seed(0)
    changes = [] if attention == "raw" else ["attention=stretched"]
    method = LAPS(parse(LAPSConfig, override(TINY, [*FINE, *changes]), "test")).double()
    assert (method.cfg.attention, method.selector.predictor) == (attention, None)
    with torch.no_grad():
        a, b = sides(method)
        b = rows(b, b.item >= 0)
        expected = looped(method, a, b)[0]
        torch.testing.assert_close(method.score(a, b), expected, rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(method.score(method.precompute(a), b), expected, rtol=1e-9, atol=1e-9)


def loss_of(method: SEPS, a: Encoded, b: Encoded, clock: Clock) -> Tensor:
    """The loss of a batch by loops over all pairs, with everything in one graph."""
    hard = method.cfg.decision == "hard_topk"
    score, sparse, dense = looped(method, a, b, None if hard else clock)
    cosines = a.vector @ b.vector.T
    rule = (clock.epoch >= method.cfg.warmup, min(1.0, clock.epoch / (method.cfg.warmup or 1.0)))
    total = torch.zeros((), dtype=score.dtype)
    for s, weight in ((score, 1.0), (cosines, method.cfg.coarse)):
        for table, left, right in ((s, a, b), (s.T, b, a)):
            for i, j in itertools.product(range(len(left.item)), range(len(right.item))):
                if left.image[i] != right.image[j] or left.image[i] < 0:
                    continue
                others = [k for k in range(len(right.item)) if right.image[k] != left.image[i]]
                costs = torch.stack(
                    [(method.cfg.margin + table[i, k] - table[i, j]).clamp(0) for k in others]
                )
                total = total + weight * (costs.max() if rule[0] else costs.sum())
    if not hard:
        means = (sparse, dense) if method.cfg.branches == "both" else (sparse,)
        weights = method.cfg.ratio_weights if len(means) == 2 else (1.0,)
        kept = torch.stack([w * x for w, x in zip(weights, means, strict=True)]).sum(0)
        total = total + method.cfg.ratio * ((method.cfg.keep_ratio - kept) ** 2).mean()
    return rule[1] * total


@pytest.mark.parametrize("changes", WAYS, ids=lambda x: "-".join(x))
@pytest.mark.parametrize("clock", [Clock(2, 0.5, 5), LATE], ids=["all", "hardest"])
def test_gradients_of_the_pairs_that_count_are_those_of_all_pairs(
    changes: tuple[str, ...], clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(scoring.TILE_SIZE, "cpu", 2000)
    method = made(*changes)
    images, texts = images_and_texts()
    texts = rows(texts, texts.item >= 0)
    actual = []
    for way in ("tiles", "loop"):
        twin = copy.deepcopy(method)
        a, b = twin.encode_images(images), twin.encode_texts(texts)
        pair = Pair(a, b)
        if way == "loop":
            loss = loss_of(twin, a, b, clock)
        else:
            terms = [t for t in twin.loss(pair, pair, clock).values() if t.weight is not None]
            loss = torch.stack([t.weight * t.mean.total / t.mean.number for t in terms]).sum()
        loss.backward()
        actual.append([loss.detach(), *(p.grad for p in twin.parameters() if p.grad is not None)])
    assert len(actual[0]) > 20
    torch.testing.assert_close(*actual, rtol=1e-7, atol=1e-10)


def test_heat_is_what_patches_add_to_the_score_to_first_order() -> None:
    method = made()
    with torch.no_grad():
        a, b = sides(method)
        a, b = rows(a, slice(0, 3)), rows(b, torch.tensor([0, 2, 4]))
        heat = method.heat(a, b)
    assert heat.shape == a.mask.shape
    for i in range(3):
        one, text = rows(a, slice(i, i + 1)), rows(b, slice(i, i + 1))
        patches = one.tokens.clone().requires_grad_()
        score = naive(method, one._replace(tokens=patches), text)[0]
        slope = torch.autograd.grad(score, patches)[0]
        torch.testing.assert_close(heat[i], (patches * slope).sum(-1)[0].detach())
    assert on_pixels(method, a, heat, (16, 16)).shape == (3, 16, 16)


@pytest.mark.parametrize("case", ["seps", "laps", "seps-dense"])
def test_scores_have_gradients_by_the_tokens_of_images_that_ask_for_them(case: str) -> None:
    method = build(case)
    images, texts = method.encode_images(batch(3)[0]), method.encode_texts(batch(3)[1])
    tokens = images.tokens.detach().requires_grad_()
    score = method.score(images._replace(tokens=tokens), texts)
    torch.testing.assert_close(score.detach(), method.score(images, texts).detach(), atol=1e-5, rtol=1e-5)
    (slope,) = torch.autograd.grad(score[0, 0], tokens)
    assert slope[0].abs().sum() > 0
    assert (slope[1:] == 0).all()


def test_a_description_belongs_to_its_image_and_moves_its_row_alone() -> None:
    method = made()
    images, texts = images_and_texts()
    assert images.dense is not None
    with torch.no_grad():
        b = method.encode_texts(texts)
        plain = method.score(method.encode_images(images), b)
        order = torch.tensor([0, 2, 1, 3])
        other = method.score(method.encode_images(images._replace(dense=rows(images.dense, order))), b)
        both = method.score(method.encode_images(rows(images, order)), b)
    torch.testing.assert_close(both, plain[order])
    torch.testing.assert_close(other[[0, 3]], plain[[0, 3]])
    assert not torch.equal(other[[1, 2]], plain[[1, 2]])


def test_windows_of_a_description_are_read_one_by_one_and_averaged_over_all_words() -> None:
    method = made()
    images, _ = images_and_texts(1)
    dense = Texts(
        torch.tensor([[[5, 6, 7], [8, 9, 0]]]),
        torch.tensor([[[1, 1, 1], [1, 1, 0]]]).bool(),
        *(torch.zeros(1, dtype=torch.int64) for _ in range(3)),
    )
    with torch.no_grad():
        report = method.encode_images(images._replace(dense=dense)).extra.description[0]
        words = [
            method.towers.to_text(method.towers.text(ids[None], torch.ones(1, len(ids)).bool()).tokens)[0]
            for ids in (torch.tensor([5, 6, 7]), torch.tensor([8, 9]))
        ]
    torch.testing.assert_close(report, unit(torch.cat(words).mean(0)))


def test_images_without_descriptions_are_for_sparse_selection_alone() -> None:
    images, _ = images_and_texts()
    assert images.dense is not None
    bare = images._replace(dense=None)
    with pytest.raises(UserError, match="seps with branches: both reads a description of every image"):
        made().encode_images(bare)
    hole = images.dense._replace(mask=images.dense.mask & (torch.arange(4) != 2)[:, None, None])
    with pytest.raises(UserError, match="the description of image 2 is empty"):
        made().encode_images(images._replace(dense=hole))
    sparse = made("branches=sparse")
    a, b = sparse.encode_images(bare), sparse.encode_images(images)
    assert torch.equal(a.tokens, b.tokens)
    assert not a.extra.description.any()


def test_the_description_passes_no_gradient() -> None:
    method = made("branches=dense", "coarse=0")
    a = method.encode_images(images_and_texts()[0])
    (a.extra.description.sum() + 0 * a.tokens.sum()).backward()
    assert all(p.grad is None or not p.grad.any() for p in method.towers.text.parameters())


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        (("decision=hard_topk",), "hard_topk with beta 0.4"),
        (("beta=0.5",), "gumbel_st with beta 0.5"),
        (("image.pool=attention",), "image.pool attention would learn nothing"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(changes: tuple[str, ...], complaint: str) -> None:
    with pytest.raises((ValidationError, UserError), match=complaint):
        parse(SEPSConfig, override(TINY, list(changes)), "test")


def test_the_shares_that_stay_are_reported() -> None:
    method = made()
    a, b = sides(method)
    pair = Pair(a, b)
    terms = method.loss(pair, pair, LATE)
    for name in ("kept by texts", "kept by descriptions"):
        share = float(terms[name].mean.total / terms[name].mean.number)
        assert terms[name].weight is None
        assert 0 < share < 1
    assert float(terms["ratio"].mean.number) == 4 * 6  # images and texts that are no padding
