"""Captions with marked phrases: their tokens, the groups that a model makes of them, and clusters of states.

Captions are read batch by batch, as they are and with their words in another order. States are clustered at
once and not stored.
"""

import re
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from itertools import chain, pairwise
from typing import NamedTuple

import numpy as np
import torch

from grainline.data.captions import sentences
from grainline.data.record import Cause, CorruptSample, Record
from grainline.data.tokenizers.tokenizer import TextTokenizer
from grainline.errors import UserError
from grainline.evaluation.encode import Collector, Encodings, Sample
from grainline.evaluation.statistics import refuse_nan
from grainline.methods.base import HasTokenGroups, TokenGroups
from grainline.model import Model
from grainline.types import texts_of, to

BARE = "texts have no marked phrase and are left out"
UNMAPPED = "texts are left out, because their tokens cannot be told apart"
OVERFLOW = "phrases lie beyond what the model reads and are left out"
ENDLESS = 2**31 - 1  # a context that truncates nothing
SEED = 0  # results that are compared or pooled need the same draws
K_MEANS, SPECTRAL, MEAN_SHIFT = "k-means", "spectral clustering", "mean shift"
CLUSTERINGS = (K_MEANS, SPECTRAL, MEAN_SHIFT)
CLUSTERS = 4
LACKING = "no clusterings of token states: they need scikit-learn, pip install 'grainline[cluster]'"


class Token(NamedTuple):
    """A token of a caption that is neither begin nor end of a text."""

    start: int  # where the characters that it stands for begin in the caption; all those of its word
    end: int
    column: int  # its place among all tokens that a method reads of the caption


def tokens_of(
    tokenizer: TextTokenizer, text: str, context: int, parts: int = 1, cuts: Sequence[int] = ()
) -> list[Token] | None:
    """The tokens of a caption, or None where they cannot be told apart from each other.

    context, parts  as the method reads: several parts are sentences
    cuts            characters at which a word is cut further, if that changes no token

    Each word is encoded alone. Where the tokens of all words in a row are those of the whole caption, the
    places are exact. Otherwise they come from the tokenizer, which needs a cleaning that changes nothing but
    capitals and runs of blanks.
    """
    pieces = [(0, text)]
    if parts > 1:
        pieces = [(one.start, one.text) for one in sentences(text)][:parts] or pieces
    out: list[Token] = []
    before = 0  # tokens of earlier parts
    for start, part in pieces:
        (ids,) = tokenizer.encode([part], context).ids
        spans = _spans(tokenizer, part, ids, context, [cut - start for cut in cuts])
        if spans is None:
            return None
        first = before + len(tokenizer.prefix)
        out += [Token(start + a, start + b, first + i) for i, (a, b) in enumerate(spans)]
        before += len(ids)
    return out


def word_spans(text: str) -> list[tuple[int, int]]:
    """The spans of the words of a text, separated by blanks."""
    return [match.span() for match in re.finditer(r"\S+", text)]


def _spans(
    tokenizer: TextTokenizer, part: str, ids: list[int], context: int, cuts: Sequence[int]
) -> list[tuple[int, int]] | None:
    """The characters of each token but begin and end."""
    begin, end = len(tokenizer.prefix), len(tokenizer.suffix)
    whole = ids[begin : len(ids) - end]
    words = word_spans(part)
    further = [
        span for a, b in words for span in pairwise([a, *sorted({cut for cut in cuts if a < cut < b}), b])
    ]
    for spans in (further, words):
        encoded = tokenizer.encode([part[a:b] for a, b in spans], ENDLESS).ids
        pieces = [one[begin : len(one) - end] for one in encoded]
        if list(chain.from_iterable(pieces))[: context - tokenizer.around] == whole:
            return [span for span, piece in zip(spans, pieces, strict=True) for _ in piece][: len(whole)]
    spans, cleaned = tokenizer.spans(part, context), tokenizer.cleaned(part)
    same = len(cleaned) == len(part) and cleaned.lower() == part.lower()
    return spans[begin : len(spans) - end] if same else None


