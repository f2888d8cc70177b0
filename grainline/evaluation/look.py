"""A caption over its image: its sentences and the phrases in them, each with its score and its heat."""

from collections import Counter
from collections.abc import Sequence

from PIL import Image

from grainline.data.captions import Sentence, sentences
from grainline.data.phrases.base import Phrase
from grainline.data.phrases.patterns import select, words_of
from grainline.data.phrases.providers import Rules
from grainline.model import Model, given
from grainline.report.case import Look, SentenceScore
from grainline.report.page import MissingImage

SENTENCES = 12  # of a text that is shown
PHRASES = 30  # of these sentences: as many as beta-CLIP takes of a caption
CONTRAST_HINT = (
    "Heat is orange where the image shows more of a text than of other texts of the data and blue where less;"
    " 1 is what one of five of these reaches, and less has no colour."
)
HEAT_HINT = (
    f"{CONTRAST_HINT} At most {SENTENCES} sentences and {PHRASES} phrases in them are shown, each with its"
    " score."
)
MARKS = " .!?…"  # what a sentence may have around a phrase that is all it says


def look_at(
    model: Model,
    image: Image.Image | MissingImage,
    text: str,
    description: str | None = None,
    null: Sequence[str] | None = None,
) -> Look:
    """The sentences of a text in an image, with their scores.

    description  of the image, for a model that reads it
    null         other texts that heat is measured against, as in `Model.heat`

    Where the method has heat, so has each sentence, and each phrase that the built-in rules find in it.
    """
    if isinstance(image, MissingImage):
        return Look(image, "")
    every = sentences(text)
    shown = every[:SENTENCES]
    without = not model.method.has_layout
    found = [[] for _ in shown] if without else phrases_of(text, shown)
    kept = _first(found, PHRASES)
    said = [part for one, inside in zip(shown, kept, strict=True) for part in (one.text, *inside)]
    asked = given(image, description)
    score = iter(model.score([asked], said)[0].tolist())
    told = [
        SentenceScore(
            one.text, next(score), phrases=[SentenceScore(phrase, next(score)) for phrase in inside]
        )
        for one, inside in zip(shown, kept, strict=True)
    ]
    heat = None if without else model.heat(asked, said, null).cpu().numpy()
    left_out = _left_out((len(shown), len(every)), (sum(map(len, kept)), sum(map(len, found))))
    return Look(image, "the right image", told, heat, left_out=left_out, contrast=null is not None)


def phrases_of(text: str, among: Sequence[Sentence]) -> list[list[str]]:
    """For each of some sentences of a text the phrases in it, in the order of the text.

    They are those that training takes with the filter `content`, each once in a text, whatever its capitals:
    where it stands first. One that is all that its sentence says there is left out; it has the map of that.

    >>> text = "A brown dog. It runs over wet sand next to a brown dog. Wet sand is next to a man."
    >>> phrases_of(text, sentences(text))
    [[], ['runs over', 'wet sand', 'next to'], ['a man']]
    """
    once: dict[str, Phrase] = {}
    for phrase in sorted(select(text, Rules().phrases(text)), key=lambda one: (one.start, -one.end)):
        once.setdefault(words_of(text, phrase).lower(), phrase)
    return [
        [
            words_of(text, phrase)
            for said, phrase in once.items()
            if one.start <= phrase.start and phrase.end <= one.end and said != one.text.lower().strip(MARKS)
        ]
        for one in among
    ]


def _first(found: list[list[str]], most: int) -> list[list[str]]:
    """So many in all, of each list the first ones: turn by turn, so that a long sentence leaves room."""
    turns = sorted((turn, i) for i, inside in enumerate(found) for turn in range(len(inside)))
    kept = Counter(i for _, i in turns[:most])
    return [inside[: kept[i]] for i, inside in enumerate(found)]


def _left_out(of_sentences: tuple[int, int], of_phrases: tuple[int, int]) -> str:
    """What is not shown, in words; each pair is how many are shown and how many there are."""
    (told, sentences_there), (inside, phrases_there) = of_sentences, of_phrases
    parts = []
    if told < sentences_there:
        parts.append(f"{sentences_there - told} of {sentences_there} sentences, at the end")
    if inside < phrases_there:
        where = " in those shown" if told < sentences_there else ""
        number = phrases_there - inside
        parts.append(f"{number} of {phrases_there} phrases{where}, at the end of their sentences")
    return f"Left out: {'; '.join(parts)}." if parts else ""
