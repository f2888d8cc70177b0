"""Phrases: are the groups that a model makes of the tokens of a caption its annotated phrases?

tIoU of the Text Group Transformer, means over captions that have a phrase, without begin and end tokens:
  1. leave tokens outside all phrases (verbs, prepositions, punctuation) out of the groups;
  2. IoU of every group with every phrase, in tokens;
  3. pair groups with phrases by the largest sum of IoU (Kuhn-Munkres): as many pairs as there are groups or
     phrases, whichever are fewer, groups without a token included;
  4. precision, recall and F1 of each pair, F1 their harmonic mean; then the mean of each over the pairs.
Where several pairings have the largest sum, precision and recall may differ: groups are then put in the order
of their first tokens, so that their names decide nothing.

Rules that ignore the words and clusters of token states are measured as well. A method whose groups depend on
positions alone does not beat uniform chunks by much. So captions are grouped a second time with their words
in another order: phrases at the places of their words, and moved with them.
"""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import linear_sum_assignment
from scipy.special import entr

from grainline.data.formats.common import digest
from grainline.evaluation.encode import Encodings
from grainline.evaluation.examples import EXAMPLES, Evaluation, spread
from grainline.evaluation.result import Result
from grainline.evaluation.score import Scorer
from grainline.evaluation.suite import MetricSamples, Outcomes, Settings, Suite, count_notes, mean_metric
from grainline.evaluation.suites.grouped import (
    LACKING,
    MEAN_SHIFT,
    SEED,
    GroupCollector,
    Grouped,
    Labelled,
    can_cluster,
    hard,
)
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


class Overlap(NamedTuple):
    """Means over the pairs of one caption."""

    tiou: float
    precision: float
    recall: float
    f1: float


def overlap(labels: np.ndarray, gold: np.ndarray, groups: int) -> Overlap:
    """How well groups are phrases.

    labels  [L] the group of each token, 0 .. groups - 1
    gold    [P, L] bool, the tokens of each phrase; every phrase has one at least
    groups  how many there are; those that no token is in count too
    """
    phrases, tokens = gold.shape
    assert labels.shape == (tokens,), (labels.shape, gold.shape)
    assert phrases > 0, "no phrase"
    assert gold.any(1).all(), "a phrase without a token"
    assert 0 <= labels.min() <= labels.max() < groups, (labels, groups)
    annotated = gold.any(0)
    _, first, code = np.unique(labels[annotated], return_index=True, return_inverse=True)
    group, phrase = first.argsort().argsort()[code], gold[:, annotated].astype(np.int64)
    shared = np.zeros((groups, phrases), np.int64)  # tokens that a group and a phrase have in common
    np.add.at(shared, group, phrase.T)
    size, length = np.bincount(group, minlength=groups), phrase.sum(1)
    iou = shared / np.maximum(size[:, None] + length - shared, 1)  # [K, P], 0 for groups without a token
    row, column = linear_sum_assignment(iou, maximize=True)
    inter = shared[row, column]
    precision, recall = inter / np.maximum(size[row], 1), inter / length[column]
    both = precision + recall
    f1 = 2 * precision * recall / np.where(both > 0, both, 1.0)
    return Overlap(*(float(x.mean()) for x in (iou[row, column], precision, recall, f1)))


