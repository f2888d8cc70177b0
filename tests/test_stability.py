"""SSI against loops in float64; what is drawn, and from what; where noise stands; what a result says."""

from collections import Counter
from typing import Any

import numpy as np
import pytest
from readers import Cosine, InMemory, Reader, coloured

from grainline.data.captions import sentences
from grainline.evaluation.compare import with_comparison
from grainline.evaluation.encode import Encodings
from grainline.evaluation.evaluate_model import as_text
from grainline.evaluation.result import Result
from grainline.evaluation.suite import Settings
from grainline.evaluation.suites.stability import (
    NOISY,
    PLAIN,
    SENTENCES,
    SSI,
    StabilityOptions,
    StabilitySuite,
    changes,
    insert_noise,
    inserted,
)


def captions(number: int, most: int = 5) -> list[str]:
    """Captions of 1 to `most` sentences of random words."""
    g = np.random.default_rng(0)
    return [
        " ".join(f"Word{g.integers(30)} has word{g.integers(30)}." for _ in range(1 + i % most))
        for i in range(number)
    ]


def noisy(model: Reader, source: InMemory, seed: int = 0, batch: int = 7) -> Encodings:
    suite = StabilitySuite(StabilityOptions(noise_seed=seed))
    return suite.encode(model, source, Settings(batch_size=batch))


def measured(model: Reader, source: InMemory, seed: int = 0, **options: Any) -> Result:
    suite = StabilitySuite(StabilityOptions(noise_seed=seed))
    return suite.measure(model.method, noisy(model, source, seed), Settings(**options))


# The metric


def outcome(plain: list[list[float]], with_noise: list[list[float]]) -> dict[str, Any]:
    return {
        "at": [list(range(len(one))) for one in plain],
        "of": [list(range(1, len(one) + 1)) for one in plain],
        "scores": {PLAIN: plain, NOISY: with_noise},
    }


def test_values_that_are_known_by_heart() -> None:
    assert 100 * changes([0.254], [0.236])[0] == pytest.approx(7.086614)
    cells = StabilitySuite().metrics(
        [outcome([[0.20, 0.25], [0.30]], [[0.18, 0.25], [0.24]])], Settings(resamples=10)
    )
    cell = cells[SSI]
    assert cell.value == pytest.approx(12.5), "the mean over images, not over subtexts, which is 10"
    assert (cell.queries, cell.chance, cell.unit, cell.ties) == (3, None, "change", 0)
    assert changes([-0.5, 0.5], [-0.6, 0.4]).tolist() == pytest.approx([0.2, 0.2])
    assert changes([1e-9, -1e-7, 0.0], [1e-6, 1e-7, 0.0]).tolist() == pytest.approx([0.999, 0.2, 0.0])


@pytest.mark.parametrize("pairwise", [False, True])
@pytest.mark.parametrize("context", [1000, 12])
def test_scores_are_those_of_a_loop_in_float64(pairwise: bool, context: int) -> None:
    model, texts = Reader(pairwise, context), captions(30)
    own = ["Word1 has word2.", "Word1 has word2. Word3 has word4. Word5 has word6."]
    result = measured(
        model,
        InMemory(
            [one._replace(subtexts=tuple(own) if not i else ()) for i, one in enumerate(coloured(texts))]
        ),
    )
    per_image: list[float] = []
    for i, (text, record) in enumerate(zip(texts, coloured(texts), strict=True)):
        image: Any = record.image
        pieces = text.replace(". ", ".|").split("|")
        subtexts = own if i == 0 else [" ".join(pieces[: k + 1]) for k in range(len(pieces))]
        words = SENTENCES[result.queries["sentence"][i]]
        change = []
        for j, subtext in enumerate(subtexts):
            parts = subtext.replace(". ", ".|").split("|")
            parts.insert(result.queries["at"][i][j], words)
            before, after = (model.score(image, x) for x in (subtext, " ".join(parts)))
            assert result.queries["of"][i][j] == len(parts) - 1
            assert result.queries["scores"][PLAIN][i][j] == pytest.approx(before, abs=1e-6)
            assert result.queries["scores"][NOISY][i][j] == pytest.approx(after, abs=1e-6)
            change.append(abs(before - after) / abs(before))
        per_image.append(float(np.mean(change)))
    assert result.metric(SSI).value == pytest.approx(100 * np.mean(per_image), rel=1e-4)
    assert result.metric(SSI).value > 1
    assert {len(scores) for scores in result.queries["at"]} == {1, 2, 3, 4, 5}


# What is drawn


