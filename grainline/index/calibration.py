"""Calibration: p of a hit and of a sentence in a hit, from the scores of calibration texts in this index.

Calibration texts describe images outside the index. The best score of a query means little by itself: some
texts score high with all images. An index therefore stores the scores of calibration texts with all its
images: of whole captions, or lines of a file, of one sentence of each, and of spans of a few sentences that
include it, since queries are often shorter than captions. A calibration text does not count for its own
image, which the hash of its bytes identifies. Where the source of the texts has images, some of them are
encoded too: the scores of a text and its sentence with their own image say how well the model recognises true
sentences. They are not part of the index.

p of a hit: scores of a query are standardised by their mean and std over a background of at most 256 images.
p is the share of calibration texts, queries without a match, whose standardised best score is at least as
high. For image queries it is the share of indexed images that have a neighbour as near, not standardised.

p of a sentence in a hit must correct for selection: the hit is among the best because its sentences score
high. See `Calibration`; selective inference: Fithian, Sun & Taylor, arXiv 1410.2597.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from PIL import Image

from grainline.data.captions import sentences
from grainline.data.formats.joined import parts_of
from grainline.data.formats.parsed import read_lines
from grainline.data.formats.table import TextsAlone
from grainline.data.open_source import open_source
from grainline.data.other_texts import EVERYDAY, trained_on_scenes
from grainline.data.record import CorruptSample, Source
from grainline.errors import UserError
from grainline.files import Corrupt, read_plain, write_text
from grainline.index import store
from grainline.model import Model
from grainline.types import Encoded, rows, vectors_only

MAX_TEXTS = 1_000
MAX_IMAGES = 256  # of them, whose own images are encoded too
SPAN_LENGTHS = (2, 3, 4, 6)  # sentences of a span, in turn
SCENES = f"scenes:dev?count={MAX_TEXTS}&seed=1618"
PHOTOGRAPHS = "everyday.txt"
BUILT_IN = {  # what is used where no texts are given, in words
    SCENES: "texts of synthetic scenes",
    PHOTOGRAPHS: f"{len(EVERYDAY)} built-in descriptions of everyday photographs",
}
FILE = "texts.json"
NAMES = (store.NULL_TEXTS, store.NULL_SENTENCES, store.NULL_SPANS)
FIELDS = ("vector", "tokens", "mask", "item", "image")  # of Encoded: all that scores read
BACKGROUND = 256
DUPLICATE = 1e-5  # from 1: closer vectors are of one image; encoding it again moves them by 2e-7
MIN_IMAGES = 16  # images that a mean and a std need
LEVEL_SHARE = 0.2  # of the background
RANKS = 10  # hits that users look at
MIN_TEXTS = 300  # calibration texts that a query and its sentences are compared with
MIN_TRUE = 20  # true sentences that a power is measured on
MIN_POWER = 0.2  # with less power than this no sentence is judged


class CalibrationTexts(NamedTuple):
    """Texts that describe other images; every field but `source` has one value a text."""

    source: str
    texts: tuple[str, ...]
    image_hashes: tuple[str, ...]  # sha256 of the image that a text describes, "" if not known
    sentences: tuple[str, ...]  # one sentence of each
    spans: tuple[str, ...]  # a few sentences, this one among them
    counts: tuple[int, ...]  # sentences of a text
    span_counts: tuple[int, ...]  # sentences of a span
    places: tuple[int, ...]  # of the texts in the source
    image_scores: tuple[tuple[float, float] | None, ...] = ()  # of text and sentence with the own image


def gather_texts(path: str | None, run: Path | None = None) -> CalibrationTexts:
    """Texts of a source with captions, of a .txt file with one text a line, or built-in ones.

    run  of the model: where it was trained on drawn scenes alone, the built-in ones are of such
    """
    where = path or (SCENES if trained_on_scenes(run) else PHOTOGRAPHS)
    if where.endswith(".txt"):
        captions = [(line, "", i) for i, line in enumerate(read_lines(where) if path else EVERYDAY)]
    else:
        captions = _captions(open_source(where, size=32, trust_code=True), where)
    split = [(*one, parts) for one in captions if (parts := [s.text for s in sentences(one[0])])]
    if len(split) > MAX_TEXTS:
        split = [split[i * len(split) // MAX_TEXTS] for i in range(MAX_TEXTS)]
    if len(split) < 20:
        raise UserError(f"{where} holds {len(split)} texts; how sure a search is needs 20 of them at least")
    texts, hashes, places, parts_of_texts = zip(*split, strict=True)
    own = [i % len(parts) for i, parts in enumerate(parts_of_texts)]  # place of the sentence of each
    singles = [parts[place] for parts, place in zip(parts_of_texts, own, strict=True)]
    spans = []
    for i, parts in enumerate(parts_of_texts):
        count = SPAN_LENGTHS[i % len(SPAN_LENGTHS)]
        start = max(0, min(own[i] - count // 2, len(parts) - count))
        span = parts[start : start + count]  # a short text goes on with the sentences of the next
        spans.append(span + [singles[(i + 1 + j) % len(singles)] for j in range(count - len(span))])
    whole_spans = tuple(" ".join(span) for span in spans)
    counts = tuple(map(len, parts_of_texts)), tuple(map(len, spans))
    return CalibrationTexts(where, texts, hashes, tuple(singles), whole_spans, *counts, places)


@torch.no_grad()
def encode_calibration(model: Model, texts: CalibrationTexts) -> tuple[CalibrationTexts, dict[str, Encoded]]:
    """The texts with scores of MAX_IMAGES of them, at most, with their own images; and encoded, by name.

    Encoded are texts, sentences and spans, float32; with tokens if the method is pairwise.
    """
    by_name = zip(NAMES, (texts.texts, texts.sentences, texts.spans), strict=True)
    encoded = {name: model.encode(texts=parts) for name, parts in by_name}
    if not model.method.pairwise:
        encoded = {name: vectors_only(one) for name, one in encoded.items()}
    return texts._replace(image_scores=_image_scores(model, texts, encoded)), encoded


def _image_scores(
    model: Model, texts: CalibrationTexts, encoded: Mapping[str, Encoded]
) -> tuple[tuple[float, float] | None, ...]:
    """Scores of some texts and their sentences with their own images; () where none can be read."""
    scores: list[tuple[float, float] | None] = [None] * len(texts.texts)
    if texts.source.endswith(".txt") or model.method.reads_descriptions:
        return ()
    size = min(max(32, model.method.size), 2048)  # as scenes allow
    source = open_source(texts.source, size=size, trust_code=True)
    if any(isinstance(part, TextsAlone) for part in parts_of(source)):
        return ()
    subset = np.linspace(0, len(scores) - 1, min(MAX_IMAGES, len(scores))).astype(int)
    for start in range(0, len(subset), model.batch):
        numbers, images = [], []
        for number in subset[start : start + model.batch].tolist():
            with suppress(CorruptSample, UserError):
                images.append(model.cropped(source[texts.places[number]].image))
                numbers.append(number)
        if images:
            own, which = model.encode(images=images), torch.tensor(numbers)
            of_text, of_sentence = (
                model.method.score(own, rows(encoded[name], which)).diagonal().tolist()
                for name in (store.NULL_TEXTS, store.NULL_SENTENCES)
            )
            for number, *pair in zip(numbers, of_text, of_sentence, strict=True):
                scores[number] = (pair[0], pair[1])
    return tuple(scores)


def write_calibration(target: Path, texts: CalibrationTexts, encoded: Mapping[str, Encoded]) -> store.Part:
    """Write the texts, also encoded, as a sealed folder. OSError leaves nothing."""
    with store.new_part(target, {"texts": len(texts.texts)}) as folder:
        write_text(folder / FILE, json.dumps(texts._asdict(), indent=1) + "\n")
        for name, one in encoded.items():
            for field in FIELDS:
                store.save_array(folder / f"{name}-{field}{store.NPY}", getattr(one, field).cpu().numpy())
    return store.Part(target.name, store.seal_of(target), len(texts.texts))


def read_encoded(target: Path, part: store.Part) -> dict[str, Encoded]:
    """The encoded texts that `write_calibration` wrote. Raises Corrupt."""
    sealed = store.check_part(target, part)
    out = {}
    for name in NAMES:
        arrays = [store.Column(target / f"{name}-{field}{store.NPY}", sealed).whole() for field in FIELDS]
        out[name] = Encoded(*(torch.from_numpy(array.copy()) for array in arrays))
    return out


def read_calibration(target: Path) -> CalibrationTexts:
    """The texts that `write_calibration` wrote. Raises Corrupt."""
    try:
        values = json.loads(read_plain(target / FILE))
        source = values.pop("source")
        return CalibrationTexts(source, **{name: tuple(value) for name, value in values.items()})
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise Corrupt(f"the calibration texts cannot be read ({error})") from None


def _captions(source: Source, where: str) -> list[tuple[str, str, int]]:
    """Texts of a source with hashes of their images and their places. Corrupt samples are left out."""
    captions: list[tuple[str, str, int]] = []
    for i in range(0, len(source), max(1, len(source) // (2 * MAX_TEXTS))):
        with suppress(CorruptSample):
            record = source[i]
            image = b"" if isinstance(record.image, Image.Image) else record.image
            if record.whole.strip():
                captions.append((record.whole, hashlib.sha256(image).hexdigest() if image else "", i))
    if not captions:
        raise UserError(f"no captions in {where}; name a source with captions, or a .txt file of texts")
    return captions


# Statistics of their scores


class Standard(NamedTuple):
    """Mean and std of the scores of some queries over the background."""

    mean: np.ndarray  # [Q]
    std: np.ndarray  # [Q]

    def apply(self, score: np.ndarray) -> np.ndarray:
        """score  [K, Q]"""
        return np.asarray((score - self.mean) / self.std)


@dataclass(eq=False)
class Calibration:
    """Computes p of the sentences of queries in their hits.

      1. the score of a sentence is relative to its level, the mean of its LEVEL_SHARE best scores over the
         background: about the score of an image that shows it;
      2. tail(x) is the share of pairs of a calibration sentence and a background image that reach x;
      3. the best hit of a query without a match has the standardised score c, the median over calibration
         texts. With a sentence score below need = score - sentences * (score of the hit - c) the hit would
         not be selected;
      4. help = tail(score) / tail(need): among calibration sentences that would select the image, the share
         that scores as high. It is exact for a score that is the mean over sentences, else an approximation;
      5. p is the share of calibration texts whose sentence has a help as small in the best hit of its
         search. In best hits the false positive rate is the level whatever step 4 approximates; in later
         ones lower.

    Calibration texts with images also give true sentences: their sentences in their images, if these are
    among the first RANKS hits. The power is the share of these with p <= level.
    """

    counts: np.ndarray  # [M] sentences of the calibration texts and spans
    best_score: np.ndarray  # [M] standardised scores of their best hits
    standard: Standard  # [M] of their scores
    tested: np.ndarray  # [M] scores of one sentence of each in these hits, minus their levels
    pool: np.ndarray  # sorted: scores of calibration sentences over the background, minus their levels
    true_text: np.ndarray  # [O] numbers of the calibration texts with images
    true_rank: np.ndarray  # [O] of these images, from 0, as if they were in the index
    true_score: np.ndarray  # [O]
    true_tested: np.ndarray  # [O] scores of one sentence of each in its image, minus their levels
    _null: dict[int, np.ndarray] = field(default_factory=dict)
    _best: dict[int, np.ndarray] = field(default_factory=dict)

    def p(self, count: int, score: np.ndarray, spread: Standard, tested: np.ndarray) -> np.ndarray:
        """p of the sentences of one query in its hits: [K, S]

        count   sentences of the query
        score   [K] of the hits
        spread  mean and std of the query's scores, [1] each
        tested  [K, S] scores of the sentences in the hits, minus their levels
        """
        margin = score - (spread.mean + spread.std * self.usual_best(count))
        return share_below(self.null(count), self.help(tested, margin[:, None], count))

    def help(self, tested: np.ndarray, margin: np.ndarray, count: int | np.ndarray) -> np.ndarray:
        """tail(score) / tail(need), at most 1. margin: how far a hit is above the usual best one"""
        return np.minimum(1.0, p_value(self.pool, tested) / p_value(self.pool, tested - count * margin))

    def nearest_counts(self, count: int) -> np.ndarray:
        """The calibration texts of two sentences and more whose number of sentences is nearest, by ratio.

        MIN_TEXTS of them, and all others that are as near as the last of these.
        """
        ratio = np.maximum(self.counts / count, count / self.counts)
        ratio[self.counts < 2] = np.inf
        order = np.argsort(ratio, kind="stable")[: int((self.counts > 1).sum())]
        last = np.searchsorted(ratio[order], ratio[order][:MIN_TEXTS][-1:], side="right")
        return order[: int(last[0])]

    def best(self, count: int) -> np.ndarray:
        """The best scores, standardised, of the calibration texts nearest to `count` sentences; sorted."""
        if count not in self._best:
            self._best[count] = np.sort(self.best_score[self.nearest_counts(count)])
        return self._best[count]

    def usual_best(self, count: int) -> float:
        """The standardised score of the best hit that a query of so many sentences has without a match."""
        return float(np.median(self.best(count)))

    def null(self, count: int) -> np.ndarray:
        """The help of the tested sentences of the nearest calibration texts, sorted."""
        if count not in self._null:
            nearest = self.nearest_counts(count)
            counts = self.counts[nearest]
            numbers, which = np.unique(counts, return_inverse=True)
            usual = np.array([self.usual_best(number) for number in numbers.tolist()])[which]
            margin = (self.best_score[nearest] - usual) * self.standard.std[nearest]
            self._null[count] = np.sort(self.help(self.tested[nearest], margin, counts))
        return self._null[count]

    @cached_property
    def _true_p(self) -> np.ndarray:
        """p of the tested sentences in the images they describe, for images among the first RANKS: [O']"""
        p = []
        for i in np.flatnonzero(self.true_rank < RANKS):
            text = self.true_text[i]
            if self.counts[text] > 1:
                spread = Standard(*(values[text : text + 1] for values in self.standard))
                score, tested = self.true_score[i : i + 1], self.true_tested[i : i + 1, None]
                p.append(self.p(int(self.counts[text]), score, spread, tested)[0, 0])
        return np.array(p)

    def power(self, level: float) -> float | None:
        """The share with p <= level of the true sentences whose image is among the first RANKS hits.

        None for fewer than MIN_TRUE texts with images; 0 for fewer than MIN_TRUE such sentences.
        """
        if len(self.true_text) < MIN_TRUE:
            return None
        p = self._true_p
        return float((p <= level).mean()) if len(p) >= MIN_TRUE else 0.0

    def p_if_true(self, tested: np.ndarray) -> np.ndarray:
        """Share of true sentences in their own images that score so low."""
        return share_below(np.sort(self.true_tested), tested)


def standard(score: np.ndarray, mask: np.ndarray | None = None) -> Standard:
    """Mean and std of the scores of each query; 0 and 1 for fewer than MIN_IMAGES images.

    score  [B, Q] of the background
    mask   [B, Q] bool, scores that count; all if None
    """
    if len(score) < MIN_IMAGES:
        return Standard(np.zeros(score.shape[1]), np.ones(score.shape[1]))
    masked = np.zeros(score.shape, bool) if mask is None else ~mask
    scores = np.ma.masked_array(score.astype(np.float64), masked)
    return Standard(scores.mean(0).filled(0.0), np.maximum(scores.std(0).filled(1.0), 1e-6))


def sentence_level(score: np.ndarray, mask: np.ndarray | None = None) -> np.ndarray:
    """The level of each sentence: the mean of its top LEVEL_SHARE of scores, two at least: [P]

    score, mask  [B, P] as for `standard`; 0 for fewer than MIN_IMAGES images

    >>> sentence_level(np.arange(20.0)[:, None]).tolist()
    [17.5]
    """
    if len(score) < MIN_IMAGES:
        return np.zeros(score.shape[1])
    counted = score if mask is None else np.where(mask, score, -np.inf)
    number = max(2, round(LEVEL_SHARE * len(score)))
    return np.asarray(np.partition(counted.astype(np.float64), -number, axis=0)[-number:].mean(0))


def best_hits(blocks: Iterable[tuple[np.ndarray, np.ndarray]]) -> tuple[np.ndarray, np.ndarray]:
    """Score and row of the best hit of each calibration text; of equal scores the first row: [Q] each

    blocks  scores [K, Q] of images, and [K, Q] bool: the text describes the image; rows are numbered on
    """
    best, row, start = np.empty(0), np.empty(0, dtype=np.int64), 0
    for score, described in blocks:
        if not len(score):
            continue
        if not start:
            best, row = np.full(score.shape[1], -np.inf), np.full(score.shape[1], -1)
        block = score.astype(np.promote_types(score.dtype, np.float32))  # numpy is slow at float16
        block[described] = -np.inf
        top = block.max(0)
        better = np.flatnonzero(top > best)
        best[better], row[better] = top[better], start + block[:, better].argmax(0)
        start += len(score)
    return best, row


def p_value(null: np.ndarray, value: np.ndarray) -> np.ndarray:
    """Share of the sorted null values that reach each value: (1 + reached) / (1 + number).

    >>> p_value(np.array([1.0, 2.0, 3.0]), np.array([0.0, 2.0, 9.0])).tolist()
    [1.0, 0.75, 0.25]
    """
    reached = len(null) - np.searchsorted(null, value, side="left")
    return np.asarray((1 + reached) / (1 + len(null)))


def share_below(null: np.ndarray, value: np.ndarray) -> np.ndarray:
    """Share of the sorted null values that are at most each value: (1 + these) / (1 + number).

    >>> share_below(np.array([1.0, 2.0, 3.0]), np.array([0.0, 2.0, 9.0])).tolist()
    [0.25, 0.75, 1.0]
    """
    return np.asarray((1 + np.searchsorted(null, value, side="right")) / (1 + len(null)))


def described_images(hashes: Sequence[str], owners: Sequence[str]) -> np.ndarray:
    """Whether text q describes image n: [N, Q] bool."""
    own, shared = np.array(owners), set(owners).intersection(hashes)
    out = np.zeros((len(hashes), len(owners)), dtype=bool)
    for row, sha256 in enumerate(hashes):
        if sha256 in shared:
            out[row] = own == sha256
    return out
