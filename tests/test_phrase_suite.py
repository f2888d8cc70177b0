"""Groups of tokens against annotated phrases: the metric, its anchors, gold, the suite, figures and files."""

import itertools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import vocabularies
from indexes import tiny_model
from make import TINY
from PIL import Image
from readers import InMemory
from torch import Tensor

from grainline.config import override
from grainline.data.benchmarks.phrase_regions import Entities, read_sentence
from grainline.data.captions import sentences
from grainline.data.open_source import open_source
from grainline.data.record import CorruptSample, Record, Region
from grainline.data.scenes.source import Scenes
from grainline.data.tokenizers.tokenizer import Tokenizer
from grainline.data.tokenizers.tokenizer_files import read_tokenizer
from grainline.encoders.towers import flat_parts
from grainline.errors import UserError
from grainline.evaluation.encode import Encodings
from grainline.evaluation.result import Result
from grainline.evaluation.suite import Settings
from grainline.evaluation.suites import grouped
from grainline.evaluation.suites.grouped import captions_of, clusterings, hard, segments, shuffled, tokens_of
from grainline.evaluation.suites.phrases import (
    AS_MANY,
    GROUPS,
    IN_PLACE,
    MEASURES,
    MOVED,
    Overlap,
    PhrasesSuite,
    at_random,
    chunks,
    overlap,
    uniform,
)
from grainline.methods.base import HasTokenGroups, TokenGroups
from grainline.model import Model
from grainline.types import Texts, texts_of

CLIP = ["text.context=77"]


# The metric


def gold_of(length: int, *phrases: Sequence[int]) -> np.ndarray:
    got = np.zeros((len(phrases), length), bool)
    for row, phrase in zip(got, phrases, strict=True):
        row[list(phrase)] = True
    return got


NINE = gold_of(9, (0, 1), (3, 4, 5), (8,))


@pytest.mark.parametrize(
    ("labels", "groups", "expected"),
    [
        ([0, 0, 0, 1, 1, 1, 2, 2, 2], 3, (1, 1, 1, 1)),
        ([0, 0, 1, 1, 1, 2, 2, 3, 3], 4, (8 / 9, 1, 8 / 9, 14 / 15)),
        ([0] * 9, 1, (0.5, 0.5, 1, 2 / 3)),
        ([0] * 9, 4, (1 / 6, 1 / 6, 1 / 3, 2 / 9)),
        (list(range(9)), 9, (11 / 18, 1, 11 / 18, 13 / 18)),
        ([0] * 6 + [1] * 3, 2, (0.8, 0.8, 1, 0.875)),
    ],
)
def test_captions_worked_out_by_hand(labels: list[int], groups: int, expected: tuple[float, ...]) -> None:
    assert overlap(np.array(labels), NINE, groups) == pytest.approx(expected)


def slow_overlap(labels: np.ndarray, gold: np.ndarray, groups: int) -> list[Overlap]:
    """The values of every pairing with the largest sum, by trying all of them with sets."""
    phrases = [set(np.flatnonzero(row).tolist()) for row in gold]
    union = set().union(*phrases)
    ours = [{j for j in union if labels[j] == k} for k in range(groups)]
    number = min(groups, len(phrases))
    got = []
    for chosen in itertools.permutations(range(groups), number):
        for those in itertools.combinations(range(len(phrases)), number):
            rows = []
            for k, one in zip(chosen, those, strict=True):
                inter = len(ours[k] & phrases[one])
                p = inter / len(ours[k]) if ours[k] else 0.0
                r = inter / len(phrases[one])
                rows.append(
                    (inter / len(ours[k] | phrases[one]), p, r, 2 * p * r / (p + r) if inter else 0.0)
                )
            got.append(Overlap(*np.mean(rows, axis=0).tolist()))
    most = max(one.tiou for one in got)
    return [one for one in got if one.tiou > most - 1e-12]


