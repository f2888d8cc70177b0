"""The texts of a record that a training sample takes, and texts as token ids of their parts.

The recipe fields `data.texts`; subsets of sentences; the texts of beta-CLIP (caption, sentences, phrases);
the sub-captions of CAFT; FLAIR's sampled captions; a text as one part, as sentences, as chunks or as windows.
"""

from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate
from random import Random
from typing import Literal, NamedTuple

from pydantic import Field, model_validator

from grainline.config import Config
from grainline.data.captions import Mode, joined, remove_repetitions, sentences, split_sentences
from grainline.data.phrases.patterns import Keep, Provider, select, words_of
from grainline.data.record import Foil, Record
from grainline.data.tokenizers.tokenizer import TextTokenizer


class PhrasesConfig(Config):
    """The phrases of its caption that a training sample takes as texts of their own."""

    max_phrases: int = Field(0, ge=0)  # phrases of an image, the first ones, nouns before all else; 0: none
    provider: str = "rules"  # or spacy:PIPELINE, or a file of `grainline data phrases`
    phrase_filter: Keep = "content"  # data/phrases/patterns.py
    tokens: int = Field(30, ge=3)  # length of the longest phrase, begin and end token included


class TextsConfig(Config):
    """The texts of a record that a training sample takes."""

    # the fullest text, the first or a random caption, or the selected sentences of the fullest text
    captions: Literal["whole", "first", "random", "sampled"] = "whole"
    per_image: int = Field(1, ge=0)  # captions drawn independently for each image; 0: sampled captions alone
    subset: float = Field(0.0, ge=0, le=1)  # share of the texts reduced to a random subset of their sentences
    subset_max_sentences: int | None = Field(None, ge=1)  # size of a subset at most; None: any
    drop_first: bool = False  # subsets and sampled captions lack the first sentence, which sums up the others
    foils: int = Field(0, ge=0)  # hard negatives beside the captions, from sources that have them
    splitter: Mode = "rules"
    sentences: int = Field(0, ge=0)  # single sentences beside the caption, at most
    phrases: PhrasesConfig = PhrasesConfig()  # phrases beside the caption
    chunks: int = Field(0, ge=0)  # random sub-captions of a long caption; 0: as the method reads it
    sampled_captions: int = Field(0, ge=0)  # captions of a few random sentences of all texts
    # their sentences: a few, as often as not in a row (FLAIR); any number in random order
    sampling: Literal["few", "any"] = "few"
    pad_front: bool = False  # sampled captions stand behind padding of random length: later positions learn
    word_crop: float = Field(0.0, ge=0, le=1)  # share of the captions cropped to a run of words
    word_dropout: float = Field(0.0, ge=0, le=1)  # share of the words that are masked, replaced or deleted
    max_sentences_per_chunk: int = Field(3, ge=1)  # of a chunk and of a sampled caption

    @model_validator(mode="after")
    def _compatible(self) -> "TextsConfig":
        if (most := max(self.slots, self.chunks)) > 1000:
            raise ValueError(f"an image has {most:,} texts; at most 1,000 are allowed")
        if self.per_image == 0 and (not self.sampled_captions or self.foils or self.splits_captions):
            raise ValueError("per_image 0 needs sampled_captions above 0, and no foils, sentences or phrases")
        if self.foils and self.per_image == 1 and self.captions != "whole":
            raise ValueError(f"with foils captions {self.captions!r} needs per_image above 1")
        if self.captions == "sampled" and (not self.sentences or self.foils):
            raise ValueError("captions 'sampled' needs sentences above 0, and goes with no foils")
        if self.splits_captions and (self.per_image > 1 or self.subset):
            raise ValueError("with sentences or phrases an image has one caption: per_image 1, subset 0")
        how = self.pad_front or self.sampling != "few" or (self.drop_first and not self.subset)
        if how and not self.sampled_captions:
            raise ValueError("drop_first, sampling and pad_front need sampled_captions above 0")
        changes = [name for name in ("word_crop", "word_dropout") if getattr(self, name)]
        if changes and (self.foils or self.splits_captions or self.chunks):
            raise ValueError(f"{changes[0]} goes with no foils, sentences, phrases or chunks")
        others = (self.captions, self.per_image, self.subset, self.foils, self.splits_captions)
        if self.chunks and others != ("whole", 1, 0, 0, False):
            raise ValueError("chunks goes with captions 'whole', per_image 1, no subset, foils, sentences")
        return self

    @property
    def splits_captions(self) -> bool:
        """Whether sentences or phrases of a caption are texts of their own."""
        return bool(self.sentences or self.phrases.max_phrases)

    @property
    def slots(self) -> int:
        """Texts of an image: captions, then sentences, phrases, sampled captions and foils."""
        return self.per_image + self.sentences + self.phrases.max_phrases + self.sampled_captions + self.foils


