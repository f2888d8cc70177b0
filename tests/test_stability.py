"""SSI against loops in float64; what is drawn, and from what; where noise stands; what a result says."""

import zlib
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from runs import call, complaint, recipe
from test_intervals import interval
from test_zeroshot import Cosine, encoded
from torch import Tensor

from grainline.data.captions import sentences
from grainline.data.record import Record
from grainline.data.texts import TokenizedParts
from grainline.errors import UserError
from grainline.evaluation.compare import compare, pooled, with_comparison
from grainline.evaluation.encode import Encodings
from grainline.evaluation.evaluate_model import as_text
from grainline.evaluation.result import Result, from_json, read, to_json
from grainline.evaluation.suite import Settings
from grainline.evaluation.suites import stability as noise
from grainline.evaluation.suites.stability import (
    NOISY,
    PLAIN,
    SENTENCES,
    SSI,
    StabilityOptions,
    StabilitySuite,
    changes,
    concentration,
    insert_noise,
    inserted,
    pool,
)
from grainline.training.recipe import read_recipe
from grainline.training.run import train
from grainline.types import Encoded

Capture = pytest.CaptureFixture[str]
D = 5
START, MIDDLE, END = (f"{SSI}, noise {where}" for where in ("at the start", "in the middle", "at the end"))


class Reader:
    """A text is the mean of random vectors of its words, of which it reads the first few."""

    def __init__(self, pairwise: bool = False, context: int = 1000, seed: int = 0, lean: float = 0.5) -> None:
        self.method, self.context, self.seed = Cosine(pairwise), context, seed
        self.lean = lean  # how much all words look one way, which keeps scores away from 0
        self.texts = list[str]()

    def word(self, word: str) -> Tensor:
        g = torch.Generator().manual_seed(zlib.crc32(f"{self.seed} {word}".encode()))
        return F.normalize(torch.randn(D, generator=g) + self.lean, dim=0)

    def read(self, texts: Sequence[str]) -> TokenizedParts:
        words = [text.split() for text in texts]
        ids = [[[zlib.crc32(word.encode()) for word in one[: self.context]]] for one in words]
        return TokenizedParts(ids, [max(0, len(one) - self.context) for one in words])

    def encode(
        self, *, images: Sequence[bytes | Image.Image] | None = None, texts: Sequence[str] | None = None
    ) -> Encoded:
        if images is not None:
            return encoded(torch.stack([self.word(str(image.getpixel((0, 0)))) for image in images]))  # type: ignore[union-attr]
        assert texts is not None
        self.texts += texts
        tokens = [torch.stack([self.word(word) for word in text.split()[: self.context]]) for text in texts]
        length = max(map(len, tokens))
        mask = torch.tensor([[i < len(x) for i in range(length)] for x in tokens])
        padded = torch.stack([F.pad(x, (0, 0, 0, length - len(x)), value=9.0) for x in tokens])
        vector = torch.stack([F.normalize(x.mean(0), dim=0) for x in tokens])
        cut = torch.tensor(self.read(texts).truncated)
        return encoded(vector)._replace(tokens=padded, mask=mask, truncated=cut)

    def score(self, colour: str, text: str) -> float:
        """The same in float64, of one image and one text."""
        image = self.word(colour).double()
        tokens = [self.word(word).double() for word in text.split()[: self.context]]
        if self.method.pairwise:
            return max(float(image @ token) for token in tokens)
        mean = sum(tokens, torch.zeros(D).double()) / len(tokens)
        return float(image @ mean) / float(mean.norm())


class Told:
    """Images of a colour of their own with given texts."""

    path, remarks = "told", ()

    def __init__(self, texts: Sequence[str], own: Sequence[str] = (), order: Sequence[int] = ()) -> None:
        self.texts, self.own, self.order = texts, own, order or range(len(texts))

    def __len__(self) -> int:
        return len(self.order)

    def __getitem__(self, index: int) -> Record:
        i = self.order[index]
        own = tuple(self.own) if i == 0 else ()
        return Record(f"p{i}", Image.new("RGB", (2, 2), (i, 0, 0)), (self.texts[i],), subtexts=own)

    def fingerprint(self) -> str:
        return "told"


def captions(number: int, most: int = 5) -> list[str]:
    """Captions of 1 to `most` sentences of random words."""
    g = np.random.default_rng(0)
    return [
        " ".join(f"Word{g.integers(30)} has word{g.integers(30)}." for _ in range(1 + i % most))
        for i in range(number)
    ]


