"""Retrieval both ways, fold by fold: ranks as outcomes, and metrics from ranks.

With a shortlist the ranks are those of two stages. With `exact` those of all pairs are found beside them, and
told under names of their own.
"""

from typing import Any

import numpy as np

from grainline.evaluation.encode import Encodings
from grainline.evaluation.intervals import replicates
from grainline.evaluation.outcome import Cell, Options
from grainline.evaluation.ranks import Ranks, chance_median, chance_recall, folds
from grainline.evaluation.result import Unit
from grainline.evaluation.score import Scorer, retrieval_ranks
from grainline.evaluation.shortlist import EXACT, LISTED, shortlist_ranks
from grainline.types import Encoded, rows

DEPTHS = (1, 5, 10)
I2T, T2I = "image to text", "text to image"
WAYS = ("i2t", "t2i")


def both_ways(method: Scorer, data: Encodings, options: Options) -> dict[str, Any]:
    """The outcome of every query, fold by fold."""
    parts = []
    for fold in folds(options.protocol, data.images, data.texts, data.path):
        images, texts = rows(data.images, fold.images), rows(data.texts, fold.texts)
        owner = texts.image[texts.image >= 0]
        parts.append(
            {
                "pictures": len(images.image),
                "texts": len(texts.image),
                **_ranked(method, images, texts, (images.image.tolist(), owner.tolist()), options),
            }
        )
    return {"keys": list(data.keys), "folds": parts}


def retrieval_cells(runs: list[dict[str, Any]], options: Options) -> dict[str, Cell]:
    """Metrics from ranks.

    Means over the folds; the bootstrap draws pictures within each fold, with all their queries of all runs.
    Both directions draw the same pictures, which makes the interval of the sum a joint one.
    """
    folds_of = [run["folds"] for run in runs]
    table = [_fold_table([run[f] for run in folds_of], options, f) for f in range(len(folds_of[0]))]
    return {name: _mean([fold[name] for fold in table]) for name in table[0]}


def share_scored(queries: dict[str, Any], shortlist: int) -> dict[str, float]:
    """Of all pairs of a query and a candidate, the share that a shortlist lets be scored, each way."""
    found = {}
    for way, candidates in zip(WAYS, ("texts", "pictures"), strict=True):
        of = [(len(fold[way]["rank"]), fold[candidates]) for fold in queries["folds"]]
        scored = sum(number * min(shortlist, every) for number, every in of)
        found[way] = scored / sum(number * every for number, every in of)
    return found


def notes_of_stages(queries: dict[str, Any], options: Options) -> tuple[str, ...]:
    """How much of the work two stages do; nothing where all pairs are scored."""
    if options.shortlist is None:
        return ()
    share = share_scored(queries, options.shortlist)
    told = " and ".join(
        f"{100 * share[way]:.3g} % {name}" for way, name in zip(WAYS, (I2T, T2I), strict=True)
    )
    exact = "; metrics named exact rank by all scores" if options.exact else ""
    number = options.shortlist
    return (f"each query scores the {number:,} candidates closest by vector, {told} of all pairs{exact}",)


def _ranked(
    method: Scorer, images: Encoded, texts: Encoded, asked: tuple[list[int], list[int]], options: Options
) -> dict[str, Any]:
    """The outcome of the queries of one fold; asked: the picture of each of them, both ways"""
    every = options.shortlist is None or options.exact
    both = retrieval_ranks(method, images, texts, options.memory) if every else None
    if options.shortlist is None:
        assert both is not None
        return {way: _queries(*one) for way, one in zip(WAYS, zip(both, asked, strict=True), strict=True)}
    found = shortlist_ranks(method, images, texts, options.shortlist, options.memory)
    out = {
        way: _queries(one.ranks, picture) | {LISTED: one.listed.int().tolist()}
        for way, one, picture in zip(WAYS, found, asked, strict=True)
    }
    for way, one in zip(WAYS, both or (), strict=False):
        out[way][EXACT] = _outcomes(one)
    return out


def _queries(ranks: Ranks, picture: list[int]) -> dict[str, Any]:
    return _outcomes(ranks) | {"picture": picture}


def _outcomes(ranks: Ranks) -> dict[str, list[int]]:
    return {"rank": ranks.rank.tolist(), "tied": ranks.tied.int().tolist()}


