"""Whether an image shows a sentence: p against loops, false ticks and power in a drawn world."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from indexes import TEXTS, photos, texts, tiny_model
from PIL import Image

from grainline.data.captions import sentences
from grainline.data.other_texts import EVERYDAY
from grainline.index.calibration import (
    PHOTOGRAPHS,
    SCENES,
    CalibrationTexts,
    Standard,
    best_hits,
    described_images,
    gather_texts,
    write_calibration,
)
from grainline.index.reader import IndexReader
from grainline.index.search import Index, Options, open_index
from grainline.index.store import (
    CALIBRATION,
    NULL_SENTENCES,
    NULL_SPANS,
    NULL_TEXTS,
    SEGMENTS,
    Manifest,
    ModelId,
    Row,
    write_manifest,
    write_segment,
)
from grainline.index.sync import build
from grainline.types import Encoded

QUERY = "A red dog runs. The sand is green. A blue cat sleeps."


def indexed(folder: Path, number: int = 20) -> Index:
    """An index of random images, calibrated with texts."""
    build(
        photos(folder / "photos", number),
        folder / "index",
        model=tiny_model(),
        calibration_texts=texts(folder),
    )
    return open_index(folder / "index", tiny_model())


def test_the_best_hit_of_a_text_is_never_its_own_image() -> None:
    rng = np.random.default_rng(0)
    score, own = rng.normal(size=(50, 7)).round(1).astype(np.float16), rng.random((50, 7)) < 0.3
    best_score, best_row = best_hits([(score[:3], own[:3]), (score[3:3], own[3:3]), (score[3:], own[3:])])
    for column in range(7):
        best, row = min((-float(score[i, column]), i) for i in range(50) if not own[i, column])
        assert (best_row[column], best_score[column]) == (row, pytest.approx(-best))


def test_without_texts_those_are_used_that_fit_what_the_model_was_trained_on(tmp_path: Path) -> None:
    for paths, source in (("scenes:train", SCENES), ("photos/", PHOTOGRAPHS), (None, PHOTOGRAPHS)):
        if paths is not None:
            (tmp_path / "recipe.yaml").write_text(f"data: {{paths: ['{paths}']}}\n")
        texts = gather_texts(None, tmp_path if paths else None)
        assert texts.source == source
        assert (texts.texts == EVERYDAY) == (source == PHOTOGRAPHS)
    assert len(set(EVERYDAY)) == len(EVERYDAY) >= 295
    assert {len(sentences(text)) for text in EVERYDAY} == {1, 2, 3}
    index = build(photos(tmp_path / "own", 18), tmp_path / "index", model=tiny_model())
    assert index.images == 18
    notes = open_index(tmp_path / "index", tiny_model()).search(["A dog."])[0].notes
    assert "p was calibrated with 295 built-in descriptions of everyday photographs" in notes[0]


def test_spans_are_runs_of_sentences_with_the_aside_and_short_texts_go_on(tmp_path: Path) -> None:
    long = [" ".join(f"Thing {i} has part {j}." for j in range(8)) for i in range(20)]
    (tmp_path / "long.txt").write_text("\n".join(long))
    null = gather_texts(str(tmp_path / "long.txt"))
    assert null.counts == (8,) * 20
    assert null.span_counts == (2, 3, 4, 6) * 5
    for text, aside, span, count in zip(
        null.texts, null.sentences, null.spans, null.span_counts, strict=True
    ):
        assert span in text
        assert aside in span
        assert len(sentences(span)) == count
    (tmp_path / "short.txt").write_text("\n".join(f"Thing {i} stands alone." for i in range(20)))
    short = gather_texts(str(tmp_path / "short.txt"))
    assert short.counts == (1,) * 20
    assert short.spans[0] == "Thing 0 stands alone. Thing 1 stands alone."
    assert short.span_counts == (2, 3, 4, 6) * 5


# p, step by step


@pytest.mark.parametrize("method", ["maxsim", "clip"])
def test_p_of_every_sentence_is_that_of_the_steps_in_loops(
    method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("grainline.index.calibration.MIN_TEXTS", 11)
    model = tiny_model(method)
    root = photos(tmp_path / "photos", 20)
    build(root, tmp_path / "index", model=model, calibration_texts=texts(tmp_path), chunk=8)
    index = open_index(tmp_path / "index", model)
    every, steps, values = np.arange(20), _Steps(index), set()
    for query in (QUERY, f"{TEXTS[0]} {TEXTS[9]}", TEXTS[5], f"{TEXTS[20]} A cat."):
        hits = index.search([query], 6, Options(shortlist=None))[0].hits
        each = index.score(every, model.encode(texts=[sentence.text for sentence in hits[0].sentences]))
        levels = np.sort(each, 0)[-4:].mean(0)  # of twenty images all are background, and four are a fifth
        whole = index.score(every, model.encode(texts=[query]))[:, 0]
        null = [steps.help_of_null(i) for i in steps.near(len(levels))]
        best = [steps.best(i) for i in steps.near(len(levels))]
        for hit in hits:
            row = index.reader.numbers[hit.path]
            if len(levels) > 1:
                standard = (whole[row] - whole.mean()) / whole.std()
                reached = sum(one >= standard - 1e-6 for one in best)
                assert hit.p == pytest.approx((1 + reached) / (1 + len(best))), "by texts of about as many"
            for tested, sentence in zip(each[row] - levels, hit.sentences, strict=True):
                help = steps.help(tested, whole, whole[row], len(levels))
                reached = sum(one <= help * (1 + 1e-9) for one in null)
                assert sentence.p == pytest.approx((1 + reached) / (1 + len(null)), abs=1e-6)
                assert sentence.verdict == ("shows" if sentence.p <= 0.05 else "cannot tell")
                values.add(sentence.p)
    assert len(values) > {"clip": 3, "maxsim": 1}[method]


class _Steps:
    """The steps of calibration.py, one value at a time."""

    def __init__(self, index: Index) -> None:
        opened = index.reader
        every = np.arange(len(opened))
        self.aside = opened.take(NULL_SENTENCES, every).astype(np.float64)
        number = len(opened.calibration_texts.texts)
        self.whole = [
            opened.take(name, every).astype(np.float64)[:, i]
            for name in (NULL_TEXTS, NULL_SPANS)
            for i in range(number)
        ]
        self.count = [
            len(sentences(text))
            for text in (*opened.calibration_texts.texts, *opened.calibration_texts.spans)
        ]
        self.level = [np.sort(self.aside[:, i])[-4:].mean() for i in range(number)]
        self.pool = [self.aside[n, i] - self.level[i] for n in every for i in range(number)]
        self.number = number

    def near(self, count: int) -> list[int]:
        """Eleven, and those that are as near as the last of them."""
        apart = [abs(np.log(one / count)) if one > 1 else np.inf for one in self.count]
        return [i for i, value in enumerate(apart) if value <= sorted(apart)[10] + 1e-9]

    def usual(self, count: int) -> float:
        return float(np.median([self.best(i) for i in self.near(count)]))

    def best(self, i: int) -> float:
        return float((self.whole[i].max() - self.whole[i].mean()) / self.whole[i].std())

    def tail(self, x: float) -> float:
        return (1 + sum(value >= x - 1e-12 for value in self.pool)) / (1 + len(self.pool))

    def help(self, tested: float, whole: np.ndarray, hit: float, count: int) -> float:
        margin = hit - (whole.mean() + whole.std() * self.usual(count))
        return min(1.0, self.tail(tested) / self.tail(tested - count * margin))

    def help_of_null(self, i: int) -> float:
        whole, aside = self.whole[i], i % self.number
        row = int(whole.argmax())
        return self.help(self.aside[row, aside] - self.level[aside], whole, whole[row], self.count[i])


# What it is for: a world in which the truth is known


IMAGES, QUERIES = 300, 400


def _world(folder: Path, power: float, seed: int, own: bool) -> tuple[IndexReader, np.random.Generator]:
    """An index whose scores are drawn: sentences that are false of an image score N(level, 1).

    power  how much higher a true sentence scores, on average
    """
    rng = np.random.default_rng(seed)
    counts = rng.integers(3, 8, QUERIES)
    spans = np.array([(2, 3, 4, 6)[i % 4] for i in range(QUERIES)])
    level = rng.normal(0, 0.5, QUERIES)
    aside = rng.normal(size=(IMAGES, QUERIES)) + level

    def whole(count: np.ndarray) -> np.ndarray:
        rest = rng.normal(size=(IMAGES, QUERIES)) * np.sqrt(count - 1)
        return (aside + rest) / count

    right = rng.normal(power, 1, QUERIES) + level
    other = rng.normal(power, 1, QUERIES) * np.sqrt(counts - 1) + power * (counts - 1 - np.sqrt(counts - 1))
    pairs = tuple(zip(((right + other) / counts).tolist(), right.tolist(), strict=True)) if own else ()
    names = tuple(map(str, range(QUERIES)))
    null = CalibrationTexts(
        "x.txt", names, ("",) * QUERIES, names, names, tuple(counts.tolist()), tuple(spans.tolist()),
        tuple(range(QUERIES)), pairs,
    )  # fmt: skip
    arrays = {NULL_TEXTS: whole(counts), NULL_SENTENCES: aside, NULL_SPANS: whole(spans)}
    rows = [Row(f"{i}.png", f"{rng.integers(2**60):x}", 1, 1) for i in range(IMAGES)]
    empty = Encoded(*(torch.zeros(1) for _ in range(5)))
    part = write_calibration(folder / CALIBRATION / "00000000", null, {NULL_TEXTS: empty})
    half = {name: array.astype(np.float16) for name, array in arrays.items()}
    half["vectors"] = np.eye(IMAGES, dtype=np.float32)
    segment = write_segment(folder / SEGMENTS / "00000001", rows, half)
    write_manifest(folder, Manifest(ModelId("", "clip", "x"), str(folder), part, (segment,), 2))
    return IndexReader(folder), rng


def _judged(opened: IndexReader, rng: np.random.Generator, count: int, power: float | None) -> np.ndarray:
    """p of the sentences of 300 queries in their first three hits; in the right image, if power is given."""
    some = opened.background
    out = []
    for _ in range(300):
        each = rng.normal(size=(IMAGES, count)) + rng.normal(0, 0.5, count)
        if power is not None:
            each[0] += power
        whole = each.mean(1)
        hits = np.argsort(-whole)[:3]
        mean = Standard(whole[some].mean(keepdims=True), whole[some].std(keepdims=True))
        levels = np.sort(each[some], 0)[-51:].mean(0)
        p = opened.calibration.p(count, whole[hits], mean, each[hits] - levels)
        out += [p] if power is None else [p[i : i + 1] for i in range(3) if hits[i] == 0]
    return np.concatenate(out)


@pytest.mark.parametrize("count", [2, 5])
def test_of_false_sentences_in_the_hits_of_a_query_without_a_match_a_twentieth_is_ticked(
    count: int, tmp_path: Path
) -> None:
    opened, rng = _world(tmp_path, 3.0, count, own=True)
    p = _judged(opened, rng, count, None)
    assert 0.02 < (p[::3] <= 0.05).mean() < 0.08, "in best hits"
    assert (p[1::3] <= 0.05).mean() < 0.05
    assert (p[2::3] <= 0.05).mean() < 0.05
    assert 0.1 < (p[::3] <= 0.2).mean() < 0.28, "p is a share at other levels too"


def test_true_sentences_of_the_right_image_keep_their_ticks_and_the_index_knows_how_many(
    tmp_path: Path,
) -> None:
    opened, rng = _world(tmp_path, 2.5, 0, own=True)
    share = float((_judged(opened, rng, 5, 2.5) <= 0.05).mean())
    assert share > 0.6
    assert opened.calibration.power(0.05) == pytest.approx(share, abs=0.12)
    low = opened.calibration.p_if_true(np.array([-99.0, np.sort(opened.calibration.true_tested)[199], 99.0]))
    assert low == pytest.approx([1 / 401, 201 / 401, 1.0])


def test_power_is_unknown_without_own_images_and_nothing_where_right_images_do_not_come_up(
    tmp_path: Path,
) -> None:
    assert _world(tmp_path / "a", 2.5, 1, own=False)[0].calibration.power(0.05) is None
    assert _world(tmp_path / "b", 0.0, 2, own=True)[0].calibration.power(0.05) < 0.2  # type: ignore[operator]


# What a search says


@pytest.fixture
def index(tmp_path: Path) -> Index:
    """An index of twenty images."""
    model = tiny_model()
    build(photos(tmp_path / "photos", 20), tmp_path / "index", model=model, calibration_texts=texts(tmp_path))
    return open_index(tmp_path / "index", model)


def calibrated(
    index: Index, patch: pytest.MonkeyPatch, p: list[list[float]], low: list[list[float]], power: float | None
) -> None:
    """Let the calibration of an index give these values for hits and their sentences."""
    calibration = index.reader.calibration
    patch.setattr(calibration, "p", lambda *_: np.array(p))
    patch.setattr(calibration, "p_if_true", lambda _: np.array(low))
    patch.setattr(calibration, "power", lambda _: power)


@pytest.mark.parametrize(
    ("power", "verdicts", "note"),
    [
        (0.6, ["shows", "does not", "cannot tell"], ""),
        (None, ["shows", "cannot tell", "cannot tell"], "the calibration texts have no images"),
        (0.19, ["cannot tell"] * 3, "this model is too weak to judge single sentences"),
    ],
)
def test_three_verdicts_and_the_warning_of_a_weak_model(
    power: float | None, verdicts: list[str], note: str, index: Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    calibrated(index, monkeypatch, [[0.04, 0.5, 0.5]] * 2, [[0.9, 0.04, 0.9]] * 2, power)
    answer = index.search([QUERY], 2)[0]
    second = answer.hits[1].sentences
    assert [one.verdict for one in second] == verdicts
    assert [one.p for one in second] == [0.04, 0.5, 0.5]
    assert any(one.startswith(note) for one in answer.notes) if note else not answer.notes


@pytest.mark.parametrize("level", [0.0, 1.0])
def test_a_match_is_in_part_where_the_image_does_not_show_a_sentence(
    level: float, index: Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    calibrated(index, monkeypatch, [[0.5] * 3] * 2, [[0.9, 0.9, 0.9], [0.9, 0.04, 0.9]], 0.6)
    answer = index.search([QUERY], 2, Options(level=level))[0]
    assert [hit.match for hit in answer.hits] == (["sure", "in part"] if level else ["none", "none"])
    assert answer.match == answer.hits[0].match
    plain = index.search([QUERY], 2, Options(level=1.0, sentences=False))[0]
    assert [hit.match for hit in plain.hits] == ["sure", "sure"]


def test_a_query_of_one_sentence_has_the_p_of_its_hit(index: Index) -> None:
    for hit in index.search(["A red dog runs."], 5)[0].hits:
        assert [one.p for one in hit.sentences] == [hit.p]


def test_too_few_images_never_count_as_showing_a_sentence(tmp_path: Path) -> None:
    for hit in indexed(tmp_path, 15).search([QUERY], 15)[0].hits:
        assert {(one.p, one.verdict) for one in hit.sentences} == {(1.0, "cannot tell")}


def test_texts_with_images_say_what_true_sentences_score(tmp_path: Path) -> None:
    model = tiny_model()
    root, captioned = photos(tmp_path / "photos", 20), photos(tmp_path / "captioned", 24)
    for i, path in enumerate(sorted(captioned.rglob("*.png"))):
        path.with_suffix(".txt").write_text(TEXTS[i])
    (captioned / "04.png").write_bytes(b"no image any more")
    build(root, tmp_path / "index", model=model, calibration_texts=str(captioned))
    opened = IndexReader(tmp_path / "index")
    null = opened.calibration_texts
    known = [i for i, pair in enumerate(null.image_scores) if pair is not None]
    assert len(known) == 23
    paths = {path.with_suffix(".txt").read_text(): path for path in captioned.rglob("*.png")}
    for i in known[::5]:
        pair: Any = null.image_scores[i]
        score = model.score([Image.open(paths[null.texts[i]])], [null.texts[i], null.sentences[i]])[0]
        assert pair == pytest.approx(score.tolist(), abs=1e-5)
    above = opened.take(NULL_TEXTS, np.arange(20))[:, known] > opened.calibration.true_score
    others = ~described_images(opened.hashes, null.image_hashes)[:, known]  # copies of those in the index
    assert (~others).sum() == 19
    assert opened.calibration.true_rank.tolist() == (above & others).sum(0).tolist()
