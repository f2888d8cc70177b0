"""Subtexts, HiMo@2, HiMo@3 and HiMo@K against loops; the figure; HiMo-Docci as data."""

import json
import math
import re
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from indexes import tiny_model
from PIL import Image
from readers import D, InMemory, Reader
from torch import Tensor

from grainline.data.benchmarks.long_captions import HimoDocci
from grainline.data.captions import sentences
from grainline.data.formats.common import digest
from grainline.data.open_source import open_source
from grainline.data.record import Record
from grainline.errors import UserError
from grainline.evaluation.encode import Encodings
from grainline.evaluation.result import Result
from grainline.evaluation.suite import Settings
from grainline.evaluation.suites.monotonicity import (
    EACH,
    HALVES,
    LONG,
    MEANS,
    THIRDS,
    MonotonicitySuite,
    boundaries,
    correlation,
    cumulative,
    rises,
    sequences,
    ties,
)
from grainline.report.case import cases_html
from grainline.report.charts import added, subtext_case

CONTEXT = 12  # words


class Taught(Reader):
    """Its scores rise with the words that it reads."""

    def of(self, text: str) -> tuple[Tensor, Tensor]:
        words = min(len(text.split()), self.context)
        vector = torch.tensor([math.sin(0.05 * words), math.cos(0.05 * words), *[0.0] * (D - 2)])
        return vector, vector[None]

    def patches(self, image: Image.Image) -> Tensor:  # noqa: ARG002
        return torch.eye(D)[:1]


WORDS = ("dog", "cat", "tree", "river", "stone", "house", "cloud", "street", "lamp", "window", "oak", "field")


def caption(i: int, number: int) -> str:
    return " ".join(f"The {WORDS[(i + k) % len(WORDS)]} is {WORDS[(i * k + 5) % 12]}." for k in range(number))


def records(numbers: Sequence[int] = (1, 2, 3, 4, 5, 7, 2, 6, 9, 3)) -> list[Record]:
    image = [Image.new("RGB", (4, 4), (20 * i + 30,) * 3) for i in range(len(numbers))]
    return [Record(f"p{i}", image[i], (caption(i, n),)) for i, n in enumerate(numbers)]


def listed(model: Reader, source: Sequence[Record] = (), **settings: Any) -> Encodings:
    got = InMemory(source or records())
    return MonotonicitySuite().encode(model, got, Settings(**settings))


def measured(model: Reader, source: Sequence[Record] = (), **settings: Any) -> Result:
    return MonotonicitySuite().measure(
        model.method, listed(model, source), Settings(resamples=50, **settings)
    )


# --- subtexts ---


def test_the_parts_are_those_of_the_paper() -> None:
    thirds = {n: boundaries(n, 3) for n in range(3, 10)}
    assert thirds == {
        3: [1, 2, 3], 4: [1, 2, 4], 5: [1, 3, 5], 6: [2, 4, 6], 7: [2, 4, 7], 8: [2, 5, 8], 9: [3, 6, 9],
    }  # fmt: skip
    halves = [boundaries(n, 2) for n in range(2, 8)]
    assert [(a, b - a) for a, b in halves] == [(1, 1), (1, 2), (2, 2), (2, 3), (3, 3), (3, 4)]


TEXTS = (
    'He said "No. Never!" and left. It rains!The sky is grey. Dr. Wu sits 3.5 m away.',
    "A list:\n1. a dog\n2. a cat\n\nThen   nothing. ",
    "图片里有一只狗。它在跑。天是蓝的。",
    " one line without a mark ",
)


@pytest.mark.parametrize("text", TEXTS)
def test_subtexts_are_beginnings_of_the_caption_with_single_blanks(text: str) -> None:
    got, whole = cumulative(text), " ".join(text.split())
    assert len(got) == len(sentences(text)) >= 1
    assert got[-1] == whole
    assert all(whole.startswith(one) for one in got)
    assert list(map(len, got)) == sorted({len(one) for one in got})
    assert got[0] == " ".join(sentences(text)[0].text.split())


