"""Inactivity: does a text that has nothing to do with an image attend to nothing?

For methods whose texts attend to image tokens or to an empty slot beside them, as in FLAIR and CAFT (Woo et
al., arXiv 2602.02977, whose figures show it). In three steps:
  1. score each image with the parts of its own text, and with those of a text of another image;
  2. take the weight of the empty slot of each part;
  3. AUROC: the share of pairs of a foreign and an own part in which the foreign one has the larger weight.

A pair that is equal counts one half. The other text is the next one in a fixed random order of all distinct
texts, so that each text is a foreign one as often as an own one. A part that both texts have is true of the
image, and does not count as a foreign one.
"""

from collections.abc import Callable, Sequence
from random import Random
from typing import Any, NamedTuple

import numpy as np
import torch

from grainline.data.formats.common import digest
from grainline.data.record import CorruptSample, Source
from grainline.errors import UserError
from grainline.evaluation.encode import Captions, Collector, Encodings, number_cut, texts_of
from grainline.evaluation.examples import EXAMPLES, Evaluation, extremes
from grainline.evaluation.intervals import replicates
from grainline.evaluation.ranks import refuse_nan
from grainline.evaluation.score import Scorer
from grainline.evaluation.suite import (
    MetricSamples,
    NoOptions,
    Outcomes,
    Settings,
    Suite,
    mean_metric,
    mean_of,
)
from grainline.evaluation.text_attention import Part, attention_of
from grainline.methods.base import parts_of, require_attention
from grainline.model import Model
from grainline.report.case import Case, CaseList
from grainline.types import Encoded, rows

AUROC, WITHIN = "AUROC of the empty slot", "AUROC within an image"
OWN, OTHER = "empty slot, own texts", "empty slot, other texts"
ROLES = ("Own text", "Text of another image")  # of parts on the page
SEED = 0  # of the order of texts: results that are compared or pooled must pair the same texts


class EmptySlots(NamedTuple):
    """The weights of the empty slot in an image, for its own text and for another one."""

    own: tuple[tuple[str, float], ...]  # its parts, each with the weight of the empty slot
    other: tuple[tuple[str, float], ...]  # a part that both texts have is no foreign one
    foreign: str  # the whole of the other text


class InactivitySuite(Suite[NoOptions]):
    """AUROC of the empty slot over all pairs and within images, and its mean weights."""

    name = "inactivity"
    captions = ("whole", "first")
    reads = "one text an image"
    encodes_captions = False
    keeps_tokens = False
    replaces_scores = "reads where texts look"
    headline = (AUROC, WITHIN)

    def check(self, model: Model, source: Source) -> None:
        super().check(model, source)
        require_attention(model.method, model.description.method, f"--suite {self.name}")

    def collector(self, model: Model, source: Source, settings: Settings) -> Collector:
        return EmptySlotCollector(model, source, self.choose_captions(settings.captions))

    def outcomes(self, scorer: Scorer, data: Encodings, settings: Settings) -> Outcomes:
        """Raises UserError without two different texts, and for weights that are not a number."""
        slots: tuple[EmptySlots | None, ...] = self.collected(data)
        usable = {i: one for i, one in enumerate(slots) if one is not None}
        if not usable:
            raise UserError(
                f"all texts of {data.path} say the same; the {self.name} suite compares different ones"
            )
        scores = {
            OWN: [[weight for _, weight in one.own] for one in usable.values()],
            OTHER: [[weight for _, weight in one.other] for one in usable.values()],
        }
        weights = np.concatenate([np.asarray(one) for of in scores.values() for one in of])
        refuse_nan(int(np.isnan(weights).sum()), len(weights))
        texts = [text for i, one in usable.items() for text in (data.strings[i], one.foreign)]
        queries = {"image": [*usable], "texts": digest(texts), "scores": scores}
        notes = []
        alone = len(slots) - len(usable)
        if alone:
            notes.append(f"{alone} images have no other text to compare with and are left out")
        if len(np.unique(weights)) < len(weights):
            notes.append("in AUROC a tie counts one half")
        return Outcomes(queries, tuple(notes), {"order_seed": SEED}, {"parts": len(weights)})

    def metrics(self, runs: Sequence[dict[str, Any]], settings: Settings) -> dict[str, MetricSamples]:
        """Means over the runs; the bootstrap draws images, the same for every metric."""
        tables = [_metrics_of_run(run["scores"], settings) for run in runs]
        return {name: mean_of([table[name] for table in tables]) for name in tables[0]}

    def cases(self, evaluation: Evaluation, number: int = EXAMPLES) -> list[CaseList]:
        """Cases by AUROC within the image; of equals by the difference of the means."""
        slots = [(i, one) for i, one in enumerate(self.collected(evaluation.data)) if one is not None]
        weights = [([w for _, w in one.own], [w for _, w in one.other]) for _, one in slots]
        share = [within(*both) for both in weights]
        gap = [float(np.mean(other) - np.mean(own)) for own, other in weights]

        def case(place: int) -> Case:
            i, one = slots[place]
            texts = [
                (f"{role}, empty slot {weight:.3f}", words)
                for role, side in zip(ROLES, (one.own, one.other), strict=True)
                for words, weight in side
            ]
            key, image = evaluation.data.keys[i], evaluation.image(i)
            return Case(
                f"AUROC {100 * share[place]:.1f} %", key, image=image, alt=f"image {key}", texts=texts
            )

        order = (
            "Sorted by AUROC within the image. Above each part of a text stands the weight of its empty slot."
        )
        titles = ("Images: lowest AUROC", "Images: highest AUROC")
        return evaluation.both_ends(titles, order, extremes(share, gap, number=number), case)


