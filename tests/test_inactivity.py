"""Whether texts of other images look at nothing, against slow loops."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from indexes import tiny_model
from make import SEGMENTS, TINY
from PIL import Image
from readers import InMemory

from grainline.data.record import Cause, CorruptSample, Record
from grainline.data.texts import balanced_chunks
from grainline.errors import UserError
from grainline.evaluation.encode import Encodings
from grainline.evaluation.result import Result
from grainline.evaluation.statistics import replicates
from grainline.evaluation.suite import Settings
from grainline.evaluation.suites.inactivity import (
    AUROC,
    OTHER,
    OWN,
    WITHIN,
    EmptySlots,
    InactivitySuite,
    auroc,
    partners,
)
from grainline.methods.caft import CAFT
from grainline.methods.flair import FLAIR
from grainline.model import Model

CAFT_CHANGES = ("heads=2", "composer.depth=1", "composer.heads=2", "chunks=3")
TEXTS = (
    "A red dog runs. The cat sleeps. A blue bird.",
    "The house is green.",
    "A tree. A dog. Sand. Grass. The bird runs. It sleeps.",
    "A red dog runs. A green tree.",
    "The house is green.",
    "Two cats. Red sand.",
    "A blue bird runs over the grass to a house. The cat sleeps. Sand.",
)


def records(texts: Sequence[str] = TEXTS) -> list[Record]:
    out = []
    for i, text in enumerate(texts):
        pixels = np.random.default_rng(i).integers(0, 256, (8, 8, 3), dtype=np.uint8)
        out.append(Record(f"p{i}", Image.fromarray(pixels), (text,)))
    return out


def caft(seed: int = 0, values: dict[str, Any] = SEGMENTS) -> Model:
    """Weights of the pooling are made larger: texts look at different things."""
    model = tiny_model("caft", seed, values, CAFT_CHANGES)
    assert isinstance(model.method, CAFT)
    for parameter in model.method.pool.parameters():
        parameter.data *= 3
    return model


def measure(
    model: Model, source: Any, batch: int = 3, max_corrupt: float = 0.0, **settings: Any
) -> tuple[Encodings, Result]:
    shared = Settings(resamples=60, batch_size=batch, max_corrupt=max_corrupt, **settings)
    data = InactivitySuite().encode(model, source, shared)
    return data, InactivitySuite().measure(model.method, data, shared)


# The measure


def flat(lists: Sequence[Sequence[float]]) -> list[float]:
    return [value for one in lists for value in one]


def slow_auroc(own: Sequence[float], other: Sequence[float]) -> float:
    pairs = [(a > b) + 0.5 * (a == b) for a in other for b in own]
    return sum(pairs) / len(pairs)


def test_auroc_is_that_of_all_pairs() -> None:
    rng = np.random.default_rng(0)
    for values in (3, 10, 10**6):
        for _ in range(20):
            place, other = rng.integers(0, values, 30), rng.random(30) < 0.4
            other[:2] = True, False
            assert auroc(place, other) == pytest.approx(
                slow_auroc(place[~other].tolist(), place[other].tolist()), abs=1e-12
            )
    assert auroc(np.zeros(5, int), np.arange(5) > 2) == 0.5
    assert auroc(np.arange(5), np.arange(5) > 2) == 1.0


def test_every_text_meets_another_one_in_turn_whatever_the_order_and_copies() -> None:
    def split(text: str) -> list[str]:
        return text.split("|")

    texts = [f"t{i}" for i in range(9)]
    got = partners(texts, split)
    assert sorted(got) == sorted(got.values()) == texts
    assert all(text != other for text, other in got.items())
    walk, at = [], "t0"
    for _ in texts:
        walk.append(at)
        at = got[at]
    assert sorted(walk) == texts, "one round through all of them"
    assert walk != texts, "not the order of the files"
    assert partners([*texts[::-1], "t3", "t3"], split) == got
    assert partners(["a", "a"], split) == {}
    assert partners(["a|b", "a", "b|a"], split) == {"a": partners(["a|b", "a", "b|a"], split)["a"]}


# Outcomes


def slow_outcomes(
    model: Model, texts: Sequence[str], other: dict[str, str] | None = None, first: int = 0
) -> list[EmptySlots]:
    """One image and one text at a time. first: the number of the first image"""
    method = model.method
    assert isinstance(method, CAFT | FLAIR)

    def split(text: str) -> list[str]:
        return balanced_chunks(text, 3, method.chunking) if isinstance(method, CAFT) else [text]

    other = other or partners(texts, split)
    out = []
    rest = records([""] * first + list(texts))[first:]
    for record, text in zip(rest, texts, strict=True):
        images = model.encode(images=[record.image])
        sides = []
        for asked in (text, other[text]):
            weight = method.attention(images, model.encode(texts=[asked]))[0]
            one: dict[str, float] = {}
            for words, row in zip(split(asked), weight.tolist(), strict=True):
                one[words] = row[-1]
            sides.append(one)
        foreign = {
            words: value
            for words, value in sides[1].items()
            if words.strip(".") not in {x.strip(".") for x in sides[0]}
        }
        out.append(EmptySlots(tuple(sides[0].items()), tuple(foreign.items()), other[text]))
    return out


@pytest.mark.parametrize("kind", ["segments", "patches", "flair"])
def test_outcomes_and_metrics_are_those_of_loops(kind: str) -> None:
    model = caft(0, TINY if kind == "patches" else SEGMENTS) if kind != "flair" else tiny_model("flair")
    data, result = measure(model, InMemory(records()))
    slow = slow_outcomes(model, TEXTS)
    for got, one in zip(data.collected["inactivity"], slow, strict=True):
        assert got is not None
        assert got.foreign == one.foreign
        for a, b in zip((got.own, got.other), (one.own, one.other), strict=True):
            assert [words for words, _ in a] == [words for words, _ in b]
            assert [value for _, value in a] == pytest.approx([value for _, value in b], abs=1e-5)
    own, other = (
        [[v for _, v in getattr(one, side)] for one in data.collected["inactivity"]]
        for side in ("own", "other")
    )
    values = {
        AUROC: slow_auroc(flat(own), flat(other)),
        WITHIN: np.mean([slow_auroc(a, b) for a, b in zip(own, other, strict=True)]),
        OWN: np.mean(flat(own)),
        OTHER: np.mean(flat(other)),
    }
    for name, value in values.items():
        metric = result.metric(name)
        assert metric.value == pytest.approx(100 * value, abs=1e-7)
        assert metric.low <= metric.value <= metric.high
    assert [m.chance for m in result.metrics] == [50, 50, None, None]
    if kind != "flair":
        assert any(len(one) == 1 for one in own), "a text of one sentence counts once"
        assert sum(map(len, own)) > len(TEXTS)


def test_images_are_drawn_with_all_their_parts() -> None:
    rng = np.random.default_rng(1)
    scores = {
        OWN: [rng.integers(0, 9, n).tolist() for n in (3, 1, 2, 3)],
        OTHER: [rng.integers(2, 9, n).tolist() for n in (2, 3, 1, 3)],
    }
    suite, settings = InactivitySuite(), Settings(resamples=40, seed=3)
    cells = suite.metrics([{"scores": scores}], settings)
    drawn = replicates(
        np.arange(4), None, lambda x: float(int("".join(str(int(i)) for i in x))), resamples=40, seed=3
    )
    for k, row in enumerate(drawn):
        picked = [int(i) for i in f"{int(row):04d}"]
        own, other = (flat([scores[side][i] for i in picked]) for side in (OWN, OTHER))
        assert cells[AUROC].samples[k] == pytest.approx(slow_auroc(own, other), abs=1e-12)
        assert cells[OTHER].samples[k] == pytest.approx(np.mean(other))
    tied = set(flat(scores[OWN]))
    assert cells[AUROC].ties == sum(value in tied for value in flat(scores[OTHER]))


def test_a_image_without_a_foreign_part_is_left_out_and_cut_texts_count_once() -> None:
    texts = ["A dog. A cat.", "A dog.", "A dog."]
    model = caft()
    data, result = measure(model, InMemory(records(texts)))
    assert data.collected["inactivity"][0] is None
    assert result.queries["image"] == [1, 2]
    for text, got in zip(texts[1:], data.collected["inactivity"][1:], strict=True):
        (alone,) = slow_outcomes(model, [text], {text: texts[0]}, data.collected["inactivity"].index(got))
        assert got is not None
        assert [v for _, v in got.other] == pytest.approx([v for _, v in alone.other], abs=1e-5)
    assert "1 images have no other text to compare with and are left out" in result.notes
    with pytest.raises(UserError, match=r"^all texts of memory:test say the same; inactivity comp"):
        measure(caft(), InMemory(records(["A dog."] * 3)))
    long = "The red dog " + "runs over green grass " * 20
    data, _ = measure(caft(), InMemory(records([long, "A dog.", "A cat."])))
    assert data.cut == 1


def test_texts_of_damaged_images_can_be_requested_and_order_does_not_depend_on_the_bootstrap() -> None:
    some: list[Record | CorruptSample] = [*records(), CorruptSample(Cause.CORRUPT_IMAGE, "p7")]
    some.append(Record("p8", b"no image", ("A cat runs.",)))
    some.append(Record("p9", Image.new("RGB", (8, 8)), (" ",)))
    data, result = measure(caft(), InMemory(some), max_corrupt=0.5)
    assert len(data.keys) == 7
    assert "A cat runs." in {one.foreign for one in data.collected["inactivity"] if one is not None}
    again = measure(caft(), InMemory(some), max_corrupt=0.5, seed=5)[1]
    assert again.queries == result.queries
    assert again.metrics != result.metrics


# What is refused, the page and the command


def test_what_cannot_be_measured_is_refused() -> None:
    with pytest.raises(
        UserError, match=r"^texts of clip look at no image tokens, .*; --suite inactivity is for"
    ):
        measure(tiny_model("clip"), InMemory(records()))
    model = caft()
    data, _ = measure(model, InMemory(records()))
    slots = (EmptySlots((("a", 0.5),), (("b", float("nan")),), "b"),) * 7
    bad = data._replace(collected={"inactivity": slots})
    with pytest.raises(UserError, match=r"^7 of 14 scores are not a number"):
        InactivitySuite().measure(model.method, bad)
