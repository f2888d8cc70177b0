"""Monotonicity: does an image score higher, the more of its caption is read?

HiMo-CLIP, arXiv 2511.06653, section 5.1. In three steps:
  1. take subtexts of every caption, each the start of the next. Of n sentences HiMo@2 takes the first half
     and all, HiMo@3 a third, two thirds and all, HiMo@K one sentence more each time, or the subtexts that the
     source has of its own;
  2. score each of them with its own image, and with no other;
  3. HiMo@2 and HiMo@3: the share of captions whose scores rise strictly; HiMo@K: the mean over the captions
     of Pearson's correlation of score and number.

The paper has HiMo@K for K > 3, its code for any K: both are given. A tie is no rise. A model that reads no
further than the shorter subtext must tie, so ties and cut subtexts are counted.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch

from grainline.data.captions import sentences
from grainline.data.texts import TokenizedParts
from grainline.errors import UserError
from grainline.evaluation.encode import Collector, Encodings, Rows, Sample, text_rows
from grainline.evaluation.examples import Evaluation, spread
from grainline.evaluation.score import Scorer, pair_scores
from grainline.evaluation.statistics import refuse_nan
from grainline.evaluation.suite import (
    MetricSamples,
    OneTextSuite,
    Outcomes,
    Settings,
    accuracy,
    count_notes,
    mean_metric,
)
from grainline.model import Model
from grainline.report.case import CaseList
from grainline.report.charts import SUBTEXT_RULES, subtext_case
from grainline.types import Encoded, rows

HALVES, THIRDS, EACH = "HiMo@2", "HiMo@3", "HiMo@K"
PARTS = {HALVES: 2, THIRDS: 3}

IMAGES = 256  # scored at a time
LONG = f"{EACH}, K >= 4"
MIN_SUBTEXTS = {HALVES: 2, THIRDS: 3, EACH: 1, LONG: 4}  # that a sample must have to count for a metric

EXAMPLES = 4  # images of the page

MEANS = {  # properties of a method, and what monotonicity can and cannot reward then
    "mean_of_parts": "a score is a mean over sentences: it rises only where new ones score above that mean",
    "empty_part": "a mean with an empty sentence: it rewards a new one that fits n / (n + 1) of the n before",
    "by_sentence": "sentences are averaged: a score rises where new ones score higher or are unlike others",
}


def rises(scores: Sequence[float]) -> bool:
    """Whether every score is above the one before."""
    return all(a < b for a, b in pairwise(scores))


def ties(scores: Sequence[float]) -> bool:
    """Whether two neighbours are equal."""
    return any(a == b for a, b in pairwise(scores))


def correlation(scores: Sequence[float]) -> float:
    """Pearson's correlation of some scores with 1, 2, ...; 0 for equal scores, and for a single one."""
    y = np.asarray(scores, np.float64)
    if y.min() == y.max():
        return 0.0
    x = np.arange(len(y)) - (len(y) - 1) / 2
    y = y - y.mean()
    return float(np.clip(x @ y / np.sqrt((x @ x) * (y @ y)), -1.0, 1.0))


def _notes(sequences: Mapping[str, Mapping[str, list[Any]]]) -> tuple[str, ...]:
    """Samples that are left out, ties and cut texts."""
    each, notes = sequences[EACH], list[str]()
    samples = len(each["subtexts"])
    for name, minimum in MIN_SUBTEXTS.items():
        number = sum(n < minimum for n in sequences[EACH if name == LONG else name]["subtexts"])
        if number:
            what = "subtexts" if name == LONG else "sentences"
            notes.append(f"{name} leaves out {number} of {samples} samples with fewer than {minimum} {what}")
    cut = f"of {samples} samples have two or more subtexts that are longer than the model reads"
    notes += count_notes({cut: sum(sum(one) > 1 for one in each["cut"])})
    for name, one in sequences.items():
        if tied := sum(map(ties, one["scores"])):
            notes.append(f"{name}: {tied} samples have a tie")
    return tuple(notes)


