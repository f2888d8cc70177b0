"""Which texts of a record a training sample takes, and how a caption becomes several."""

import re
from collections.abc import Sequence
from random import Random
from typing import Literal, NamedTuple

from pydantic import Field, model_validator

from grainline.config import Config
from grainline.data.captions import Mode, Sentence, joined, sentences
from grainline.data.phrases.base import Phrase, Provider
from grainline.data.phrases.patterns import Keep, select, words_of
from grainline.data.record import Foil, Record

# Captions that say the same thing again and again, as generated ones do: repeated pieces and words, once.


LONG = 100  # characters; a shorter text keeps its repeated pieces
_UNITS = [re.compile(rf"(.{{{least},20}}?)\1{{2,}}") for least in (10, 5, 3)]
_MOST = 10  # replacements by each


def unrepeated(text: str) -> str:
    """The text on one line, without what it repeats; the clean-up of the published code of beta-CLIP.

    In a text of more than 100 characters a piece of 10 (then 5, then 3) to 20 characters that stands three
    times or more in a row stays once; then equal words in a row stay once, in any text.

    >>> unrepeated("a very very red\\nred car")
    'a very red car'
    >>> unrepeated("y" * 120 + " ok")
    'yyyy ok'
    """
    text = text.replace("\n", " ")
    if len(text) > LONG:
        for unit in _UNITS:
            text = unit.sub(r"\1", text, count=_MOST)
    words = text.split()
    return " ".join(word for i, word in enumerate(words) if i == 0 or word != words[i - 1])


# A caption as a few texts of different grain: itself, some of its sentences, some of its phrases.
#
# Section 4.1 of beta-CLIP (Zohra et al., arXiv 2512.12678): K = 1 caption + up to 5 sentences + up to 30
# phrases, so K = 6 without phrases, 16 with 10 of them, 36 with all. Texts that a caption does not have stay
# away; the slots of a kind keep their places.


class PhrasesConfig(Config):
    """Which phrases of its caption a training sample takes as texts of their own."""

    most: int = Field(0, ge=0)  # phrases of a picture; 0: none are looked for
    provider: str = "rules"  # or spacy:PIPELINE, or a file of `grainline data phrases`
    keep: Keep = "content"  # the filter: data/phrases/patterns.py
    order: Literal["first", "random"] = "first"  # the first ones, nouns before all else; or any, by chance
    tokens: int = Field(30, ge=3)  # longest phrase, begin and end token included


class Grains(NamedTuple):
    """The texts of one caption."""

    caption: str
    sentences: list[str]
    phrases: list[str]


def grains(
    text: str,
    number: int,
    cfg: PhrasesConfig,
    provider: Provider,
    rng: Random,
    *,
    splitter: Mode,
    sampled: bool,
) -> Grains:
    """Take a caption apart.

    number    sentences: this many, in random order, where the caption has as many or more, else all in order
    splitter  as in `sentences`
    sampled   the caption is only what the chosen sentences say, joined again, as in the published code;
              phrases then come from them too
    """
    text = unrepeated(text)
    found = sentences(text, splitter)
    chosen = rng.sample(found, number) if 0 < number <= len(found) else found if number else []
    caption = text
    if sampled and chosen:
        caption = joined([sentence.text for sentence in chosen], splitter)
    phrases: Sequence[Phrase] = provider.phrases(text) if cfg.most else ()
    if sampled and chosen:
        phrases = _within(phrases, chosen)
    worth = [words_of(text, phrase) for phrase in select(text, phrases, cfg.keep)]
    if cfg.order == "random" and len(worth) > cfg.most:
        worth = rng.sample(worth, cfg.most)
    return Grains(caption, [sentence.text for sentence in chosen], worth[: cfg.most])


def _within(phrases: Sequence[Phrase], chosen: Sequence[Sentence]) -> list[Phrase]:
    """The phrases of these sentences, kind by kind, in the order of the sentences."""
    return [
        phrase
        for kind in ("noun", "action", "relation")
        for sentence in chosen
        for phrase in phrases
        if phrase.kind == kind and sentence.start <= phrase.start and phrase.end <= sentence.end
    ]


