"""Captions to phrases: patterns, built-in rules, spaCy through a stand-in, and the clean-up of repetition."""
# ruff: noqa: RUF001 (typographic marks are tested)

import sys
import types
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from phrases_own import OWN
from phrases_truth import agreement, labelled

from grainline.data.captions import remove_repetitions
from grainline.data.phrases.patterns import Phrase, Tagged, Token, extract, longest, select, words_of
from grainline.data.phrases.providers import Pipeline, Rules, open_provider, tagged
from grainline.errors import UserError

CAT = "A cat on the left of the image leans against a wall next to the small dog."
CAT_POS = "DET NOUN ADP DET NOUN ADP DET NOUN VERB ADP DET NOUN ADV ADP DET ADJ NOUN PUNCT".split()  # noqa: SIM905
CAT_CHUNKS = [(0, 2), (3, 5), (6, 8), (10, 12), (14, 17)]


def pretagged(text: str, pos: list[str], chunks: list[tuple[int, int]]) -> Tagged:
    tokens, place = [], 0
    for word, tag in zip(text.replace(".", " .").split(), pos, strict=True):
        start = text.index(word, place)
        place = start + len(word)
        tokens.append(Token(word, start, place, tag))
    return Tagged(tokens, chunks)


def said(text: str, phrases: list[Phrase]) -> list[str]:
    return [words_of(text, phrase) for phrase in phrases]


def test_the_phrases_of_a_tagged_sentence_are_those_of_the_paper() -> None:
    actual = extract(pretagged(CAT, CAT_POS, CAT_CHUNKS))
    wanted = ["A cat on the left of", "a wall", "the small dog", "leans against", "on the left of", "next to"]
    assert said(CAT, select(CAT, actual, "official")) == wanted
    assert said(CAT, select(CAT, actual)) == wanted
    assert "next to" not in said(CAT, select(CAT, actual, "paper"))
    assert "the image" in said(CAT, select(CAT, actual, "paper"))
    assert [p.kind for p in actual] == ["noun"] * 4 + ["action"] + ["relation"] * 2


def slow_extended(tokens: list[Token]) -> list[tuple[int, int]]:
    """Every match of DET? (ADJ|NOUN|PROPN)+ ADP the? SIDE of?, by trying all spans."""
    sides = ("left", "right", "top", "bottom", "front", "back", "middle", "center")
    actual = []
    for first in range(len(tokens)):
        for end in range(first + 3, len(tokens) + 1):
            rest = tokens[first:end]
            rest = rest[1:] if rest[0].pos == "DET" else rest
            nominal = 0
            while nominal < len(rest) and rest[nominal].pos in ("ADJ", "NOUN", "PROPN"):
                nominal += 1
            for taken in range(1, nominal + 1):
                tail = rest[taken:]
                words = [token.text.lower() for token in tail]
                fits = [[s, *o] for s in sides for o in ([], ["of"])]
                fits += [["the", *fit] for fit in fits]
                if tail and tail[0].pos == "ADP" and words[1:] in fits:
                    actual.append((first, end))
    return actual


POS = ("DET", "ADJ", "NOUN", "PROPN", "ADP", "VERB", "ADV", "PUNCT")
WORDS = ("the", "a", "left", "top", "of", "dog", "next", "to", "on")


@settings(max_examples=300, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(WORDS), st.sampled_from(POS)), max_size=9), st.data())
def test_longer_noun_phrases_are_the_longest_of_all_matches(pairs: list[tuple[str, str]], data: Any) -> None:
    tokens, place = [], 0
    for word, pos in pairs:
        tokens.append(Token(word, place, place + len(word), pos))
        place += len(word) + 1
    cuts = sorted(data.draw(st.sets(st.integers(0, len(tokens)), max_size=4)))
    chunks = list(pairwise(cuts))[::2]
    actual = extract(Tagged(tokens, chunks))
    kept: list[tuple[int, int]] = []
    for span in sorted({*chunks, *slow_extended(tokens)}, key=lambda s: (s[0] - s[1], s[0])):
        if not any(span[0] < end and first < span[1] for first, end in kept):
            kept.append(span)
    wanted = [(tokens[a].start, tokens[b - 1].end) for a, b in sorted(kept)]
    assert [(p.start, p.end) for p in actual if p.kind == "noun"] == wanted
    assert longest(chunks) == chunks


@pytest.mark.parametrize(
    ("words", "pos", "wanted"),
    [
        ("In front of it", "ADP NOUN ADP PRON", ["in front of"]),
        ("from behind", "ADP ADP", []),
        ("from above", "ADP ADP", ["from above"]),
        ("next to the top of", "ADV ADP DET NOUN ADP", ["next to"]),
        ("on top on the left", "ADP NOUN ADP DET NOUN", ["on top", "on the left"]),
        ("to of near by", "ADP ADP ADP ADP", ["of near"]),
        ("at the very top", "ADP DET ADV NOUN", []),
        ("on", "ADP", []),
        ("to the", "ADP DET", []),
    ],
)
def test_relations_take_each_word_once_from_left_to_right(words: str, pos: str, wanted: list[str]) -> None:
    actual = extract(pretagged(words, pos.split(), []))
    assert said(words, [p for p in actual if p.kind == "relation"]) == wanted


