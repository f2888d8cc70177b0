"""Fine-grained descriptions of regions: does the right one score higher than all that are almost right?

Bianchi et al., arXiv 2311.17518, judge open-vocabulary detectors so; Xie et al., arXiv 2505.05071 (FG-CLIP),
take the boxes as given and ask the image tokens inside, of images that are pressed into the square, as here.
A question is a region with one right text and its foils of one difficulty, or of one kind. Differs from
theirs: a tie is wrong.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from markupsafe import Markup

from grainline.data.benchmarks.fgovd import DIFFICULTY
from grainline.data.formats.common import digest
from grainline.data.formats.joined import Joined
from grainline.data.record import Source
from grainline.data.scenes.source import Scenes
from grainline.errors import UserError
from grainline.evaluation.collectors.regions import Counts, outcomes, question_scores
from grainline.evaluation.encode import Encodings
from grainline.evaluation.intervals import replicates, wilson
from grainline.evaluation.outcome import Cell, Options, only_plain, result_of
from grainline.evaluation.result import Result
from grainline.evaluation.score import Scorer
from grainline.report.case import Look
from grainline.report.page import render

FG_OVD = "fg-ovd"
ACCURACY, RANK = "accuracy", "mean rank"
_ORDER = tuple(DIFFICULTY.values())  # kinds that are not named here follow, in the order of the alphabet


def with_foils(source: Source) -> Source:
    """The source with foils for its regions, where it draws them only if it is asked to."""
    if isinstance(source, Scenes):
        return source.with_foils()
    if isinstance(source, Joined):
        return Joined([with_foils(one) for one in source.sources])
    return source


def fgovd_suite(method: Scorer, data: Encodings, options: Options = Options()) -> Result:  # noqa: ARG001, B008
    """The share of regions whose right text scores higher than all foils, and its mean rank, by kind.

    Raises UserError if the data were encoded without regions, for a protocol of retrieval, and for NaN
    scores.
    """
    regions = data.regions
    if regions is None:
        raise UserError(f"{data.path} was encoded without regions; the fg-ovd suite needs them")
    only_plain(options, FG_OVD)
    found = outcomes(question_scores(regions))
    picture = regions.picture.tolist()
    queries = {
        "keys": list(data.keys),
        "texts": digest(
            text for q in regions.questions for text in (regions.told.strings[i] for i in q.texts)
        ),
        "region": [question.region for question in regions.questions],
        "picture": [regions.same[picture[question.region]] for question in regions.questions],
        "kind": [question.kind for question in regions.questions],
        "foils": [len(question.texts) - 1 for question in regions.questions],
        "rank": found.rank.tolist(),
        "tied": found.tied.int().tolist(),
    }
    notes = _notes(regions.counts)
    result = result_of(FG_OVD, data, options, fgovd_cells([queries], options), queries, notes)
    told = {"texts": len(regions.told.strings), "regions": len(picture), **regions.counts._asdict()}
    resize = "squash" if regions.squash else "crop"
    return result._replace(data=result.data | told, settings=result.settings | {"resize": resize})


def fgovd_cells(runs: list[dict[str, Any]], options: Options) -> dict[str, Cell]:
    """Accuracy and mean rank from outcomes, over all questions and for each kind."""
    first = runs[0]
    kind, picture, foils = np.array(first["kind"]), np.array(first["picture"]), np.array(first["foils"])
    rank = np.array([run["rank"] for run in runs], np.float64)  # [run, Q]
    tied = np.sum([run["tied"] for run in runs], axis=0)
    values = np.stack([(rank == 1).mean(0), rank.mean(0)], axis=1)  # [Q, 2]
    out = {}
    for name in ["", *sorted(set(first["kind"]), key=_place)]:
        mine = kind == name if name else np.ones(len(kind), bool)
        drawn = replicates(values[mine], picture[mine], resamples=options.resamples, seed=options.seed)
        number, ties = int(mine.sum()), int(tied[mine].sum())
        right, mean = values[mine].mean(0)
        alone = wilson(int(values[mine, 0].sum()), number, options.level) if len(runs) == 1 else None
        ends = None if alone is None else (alone.low, alone.high)
        chance = float((1 / (1 + foils[mine])).mean()), float((1 + foils[mine] / 2).mean())
        of, queries = f", {name}" if name else "", number * len(runs)
        out[ACCURACY + of] = Cell(float(right), drawn[:, 0], queries, chance[0], ties, "share", ends)
        out[RANK + of] = Cell(float(mean), drawn[:, 1], queries, chance[1], ties, "rank")
    return out


def _place(kind: str) -> tuple[int, str]:
    return _ORDER.index(kind) if kind in _ORDER else len(_ORDER), kind


def _notes(counts: Counts) -> tuple[str, ...]:
    """What a reader of the accuracy has to know."""
    told = {
        "lie outside the square that the model sees and were skipped": counts.outside,
        "reach over the rim of the square that the model sees and were cut to it": counts.rim,
        "have no box and were skipped": counts.boxless,
    }
    return tuple(f"{number} regions {what}" for what, number in told.items() if number)


# What stands on a page about regions: a picture with a box, and the texts that were to choose from.


class Judged(NamedTuple):
    """A region with its right text and the foils that score highest."""

    look: Look  # the picture with the box, and the texts from the highest score to the lowest
    name: str  # of the picture
    kind: str  # of the foils
    lead: float  # of the right text over the best foil
    rank: int  # of the right text, 1 = best
    number: int  # of texts to choose from


def judged(shown: Sequence[Judged], name: str) -> Markup:
    """Regions one below the other.

    name  letters and digits, another one for each list on a page
    """
    return render("regions.html", shown=shown, name=name)
