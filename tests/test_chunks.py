"""A text as sub-captions of whole sentences, against slow programs and the numbers of the paper."""

import json
from collections import Counter
from copy import copy
from itertools import chain, product
from pathlib import Path
from random import Random
from typing import Any

import pytest
from pydantic import ValidationError
from test_dataset import CROP, TOKENIZER, Shelf, random_image

from grainline.data.captions import joined, sentences, split_sentences
from grainline.data.dataset import Draw, Sample, TrainSet
from grainline.data.record import Cause, Record
from grainline.data.texts import (
    Chunking,
    TextsConfig,
    balanced_chunks,
    encode_parts,
    random_chunks,
    random_sizes,
    sampled_caption,
)
from grainline.errors import UserError
from grainline.types import CAPTION, LOOSE

PIECES = [f"S{n}" for n in range(20)]


def cuts(count: int, number: int, most: int) -> list[tuple[int, ...]]:
    """All count_splits to cut, by trying everything."""
    return [sizes for sizes in product(range(1, most + 1), repeat=number) if sum(sizes) == count]


def test_random_sizes_are_uniform_over_all_ways() -> None:
    rng = Random(3)
    drawn = Counter(tuple(random_sizes(8, 4, 3, rng)) for _ in range(1900))
    assert set(drawn) == set(cuts(8, 4, 3))
    assert len(drawn) == 19
    chi2 = sum((number - 100) ** 2 / 100 for number in drawn.values())
    assert chi2 < 42.3  # 0.999 of chi squared with 18 degrees of freedom
    assert len({tuple(random_sizes(8, 4, 3, Random(seed))) for seed in range(40)}) > 5


@pytest.mark.parametrize("count", range(4, 20))
def test_random_chunks_keep_order_and_lose_only_what_is_beyond_them(count: int) -> None:
    for seed in range(10):
        chunks = random_chunks(PIECES[:count], 4, 3, Random(seed), "every_period")
        parts = [chunk.split(". ") for chunk in chunks]
        assert list(chain(*parts)) == PIECES[: min(count, 12)]
        assert len(parts) == 4
        assert all(1 <= len(chunk) <= 3 for chunk in parts)


@pytest.mark.parametrize(
    ("count", "sizes"),
    [(6, [2, 2, 1, 1]), (11, [3, 3, 3, 2]), (4, [1, 1, 1, 1]), (20, [5, 5, 5, 5]), (13, [4, 3, 3, 3])],
)
def test_balanced_sizes_are_those_of_the_paper(count: int, sizes: list[int]) -> None:
    chunks = balanced_chunks(". ".join(PIECES[:count]), 4, Chunking(splitter="period_space"))
    assert [len(chunk.split(". ")) for chunk in chunks] == sizes
    assert ". ".join(chunks) == ". ".join(PIECES[:count])


def test_loose_captions_are_rows_of_one_caption_or_any_sentences() -> None:
    spoken = [["a1", "a2", "a3"], ["b1"], ["c1", "c2"]]
    whole = [piece for caption in spoken for piece in caption]
    cfg = TextsConfig(splitter="every_period")
    drawn = [sampled_caption(spoken, cfg, Random(seed)).split(". ") for seed in range(3000)]
    assert all(1 <= len(caption) <= 3 and len(set(caption)) == len(caption) for caption in drawn)
    shares = Counter(len(caption) for caption in drawn)
    assert all(0.29 < shares[size] / 3000 < 0.38 for size in (1, 2, 3))
    twos = Counter(tuple(caption) for caption in drawn if len(caption) == 2)
    rows = {("a1", "a2"), ("a2", "a3"), ("c1", "c2")}  # the last row of a caption is among them
    share = sum(twos[row] for row in rows) / shares[2]
    assert 0.5 < share < 0.6  # half of them, and 3 of 30 others
    assert ("b1", "c1") in twos  # any two in any order, across captions, but not as often
    assert all(twos[row] > 5 * twos["b1", "c1"] for row in rows)
    assert {piece for caption in drawn for piece in caption} == set(whole)
    assert sampled_caption([["only"]], TextsConfig(), Random(0)) == "only"


class Told(Shelf):
    """Records with captions and long descriptions as given."""

    def __init__(self, *records: tuple[tuple[str, ...], tuple[str, ...]]) -> None:
        super().__init__(len(records))
        self.records = records

    def __getitem__(self, index: int) -> Record:
        captions, longs = self.records[index]
        long = longs[0] if longs else None
        return Record(f"p{index}", random_image(index), captions, long, others=longs[1:])


