"""Monotonicity: does an image score higher, the more of its caption is read?

HiMo-CLIP, arXiv 2511.06653, section 5.1. In three steps:
  1. take the subtexts of every caption, each the beginning of the next (subtexts.py);
  2. score each of them with its own image, and with no other;
  3. HiMo@2 and HiMo@3: the share of captions whose scores rise strictly, of two and of three subtexts;
     HiMo@K: the mean over the captions of Pearson's correlation of score and number, over all its subtexts.

The paper has HiMo@K for K > 3, its code for any K: both are given. A tie is no rise. A model that reads no
further than the shorter subtext must tie, so ties and cut subtexts are counted.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from grainline.data.record import Source
from grainline.errors import UserError
from grainline.evaluation.encode import Collector, Encodings
from grainline.evaluation.examples import Evaluation, spread
from grainline.evaluation.score import Scorer
from grainline.evaluation.suite import (
    MetricSamples,
    NoOptions,
    Outcomes,
    Settings,
    Suite,
    accuracy,
    mean_metric,
)
from grainline.evaluation.suites.subtexts import (
    EACH,
    HALVES,
    PARTS,
    THIRDS,
    SubtextCollector,
    Subtexts,
    sequence_scores,
)
from grainline.model import Model
from grainline.report.case import CaseList
from grainline.report.charts import SUBTEXT_RULES, subtext_case

LONG = f"{EACH}, K >= 4"
MIN_SUBTEXTS = {HALVES: 2, THIRDS: 3, EACH: 1, LONG: 4}
"""Subtexts that a sample must have to count for a metric."""

EXAMPLES = 4  # images of the page


class MonotonicitySuite(Suite[NoOptions]):
    """Whether scores rise with the sentences of a caption: HiMo@2, HiMo@3 and HiMo@K."""

    name = "monotonicity"
    captions = ("whole", "first")
    reads = "one text an image"
    encodes_captions = False
    headline = (HALVES, THIRDS, EACH)
    texts_label = "Subtexts"

    def collector(self, model: Model, source: Source, settings: Settings) -> Collector:
        return SubtextCollector(model, settings.batch_size)

    def outcomes(self, scorer: Scorer, data: Encodings, settings: Settings) -> Outcomes:
        """Raises UserError where no caption has two sentences, and for NaN scores."""
        subtexts: Subtexts = self.collected(data)
        if not any(len(places) > 1 for of in subtexts.of.values() for places in of):
            raise UserError(f"no caption of {data.path} has two sentences; the {self.name} suite needs some")
        scores = sequence_scores(scorer, data.images, subtexts)
        return Outcomes({"sequences": scores}, _notes(scores), data={"texts": len(subtexts.strings)})

    def metrics(self, runs: Sequence[dict[str, Any]], settings: Settings) -> dict[str, MetricSamples]:
        """Means over the runs of each image, over all captions with enough sentences."""
        out = {}
        for name, minimum in MIN_SUBTEXTS.items():
            of = [run["sequences"][EACH if name == LONG else name] for run in runs]
            images = [i for i, number in enumerate(of[0]["subtexts"]) if number >= minimum]
            if not images:
                continue
            tied = sum(ties(one["scores"][i]) for one in of for i in images)
            if name in PARTS:
                rising = [[rises(one["scores"][i]) for i in images] for one in of]
                out[name] = accuracy(rising, None, {HALVES: 1 / 2, THIRDS: 1 / 6}[name], tied, settings)
                continue
            value = np.mean([[correlation(one["scores"][i]) for i in images] for one in of], axis=0)  # [Q]
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
            texts = [subtexts.strings[t] for t in subtexts.of[EACH][i]]
            image, name = evaluation.image(i), evaluation.data.keys[i]
            cases.append(subtext_case(image, name, texts, scores[i], queries["cut"][i], rho[k]))
        hint = f"Evenly spaced from the worst {EACH} to the best. {SUBTEXT_RULES}"
        return [CaseList("Score by subtexts", f"{hint} {evaluation.crop_sentence()}", cases)]


def rises(scores: Sequence[float]) -> bool:
    """Whether every score is above the one before.

    >>> rises([0.1, 0.2, 0.3]), rises([0.1, 0.3, 0.3]), rises([0.2, 0.2])
    (True, False, False)
    """
    return all(a < b for a, b in pairwise(scores))


def ties(scores: Sequence[float]) -> bool:
    """Whether two neighbours are equal.

    >>> ties([0.1, 0.3, 0.3]), ties([0.3, 0.1, 0.3])
    (True, False)
    """
    return any(a == b for a, b in pairwise(scores))


def correlation(scores: Sequence[float]) -> float:
    """Pearson's correlation of some scores with 1, 2, ...; 0 for equal scores, and for a single one.

    >>> round(correlation([0.234, 0.243, 0.247, 0.275]), 6)
    0.926859
    >>> correlation([0.3, 0.3, 0.3])
    0.0
    """
    y = np.asarray(scores, np.float64)
    if y.min() == y.max():
        return 0.0
    x = np.arange(len(y)) - (len(y) - 1) / 2
    y = y - y.mean()
    return float(np.clip(x @ y / np.sqrt((x @ x) * (y @ y)), -1.0, 1.0))


def _notes(sequences: Mapping[str, Mapping[str, list[Any]]]) -> tuple[str, ...]:
    """Samples that are left out, ties and cut texts."""
    each = sequences[EACH]
    samples = len(each["subtexts"])
    notes = []
    for name, minimum in MIN_SUBTEXTS.items():
        number = sum(n < minimum for n in sequences[EACH if name == LONG else name]["subtexts"])
        if number:
            what = "subtexts" if name == LONG else "sentences"
            notes.append(f"{name} leaves out {number} of {samples} samples with fewer than {minimum} {what}")
    truncated = sum(sum(cut) > 1 for cut in each["cut"])
    if truncated:
        notes.append(
            f"{truncated} of {samples} samples have two or more subtexts that are longer than the model reads"
        )
    for name, of in sequences.items():
        if tied := sum(map(ties, of["scores"])):
            notes.append(f"{name}: {tied} samples have a tie")
    return tuple(notes)