def _fold_table(runs: list[dict[str, Any]], options: Options, number: int) -> dict[str, Cell]:
    """All metrics of one fold; `runs` holds that fold of every run."""
    first = runs[0]
    unique, count = np.unique(first["t2i"]["picture"], return_counts=True)
    captions = dict(zip(unique.tolist(), count.tolist(), strict=True))
    many = [captions[picture] for picture in first["i2t"]["picture"]]
    alone = [1] * len(first["t2i"]["picture"])
    out: dict[str, Cell] = {}
    stages = (("", None, options.shortlist), (f", {EXACT}", EXACT, None))
    for of, field, most in stages:
        if field is not None and not all(field in run[way] for run in runs for way in WAYS):
            continue
        table: dict[str, Cell] = {}
        for way, key, positives, candidates in (
            (I2T, "i2t", many, first["texts"]),
            (T2I, "t2i", alone, first["pictures"]),
        ):
            told = [run[key] if field is None else run[key] | run[key][field] for run in runs]
            lot = _Lot(positives, candidates, most)
            table |= _way_cells(way, told, lot, options, number)
        out |= {name + of: cell for name, cell in table.items()}
        out["rSum" + of] = _sum(table)
    return out


class _Lot:
    """What drawing lots would reach, in a list that ends after the most candidates that are ranked."""

    def __init__(self, positives: list[int], candidates: int, most: int | None) -> None:
        self.positives, self.candidates, self.most = positives, candidates, most

    def recall(self, k: int) -> float:
        deep = k if k >= self.candidates else min(k, self.most or k)
        return chance_recall(self.positives, self.candidates, deep)

    def median(self) -> float:
        middle = chance_median(self.positives, self.candidates)
        return self.candidates if self.most is not None and middle > self.most else middle


def _way_cells(
    way: str, told: list[dict[str, Any]], lot: _Lot, options: Options, number: int
) -> dict[str, Cell]:
    """Recalls and median rank of one direction of a fold, and what is in the shortlist where there is one."""
    rank = np.concatenate([one["rank"] for one in told])
    picture = np.concatenate([one["picture"] for one in told])
    ties = sum(sum(one["tied"]) for one in told)
    hits = (rank[:, None] <= np.array(DEPTHS)).astype(np.float64)  # [Q, 3]
    settings: dict[str, Any] = {"resamples": options.resamples, "seed": (options.seed, number)}
    drawn = replicates(hits, picture, **settings)
    out = {}
    for i, k in enumerate(DEPTHS):
        out[f"{way} R@{k}"] = Cell(hits[:, i].mean(), drawn[:, i], len(rank), lot.recall(k), ties, "share")
    medians = replicates(rank, picture, "median", **settings)
    out[f"{way} median rank"] = Cell(float(np.median(rank)), medians, len(rank), lot.median(), ties, "rank")
    if lot.most is not None and all(LISTED in one for one in told):
        listed = np.concatenate([one[LISTED] for one in told]).astype(np.float64)
        drawn = replicates(listed, picture, **settings)
        chance = chance_recall(lot.positives, lot.candidates, lot.most)
        out[f"{way} in shortlist"] = Cell(listed.mean(), drawn, len(rank), chance, 0, "share")
    return out


def _sum(fold: dict[str, Cell]) -> Cell:
    """The sum of the six recalls, in percent."""
    recalls = [fold[f"{way} R@{k}"] for way in (I2T, T2I) for k in DEPTHS]
    ends = [fold[f"{way} R@1"] for way in (I2T, T2I)]
    return Cell(
        100 * sum(cell.value for cell in recalls),
        100 * np.sum([cell.drawn for cell in recalls], axis=0),
        sum(cell.queries for cell in ends),
        100 * sum(cell.chance or 0.0 for cell in recalls),
        sum(cell.ties for cell in ends),
        "sum",
    )


def _mean(cells: list[Cell]) -> Cell:
    """The mean over the folds, whose pictures were drawn independently of each other."""
    unit: Unit = cells[0].unit
    return Cell(
        float(np.mean([cell.value for cell in cells])),
        np.mean([cell.drawn for cell in cells], axis=0),
        sum(cell.queries for cell in cells),
        float(np.mean([cell.chance or 0.0 for cell in cells])),
        sum(cell.ties for cell in cells),
        unit,
    )