def noisy(model: Reader, source: Told, seed: int = 0, batch: int = 7) -> Encodings:
    suite = StabilitySuite(StabilityOptions(noise_seed=seed))
    return suite.encode(model, source, Settings(batch_size=batch))


def measured(model: Reader, source: Told, seed: int = 0, **options: Any) -> Result:
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


def test_the_breakdown_is_by_where_the_noise_stands() -> None:
    plain = [[1.0, 1.0, 1.0], [1.0], [1.0, 1.0]]
    queries = {
        "at": [[0, 1, 1], [1], [0, 2]],
        "of": [[1, 2, 3], [1], [1, 2]],
        "scores": {PLAIN: plain, NOISY: [[1.1, 1.2, 1.4], [1.08], [1.02, 1.05]]},
    }
    options = Settings(resamples=200, seed=3)
    cells = StabilitySuite().metrics([queries], options)
    assert list(cells) == [SSI, START, MIDDLE, END]
    assert cells[START].value == pytest.approx((10 + 2) / 2)
    assert cells[MIDDLE].value == pytest.approx((20 + 40) / 2)
    assert cells[END].value == pytest.approx((8 + 5) / 2)
    assert cells[SSI].value == pytest.approx(((10 + 20 + 40) / 3 + 8 + (2 + 5) / 2) / 3)
    assert [cell.queries for cell in cells.values()] == [6, 2, 2, 2]
    for name, means in ((SSI, [70 / 3, 8, 3.5]), (START, [10, 2])):
        ends = np.quantile(cells[name].samples, [0.025, 0.975])
        assert ends.tolist() == pytest.approx(interval(np.array(means), resamples=200, seed=3)[1:])
    single = StabilitySuite().metrics([outcome([[1.0], [1.0]], [[1.1], [1.2]])], options)
    assert list(single) == [SSI, START], "a text of one sentence has no middle; here no noise is at an end"


@pytest.mark.parametrize("pairwise", [False, True])
@pytest.mark.parametrize("context", [1000, 12])
def test_scores_are_those_of_a_loop_in_float64(pairwise: bool, context: int) -> None:
    model, texts = Reader(pairwise, context), captions(30)
    own = ["Word1 has word2.", "Word1 has word2. Word3 has word4. Word5 has word6."]
    result = measured(model, Told(texts, own))
    per_image: list[float] = []
    for i, text in enumerate(texts):
        pieces = text.replace(". ", ".|").split("|")
        subtexts = own if i == 0 else [" ".join(pieces[: k + 1]) for k in range(len(pieces))]
        words = SENTENCES[result.queries["sentence"][i]]
        change = []
        for j, subtext in enumerate(subtexts):
            parts = subtext.replace(". ", ".|").split("|")
            parts.insert(result.queries["at"][i][j], words)
            before, after = (model.score(f"({i}, 0, 0)", x) for x in (subtext, " ".join(parts)))
            assert result.queries["of"][i][j] == len(parts) - 1
            assert result.queries["scores"][PLAIN][i][j] == pytest.approx(before, abs=1e-6)
            assert result.queries["scores"][NOISY][i][j] == pytest.approx(after, abs=1e-6)
            change.append(abs(before - after) / abs(before))
        per_image.append(float(np.mean(change)))
    assert result.metric(SSI).value == pytest.approx(100 * np.mean(per_image), rel=1e-4)
    assert result.metric(SSI).value > 1
    assert {len(scores) for scores in result.queries["at"]} == {1, 2, 3, 4, 5}


# What is drawn


def test_the_sentences_are_fixed_single_and_different() -> None:
    assert len(SENTENCES) == len(set(SENTENCES)) == 40
    assert pool() == "8d79d0ca", "another list gives other values: say so in the changelog"
    for sentence in SENTENCES:
        assert [piece.text for piece in sentences(sentence)] == [sentence]
        assert sentence.isascii()


def test_what_is_drawn_is_a_function_of_seed_image_and_subtext() -> None:
    texts = captions(40)
    whole = measured(Reader(), Told(texts), seed=5)
    some = measured(Reader(), Told(texts, order=[31, 7, 22, 0]), seed=5)
    for place, i in enumerate([31, 7, 22, 0]):
        for name in ("sentence", "at", "of"):
            assert some.queries[name][place] == whole.queries[name][i]
        assert some.queries["scores"][NOISY][place] == whole.queries["scores"][NOISY][i]
    other = measured(Reader(), Told(texts), seed=6)
    assert other.queries["sentence"] != whole.queries["sentence"]
    assert other.queries["at"] != whole.queries["at"]
    assert insert_noise(0, "a", ["A dog runs.", "A dog runs. It is wet."])[:3] == (18, (1, 2), (1, 2)), (
        "everywhere"
    )
    assert insert_noise(0, "a", ["A dog runs. It is wet."]).at == (2,), "whatever else the image has"


