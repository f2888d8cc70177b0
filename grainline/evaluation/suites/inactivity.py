"""Inactivity: does a text that has nothing to do with an image attend to nothing?

For methods whose texts attend to image tokens or to an empty slot beside them, as in FLAIR and CAFT (Woo et
al., arXiv 2602.02977, whose figures show it). In three steps:
  1. score each image with the parts of its own text, and with those of a text of another image: the next one
     in a fixed random order of all distinct texts. A part that both texts have counts as an own one;
  2. take the weight of the empty slot of each part;
  3. AUROC: the share of pairs of a foreign and an own part in which the foreign one has the larger weight.
     A pair that is equal counts one half.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from random import Random
from typing import Any, NamedTuple

import numpy as np
import torch

from grainline.data.formats.common import digest
from grainline.data.record import CorruptSample, Source
from grainline.errors import UserError
from grainline.evaluation.encode import Captions, Collector, Encodings, number_cut, texts_of
from grainline.evaluation.examples import EXAMPLES, Evaluation, Part, attention_of
from grainline.evaluation.score import Scorer
from grainline.evaluation.statistics import refuse_nan, replicates
from grainline.evaluation.suite import (
    MetricSamples,
    OneTextSuite,
    Outcomes,
    Settings,
    count_notes,
    mean_metric,
    mean_of,
)
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


class InactivitySuite(OneTextSuite):
    """AUROC of the empty slot over all pairs and within images, and its mean weights."""

    name = "inactivity"
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
            raise UserError(f"all texts of {data.path} say the same; {self.name} compares different ones")
        scores = {
            name: [[weight for _, weight in side] for side in sides]
            for name, sides in (
                (OWN, [one.own for one in usable.values()]),
                (OTHER, [one.other for one in usable.values()]),
            )
        }
        weights = np.concatenate([np.asarray(one) for sides in scores.values() for one in sides])
        refuse_nan(int(np.isnan(weights).sum()), len(weights))
        texts = [text for i, one in usable.items() for text in (data.strings[i], one.foreign)]
        queries = {"image": [*usable], "texts": digest(texts), "scores": scores}
        notes = count_notes(
            {"images have no other text to compare with and are left out": len(slots) - len(usable)}
        )
        if len(np.unique(weights)) < len(weights):
            notes += ("in AUROC a tie counts one half",)
        return Outcomes(queries, notes, {"order_seed": SEED}, {"parts": len(weights)})

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
            key, title = evaluation.data.keys[i], f"AUROC {100 * share[place]:.1f} %"
            return Case(title, key, image=evaluation.image(i), alt=f"image {key}", texts=texts)

        order = (
            "Sorted by AUROC within the image. Above each part of a text stands the weight of its empty slot."
        )
        titles = ("Images: lowest AUROC", "Images: highest AUROC")
        return evaluation.both_ends(titles, order, case, share, gap, number=number)


def partners(texts: Sequence[str], split: Callable[[str], list[str]]) -> dict[str, str]:
    """For each distinct text the next one with a part that it lacks, in an order fixed by SEED, if any."""
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
        self._model = model
        number = model.encode(texts=["a"]).tokens.shape[1]
        texts = list[str]()
        for i in range(len(source)):
            with suppress(CorruptSample):  # counted when the image is encoded
                texts += [text for text in texts_of(source[i], captions) if text.strip()]
        self._other = partners(texts, lambda text: parts_of(model.method, text, number))
        self._slots: list[EmptySlots | None] = []

    def add_images(self, images: Encoded, texts: Sequence[Sequence[str]]) -> None:
        strings = [text for (text,) in texts]
        own, cut = self._parts(images, strings)
        self.truncated += cut
        place = {i: self._other[text] for i, text in enumerate(strings) if text in self._other}
        other: dict[int, list[Part]] = {}
        if place:
            some = rows(images, torch.tensor(list(place), device=images.vector.device))
            other = dict(zip(place, self._parts(some, list(place.values()))[0], strict=True))
        for i, parts in enumerate(own):
            known = {_key(part.words) for part in parts}
            foreign = [part for part in other.get(i, ()) if _key(part.words) not in known]
            own_side, other_side = (
                tuple((part.words, part.empty) for part in side) for side in (parts, foreign)
            )
            self._slots.append(EmptySlots(own_side, other_side, place[i]) if i in place else None)

    def _parts(self, images: Encoded, strings: list[str]) -> tuple[list[list[Part]], int]:
        """The parts of each text in its image, and the number of texts that are cut."""
        encoded = self._model.encode(texts=strings)
        return attention_of(self._model.method, images, encoded, strings), number_cut(encoded)

    def result(self, data: Encodings) -> tuple[EmptySlots | None, ...]:
        """The values of every image; None where each other text has only parts that its own has too."""
        return tuple(self._slots)


def _key(words: str) -> str:
    """Equal for parts with the same words: only the last of a text may end in a period."""
    return words.rstrip(" .")


def auroc(place: np.ndarray, other: np.ndarray) -> float:
    """The share of pairs of a foreign and an own part in which the foreign one is larger; ties half. Exact.

    place  [K] integers >= 0, the places of the weights among all distinct ones
    other  [K] bool: the part is foreign. Both kinds are there
    """
    foreign, own = (np.bincount(place[kind], minlength=place.max() + 1) for kind in (other, ~other))
    below = np.cumsum(own) - own
    return int((foreign * (2 * below + own)).sum()) / (2 * int(foreign.sum()) * int(own.sum()))


def within(own: list[float], foreign: list[float]) -> float:
    """AUROC of the weights of one image."""
    place = np.unique([*own, *foreign], return_inverse=True)[1]
    return auroc(place, np.arange(len(place)) >= len(own))


def _metrics_of_run(scores: dict[str, list[list[float]]], settings: Settings) -> dict[str, MetricSamples]:
    sides = [scores[OWN], scores[OTHER]]
    weight = np.array([w for side in sides for one in side for w in one])
    image = np.array([i for side in sides for i, one in enumerate(side) for _ in one])
    other = np.arange(len(weight)) >= sum(map(len, sides[0]))
    place = np.unique(weight, return_inverse=True)[1]
    pairs = np.stack([place, other], axis=1)
    samples = replicates(
        pairs, image, lambda x: auroc(x[:, 0].astype(np.int64), x[:, 1] > 0), **settings.bootstrap
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