class Subtexts(NamedTuple):
    """The subtexts of N images, encoded."""

    strings: tuple[str, ...]  # [T] each once
    cut: tuple[bool, ...]  # [T] longer than the model reads
    row: torch.Tensor  # [T] int64, row of `texts`; strings that the model reads alike share one, so they tie
    texts: Encoded  # [U] `image` is -1
    sequences: dict[str, tuple[tuple[int, ...], ...]]  # name -> for each image the places in `strings`


def boundaries(n: int, parts: int) -> list[int]:
    """How many of n sentences the subtexts hold: floor(k * n / parts) for k = 1 .. parts."""
    assert n >= parts >= 1, (n, parts)
    return [k * n // parts for k in range(1, parts + 1)]


def cumulative(caption: str, parts: int | None = None) -> tuple[str, ...]:
    """The subtexts of a caption, shortest first; none where it has fewer sentences than parts.

    parts  None: as many as there are sentences

    Every subtext is the beginning of the caption with each run of blanks as one, and the last one all of it.
    """
    pieces = sentences(caption)
    number = len(pieces) if parts is None else parts
    if not pieces or len(pieces) < number:
        return ()
    return tuple(" ".join(caption[: pieces[end - 1].end].split()) for end in boundaries(len(pieces), number))


def sequences(caption: str, own: Sequence[str] = ()) -> dict[str, tuple[str, ...]]:
    """The three sequences of a caption. own: subtexts of the source for HiMo@K, else sentence by sentence"""
    prefixes = {name: cumulative(caption, parts) for name, parts in PARTS.items()}
    return prefixes | {EACH: tuple(own) or cumulative(caption)}


class SubtextQueue:
    """Collects the subtexts of each image in turn; of texts that the model reads alike, `rows` gets one."""

    def __init__(self, model: Model, rows: Rows) -> None:
        self.rows = rows
        self._model = model
        self._place: dict[str, int] = {}
        self._cut: list[bool] = []
        self._row: list[int] = []
        self._row_of: dict[tuple[tuple[int, ...], ...], int] = {}  # by the tokens that are read
        self._sequences: dict[str, list[tuple[int, ...]]] = {}

    def add(self, sequences: Mapping[str, Sequence[str]]) -> None:
        """The sequences of the next image."""
        for name, texts in sequences.items():
            self._sequences.setdefault(name, []).append(self.places(texts))

    def places(self, texts: Sequence[str]) -> tuple[int, ...]:
        """The places of texts in `Subtexts.strings`; new ones are queued."""
        new = [text for text in dict.fromkeys(texts) if text not in self._place]
        tokens = self._model.read(new) if new else TokenizedParts([], [])
        for text, ids, cut in zip(new, tokens.ids, tokens.truncated, strict=True):
            read = tuple(map(tuple, ids))
            if read not in self._row_of:
                self._row_of[read] = self.rows.add(text)
            self._place[text] = len(self._place)
            self._row.append(self._row_of[read])
            self._cut.append(cut)
        return tuple(self._place[text] for text in texts)

    @property
    def number_cut(self) -> int:
        """How many of the texts were cut, encoded or not."""
        return sum(self._cut)

    def encoded(self) -> Subtexts:
        """All of them."""
        sequences = {name: tuple(places) for name, places in self._sequences.items()}
        row, texts = torch.tensor(self._row), self.rows.stacked()
        return Subtexts(tuple(self._place), tuple(self._cut), row, texts, sequences)


class SubtextCollector(Collector):
    """Encodes the cumulative subtexts of the first text of each image, each distinct one once."""

    def __init__(self, model: Model, batch: int) -> None:
        self._queue = SubtextQueue(model, text_rows(model, batch))

    def add(self, sample: Sample) -> None:
        self._queue.add(sequences(sample.texts[0], sample.record.subtexts))

    def result(self, data: Encodings) -> Any:
        self.truncated = self._queue.number_cut
        return self._queue.encoded()


class MonotonicitySuite(OneTextSuite):
    """Whether scores rise with the sentences of a caption: HiMo@2, HiMo@3 and HiMo@K."""

    name = "monotonicity"
    reads_tokens = False
    collector_class = SubtextCollector
    headline = (HALVES, THIRDS, EACH)
    texts_label = "Subtexts"

    def outcomes(self, scorer: Scorer, data: Encodings, settings: Settings) -> Outcomes:
        """Raises UserError where no caption has two sentences, and for NaN scores."""
        subtexts: Subtexts = self.collected(data)
        if not any(len(places) > 1 for one in subtexts.sequences.values() for places in one):
            raise UserError(f"no caption of {data.path} has two sentences; the {self.name} suite needs some")
        scores = sequence_scores(scorer, data.images, subtexts)
        notes = [note for name, note in MEANS.items() if getattr(scorer, name, False)]  # of a method alone
        return Outcomes(
            {"sequences": scores}, (*notes, *_notes(scores)), data={"texts": len(subtexts.strings)}
        )

    def metrics(self, runs: Sequence[dict[str, Any]], settings: Settings) -> dict[str, MetricSamples]:
        """Means over the runs of each image, over all captions with enough sentences."""
        out = {}
        for name, minimum in MIN_SUBTEXTS.items():
            sequences = [run["sequences"][EACH if name == LONG else name] for run in runs]
            images = [i for i, number in enumerate(sequences[0]["subtexts"]) if number >= minimum]
            if not images:
                continue
            scores = [[one["scores"][i] for i in images] for one in sequences]  # [run][Q]
            tied = sum(ties(one) for run in scores for one in run)
            if name in PARTS:
                rising = [[rises(one) for one in run] for run in scores]
                out[name] = accuracy(rising, None, {HALVES: 1 / 2, THIRDS: 1 / 6}[name], tied, settings)
                continue
            value = np.mean([[correlation(one) for one in run] for run in scores], axis=0)  # [Q]
            number = len(images) * len(runs)
            out[name] = mean_metric(value, None, number, 0.0, tied, "correlation", settings)
        return out

    def cases(self, evaluation: Evaluation, number: int = EXAMPLES) -> list[CaseList]:
        """Captions of four subtexts at least, evenly from the worst correlation to the best."""
        subtexts, queries = self.collected(evaluation.data), evaluation.result.queries["sequences"][EACH]
        scores = queries["scores"]
        minimum = next(n for n in (MIN_SUBTEXTS[LONG], 2, 1) if any(len(one) >= n for one in scores))
        long = [i for i, one in enumerate(scores) if len(one) >= minimum]
        rho = [correlation(scores[i]) for i in long]
        cases = []
        for k in spread(np.array(rho), number):
            i = long[k]
            texts = [subtexts.strings[t] for t in subtexts.sequences[EACH][i]]
            image, key = evaluation.image(i), evaluation.data.keys[i]
            cases.append(subtext_case(image, key, texts, scores[i], queries["cut"][i], rho[k]))
        hint = f"Evenly spaced from the worst {EACH} to the best. {SUBTEXT_RULES}"
        return [CaseList("Score by subtexts", f"{hint} {evaluation.crop_sentence()}", cases)]


def sequence_scores(method: Scorer, images: Encoded, subtexts: Subtexts) -> dict[str, dict[str, list[Any]]]:
    """Every sequence of each image: the number of its subtexts, their scores, and which were cut.

    Scores are the shortest decimals that are these float32 numbers: equal stays equal, and files are half as
    long. Raises UserError for NaN scores.
    """
    row = subtexts.row.tolist()
    score: dict[tuple[int, int], float] = {}  # image and row
    for start in range(0, len(images.vector), IMAGES):
        block = range(start, min(start + IMAGES, len(images.vector)))
        sequences = subtexts.sequences.values()
        pairs = list(dict.fromkeys((i, row[t]) for places in sequences for i in block for t in places[i]))
        if pairs:
            image, text = torch.tensor(pairs).T
            some = rows(images, slice(start, start + IMAGES))
            scores = pair_scores(method, some, rows(subtexts.texts, text), image - start)
            refuse_nan(int(scores.isnan().sum()), len(scores))
            score |= zip(pairs, (float(str(one)) for one in scores.cpu().numpy()), strict=True)
    return {
        name: {
            "subtexts": [len(one) for one in places],
            "scores": [[score[i, row[t]] for t in one] for i, one in enumerate(places)],
            "cut": [[int(subtexts.cut[t]) for t in one] for one in places],
        }
        for name, places in subtexts.sequences.items()
    }
