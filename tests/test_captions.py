"""The sentence splitter against hand-set truth, its promises on any text, and cleaning against CLIP's."""
# ruff: noqa: E501, RUF001 (whole texts on a line; typographic marks are what is tested)

import html
import itertools
import json
import re
from pathlib import Path

import ftfy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from syntok import segmenter

from grainline.data.captions import Mode, clean, sentences, split_sentences
from grainline.data.check import check
from grainline.data.open_source import open_source
from grainline.data.phrases.providers import Rules
from grainline.data.tokenizers.tokenizer import Tokenizer

# Each list is the truth: the pieces of the text that they make when joined by the string in front.
PROBES: list[tuple[str, list[str]]] = [
    (" ", ["A cat sits on a mat.", "A dog sleeps by the door."]),
    (" ", ["Dr. Smith and Mrs. Jones walk along St. Mary's road.", "It rains."]),
    (" ", ["It is approx. 3 p.m. near St. Mary's.", "People leave."]),
    (" ", ["The shop opens at 9 a.m. and closes at 5 p.m.", "A sign says so."]),
    ("", ["The sky is blue.", "It covers half the image."]),
    (" ", ["The rod is 3.5 cm long.", "The other one is 12.25 cm."]),
    (" ", ["A screen shows version v1.2.3 of the program.", "It is green."]),
    (" ", ["See https://example.org/a.b?c=d. for more, or www.Example.com.", "The page is white."]),
    (" ", ["He waits... and waits.", "Then he leaves…", "Nobody comes."]),
    (" ", ['She says "Stop!" and raises a hand.', "The bus stops."]),
    (" ", ['A sign reads "No entry."', "A man walks past it."]),
    (" ", ["He says: “It is red. It is big.” and laughs.", "They agree."]),
    (" ", ["A man (left. He wears a hat.) waves.", "A woman waves back."]),
    (" ", ["What is this?!", "Nobody knows!!", "It glows."]),
    (" ", ["The U.S. Army marches past the U.K. embassy.", "A crowd watches in the U.S.", "The sun shines."]),
    (" ", ["A book by J. R. R. Tolkien lies open.", "It is old."]),
    (" ", ["Fruits, e.g. apples, i.e. Red Delicious, pears, etc., fill No. 7 of the boxes.", "They shine."]),
    (" ", ["There are apples, pears, etc.", "All of them are ripe."]),
    (" ", ["Shown by Darwin et al. (1859) in Fig. 3 and Figs. 4 and 5.", "The finch is small."]),
    ("\n", ["1. A cat on a chair", "2. A dog on a mat", "10. Two birds"]),
    ("\n", ["- a red ball", "- a blue cube", "- Dr. Wu"]),
    ("\n\n", ["A title without a period", "A cat sits on\na mat."]),
    (" ", ["Star Wars: Episode IV is on the screen; a boy watches.", "He smiles."]),
    (" ", ["a dog runs over sand .", "a man throws a ball .", "it is sunny ."]),
    (" ", ["a dog runs over sand.", "a man throws it.", "the dept. store is closed."]),
    (
        " ",
        ["Panel A. shows cells.", "Panel B shows E. coli and S. aureus.", "Arrows mark vitamin C.", "Yes."],
    ),
    (" ", ["The year is 1990.", "A car stands at No. 12.", "3 men watch."]),
    (" ", ["Frisbee.", "dog jumping"]),
    (" ", ["a man throws a Frisbee.", "a dog jumps.", "Two men.", "a bus on Fifth.", "grass"]),
    (" ", ["Approx. five men stand in Fig. one, e.g. dog, near Mass. ave and Univ. of Texas."]),
    (" ", ["E. coli and Dr. house at St. james.", "J. smith and U.S. flags, 3.5 m, Vol. two, Jan. five."]),
    (" ", ["NASA. and BBC. at 5 p.m. on Thurs. evening."]),
    (" ", ["The cup holds 5 oz. of tea.", "The rod is 6 in. long.", "A man comes in.", "he sits."]),
    ("", ["猫がいる。", "犬もいる！", "空は青い"]),
    (" ", ["Apple Inc. sells phones.", "She works for Apple Inc.", "The phone is white."]),
    (" ", ["The cell divides (step 2).", "(It then rests.)", "Both halves grow."]),
    (" ", ["Men stand behind Martin Luther King Jr.", "Everyone looks at Grant and P. G. T. Beauregard."]),
    (" ", ["A bar is 2.54 cm.", "1 m is on the label 4 p.", "Similar bars show Flea sp.", "C) A diagram."]),
    (" ", ["He is 5 ft. 3 in. tall.", "The line is for RNA.", "+RNA is next.", "=RNA is not."]),
    (" ", ["A) A straight ladder (with the letters A and T.", "The left strand is blue.", "B) Another one."]),
    (" ", ["It cites Ref. Smith and vol. Seven.", "The page says No.", "Readers agree."]),
    ("", ["A plant .", "The sun shines on .Net or ASP.NET."]),
    ("", ["DNA is a helix (b).", "The strands are blue.", "It turns."]),
]


