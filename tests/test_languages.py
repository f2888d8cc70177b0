"""Captions that are not English: sentences of eight languages; phrases by rule find nothing in them."""
# ruff: noqa: E501, RUF001 (whole texts on a line; typographic marks are what is tested)

import json
from pathlib import Path

import pytest
from PIL import Image

from grainline.data.captions import clean, split_sentences
from grainline.data.check import check
from grainline.data.open_source import open_source
from grainline.data.phrases.providers import Rules
from grainline.data.tokenizers.tokenizer import Tokenizer

TEXTS = {  # the sentences of a text, with | between them
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


@pytest.mark.parametrize("language", TEXTS)
def test_sentences_end_where_those_of_the_language_do(language: str) -> None:
    pieces = [piece.strip() for piece in TEXTS[language].split("|")]
    text = TEXTS[language].replace("|", "")
    assert split_sentences(text) == pieces
    assert split_sentences(clean(text)) == [clean(piece) for piece in pieces], "clean turns ！ into !"


@pytest.mark.parametrize("language", TEXTS)
def test_rules_for_english_phrases_find_none(language: str) -> None:
    assert Rules().phrases(TEXTS[language].replace("|", "")) == []


@pytest.mark.parametrize("language", TEXTS)
def test_tokens_of_bytes_lose_nothing(language: str) -> None:
    tokenizer = Tokenizer.train(["a dog on the sand"], 560)
    text = clean(TEXTS[language].replace("|", "")).lower()
    decoded = tokenizer.decode(tokenizer.token_ids([text])[0])
    assert "".join(decoded.split()) == "".join(text.split())


def test_names_from_other_languages_do_not_make_a_text_foreign() -> None:
    text = "A man in Los Angeles reads the menu of the café La Rue de la Paix."
    assert Rules().phrases(text)


def test_the_check_counts_captions_in_other_scripts(tmp_path: Path) -> None:
    for number, caption in enumerate(["一只狗。", "A dog.", "Ein Hund läuft.", "Это собака."]):
        Image.new("RGB", (40, 40), (number, 9, 9)).save(tmp_path / f"{number}.png")
        (tmp_path / f"{number}.json").write_text(json.dumps({"captions": [caption]}), encoding="utf-8")
    assert any(
        "2 captions in other scripts" in one
        for one in check(open_source(str(tmp_path)), split_sentences).remarks
    )