def choose_text(record: Record, cfg: TextsConfig, rng: Random) -> str:
    """One text of a record: whole, or a random subset of its sentences."""
    text = record.whole
    if cfg.captions == "first":
        text = record.captions[0]
    elif cfg.captions == "random":
        text = rng.choice(record.captions)
    if rng.random() >= cfg.subset:
        return text
    pieces = split_sentences(text, cfg.splitter)
    return _subset([pieces[cfg.drop_first :] or pieces], set(), cfg.subset_max_sentences, rng)[0] or text


def foil_pairs(record: Record, cfg: TextsConfig, rng: Random) -> list[Foil]:
    """Foils with their captions. A subset has the same sentences of both, and always the one that differs."""
    foils = rng.sample(record.foils, min(cfg.foils, len(record.foils)))
    if not foils or rng.random() >= cfg.subset:
        return foils
    split = [split_sentences(text, cfg.splitter) for text in (foils[0].true, *(foil.text for foil in foils))]
    if len({len(parts) for parts in split}) > 1 or len({foil.true for foil in foils}) > 1:
        return foils  # a foil that changes the number of sentences stays whole
    changed = {i for parts in split[1:] for i, part in enumerate(parts) if part != split[0][i]}
    true, *texts = _subset(split, changed, cfg.subset_max_sentences, rng)
    return [foil._replace(true=true, text=text) for foil, text in zip(foils, texts, strict=True)]


def _subset(split: list[list[str]], needed: set[int], limit: int | None, rng: Random) -> list[str]:
    """The same random sentences of each text, in order: at most `limit`, or those needed and some others."""
    count = len(split[0])
    if not count:
        return [""] * len(split)
    others = [i for i in range(count) if i not in needed]
    number = rng.randint(1, min(count, limit or count))
    places = sorted(needed | set(rng.sample(others, max(0, min(number - len(needed), len(others))))))
    return [" ".join(parts[i] for i in places) for parts in split]


# beta-CLIP (Zohra et al., arXiv 2512.12678), sections 3.1 and 11.1: K = 1 caption + up to 5 sentences + up to
# 30 phrases. A caption with fewer texts leaves slots empty.


class Grains(NamedTuple):
    """A caption, some of its sentences and some of its phrases."""

    caption: str
    sentences: list[str]
    phrases: list[str]


def grains(
    text: str, number: int, cfg: PhrasesConfig, provider: Provider, rng: Random, splitter: Mode, sampled: bool
) -> Grains:
    """Split a caption into sentences and phrases.

    number    of sentences: in random order where the caption has as many or more, else all in order
    splitter  as in `sentences`
    sampled   the caption becomes the selected sentences, joined again, as in the published code; phrases then
              come from these sentences too
    """
    text = remove_repetitions(text)
    pieces = sentences(text, splitter)
    selected = rng.sample(pieces, number) if 0 < number <= len(pieces) else pieces if number else []
    caption = text
    if sampled and selected:
        caption = joined([sentence.text for sentence in selected], splitter)
    phrases = provider.phrases(text) if cfg.max_phrases else []
    if sampled and selected:
        phrases = [
            phrase
            for kind in ("noun", "action", "relation")
            for sentence in selected
            for phrase in phrases
            if phrase.kind == kind and sentence.start <= phrase.start and phrase.end <= sentence.end
        ]
    filtered = select(text, phrases, cfg.phrase_filter) if phrases else []
    texts = [words_of(text, phrase) for phrase in filtered]
    return Grains(caption, [sentence.text for sentence in selected], texts[: cfg.max_phrases])