def pieces(text: str, mode: Mode = "rules") -> list[str]:
    return [sentence.text for sentence in sentences(text, mode)]


@pytest.mark.parametrize(("glue", "truth"), PROBES, ids=[truth[0][:30] for _, truth in PROBES])
def test_rules_find_the_sentences_that_a_person_set(glue: str, truth: list[str]) -> None:
    assert pieces(glue.join(truth)) == truth


def test_blank_texts_have_no_sentences_and_marks_alone_are_no_sentence() -> None:
    assert pieces("") == pieces(" \n\t ") == []
    assert pieces("A cat. --- ") == ["A cat. ---"]
    assert pieces("... A cat.") == ["... A cat."]


ALPHABET = st.sampled_from([*"aAbZe.. ..??!!\n\n  \"'”“()[]-1 3,:é。…*"])
PARTS = """3 The A " ( ) “ ” ... ! . , he - Dr. e.g. U.S. No. Fig. 3.5 1. a) cat dog. blue.It J. R. etc.
    p.m. in. "Go." vitamin C. it. I. x.Y www.x.org (He rests.) 5 ft. [."""
WORDS = st.sampled_from([*PARTS.split(), "\n", "\n\n"])
TEXTS = st.one_of(
    st.text(ALPHABET, max_size=40), st.lists(WORDS, max_size=14).map(" ".join), st.text(max_size=30)
)


@settings(max_examples=600, deadline=None)
@given(TEXTS)
def test_rules_lose_no_character_keep_places_and_leave_sentences_alone(text: str) -> None:
    result = sentences(text)
    assert "".join("".join(s.text.split()) for s in result) == "".join(text.split())
    for sentence in result:
        assert text[sentence.start : sentence.end] == sentence.text == sentence.text.strip() != ""
        assert pieces(sentence.text) == [sentence.text]
    assert all(a.end <= b.start for a, b in itertools.pairwise(result))


@settings(deadline=None)
@given(TEXTS)
def test_the_compatibility_modes_are_the_splits_of_python(text: str) -> None:
    dreamlip = text.replace("</s>", ".").replace("\n", ".")
    modes: dict[Mode, list[str]] = {"period_space": text.split(". "), "every_period": dreamlip.split(".")}
    for mode, split in modes.items():
        loaded = sentences(text, mode)
        assert [s.text for s in loaded] == [piece.strip() for piece in split if piece.strip()]
        assert all(text[s.start : s.end] == s.text for s in loaded)


def ends(text: str) -> set[int]:
    """Number of characters other than blanks before each break inside the text."""
    numbers = itertools.accumulate(len("".join(piece.split())) for piece in pieces(text))
    return set(list(numbers)[:-1])


def syntok_ends(text: str) -> set[int]:
    tokens = [sentence for paragraph in segmenter.process(text) for sentence in paragraph]
    marks = [text[: tokens[i][0].offset] for i in range(1, len(tokens))]
    return {len("".join(mark.split())) for mark in marks}


def test_rules_are_right_on_more_probes_than_syntok() -> None:
    ours = theirs = 0
    for glue, truth in PROBES:
        text = glue.join(truth)
        numbers = list(itertools.accumulate(len("".join(piece.split())) for piece in truth))
        ours += ends(text) == set(numbers[:-1])
        theirs += syntok_ends(text) == set(numbers[:-1])
    assert ours == len(PROBES)
    assert 10 < theirs < ours


MARKS = ["&", "&amp;", "&lt;", "&amp;amp;", "<", "é", "’", "“", "…", "\ufb01", "１", "\x85", "â€™"]
HTML = st.lists(st.sampled_from([*MARKS, "&#28;", "e&#769;", "\x0b", "\x1b[31m", "\r\n", "x"]))


def slow_clean(text: str) -> str:
    """The steps of CLIP one by one."""
    text = ftfy.fix_text(text)
    text = html.unescape(html.unescape(text)).strip()
    return re.sub(r"\s+", " ", text).strip()


