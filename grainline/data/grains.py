"""A caption as a few texts of different grain: itself, some of its sentences, some of its phrases.

Section 4.1 of beta-CLIP (Zohra et al., arXiv 2512.12678): K = 1 caption + up to 5 sentences + up to 30
phrases, so K = 6 without phrases, 16 with 10 of them, 36 with all. Texts that a caption does not have stay
away; the slots of a kind keep their places.
"""

from collections.abc import Sequence
from random import Random
from typing import Literal, NamedTuple

from pydantic import Field

from grainline.config import Config
from grainline.data.captions import Mode, Sentence, joined, sentences
from grainline.data.phrases.base import Phrase, Provider
from grainline.data.phrases.patterns import Keep, select, words_of
from grainline.data.repeats import unrepeated


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
