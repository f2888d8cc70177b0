"""Phrases: are the groups that a model makes of the tokens of a caption its annotated phrases?

tIoU, precision, recall and F1 (baselines.py) of the Text Group Transformer, means over captions that have a
phrase, begin and end tokens left out. The suite also measures rules that ignore the words: uniform chunks
(as many as the method has groups, as it uses in a caption, and four), one group, single tokens, random groups
and the cuts at relative positions that are best for these phrases. It measures clusters of
token states where the method has a state of every token.

A method whose groups depend on positions alone does not beat uniform chunks by much. So captions are grouped
a second time with their words in another order: phrases at the places of their words, and moved with them.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from scipy.special import entr

from grainline.data.formats.common import digest
from grainline.data.record import Source
from grainline.evaluation.encode import Encodings
from grainline.evaluation.examples import EXAMPLES, Evaluation, spread
from grainline.evaluation.result import Result
from grainline.evaluation.score import Scorer
from grainline.evaluation.suite import (
    MetricSamples,
    NoOptions,
    Outcomes,
    Settings,
    Suite,
    count_notes,
    mean_metric,
)
from grainline.evaluation.suites.baselines import (
    LACKING,
    MEAN_SHIFT,
    SEED,
    Labelled,
    at_random,
    best_cuts,
    can_cluster,
    chunks,
    overlap,
)
from grainline.evaluation.suites.grouped import GroupCollector, Grouped, hard
from grainline.model import Model
from grainline.report.case import CaseList
from grainline.report.charts import POSITION_RULES, TOKEN_RULES, TokenGroups, positions, token_groups
from grainline.report.page import Section, hint

MEASURES = ("tIoU", "precision", "recall", "F1")
GROUPS = "groups"
FOUR = 4  # uniform chunks that are always measured
IN_PLACE, MOVED = "groups, shuffled words, phrases in place", "groups, shuffled words, phrases with them"
AS_MANY = "uniform chunks, as many as groups"

BINS = 24  # places along a caption
SUFFIX = "</w>"  # of pieces of words in CLIP's vocabulary; no word holds it

Scores = dict[str, dict[str, list[float]]]  # name -> measure -> value of each caption


def uniform(groups: int) -> str:
    """The name of a number of uniform chunks.

    >>> uniform(4)
    'uniform chunks, K = 4'
    """
    return f"uniform chunks, K = {groups}"


class PhrasesSuite(Suite[NoOptions]):
    """tIoU, precision, recall and F1 of groups, rules and clusters."""

    name = "phrases"
    captions = ("whole",)
    reads = "all texts in which phrases are marked"
    source_variant = "texts_only"
    needs_text = encodes_images = encodes_captions = False
    replaces_scores = "reads groups of tokens"

    def collector(self, model: Model, source: Source, settings: Settings) -> GroupCollector:
        return GroupCollector(model, settings.batch_size)

    def outcomes(self, scorer: Scorer, data: Encodings, settings: Settings) -> Outcomes:
        grouped: Grouped = self.collected(data)
        number = grouped.groups or FOUR
        cuts = best_cuts(grouped.gold, number)
        queries = {
            "texts": digest(grouped.texts),
            "image": list(grouped.image),
            "scores": _scores(grouped, cuts.labels, number),
        }
        at = [cut / cuts.of for cut in cuts.at]
        about = {"groups": grouped.groups, "anchor_seed": SEED, "fixed_cuts": at}
        counts = {"texts": len(grouped.texts), "phrases": sum(map(len, grouped.gold))}
        return Outcomes(queries, _notes(grouped, at), about, counts)

    def metrics(self, runs: Sequence[dict[str, Any]], settings: Settings) -> dict[str, MetricSamples]:
        """Means over the runs; the bootstrap draws images.

        Only what all runs have: clusters need a state of every token, and groups a method that makes them.
        """
        image, number = np.array(runs[0]["image"]), len(runs[0]["image"]) * len(runs)
        by_measure: dict[str, dict[str, MetricSamples]] = {measure: {} for measure in MEASURES}
        for name in runs[0]["scores"]:
            if all(name in run["scores"] for run in runs):
                for measure, out in by_measure.items():
                    value = np.mean([run["scores"][name][measure] for run in runs], axis=0)
                    metric = mean_metric(value, image, number, None, 0, "share", settings)
                    out[f"{measure}, {name}"] = metric
        return {name: one for out in by_measure.values() for name, one in out.items()}

    def headlines(self, result: Result) -> list[str]:
        """tIoU of the groups and of uniform chunks."""
        number = result.settings["groups"]
        chunks = AS_MANY if AS_MANY in result.queries["scores"] else uniform(number or FOUR)
        names = [chunks] if number is None else [GROUPS, chunks]
        return [f"{MEASURES[0]}, {name}" for name in names]

    def cases(self, evaluation: Evaluation, number: int = EXAMPLES) -> list[CaseList]:
        order = f"Evenly spaced from the lowest tIoU to the highest. {TOKEN_RULES}"
        cases = [token_groups(one) for one in self.examples(evaluation, number)]
        return [CaseList("Captions, lowest to highest tIoU", order, cases)]

    def sections(self, evaluation: Evaluation) -> list[Section]:
        soft = self.collected(evaluation.data).soft
        if not soft:
            return []  # rules and clusterings have no shares to show
        places = Section("Groups by position", hint(POSITION_RULES) + positions(by_position(soft)))
        return [places, *super().sections(evaluation)]

    def examples(self, evaluation: Evaluation, number: int = EXAMPLES) -> list[TokenGroups]:
        """Captions evenly spaced by their tIoU. [] for a method without groups."""
        grouped: Grouped = self.collected(evaluation.data)
        scores = evaluation.result.queries["scores"]
        if not grouped.soft:
            return []
        tiou = scores[GROUPS][MEASURES[0]]
        chunks = AS_MANY if AS_MANY in scores else uniform(len(grouped.soft[0]))
        uniform_tiou = scores[chunks][MEASURES[0]]
        return [
            TokenGroups(
                evaluation.data.keys[grouped.image[i]],
                pieces(evaluation.model, grouped.texts[i], [token.column for token in grouped.tokens[i]]),
                grouped.soft[i],
                [tuple(np.flatnonzero(phrase).tolist()) for phrase in grouped.gold[i]],
                tiou[i],
                uniform_tiou[i],
            )
            for i in spread(np.array(tiou), number)
        ]


def _scores(grouped: Grouped, oracle: Callable[[int], Labelled], number: int) -> Scores:
    """The values of groups, rules and clusters for every caption."""
    gold = grouped.gold
    lengths = [one.shape[1] for one in gold]
    labelled: dict[str, list[Labelled]] = {}
    if grouped.soft:
        groups = labelled[GROUPS] = [hard(one) for one in grouped.soft]
        if len({one.groups for one in groups}) > 1:
            labelled[AS_MANY] = [chunks(n, one.groups) for n, one in zip(lengths, groups, strict=True)]
    labelled |= {uniform(k): [chunks(n, k) for n in lengths] for k in (number, FOUR)}
    labelled |= {
        f"position oracle, K = {number}": [oracle(n) for n in lengths],
        f"random, K = {number}": [at_random(n, number, i) for i, n in enumerate(lengths)],
        "one group": [chunks(n, 1) for n in lengths],
        "singletons": [chunks(n, n) for n in lengths],
    }
    out = {name: _overlaps(one, gold) for name, one in labelled.items()}
    if grouped.shuffled:
        groups, moved = [one.groups for one in grouped.shuffled], [one.moved for one in grouped.shuffled]
        out[IN_PLACE] = _overlaps(groups, [one.in_place for one in grouped.shuffled])
        out[MOVED] = _overlaps(groups, moved)
        uniform_moved = [chunks(one.shape[1], number) for one in moved]
        out[f"{uniform(number)}, shuffled words, phrases with them"] = _overlaps(uniform_moved, moved)
    return out | {name: _overlaps(one, gold) for name, one in grouped.clusters.items()}


def _overlaps(labelled: Iterable[Labelled], gold: Sequence[np.ndarray]) -> dict[str, list[float]]:
    values = [overlap(one.labels, phrases, one.groups) for one, phrases in zip(labelled, gold, strict=True)]
    return {name: list(column) for name, column in zip(MEASURES, zip(*values, strict=True), strict=True)}


def _notes(grouped: Grouped, cuts: Sequence[float]) -> tuple[str, ...]:
    number = len(grouped.texts)
    phrases = sum(map(len, grouped.gold)) / number
    notes = [*count_notes(grouped.counts), f"{number} captions with {phrases:.2f} phrases each"]
    if cuts:
        places = ", ".join(f"{cut:.2f}" for cut in cuts)
        notes.append(
            f"the position oracle cuts at {places} of a caption, looked for on these phrases themselves"
        )
    if not grouped.soft:
        notes.append("this method makes no groups of tokens: rules and clusterings alone are measured")
    else:
        entropy = np.mean([entr(one.astype(np.float64)).sum(0).mean() for one in grouped.soft])
        entropy /= np.log(max(2, len(grouped.soft[0])))
        groups = [hard(one) for one in grouped.soft]
        used = np.mean([one.groups for one in groups])
        empty = np.mean([1 - len(np.unique(one.labels)) / one.groups for one in groups])
        notes.append(
            f"{100 * empty:.1f} % of the groups of a caption have no token, of {used:.2f} that it uses out of"
            f" {grouped.groups}; the entropy of a token over the groups is {entropy:.3f} of the largest"
            " possible"
        )
    if not can_cluster():
        notes.append(LACKING)
    elif not grouped.has_states:
        notes.append("no clusterings of token states: this method does not keep a state of every token")
    else:
        mean = np.mean([one.groups for one in grouped.clusters[MEAN_SHIFT]])
        notes.append(f"{MEAN_SHIFT} finds {mean:.2f} clusters in a caption")
    return tuple(notes)


def by_position(soft: Sequence[np.ndarray]) -> np.ndarray:
    """The mean share of each group along captions, each stretched to the same length: [K, BINS]

    soft  [K, L] of each caption

    >>> by_position([np.eye(2), np.eye(2)])[0].tolist() == [1.0] * (BINS // 2) + [0.0] * (BINS // 2)
    True
    """
    middle = (np.arange(BINS) + 0.5) / BINS
    return np.asarray(np.mean([one[:, (middle * one.shape[1]).astype(int)] for one in soft], axis=0))


def pieces(model: Model, text: str, columns: Sequence[int]) -> list[str]:
    """Some of the tokens of a text, by their numbers, as they are written."""
    ids = [number for part in model.read([text]).ids[0] for number in part]
    return [piece.removesuffix(SUFFIX) for piece in model.tokenizer.pieces(ids[i] for i in columns)]