def random_case(rng: np.random.Generator, most: int = 4) -> tuple[np.ndarray, np.ndarray, int]:
    length, groups = int(rng.integers(4, 11)), int(rng.integers(1, most + 1))
    edges = np.sort(rng.choice(length + 1, 2 * int(rng.integers(1, length // 2)), replace=False))
    gold = gold_of(length, *(range(a, b) for a, b in edges.reshape(-1, 2)))
    return rng.integers(0, groups, length), gold, groups


def test_values_are_those_of_all_pairings_and_names_of_groups_decide_nothing() -> None:
    rng = np.random.default_rng(0)
    for _ in range(200):
        labels, gold, groups = random_case(rng)
        got = overlap(labels, gold, groups)
        assert any(got == pytest.approx(one) for one in slow_overlap(labels, gold, groups))
        renamed = rng.permutation(groups)
        assert overlap(renamed[labels], gold, groups) == got
        more = overlap(labels, gold, groups + 3)
        if groups >= len(gold):
            assert more.tiou == pytest.approx(got.tiou), "empty groups change nothing once phrases are fewer"
        bare = gold.any(0)
        assert overlap(labels[bare], gold[:, bare], groups) == got, "tokens of no phrase count for nothing"


# Anchors


def test_rules_read_nothing_but_the_number_of_tokens() -> None:
    for length, groups in itertools.product(range(1, 14), range(1, 7)):
        got = chunks(length, groups)
        sizes = np.bincount(got.labels, minlength=groups)
        assert (np.diff(got.labels) >= 0).all()
        assert sizes.max() - sizes.min() <= 1
    rng = np.random.default_rng(1)
    for _ in range(50):
        _, gold, _ = random_case(rng)
        length = gold.shape[1]
        one, alone = (overlap(x.labels, gold, x.groups) for x in (chunks(length, 1), chunks(length, length)))
        assert one.tiou == pytest.approx(gold.sum(1).max() / gold.sum())
        assert (alone.precision, alone.tiou) == (1.0, pytest.approx((1 / gold.sum(1)).mean()))
        assert alone.recall == pytest.approx(alone.tiou)
    drawn = np.concatenate([at_random(50, 4, i).labels for i in range(100)])
    assert np.bincount(drawn, minlength=4) / len(drawn) == pytest.approx(0.25, abs=0.03)
    assert at_random(50, 4, 1).labels.tolist() == at_random(50, 4, 1).labels.tolist()
    assert at_random(50, 4, 1).labels.tolist() != at_random(50, 4, 2).labels.tolist()


# Words and tokens


def captions(number: int) -> list[str]:
    source = Scenes("scenes:dev", 32).texts_only()
    got = [one.text for i in range(number) for one in sentences(source[i].long or "")]
    return list(dict.fromkeys(got))[:number]


def test_words_alone_have_the_tokens_of_their_sentence() -> None:
    texts = [*captions(1000), "A man in a T-shirt , isn't he ?", "Salt &amp; pepper, a café's “sign”"]
    assert len(texts) > 1000
    tokenizer = Tokenizer.train(texts[:200], vocab=700)
    several = 0
    for text in texts:
        got = tokens_of(tokenizer, text, 77)
        assert got is not None
        ids = tokenizer.encode([text], 77).ids[0]
        assert [one.column for one in got] == list(range(1, len(ids) - 1))
        for span, ours in itertools.groupby(got, key=lambda one: (one.start, one.end)):
            columns = [one.column for one in ours]
            assert tokenizer.encode([text[slice(*span)]], 77).ids[0][1:-1] == [ids[i] for i in columns]
            several += len(columns) > 1
    assert several > 100
    shirt = [one for one in tokens_of(tokenizer, texts[-2], 77) or () if one.start == texts[-2].index("T-")]
    assert len(shirt) > 2, "T-shirt is one word of several tokens"
    assert {one.end for one in shirt} == {texts[-2].index("T-shirt") + 7}


@pytest.mark.parametrize("kind", ["bert", "siglip", "t5"])
def test_tokenizers_of_others_are_mapped_too(kind: str, tmp_path: Path) -> None:
    tokenizer = read_tokenizer(vocabularies.folder_of(kind, tmp_path))
    text = vocabularies.CORPUS[3]
    got = tokens_of(tokenizer, text, 64)
    assert got is not None
    ids = tokenizer.encode([text], 64).ids[0]
    assert len(got) == len(ids) - tokenizer.around
    assert got[0].column == (0 if tokenizer.begin is None else 1)
    jacket = {one.column for one in got if text[one.start : one.end].startswith("jacket")}
    exact = tokenizer.spans(text, 64)
    assert jacket == {i for i, (a, b) in enumerate(exact) if a < b and a >= 17 and b <= 23}


def test_tokens_are_cut_with_the_text_and_parts_stand_one_behind_the_other() -> None:
    tokenizer = Tokenizer.train(["a red dog runs. a cat."] * 2, vocab=540)
    text = "A red dog runs.  A cat. A dog."
    whole = tokenizer.encode([text], 77).ids[0]
    cut = tokens_of(tokenizer, text, 6)
    assert cut is not None
    assert [one.column for one in cut] == [1, 2, 3, 4]
    parts = tokens_of(tokenizer, text, 77, parts=2)
    assert parts is not None
    assert [text[one.start : one.end] for one in parts][-2:] == ["cat.", "cat."]
    assert [one.column for one in parts] == [1, 2, 3, 4, 5, 8, 9, 10], "end and begin stand between them"
    assert len(whole) == 13
    ended = tokens_of(tokenizer, text, 77, cuts=[14])
    assert ended is not None
    assert [text[one.start : one.end] for one in ended[3:5]] == ["runs", "."], "a phrase ends before the stop"
    inside = tokens_of(tokenizer, "a redred dog", 77, cuts=[5])
    assert inside is not None
    assert {(one.start, one.end) for one in inside} == {(0, 1), (2, 8), (9, 12)}, "a cut that changes tokens"


# Gold


def record(text: str, *phrases: str, key: str = "p") -> Record:
    """A record without an image whose phrases are found in its text."""
    spans = [("captions.0", text.index(phrase), text.index(phrase) + len(phrase)) for phrase in phrases]
    regions = tuple(Region(text[span[1] : span[2]], span=span) for span in spans)
    return Record(key, b"", (text,), regions=regions)


def test_phrases_are_where_records_say() -> None:
    one = record("a red dog sees a cat", "a cat", "a red dog")
    again = one._replace(regions=(*one.regions, one.regions[0], Region("dog")), long="A cat.")
    first, long = captions_of(again)
    assert first.phrases == (((0, 9),), ((15, 20),)), "in the order of the text, each once"
    assert (long.text, long.phrases) == ("A cat.", ())
    for span in (("captions.1", 0, 3), ("captions.0", 3, 3), ("captions.0", 0, 21), ("tags", 0, 1)):
        with pytest.raises(CorruptSample, match="corrupt region: p"):
            captions_of(one._replace(regions=(Region("x", span=span),)))
    tokenizer = Tokenizer.train(["a red dog sees a cat"] * 2, vocab=540)
    tokens = tokens_of(tokenizer, first.text, 6)
    assert tokens is not None
    assert segments(first, tokens).astype(int).tolist() == [[1, 1, 1, 0]], "what is cut off is no phrase"


def test_shuffled_words_keep_or_carry_their_phrases() -> None:
    text, rng = "a red dog. sees the cat and a bird", np.random.default_rng(3)
    caption = captions_of(record(text, "a red dog", "the cat", "a bird"))[0]
    for _ in range(20):
        staying, going = shuffled(caption, rng)
        assert staying.text == going.text
        assert sorted(going.text.split()) == sorted(text.split())
        for one, there in zip(going.phrases, caption.phrases, strict=True):
            named = sorted(going.text[a:b] for a, b in one)
            assert named == sorted(text[slice(*there[0])].split()), "and no full stop"
        order = [[going.text[: run[0]].count(" ") for run in one] for one in staying.phrases]
        assert order == [[0, 1, 2], [4, 5], [7, 8]]
    assert any(shuffled(caption, rng)[0].text != text for _ in range(3))


SENTENCES = {
    "1000": (
        "[/EN#1/people Two young men] in [/EN#2/clothing blue shirts] stand [/EN#0/notvisual outside] .",
        "[/EN#1/people Men] talk .",
    ),
    "2000": ("[/EN#3/animals/other A dog] , [/EN#4/scene the street]",),
    "3000": ("Nobody is here .", "[/EN#5/people A man] waves"),
}
XML = (
    "<annotation><filename>1000.jpg</filename>"
    "<object><name>1</name><bndbox><xmin>2</xmin><ymin>3</ymin><xmax>10</xmax><ymax>9</ymax></bndbox></object>"
    "<object><name>1</name><name>2</name>"
    "<bndbox><xmin>6</xmin><ymin>1</ymin><xmax>14</xmax><ymax>8</ymax></bndbox></object>"
    "<object><name>9</name><nobndbox>1</nobndbox></object></annotation>"
)


def entities(folder: Path) -> Path:
    for name in ("Sentences", "Annotations", "images"):
        (folder / name).mkdir(parents=True)
    for key, lines in SENTENCES.items():
        (folder / "Sentences" / f"{key}.txt").write_text("\n".join(lines) + "\n")
        Image.new("RGB", (16, 12), (int(key[0]) * 40, 10, 10)).save(folder / "images" / f"{key}.jpg")
    (folder / "Annotations" / "1000.xml").write_text(XML)
    (folder / "val.txt").write_text("1000\n3000\n")
    (folder / "test.txt").write_text("2000\n")
    return folder


def test_flickr30k_entities_are_read(tmp_path: Path) -> None:
    home = entities(tmp_path / "f")
    source = open_source(f"flickr30k-entities:{home}", images=str(home / "images"))
    assert isinstance(source, Entities)
    assert list(source.keys()) == ["1000.jpg", "3000.jpg"]
    first = source[0]
    assert first.captions == ("Two young men in blue shirts stand outside .", "Men talk .")
    assert [region.phrase for region in first.regions] == ["Two young men", "blue shirts", "outside", "Men"]
    assert [region.box for region in first.regions] == [(1, 0, 14, 9), (5, 0, 14, 8), None, (1, 0, 14, 9)]
    assert all(r.span is not None and r.phrase == caption_at(first, r.span) for r in first.regions)
    assert source[1].captions == ("Nobody is here .", "A man waves")
    both = open_source(f"flickr30k-entities:{home}?split=test,val")
    assert list(both.keys()) == ["2000.jpg", "1000.jpg", "3000.jpg"]  # type: ignore[attr-defined]
    assert both.fingerprint() != source.fingerprint()
    with pytest.raises(CorruptSample, match=r"missing image: 2000.jpg of .*--images DIR"):
        both[0]
    bare = both.texts_only()  # type: ignore[attr-defined]
    assert (bare[0].image, bare[0].regions[1].span) == (b"", ("captions.0", 8, 18))


def caption_at(got: Record, span: tuple[str, int, int]) -> str:
    return got.captions[int(span[0].split(".")[1])][span[1] : span[2]]


def test_damaged_files_of_entities_are_refused_in_one_line(tmp_path: Path) -> None:
    home = entities(tmp_path / "f")
    place = f"flickr30k-entities:{home}"
    with pytest.raises(UserError, match=r"no list train\.txt for split train: it has test, val"):
        open_source(f"{place}?split=train")
    with pytest.raises(UserError, match=r"holds no folder Sentences"):
        open_source(f"flickr30k-entities:{tmp_path}")
    (home / "Annotations" / "1000.xml").write_text("<annotation><object>")
    with pytest.raises(CorruptSample, match="corrupt region"):
        open_source(place, images=str(home / "images"))[0]
    sentences = home / "Sentences" / "3000.txt"
    for text, why in ((b"\n", "missing caption"), (b"[/EN#7 x]", "line 1 of"), (b"\xff", "not UTF-8")):
        sentences.write_bytes(text)
        source = open_source(place, images=str(home / "images"))
        at = list(source.keys()).index("3000.jpg")  # type: ignore[attr-defined]
        with pytest.raises(CorruptSample, match=why):
            source[at]
    for line, why in (
        ("[/EN#7/people Two men walk .", "does not close, of 7"),
        ("[/EN#7 Two men] walk .", r"is not \[/EN#NUMBER/TYPE words\] at '\[/EN#7'"),
        ("[/EN#7/people ] walk .", r"is not .* at '\]'"),
        ("[/EN#7/people a [/EN#8/people b] c]", r"is not .* at '\[/EN#8/people'"),
    ):
        with pytest.raises(UserError, match=f"^line 3 has a bracket that {why}"):
            read_sentence(line, "line 3")


# The suite


def by_id(texts: Texts) -> Tensor:
    """Groups that know words and no places."""
    ids, mask = flat_parts(texts)
    return torch.nn.functional.one_hot(ids % 3, 3).movedim(2, 1).float() * mask[:, None]


def by_place(texts: Texts) -> Tensor:
    """Groups that know places and no words, each with a share of a quarter of all others."""
    _, mask = flat_parts(texts)
    place = (torch.arange(mask.shape[1]) - 1).clamp(min=0) * 4 // (mask.sum(1, keepdim=True) - 2)
    share = torch.nn.functional.one_hot(place.clamp(max=3), 4).movedim(2, 1).float()
    return (0.75 * share + 0.0625) * mask[:, None]


def grouping(
    rule: Callable[[Texts], Tensor | None] | None = None, seed: int = 0, method: str = "clip"
) -> Model:
    model = tiny_model(method, seed, override(TINY, CLIP))
    if rule is not None:

        def token_groups(texts: Texts) -> TokenGroups:
            ids = flat_parts(texts)[0].float()
            return TokenGroups(rule(texts), torch.stack([ids.sin(), ids.cos(), (2 * ids).sin()], dim=-1))

        model.method.token_groups = token_groups  # type: ignore[assignment]
        assert isinstance(model.method, HasTokenGroups)
    return model


PLAIN = (
    record("a red dog runs over green grass to a house", "a red dog", "green grass", "a house", key="a"),
    record("the cat sleeps.", "the cat", key="b"),
    record("two blue birds and a tree, green", "two blue birds", "a tree", key="c"),
    record("the sand", key="d"),
    record("a green house by the tree", "a green house", "the tree", key="e"),
)


def evaluate_phrases(
    model: Model, source: object = None, batch: int = 2, **options: int
) -> tuple[Encodings, Result]:
    given = InMemory(PLAIN) if source is None else source
    suite, settings = PhrasesSuite(), Settings(**{"resamples": 50, "batch_size": batch, **options})
    data = suite.encode(model, given, settings)  # type: ignore[arg-type]
    result = suite.measure(model.method, data, settings)
    return data, result._replace(settings=result.settings | {"model": "m", "method": "clip"})


def test_outcomes_are_those_of_loops() -> None:
    model = grouping(by_id)
    data, result = evaluate_phrases(model)
    scores = result.queries["scores"]
    assert result.queries["image"] == [0, 1, 2, 4]
    for i, (one, row) in enumerate(zip([PLAIN[j] for j in (0, 1, 2, 4)], range(4), strict=True)):
        ids = model.tokenizer.encode(one.captions, 77).ids[0][1:-1]
        spans = model.tokenizer.spans(one.captions[0], 77)[1:-1]
        gold = np.array(
            [[a < s[2] and b > s[1] for a, b in spans] for r in one.regions if (s := r.span) is not None]
        )
        labels = np.array([number % 3 for number in ids])
        expected = {GROUPS: (labels, 3), uniform(3): chunks(len(ids), 3), uniform(4): chunks(len(ids), 4)}
        for name, (ours, groups) in expected.items():
            values = [scores[name][measure][row] for measure in MEASURES]
            assert any(values == pytest.approx(list(x)) for x in slow_overlap(ours, gold, groups)), (i, name)
    for name, column in scores.items():
        for measure in MEASURES:
            metric = result.metric(f"{measure}, {name}")
            assert metric.value == pytest.approx(100 * np.mean(column[measure]))
            assert metric.low <= metric.value <= metric.high
    assert "1 texts have no marked phrase and are left out" in result.notes
    assert "4 captions with 2.00 phrases each" in result.notes
    assert (result.settings["groups"], result.data["phrases"], data.cut) == (3, 8, 0)
    assert data.images.vector.shape[0] == 0, "no image is looked at"


def test_groups_of_words_follow_shuffled_words_and_groups_of_places_do_not() -> None:
    one, other = evaluate_phrases(grouping(by_id))[1], evaluate_phrases(grouping(by_place))[1]
    scores = one.queries["scores"]
    assert scores[MOVED][MEASURES[0]] == pytest.approx(scores[GROUPS][MEASURES[0]])
    assert scores[IN_PLACE] != scores[GROUPS]
    places = other.queries["scores"]
    assert places[GROUPS] == places[uniform(4)]
    moved = f"{uniform(4)}, shuffled words, phrases with them"
    assert places[MOVED] == places[moved]
    single = InMemory([record("a b c e f g h", "b c", "f g h", key="x")] * 3)
    fixed = evaluate_phrases(grouping(by_place), single)[1].queries["scores"]
    assert fixed[IN_PLACE] == fixed[GROUPS], "every word is one token, so places of phrases stay"


def test_groups_that_a_caption_does_not_use_are_none_and_chunks_are_as_many() -> None:
    def fewer(texts: Texts) -> Tensor:
        """Runs of tokens: four, or two of a text of few tokens."""
        _, mask = flat_parts(texts)
        number = torch.where(mask.sum(1, keepdim=True) > 9, 4, 2)
        place = (torch.arange(mask.shape[1]) - 1).clamp(min=0) * number // (mask.sum(1, keepdim=True) - 2)
        share = torch.nn.functional.one_hot(place.clamp(max=number - 1), 4).movedim(2, 1)
        return share.float() * mask[:, None]

    data, result = evaluate_phrases(grouping(fewer))
    assert {hard(one).groups for one in data.collected["phrases"].soft} == {2, 4}
    scores = result.queries["scores"]
    assert scores[GROUPS] == scores[AS_MANY]
    assert scores[AS_MANY] != scores[uniform(4)]
    assert PhrasesSuite().headlines(result) == [f"tIoU, {GROUPS}", f"tIoU, {AS_MANY}"]
    plain = evaluate_phrases(grouping(by_place))[1]
    assert AS_MANY not in plain.queries["scores"]
    assert PhrasesSuite().headlines(plain) == [f"tIoU, {GROUPS}", f"tIoU, {uniform(4)}"]


def test_states_of_tokens_are_clustered_without_begin_and_end() -> None:
    model = grouping()
    data, result = evaluate_phrases(model, batch=1)  # the last bits of states depend on the batch
    assert data.collected["phrases"].has_states
    for i, text in enumerate(data.collected["phrases"].texts):
        states = model.encode(texts=[text]).tokens[0, 1:-1].numpy()
        for name, labelled in clusterings(states).items():
            ours = data.collected["phrases"].clusters[name][i]
            assert (ours.labels.tolist(), ours.groups) == (labelled.labels.tolist(), labelled.groups)
    mean = np.mean([one.groups for one in data.collected["phrases"].clusters["mean shift"]])
    assert f"mean shift finds {mean:.2f} clusters in a caption" in result.notes


def test_clusterings_find_what_lies_together() -> None:
    rng = np.random.default_rng(4)
    true = np.repeat(np.arange(4), 4)
    states = 20 * np.eye(4, 8)[true] + 0.1 * rng.standard_normal((16, 8))
    for name, got in clusterings(states).items():
        if name != "mean shift":
            assert got.groups == 4
            assert len(set(zip(got.labels.tolist(), true.tolist(), strict=True))) == 4, name
    alike = np.repeat(rng.standard_normal((3, 8)), 4, axis=0)
    assert clusterings(alike)["mean shift"].groups == 3, "a bandwidth of zero parts what differs"
    for length in (1, 2, 3):
        for got in clusterings(states[:length]).values():
            assert len(got.labels) == length
            assert got.groups <= length


def test_what_is_missing_is_reported_and_the_rest_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    sentences_alone = evaluate_phrases(grouping(method="maxsim"))[1]
    assert "no clusterings of token states: this method does not keep a state of every token" in (
        sentences_alone.notes
    )
    monkeypatch.setattr(grouped, "find_spec", lambda _: None)
    data, result = evaluate_phrases(grouping())
    assert data.collected["phrases"].clusters == {}
    assert grouped.LACKING in result.notes
    assert result.metric("tIoU, uniform chunks, K = 4").value > 0


@pytest.mark.parametrize("text", [{"groups": 3, "later": 1}, {"groups": 77, "tokens_per_group": 1}, {}])
def test_a_method_whose_tokens_are_groups_is_clustered_by_what_it_grouped(text: dict[str, Any]) -> None:
    model = tiny_model("tgt", 0, override(TINY, [f"text.{name}={value}" for name, value in text.items()]))
    data, result = evaluate_phrases(model)
    assert "tIoU, k-means" in {metric.name for metric in result.metrics}
    for text, tokens, got in zip(
        data.collected["phrases"].texts,
        data.collected["phrases"].tokens,
        data.collected["phrases"].clusters["k-means"],
        strict=True,
    ):
        states = model.method.token_groups(texts_of(model.read([text]).ids)).states[0].detach().numpy()  # type: ignore[operator]
        assert states.shape[1] == model.method.words.embedding_dim  # type: ignore[union-attr]
        expected = clusterings(states[[token.column for token in tokens]])["k-means"]
        ours, wanted = got.labels, expected.labels  # the numbers of clusters are arbitrary
        assert ((ours[:, None] == ours) == (wanted[:, None] == wanted)).all()


def test_long_captions_are_cut_and_damaged_ones_skipped() -> None:
    long = "a red dog runs " * 30 + "to a house"
    bad = record("a dog", "a dog", key="z")._replace(regions=(Region("x", span=("captions.0", 0, 99)),))
    given = [record(long, "a red dog", "a house", key="l"), *PLAIN * 10, bad]
    data, result = evaluate_phrases(grouping(by_id), InMemory(given))
    assert data.cut == 1
    assert "1 phrases lie beyond what the model reads and are left out" in result.notes
    assert data.damaged == {"corrupt region": 1}
    with pytest.raises(UserError, match=r"^at least 1 of 6 samples in memory:test are corrupt"):
        evaluate_phrases(grouping(by_id), InMemory([*PLAIN, bad]))
    with pytest.raises(UserError, match=r"^no sample of memory:test can be used"):
        PhrasesSuite().encode(grouping(), InMemory([bad]), Settings(max_corrupt=1.0))


def test_what_cannot_be_measured_is_refused() -> None:
    with pytest.raises(UserError, match=r"^caft reads a text as chunks that it composes; --suite phrases is"):
        evaluate_phrases(tiny_model("caft", changes=["heads=2", "composer.heads=2", "composer.depth=1"]))
    with pytest.raises(UserError, match=r"^no phrase in memory:test that the model reads is marked"):
        evaluate_phrases(grouping(), InMemory([PLAIN[3]]))
    with pytest.raises(UserError, match=r"^no samples in memory:test"):
        evaluate_phrases(grouping(), InMemory([]))
    with pytest.raises(UserError, match=r"^2 of 2 scores are not a number"):
        evaluate_phrases(grouping(lambda texts: by_id(texts) * torch.nan))


# Figures and the command
