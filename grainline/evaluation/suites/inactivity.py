"""Inactivity: does a text that has nothing to do with a picture look at nothing?

For methods whose texts look at image tokens or at an empty slot beside them, as in FLAIR and CAFT (Woo et
al., arXiv 2602.02977, whose figures show it). In three steps:
  1. ask each picture for the parts of its own text, and for those of a text of another picture;
  2. take the weight of the empty slot of each part;
  3. AUROC: the share of pairs of a foreign and an own part in which the foreign one has the larger weight.

A pair that is equal counts one half. The other text is the next one in a fixed random order of all distinct
texts, so that texts are asked about as often as foreign ones as they are asked about as own ones. A part that
both texts have is true of the picture, and not asked as a foreign one.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from markupsafe import Markup

from grainline.data.formats.common import digest
from grainline.data.record import Damaged, Source
from grainline.errors import UserError
from grainline.evaluation.collectors.text_attention import SEED
from grainline.evaluation.encode import Captions, Encodings, texts_of
from grainline.evaluation.intervals import replicates
from grainline.evaluation.outcome import Cell, Options, only_plain, result_of
from grainline.evaluation.ranks import refuse_nan
from grainline.evaluation.result import Result
from grainline.evaluation.score import Scorer
from grainline.report.case import Look
from grainline.report.page import render

INACTIVITY = "inactivity"
AUROC, WITHIN = "AUROC of the empty slot", "AUROC within a picture"
OWN, OTHER = "empty slot, own texts", "empty slot, other texts"


def texts_in(source: Source, captions: Captions) -> list[str]:
    """The one text of every record, blank and damaged ones left out, without a look at any picture."""
    out = []
    for index in range(len(source)):
        try:
            found = texts_of(source[index], captions)
        except Damaged:
            continue  # met and counted again when the picture is encoded
        out += [text for text in found if text.strip()]
    return out


def inactivity_suite(method: Scorer, data: Encodings, options: Options = Options()) -> Result:  # noqa: ARG001, B008
    """AUROC of the empty slot over all pairs and within pictures, and its mean weights.

    Raises UserError if the data were encoded without it or have no two different texts, for a protocol of
    retrieval, and for weights that are not a number.
    """
    found = data.looked
    if found is None:
        raise UserError(f"{data.path} was encoded without empty slots; the {INACTIVITY} suite needs them")
    only_plain(options, INACTIVITY)
    mine = [i for i, one in enumerate(found) if one is not None]
    kept = [one for one in found if one is not None]
    if not kept:
        raise UserError(
            f"all texts of {data.path} say the same; the {INACTIVITY} suite asks pictures for others"
        )
    scores = {
        name: [[weight for _, weight in getattr(one, field)] for one in kept]
        for name, field in ((OWN, "own"), (OTHER, "other"))
    }
    every = np.concatenate([np.asarray(one) for of in scores.values() for one in of])
    refuse_nan(int(np.isnan(every).sum()), len(every))
    told = [text for i, one in zip(mine, kept, strict=True) for text in (data.strings[i], one.foreign)]
    queries = {"keys": list(data.keys), "picture": mine, "texts": digest(told), "scores": scores}
    left = len(found) - len(mine)
    notes: tuple[str, ...] = (
        (f"{left} pictures have no other text to be asked for, and are left out",) if left else ()
    )
    notes += ("in AUROC a tie counts one half",) if len(np.unique(every)) < len(every) else ()
    result = result_of(INACTIVITY, data, options, inactivity_cells([queries], options), queries, notes)
    return result._replace(
        settings=result.settings | {"order_seed": SEED}, data=result.data | {"parts": len(every)}
    )


def inactivity_cells(runs: list[dict[str, Any]], options: Options) -> dict[str, Cell]:
    """Metrics from weights: means over the runs; the bootstrap draws pictures, the same for every metric."""
    tables = [_table(run["scores"], options) for run in runs]
    return {
        name: cell._replace(
            value=float(np.mean([table[name].value for table in tables])),
            drawn=np.mean([table[name].drawn for table in tables], axis=0),
            queries=sum(table[name].queries for table in tables),
            ties=sum(table[name].ties for table in tables),
        )
        for name, cell in tables[0].items()
    }


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


def _table(scores: dict[str, list[list[float]]], options: Options) -> dict[str, Cell]:
    """The metrics of one run."""
    draws: dict[str, Any] = {"resamples": options.resamples, "seed": options.seed}
    sides = [scores[OWN], scores[OTHER]]
    weight = np.array([w for side in sides for one in side for w in one])
    picture = np.array([i for side in sides for i, one in enumerate(side) for _ in one])
    other = np.arange(len(weight)) >= sum(map(len, sides[0]))
    place = np.unique(weight, return_inverse=True)[1]
    both = np.stack([place, other], axis=1)
    drawn = replicates(both, picture, lambda x: auroc(x[:, 0].astype(np.int64), x[:, 1] > 0), **draws)
    tied = int(np.isin(place[other], place[~other]).sum())
    inside = np.array([within(*pair) for pair in zip(*sides, strict=True)])
    ties = sum(bool(set(own) & set(foreign)) for own, foreign in zip(*sides, strict=True))
    out = {
        AUROC: Cell(auroc(place, other), drawn, len(weight), 0.5, tied, "share"),
        WITHIN: Cell(float(inside.mean()), replicates(inside, **draws), len(inside), 0.5, ties, "share"),
    }
    for name, kind in ((OWN, ~other), (OTHER, other)):
        values = weight[kind]
        again = replicates(values, picture[kind], **draws)
        out[name] = Cell(float(values.mean()), again, len(values), None, 0, "share")
    return out


def within(own: list[float], foreign: list[float]) -> float:
    """AUROC of the weights of one picture.

    >>> within([0.25, 0.5], [0.5, 0.75])
    0.875
    """
    place = np.unique([*own, *foreign], return_inverse=True)[1]
    return auroc(place, np.arange(len(place)) >= len(own))


# What stands on a page about inactivity: a picture, its own text and another one, and where they look.


class Emptied(NamedTuple):
    """A picture that was asked for its own text and for another one."""

    look: Look  # the picture, and the parts of both texts, each with the weight of its empty slot
    name: str  # of the picture
    share: float  # of pairs of both in which the foreign part has the larger weight


def emptied(shown: Sequence[Emptied], name: str) -> Markup:
    """Pictures one below the other.

    name  letters and digits, another one for each list on a page
    """
    return render("empty.html", shown=shown, name=name)
