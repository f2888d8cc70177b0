"""A caption as texts of several grain: which ones, in which slots, with which levels."""

from random import Random
from typing import Any

import pytest
import torch
from test_dataset import CROP, TOKENIZER, Shelf

from grainline.data.batches import collate
from grainline.data.dataset import Draw, TrainSet
from grainline.data.phrases.providers import Rules
from grainline.data.texts import Grains, PhrasesConfig, TextsConfig, grains
from grainline.types import CAPTION, FOIL, PHRASE, SENTENCE

TEXT = "A dog sits on a mat. Two cats lie next to a box. A bird flies over the roof."
EIGHT = " ".join(f"Dog {word} sits on a mat." for word in "Rex Max Ben Tom Sam Leo Gus Pip".split())  # noqa: SIM905


def taken(text: str, number: int, seed: int = 0, most: int = 30, sampled: bool = False, **cfg: Any) -> Grains:
    splitter = cfg.pop("splitter", "rules")
    chosen = PhrasesConfig(max_phrases=most, **cfg)
    return grains(text, number, chosen, Rules(), Random(seed), splitter=splitter, sampled=sampled)


def test_of_many_sentences_some_are_taken_in_random_order() -> None:
    all_of_them = [s + "." for s in EIGHT.rstrip(".").split(". ")]
    draws = [taken(EIGHT, 5, seed).sentences for seed in range(200)]
    assert all(len(set(draw)) == 5 and set(draw) <= set(all_of_them) for draw in draws)
    assert any(draw != sorted(draw, key=all_of_them.index) for draw in draws)
    assert {draw[0] for draw in draws} == set(all_of_them)
    assert draws[3] == taken(EIGHT, 5, 3).sentences
    three = {tuple(taken(TEXT, 3, seed).sentences) for seed in range(50)}  # exactly as many: shuffled too
    assert len(three) == 6


def test_phrases_are_the_first() -> None:
    every = taken(TEXT, 0).phrases
    wanted = ["A dog", "a mat", "Two cats", "a box", "A bird", "the roof", "sits on", "flies over", "next to"]
    assert every == wanted
    assert taken(TEXT, 0, most=4).phrases == wanted[:4]
    assert taken(TEXT, 0, most=0).phrases == []
    assert taken("A dog. A dog.", 0).phrases == ["A dog"]


def test_a_sampled_caption_is_what_its_sentences_say() -> None:
    for seed in range(20):
        got = taken(EIGHT, 2, seed, sampled=True)
        assert got.caption == " ".join(got.sentences)
        names = [sentence.removesuffix(" sits on a mat.") for sentence in got.sentences]
        assert got.phrases == [names[0], "a mat", names[1], "sits on"]
    got = taken(EIGHT, 2, 0, sampled=True, splitter="period_space")
    assert got.caption == ". ".join(got.sentences)
    assert taken(EIGHT, 2).caption == EIGHT


def sample(
    cfg: dict[str, Any], shelf: Shelf | None = None, context: int = 40, draw: int = 0, **options: Any
) -> Any:
    data = TrainSet(
        shelf or Shelf(4), TOKENIZER, CROP, TextsConfig(**cfg), context=context, seed=1, **options
    )
    return data[Draw(image=draw, position=draw, epoch=0)]


@pytest.mark.parametrize(("most", "slots"), [(0, 6), (10, 16), (30, 36)])
def test_a_sample_has_a_slot_for_every_text(most: int, slots: int) -> None:
    cfg = {"sentences": 5, "phrases": {"max_phrases": most}}
    got = sample(cfg)
    assert got.slots == len(got.texts) == slots
    levels = [None if text is None else text.level for text in got.texts]
    number = sum(level == PHRASE for level in levels)
    assert levels == [CAPTION] + [SENTENCE] * 4 + [None] + [PHRASE] * number + [None] * (most - number)
    assert (number > 4) == (most > 0)
    batch = collate([got, sample(cfg, draw=1)]).texts
    assert batch.ids.shape[0] == 2 * slots
    there = batch.item >= 0
    assert batch.item[there].tolist() == [i for i in range(2 * slots) if there[i]]
    assert torch.equal(there, batch.mask.any(2).any(1))
    assert batch.image[there].unique().tolist() == [0, 1]
    assert (batch.image[~there] == -1).all()
    assert batch.level[there][:2].tolist() == [CAPTION, SENTENCE]


def test_phrases_are_cut_to_their_own_length_and_end_as_texts_do() -> None:
    got = sample({"phrases": {"max_phrases": 30, "tokens": 4}})
    phrases = [text for text in got.texts if text is not None and text.level == PHRASE]
    ends = {text.parts[0][-1] for text in got.texts if text is not None}
    assert max(len(text.parts[0]) for text in phrases) == 4
    assert len(ends) == 1
    assert got.truncated > sample({"phrases": {"max_phrases": 30}}).truncated == 0
    assert (
        max(len(text.parts[0]) for text in sample({"phrases": {"max_phrases": 30}}, context=5).texts if text)
        == 5
    )


def test_foils_stand_behind_the_slots_of_their_caption() -> None:
    shelf = Shelf(2, foils=[0, 1])
    got = sample({"sentences": 5, "phrases": {"max_phrases": 30}, "foils": 2}, shelf)
    assert got.slots == 38
    assert [text.level for text in got.texts[36:]] == [FOIL, FOIL]
    batch = collate([got]).texts
    assert batch.image[36:].tolist() == [-1, -1]
    assert (batch.item[36:] >= 0).all()


@pytest.mark.parametrize(
    ("cfg", "message"),
    [
        ({"captions": "sampled"}, "needs sentences above 0"),
        ({"captions": "sampled", "sentences": 2, "foils": 1, "per_image": 2}, "goes with no foils"),
        ({"sentences": 2, "per_image": 2}, "per_image 1, subset 0"),
        ({"phrases": {"max_phrases": 2}, "subset": 0.5}, "per_image 1, subset 0"),
        ({"phrases": {"max_phrases": 2, "tokens": 2}}, "greater than or equal to 3"),
    ],
)
def test_what_does_not_go_together_is_refused(cfg: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TextsConfig(**cfg)