Ranges = tuple[tuple[int, int], ...]  # runs of characters, ends excluded


class Caption(NamedTuple):
    """A text and its phrases, each as the characters that it takes."""

    text: str
    phrases: tuple[Ranges, ...]


def captions_of(record: Record) -> list[Caption]:
    """The texts of a record with their phrases, each once. Raises CorruptSample for a phrase in no text."""
    named = {f"captions.{i}": text for i, text in enumerate(record.captions)}
    named |= {f"others.{i}": text for i, text in enumerate(record.others)}
    if record.long:
        named["long"] = record.long
    spans: dict[str, set[tuple[int, int]]] = {name: set() for name in named}
    for region in record.regions:
        if region.span is None:
            continue
        name, start, end = region.span
        if name not in named or not 0 <= start < end <= len(named[name]):
            where = f"{name} {start} to {end}"
            raise CorruptSample(Cause.CORRUPT_REGION, f"{record.key} ({region.phrase}: no text at {where})")
        spans[name].add((start, end))
    return [Caption(text, tuple((run,) for run in sorted(spans[name]))) for name, text in named.items()]


def segments(caption: Caption, tokens: Sequence[Token]) -> np.ndarray:
    """The tokens of every phrase that has one: [P, L] bool. Phrases that were truncated are left out."""
    gold = np.array(
        [
            [any(max(token.start, a) < min(token.end, b) for a, b in phrase) for token in tokens]
            for phrase in caption.phrases
        ],
        bool,
    ).reshape(len(caption.phrases), len(tokens))
    return gold[gold.any(1)]


def up_to(caption: Caption, end: int) -> Caption:
    """The first characters of a caption, with its phrases cut off there."""
    phrases = [tuple((a, min(b, end)) for a, b in phrase if a < end) for phrase in caption.phrases]
    return Caption(caption.text[:end], tuple(phrase for phrase in phrases if phrase))


def shuffled(caption: Caption, generator: np.random.Generator) -> tuple[Caption, Caption]:
    """The caption with its words in another order: phrases at their places, and moved with their words."""
    words = word_spans(caption.text)
    order = generator.permutation(len(words)).tolist()  # the word at each place
    text = " ".join(caption.text[slice(*words[i])] for i in order)
    places = word_spans(text)
    moved = {word: places[place] for place, word in enumerate(order)}
    in_place, with_words = [], []
    for phrase in caption.phrases:
        inside = [  # word, and the characters of it that lie in the phrase
            (i, max(start, a), min(end, b))
            for i, (start, end) in enumerate(words)
            for a, b in phrase
            if max(start, a) < min(end, b)
        ]
        in_place.append(tuple(places[i] for i in dict.fromkeys(i for i, _, _ in inside)))
        shifts = [(a, b, moved[i][0] - words[i][0]) for i, a, b in inside]
        with_words.append(tuple(sorted((a + shift, b + shift) for a, b, shift in shifts)))
    return Caption(text, tuple(in_place)), Caption(text, tuple(with_words))


class Labelled(NamedTuple):
    """The groups of one caption."""

    labels: np.ndarray  # [L] the group of each token
    groups: int  # how many there are, those without a token included


class Shuffled(NamedTuple):
    """The groups of a caption with its words in another order."""

    groups: Labelled
    in_place: np.ndarray  # [P, L] bool, phrases at the places of their words
    moved: np.ndarray  # [P, L] bool, phrases that go with their words


@dataclass
class Grouped:
    """Captions with phrases: tokens (no begin or end), the model's groups of them, clusters of states."""

    texts: list[str] = field(default_factory=list)
    tokens: list[list[Token]] = field(default_factory=list)
    image: list[int] = field(default_factory=list)  # of each caption
    gold: list[np.ndarray] = field(default_factory=list)  # [P, L] bool, the tokens of each phrase
    soft: list[np.ndarray] = field(default_factory=list)  # [K, L] share of each token in every group, if any
    shuffled: list[Shuffled] = field(default_factory=list)  # [] for a method without groups, as `soft`
    clusters: dict[str, list[Labelled]] = field(default_factory=dict)  # by clustering
    has_states: bool = True  # whether the method has a state of every token
    counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys((BARE, UNMAPPED, OVERFLOW), 0))

    @property
    def groups(self) -> int | None:
        """How many groups the method has."""
        return len(self.soft[0]) if self.soft else None


