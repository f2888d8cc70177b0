"""From a source of records to training samples, and which samples stand in which batch.

Everything random is a function of (seed, epoch, index of the picture), never of the worker, the rank or the
order of calls: any number of processes makes the same samples, and a resumed run goes on with the same ones.
"""

from collections.abc import Iterator, Sequence
from random import Random
from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils.data import Dataset

from grainline.data.captions import sentences
from grainline.data.chunks import (
    Chunking,
    Parted,
    cropped,
    encode_parts,
    encode_told,
    loose_caption,
    random_chunks,
    windows,
)
from grainline.data.phrases.base import Provider
from grainline.data.phrases.providers import Rules, open_provider
from grainline.data.record import MISSING_CAPTION, Damaged, Record, Source, as_sentences
from grainline.data.texts import Grains, TextsConfig, choose, foil_pairs, grains
from grainline.data.tokenizers.tokenized import Hiding, TextTokenizer, check_context
from grainline.data.transforms import Crop
from grainline.errors import UserError, amount
from grainline.types import CAPTION, FOIL, LOOSE, PHRASE, SENTENCE

# Captions of training with some of their words altered, so that no single word is enough to find a picture.
#
# Each word, with a chance of its own, is hidden, replaced or deleted, as in LAPS and SEPS. A word is what the
# tokenizer reads as one (`TextTokenizer.words`), and its pieces share its fate:
#   50 %  each piece becomes the mask
#   10 %  each piece becomes any piece of the vocabulary that is no special token
#   40 %  it goes
# With a tokenizer that has no mask an altered word always goes. In CLIP's the name of one would be read as
# several words, and found by a look-up as the unknown token, which there ends the text.
#
# What the papers leave open: one word at least stays as it is, and what goes makes room before a text is cut.


_HIDDEN, _REPLACED = 0.5, 0.1  # of the words that are altered; the others go


def altered(words: Sequence[list[int]], share: float, hiding: Hiding | None, rng: Random) -> list[list[int]]:
    """The ids of words, each altered with a chance of `share`, but one at least as it was.

    hiding  what may stand in place of a word; None: an altered word goes

    >>> altered([[7], [8, 9]], 1.0, None, Random(0)), altered([[7], [8, 9]], 0.0, None, Random(0))
    ([[], [8, 9]], [[7], [8, 9]])
    """
    touched = [rng.random() < share for _ in words]
    if words and all(touched):
        touched[rng.randrange(len(words))] = False
    return [_other(word, hiding, rng) if one else word for word, one in zip(words, touched, strict=True)]


def encode_altered(
    tokenizer: TextTokenizer, texts: Sequence[str], context: int, share: float, rng: Random
) -> Parted:
    """Encoded texts of one part of at most `context` tokens, their words altered as above; the rest is cut.

    With share 0 the same as `encode_parts` of one part.
    """
    check_context(context, tokenizer.around)
    room = context - tokenizer.around
    head = [] if tokenizer.begin is None else [tokenizer.begin]
    tail = [] if tokenizer.end is None else [tokenizer.end]
    said = [
        [piece for word in altered(tokenizer.words(text), share, tokenizer.hiding, rng) for piece in word]
        for text in texts
    ]
    return Parted([[[*head, *one[:room], *tail]] for one in said], [max(len(one) - room, 0) for one in said])


def _other(word: list[int], hiding: Hiding | None, rng: Random) -> list[int]:
    if hiding is None:
        return []
    drawn = rng.random()
    if drawn < _HIDDEN:
        return [hiding.mask] * len(word)
    return rng.choices(hiding.pieces, k=len(word)) if drawn < _HIDDEN + _REPLACED else []


# Which pictures stand in which batch: a pure function of (seed, step), so that resuming costs nothing.


class Draw(NamedTuple):
    """One place in the endless stream of shuffled epochs."""

    position: int  # in the whole run, over all ranks
    epoch: int
    picture: int  # its place in the source