def texts_in(source: Source, captions: Captions) -> list[str]:
    """The one text of every record, without a look at any image. Blank and damaged ones are left out."""
    out = []
    for index in range(len(source)):
        try:
            texts = texts_of(source[index], captions)
        except CorruptSample:
            continue  # counted when the image is encoded
        out += [text for text in texts if text.strip()]
    return out


def partners(texts: Sequence[str], split: Callable[[str], list[str]]) -> dict[str, str]:
    """For each distinct text another one with a part that it lacks: the next in an order fixed by SEED.

    split  a text to its parts

    A text without such another one is left out.

    >>> sorted(partners(["A dog.", "A cat.", "A dog."], lambda text: [text]).items())
    [('A cat.', 'A dog.'), ('A dog.', 'A cat.')]
    """
    order = sorted(set(texts))
    Random(SEED).shuffle(order)
    out = {}
    for i, text in enumerate(order):
        parts = set(map(_key, split(text)))
        behind = (order[(i + k) % len(order)] for k in range(1, len(order)))
        other = next((one for one in behind if not parts.issuperset(map(_key, split(one)))), None)
        if other is not None:
            out[text] = other
    return out


class EmptySlotCollector(Collector):
    """Takes the weights of each image while its tokens are there."""

    def __init__(self, model: Model, source: Source, captions: Captions) -> None:
        parts = model.encode(texts=["a"]).tokens.shape[1]
        self._model = model
        self._other = partners(
            texts_in(source, captions), lambda text: parts_of(model.method, text, parts)
        )  # text -> the text of another image
        self._slots: list[EmptySlots | None] = []

    def add_images(self, images: Encoded, texts: Sequence[Sequence[str]]) -> None:
        method, strings = self._model.method, [text for (text,) in texts]
        encoded = self._model.encode(texts=strings)
        self.truncated += number_cut(encoded)
        own = attention_of(method, images, encoded, strings)
        there = [i for i, text in enumerate(strings) if text in self._other]
        foreign = [self._other[strings[i]] for i in there]
        other: list[list[Part]] = []
        if there:
            some = rows(images, torch.tensor(there, device=images.vector.device))
            other = attention_of(method, some, self._model.encode(texts=foreign), foreign)
        slots: list[EmptySlots | None] = [None] * len(strings)
        for i, text, parts in zip(there, foreign, other, strict=True):
            known = {_key(part.words) for part in own[i]}
            slots[i] = EmptySlots(
                tuple((part.words, part.empty) for part in own[i]),
                tuple((part.words, part.empty) for part in parts if _key(part.words) not in known),
                text,
            )
        self._slots += slots

    def result(self, data: Encodings) -> tuple[EmptySlots | None, ...]:
        """The values of every image; None where no other text has a part that its own lacks."""
        return tuple(self._slots)


def _key(words: str) -> str:
    """Equal for parts with the same words: only the last of a text may end in a period."""
    return words.rstrip(" .")


def auroc(place: np.ndarray, other: np.ndarray) -> float:
    """The share of pairs of a foreign and an own part in which the foreign one is larger; ties half. Exact.

    place  [K] integers >= 0, the places of the weights among all distinct ones
    other  [K] bool: the part is foreign. Both kinds are there

    >>> auroc(np.array([0, 1, 1, 2]), np.array([False, False, True, True]))
    0.875
    """
    foreign, own = (np.bincount(place[kind], minlength=place.max() + 1) for kind in (other, ~other))
    below = np.cumsum(own) - own
    return int((foreign * (2 * below + own)).sum()) / (2 * int(foreign.sum()) * int(own.sum()))


def within(own: list[float], foreign: list[float]) -> float:
    """AUROC of the weights of one image.

    >>> within([0.25, 0.5], [0.5, 0.75])
    0.875
    """
    place = np.unique([*own, *foreign], return_inverse=True)[1]
    return auroc(place, np.arange(len(place)) >= len(own))


def _metrics_of_run(scores: dict[str, list[list[float]]], settings: Settings) -> dict[str, MetricSamples]:
    sides = [scores[OWN], scores[OTHER]]
    weight = np.array([w for side in sides for one in side for w in one])
    image = np.array([i for side in sides for i, one in enumerate(side) for _ in one])
    other = np.arange(len(weight)) >= sum(map(len, sides[0]))
    place = np.unique(weight, return_inverse=True)[1]
    samples = replicates(
        np.stack([place, other], axis=1),
        image,
        lambda x: auroc(x[:, 0].astype(np.int64), x[:, 1] > 0),
        **settings.bootstrap,
    )
    tied = int(np.isin(place[other], place[~other]).sum())
    inside = np.array([within(*pair) for pair in zip(*sides, strict=True)])
    ties = sum(bool(set(own) & set(foreign)) for own, foreign in zip(*sides, strict=True))
    out = {
        AUROC: MetricSamples(auroc(place, other), samples, len(weight), 0.5, tied, "share"),
        WITHIN: mean_metric(inside, None, len(inside), 0.5, ties, "share", settings),
    }
    for name, kind in ((OWN, ~other), (OTHER, other)):
        out[name] = mean_metric(weight[kind], image[kind], int(kind.sum()), None, 0, "share", settings)
    return out