class CaptionTokens(NamedTuple):
    """A caption, or its words in another order, with the tokens of phrases."""

    text: str
    columns: list[int]  # [L] of the tokens
    gold: tuple[np.ndarray, ...]  # [P, L] bool; of shuffled words in place and moved


class GroupCollector(Collector):
    """Reads captions with marked phrases batch by batch. Raises UserError for methods that compose chunks."""

    def __init__(self, model: Model, batch: int) -> None:
        if model.method.chunking is not None:
            what = f"{model.description.method} reads a text as chunks that it composes"
            raise UserError(f"{what}; --suite phrases is for methods that read its words in a row")
        self._model, self._batch, self._has_groups = model, batch, makes_groups(model)
        self._waiting: list[tuple[CaptionTokens, CaptionTokens | None]] = []
        self._grouped = Grouped()

    def add(self, sample: Sample) -> None:
        out = self._grouped
        for caption in captions_of(sample.record):
            if not caption.phrases:
                out.counts[BARE] += 1
                continue
            tokens = self._tokens_of(caption)
            if tokens is None:
                out.counts[UNMAPPED] += 1
                continue
            gold = segments(caption, tokens)
            out.counts[OVERFLOW] += len(caption.phrases) - len(gold)
            if not len(gold):
                continue
            other = self._in_other_order(up_to(caption, tokens[-1].end)) if self._has_groups else None
            if self._has_groups and other is None:
                out.counts[UNMAPPED] += 1
                continue
            out.texts.append(caption.text)
            out.tokens.append(tokens)
            out.image.append(sample.row)
            out.gold.append(gold)
            own = CaptionTokens(caption.text, [one.column for one in tokens], (gold,))
            self._waiting.append((own, other))
            if len(self._waiting) == self._batch:
                self._read_waiting()

    def result(self, data: Encodings) -> Grouped:
        """Raises UserError where no caption has a marked phrase."""
        self._read_waiting()
        unmapped = self._grouped.counts[UNMAPPED]
        if not self._grouped.texts:
            why = f"; of {unmapped} the tokens cannot be told apart" if unmapped else ""
            needed = "the phrases suite needs regions with a span, as flickr30k-entities and scenes have"
            raise UserError(f"no phrase in {data.path} that the model reads is marked{why}; {needed}")
        return self._grouped

    def _tokens_of(self, caption: Caption) -> list[Token] | None:
        model, edges = self._model, sorted({x for phrase in caption.phrases for run in phrase for x in run})
        return tokens_of(model.tokenizer, caption.text, model.method.context, model.method.parts, edges)

    def _in_other_order(self, caption: Caption) -> CaptionTokens | None:
        """The words of a caption in an order of its own; None where tokens or phrases have no places."""
        generator = np.random.default_rng((SEED, len(self._grouped.texts)))
        in_place, moved = shuffled(caption, generator)
        tokens = self._tokens_of(moved._replace(phrases=(*moved.phrases, *in_place.phrases)))
        gold = tuple(segments(one, tokens or []) for one in (in_place, moved))
        if tokens is None or not all(map(len, gold)):
            return None
        return CaptionTokens(moved.text, [one.column for one in tokens], gold)

    def _read_waiting(self) -> None:
        waiting, self._waiting = self._waiting, []
        if not waiting:
            return
        out, captions = self._grouped, [one for one, _ in waiting]
        texts = [one.text for one in captions]
        read = self._model.read(texts)
        self.truncated += sum(read.truncated)
        if self._has_groups:
            out.soft += self._soft_of(captions)
            others = [other for _, other in waiting if other is not None]
            for soft, other in zip(self._soft_of(others), others, strict=True):
                out.shuffled.append(Shuffled(hard(soft), *other.gold))
        if out.has_states and can_cluster():
            states = self._states(texts, [sum(map(len, ids)) for ids in read.ids])
            if states is None:
                out.has_states, out.clusters = False, {}
                return
            for one, caption in zip(states, captions, strict=True):
                for name, labelled in clusterings(one[caption.columns]).items():
                    out.clusters.setdefault(name, []).append(labelled)

    def _soft_of(self, captions: Sequence[CaptionTokens]) -> list[np.ndarray]:
        """The share of each token in every group: [K, L] for each caption"""
        weight = _token_groups(self._model, [one.text for one in captions]).weight
        assert weight is not None
        soft = [x[:, one.columns] for x, one in zip(weight.float().cpu().numpy(), captions, strict=True)]
        refuse_nan(sum(bool(np.isnan(one).any()) for one in soft), len(soft))
        assert all(np.allclose(one.sum(0), 1, atol=1e-3) for one in soft), "shares of a token sum to 1"
        return soft

    @torch.no_grad()
    def _states(self, texts: Sequence[str], lengths: Sequence[int]) -> np.ndarray | None:
        """The state of every token, [n, L, W]; None where the method has none."""
        model = self._model
        if isinstance(model.method, HasTokenGroups):
            states: np.ndarray = _token_groups(model, texts).states.float().cpu().numpy()
            return states
        encoded = model.encode(texts=texts)
        return encoded.tokens.float().cpu().numpy() if encoded.mask.sum(1).tolist() == lengths else None


