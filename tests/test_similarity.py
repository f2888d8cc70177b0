"""How alike images look to their texts, and images pooled by their own captions, against slow loops."""

from collections.abc import Iterator, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from conditioned_method import NAME, Seer, known
from indexes import saved, tiny_model
from PIL import Image
from readers import InMemory, Reader, coloured
from runs import call, complaint
from test_intervals import interval
from torch import Tensor

from grainline.data.captions import sentences
from grainline.data.phrases.patterns import select, words_of
from grainline.data.phrases.providers import Rules
from grainline.errors import UserError
from grainline.evaluation.encode import Encodings, encode_source
from grainline.evaluation.evaluate_model import as_text
from grainline.evaluation.result import Result, read
from grainline.evaluation.statistics import ranks
from grainline.evaluation.suite import Settings
from grainline.evaluation.suites.retrieval import RetrievalSuite
from grainline.evaluation.suites.similarity import (
    ALL_TEXTS,
    NOTE,
    PHRASES,
    SENTENCES,
    SIM,
    TEXTS,
    OwnCaptionSuite,
    SimilaritySuite,
)
from grainline.loading import load
from grainline.methods.base import TextConditioned
from grainline.types import Encoded, rows

Capture = pytest.CaptureFixture[str]
PATCHES = 5


class Pooler:
    """Sees an image as the mean of its tokens, each weighed by what it has in common with the text."""

    def __init__(self, pairwise: bool = False, leaks: bool = False) -> None:
        self.pairwise, self.leaks, self.pairs = pairwise, leaks, list[int]()

    def pool_images(self, images: Encoded, texts: Encoded) -> Tensor:
        self.pairs.append(len(images.vector))
        assert images.tokens.shape[:2] == (len(texts.vector), PATCHES), "tokens of every image"
        if self.leaks:
            return texts.vector
        weight = (4 * torch.einsum("nld,nd->nl", images.tokens, texts.vector)).softmax(1)
        return F.normalize(torch.einsum("nl,nld->nd", weight, images.tokens), dim=1)

    blockwise = False

    def precompute(self, images: Encoded) -> Encoded:
        return images

    def score(self, images: Encoded, texts: Encoded) -> Tensor:
        if not self.pairwise:
            return images.vector @ texts.vector.T
        i, j = torch.cartesian_prod(torch.arange(len(images.item)), torch.arange(len(texts.item))).T
        named = rows(texts, j)
        return (self.pool_images(rows(images, i), named) * named.vector).sum(1).view(len(images.item), -1)


class Toy(Reader):
    """Random tokens for each colour, a random vector for each text."""

    lean = 0.3

    def __init__(self, pairwise: bool = False, leaks: bool = False, seed: int = 0) -> None:
        super().__init__(seed=seed)
        self.method: Any = Pooler(pairwise, leaks)

    def of(self, text: str) -> tuple[Tensor, Tensor]:
        own = self.random(text)
        return own[0], own

    def patches(self, image: Image.Image) -> Tensor:
        return self.random(image.getpixel((0, 0)), PATCHES)


THINGS = ("a red dog", "the wet cat", "two birds", "an old house", "a small tree", "the grey sea")
RANDOM = np.random.default_rng(0)
CAPTIONS = [
    " ".join(
        f"{THINGS[a].capitalize()} stands next to {THINGS[b]}."
        for a, b in RANDOM.integers(0, 6, (1 + i % 8, 2))
    )
    for i in range(23)
]


def encoded(model: Toy, texts: Sequence[str], batch: int = 7) -> Encodings:
    return SimilaritySuite().encode(model, InMemory(coloured(texts)), Settings(batch_size=batch))  # type: ignore[arg-type]


def measured(model: Toy, texts: Sequence[str] = CAPTIONS, batch: int = 7, **settings: Any) -> Result:
    data = encoded(model, texts, batch)
    return SimilaritySuite().measure(model.method, data, Settings(**settings))


def own_captions(model: Toy, texts: Sequence[str], batch: int = 7, **settings: Any) -> Result:
    suite, shared = OwnCaptionSuite(), Settings(batch_size=batch, **settings)
    return suite.measure(model.method, suite.encode(model, InMemory(coloured(texts)), shared), shared)  # type: ignore[arg-type]


# Sim


def mean_of_pairs(vectors: Sequence[Tensor]) -> float:
    return float(np.mean([float(a @ b) for a, b in combinations(vectors, 2)]))