def test_filters_leave_out_what_they_say() -> None:
    text = "the image Image it on top of top made of a cat A cat TV on top of"
    phrases = [
        Phrase("noun", 0, 9),
        Phrase("noun", 10, 15),
        Phrase("noun", 16, 18),
        Phrase("action", 33, 40),
        Phrase("noun", 41, 46),
        Phrase("noun", 47, 52),
        Phrase("noun", 53, 55),
        Phrase("relation", 19, 28),
        Phrase("relation", 56, 65),
    ]
    assert said(text, select(text, phrases, "official")) == [
        *("Image", "it", "made of", "a cat", "A cat", "TV", "on top of")
    ]
    assert said(text, select(text, phrases, "paper")) == ["the image", "Image", "a cat", "A cat"]
    assert said(text, select(text, phrases, "content")) == ["Image", "a cat", "A cat", "on top of"]


@pytest.mark.parametrize("text", OWN)
def test_rules_find_the_phrases_of_our_own_sentences(text: str) -> None:
    actual = select(text, Rules().phrases(text))
    by_kind = [
        "|".join(text[p.start : p.end] for p in actual if p.kind == kind)
        for kind in ("noun", "action", "relation")
    ]
    assert by_kind == OWN[text]


@settings(max_examples=200, deadline=None)
@given(st.text(st.sampled_from("aAsdeingtly .,'’“\"-0(\n&") | st.characters(), max_size=60))
def test_rules_hold_their_promises_on_any_text(text: str) -> None:
    actual = Rules().phrases(text)
    assert actual == Rules().phrases(text)
    assert len({(p.kind, p.start, p.end) for p in actual}) == len(actual)
    order = ("noun", "action", "relation")
    assert actual == sorted(actual, key=lambda p: (order.index(p.kind), p.start))
    for phrase in actual:
        piece = text[phrase.start : phrase.end]
        assert piece
        assert piece == piece.strip()
    for token in tagged(text).tokens:
        assert text[token.start : token.end] == token.text


def test_rules_find_most_phrases_of_real_sentences(shared_data: Path) -> None:
    provider = Rules()
    for half, least in (("tune", 0.97), ("held", 0.88)):
        hits = both = 0
        for one in labelled(shared_data):
            if one.half == half:
                actual, true = (select(one.text, p) for p in (provider.phrases(one.text), one.phrases))
                right, some, all_true = agreement(one.text, actual, true, exact=True)
                hits, both = hits + right, both + some + all_true
        assert 2 * hits / both > least, half


# --- spaCy, by a stand-in that has its interface ---


class FakeToken(NamedTuple):
    i: int
    text: str
    idx: int
    pos_: str


class FakeSpan(NamedTuple):
    start: int
    end: int


class FakeDoc:
    def __init__(self, tokens: list[FakeToken], chunks: list[FakeSpan], has: tuple[str, ...]) -> None:
        self.tokens, self.noun_chunks, self.has = tokens, chunks, has

    def __iter__(self) -> Iterator[FakeToken]:
        return iter(self.tokens)

    def has_annotation(self, name: str) -> bool:
        return name in self.has


class FakePipeline:
    meta = types.MappingProxyType({"lang": "en", "name": "core_web_sm", "version": "3.8.0"})

    def __init__(self, has: tuple[str, ...] = ("POS", "DEP")) -> None:
        self.has = has

    def __call__(self, text: str) -> FakeDoc:
        if text != CAT:
            return FakeDoc([], [], self.has)
        actual = pretagged(CAT, CAT_POS, CAT_CHUNKS)
        tokens = [FakeToken(i, t.text, t.start, t.pos) for i, t in enumerate(actual.tokens)]
        return FakeDoc(tokens, [FakeSpan(*chunk) for chunk in actual.chunks], self.has)


def install(monkeypatch: pytest.MonkeyPatch, load: Any) -> None:
    module = types.ModuleType("spacy")
    module.load = load  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "spacy", module)


def test_a_pipeline_of_spacy_is_a_provider(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, lambda name: FakePipeline() if name == "en_core_web_sm" else None)
    provider = open_provider("spacy:en_core_web_sm")
    assert provider.name == "spacy en_core_web_sm 3.8.0"
    assert provider.phrases(CAT) == extract(pretagged(CAT, CAT_POS, CAT_CHUNKS))


def test_what_spacy_lacks_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "spacy", None)
    with pytest.raises(UserError, match=r"not installed; pip install 'grainline\[text\]'"):
        Pipeline("en_core_web_sm")

    def missing(_name: str) -> Any:
        raise OSError("[E050] Can't find model")

    install(monkeypatch, missing)
    with pytest.raises(UserError, match="no such pipeline"):
        Pipeline("xx")
    install(monkeypatch, lambda _name: FakePipeline(("POS",)))
    with pytest.raises(UserError, match="gives no DEP"):
        Pipeline("xx")


@pytest.mark.parametrize("name", ["", "rule", "spacy", "spacy:", "phrases.txt"])
def test_an_unknown_provider_is_named_with_those_there_are(name: str) -> None:
    with pytest.raises(UserError, match="there are rules, spacy:PIPELINE"):
        open_provider(name)


# --- repeated pieces ---


def test_repetition_is_collapsed_as_in_the_published_code() -> None:
    assert remove_repetitions("a very very red red car") == "a very red car"
    assert remove_repetitions("y" * 120 + " ok") == "yyyy ok"
    assert remove_repetitions("  a\ncat\n") == "a cat"
    assert remove_repetitions("ha ha Ha") == "ha Ha"
