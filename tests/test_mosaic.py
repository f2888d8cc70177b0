"""Mosaic: vectors, visual words, relations and phrases against loops, and what its parts promise."""

import math
import shutil
from pathlib import Path

import pytest
import torch
from make import WIDTH, batch, build
from runs import call, recipe
from safetensors.torch import load_file
from torch import Tensor

from grainline.data.texts import Chunking, encode_parts
from grainline.data.tokenizers.tokenizer import Tokenizer
from grainline.errors import UserError
from grainline.methods.maxsim import late_score
from grainline.methods.mosaic import Mosaic
from grainline.methods.relations import (
    WAVES,
    Looks,
    displacement,
    place_features,
    relation_score,
    span,
)
from grainline.nn.bag_of_words import BagOfWords
from grainline.nn.pooling import unit
from grainline.nn.runtime import static
from grainline.training.step import step
from grainline.types import Clock, Images, Pair, rows

SHARP, ROWS, COLUMNS = 5.0, 2, 3
PLACES = [((x + 0.5) / COLUMNS - 0.5, (y + 0.5) / ROWS - 0.5) for y in range(ROWS) for x in range(COLUMNS)]


def mosaic(case: str = "mosaic", *changes: str) -> Mosaic:
    """A fitted one whose words and relations count."""
    method = build(case, *changes)
    assert isinstance(method, Mosaic)
    for name in ("from_words", "from_text_words", "relations.to_relation"):
        if name in dict(method.named_modules()):
            torch.nn.init.normal_(method.get_submodule(name).weight)
    if method.relations is not None:
        torch.nn.init.ones_(method.relations.to_carry.bias)
    for words in (method.visual_words, method.text_words):
        if words is not None:
            words.fit(torch.rand(40, words.words.shape[1]))
    return method


def slow_root(x: Tensor) -> Tensor:
    total = sum(x.tolist())
    return torch.tensor([math.sqrt(one / total) for one in x.tolist()], dtype=torch.float64)


def slow_histogram(words: BagOfWords, tokens: Tensor, temperature: float) -> Tensor:
    histogram = torch.zeros(len(words.words), dtype=torch.float64)
    for token in tokens:
        away = token - words.centre.double()
        fits = [math.exp((away @ word / away.norm()).item() / temperature) for word in words.words.double()]
        histogram += torch.tensor([fit / sum(fits) for fit in fits], dtype=torch.float64) / len(tokens)
    return histogram


