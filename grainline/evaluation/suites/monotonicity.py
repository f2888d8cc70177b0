"""Monotonicity: does a picture score higher, the more of its caption is read?

HiMo-CLIP, arXiv 2511.06653, section 5.1. In three steps:
  1. take the subtexts of every caption, each the beginning of the next (evaluation/collectors/subtexts.py);
  2. score each of them with its own picture, and with no other;
  3. HiMo@2 and HiMo@3: the share of captions whose scores rise strictly, of two and of three subtexts;
     HiMo@K: the mean over the captions of Pearson's correlation of score and number, over all its subtexts.

The paper has HiMo@K for K > 3, its code for any K: both are given. A tie is no rise. It is what a model must
score that cannot read on, so ties and cut subtexts are counted.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from grainline.errors import UserError
from grainline.evaluation.collectors.subtexts import EACH, HALVES, PARTS, THIRDS, Subtexts
from grainline.evaluation.encode import Encodings
from grainline.evaluation.intervals import replicates, wilson
from grainline.evaluation.outcome import Cell, Options, only_plain, result_of
from grainline.evaluation.ranks import refuse_nan
from grainline.evaluation.result import Result
from grainline.evaluation.score import Scorer, pair_scores
from grainline.types import Encoded, rows

MONOTONICITY = "monotonicity"
LONG = f"{EACH}, K >= 4"
LEAST = {HALVES: 2, THIRDS: 3, EACH: 1, LONG: 4}
"""Subtexts that a sample must have to count for a metric."""

PICTURES = 256  # scored at a time


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


def monotonicity_suite(method: Scorer, data: Encodings, options: Options = Options()) -> Result:  # noqa: B008
    """HiMo@2, HiMo@3 and HiMo@K over all captions that have enough sentences.

    Raises UserError if the data were encoded without subtexts or no caption has two, for a protocol of
    retrieval, and for NaN scores.
    """
    told = data.subtexts
    if told is None:
        raise UserError(f"{data.path} was encoded without subtexts; this suite needs them (subtexts=True)")
    only_plain(options, MONOTONICITY)
    if not any(len(places) > 1 for of in told.of.values() for places in of):
        raise UserError(f"no caption of {data.path} has two sentences; the {MONOTONICITY} suite needs some")
    found = sequence_scores(method, data.images, told)
    queries: dict[str, Any] = {"keys": list(data.keys), "sequences": found}
    cells = monotonicity_cells([queries], options)
    result = result_of(MONOTONICITY, data, options, cells, queries, _notes(found))
    return result._replace(data=result.data | {"texts": len(told.strings)})


def sequence_scores(method: Scorer, images: Encoded, told: Subtexts) -> dict[str, dict[str, list[Any]]]:
    """Of every sequence, for each picture: the number of its subtexts, their scores, and which were cut.

    Raises UserError for NaN scores.
    """
    row = told.row.tolist()
    score: dict[tuple[int, int], float] = {}  # picture and row
    for start in range(0, len(images.vector), PICTURES):
        block = range(start, min(start + PICTURES, len(images.vector)))
        asked = list(dict.fromkeys((i, row[t]) for of in told.of.values() for i in block for t in of[i]))
        if asked:
            picture, text = torch.tensor(asked).T
            mine = rows(images, slice(start, start + PICTURES))
            found = pair_scores(method, mine, rows(told.texts, text), picture - start)
            refuse_nan(int(found.isnan().sum()), len(found))
            score |= zip(asked, _decimals(found), strict=True)
    return {
        name: {
            "subtexts": [len(places) for places in of],
            "scores": [[score[i, row[t]] for t in places] for i, places in enumerate(of)],
            "cut": [[int(told.cut[t]) for t in places] for places in of],
        }
        for name, of in told.of.items()
    }


def monotonicity_cells(runs: list[dict[str, Any]], options: Options) -> dict[str, Cell]:
    """Metrics from scores: means over the runs of each picture, whose bootstrap draws pictures."""
    out = {}
    for name, least in LEAST.items():
        of = [run["sequences"][EACH if name == LONG else name] for run in runs]
        mine = [i for i, number in enumerate(of[0]["subtexts"]) if number >= least]
        if not mine:
            continue
        judge = rises if name in PARTS else correlation
        value = np.mean([[judge(one["scores"][i]) for i in mine] for one in of], axis=0)  # [Q]
        drawn = replicates(value, resamples=options.resamples, seed=options.seed)
        tied = sum(ties(one["scores"][i]) for one in of for i in mine)
        number, mean = len(mine) * len(runs), float(value.mean())
        if name in PARTS:
            alone = wilson(round(value.sum()), len(mine), options.level) if len(runs) == 1 else None
            ends = None if alone is None else (alone.low, alone.high)
            chance = {HALVES: 1 / 2, THIRDS: 1 / 6}[name]
            out[name] = Cell(mean, drawn, number, chance, tied, "share", ends)
        else:
            out[name] = Cell(mean, drawn, number, 0.0, tied, "correlation")
    return out


def _decimals(score: Tensor) -> list[float]:
    """The shortest decimals that are these float32 numbers: equal stays equal, and files are half as long."""
    return [float(str(one)) for one in score.cpu().numpy()]


def _notes(found: Mapping[str, Mapping[str, list[Any]]]) -> tuple[str, ...]:
    """What a reader of these metrics has to know."""
    each = found[EACH]
    samples = len(each["subtexts"])
    notes = []
    for name, least in LEAST.items():
        number = sum(n < least for n in found[EACH if name == LONG else name]["subtexts"])
        if number:
            what = "subtexts" if name == LONG else "sentences"
            notes.append(f"{name} leaves out {number} of {samples} samples with fewer than {least} {what}")
    alike = [len(scores) for scores in each["scores"] if len(set(scores)) == 1]
    if alike:
        single = alike.count(1)
        notes.append(
            f"{len(alike)} of {samples} samples have equal scores throughout and count as 0 in {EACH}, "
            f"{single} of them because they have a single subtext"
        )
    beyond = sum(sum(cut) > 1 for cut in each["cut"])
    if beyond:
        notes.append(
            f"{beyond} of {samples} samples have two or more subtexts that are longer than the model reads"
        )
    for name, of in found.items():
        tied = [i for i, scores in enumerate(of["scores"]) if ties(scores)]
        cut = sum(_cut_ties(of["scores"][i], of["cut"][i]) for i in tied)
        if tied:
            notes.append(
                f"{name}: {len(tied)} samples have a tie, {cut} of them where the longer text was cut"
            )
    return tuple(notes)


def _cut_ties(scores: Sequence[float], cut: Sequence[int]) -> bool:
    """Whether some tie stands where the longer subtext was cut: the model may have read the same twice."""
    return any(a == b and c for a, b, c in zip(scores, scores[1:], cut[1:], strict=False))
