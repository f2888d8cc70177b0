"""Phrases: are the groups that a model makes of the tokens of a caption its annotated phrases?

tIoU, precision, recall and F1 (tiou.py) of the Text Group Transformer, in percent, means over captions that
have a phrase. No token of a begin or an end counts. The same is measured, always, of rules that read no word:
  - uniform chunks: runs of equally many tokens, as many as the method has groups, and four of them; where it
    uses fewer groups for some captions, also as many as those
  - one group of all tokens; every token alone; every token in any group by lot
  - a position oracle: all captions are cut at the same relative positions, the best that were found on these
    phrases themselves
and of clusters of token states (clusters.py), where the method keeps a state of every token. A method whose
groups only say where a token stands does not beat uniform chunks by much. So captions are grouped a second
time with their words in another order: phrases at the places of their words, and phrases that go with them.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from grainline.data.sources.common import digest
from grainline.errors import UserError
from grainline.evaluate.anchors import SEED, Labelled, at_random, best_cuts, chunks, one_group, singletons
from grainline.evaluate.clusters import LACKING, MEAN_SHIFT, can_cluster
from grainline.evaluate.encode import Encodings
from grainline.evaluate.grouped import Grouped, hard
from grainline.evaluate.intervals import replicates
from grainline.evaluate.outcome import Cell, Options, only_plain, result_of
from grainline.evaluate.result import Result
from grainline.evaluate.score import Scorer
from grainline.evaluate.tiou import Overlap, overlap

PHRASES = "phrases"
MEASURES = ("tIoU", "precision", "recall", "F1")
GROUPS = "groups"
FOUR = 4  # uniform chunks that are always measured
STAYING, GOING = "groups, shuffled words, phrases in place", "groups, shuffled words, phrases with them"
ONE, ALONE = "one group", "singletons"
AS_MANY = "uniform chunks, as many as groups"

Scores = dict[str, list[Overlap]]


def uniform(groups: int) -> str:
    """What the chunks of a number of groups are called.

    >>> uniform(4)
    'uniform chunks, K = 4'
    """
    return f"uniform chunks, K = {groups}"


def phrases_suite(method: Scorer, data: Encodings, options: Options = Options()) -> Result:  # noqa: ARG001, B008
    """tIoU, precision, recall and F1 of groups, rules and clusters.

    Raises UserError if the data were encoded without phrases, and for a protocol of retrieval.
    """
    found = data.grouped
    if found is None:
        raise UserError(
            f"{data.path} was encoded without phrases; the {PHRASES} suite needs captions with them"
        )
    only_plain(options, PHRASES)
    number = found.groups or FOUR
    cuts = best_cuts(found.gold, number)
    scores = _scores(found, cuts.labels, number)
    queries = {
        "keys": list(data.keys),
        "texts": digest(found.texts),
        "picture": list(found.picture),
        "scores": {name: _columns(one) for name, one in scores.items()},
    }
    cells = phrases_cells([queries], options)
    at = [cut / cuts.of for cut in cuts.at]
    result = result_of(PHRASES, data, options, cells, queries, _notes(found, at))
    settings = {"groups": found.groups, "anchor_seed": SEED, "fixed_cuts": at}
    told = {"phrases": sum(map(len, found.gold))}
    return result._replace(settings=result.settings | settings, data=result.data | told)


def phrases_cells(runs: list[dict[str, Any]], options: Options) -> dict[str, Cell]:
    """Metrics from the values of single captions: means over the runs; the bootstrap draws pictures.

    Only what all runs have: clusters need a state of every token, and groups a method that makes them.
    """
    picture = np.array(runs[0]["picture"])
    names = [name for name in runs[0]["scores"] if all(name in run["scores"] for run in runs)]
    drawn, value = {}, {}
    for name in names:
        told = [[run["scores"][name][measure] for measure in MEASURES] for run in runs]
        value[name] = np.mean(told, axis=0).T  # [Q, 4]
        drawn[name] = replicates(value[name], picture, resamples=options.resamples, seed=options.seed)
    return {
        f"{measure}, {name}": Cell(
            float(value[name][:, i].mean()), drawn[name][:, i], len(picture) * len(runs), None, 0, "share"
        )
        for i, measure in enumerate(MEASURES)
        for name in names
    }


def headlines(result: Result) -> list[str]:
    """The metrics that stand on top of a page: tIoU of the groups, and of uniform chunks beside it."""
    number = result.settings["groups"]
    chunks = AS_MANY if AS_MANY in result.queries["scores"] else uniform(FOUR if number is None else number)
    names = [chunks] if number is None else [GROUPS, chunks]
    return [f"{MEASURES[0]}, {name}" for name in names]


def _scores(found: Grouped, fixed: Callable[[int], Labelled], number: int) -> Scores:
    """Everything that groups tokens, with its values for every caption."""
    gold = found.gold
    out: Scores = {}
    if found.soft is not None:
        own = [hard(one) for one in found.soft]
        out[GROUPS] = _all(own, gold)
        if len({one.groups for one in own}) > 1:
            out[AS_MANY] = _all(
                [chunks(one.shape[1], mine.groups) for one, mine in zip(gold, own, strict=True)], gold
            )
    for groups in dict.fromkeys((number, FOUR)):
        out[uniform(groups)] = _ruled(partial(chunks, groups=groups), gold)
    out[f"position oracle, K = {number}"] = _ruled(fixed, gold)
    out[f"random, K = {number}"] = _all(
        [at_random(one.shape[1], number, i) for i, one in enumerate(gold)], gold
    )
    out[ONE], out[ALONE] = _ruled(one_group, gold), _ruled(singletons, gold)
    if found.shuffled is not None:
        labels = [one.found for one in found.shuffled]
        out[STAYING] = _all(labels, [one.staying for one in found.shuffled])
        going = [one.going for one in found.shuffled]
        out[GOING] = _all(labels, going)
        out[f"{uniform(number)}, shuffled words, phrases with them"] = _ruled(
            lambda n: chunks(n, number), going
        )
    return out | {name: _all(one, gold) for name, one in found.clusters.items()}


def _ruled(rule: Callable[[int], Labelled], gold: Sequence[np.ndarray]) -> list[Overlap]:
    """The values of a rule that knows nothing but the number of tokens."""
    return _all([rule(one.shape[1]) for one in gold], gold)


def _all(labelled: Sequence[Labelled], gold: Sequence[np.ndarray]) -> list[Overlap]:
    return [overlap(one.labels, mine, one.groups) for one, mine in zip(labelled, gold, strict=True)]


def _columns(scores: Sequence[Overlap]) -> dict[str, list[float]]:
    """Values of single captions by what they measure."""
    return {name: list(column) for name, column in zip(MEASURES, zip(*scores, strict=True), strict=True)}


def _notes(found: Grouped, at: Sequence[float]) -> tuple[str, ...]:
    """What a reader of the metrics has to know."""
    counted = {
        "texts have no marked phrase and are left out": found.bare,
        "texts are left out, because their tokens cannot be told apart": found.unmapped,
        "phrases lie beyond what the model reads and are left out": found.lost,
    }
    notes = [f"{number} {what}" for what, number in counted.items() if number]
    phrases = sum(map(len, found.gold)) / len(found.gold)
    notes.append(f"{len(found.texts)} captions with {phrases:.2f} phrases each")
    if at:
        places = ", ".join(f"{cut:.2f}" for cut in at)
        notes.append(
            f"the position oracle cuts at {places} of a caption, looked for on these phrases themselves"
        )
    return (*notes, *_of_groups(found), *_of_clusters(found))


def _of_groups(found: Grouped) -> list[str]:
    if found.soft is None:
        return ["this method makes no groups of tokens: rules and clusterings alone are measured"]
    spread = np.mean([_entropy(one) for one in found.soft])
    own = [hard(one) for one in found.soft]
    used = np.mean([one.groups for one in own])
    empty = np.mean([1 - len(np.unique(one.labels)) / one.groups for one in own])
    return [
        f"{100 * empty:.1f} % of the groups of a caption have no token, of {used:.2f} that it uses out of"
        f" {found.groups}; the entropy of a token over the groups is {spread:.3f} of the largest possible"
    ]


def _of_clusters(found: Grouped) -> list[str]:
    if not can_cluster():
        return [LACKING]
    if not found.words:
        return ["no clusterings of token states: this method does not keep a state of every token"]
    mean = np.mean([one.groups for one in found.clusters[MEAN_SHIFT]])
    return [f"{MEAN_SHIFT} finds {mean:.2f} clusters in a caption"]


def _entropy(soft: np.ndarray) -> float:
    """Of a column, mean over the columns, as a share of that of equal parts. soft: [K, L]"""
    if len(soft) == 1:
        return 0.0
    part = soft.astype(np.float64)
    inside = np.where(part > 0, part * np.log(np.where(part > 0, part, 1.0)), 0.0)
    return float(-inside.sum(0).mean() / np.log(len(soft)))