@pytest.mark.parametrize("pool", ["mean", "class"])
def test_the_vector_of_an_image_is_that_of_the_loop_and_the_mean_of_its_tokens(
    pool: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    method = mosaic("mosaic", f"image.pool={pool}")
    plain = method.towers.image_tokens

    def positive(images: Images) -> object:
        read = plain(images)
        patches = read.patches.abs()
        return read._replace(patches=patches, pooled=patches.mean(1) if pool == "mean" else read.pooled.abs())

    monkeypatch.setattr(method.towers, "image_tokens", positive)
    images, _ = batch()
    with torch.no_grad():
        encoded, read = method.encode_images(images), positive(images)
    words, temperature = method.visual_words, method.cfg.temperature
    assert words is not None
    to_image, from_words = (x.weight.detach().double() for x in (method.towers.to_image, method.from_words))
    for n in range(len(images.image)):
        histogram = slow_histogram(words, read.patches[n].double().sqrt(), temperature)
        vector = to_image @ slow_root(read.pooled[n]) + from_words @ slow_root(histogram)
        torch.testing.assert_close(encoded.vector[n].double(), vector / vector.norm(), atol=1e-5, rtol=1e-4)
        torch.testing.assert_close(encoded.tokens[n].double().mean(0), vector, atol=1e-5, rtol=1e-4)


def test_the_vector_of_a_text_has_its_words() -> None:
    method = mosaic()
    assert method.text_words is not None
    _, texts = batch()
    ids, mask = texts.ids[:, 0], texts.mask[:, 0]
    with torch.no_grad():
        read, encoded = method.towers.text(ids, mask), method.encode_texts(texts).tokens[:, 0].double()
        plain = method.towers.to_text(read.pooled).double()
    weight = method.from_text_words.weight.detach().double()
    for n in (texts.item >= 0).nonzero()[:, 0].tolist():
        histogram = slow_histogram(
            method.text_words, read.tokens[n][mask[n]].double(), method.cfg.temperature
        )
        vector = plain[n] + weight @ slow_root(histogram)
        torch.testing.assert_close(encoded[n], vector / vector.norm(), atol=1e-5, rtol=1e-4)


def test_a_histogram_reads_real_tokens_alone_and_its_gradient_is_that_of_the_loop() -> None:
    words = BagOfWords(5, 6, 0.5)
    words.fit(torch.randn(40, 6))
    words.double()
    lengths = [3, 0, 4, 1]
    tokens = torch.randn(4, 4, 6, dtype=torch.float64, requires_grad=True)
    mask = torch.arange(4) < torch.tensor(lengths)[:, None]
    rows = [words(tokens[n, :length]).sum(0) / max(1, length) for n, length in enumerate(lengths)]
    weight = torch.randn(4, 5, dtype=torch.float64)
    (expected,) = torch.autograd.grad((torch.stack(rows) * weight).sum(), tokens)
    with static():
        padded = words.histogram(tokens, mask)
    for histogram in (words.histogram(tokens, mask), padded):
        torch.testing.assert_close(histogram, torch.stack(rows))
        (gradient,) = torch.autograd.grad((histogram * weight).sum(), tokens)
        torch.testing.assert_close(gradient, expected)


def test_cached_images_are_counted_once_until_words_change(monkeypatch: pytest.MonkeyPatch) -> None:
    method, counted = mosaic("mosaic", "roots=false", "dropout=0"), list[int]()
    images, _ = batch()
    with torch.no_grad():
        read = method.towers.image_tokens(images)
    features = torch.cat([read.pooled[:, None], read.patches], 1).half()
    images = images._replace(features=features)
    plain, words = BagOfWords.forward, method.visual_words
    assert words is not None

    def forward(self: BagOfWords, tokens: Tensor) -> Tensor:
        counted.append(1)
        return plain(self, tokens)

    monkeypatch.setattr(BagOfWords, "forward", forward)
    for _ in range(2):  # of the second words nothing may be left of the first
        expected, number = method.eval().encode_images(images).vector, len(features)
        counted.clear()
        vector = method.train().encode_images(images).vector
        torch.testing.assert_close(vector, expected)
        assert counted == [1] * len(features.unique(dim=0))
        again = method.encode_images(rows(images, torch.arange(number).flip(0))).vector
        assert torch.equal(again.flip(0), vector)
        assert len(counted) == len(features.unique(dim=0))
        words.load_state_dict({name: torch.rand_like(x) for name, x in words.state_dict().items()})


def test_texts_of_a_frozen_encoder_are_counted_once_and_those_of_a_tuned_one_learn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    method, counted = mosaic("mosaic", "dropout=0"), list[int]()
    words, (_, texts) = method.text_words, batch()
    assert words is not None
    expected = method.eval().encode_texts(texts).vector
    plain = BagOfWords.forward

    def forward(self: BagOfWords, tokens: Tensor) -> Tensor:
        counted.append(len(tokens))
        return plain(self, tokens)

    monkeypatch.setattr(BagOfWords, "forward", forward)
    tuned = method.train().encode_texts(texts).vector
    torch.testing.assert_close(tuned, expected)
    (state,) = torch.autograd.grad(tuned[0, 0], next(method.towers.text.parameters()), allow_unused=True)
    assert len(counted) == 1
    assert state is not None
    method.towers.text.requires_grad_(requires_grad=False)
    counted.clear()
    vector = method.encode_texts(texts).vector
    torch.testing.assert_close(vector, expected)
    number = len(counted)
    assert number == len(texts.ids.masked_fill(~texts.mask, -1).flatten(0, 1).unique(dim=0))
    assert torch.equal(method.encode_texts(texts).vector, vector)
    assert len(counted) == number


def test_a_text_lies_between_its_whole_and_the_mean_of_its_sentences() -> None:
    method = mosaic("mosaic", "whole=0.25")
    _, texts = batch()
    alone = texts._replace(ids=texts.ids[:, :1], mask=texts.mask[:, :1])
    three = torch.cat([texts.ids, texts.ids[:, :1].flip(2)], 1), torch.cat([texts.mask, texts.mask[:, :1]], 1)
    whole, first, second = (
        method.encode_texts(alone._replace(ids=three[0][:, [i]], mask=three[1][:, [i]])).vector
        for i in range(3)
    )
    encoded = method.encode_texts(texts._replace(ids=three[0], mask=three[1]))
    real = texts.item >= 0
    expected = unit(0.25 * whole + 0.75 * (first + second) / 2)
    torch.testing.assert_close(encoded.vector[real], expected[real])
    assert encoded.mask[real].tolist() == [[False, True, True]] * int(real.sum())
    torch.testing.assert_close(method.encode_texts(alone).tokens[real, 0], whole[real])


def test_the_parts_of_a_text_are_its_whole_and_its_sentences() -> None:
    texts = ["A dog runs. The sea is grey.", "A dog runs."]
    tokenizer = Tokenizer.train(texts, vocab=560)
    parts = encode_parts(tokenizer, texts, 24, 5, Chunking(whole=True)).ids
    sentences = encode_parts(tokenizer, texts, 24, 5).ids
    assert parts == [[*encode_parts(tokenizer, texts[:1], 24, 1).ids[0], *sentences[0]], sentences[1]]


def test_visual_words_are_the_centres_of_clusters_and_found_once() -> None:
    centres = torch.eye(6)[:4] * 3
    tokens = centres.repeat_interleave(30, 0) + 0.01 * torch.randn(120, 6)
    words = BagOfWords(4, 6, 0.05)
    words.fit(tokens)
    expected = unit(centres - tokens.mean(0))
    assert sorted((words.words @ expected.T).argmax(1).tolist()) == [0, 1, 2, 3]
    assert (words(tokens).argmax(1).view(4, 30) == words(centres).argmax(1)[:, None]).all()
    again = BagOfWords(4, 6, 0.05)
    again.fit(tokens)
    assert torch.equal(words.words, again.words)


def test_a_fit_says_what_does_not_go() -> None:
    both = batch()
    with pytest.raises(UserError, match=r"a cell of this image encoder is -.*set model.roots=false"):
        mosaic_unfitted("roots=true").fit(*both)
    for name in ("visual_words", "text_words"):
        with pytest.raises(UserError, match=rf"tokens, fewer than the 99 words: set model.{name}=\d+$"):
            mosaic_unfitted("roots=false", f"{name}=99").fit(*both)
    method = mosaic_unfitted("roots=false")
    assert method.first_images > len(both[0].image)
    method.fit(*both)
    vocabularies = [x for x in method.modules() if isinstance(x, BagOfWords)]
    before = [x.words.clone() for x in vocabularies]
    assert [bool(x.any()) for x in before] == [True, True]
    method.fit(*batch(seed=1))  # a run that goes on, or begins with another, has them already
    assert all(torch.equal(x.words, y) for x, y in zip(vocabularies, before, strict=True))


def mosaic_unfitted(*changes: str) -> Mosaic:
    method = build("mosaic", *changes)
    assert isinstance(method, Mosaic)
    return method


def test_a_run_finds_its_words_once_and_goes_on_as_if_it_never_stopped(tmp_path: Path) -> None:
    out = tmp_path / "run"
    sizes = "model.visual_words=8", "model.text_words=8", "model.roots=false", "train.max_steps=4"
    assert call("train", recipe(tmp_path, "mosaic"), "--out", out, "--set", *sizes) == 0
    before = load_file(out / "last" / "model.safetensors")
    words = load_file(out / "checkpoints" / "step-00000002" / "model.safetensors")["visual_words.words"]
    assert words.any()
    shutil.rmtree(out / "checkpoints" / "step-00000004")
    assert call("train", out, "--resume") == 0
    after = load_file(out / "last" / "model.safetensors")
    assert torch.equal(words, after["visual_words.words"])
    assert all(torch.equal(before[name], after[name]) for name in before)


def slow_attention(patches: Tensor, real: Tensor, query: Tensor) -> list[Tensor]:
    weight = [(SHARP * (patch @ query)).exp() * keep for patch, keep in zip(patches, real, strict=True)]
    return [one / sum(weight) for one in weight]


def slow_displacement(begin: list[Tensor], end: list[Tensor]) -> Tensor:
    """Over all pairs of patches, where `displacement` needs each patch alone."""
    total = torch.zeros(2 + 2 * len(WAVES), dtype=torch.float64)
    for p, (x, y) in zip(begin, PLACES, strict=True):
        for q, (u, v) in zip(end, PLACES, strict=True):
            turns = [a * (x - u) + b * (y - v) for a, b in WAVES]
            plain = [2 * (x - u), 2 * (y - v)]
            total = total + p * q * torch.tensor(
                [*plain, *map(math.cos, turns), *map(math.sin, turns)], dtype=torch.float64
            )
    return total


def slow_score(images: Tensor, image_mask: Tensor, texts: Tensor, text_mask: Tensor, looks: Looks) -> Tensor:
    out = torch.zeros(len(images), len(texts), dtype=torch.float64)
    for n in range(len(images)):
        for m in range(len(texts)):
            fits = []
            for s in [s for s in range(texts.shape[1]) if text_mask[m, s]]:
                begin, end = (slow_attention(images[n], image_mask[n], q) for q in looks.ends[m, s])
                if s:
                    share = looks.carry[m, s]
                    earlier = slow_attention(images[n], image_mask[n], texts[m, s - 1])
                    begin = [(1 - share) * p + share * q for p, q in zip(begin, earlier, strict=True)]
                fits.append(slow_displacement(begin, end) @ looks.relation[m, s])
            out[n, m] = torch.stack(fits).mean() if fits else 0.0
    return out


def test_the_score_of_relations_is_the_loop_of_its_docstring() -> None:
    torch.manual_seed(0)
    images, texts = unit(torch.randn(2, 6, 5).double()), unit(torch.randn(3, 3, 5).double())
    image_mask, text_mask = torch.rand(2, 6) > 0.3, torch.tensor([[1, 1, 1], [1, 1, 0], [0, 0, 0]]).bool()
    width = 2 + 2 * len(WAVES)
    looks = Looks(
        unit(torch.randn(3, 3, 2, 5)).double(),
        torch.randn(3, 3, width).double(),
        torch.rand(3, 3),
        torch.rand(3, 3, 2),
    )
    looks = looks._replace(carry=looks.carry.double())
    features = place_features(ROWS, COLUMNS).double()
    leaves = [[x.clone().requires_grad_() for x in (images, looks.relation, looks.carry)] for _ in range(2)]
    (a, r, c), (b, s, d) = leaves
    fast = relation_score(
        a, image_mask, texts, text_mask, looks._replace(relation=r, carry=c), features, SHARP
    )
    slow = slow_score(b, image_mask, texts, text_mask, looks._replace(relation=s, carry=d))
    torch.testing.assert_close(fast, slow, atol=1e-6, rtol=1e-6)  # features are of single precision
    weight = torch.randn(2, 3).double()
    (fast * weight).sum().backward()
    (slow * weight).sum().backward()
    for one, other in zip(*leaves, strict=True):
        torch.testing.assert_close(one.grad, other.grad, atol=1e-6, rtol=1e-6)


def test_the_displacement_of_two_sure_places_is_that_of_their_coordinates() -> None:
    features = place_features(ROWS, COLUMNS)
    left, right = features[0], features[2]
    both = displacement(left, right)
    torch.testing.assert_close(both[:2], torch.tensor([-4 / 3, 0.0]))
    torch.testing.assert_close(displacement(right, left)[:2], -both[:2])


@pytest.mark.parametrize(
    ("part", "expected"), [((0.0, 0.5), [1, 5, 6, 2]), ((0.5, 1.0), [1, 7, 8, 2]), ((0.0, 0.01), [1, 5, 2])]
)
def test_a_span_has_the_first_and_the_last_token_of_its_text(
    part: tuple[float, float], expected: list[int]
) -> None:
    ids = torch.tensor([[1, 5, 6, 7, 8, 2, 0], [1, 2, 0, 0, 0, 0, 0], [0] * 7])
    out, mask = span(ids, ids > 0, *part)
    assert out[0][mask[0]].tolist() == expected
    assert [out[i][mask[i]].tolist() for i in (1, 2)] == [[1, 2], []]


def test_relations_begin_at_nothing_and_then_depend_on_the_sentence_before() -> None:
    images, texts = batch()
    fresh, method = build("mosaic-places"), mosaic("mosaic-places")
    a, b = fresh.encode_images(images), fresh.encode_texts(texts)
    each = [late_score(a.tokens, a.mask, b.tokens[:, [s], :WIDTH], b.mask[:, [s]], 10.0) for s in (0, 1)]
    plain = sum(each) / (1 + b.mask.sum(1))  # the mean of real sentences and an empty one
    torch.testing.assert_close(fresh.score(a, b), plain)
    own = [i for i in range(len(b.vector)) if b.image[i] >= 0]
    pairs = rows(a, b.image[own]), rows(b, torch.tensor(own))
    torch.testing.assert_close(fresh.heat(*pairs).sum(1), plain[b.image[own], own])
    b = method.encode_texts(texts)
    assert not torch.allclose(method.score(a, b), plain)
    turned = method.encode_texts(texts._replace(ids=texts.ids.flip(1), mask=texts.mask.flip(1)))
    torch.testing.assert_close(turned.tokens[0, 0], b.tokens[0, 1])
    assert not torch.allclose(method.score(a, turned), method.score(a, b))


def test_the_loss_of_relations_leaves_patches_and_sentence_vectors_alone() -> None:
    """Gradients of the towers' projections are those of sentences alone; nothing is added before `wait`."""
    grads = []
    for changes, epoch in (("wait=1", 0.5), ("wait=0", 0.5)):
        method = mosaic("mosaic-places", changes)
        terms = step(method, *batch(), Clock(epoch=epoch))
        assert (float(terms["relation i2t"]) == 0) == (changes == "wait=1")
        grads.append({name: p.grad for name, p in method.named_parameters()})
    for name in ("towers.to_image.weight", "scale.log_scale"):
        torch.testing.assert_close(grads[0][name], grads[1][name])
    assert grads[1]["relations.to_relation.weight"].abs().sum() > 0
    assert grads[1]["place_sharpness.log_scale"].abs().sum() > 0


@torch.no_grad()
def test_the_loss_of_phrases_is_the_loop_of_its_docstring() -> None:
    method = mosaic("mosaic-places")
    images, texts = batch()
    texts.ids[6], texts.mask[6] = texts.ids[4], texts.mask[4]
    both = Pair(method.encode_images(images), method.encode_texts(texts))
    owners: dict[tuple[float, ...], set[int]] = {}
    for m, image in enumerate(texts.image.tolist()):
        for s in range(texts.mask.shape[1]):
            if image >= 0 and both.texts.mask[m, s]:
                assert method.relations is not None
                for end in method.relations.looks(both.texts.tokens[m, s, WIDTH:][None, None]).ends[0, 0]:
                    owners.setdefault(tuple(end.tolist()), set()).add(image)
    losses = []
    for phrase, images_with in owners.items():
        query = torch.tensor(phrase)[None, None]
        real = torch.ones(1, 1, dtype=torch.bool)
        score = 7 * late_score(both.images.tokens, both.images.mask, query, real, 10.0)[:, 0].double()
        losses.append(-math.log(sum(score.softmax(0)[n] for n in images_with)))
    assert any(len(one) > 1 for one in owners.values())
    assert float(method._phrases(both, torch.tensor(7.0))) == pytest.approx(
        sum(losses) / len(losses), rel=1e-4
    )