def makes_groups(model: Model) -> bool:
    """Whether a model puts tokens into groups; the baseline of the Text Group Transformer does not."""
    return isinstance(model.method, HasTokenGroups) and _token_groups(model, ["a"]).weight is not None


@torch.no_grad()
def _token_groups(model: Model, texts: Sequence[str]) -> TokenGroups:
    assert isinstance(model.method, HasTokenGroups)
    return model.method.token_groups(to(texts_of(model.read(texts).ids), model.device))


def hard(soft: np.ndarray) -> Labelled:
    """Each token to the group with its largest share, the first of equals. soft: [K, L]

    Groups behind the last one with a share of any token are not used by the caption, and are not counted.
    """
    return Labelled(soft.argmax(0), int(np.flatnonzero(soft.sum(1) > 0)[-1]) + 1)


def can_cluster() -> bool:
    """Whether scikit-learn is installed (extra `cluster`)."""
    return find_spec("sklearn") is not None


def clusterings(states: np.ndarray) -> dict[str, Labelled]:
    """The groups of one caption by clustering its token states [L, D], with scikit-learn.

    k-means and spectral clustering get four clusters, or as many as there are tokens; mean shift estimates
    its bandwidth.
    """
    from sklearn.cluster import KMeans, MeanShift, SpectralClustering, estimate_bandwidth
    from sklearn.exceptions import ConvergenceWarning

    states = states.astype(np.float64)
    number = min(CLUSTERS, len(states))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # fewer different states than clusters
        k_means = KMeans(number, n_init=10, random_state=SEED).fit_predict(states)
        spectral = np.arange(number)  # each alone: a graph of so few tokens has not enough directions
        if number < len(states):
            unit = states / np.maximum(np.linalg.norm(states, axis=1, keepdims=True), 1e-12)
            affinity = ((1 + unit @ unit.T) / 2).clip(0)
            spectral = SpectralClustering(number, affinity="precomputed", random_state=SEED).fit_predict(
                affinity
            )
        width = estimate_bandwidth(states, random_state=SEED) if len(states) > 1 else 0.0
        if width > 0:
            shifted = MeanShift(bandwidth=width).fit_predict(states)
        else:  # nearest neighbours are equal: group only equal states
            shifted = np.unique(states, axis=0, return_inverse=True)[1].reshape(-1)
    return {
        K_MEANS: Labelled(k_means.astype(np.int64), number),
        SPECTRAL: Labelled(spectral.astype(np.int64), number),
        MEAN_SHIFT: Labelled(shifted.astype(np.int64), int(shifted.max()) + 1),
    }