# CAFT (Woo et al., arXiv 2602.02977), section 3.2 and appendix B.2: the sentences of a long caption fall into
# N chunks, in training at random, elsewhere of equal size as far as possible; sampled captions of a few
# sentences each are further texts (the "diverse sampling" of FLAIR). The paper leaves open: random sizes are
# uniform over all splits; a text with fewer sentences than chunks repeats some, in training at random and
# elsewhere in turn. Differs from FLAIR: a run of sentences is of one caption, and may include its last one.


class Chunking(Config):
    """How a text is split into chunks outside training."""

    splitter: Mode = "rules"
    whole: bool = False  # no chunks: the whole text is the first part, and its sentences are the others


@lru_cache(maxsize=4096)
def count_splits(count: int, number: int, largest: int) -> int:
    """The number of splits of `count` sentences into `number` chunks, in order, of 1 to `largest` each."""
    if number == 0 or count < number:
        return int(number == count == 0)
    return sum(count_splits(count - size, number - 1, largest) for size in range(1, min(largest, count) + 1))


def random_sizes(count: int, number: int, largest: int, rng: Random) -> list[int]:
    """Sizes of `number` chunks, each 1 to `largest`, `count` in sum: uniform over all such splits."""
    sizes = []
    for left in range(number, 0, -1):
        rank = rng.randrange(count_splits(count, left, largest))
        size = 1
        while rank >= (share := count_splits(count - size, left - 1, largest)):
            rank -= share
            size += 1
        sizes.append(size)
        count -= size
    return sizes


def random_chunks(pieces: Sequence[str], number: int, largest: int, rng: Random, splitter: Mode) -> list[str]:
    """Sentences, one at least, as `number` sub-captions, in order, of 1 to `largest` sentences each.

    Sentences after the first number * largest are left out. If they are too few, random ones are repeated.
    """
    if len(pieces) < number:
        return [*pieces, *rng.choices(pieces, k=number - len(pieces))]
    pieces = pieces[: number * largest]
    return _grouped(pieces, random_sizes(len(pieces), number, largest, rng), splitter)


def balanced_chunks(text: str, number: int, chunking: Chunking) -> list[str]:
    """A text as `number` sub-captions of whole sentences, always the same ones; the larger ones come first.

    A text with fewer sentences repeats them in turn. One without any gives empty sub-captions.
    """
    pieces = split_sentences(text, chunking.splitter) or [""]
    if len(pieces) < number:
        return [pieces[k % len(pieces)] for k in range(number)]
    size, larger = divmod(len(pieces), number)
    return _grouped(pieces, [size + (k < larger) for k in range(number)], chunking.splitter)


def _grouped(pieces: Sequence[str], sizes: Sequence[int], splitter: Mode) -> list[str]:
    ends = list(accumulate(sizes))
    return [joined(pieces[end - size : end], splitter) for size, end in zip(sizes, ends, strict=True)]


def sampled_caption(captions: Sequence[Sequence[str]], cfg: TextsConfig, rng: Random) -> str:
    """Sentences of the split captions of an image as one text, as `cfg.sampling` says.

    few  FLAIR's diverse sampling: 1 to `max_sentences_per_chunk`, with probability 1/2 any run of a caption,
         otherwise, and where none is long enough, random ones in random order
    any  1 to all in random order, as DeBias-CLIP (arXiv 2602.22419) samples them
    """
    pieces = [piece for caption in captions for piece in caption]
    if cfg.sampling == "any":
        return joined(rng.sample(pieces, rng.randint(1, len(pieces))), cfg.splitter)
    number = min(rng.randint(1, cfg.max_sentences_per_chunk), len(pieces))
    runs = [caption[i : i + number] for caption in captions for i in range(len(caption) - number + 1)]
    if runs and rng.random() < 0.5:
        return joined(rng.choice(runs), cfg.splitter)
    return joined(rng.sample(pieces, number), cfg.splitter)