def test_a_source_with_subtexts_of_its_own_keeps_them_as_they_are() -> None:
    own = ("A dog,", "A dog, wet.", "A dog; wet. Old.")
    got = sequences("A dog, wet. Old. Tired.", own)
    assert got[EACH] == own
    assert got[HALVES] == ("A dog, wet.", "A dog, wet. Old. Tired.")
    assert len(got[THIRDS]) == 3


def test_what_is_read_alike_is_encoded_once_and_ties() -> None:
    model = Reader(context=6)
    data = listed(model, records((5, 5)))
    got = data.collected["monotonicity"]
    assert got is not None
    assert len(model.texts) == len(set(model.texts))
    assert len(got.strings) == 10
    for places in got.sequences[
        EACH
    ]:  # four words a sentence: of each caption the texts from the second are cut
        row = got.row[list(places)].tolist()
        assert len(set(row)) == 2
        assert [got.cut[t] for t in places] == [False, True, True, True, True]
    assert len(model.texts) == 4
    assert data.cut == 8, "texts that were cut, encoded or not"


# --- metrics ---


def test_a_tie_is_no_rise() -> None:
    assert not rises([0.2, 0.2])
    assert rises([0.1, 0.2, 0.3])
    assert not rises([0.1, 0.3, 0.3])
    assert not rises([0.3, 0.2])
    assert ties([0.1, 0.1, 0.3])


def slow_correlation(y: Sequence[float]) -> float:
    k = len(y)
    mx, my = (k + 1) / 2, sum(y) / k
    above = sum((x - mx) * (s - my) for x, s in enumerate(y, 1))
    below = math.sqrt(sum((x - mx) ** 2 for x in range(1, k + 1)) * sum((s - my) ** 2 for s in y))
    return above / below if below > 1e-12 else 0.0


@pytest.mark.parametrize(
    ("scores", "rho"),
    [
        ((0.234, 0.243, 0.247, 0.275), 0.926859),
        ((0.277, 0.268, 0.254, 0.255), -0.936329),
        ((0.266, 0.277, 0.280, 0.286, 0.295, 0.296, 0.297), 0.966231),
        ((0.303, 0.315, 0.314, 0.314, 0.312, 0.316, 0.302, 0.303, 0.306, 0.312), -0.227767),
        ((0.1, 0.1, 0.1), 0.0),
        ((0.7,), 0.0),
        ((0.1, 0.3), 1.0),
    ],
)
def test_correlations_of_the_paper(scores: Sequence[float], rho: float) -> None:
    assert correlation(scores) == pytest.approx(rho, abs=1e-6)
    assert slow_correlation(scores) == pytest.approx(rho, abs=1e-6)


