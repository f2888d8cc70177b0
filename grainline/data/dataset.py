"""Training samples from a source of records, and which samples stand in which batch.

Everything random is a function of (seed, epoch, index of the image), never of the worker, the rank or the
order of calls: any number of processes makes the same samples, and a resumed run goes on with the same.
"""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from random import Random
from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils.data import Dataset

from grainline.data.captions import crop_words, split_sentences
from grainline.data.phrases.patterns import Provider
from grainline.data.phrases.providers import Rules, open_provider
from grainline.data.record import Cause, CorruptSample, Record, Source, as_sentences
from grainline.data.texts import (
    Chunking,
    TextsConfig,
    TokenizedParts,
    choose_text,
    encode_parts,
    encode_split,
    foil_pairs,
    grains,
    random_chunks,
    sampled_caption,
    windows,
)
from grainline.data.tokenizers.tokenizer import BEGIN, END, TextTokenizer, encode_word_dropout
from grainline.data.transforms import Crop
from grainline.errors import UserError, amount
from grainline.types import CAPTION, FOIL, LOOSE, PHRASE, SENTENCE


class Draw(NamedTuple):
    """One position in the endless stream of shuffled epochs."""

    position: int  # in the whole run, over all ranks
    epoch: int
    image: int  # its index in the source


class Batches:
    """The draws of one rank, batch by batch, for some steps of the run: a sampler of a data loader.

    Each epoch is a permutation of its own (without `reshuffle` the same one), and they follow one another
    without a gap: a batch across two epochs may have an image twice, which losses recognise by its id. A rank
    takes a contiguous share of each batch, so that W processes with B / W images read what one reads with B.
    """

    def __init__(
        self,
        length: int,
        batch: int,
        seed: int,
        steps: range,
        *,
        rank: int = 0,
        world_size: int = 1,
        reshuffle: bool = True,
    ) -> None:
        """length: number of images; batch: images of a step over all ranks"""
        if batch % world_size:
            raise ValueError(f"a batch of {batch} cannot be shared by {world_size} processes")
        self.length, self.batch, self.seed, self.steps = length, batch, seed, steps
        self.rank, self.share, self.reshuffle = rank, batch // world_size, reshuffle
        self._epoch, self._order = -1, torch.empty(0, dtype=torch.int64)

    def __len__(self) -> int:
        return len(self.steps)

    def __iter__(self) -> Iterator[list[Draw]]:
        for step in self.steps:
            first = step * self.batch + self.rank * self.share
            yield [self._draw(position) for position in range(first, first + self.share)]

    def _draw(self, position: int) -> Draw:
        epoch, place = divmod(position, self.length)
        if epoch != self._epoch:
            self._epoch = epoch
            self._order = permutation(self.length, self.seed, epoch if self.reshuffle else 0)
        return Draw(position, epoch, int(self._order[place]))


def permutation(length: int, seed: int, epoch: int) -> torch.Tensor:
    """The order of one epoch: [length] int64."""
    # Mixed into 32 bits: torch's generator would silently ignore the upper bits of a larger seed.
    mixed = Random(f"{seed}/{epoch}").getrandbits(32)
    return torch.randperm(length, generator=torch.Generator().manual_seed(mixed))


class Text(NamedTuple):
    """One tokenized text of a sample."""

    parts: list[list[int]]  # ids of each part
    level: int  # CAPTION, SENTENCE, PHRASE, LOOSE or FOIL


class Sample(NamedTuple):
    """One image with its texts, and the corrupt samples that it replaces."""

    pixels: Tensor  # [3, H, W] uint8; H and W are 0 where there are features
    draw: Draw
    texts: list[Text | None]  # None: a slot for which the caption has no text
    slots: int  # rows that every sample of the set takes; fewer texts leave padding rows
    truncated: int  # texts that were longer than the method reads
    corrupt: tuple[tuple[str, str], ...]  # (cause, where) of the samples that this one replaces
    regions: Tensor | None = None  # [H, W] int64 superpixels, where they are cached
    features: Tensor | None = None  # [1 + L, W] half precision, where they are cached
    dense: list[list[int]] | None = None  # ids of each window of the description, where the record has one


def phrase_provider(cfg: TextsConfig) -> Provider:
    """The provider of phrases that a config names. Raises UserError if it cannot be opened."""
    return open_provider(cfg.phrases.provider) if cfg.phrases.max_phrases else Rules()