class Batches:
    """This rank's share of every global batch from one step of the run to another.

    Epochs follow one another without a gap, each a permutation of its own (without `reshuffle` all the same
    one), and no picture is left out at their ends: a batch that lies across two epochs may hold a picture
    twice, which losses tell by its id.
    A rank takes a contiguous share of each batch, so W processes of B / W pictures see what one of B sees.
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
        """length pictures in all, `batch` of them a step over all ranks, for each step in `steps`."""
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
            order = permutation(self.length, self.seed, epoch if self.reshuffle else 0)
            self._epoch, self._order = epoch, order
        return Draw(position, epoch, int(self._order[place]))


def permutation(length: int, seed: int, epoch: int) -> torch.Tensor:
    """The order of one epoch: [length] int64.

    >>> first, later, other = (permutation(9, seed, epoch) for seed, epoch in ((1, 0), (1, 1), (2, 0)))
    >>> torch.equal(first, later), torch.equal(first, other)
    (False, False)
    """
    # Mixed into 32 bits here: of a larger seed torch's generator would drop the upper ones without a word.
    mixed = Random(f"{seed}/{epoch}").getrandbits(32)
    generator = torch.Generator().manual_seed(mixed)
    return torch.randperm(length, generator=generator)


class Text(NamedTuple):
    """One tokenised text of a sample."""

    parts: list[list[int]]  # ids of each part
    level: int  # CAPTION, SENTENCE, PHRASE, LOOSE or FOIL


class Sample(NamedTuple):
    """One picture with its texts, and what went wrong on the way to it."""

    pixels: Tensor  # [3, H, W] uint8; H and W are 0 where there are features
    draw: Draw
    texts: list[Text | None]  # None: a slot for which the caption has no text
    slots: int  # rows that every sample of the set takes; fewer texts leave padding rows
    cut: int  # texts that were longer than the method reads
    damage: tuple[tuple[str, str], ...]  # (cause, where) of the samples that this one replaces
    regions: Tensor | None = None  # [H, W] int64 superpixels, where they were made before
    features: Tensor | None = None  # [1 + L, W] half precision, where they were made before
    dense: list[list[int]] | None = None  # ids of each window of the description, where the record has one


def phrase_provider(cfg: TextsConfig) -> Provider:
    """The provider of phrases that a config asks for. Raises UserError where it cannot be opened."""
    return open_provider(cfg.phrases.provider) if cfg.phrases.most else Rules()


TRIES = 100  # replacements before a source counts as unusable


class TrainSet(Dataset[Sample]):
    """Samples by Draw. A damaged record is replaced by another, and the damage travels with the sample."""

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
        seed             of all random choices
        parts, chunking  as in `encode_parts`, for texts that do not fall into chunks by chance
        provider         of phrases, where it is open already; None: the one that the config names

        Raises UserError where the config makes more chunks than the method reads, or others than it composes,
        and where it alters words of texts that are read in parts.
        """
        if chunking is not None and cfg.chunks not in (0, parts):
            raise UserError(
                f"data.texts.chunks is {cfg.chunks}, but the method composes {parts}: set it to {parts} or 0"
            )
        if cfg.chunks > parts:
            raise UserError(
                f"data.texts.chunks is {cfg.chunks}, but the method reads {amount(parts, 'part')} "
                "of a text at most; it is for methods that compose chunks into a whole"
            )
        if cfg.altered and (parts > 1 or chunking is not None):
            raise UserError(
                "data.texts.altered is for methods that read a text in one part, and this one reads it in "
                "several; set it to 0"
            )
        self.source, self.tokenizer, self.crop, self.cfg = source, tokenizer, crop, cfg
        self.context, self.seed, self.parts, self.chunking = context, seed, parts, chunking
        self.provider = phrase_provider(cfg) if provider is None else provider

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, draw: Draw) -> Sample:
        rng = Random(f"{self.seed}/{draw.epoch}/{draw.picture}")
        damage: list[tuple[str, str]] = []
        index = draw.picture
        while len(damage) < TRIES:
            try:
                record = self.source[index]
                pixels = self.crop(record.image, rng, record.key)
                features = self.crop.features(index, record.key)
                texts, cut = self._texts(record, rng)
                dense, beyond = self._described(record)
            except Damaged as error:
                damage.append((error.cause, error.where))
                index = rng.randrange(len(self.source))
                continue
            regions = self.crop.regions(index, record.key)
            draw = draw._replace(picture=index)
            cut += beyond
            return Sample(pixels, draw, texts, self.cfg.slots, cut, tuple(damage), regions, features, dense)
        cause, where = damage[0]
        raise UserError(
            f"{self.source.path}: {TRIES} samples in a row cannot be used, the first for {cause} ({where}); "
            "see what is wrong with `grainline data check`"
        )

    def _texts(self, record: Record, rng: Random) -> tuple[list[Text | None], int]:
        """The texts of a sample, slot by slot, and how many of them were cut. Raises Damaged."""
        if not record.captions:
            raise Damaged(MISSING_CAPTION, record.key)
        if self.cfg.chunks:
            return self._chunked(record, rng)
        pairs = foil_pairs(record, self.cfg, rng)
        plain = [
            cropped(choose(record, self.cfg, rng), self.cfg.crop, rng)
            for _ in range(self.cfg.per_image - min(1, len(pairs)))
        ]
        captions = [pairs[0].true, *plain] if pairs else plain
        told: list[str] = []
        parts: list[str] = []
        if self.cfg.apart:
            captions[0], told, parts = self._apart(captions[0], rng)
        foils = [pair.text for pair in pairs]
        loose = self._loose(record, rng)
        long = self._encoded([*captions, *told, *foils, *loose], self.context, rng)
        short = self._encoded(parts, min(self.context, self.cfg.phrases.tokens), rng)
        first, last = len(captions) + len(told), len(long.ids) - len(loose)
        true = long.ids[: len(captions)]
        # A foil that differs only in what was cut off is its caption: as a negative it would be a lie.
        kept = [i for i in range(len(long.ids)) if not first <= i < last or long.ids[i] not in true]
        texts: list[Text | None] = [Text(long.ids[i], CAPTION) for i in range(len(captions))]
        texts += _filled([Text(ids, SENTENCE) for ids in long.ids[len(captions) : first]], self.cfg.sentences)
        texts += _filled([Text(ids, PHRASE) for ids in short.ids], self.cfg.phrases.most)
        texts += [Text(ids, LOOSE) for ids in long.ids[last:]]
        texts += [Text(long.ids[i], FOIL) for i in kept if first <= i < last]
        return texts, sum(long.cut[i] for i in kept) + sum(short.cut)

    def _described(self, record: Record) -> tuple[list[list[int]] | None, int]:
        """The windows of the description, where there is one, and whether it was cut."""
        if record.dense is None:
            return None, 0
        found = windows(self.tokenizer, [record.dense], self.context)
        return found.ids[0], sum(found.cut)

    def _encoded(self, texts: Sequence[str], context: int, rng: Random) -> Parted:
        if self.cfg.altered:
            return encode_altered(self.tokenizer, texts, context, self.cfg.altered, rng)
        return encode_parts(self.tokenizer, texts, context, self.parts, self.chunking)

    def _chunked(self, record: Record, rng: Random) -> tuple[list[Text | None], int]:
        """A long caption in chunks as one text, then loose captions, each one part."""
        cfg = self.cfg
        pieces = self._long(record, rng)
        chunks = random_chunks(pieces, cfg.chunks, cfg.together, rng, cfg.splitter)
        told = [chunks, *([text] for text in self._loose(record, rng))]
        found = encode_told(self.tokenizer, told, self.context, cfg.chunks)
        left_out = len(pieces) > cfg.chunks * cfg.together
        cut = sum(found.cut) + (left_out and not found.cut[0])
        return [Text(ids, LOOSE if i else CAPTION) for i, ids in enumerate(found.ids)], cut

    def _long(self, record: Record, rng: Random) -> list[str]:
        """The sentences of any one of the long captions, else of all captions. Raises Damaged."""
        for text in [*rng.sample(record.longs, len(record.longs)), as_sentences(record.captions)]:
            pieces = self._sentences(text)
            if pieces:
                return pieces
        raise Damaged(MISSING_CAPTION, f"{record.key} (no sentence in any caption)")

    def _loose(self, record: Record, rng: Random) -> list[str]:
        if not self.cfg.loose:
            return []
        told = [pieces for text in (*record.captions, *record.longs) if (pieces := self._sentences(text))]
        if not told:
            raise Damaged(MISSING_CAPTION, f"{record.key} (no sentence in any caption)")
        cfg = self.cfg
        return [loose_caption(told, cfg.together, rng, cfg.splitter) for _ in range(cfg.loose)]

    def _sentences(self, text: str) -> list[str]:
        return [sentence.text for sentence in sentences(text, self.cfg.splitter)]

    def _apart(self, caption: str, rng: Random) -> Grains:
        cfg = self.cfg
        return grains(
            caption,
            cfg.sentences,
            cfg.phrases,
            self.provider,
            rng,
            splitter=cfg.splitter,
            sampled=cfg.captions == "sampled",
        )


def _filled(texts: list[Text], number: int) -> list[Text | None]:
    """The texts, and empty slots up to a number."""
    return [*texts, *[None] * (number - len(texts))]