class TextsConfig(Config):
    """Which texts of a record a training sample takes."""

    # the fullest text, the first or any caption, or what the chosen sentences of the fullest text say
    captions: Literal["whole", "first", "random", "sampled"] = "whole"
    per_image: int = Field(1, ge=0)  # texts drawn for each picture, each on its own; 0: loose ones alone
    subset: float = Field(0.0, ge=0, le=1)  # share of the texts that keep a random part of their sentences
    most: int | None = Field(None, ge=1)  # sentences that a subset keeps at most; None: any number
    foils: int = Field(0, ge=0)  # hard negatives beside them, from sources that have them
    splitter: Literal["rules", "period_space", "every_period"] = "rules"
    sentences: int = Field(0, ge=0)  # single sentences of the caption beside it, at most
    phrases: PhrasesConfig = PhrasesConfig()  # phrases of the caption beside it
    chunks: int = Field(0, ge=0)  # parts of the caption, a long one at random; 0: as the method reads it
    loose: int = Field(0, ge=0)  # captions of a few sentences of all that is said, beside it
    crop: float = Field(0.0, ge=0, le=1)  # share of the captions of which some neighbouring words are kept
    altered: float = Field(0.0, ge=0, le=1)  # share of the words of captions that are hidden or left out
    together: int = Field(3, ge=1)  # sentences of a chunk and of a loose caption, at most

    @model_validator(mode="after")
    def _foils_fit(self) -> "TextsConfig":
        if self.per_image == 0 and (not self.loose or self.foils or self.apart):
            raise ValueError(
                "with per_image 0 a picture has loose captions alone: loose above 0, and neither foils, "
                "sentences nor phrases"
            )
        if self.foils and self.per_image == 1 and self.captions != "whole":
            raise ValueError(
                f"with foils one text is the caption that they spoil: captions "
                f"{self.captions!r} needs per_image above 1"
            )
        if self.captions == "sampled" and (not self.sentences or self.foils):
            raise ValueError("captions 'sampled' needs sentences above 0, and goes with no foils")
        if self.apart and (self.per_image > 1 or self.subset):
            raise ValueError("with sentences or phrases a picture has one caption: per_image 1, subset 0")
        for name in ("crop", "altered"):
            if getattr(self, name) and (self.foils or self.apart or self.chunks):
                raise ValueError(
                    f"{name} is for plain captions: it goes with no foils, sentences, phrases or chunks"
                )
        alone = (self.captions, self.per_image, self.subset, self.foils, self.apart)
        if self.chunks and alone != ("whole", 1, 0, 0, False):
            raise ValueError(
                "with chunks a picture has one long caption, and loose ones beside it: captions 'whole', "
                "per_image 1, and neither subset, foils, sentences nor phrases"
            )
        return self

    @property
    def apart(self) -> bool:
        """Whether captions are taken apart."""
        return bool(self.sentences or self.phrases.most)

    @property
    def slots(self) -> int:
        """Texts of a picture: captions, then sentences, phrases, loose captions and foils."""
        return self.per_image + self.sentences + self.phrases.most + self.loose + self.foils


def choose(record: Record, cfg: TextsConfig, rng: Random) -> str:
    """One text of a record, as the config wants it."""
    text = record.whole
    if cfg.captions == "first":
        text = record.captions[0]
    elif cfg.captions == "random":
        text = rng.choice(record.captions)
    if rng.random() >= cfg.subset:
        return text
    parts = [sentence.text for sentence in sentences(text, cfg.splitter)]
    return _some([parts], set(), cfg.most, rng)[0] or text


def foil_pairs(record: Record, cfg: TextsConfig, rng: Random) -> list[Foil]:
    """Foils with the caption that they spoil, both cut to the same sentences where a subset is drawn.

    The sentence that a foil changes always stays, in the caption as well: a foil is hard only beside a
    caption that says the true thing.
    """
    foils = rng.sample(record.foils, min(cfg.foils, len(record.foils)))
    if not foils or rng.random() >= cfg.subset:
        return foils
    texts = [foils[0].true, *(foil.text for foil in foils)]
    told = [[sentence.text for sentence in sentences(text, cfg.splitter)] for text in texts]
    if len({len(parts) for parts in told}) > 1 or len({foil.true for foil in foils}) > 1:
        return foils  # a foil that changes how the text falls into sentences is taken whole
    changed = {i for parts in told[1:] for i, (a, b) in enumerate(zip(told[0], parts, strict=True)) if a != b}
    true, *texts = _some(told, changed, cfg.most, rng)
    return [foil._replace(true=true, text=text) for foil, text in zip(foils, texts, strict=True)]


def _some(told: list[list[str]], needed: set[int], most: int | None, rng: Random) -> list[str]:
    """The same random sentences of each text, in order: at most `most`, or those needed and some others."""
    count = len(told[0])
    if not count:
        return [""] * len(told)
    others = [i for i in range(count) if i not in needed]
    number = rng.randint(1, min(count, most or count))
    kept = sorted(needed | set(rng.sample(others, max(0, min(number - len(needed), len(others))))))
    return [" ".join(parts[i] for i in kept) for parts in told]