PADDING = 0  # the token that OpenAI and open_clip pad texts of CLIP with; behind the end it is never read

TRIES = 100  # replacements before a source counts as unusable


class TrainSet(Dataset[Sample]):
    """Samples by Draw. A corrupt record is replaced by another, and the sample says so."""

    def __init__(  # noqa: PLR0913 - each is a choice of the caller
        self,
        source: Source,
        tokenizer: TextTokenizer,
        crop: Crop,
        cfg: TextsConfig,
        *,
        context: int,
        seed: int,
        parts: int = 1,
        chunking: Chunking | None = None,
        provider: Provider | None = None,
    ) -> None:
        """
        context          longest part of a text in tokens
        parts, chunking  as in `encode_parts`, for texts that are not split into random chunks
        provider         an open provider of phrases; None: the one that the config names

        Raises UserError for chunks or word dropout that do not go with how the method reads a text.
        """
        if chunking is not None and cfg.chunks not in (0, parts):
            raise UserError(f"data.texts.chunks is {cfg.chunks}, but the method composes {parts}")
        if cfg.chunks > parts:
            most = amount(parts, "part")
            raise UserError(f"data.texts.chunks is {cfg.chunks}, but the method reads {most} at most")
        for name in ("word_dropout", "pad_front"):
            if getattr(cfg, name) and (parts > 1 or chunking is not None):
                raise UserError(f"data.texts.{name} is for methods that read a text in one part")
        frame = tokenizer.pieces(tokenizer.prefix + tokenizer.suffix)
        if cfg.pad_front and frame != [BEGIN, END]:
            around = " and ".join(frame) or "nothing"
            raise UserError(f"data.texts.pad_front needs {BEGIN} and {END} around a text, and has {around}")
        self.source, self.tokenizer, self.crop, self.cfg = source, tokenizer, crop, cfg
        self.context, self.seed, self.parts, self.chunking = context, seed, parts, chunking
        self.provider = phrase_provider(cfg) if provider is None else provider

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, draw: Draw) -> Sample:
        rng = Random(f"{self.seed}/{draw.epoch}/{draw.image}")
        corrupt: list[tuple[str, str]] = []
        index = draw.image
        while len(corrupt) < TRIES:
            try:
                record = self.source[index]
                pixels = self.crop(record.image, rng, record.key)
                features = self.crop.features(index, record, rng)
                texts, truncated = self._texts(record, rng)
            except CorruptSample as error:
                corrupt.append((error.cause, error.where))
                index = rng.randrange(len(self.source))
                continue
            dense = None
            if record.dense is not None:
                encoded = windows(self.tokenizer, [record.dense], self.context)
                dense, truncated = encoded.ids[0], truncated + sum(encoded.truncated)
            regions = self.crop.regions(index, record.key)
            draw, slots = draw._replace(image=index), self.cfg.slots
            return Sample(pixels, draw, texts, slots, truncated, tuple(corrupt), regions, features, dense)
        cause, where = corrupt[0]
        wrong = f"{TRIES} samples in a row cannot be used, the first for {cause} ({where})"
        raise UserError(f"{self.source.path}: {wrong}; see `grainline data check`")

    def sampled(self, number: int = 64) -> tuple[int, int, int, int, int]:
        """Counts of so many records at even distances: those that could be read, their captions, those whose
        captions are joined, their training texts, and the truncated ones."""
        number, counts = min(number, len(self.source)), [0] * 5
        for i in range(number):
            with suppress(CorruptSample):  # training counts it
                record = self.source[i * len(self.source) // number]
                rows, cut = self._texts(record, Random(i))
                joined = self.cfg.captions == "whole" and not record.longs and len(record.captions) > 1
                more = 1, len(record.captions) + len(record.longs), joined, len(rows) - rows.count(None), cut
                counts = [a + b for a, b in zip(counts, more, strict=True)]
        return counts[0], counts[1], counts[2], counts[3], counts[4]

    def _texts(self, record: Record, rng: Random) -> tuple[list[Text | None], int]:
        """The texts of a sample, slot by slot, and how many of them were truncated. Raises CorruptSample."""
        if not record.captions:
            raise CorruptSample(Cause.MISSING_CAPTION, record.key)
        if self.cfg.chunks:
            return self._chunks(record, rng)
        cfg = self.cfg
        pairs = foil_pairs(record, cfg, rng)
        others = range(cfg.per_image - min(1, len(pairs)))
        plain = [crop_words(choose_text(record, cfg, rng), cfg.word_crop, rng) for _ in others]
        captions = [pairs[0].true, *plain] if pairs else plain
        single: list[str] = []
        phrases: list[str] = []
        if cfg.splits_captions:
            number, sampling = cfg.sentences, cfg.captions == "sampled"
            captions[0], single, phrases = grains(
                captions[0], number, cfg.phrases, self.provider, rng, cfg.splitter, sampling
            )
        foils = [pair.text for pair in pairs]
        sampled = self._sampled_captions(record, rng)
        long = self._encoded([*captions, *single, *foils, *sampled], self.context, rng)
        short = self._encoded(phrases, min(self.context, cfg.phrases.tokens), rng)
        first, last = len(captions) + len(single), len(long.ids) - len(sampled)
        true = long.ids[: len(captions)]
        # A foil that differs only in truncated tokens equals its caption: it would be a wrong negative.
        used = [i for i in range(len(long.ids)) if not first <= i < last or long.ids[i] not in true]
        texts: list[Text | None] = [Text(long.ids[i], CAPTION) for i in range(len(captions))]
        texts += _fill([Text(ids, SENTENCE) for ids in long.ids[len(captions) : first]], cfg.sentences)
        texts += _fill([Text(ids, PHRASE) for ids in short.ids], cfg.phrases.max_phrases)
        texts += [Text(self._padded(ids, rng), LOOSE) for ids in long.ids[last:]]
        texts += [Text(long.ids[i], FOIL) for i in used if first <= i < last]
        return texts, sum(long.truncated[i] for i in used) + sum(short.truncated)

    def _encoded(self, texts: Sequence[str], context: int, rng: Random) -> TokenizedParts:
        if self.cfg.word_dropout:
            ids, truncated = encode_word_dropout(self.tokenizer, texts, context, self.cfg.word_dropout, rng)
            return TokenizedParts([[row] for row in ids], truncated)
        return encode_parts(self.tokenizer, texts, context, self.parts, self.chunking)

    def _padded(self, parts: list[list[int]], rng: Random) -> list[list[int]]:
        """The only part of a text, with padding behind its begin token where the config asks for it."""
        if not self.cfg.pad_front:
            return parts
        begin, *rest = parts[0]
        return [[begin, *[PADDING] * rng.randint(0, self.context - len(parts[0])), *rest]]

    def _chunks(self, record: Record, rng: Random) -> tuple[list[Text | None], int]:
        """A long caption in chunks as one text, then sampled captions. Raises CorruptSample."""
        cfg = self.cfg
        # any one of the long captions that has sentences, else all captions
        texts = [*rng.sample(record.longs, len(record.longs)), as_sentences(record.captions)]
        pieces = next((pieces for text in texts if (pieces := split_sentences(text, cfg.splitter))), [])
        if not pieces:
            raise CorruptSample(Cause.MISSING_CAPTION, f"{record.key} (no sentence in any caption)")
        chunks = random_chunks(pieces, cfg.chunks, cfg.max_sentences_per_chunk, rng, cfg.splitter)
        split = [chunks, *([text] for text in self._sampled_captions(record, rng))]
        encoded = encode_split(self.tokenizer, split, self.context, cfg.chunks)
        left_out = len(pieces) > cfg.chunks * cfg.max_sentences_per_chunk
        truncated = sum(encoded.truncated) + (left_out and not encoded.truncated[0])
        return [Text(ids, LOOSE if i else CAPTION) for i, ids in enumerate(encoded.ids)], truncated

    def _sampled_captions(self, record: Record, rng: Random) -> list[str]:
        cfg = self.cfg
        if not cfg.sampled_captions:
            return []
        texts = (*record.captions, *record.longs)
        captions = [pieces for text in texts if (pieces := split_sentences(text, cfg.splitter))]
        if not captions:
            raise CorruptSample(Cause.MISSING_CAPTION, f"{record.key} (no sentence in any caption)")
        if cfg.drop_first:  # a single sentence is such a first one, unless there is nothing else
            captions = [pieces[1:] for pieces in captions if len(pieces) > 1] or captions
        return [sampled_caption(captions, cfg, rng) for _ in range(cfg.sampled_captions)]


def _fill(texts: list[Text], number: int) -> list[Text | None]:
    """The texts, and empty slots up to a number."""
    return [*texts, *[None] * (number - len(texts))]