@pytest.mark.parametrize("batch", [1, 7, 64])
def test_values_are_those_of_loops_over_images_texts_and_pairs(batch: int) -> None:
    model = Toy()
    result = measured(model, CAPTIONS, batch, resamples=200, seed=3)
    assert max(model.method.pairs) <= batch, "each pair brings all tokens of its image"
    per_image: dict[str, dict[int, tuple[float, float]]] = {SENTENCES: {}, PHRASES: {}, ALL_TEXTS: {}}
    number = 0
    for i, caption in enumerate(CAPTIONS):
        apart = list(dict.fromkeys(piece.text for piece in sentences(caption)))[:5]
        worth = [words_of(caption, one) for one in select(caption, Rules().phrases(caption), "content")][:30]
        every = [caption, *apart, *worth]
        number += len(set(every))
        tokens = model.random(f"({i}, 0, 0)", PATCHES).double()
        for kind, texts in ((SENTENCES, apart), (PHRASES, worth), (ALL_TEXTS, every)):
            own = [model.random(text, 1)[0].double() for text in dict.fromkeys(texts)]
            features = []
            for text in own:
                weight = torch.tensor([4 * float(token @ text) for token in tokens]).softmax(0)
                mean = sum(w * token for w, token in zip(weight, tokens, strict=True))
                features.append(mean / mean.norm())  # type: ignore[union-attr, operator]
            if len(own) > 1:
                per_image[kind][i] = mean_of_pairs(features), mean_of_pairs(own)
    assert len(per_image[SENTENCES]) < len(per_image[ALL_TEXTS]) == 23
    for kind, values in per_image.items():
        assert result.queries["kinds"][kind]["image"] == list(values)
        for name, column in ((SIM, 0), (TEXTS, 1)):
            metric = result.metric(f"{name}, {kind}")
            ours = np.array([value[column] for value in values.values()])
            wanted = interval(ours, resamples=200, seed=3)
            assert (metric.value, metric.low, metric.high) == pytest.approx(tuple(wanted), abs=1e-6)
            assert (metric.queries, metric.chance, metric.unit) == (len(ours), None, "cosine")
    assert result.data["texts"] == number
    assert len(result.metrics) == 6


def test_long_captions_give_their_first_sentences_and_phrases_each_once() -> None:
    texts = [f"A dog number{i} sits on a rug number{i}." for i in range(40)]
    (got,) = encoded(Toy(), [" ".join([texts[0], *texts])]).collected["similarity"]
    assert got.number == {SENTENCES: 5, PHRASES: 30, ALL_TEXTS: 36}
    assert got.texts[1:6] == tuple(texts[:5])
    assert got.texts[6:8] == ("A dog number0", "a rug number0")
    (clean,) = encoded(Toy(), ["A very very red dog."]).collected["similarity"]
    assert clean.texts == ("A very red dog.", "A very red dog")
    (short,) = encoded(Toy(), ["A dog runs. A cat sits. A dog runs."]).collected["similarity"]
    assert short.texts == (
        "A dog runs. A cat sits. A dog runs.",
        "A dog runs.",
        "A cat sits.",
        "A dog",
        "A cat",
    )
    assert short.number[SENTENCES] == 2
    assert (short.each[1] + short.each[2]) / 2 < 1, "a text is not compared with itself"
    one = Toy()
    own, others = ([one.random(text, 1)[0] for text in some] for some in (short.texts[3:4], short.texts[4:5]))
    assert short.cosine[PHRASES][1] == pytest.approx(float(own[0] @ others[0]), abs=1e-6)


def test_images_with_too_few_texts_are_left_out_and_counted() -> None:
    result = measured(
        Toy(), ["A dog runs. It is wet. The cat sits on a rug.", "Nice", "A dog sits near a cat."]
    )
    assert result.queries["kinds"][SENTENCES]["image"] == [0]
    assert result.queries["kinds"][PHRASES]["image"] == [0, 2]
    assert "sentences: 2 of 3 images have fewer than two and are left out" in result.notes
    assert "phrases: 1 of 3 images have fewer than two and are left out" in result.notes
    assert "all texts: 1 of 3 images have fewer than two and are left out" in result.notes
    result = measured(Toy(), ["A dog sits near a cat.", "A man sits near a tree."])
    assert {m.name for m in result.metrics} == {
        f"{n}, {k}" for n in (SIM, TEXTS) for k in (PHRASES, ALL_TEXTS)
    }
    assert "sentences: 2 of 2 images have fewer than two and are left out" in result.notes
    with pytest.raises(UserError, match=r"^no caption of memory:test has two texts"):
        measured(Toy(), ["Nice", "Nice"])


# Own captions