@pytest.mark.parametrize("pairwise", [False, True])
def test_metrics_are_those_of_a_loop_over_all_captions(pairwise: bool) -> None:
    model = Reader(pairwise, CONTEXT)
    result = measured(model)
    wanted: dict[str, list[float]] = {HALVES: [], THIRDS: [], EACH: [], LONG: []}
    for record in records():
        pieces = [s.text for s in sentences(record.captions[0])]

        def scores(
            ends: Sequence[int], pieces: Sequence[str] = pieces, image: Any = record.image
        ) -> list[float]:
            return [model.score(image, " ".join(pieces[:end])) for end in ends]

        n = len(pieces)
        for name, k in ((HALVES, 2), (THIRDS, 3)):
            if n >= k:
                s = scores([(i * n) // k for i in range(1, k + 1)])
                wanted[name].append(all(s[i] + 1e-7 < s[i + 1] for i in range(k - 1)))
        wanted[EACH].append(slow_correlation(scores(range(1, n + 1))))
        wanted[LONG] += wanted[EACH][-1:] if n >= 4 else []
    for name, values in wanted.items():
        got = result.metric(name)
        scale = 100 if got.unit == "%" else 1
        assert got.value == pytest.approx(scale * np.mean(values), abs=1e-4), name
        assert got.queries == len(values), name
    assert [result.metric(name).chance for name in wanted] == pytest.approx([50, 100 / 6, 0, 0])
    assert result.metric(HALVES).wilson is not None
    assert 0 < result.metric(HALVES).value < 100
    assert result.metric(EACH).unit == "correlation"


def test_a_model_that_cannot_read_on_ties_and_the_notes_say_so() -> None:
    result = measured(Taught(context=9), records((2, 4, 6, 9)))  # two sentences of four words, and one word
    assert result.metric(HALVES).value == 50, "the halves of six and nine sentences are read alike"
    assert [result.metric(name).ties for name in (HALVES, THIRDS, EACH)] == [2, 2, 3]
    notes = "\n".join(result.notes)
    assert "3 of 4 samples have two or more subtexts that are longer than the model reads" in notes
    assert f"{HALVES}: 2 samples have a tie" in notes
    assert f"{EACH}: 3 samples have a tie" in notes
    assert result.data["cut_texts"] == sum(sum(cut) for cut in result.queries["sequences"][EACH]["cut"]) == 13


@pytest.mark.parametrize(
    ("method", "changes", "note"),
    [
        ("maxsim", (), "mean_of_parts"),
        ("clip", ("scoring=sentences",), "by_sentence"),
        ("clip", (), None),
        ("mosaic", ("places=true", "text_words=0", "roots=false"), "empty_part"),
    ],
)
def test_a_mean_over_sentences_is_noted_and_is_a_running_mean(
    method: str, changes: tuple[str, ...], note: str | None
) -> None:
    model, each = tiny_model(method, changes=changes), ["A dog.", "A cat sleeps.", "A tree."]
    record = Record("a", Image.new("RGB", (9, 9), "red"), (" ".join(each),))
    result = measured(model, [record])  # type: ignore[arg-type]
    assert [name for name, text in MEANS.items() if text in result.notes] == ([note] if note else [])
    if method == "maxsim":
        image = model.encode(images=[record.image])
        single = [float(model.similarity(image, model.encode(texts=[one]))) for one in each]
        means = [np.mean(single[: k + 1]) for k in range(len(single))]
        assert result.queries["sequences"][EACH]["scores"][0] == pytest.approx(means, abs=1e-6)


def test_captions_with_too_few_sentences_are_left_out_and_counted() -> None:
    result = measured(Reader(context=99), records((1, 1, 2, 3, 5)))
    assert [(m.name, m.queries) for m in result.metrics] == [(HALVES, 3), (THIRDS, 2), (EACH, 5), (LONG, 1)]
    notes = "\n".join(result.notes)
    assert f"{HALVES} leaves out 2 of 5 samples with fewer than 2 sentences" in notes
    assert f"{THIRDS} leaves out 3 of 5 samples with fewer than 3 sentences" in notes
    assert f"{LONG} leaves out 4 of 5 samples with fewer than 4 subtexts" in notes
    few = measured(Reader(context=CONTEXT), records((2, 2)))
    assert [m.name for m in few.metrics] == [HALVES, EACH]


def test_what_cannot_be_measured_is_one_line() -> None:
    with pytest.raises(UserError, match="no caption of memory:test has two sentences"):
        measured(Reader(context=CONTEXT), records((1, 1)))


# --- HiMo-Docci ---


def himo(folder: Path, rows: Sequence[Any], name: str = "himo.json") -> str:
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_text("\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows))
    return str(path)


def docci(i: int) -> dict[str, Any]:
    raw = f"A dog of kind {i}. It is wet , and old. The sea is grey. A bird flies."
    steps = [f"A dog of kind {i}.", f"A dog of kind {i}. It is wet, and old.", raw.replace(" ,", ",")]
    return {"img_path": f"test_{i:05}.jpg", "caption": steps, "raw_caption": raw}


@pytest.fixture
def images(tmp_path: Path) -> Path:
    folder = tmp_path / "images"
    folder.mkdir()
    for i in range(3):
        Image.new("RGB", (40, 40), (80 * i, 9, 9)).save(folder / f"test_{i:05}.jpg")
    return folder


@pytest.mark.parametrize("name", ["himo.json", "himo.jsonl"])
@pytest.mark.parametrize("number", [1, 3])
def test_himo_docci_is_recognised(tmp_path: Path, images: Path, name: str, number: int) -> None:
    rows = [docci(i) for i in range(number)]
    source = open_source(himo(tmp_path, rows, name), images=str(images))
    assert isinstance(source, HimoDocci)
    got = source[number - 1]
    assert got.captions == (rows[-1]["raw_caption"],)
    assert got.subtexts == tuple(rows[-1]["caption"])
    assert (got.key, len(source)) == (rows[-1]["img_path"], number)
    named = open_source(f"himo-docci:{himo(tmp_path, rows, name)}", images=str(images))
    assert named.fingerprint() == source.fingerprint()


def test_subtexts_are_a_field_of_any_description(tmp_path: Path, images: Path) -> None:
    rows = [{"image": "test_00000.jpg", "caption": "A dog. Wet.", "subtexts": ["A dog.", " A dog. Wet. "]}]
    source = open_source(himo(tmp_path, rows, "rows.jsonl"), images=str(images))
    assert source[0].subtexts == ("A dog.", "A dog. Wet.")
    plain = [{name: value for name, value in rows[0].items() if name != "subtexts"}]
    bare = open_source(himo(tmp_path, plain, "bare.jsonl"), images=str(images))
    assert bare[0].subtexts == ()
    assert bare.fingerprint() == digest(["test_00000.jpg", 1, "A dog. Wet.", ""])
    assert source.fingerprint() == digest(
        ["test_00000.jpg", 1, "A dog. Wet.", "", 2, "A dog.", "A dog. Wet."]
    )


def test_the_metrics_of_himo_docci_take_its_own_subtexts(tmp_path: Path, images: Path) -> None:
    source = open_source(himo(tmp_path, [docci(i) for i in range(3)]), images=str(images))
    model = Reader(context=99)
    data = MonotonicitySuite().encode(model, source)
    result = MonotonicitySuite().measure(model.method, data, Settings(resamples=10))
    of = result.queries["sequences"]
    assert [of[name]["subtexts"] for name in (HALVES, THIRDS, EACH)] == [[2] * 3, [3] * 3, [3] * 3]
    assert [of[EACH]["scores"][i][0] == of[THIRDS]["scores"][i][0] for i in range(3)] == [True] * 3
    assert of[EACH]["scores"][0][2] != of[THIRDS]["scores"][0][2], "its last subtext is spelt another way"


def test_the_real_file_is_as_it_was_described(shared_data: Path, tmp_path: Path) -> None:
    path = shared_data / "benchmarks" / "himo-docci" / "himo_docci_data.json"
    if not path.is_file():
        pytest.skip(f"no HiMo-Docci at {path}")
    with pytest.raises(UserError, match=r"none of the 1000 images .*test_00000\.jpg"):
        open_source(str(path))
    Image.new("RGB", (8, 8)).save(tmp_path / "test_00000.jpg")
    source = open_source(str(path), images=str(tmp_path))
    every = {entry.record.key: entry.record for entry in source.entries}  # type: ignore[attr-defined]
    assert len(every) == 1000
    assert all(len(b) > len(a) for one in every.values() for a, b in pairwise(one.subtexts))
    assert sum(said.captions == said.subtexts[-1:] for said in every.values()) == 859
    assert source[0].subtexts[0] == "A high angle view of an old faded street corner."


# --- the figure ---


def test_the_table_says_what_was_cut_and_what_ties() -> None:
    texts = ["A <b>dog</b>.", "A <b>dog</b>. It costs $5 and $6.", "A <b>dog</b>. It costs $5 and $6. 狗."]
    image, scores, cut = Image.new("RGB", (30, 30), (9, 90, 9)), [0.1, 0.2, 0.2], [False, False, True]
    page = cases_html([subtext_case(image, "p<1>", texts, scores, cut, correlation(scores))], "a")
    assert len(re.findall(r'<circle[^>]*fill="var\(--s\d\)"', page)) == 3
    assert "0.2000 <small>cut, tie</small>" in page
    assert "rho 0.87" in page
    assert "<b>dog" not in page
    assert "p<1>" not in page


def test_what_a_subtext_adds() -> None:
    assert added(["A dog.", "A dog. Wet.", "A dog. Wet. Old."]) == ["A dog.", "Wet.", "Old."]
    assert added(["It is red,", "It is red and big."]) == ["It is red,", "... red and big."]
    assert added(["One thing.", "Another thing. Two."]) == ["One thing.", "Another thing. Two."]


# --- the command ---