def chunks(tokens: int, groups: int) -> Labelled:
    """Runs of tokens that are as equally long as can be."""
    return Labelled(np.arange(tokens) * groups // tokens, groups)


def at_random(tokens: int, groups: int, number: int) -> Labelled:
    """Every token in any group, with the same chance. number: of the caption, for the seed"""
    return Labelled(np.random.default_rng((SEED, number)).integers(0, groups, tokens), groups)


def uniform(groups: int) -> str:
    """The name of a number of uniform chunks."""
    return f"uniform chunks, K = {groups}"


class PhrasesSuite(Suite):
    """tIoU, precision, recall and F1 of groups, rules and clusters."""

    name = "phrases"
    collector_class = GroupCollector
    captions = ("whole",)
    reads = "all texts in which phrases are marked"
    source_variant = "texts_only"
    needs_text = encodes_images = encodes_captions = False
    replaces_scores = "reads groups of tokens"

    def outcomes(self, scorer: Scorer, data: Encodings, settings: Settings) -> Outcomes:
        grouped: Grouped = self.collected(data)
        scores = _scores(grouped, grouped.groups or FOUR)
        queries = {"texts": digest(grouped.texts), "image": list(grouped.image), "scores": scores}
        counts = {"texts": len(grouped.texts), "phrases": sum(map(len, grouped.gold))}
        about = {"groups": grouped.groups, "anchor_seed": SEED}
        return Outcomes(queries, _notes(grouped), about, counts)

    def metrics(self, runs: Sequence[dict[str, Any]], settings: Settings) -> dict[str, MetricSamples]:
        """Means over the runs, of what all runs have; the bootstrap draws images."""
        image, number = np.array(runs[0]["image"]), len(runs[0]["image"]) * len(runs)
        out = {}
        for measure in MEASURES:
            for name in runs[0]["scores"]:
                if all(name in run["scores"] for run in runs):
                    value = np.mean([run["scores"][name][measure] for run in runs], axis=0)
                    metric = mean_metric(value, image, number, None, 0, "share", settings)
                    out[f"{measure}, {name}"] = metric
        return out

    def headlines(self, result: Result) -> list[str]:
        """tIoU of the groups and of uniform chunks."""
        number = result.settings["groups"]
        chunks = AS_MANY if AS_MANY in result.queries["scores"] else uniform(number or FOUR)
        return [f"{MEASURES[0]}, {name}" for name in [GROUPS] * (number is not None) + [chunks]]

    def cases(self, evaluation: Evaluation, number: int = EXAMPLES) -> list[CaseList]:
        """Captions evenly spaced by their tIoU. None for a method without groups."""
        grouped: Grouped = self.collected(evaluation.data)
        scores = evaluation.result.queries["scores"]
        cases = []
        if grouped.soft:
            chunks = AS_MANY if AS_MANY in scores else uniform(len(grouped.soft[0]))
            tiou, uniform_tiou = (scores[name][MEASURES[0]] for name in (GROUPS, chunks))
            for i in spread(np.array(tiou), number):
                key, columns = evaluation.data.keys[grouped.image[i]], [x.column for x in grouped.tokens[i]]
                words = pieces(evaluation.model, grouped.texts[i], columns)
                gold = [tuple(np.flatnonzero(phrase).tolist()) for phrase in grouped.gold[i]]
                one = TokenGroups(key, words, grouped.soft[i], gold, tiou[i], uniform_tiou[i])
                cases.append(token_groups(one))
        order = f"Evenly spaced from the lowest tIoU to the highest. {TOKEN_RULES}"
        return [CaseList("Captions, lowest to highest tIoU", order, cases)]

    def sections(self, evaluation: Evaluation) -> list[Section]:
        soft = self.collected(evaluation.data).soft
        if not soft:
            return []  # rules and clusterings have no shares to show
        places = Section("Groups by position", hint(POSITION_RULES) + positions(by_position(soft)))
        return [places, *super().sections(evaluation)]


def _scores(grouped: Grouped, number: int) -> Scores:
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
    return {name: [one[i] for one in values] for i, name in enumerate(MEASURES)}


def _notes(grouped: Grouped) -> tuple[str, ...]:
    number = len(grouped.texts)
    phrases = sum(map(len, grouped.gold)) / number
    notes = [*count_notes(grouped.counts), f"{number} captions with {phrases:.2f} phrases each"]
    if not grouped.soft:
        notes.append("this method makes no groups of tokens: rules and clusterings alone are measured")
    else:
        entropy = np.mean([entr(one.astype(np.float64)).sum(0).mean() for one in grouped.soft])
        entropy /= np.log(max(2, len(grouped.soft[0])))
        groups = [hard(one) for one in grouped.soft]
        used = np.mean([one.groups for one in groups])
        empty = np.mean([1 - len(np.unique(one.labels)) / one.groups for one in groups])
        share = f"{100 * empty:.1f} % of the groups of a caption have no token, of {used:.2f} that it uses"
        spread_over = f"the entropy of a token over the groups is {entropy:.3f} of the largest possible"
        notes.append(f"{share} out of {grouped.groups}; {spread_over}")
    if not can_cluster():
        notes.append(LACKING)
    elif not grouped.has_states:
        notes.append("no clusterings of token states: this method does not keep a state of every token")
    else:
        mean = np.mean([one.groups for one in grouped.clusters[MEAN_SHIFT]])
        notes.append(f"{MEAN_SHIFT} finds {mean:.2f} clusters in a caption")
    return tuple(notes)


def by_position(soft: Sequence[np.ndarray]) -> np.ndarray:
    """The mean share of each group along captions of one length: [K, BINS]. soft: [K, L] of each"""
    middle = (np.arange(BINS) + 0.5) / BINS
    return np.asarray(np.mean([one[:, (middle * one.shape[1]).astype(int)] for one in soft], axis=0))


def pieces(model: Model, text: str, columns: Sequence[int]) -> list[str]:
    """Some of the tokens of a text, by their numbers, as they are written."""
    ids = [number for part in model.read([text]).ids[0] for number in part]
    return [piece.removesuffix(SUFFIX) for piece in model.tokenizer.pieces(ids[i] for i in columns)]
