"""Referring expressions: of the boxes in a picture, which one does an expression speak of?

The protocol of ReCLIP (Subramanian et al., arXiv 2204.05991) for RefCOCO, RefCOCO+ and RefCOCOg, without
training for it. In five steps:
  1. press the whole picture into the square that the model reads;
  2. read the expression in lower case, without a prompt around it;
  3. make maps of it over the pixels of the picture (evaluation/collectors/choices.py);
  4. score each box by what lies inside over its area to the power of one half, and choose the highest;
  5. it is right if its IoU with the true box is above one half, unless a wrong one has the same score.

Boxes come from a file of detections, or are those of the things in the picture. Chance is the share of right
boxes among them. Where no box is right, none can be chosen: the share of expressions with one bounds all.
"""

from typing import Any

import numpy as np

from grainline.data.formats.common import digest
from grainline.data.record import Box
from grainline.errors import UserError
from grainline.evaluation.collectors.choices import ATTENTION, CENTRED, GRADIENT, HEAT, LARGEST, Choices
from grainline.evaluation.collectors.overlaps import ALPHA
from grainline.evaluation.encode import Encodings
from grainline.evaluation.intervals import replicates, wilson
from grainline.evaluation.outcome import Cell, Options, only_plain, result_of
from grainline.evaluation.result import Result
from grainline.evaluation.score import Scorer

COMPREHENSION = "comprehension"
ACCURACY, AMONG = "box accuracy", "a right box among them"
MAPS = {
    GRADIENT: "gradient map",
    CENTRED: "gradient map about the mean",
    HEAT: "heat",
    ATTENTION: "attention map",
    LARGEST: "largest box",
}


def comprehension_suite(method: Scorer, data: Encodings, options: Options = Options()) -> Result:  # noqa: ARG001, B008
    """The share of expressions whose map chooses a right box, for each map, and for the largest box.

    Raises UserError if the data were encoded without choices, and for a protocol of retrieval.
    """
    told = data.choices
    if told is None:
        raise UserError(
            f"{data.path} was encoded without choices; the {COMPREHENSION} suite needs the boxes of regions"
        )
    only_plain(options, COMPREHENSION)
    names = [name for name in MAPS if name in told.found[0].by and not (name == GRADIENT and _square(told))]
    found = {name: _outcomes(told, name) for name in names}
    queries = {
        "keys": list(data.keys),
        "texts": digest(one.text for one in told.found),
        "picture": [told.same[one.picture] for one in told.found],
        "region": [one.region for one in told.found],
        "offered": digest(_numbers(one.boxes) for one in told.found),
        "boxes": [len(one.boxes) for one in told.found],
        "fitting": [one.fitting for one in told.found],
        "trivial": found.pop(LARGEST),
        "scores": found,
    }
    cells = comprehension_cells([queries], options)
    result = result_of(COMPREHENSION, data, options, cells, queries, _notes(told, queries))
    number = {"texts": len({one.text for one in told.found}), "expressions": len(told.found)}
    settings = {"offered": told.offered, "alpha": ALPHA, "card": _card(told, queries)}
    return result._replace(data=result.data | number, settings=result.settings | settings)


def comprehension_cells(runs: list[dict[str, Any]], options: Options) -> dict[str, Cell]:
    """Shares of expressions: means over the runs; the bootstrap draws pictures, the same for every map."""
    first = runs[0]
    picture, boxes, fitting = (np.array(first[name]) for name in ("picture", "boxes", "fitting"))
    chance = float(np.mean(fitting / np.maximum(boxes, 1)))
    by = {name: [run["scores"][name] for run in runs] for name in MAPS if _in_all(runs, name)}
    by[LARGEST] = [run["trivial"] for run in runs]
    out = {}
    for name, told in by.items():
        right = np.array([one["right"] for one in told], np.float64)  # [run, E]
        ties = sum(sum(one["tied"]) for one in told)
        out[f"{ACCURACY}, {MAPS[name]}"] = _share(right, picture, chance, ties, options)
    among = (fitting > 0).astype(np.float64)[None].repeat(len(runs), 0)
    out[AMONG] = _share(among, picture, None, 0, options)
    return out


def _square(told: Choices) -> bool:
    """Whether no token has a part in the direction of its gradient, and about the mean some have."""
    number = len(told.found)
    return told.flat[GRADIENT] == number > told.flat[CENTRED]


def _in_all(runs: list[dict[str, Any]], name: str) -> bool:
    return all(name in run["scores"] for run in runs)


def _share(right: np.ndarray, picture: np.ndarray, chance: float | None, ties: int, options: Options) -> Cell:
    """right: [run, E] of 0 and 1"""
    mean = right.mean(0)
    drawn = replicates(mean, picture, resamples=options.resamples, seed=options.seed)
    alone = wilson(int(mean.sum()), len(mean), options.level) if len(right) == 1 else None
    ends = None if alone is None else (alone.low, alone.high)
    return Cell(float(mean.mean()), drawn, right.size, chance, ties, "share", ends)


def _outcomes(told: Choices, name: str) -> dict[str, list[int]]:
    by = [one.by[name] for one in told.found]
    return {
        "chosen": [one.box for one in by],
        "right": [int(one.right) for one in by],
        "tied": [int(one.tied) for one in by],
    }


def _numbers(boxes: tuple[Box, ...]) -> str:
    return " ".join(f"{edge:.3f}" for box in boxes for edge in box)


def _card(told: Choices, queries: dict[str, Any]) -> dict[str, str]:
    """What was chosen from, and how."""
    number = np.array(queries["boxes"])
    of = told.offered["boxes"]
    what = "of all things that the data know" if "sha256" not in told.offered else "of a file of detections"
    names = ", ".join(MAPS[name] for name in queries["scores"])
    return {
        "boxes": f"{of}, {what}: {number.mean():.1f} an expression, from {number.min()} to {number.max()}",
        "maps": f"{names}; {MAPS[LARGEST]} knows nothing of the expression",
        "score of a box": f"the sum inside over area ** {ALPHA}; right if IoU > 0.5 with the true box",
        "texts": "expressions in lower case, without a prompt",
        "pictures": "pressed into the square of the model",
    }


def _notes(told: Choices, queries: dict[str, Any]) -> tuple[str, ...]:
    """What a reader of the metrics has to know."""
    alone = sum(number == 0 for number in queries["boxes"])
    counted = {
        "regions have neither a box nor a mask and were skipped": told.boxless,
        "boxes have no pixel in their picture and were left out": told.outside,
        "expressions are about pictures without a box to choose, and count as wrong": alone,
    }
    counted |= {
        f"maps by {name} are the same everywhere and choose nothing": number
        for name, number in told.flat.items()
        if name in queries["scores"]
    }
    notes = tuple(f"{number} {what}" for what, number in counted.items() if number)
    if CENTRED not in queries["scores"]:
        notes += ("scores of this model read vectors and no image tokens, so it has no gradient maps",)
    elif GRADIENT not in queries["scores"]:
        notes += (
            "scores of this model do not depend on the lengths of image tokens, so a token times its gradient"
            " is 0: its only gradient maps are those about the mean token",
        )
    return notes


def shown_map(queries: dict[str, Any]) -> str:
    """The map that examples show: the first that was judged."""
    return next(name for name in MAPS if name in queries["scores"])
