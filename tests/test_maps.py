"""Heat of sentences and of the phrases in them: what has a map, one range for an image, page and PNG."""

import re
from pathlib import Path

import numpy as np
import pytest
from indexes import photo, tiny_model
from PIL import Image
from test_viz import Page

from grainline.data.captions import sentences
from grainline.data.phrases.patterns import select, words_of
from grainline.data.phrases.providers import Rules
from grainline.evaluation.examples import look_at, phrases_of
from grainline.report.case import CaseImage, SentenceScore, look
from grainline.report.heatmap import limit_of
from grainline.report.page import MissingImage

CAPTION = (
    "A red cup stands on a table. The cup is next to an old book. It rains. "
    "Two men on the left of the old book lean against a wall. A grey wall."
)
THINGS = ("cup", "book", "wall", "man", "dog", "lamp", "tree", "boat", "house", "road")


def many(number: int) -> str:
    """A caption of so many sentences with two phrases each, and one more at its end with six."""
    pairs = [f"{a}{b}" for a in THINGS for b in THINGS]
    said = [f"The {pairs[2 * i]} is a {pairs[2 * i + 1]}." for i in range(number)]
    last = ", ".join(f"a {word}" for word in pairs[-5:])
    return " ".join([*said, f"The {pairs[-6]} is {last}."])


# What has a map


def slow_phrases(text: str) -> list[list[str]]:
    """Each sentence with what `select` keeps of the whole text, each once, by hand."""
    out: list[list[str]] = []
    met: list[str] = []
    for one in sentences(text):
        inside = [p for p in select(text, Rules().phrases(text)) if one.start <= p.start < one.end]
        inside.sort(key=lambda phrase: phrase.start)
        fresh = []
        for phrase in inside:
            said = words_of(text, phrase)
            if said.lower() in met:
                continue
            met.append(said.lower())
            if said.lower() != one.text.rstrip(".").lower():
                fresh.append(said)
        out.append(fresh)
    return out


@pytest.mark.parametrize("method", ["maxsim", "clip"])
def test_each_phrase_stands_in_its_sentence_with_its_own_score_and_heat(method: str, tmp_path: Path) -> None:
    model, image = tiny_model(method), photo(tmp_path / "a.png", 0)
    picture = look_at(model, model.cropped(image), CAPTION)
    assert [one.text for one in picture.sentences] == [one.text for one in sentences(CAPTION)]
    assert [[phrase.text for phrase in one.phrases] for one in picture.sentences] == slow_phrases(CAPTION)
    assert [len(one.phrases) for one in picture.sentences] == [3, 3, 0, 4, 0]
    every = [one.text for one in picture.texts()]
    assert every[:4] == ["A red cup stands on a table.", "A red cup", "stands on", "a table"]
    assert picture.heat is not None
    assert len(picture.heat) == len(every) == 5 + 10
    for one, heat in zip(picture.texts(), picture.heat, strict=True):
        assert one.score == pytest.approx(float(model.score([image], [one.text])[0, 0]), abs=1e-5)
        np.testing.assert_allclose(heat, model.heat(image, [one.text])[0], atol=1e-5)
    assert picture.left_out == ""


def test_without_a_grid_nothing_has_heat_and_no_phrases_are_looked_for(tmp_path: Path) -> None:
    model = tiny_model("clip")
    model.method.towers.image.grid = None
    picture = look_at(model, model.cropped(photo(tmp_path / "a.png", 0)), CAPTION)
    assert picture.heat is None
    assert [one.phrases for one in picture.sentences] == [[]] * 5
    assert look_at(model, MissingImage("away"), CAPTION) == CaseImage(MissingImage("away"), "")


def test_of_too_many_phrases_those_at_the_end_of_long_sentences_are_left_out_and_it_is_reported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model, image = tiny_model("clip"), Image.new("RGB", (8, 8))
    monkeypatch.setattr("grainline.evaluation.examples.PHRASES", 8)
    picture = look_at(model, image, many(2))
    kept = [[phrase.text for phrase in one.phrases] for one in picture.sentences]
    every = phrases_of(many(2), sentences(many(2)))
    assert [len(inside) for inside in every] == [2, 2, 6]
    assert kept == [every[0], every[1], every[2][:4]]
    assert picture.left_out == "Left out: 2 of 10 phrases, at the end of their sentences."
    monkeypatch.setattr("grainline.evaluation.examples.SENTENCES", 2)
    monkeypatch.setattr("grainline.evaluation.examples.PHRASES", 2)
    picture = look_at(model, image, many(2))
    assert [len(one.phrases) for one in picture.sentences] == [1, 1], "turn by turn"
    assert picture.left_out == (
        "Left out: 1 of 3 sentences, at the end;"
        " 2 of 4 phrases in those shown, at the end of their sentences."
    )
    for shown in (picture, picture._replace(heat=None)):
        assert picture.left_out in Page(look(shown, "a")).words


# The page


def scored(*levels: list[float], text: str = "text") -> tuple[list[SentenceScore], np.ndarray]:
    """Sentences with phrases; each list holds the level of a sentence and those of its phrases."""
    texts = [
        SentenceScore(
            f"{text} {i}",
            own,
            phrases=[SentenceScore(f"{text} {i}.{k}", level) for k, level in enumerate(more)],
        )
        for i, (own, *more) in enumerate(levels)
    ]
    return texts, np.stack([np.full((40, 40), level) for one in levels for level in one])


def test_phrases_are_choices_below_their_own_sentence() -> None:
    texts, heat = scored([0.5, 0.25, -0.75], [0.1], [0.2, 0.3])
    drawn = look(CaseImage(Image.new("RGB", (40, 40)), "p", texts, heat), "a")
    tags = Page(drawn).tags
    assert [a["id"] for tag, a in tags if tag == "input"] == [f"a-{i}" for i in range(7)]
    assert {a["name"] for tag, a in tags if tag == "input"} == {"a"}
    assert ["checked" in a for tag, a in tags if tag == "input"] == [True, *[False] * 6]
    alts = [(a["alt"] or "").split("'")[1] for _, a in tags if a.get("class") == "over"]
    assert alts == ["text 0", "text 0.0", "text 0.1", "text 1", "text 2", "text 2.0"]
    lists = re.findall(r'<ul class="phrases".*?</ul>', drawn)
    assert [re.findall(r"text [\d.]+(?=</span>)", one) for one in lists] == [
        ["text 0.0", "text 0.1"],
        ["text 2.0"],
    ]
    first, second, third = (drawn.index(f"<span>text {i}</span>") for i in range(3))
    assert first < drawn.index(lists[0]) < second < third < drawn.index(lists[1])
    assert "Point at a sentence or a phrase, or" in drawn
    assert "a phrase" not in look(CaseImage(Image.new("RGB", (40, 40)), "p", texts[1:2], heat[3:4]), "a")


def test_phrases_and_sentences_of_a_image_share_one_range_that_keeps_the_sign() -> None:
    texts, heat = scored([0.5, 0.25, -0.75], [0.1])
    one = CaseImage(Image.new("RGB", (40, 40), "white"), "p", texts, heat)
    drawn = look(one, "a")
    assert "-0.75<" in drawn
    assert "+0.75" in drawn
    maps = [a["src"] for _, a in Page(drawn).tags if a.get("class") == "over"]
    louder = look(one._replace(heat=np.concatenate([heat[:2], 2 * heat[2:3], heat[3:]])), "a")
    others = [a["src"] for _, a in Page(louder).tags if a.get("class") == "over"]
    assert [own == its for own, its in zip(maps, others, strict=True)] == [False, False, True, False]
    assert limit_of(heat) == 0.75