ONE = (
    "A red circle stands left. A blue square lies below it. Two stars shine. The ground is grey. A red star."
)
TWO = "A grey circle. A grey square. A grey star. Two grey stars. Left of it. Below it. The left. The right."
SHORT = ("A red circle", "Stars on grey ground.")
CAFT = {"chunks": 4, "sampled_captions": 4}


def samples(source: Shelf, context: int = 40, epochs: int = 1, **cfg: object) -> list[Sample]:
    data = TrainSet(source, TOKENIZER, CROP, TextsConfig(**(CAFT | cfg)), context=context, seed=1, parts=4)
    return [data[Draw(e * len(source) + i, e, i)] for e in range(epochs) for i in range(len(source))]


def words(ids: list[int]) -> str:
    return TOKENIZER.decode(ids)


def test_a_sample_is_one_text_of_chunks_and_loose_captions() -> None:
    result = samples(Told((SHORT, (ONE, TWO))), epochs=30)
    chosen = set()
    for sample in result:
        assert sample.slots == len(sample.texts) == 5
        texts = [text for text in sample.texts if text is not None]
        assert [text.level for text in texts] == [CAPTION, LOOSE, LOOSE, LOOSE, LOOSE]
        assert [len(text.parts) for text in texts] == [4, 1, 1, 1, 1]
        described = " ".join(words(ids) for ids in texts[0].parts)
        whole = {text: words(TOKENIZER.encode([text], 99).ids[0]) for text in (ONE, TWO)}
        chosen |= {text for text in whole if whole[text] == described}
        assert described in whole.values()
    assert chosen == {ONE, TWO}  # any of the long captions, one at a time
    assert len({str(sample.texts) for sample in result}) > 25
    loose = {words(text.parts[0]) for sample in result for text in sample.texts[1:] if text}
    assert any("ground" in text and "stars on" in text for text in loose)  # of short captions too
    assert samples(Told((SHORT, (ONE, TWO))), epochs=30)[29].texts == result[29].texts


def test_the_long_caption_is_one_with_sentences_and_else_all_captions_as_one() -> None:
    every = {"splitter": "every_period"}
    blank, joined, none = samples(Told((("A dog.",), (" . ", ONE)), (SHORT, ()), (("...",), ())), **every)
    assert blank.texts[0] is not None
    assert "circle" in words(blank.texts[0].parts[0])
    assert joined.texts[0] is not None
    assert [words(ids) for ids in joined.texts[0].parts[:2]] == ["a red circle", "stars on grey ground"]
    assert none.corrupt == ((Cause.MISSING_CAPTION, "p2 (no sentence in any caption)"),)


def test_a_method_that_reads_chunks_gets_balanced_ones_of_any_text() -> None:
    read = encode_parts(TOKENIZER, [ONE, "", "A red star."], 30, 4, Chunking())
    assert [len(ids) for ids in read.ids] == [4, 4, 4]
    pieces = [s.text for s in sentences(ONE)]
    assert words(read.ids[0][0]) == words(TOKENIZER.encode([" ".join(pieces[:2])], 30).ids[0])
    assert read.ids[1] == [TOKENIZER.encode([""], 30).ids[0]] * 4
    assert read.truncated_tokens == [0, 0, 0]
    short = encode_parts(TOKENIZER, [ONE], 4, 4, Chunking())
    assert short.truncated_tokens[0] == sum(len(ids) - 4 for ids in read.ids[0])
    options: dict[str, Any] = {"context": 30, "seed": 0, "parts": 4, "chunking": Chunking()}
    data = TrainSet(Told((SHORT, (ONE,))), TOKENIZER, CROP, TextsConfig(), **options)
    whole = data[Draw(0, 0, 0)].texts[0]
    assert whole is not None
    assert whole.parts == read.ids[0]


def test_chunks_go_with_methods_that_read_them() -> None:
    with pytest.raises(UserError, match="chunks is 4, but the method reads 1 part"):
        TrainSet(Shelf(1), TOKENIZER, CROP, TextsConfig(chunks=4), context=9, seed=0)
    options: dict[str, Any] = {"context": 9, "seed": 0, "parts": 4, "chunking": Chunking()}
    with pytest.raises(UserError, match="chunks is 3, but the method composes 4"):
        TrainSet(Shelf(1), TOKENIZER, CROP, TextsConfig(chunks=3), **options)


