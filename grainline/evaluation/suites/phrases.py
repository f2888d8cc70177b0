"""Phrases: are the groups that a model makes of the tokens of a caption its annotated phrases?

tIoU, precision, recall and F1 (evaluation/collectors/baselines.py) of the Text Group Transformer, in percent,
  means over captions that
have a phrase. No token of a begin or an end counts. The same is measured, always, of rules that read no word:
  - uniform chunks: runs of equally many tokens, as many as the method has groups, and four of them; where it
    uses fewer groups for some captions, also as many as those
  - one group of all tokens; every token alone; every token in any group by lot
  - a position oracle: all captions are cut at the same relative positions, the best that were found on these
    phrases themselves
and of clusters of token states (evaluation/collectors/baselines.py), where the method keeps a state of every
  token. A method whose
groups only say where a token stands does not beat uniform chunks by much. So captions are grouped a second
time with their words in another order: phrases at the places of their words, and phrases that go with them.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol, runtime_checkable

import numpy as np

from grainline.data.formats.common import digest
from grainline.data.formats.joined import HeldBack, Joined
from grainline.data.open_source import remarks
from grainline.data.record import Damaged, Source
from grainline.errors import UserError
from grainline.evaluation.collectors.annotations import captions_of
from grainline.evaluation.collectors.baselines import (
    LACKING,
    MEAN_SHIFT,
    SEED,
    Labelled,
    Overlap,
    at_random,
    best_cuts,
    can_cluster,
    chunks,
    one_group,
    overlap,
    singletons,
)
from grainline.evaluation.collectors.collecting import Skipped
from grainline.evaluation.collectors.grouped import Grouped, Groups, hard
from grainline.evaluation.encode import Encodings, Progress
from grainline.evaluation.intervals import replicates
from grainline.evaluation.outcome import Cell, Options, only_plain, result_of
from grainline.evaluation.result import Result
from grainline.evaluation.score import Scorer
from grainline.model import Model
from grainline.types import rows, vectors_only

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


# A walk over a source that reads its captions with their phrases, and looks at no picture.


@runtime_checkable
class Worded(Protocol):
    """A source that can leave its pictures out."""

    def texts_only(self) -> Source:
        """The same records with all marked phrases, and with pictures of no bytes."""


def without_pictures(source: Source) -> Source:
    """The source with phrases and without pictures, where it can be had so."""
    if isinstance(source, Worded):
        return source.texts_only()
    if isinstance(source, Joined):
        return Joined([without_pictures(one) for one in source.sources])
    if isinstance(source, HeldBack):
        return HeldBack(without_pictures(source.source), source.skip)
    return source


def encode_phrases(
    model: Model, source: Source, batch: int = 64, max_damaged: float = 0.1, progress: Progress | None = None
) -> Encodings:
    """The captions of a source with what the model makes of their tokens, in `Encodings.grouped`.

    batch        texts that the model sees at once
    max_damaged  share of samples that may be skipped

    Raises UserError for an empty source, too much damage, no marked phrase at all, and for a method that
    composes texts of chunks, which are no run of words.
    """
    if model.method.chunking is not None:
        raise UserError(
            f"{model.description.method} reads a text as chunks that it composes; --suite phrases is for"
            " methods that read its words one after the other"
        )
    if len(source) == 0:
        raise UserError(f"no samples in {source.path}; evaluation needs at least one")
    fingerprint, told = source.fingerprint(), remarks(source)
    bare = without_pictures(source)
    failed = Skipped(len(source), max_damaged, source.path)
    groups = Groups(model, batch)
    keys: list[str] = []
    positions: list[int] = []
    for index in range(len(bare)):
        try:
            record = bare[index]
            groups.add(captions_of(record), len(keys))
            keys.append(record.key)
            positions.append(index)
        except Damaged as error:
            failed.add(error)
        if progress is not None:
            progress(index + 1, len(bare))
    failed.refuse_all()
    found = groups.found()
    if not found.texts:
        why = f"; of {found.unmapped} the tokens cannot be told apart" if found.unmapped else ""
        raise UserError(
            f"no phrase in {source.path} that the model reads is marked in its caption{why}; the phrases"
            " suite needs regions with a span, as flickr30k-entities and scenes have"
        )
    nothing = rows(vectors_only(model.encode(texts=["a"])), slice(0, 0))  # no vector is needed
    return Encodings(
        images=nothing,
        texts=nothing,
        keys=tuple(keys),
        strings=found.texts,
        probes=None,
        path=source.path,
        fingerprint=fingerprint,
        captions="whole",
        samples=len(source),
        damaged=failed.causes(),
        damaged_first=failed.first(),
        blank=0,
        cut=found.cut,
        positions=tuple(positions),
        remarks=told,
        grouped=found,
    )