# From texts to token ids. `Method.parts` and `Method.chunking` say how a method reads a text. The context is
# the length of one part.

MAX_WINDOWS = 16  # of a text: more than LLaVA's 500 tokens fill of CLIP's 77, and a bound on memory


class TokenizedParts(NamedTuple):
    """Token ids of the parts of some texts, each part from its begin token to its end token."""

    ids: list[list[list[int]]]  # text, part, token; every text has one part at least
    truncated_tokens: list[int]  # tokens of each text that did not fit

    @property
    def truncated(self) -> list[bool]:
        """The texts that were truncated."""
        return [number > 0 for number in self.truncated_tokens]


def encode_parts(
    tokenizer: TextTokenizer, texts: Sequence[str], context: int, parts: int, chunking: Chunking | None = None
) -> TokenizedParts:
    """Tokenize texts into at most `parts` parts of `context` tokens; the rest is truncated and counted.

    parts     1: each text is one part; more: its first sentences
    chunking  each text becomes exactly `parts` chunks of its sentences instead, or its whole and then its
              sentences; a text of one sentence is one part
    """
    if chunking is not None and not chunking.whole:
        split = [balanced_chunks(text, parts, chunking) for text in texts]
    else:
        split = [(split_sentences(text) if parts > 1 else []) or [text] for text in texts]
    if chunking is not None and chunking.whole:
        split = [[text] * (len(own) > 1) + own for text, own in zip(texts, split, strict=True)]
    return encode_split(tokenizer, split, context, parts)


def encode_split(
    tokenizer: TextTokenizer, split: Sequence[Sequence[str]], context: int, parts: int
) -> TokenizedParts:
    """`encode_parts` of texts that are split already, each into one part at least."""
    distinct = list({part: None for text in split for part in text})  # foils share most of their parts
    encoded = tokenizer.encode(distinct, context)
    number = {part: i for i, part in enumerate(distinct)}
    ids, truncated = [], []
    for text in split:
        numbers = [number[part] for part in text]
        included, overflow = numbers[:parts], numbers[parts:]
        ids.append([encoded.ids[i] for i in included])
        left_out = sum(len(encoded.ids[i]) - tokenizer.around + encoded.truncated_tokens[i] for i in overflow)
        truncated.append(sum(encoded.truncated_tokens[i] for i in included) + left_out)
    return TokenizedParts(ids, truncated)


def windows(
    tokenizer: TextTokenizer, texts: Sequence[str], context: int, limit: int = MAX_WINDOWS
) -> TokenizedParts:
    """Tokenize texts that fit as one part, longer ones as windows of whole sentences, as full as possible.

    A sentence longer than a window fills several. Windows after the first `limit` are truncated and counted.
    """
    whole = tokenizer.encode(texts, context)
    ids, truncated = [], []
    for text, one, overflow in zip(texts, whole.ids, whole.truncated_tokens, strict=True):
        filled = _windows(tokenizer, text, context) if overflow else [one]
        ids.append(filled[:limit])
        truncated.append(sum(len(part) - tokenizer.around for part in filled[limit:]))
    return TokenizedParts(ids, truncated)


def _windows(tokenizer: TextTokenizer, text: str, context: int) -> list[list[int]]:
    room = context - tokenizer.around
    filled: list[list[int]] = [[]]
    for ids in tokenizer.token_ids(split_sentences(text) or [text]):
        if len(filled[-1]) + len(ids) > room and filled[-1]:
            filled.append([])
        while len(ids) > room:
            filled[-1], ids = ids[:room], ids[room:]
            filled.append([])
        filled[-1] = filled[-1] + ids
    return tokenizer.build_inputs(filled, context).ids
