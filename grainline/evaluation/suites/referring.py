"""Referring segmentation: does the heat of an expression cover the thing that it speaks of?

As CAFT (Woo et al., arXiv 2602.02977) measures it after SaG, without training for it. In five steps:
  1. press the whole picture into the square that the model reads: a crop would lose what is asked for;
  2. take the heat of the expression, spread over the pixels of the annotation;
  3. stretch it to 0 .. 1 and cut it at Otsu's threshold (evaluation/collectors/overlaps.py);
  4. IoU with the right mask, for each expression;
  5. mIoU is the mean over the expressions, cumulative IoU the sum of all intersections over that of all
     unions.

The whole picture and a box of half its sides in the middle are measured beside it: a number that they reach
too says nothing about the model.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from markupsafe import Markup

from grainline.data.formats.common import digest
from grainline.data.formats.joined import Joined
from grainline.data.record import Source
from grainline.data.scenes.source import Scenes
from grainline.errors import UserError
from grainline.evaluation.collectors.expressions import HEAT, MARKED_BY, Expressions
from grainline.evaluation.encode import Encodings
from grainline.evaluation.intervals import replicates, wilson
from grainline.evaluation.outcome import Cell, Options, only_plain, result_of
from grainline.evaluation.result import Result
from grainline.evaluation.score import Scorer
from grainline.report.case import Look
from grainline.report.page import render

REFERRING = "referring"
MIOU, CUMULATIVE, HALF = "mIoU", "cumulative IoU", "IoU > 0.5"


def with_expressions(source: Source) -> Source:
    """The source with expressions as regions, where it makes them only if it is asked to."""
    if isinstance(source, Scenes):
        return source.with_expressions()
    if isinstance(source, Joined):
        return Joined([with_expressions(one) for one in source.sources])
    return source


def referring_suite(method: Scorer, data: Encodings, options: Options = Options()) -> Result:  # noqa: ARG001, B008
    """mIoU, cumulative IoU and the share of IoU above one half, of heat and of two masks that know nothing.

    Raises UserError if the data were encoded without expressions, and for a protocol of retrieval.
    """
    told = data.expressions
    if told is None:
        raise UserError(
            f"{data.path} was encoded without expressions; the {REFERRING} suite needs the masks of regions"
        )
    only_plain(options, REFERRING)
    counted = {name: _counted(told, name) for name in MARKED_BY}
    queries = {
        "keys": list(data.keys),
        "texts": digest(one.text for one in told.found),
        "picture": [told.same[one.picture] for one in told.found],
        "region": [one.region for one in told.found],
        "scores": counted.pop(HEAT),
        "trivial": counted,
    }
    result = result_of(REFERRING, data, options, referring_cells([queries], options), queries, _notes(told))
    number = {"texts": len({one.text for one in told.found}), "expressions": len(told.found)}
    return result._replace(data=result.data | number)


def referring_cells(runs: list[dict[str, Any]], options: Options) -> dict[str, Cell]:
    """Metrics from pixels: means over the runs; the bootstrap draws pictures, the same for every mask."""
    first = runs[0]
    picture = np.array(first["picture"])
    by = {HEAT: [run["scores"] for run in runs]}
    by |= {name: [run["trivial"][name] for run in runs] for name in first["trivial"]}
    out = {}
    for name, counted in by.items():
        both, either = (
            np.array([one[field] for one in counted], np.float64) for field in ("intersection", "union")
        )  # [run, E]
        iou = both / either
        values = np.stack([iou.mean(0), both.mean(0), either.mean(0), (iou > 0.5).mean(0)], axis=1)
        drawn = replicates(values, picture, resamples=options.resamples, seed=options.seed)
        mean, number = values.mean(0), values.shape[0] * len(runs)
        alone = wilson(int(values[:, 3].sum()), len(values), options.level) if len(runs) == 1 else None
        ends = None if alone is None else (alone.low, alone.high)
        of = "" if name == HEAT else f", {name}"
        for label, value, again, second in (
            (MIOU, mean[0], drawn[:, 0], None),
            (CUMULATIVE, mean[1] / mean[2], drawn[:, 1] / drawn[:, 2], None),
            (HALF, mean[3], drawn[:, 3], ends),
        ):
            out[label + of] = Cell(float(value), again, number, None, 0, "share", second)
    return out


def _counted(told: Expressions, name: str) -> dict[str, list[int]]:
    pixels = [one.overlap[name] for one in told.found]
    return {"intersection": [p.intersection for p in pixels], "union": [p.union for p in pixels]}


def _notes(told: Expressions) -> tuple[str, ...]:
    """What a reader of the metrics has to know."""
    counted = {
        "regions have no mask and were skipped": told.maskless,
        "regions have a mask without a pixel and were skipped": told.empty,
        "maps are the same everywhere and mark nothing": told.flat,
    }
    return tuple(f"{number} {what}" for what, number in counted.items() if number)


# What stands on a page about expressions: a picture with the outline of what is meant, and the heat; or with
# the boxes to choose from, and the map that chose.


class Pointed(NamedTuple):
    """An expression over its picture."""

    look: Look  # the picture with the outline of the right mask, the expression, and its heat
    name: str  # of the picture
    iou: float  # of what stands out in the heat with the right mask


class Picked(NamedTuple):
    """An expression, and the box that its map chose."""

    look: Look  # the picture with all boxes, the chosen and the true one, the expression, and its map
    name: str  # of the picture
    right: bool
    iou: float  # of the chosen box with the true one
    number: int  # of boxes to choose from

    @property
    def told(self) -> str:
        """The outcome in words.

        >>> Picked(Look(None, ""), "a.jpg", False, 0.25, 4).told
        'wrong, IoU 25.0 %, 4 boxes, a.jpg'
        """
        outcome = "right" if self.right else "wrong"
        return f"{outcome}, IoU {100 * self.iou:.1f} %, {self.number} boxes, {self.name}"


def picked(shown: Sequence[Picked], name: str) -> Markup:
    """Choices one below the other. name: as in `pointed`"""
    return render("picked.html", shown=shown, name=name)


def pointed(shown: Sequence[Pointed], name: str) -> Markup:
    """Expressions one below the other.

    name  letters and digits, another one for each list on a page
    """
    return render("pointed.html", shown=shown, name=name)