def test_what_is_drawn_is_a_function_of_seed_image_and_subtext() -> None:
    texts = captions(40)
    whole = measured(Reader(), InMemory(coloured(texts)), seed=5)
    some = measured(Reader(), InMemory([coloured(texts)[i] for i in (31, 7, 22, 0)]), seed=5)
    for place, i in enumerate([31, 7, 22, 0]):
        for name in ("sentence", "at", "of"):
            assert some.queries[name][place] == whole.queries[name][i]
        assert some.queries["scores"][NOISY][place] == whole.queries["scores"][NOISY][i]
    other = measured(Reader(), InMemory(coloured(texts)), seed=6)
    assert other.queries["sentence"] != whole.queries["sentence"]
    assert other.queries["at"] != whole.queries["at"]
    assert insert_noise(0, "a", ["A dog runs.", "A dog runs. It is wet."])[:3] == (18, (1, 2), (1, 2)), (
        "everywhere"
    )
    assert insert_noise(0, "a", ["A dog runs. It is wet."]).places == (2,), "whatever else the image has"


def test_sentences_and_places_are_drawn_evenly() -> None:
    text = "A dog runs. It is wet. The sea is grey. It rains."
    got = [insert_noise(seed, f"p{i}", [text]) for i in range(1000) for seed in range(4)]
    for counts, kinds in (
        (Counter(one.sentence for one in got), 40),
        (Counter(one.places[0] for one in got), 5),
    ):
        assert len(counts) == kinds
        mean = 4000 / kinds
        distance = sum((count - mean) ** 2 / mean for count in counts.values())
        assert distance < kinds + 4 * (2 * kinds) ** 0.5


@pytest.mark.parametrize(
    "text",
    [
        "A dog runs. It is wet! Is the sea grey?",
        "a dog runs on wet sand",
        'He says "stop." Then (it is late) he goes',
        "Dr. Wu sits 3.5 m away. It rains",
    ],
)
def test_noise_stands_between_the_sentences_and_is_one_of_its_own(text: str) -> None:
    pieces = [piece.text for piece in sentences(text)]
    for words in SENTENCES[:7]:
        for at in range(len(pieces) + 1):
            got = [piece.text for piece in sentences(inserted(pieces, at, words))]
            assert got[at] == words
            del got[at]
            assert [one.rstrip(".") for one in got] == [one.rstrip(".") for one in pieces]


# Texts that are cut


def test_noise_beyond_what_is_read_changes_nothing_and_is_counted() -> None:
    model = Reader(context=6)
    text = "Word1 has word2. Word3 has word4. Word5 has word6. Word7 has word8."
    source = InMemory(coloured([text] * 20))
    result = measured(model, source)
    queries = result.queries
    unchanged = 0
    for i in range(20):
        for j in range(4):
            same = queries["scores"][PLAIN][i][j] == queries["scores"][NOISY][i][j]
            assert same == (queries["at"][i][j] >= 2), "after two sentences of three words nothing is read"
            unchanged += same
    assert 0 < unchanged < 80
    assert queries["cut"][NOISY] == [[1, 1, 1, 1]] * 20
    assert queries["cut"][PLAIN] == [[0, 0, 1, 1]] * 20
    assert any(
        note.startswith("80 of 80 subtexts with noise are longer than the model reads")
        and note.endswith(f"{unchanged} scores did not change at all")
        for note in result.notes
    )
    assert not any("longer" in note for note in measured(Reader(), source).notes)


# What a result says


def test_scores_near_zero_are_floored_and_counted() -> None:
    source = InMemory(coloured(["Word1 has word2. Word3 has word4."] * 30))
    data = noisy(Reader(), source)
    named = data.collected["stability"].subtexts
    plain = sorted({named.row[place].item() for place in named.sequences[PLAIN][0]})
    vector = named.texts.vector.clone()
    vector[plain[0]] = 0
    named = named._replace(texts=named.texts._replace(vector=vector))
    result = StabilitySuite().measure(
        Cosine(), data._replace(collected={"stability": data.collected["stability"]._replace(subtexts=named)})
    )
    assert "30 of 60 scores are closer to 0 than 1e-06 and count as that" in result.notes
    assert result.metric(SSI).value > 1e5
    assert not any("closer to 0" in note for note in StabilitySuite().measure(Cosine(), data).notes)


def test_a_result_says_which_noise_and_which_way_is_better() -> None:
    result = measured(Reader(), InMemory(coloured(captions(20))), seed=7)
    assert (result.settings["noise_seed"], result.settings["noise_pool"]) == (7, "8d79d0ca")
    assert any("40 sentences, digest 8d79d0ca, seed 7; published values" in note for note in result.notes)
    assert result.data["texts"] == len(
        {*noisy(Reader(), InMemory(coloured(captions(20))), 7).collected["stability"].subtexts.strings}
    )
    out = as_text(result)
    line = next(line for line in out.splitlines() if "SSI (lower is better)" in line)
    assert f" {result.metric(SSI).value:.2f} " in line
    assert " none " in line
    before = measured(Reader(seed=1), InMemory(coloured(captions(20))), seed=7)
    out = as_text(with_comparison(result, before, "b.json")).partition("compared to")[2]
    line = next(line for line in out.splitlines() if "SSI (lower is better)" in line)
    assert f"{result.metric(SSI).value - before.metric(SSI).value:+.2f}" in line


# The command