def test_ranks_are_those_of_the_dense_matrix() -> None:
    texts = [f"Word{i} and word{(7 * i) % 50} and word{(3 * i) % 50}." for i in range(50)]
    model = Toy()
    result = own_captions(model, texts, resamples=100)
    named = model.encode(texts=texts)
    colours = [Image.new("RGB", (2, 2), (i, 0, 0)) for i in range(50)]
    features = model.method.pool_images(model.encode(images=colours), named)
    score = (features.double() @ named.vector.double().T).float()
    own = torch.eye(50).bool()
    for name, matrix in (("image to captions", score), ("caption to images", score.T)):
        rank = ranks(matrix, own).rank.numpy()
        for k in (1, 5, 10):
            metric = result.metric(f"own-caption R@{k}, {name}")
            wanted = interval(100.0 * (rank <= k), resamples=100)
            assert (metric.value, metric.low, metric.high) == pytest.approx(tuple(wanted))
            assert metric.chance == pytest.approx(2 * k)
        assert 0.02 < (rank <= 10).mean() < 1
    assert len(result.metrics) == 6
    assert all(metric.name.startswith("own-caption") for metric in result.metrics)


def test_a_block_that_returns_the_text_is_perfect_there_and_at_chance_in_a_fair_measure() -> None:
    texts = [f"Word{i} has word{i + 1}." for i in range(200)]
    leaky = own_captions(Toy(leaks=True), texts)
    assert {metric.value for metric in leaky.metrics} == {100}
    assert NOTE in leaky.notes
    out = as_text(leaky)
    assert NOTE in " ".join(out.split())
    blind = Toy(pairwise=True, leaks=True)
    fair = RetrievalSuite().measure(blind.method, encode_source(blind, InMemory(coloured(texts))))
    assert fair.metric("text to image R@1").value == 0.0
    assert fair.metric("text to image R@1").ties == 200, "every image scores the same"
    assert fair.metric("image to text R@1").value <= 0.5
    assert fair.metric("text to image R@1").chance == pytest.approx(0.5)


def test_mistakes_end_in_one_line() -> None:
    with pytest.raises(UserError, match=r"^clip gives no vector of an image as a text .* such as beta_clip$"):
        SimilaritySuite().check(tiny_model("clip"), InMemory(coloured(CAPTIONS)))
    assert isinstance(Pooler(), TextConditioned)


# The command


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A method that pools images by texts, as a folder."""
    with known():
        yield saved(tiny_model(NAME), tmp_path / "model")


def test_pairs_are_scored_in_the_way_that_is_requested(folder: Path, tmp_path: Path, capsys: Capture) -> None:
    raw = [Image.new("RGB", (9, 9), colour) for colour in ("red", "blue", "grey")]
    named = ["A red dog runs.", "A blue bird sleeps."]
    plain, paired = load(folder, device="cpu"), load(folder, device="cpu", scoring="conditioned")
    assert (plain.method.pairwise, paired.method.pairwise) == (False, True)
    images, texts = plain.encode(images=raw), plain.encode(texts=named)
    torch.testing.assert_close(plain.score(images, texts), images.vector @ texts.vector.T)
    method = paired.method
    assert isinstance(method, Seer)
    for i in range(3):
        for j in range(2):
            image, text = rows(images, slice(i, i + 1)), rows(texts, slice(j, j + 1))
            wanted = (method.pool_images(image, text) * text.vector).sum()
            torch.testing.assert_close(paired.score(images, texts)[i, j], wanted)
    ask = ["evaluate", folder, "--data", "scenes:dev?count=5&size=40"]
    a, b = tmp_path / "a.json", tmp_path / "b.json"
    assert call(*ask, "--json", a) == 0
    assert call(*ask, "--scoring", "conditioned", "--json", b, "--compare-to", a) == 0
    first, second = read(a), read(b)
    assert (first.settings["scoring"], second.settings["scoring"]) == ("vectors", "conditioned")
    assert first.queries != second.queries
    assert second.settings["compared_to"]["scoring"] == "vectors"
    assert any("a.json was made with other scores of pairs: vectors" in note for note in second.notes)
    assert "difference" in capsys.readouterr().out
    assert call(*ask, "--suite", "probes", "--scoring", "conditioned") == 0


def test_other_ways_to_score_are_refused_in_one_line(folder: Path, tmp_path: Path, capsys: Capture) -> None:
    ask = ["evaluate", folder, "--data", "scenes:dev?count=3"]
    text = complaint(capsys, *ask, "--scoring", "fair")
    assert "--scoring: field 'scoring' is 'fair'" in text
    assert "'vectors' or 'conditioned'" in text
    text = complaint(capsys, *ask, "--suite", "similarity", "--scoring", "conditioned")
    assert "--scoring goes with suites that use the scores of the method; similarity compares vectors" in text
    clip = saved(tiny_model("clip"), tmp_path / "clip")
    ask = ["evaluate", clip, "--data", "scenes:dev?count=3&size=40"]
    text = complaint(capsys, *ask, "--scoring", "conditioned")
    assert "--scoring: field 'scoring' is 'conditioned': it must be 'whole' or 'sentences'" in text
