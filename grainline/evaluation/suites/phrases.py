"""Phrases: are the groups that a model makes of the tokens of a caption its annotated phrases?

tIoU, precision, recall and F1 (baselines.py) of the Text Group Transformer, in percent, means over captions
that have a phrase. No token of a begin or an end counts. The same is always measured of rules that ignore the
words:
  - uniform chunks: runs of equally many tokens, as many as the method has groups, and four of them; where it
    uses fewer groups for some captions, also as many as those
  - one group of all tokens; every token alone; every token in any group by lot
  - a position oracle: all captions are cut at the same relative positions, the best that were found on these
    phrases themselves
and of clusters of token states (baselines.py), where the method keeps a state of every token. A method whose
groups only say where a token stands does not beat uniform chunks by much. So captions are grouped a second
time with their words in another order: phrases at the places of their words, and phrases that go with them.
"""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path, PurePath
from typing import Any, Protocol, runtime_checkable

import numpy as np

from grainline.data.descriptions import Descriptions
from grainline.data.formats.common import digest
from grainline.data.formats.joined import Joined, WithoutCaptions
from grainline.data.formats.joined import remarks as remarks_of
from grainline.data.record import CorruptSample, Source
from grainline.errors import UserError
from grainline.evaluation.encode import Encodings, Progress, Skipped
from grainline.evaluation.examples import EXAMPLES, Evaluation, spread
from grainline.evaluation.intervals import replicates
from grainline.evaluation.result import Result
from grainline.evaluation.score import Scorer
from grainline.evaluation.suite import MetricSamples, NoOptions, Outcomes, Settings, Suite
from grainline.evaluation.suites.annotations import captions_of
from grainline.evaluation.suites.baselines import (
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
from grainline.evaluation.suites.grouped import Grouped, Groups, hard, makes_groups
from grainline.model import Model
from grainline.report.case import CaseList
from grainline.report.page import Section, hint
from grainline.report.png import write_strips
from grainline.report.tokens import POSITIONS, RULES, TokenGroups, positions, token_groups
from grainline.types import rows, vectors_only

MEASURES = ("tIoU", "precision", "recall", "F1")
GROUPS = "groups"
FOUR = 4  # uniform chunks that are always measured
STAYING, GOING = "groups, shuffled words, phrases in place", "groups, shuffled words, phrases with them"
ONE, ALONE = "one group", "singletons"
AS_MANY = "uniform chunks, as many as groups"

BINS = 24  # places along a caption
SUFFIX = "</w>"  # of pieces of words in CLIP's vocabulary; no word holds it

Scores = dict[str, list[Overlap]]


def uniform(groups: int) -> str:
    """What the chunks of a number of groups are called.

    >>> uniform(4)
    'uniform chunks, K = 4'
    """
    return f"uniform chunks, K = {groups}"


class PhrasesSuite(Suite[NoOptions]):
    """tIoU, precision, recall and F1 of groups, rules and clusters."""

    name = "phrases"
    captions = ("whole",)
    reads = "all texts in which phrases are marked"
    needs_text = False
    replaces_scores = "reads groups of tokens"
    figure = "groups of tokens along captions"

    def encode(
        self,
        model: Model,
        source: Source,
        settings: Settings = Settings(),  # noqa: B008
        descriptions: Descriptions | None = None,
        progress: Progress | None = None,
    ) -> Encodings:
        """Walk over the captions with what the model makes of their tokens. No image is read.

        Raises UserError for an empty source, too many damaged samples, no marked phrase at all, and for a
        method that composes texts of chunks, which are no run of words.
        """
        if model.method.chunking is not None:
            raise UserError(
                f"{model.description.method} reads a text as chunks that it composes; --suite phrases is for"
                " methods that read its words one after the other"
            )
        if len(source) == 0:
            raise UserError(f"no samples in {source.path}; evaluation needs at least one")
        fingerprint, remarks = source.fingerprint(), remarks_of(source)
        bare = without_images(source)
        failed = Skipped(len(source), settings.max_corrupt, source.path)
        groups = Groups(model, settings.batch_size)
        keys: list[str] = []
        positions: list[int] = []
        for index in range(len(bare)):
            try:
                record = bare[index]
                groups.add(captions_of(record), len(keys))
                keys.append(record.key)
                positions.append(index)
            except CorruptSample as error:
                failed.add(error)
            if progress is not None:
                progress(index + 1, len(bare))
        failed.refuse_all()
        grouped = groups.found()
        if not grouped.texts:
            why = f"; of {grouped.unmapped} the tokens cannot be told apart" if grouped.unmapped else ""
            raise UserError(
                f"no phrase in {source.path} that the model reads is marked in its caption{why}; the phrases"
                " suite needs regions with a span, as flickr30k-entities and scenes have"
            )
        nothing = rows(vectors_only(model.encode(texts=["a"])), slice(0, 0))  # no vector is needed
        return Encodings(
            images=nothing,
            texts=nothing,
            keys=tuple(keys),
            strings=grouped.texts,
            path=source.path,
            fingerprint=fingerprint,
            captions="whole",
            samples=len(source),
            damaged=failed.causes(),
            damaged_first=failed.first(),
            blank=0,
            cut=grouped.cut,
            positions=tuple(positions),
            remarks=remarks,
            collected={self.name: grouped},
        )

    def outcomes(self, scorer: Scorer, data: Encodings, settings: Settings) -> Outcomes:
        grouped: Grouped = self.collected(data)
        number = grouped.groups or FOUR
        cuts = best_cuts(grouped.gold, number)
        scores = _scores(grouped, cuts.labels, number)
        queries = {
            "keys": list(data.keys),
            "texts": digest(grouped.texts),
            "image": list(grouped.image),
            "scores": {name: _columns(one) for name, one in scores.items()},
        }
        at = [cut / cuts.of for cut in cuts.at]
        about = {"groups": grouped.groups, "anchor_seed": SEED, "fixed_cuts": at}
        return Outcomes(queries, _notes(grouped, at), about, {"phrases": sum(map(len, grouped.gold))})

    def metrics(self, runs: Sequence[dict[str, Any]], settings: Settings) -> dict[str, MetricSamples]:
        """Means over the runs; the bootstrap draws images.

        Only what all runs have: clusters need a state of every token, and groups a method that makes them.
        """
        image = np.array(runs[0]["image"])
        names = [name for name in runs[0]["scores"] if all(name in run["scores"] for run in runs)]
        samples, value = {}, {}
        for name in names:
            scores = [[run["scores"][name][measure] for measure in MEASURES] for run in runs]
            value[name] = np.mean(scores, axis=0).T  # [Q, 4]
            samples[name] = replicates(value[name], image, **settings.bootstrap)
        number = len(image) * len(runs)
        return {
            f"{measure}, {name}": MetricSamples(
                float(value[name][:, i].mean()), samples[name][:, i], number, None, 0, "share"
            )
            for i, measure in enumerate(MEASURES)
            for name in names
        }

    def headlines(self, result: Result) -> list[str]:
        """tIoU of the groups, and of uniform chunks beside it."""
        number = result.settings["groups"]
        chunks = AS_MANY if AS_MANY in result.queries["scores"] else uniform(number or FOUR)
        names = [chunks] if number is None else [GROUPS, chunks]
        return [f"{MEASURES[0]}, {name}" for name in names]

    def cases(self, on: Evaluation, number: int = EXAMPLES) -> list[CaseList]:
        order = f"Evenly spaced from the lowest tIoU to the highest. {RULES}"
        cases = [token_groups(one) for one in self.examples(on, number)]
        return [CaseList("Captions, lowest to highest tIoU", order, cases)]

    def sections(self, on: Evaluation) -> list[Section]:
        soft = self.collected(on.data).soft
        if soft is None:
            return []  # rules and clusterings have no shares to show
        places = Section("Groups by position", hint(POSITIONS) + positions(by_position(soft)))
        return [places, *super().sections(on)]

    def draw(self, path: str | Path, on: Evaluation) -> None:
        name, number = PurePath(on.result.data["path"]).name, len(on.result.queries["image"])
        mean = by_position(self.collected(on.data).soft)
        write_strips(path, self.examples(on), mean, f"Groups of tokens, {number:,} captions of {name}")

    def check_figure(self, model: Model | None) -> None:
        super().check_figure(model)
        if model is not None and not makes_groups(model):
            raise UserError("--png draws the groups of tokens, and this method makes none; leave --png out")

    def examples(self, on: Evaluation, number: int = EXAMPLES) -> list[TokenGroups]:
        """Captions evenly spaced by their tIoU. [] for a method without groups."""
        grouped: Grouped = self.collected(on.data)
        scores = on.result.queries["scores"]
        if grouped.soft is None:
            return []
        tiou = scores[GROUPS][MEASURES[0]]
        chunks = AS_MANY if AS_MANY in scores else uniform(len(grouped.soft[0]))
        beside = scores[chunks][MEASURES[0]]
        return [
            TokenGroups(
                on.data.keys[grouped.image[i]],
                pieces(on.model, grouped.texts[i], [token.column for token in grouped.tokens[i]]),
                grouped.soft[i],
                [tuple(np.flatnonzero(phrase).tolist()) for phrase in grouped.gold[i]],
                tiou[i],
                beside[i],
            )
            for i in spread(np.array(tiou), number)
        ]


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


# A walk over a source that reads its captions with their phrases, and looks at no image.


@runtime_checkable
class Worded(Protocol):
    """A source that can leave its images out."""

    def texts_only(self) -> Source:
        """The same records with all marked phrases, and with images of no bytes."""


def without_images(source: Source) -> Source:
    """The source with phrases and without images, where it can be had so."""
    if isinstance(source, Worded):
        return source.texts_only()
    if isinstance(source, Joined):
        return Joined([without_images(one) for one in source.sources])
    if isinstance(source, WithoutCaptions):
        return WithoutCaptions(without_images(source.source), source.skip)
    return source


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