def test_sentences_and_places_are_drawn_evenly() -> None:
    text = "A dog runs. It is wet. The sea is grey. It rains."
    found = [insert_noise(seed, f"p{i}", [text]) for i in range(1000) for seed in range(4)]
    for counts, kinds in (
        (Counter(one.sentence for one in found), 40),
        (Counter(one.at[0] for one in found), 5),
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
            found = [piece.text for piece in sentences(inserted(pieces, words, at))]
            assert found[at] == words
            del found[at]
            assert [one.rstrip(".") for one in found] == [one.rstrip(".") for one in pieces]


def test_of_a_few_sentences_another_digest(monkeypatch: pytest.MonkeyPatch) -> None:
    result = measured(Reader(), Told(captions(6)))
    monkeypatch.setattr(noise, "SENTENCES", SENTENCES[:30])
    assert pool() != "8d79d0ca"
    with pytest.raises(UserError, match=r"has noise pool 8d79d0ca, this result .*: they cannot be compared"):
        compare(measured(Reader(), Told(captions(6))), result)


# Texts that are cut


def test_noise_beyond_what_is_read_changes_nothing_and_is_counted() -> None:
    model = Reader(context=6)
    source = Told(["Word1 has word2. Word3 has word4. Word5 has word6. Word7 has word8."] * 20)
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


@pytest.mark.parametrize("pairwise", [False, True])
def test_no_text_is_encoded_twice(pairwise: bool) -> None:
    model = Reader(pairwise, context=9)
    data = noisy(model, Told(captions(20)), batch=3)
    told = data.collected["stability"].subtexts
    assert (
        len({tuple(text.split()[:9]) for text in model.texts}) == len(model.texts) == len(told.texts.vector)
    )
    for place, text in enumerate(told.strings):
        vector = told.texts.vector[told.row[place]]
        torch.testing.assert_close(vector, Reader(pairwise, 9).encode(texts=[text]).vector[0])
    assert set(told.texts.image.tolist()) == {-1}
    assert told.texts.item.tolist() == list(range(len(told.texts.vector)))
    assert data.cut == sum(told.cut), "texts with and without noise, each once"


# What a result says


def test_scores_near_zero_are_floored_and_counted() -> None:
    source = Told(["Word1 has word2. Word3 has word4."] * 30)
    data = noisy(Reader(), source)
    told = data.collected["stability"].subtexts
    plain = sorted({told.row[place].item() for place in told.of[PLAIN][0]})
    vector = told.texts.vector.clone()
    vector[plain[0]] = 0
    told = told._replace(texts=told.texts._replace(vector=vector))
    result = StabilitySuite().measure(
        Cosine(), data._replace(collected={"stability": data.collected["stability"]._replace(subtexts=told)})
    )
    assert "30 of 60 scores are closer to 0 than 1e-06 and count as that" in result.notes
    assert result.metric(SSI).value > 1e5
    assert not any("closer to 0" in note for note in StabilitySuite().measure(Cosine(), data).notes)


def test_a_value_of_few_subtexts_has_a_note() -> None:
    assert concentration(np.array([1.0, 1, 1, 1, 1, 1]), np.ones(6)) == 3
    assert concentration(np.array([1.0, 1, 1, 5]), np.ones(4)) == 1
    assert concentration(np.array([1.0, 5, 1, 1]), np.array([9.0, 1, 1, 1])) == 1
    assert concentration(np.zeros(4), np.ones(4)) == 1
    data = noisy(Reader(lean=1.5), Told(captions(60)))
    assert not any("half of the SSI" in note for note in StabilitySuite().measure(Cosine(), data).notes)
    vector = data.images.vector.clone()
    row = data.collected["stability"].subtexts.row[data.collected["stability"].subtexts.of[PLAIN][0][0]]
    text = data.collected["stability"].subtexts.texts.vector[row]
    vector[0] = F.normalize(vector[0] - (vector[0] @ text) * text, dim=0)  # at right angles to its text
    found = StabilitySuite().measure(Cosine(), data._replace(images=data.images._replace(vector=vector)))
    assert "half of the SSI comes from 1 of 180 subtexts: their scores are close to 0" in found.notes


def test_a_result_says_which_noise_and_which_way_is_better() -> None:
    result = measured(Reader(), Told(captions(20)), seed=7)
    assert (result.settings["noise_seed"], result.settings["noise_pool"]) == (7, "8d79d0ca")
    assert any("40 sentences, digest 8d79d0ca, seed 7; published values" in note for note in result.notes)
    assert from_json(to_json(result)) == result
    assert result.data["texts"] == len(
        {*noisy(Reader(), Told(captions(20)), 7).collected["stability"].subtexts.strings}
    )
    out = as_text(result)
    line = next(line for line in out.splitlines() if "SSI (lower is better)" in line)
    assert f" {result.metric(SSI).value:.2f} " in line
    assert " none " in line
    before = measured(Reader(seed=1), Told(captions(20)), seed=7)
    out = as_text(with_comparison(result, before, "b.json")).partition("compared to")[2]
    line = next(line for line in out.splitlines() if "SSI (lower is better)" in line)
    assert f"{result.metric(SSI).value - before.metric(SSI).value:+.2f}" in line


def test_results_are_pooled_and_compared() -> None:
    source = Told(captions(50))
    one, two = (measured(Reader(seed=seed), source, resamples=300) for seed in (1, 2))
    together = pooled([one, two])
    for metric in together.metrics:
        a, b = (result.metric(metric.name) for result in (one, two))
        assert metric.value == pytest.approx((a.value + b.value) / 2)
    per_image = []
    for result in (one, two):
        both = (result.queries["scores"][name] for name in (PLAIN, NOISY))
        per_image.append(np.array([changes(*pair).mean() for pair in zip(*both, strict=True)]))
    found = compare(two, one)[0]
    wanted = interval(100 * (per_image[1] - per_image[0]), resamples=300)
    assert (found.value, found.low, found.high) == pytest.approx(tuple(wanted))
    other = measured(Reader(seed=1), source, seed=3)
    for call_ in (lambda: pooled([one, other]), lambda: compare(one, other)):
        with pytest.raises(UserError, match="has noise seed 3, this result 0: they cannot be"):
            call_()


def test_nan_scores_are_refused() -> None:
    ready = noisy(Reader(), Told(captions(4)))
    vector = torch.full_like(ready.images.vector, torch.nan)
    with pytest.raises(UserError, match="scores are not a number"):
        StabilitySuite().measure(Cosine(), ready._replace(images=ready.images._replace(vector=vector)))


# The command


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of one step."""
    folder = tmp_path_factory.mktemp("stability")
    train(read_recipe(recipe(folder, "clip"), ["train.max_steps=1"]), folder / "run")
    return folder / "run"


def test_the_command_measures_and_shows_noise(model: Path, tmp_path: Path, capsys: Capture) -> None:
    ask = ["evaluate", model, "--suite", "stability", "--data", "scenes:dev?count=9"]
    one, other, html = tmp_path / "one.json", tmp_path / "other.json", tmp_path / "r.html"
    assert call(*ask, "--json", one, "--html", html) == 0
    assert "SSI (lower is better)" in capsys.readouterr().out
    result = read(one)
    assert result.settings["noise_seed"] == 0
    page = html.read_text()
    assert page.count('<article class="card">') == 12
    assert page.index("Noise: largest change") < page.index("Noise: smallest change")
    shown = [words for words in SENTENCES if f"<mark>{words}</mark>" in page]
    assert {SENTENCES[i] for i in result.queries["sentence"]} >= set(shown) != set()
    largest = max(changes(*both).max() for both in zip(*result.queries["scores"].values(), strict=True))
    assert "The upright line is chance" not in page
    first = page[page.index("Noise: largest change</h2>") :]
    assert f"changed by {100 * largest:,.2f} %" in first[: first.index("</h3>")]
    assert call(*ask, "--compare-to", one) == 0
    assert call(*ask, "--set", "noise_seed=4", "--json", other) == 0
    assert read(other).queries["at"] != result.queries["at"]
    said = complaint(capsys, *ask, "--compare-to", other)
    assert f"{other} was made with noise_seed=4, not 0; use the same" in said


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--suite", "cola", "--set", "noise_seed=0"], "--suite cola has no options"),
        (["--suite", "stability", "--captions", "each"], "reads one text an image; allowed: whole, first"),
        (["--suite", "stability", "--set", "noise_seed=-1"], "must be greater than or equal to 0"),
    ],
    ids=" ".join,
)
def test_wrong_options_are_one_line(arguments: list[str], said: str, model: Path, capsys: Capture) -> None:
    assert said in complaint(capsys, "evaluate", model, "--data", "scenes:dev?count=2", *arguments)