@pytest.mark.parametrize(
    "cfg",
    [{"captions": "first"}, {"per_image": 2}, {"subset": 0.5}, {"foils": 1}, {"sentences": 2}],
    ids=lambda cfg: next(iter(cfg)),
)
def test_chunks_go_with_no_other_way_to_take_a_caption(cfg: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="chunks goes with captions 'whole'"):
        TextsConfig(chunks=4, **cfg)


def test_sentences_of_the_benchmarks_are_as_many_as_the_paper_counts(shared_data: Path) -> None:
    """Table 6: 5.97 sentences a text in Urban-1k, and 10.16 in IIW, which FLAIR splits and joins."""
    folder = shared_data / "benchmarks"
    files = [folder / "imageinwords" / name / "data.jsonl" for name in ("DOCCI_Test", "IIW-400", "DCI_Test")]
    if not all(file.is_file() for file in (*files, folder / "urban1k" / "annotations.json")):
        pytest.skip(f"no Urban-1k or IIW below {folder}")
    urban = json.loads((folder / "urban1k" / "annotations.json").read_text())["annotations"]
    iiw = [json.loads(line)["IIW"] for file in files for line in file.read_text().splitlines()]
    sets = {
        5.97: [row["caption"] for row in urban if row["caption"].strip()],
        10.16: [joined([s.text for s in sentences(text, "every_period")], "every_period") for text in iiw],
    }
    assert [len(texts) for texts in sets.values()] == [999, 612]
    for wanted, texts in sets.items():
        mean = sum(len(sentences(text, "period_space")) for text in texts) / len(texts)
        assert abs(mean - wanted) < 0.005


DEBIAS = {"chunks": 0, "sampled_captions": 1, "sampling": "any", "drop_first": True, "pad_front": True}


def debias_samples(source: Shelf, context: int, epochs: int, **cfg: object) -> list[list[list[int]]]:
    """The ids of the whole caption and of the sampled one, of the first record in each epoch."""
    data = TrainSet(source, TOKENIZER, CROP, TextsConfig(**(DEBIAS | cfg)), context=context, seed=1)
    rows = [data[Draw(epoch, epoch, 0)].texts for epoch in range(epochs)]
    return [[text.parts[0] for text in texts if text is not None] for texts in rows]


def test_sampled_captions_lack_first_sentences_and_stand_behind_padding() -> None:
    whole = TOKENIZER.encode([ONE], 60).ids[0]
    starts = set()
    for caption, sampled in debias_samples(Told((SHORT, (ONE,))), 60, 300):
        assert caption == whole, "the whole text has its first sentence, and no padding in front"
        assert sampled[0] == TOKENIZER.begin
        assert sampled[-1] == TOKENIZER.end
        assert len(sampled) <= 60
        pad = next(i for i, number in enumerate(sampled[1:]) if number != 0)
        starts.add(pad)
        loaded = words([number for i, number in enumerate(sampled) if not 0 < i <= pad])
        assert "a red circle stands left" not in loaded
        pieces = {words(TOKENIZER.encode([one], 60).ids[0]) for one in split_sentences(ONE)[1:]}
        assert any(loaded.startswith(piece) for piece in pieces)
    assert min(starts) == 0
    assert max(starts) > 40, "a short one may stand at the end of the context"


def test_a_subset_may_lack_the_first_sentence() -> None:
    for epoch in range(20):
        cfg = TextsConfig(subset=1, drop_first=True)
        data = TrainSet(Told(((ONE,), ())), TOKENIZER, CROP, cfg, context=60, seed=epoch)
        (text,) = data[Draw(0, 0, 0)].texts
        assert text is not None
        assert "a red circle stands left" not in words(text.parts[0])


@pytest.mark.parametrize(
    ("cfg", "parts", "message"),
    [
        ({"sampled_captions": 0}, 1, "need sampled_captions above 0"),
        ({"sampled_captions": 0, "sampling": "few", "pad_front": False}, 1, "need sampled_captions above 0"),
        ({}, 2, "data.texts.pad_front is for methods that read a text in one part"),
    ],
)
def test_wrong_settings_of_sampled_captions_are_one_line(
    cfg: dict[str, object], parts: int, message: str
) -> None:
    with pytest.raises((UserError, ValidationError), match=message):
        TrainSet(Shelf(1), TOKENIZER, CROP, TextsConfig(**(DEBIAS | cfg)), context=60, seed=1, parts=parts)


def test_padding_in_front_is_that_of_clip() -> None:
    other = copy(TOKENIZER)
    other.prefix = ()
    with pytest.raises(UserError, match=r"around a text, and has <\|endoftext\|>"):
        TrainSet(Shelf(1), other, CROP, TextsConfig(**DEBIAS), context=60, seed=1)