@settings(max_examples=300, deadline=None)
@given(st.one_of(st.text(st.characters(max_codepoint=127)), st.text(), HTML.map("".join), HTML.map(" ".join)))
def test_cleaning_is_that_of_clip_on_any_text(text: str) -> None:
    assert clean(text) == slow_clean(text)


# Captions that are not English: phrases by rule find nothing in them

LANGUAGES = {  # the sentences of a text, with | between them
    "german": "Der Turm steht seit 3. Oktober dort, d. h. seit Jahren.| Er ist ca. 30 m hoch, z. B. neben dem Haus."
    "| Im 19. Jahrhundert baute Hr. Müller es in der Goethestr. 12 bzw. daneben, vgl. Abb. 3.| Er ruft »Halt!« und geht."
    "| Rechts ist ein Baum usw. zu sehen.",
    "french": "M. Dupont et Mme. Martin regardent le chat !| Que fait-il ?| « Viens ici ! » dit l'homme."
    "| Env. 30 m plus loin, p. ex. près de la porte, il dort…| Il rêve.",
    "spanish": "Un perro corre en la calle.| ¿Dónde está el dueño?| ¡Qué rápido!| La Sra. Ruiz mira a Ud. desde EE. UU. "
    "en la pág. 3.| El perro ríe.|¿Y el gato?",
    "chinese": "一只黑狗在草地上奔跑。|它的嘴里叼着一个红球！|远处有两个人吗？|没有。|他高3.5米……很高。",
    "chinese, marks of ASCII": "一只黑狗在奔跑.|它叼着一个红球!|球是3.5厘米的.",
    "japanese": "黒い犬が草の上を走っている。|口に赤いボールをくわえている！|「待て。」と男が言う。|人がいますか？",
    "arabic": "كلب أسود يركض على العشب.| في فمه كرة حمراء!| هل هناك شخصان؟| نعم، هناك رجل وامرأة.",
    "urdu": "ایک کالا کتا گھاس پر دوڑ رہا ہے۔| اس کے منہ میں گیند ہے۔",
    "hindi": "एक काला कुत्ता घास पर दौड़ रहा है।| उसके मुँह में लाल गेंद है।| क्या पीछे दो लोग हैं?",
}


@pytest.mark.parametrize("language", LANGUAGES)
def test_sentences_end_where_those_of_the_language_do(language: str) -> None:
    pieces = [piece.strip() for piece in LANGUAGES[language].split("|")]
    text = LANGUAGES[language].replace("|", "")
    assert split_sentences(text) == pieces
    assert split_sentences(clean(text)) == [clean(piece) for piece in pieces], "clean turns ！ into !"


@pytest.mark.parametrize("language", LANGUAGES)
def test_rules_for_english_phrases_find_none(language: str) -> None:
    assert Rules().phrases(LANGUAGES[language].replace("|", "")) == []


@pytest.mark.parametrize("language", LANGUAGES)
def test_tokens_of_bytes_lose_nothing(language: str) -> None:
    tokenizer = Tokenizer.train(["a dog on the sand"], 560)
    text = clean(LANGUAGES[language].replace("|", "")).lower()
    decoded = tokenizer.decode(tokenizer.token_ids([text])[0])
    assert "".join(decoded.split()) == "".join(text.split())


def test_names_from_other_languages_do_not_make_a_text_foreign() -> None:
    text = "A man in Los Angeles reads the menu of the café La Rue de la Paix."
    assert Rules().phrases(text)


def test_the_check_counts_captions_in_other_scripts(tmp_path: Path) -> None:
    for number, caption in enumerate(["一只狗。", "A dog.", "Ein Hund läuft.", "Это собака."]):
        Image.new("RGB", (40, 40), (number, 9, 9)).save(tmp_path / f"{number}.png")
        (tmp_path / f"{number}.json").write_text(json.dumps({"captions": [caption]}), encoding="utf-8")
    assert "2 captions in other scripts" in " ".join(
        check(open_source(str(tmp_path)), split_sentences).remarks
    )


def test_no_pattern_repeats_a_group_possessively() -> None:
    """Python before 3.11.5 matches such a pattern wrongly (its issue 106052)."""
    package = Path(__file__).parents[1] / "grainline"
    wrong = re.compile(r"\)[*+?]\+|\(\?>")
    assert [path for path in package.rglob("*.py") if wrong.search(path.read_text(encoding="utf-8"))] == []
