"""Suites: from encodings to a result.

retrieval     image to text and text to image: recalls, their sum, median ranks
long-retrieval  the same for sets of long captions, each under its own protocol (long.py)
probes        share of comparisons in which a right pair of picture and text beats a wrong one (ranking.py)
zeroshot      share of pictures whose class is found by its prompts (zeroshot.py)
monotonicity  whether scores rise with the sentences of a caption (monotonicity.py)
cola          share of items of two pictures whose captions both find their own (cola.py)
stability     how much a sentence without meaning for the picture changes scores (stability.py)
fg-ovd        whether the right text of a region scores higher than texts that are almost right (fgovd.py)
similarity    how alike a picture looks to its own texts, for methods that pool it by a text (similarity.py)
own-caption   a diagnostic of such methods, with a gallery that is made from the answers (own.py)
referring     whether the heat of an expression covers what it speaks of (referring.py)
inactivity    whether texts of other pictures look at nothing, for methods with an empty slot (inactivity.py)
phrases       whether groups of the tokens of a caption are its annotated phrases (phrases.py)
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from grainline.errors import UserError
from grainline.evaluate.cola import COLA, cola_cells, cola_suite
from grainline.evaluate.encode import Encodings
from grainline.evaluate.fgovd import FG_OVD, fgovd_cells, fgovd_suite
from grainline.evaluate.inactivity import INACTIVITY, inactivity_cells, inactivity_suite
from grainline.evaluate.intervals import replicates
from grainline.evaluate.long import DEFAULT, LONG_RETRIEVAL, notes_of_card
from grainline.evaluate.monotonicity import MONOTONICITY, monotonicity_cells, monotonicity_suite
from grainline.evaluate.outcome import Cell, Options, result_of
from grainline.evaluate.own import OWN_CAPTION, own_cells, own_suite
from grainline.evaluate.phrases import PHRASES, phrases_cells, phrases_suite
from grainline.evaluate.protocols import folds
from grainline.evaluate.ranking import PROBES, probe_cells, probes_suite
from grainline.evaluate.referring import REFERRING, referring_cells, referring_suite
from grainline.evaluate.result import Result, Unit
from grainline.evaluate.retrieval import Ranks, chance_median, chance_recall
from grainline.evaluate.score import Scorer, retrieval_ranks
from grainline.evaluate.shortlist import LISTED, shortlist_ranks
from grainline.evaluate.similarity import SIMILARITY, similarity_cells, similarity_suite
from grainline.evaluate.stability import STABILITY, stability_cells, stability_suite
from grainline.evaluate.zeroshot import zeroshot_cells, zeroshot_suite
from grainline.types import Encoded, rows

DEPTHS = (1, 5, 10)
I2T, T2I = "image to text", "text to image"
WAYS = ("i2t", "t2i")

Suite = Callable[[Scorer, Encodings, Options], Result]
Cells = Callable[[list[dict[str, Any]], Options], dict[str, Cell]]
"""Metrics from `Result.queries`, one for each run, all runs over the same queries."""


def retrieval_suite(method: Scorer, data: Encodings, options: Options = Options()) -> Result:  # noqa: B008
    """Recall at 1, 5 and 10 and median rank both ways, and the sum of the recalls.

    Raises UserError where the protocol does not fit the data, and for NaN scores.
    """
    queries = _both_ways(method, data, options)
    return result_of("retrieval", data, options, retrieval_cells([queries], options), queries)


def long_suite(method: Scorer, data: Encodings, options: Options = Options()) -> Result:  # noqa: B008
    """The metrics of retrieval on a set of long captions, with the card of its protocol in the settings.

    Raises UserError if the data were encoded without a card or under another protocol, and for NaN scores.
    """
    card = data.card
    if card is None:
        raise UserError(f"{data.path} was encoded without a card; {LONG_RETRIEVAL} needs one")
    if options.protocol not in (DEFAULT, card.protocol):
        raise UserError(f"protocol is {options.protocol!r}; {data.path} was read under {card.protocol!r}")
    options = options._replace(protocol=card.protocol)
    queries = _both_ways(method, data, options._replace(protocol="plain"))
    notes = notes_of_card(card, data.strings, len(data.keys))
    cells = retrieval_cells([queries], options)
    result = result_of(LONG_RETRIEVAL, data, options, cells, queries, notes)
    return result._replace(settings=result.settings | {"card": card.told(len(data.keys))})


def _both_ways(method: Scorer, data: Encodings, options: Options) -> dict[str, Any]:
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


def _ranked(
    method: Scorer, images: Encoded, texts: Encoded, asked: tuple[list[int], list[int]], options: Options
) -> dict[str, Any]:
    """The outcome of the queries of one fold; asked: the picture of each of them, both ways"""
    if options.shortlist is None:
        both = retrieval_ranks(method, images, texts, options.memory)
        return {way: _queries(*one) for way, one in zip(WAYS, zip(both, asked, strict=True), strict=True)}
    found = shortlist_ranks(method, images, texts, options.shortlist, options.memory)
    return {
        way: _queries(one.ranks, picture) | {LISTED: one.listed.int().tolist()}
        for way, one, picture in zip(WAYS, found, asked, strict=True)
    }


def retrieval_cells(runs: list[dict[str, Any]], options: Options) -> dict[str, Cell]:
    """Metrics from ranks.

    Means over the folds; the bootstrap draws pictures within each fold, with all their queries of all runs.
    Both directions draw the same pictures, which makes the interval of the sum a joint one.
    """
    folds_of = [run["folds"] for run in runs]
    table = [_fold_table([run[f] for run in folds_of], options, f) for f in range(len(folds_of[0]))]
    out = {name: _mean([fold[name] for fold in table]) for name in table[0]}
    return out | {"rSum": _mean([_sum(fold) for fold in table])}


SUITES: dict[str, Suite] = {
    "retrieval": retrieval_suite,
    PROBES: probes_suite,
    "zeroshot": zeroshot_suite,
    MONOTONICITY: monotonicity_suite,
    COLA: cola_suite,
    STABILITY: stability_suite,
    FG_OVD: fgovd_suite,
    SIMILARITY: similarity_suite,
    OWN_CAPTION: own_suite,
    REFERRING: referring_suite,
    INACTIVITY: inactivity_suite,
    PHRASES: phrases_suite,
    LONG_RETRIEVAL: long_suite,
}
CELLS: dict[str, Cells] = {
    "retrieval": retrieval_cells,
    PROBES: probe_cells,
    "zeroshot": zeroshot_cells,
    MONOTONICITY: monotonicity_cells,
    COLA: cola_cells,
    STABILITY: stability_cells,
    FG_OVD: fgovd_cells,
    SIMILARITY: similarity_cells,
    OWN_CAPTION: own_cells,
    REFERRING: referring_cells,
    INACTIVITY: inactivity_cells,
    PHRASES: phrases_cells,
    LONG_RETRIEVAL: retrieval_cells,
}


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


def _queries(ranks: Ranks, picture: list[int]) -> dict[str, list[int]]:
    return {"rank": ranks.rank.tolist(), "tied": ranks.tied.int().tolist(), "picture": picture}


def _fold_table(runs: list[dict[str, Any]], options: Options, number: int) -> dict[str, Cell]:
    """All metrics of one fold but the sum; `runs` holds that fold of every run."""
    first = runs[0]
    owner = np.array(first["t2i"]["picture"])
    unique, count = np.unique(owner, return_counts=True)
    captions = dict(zip(unique.tolist(), count.tolist(), strict=True))
    many = [captions[picture] for picture in first["i2t"]["picture"]]
    out = {}
    for way, key, positives, candidates in (
        (I2T, "i2t", many, first["texts"]),
        (T2I, "t2i", [1] * len(owner), first["pictures"]),
    ):
        rank = np.concatenate([run[key]["rank"] for run in runs])
        picture = np.concatenate([run[key]["picture"] for run in runs])
        ties = sum(sum(run[key]["tied"]) for run in runs)
        hits = (rank[:, None] <= np.array(DEPTHS)).astype(np.float64)  # [Q, 3]
        settings: dict[str, Any] = {"resamples": options.resamples, "seed": (options.seed, number)}
        drawn = replicates(hits, picture, **settings)
        for i, k in enumerate(DEPTHS):
            deep = k if k >= candidates else min(k, options.shortlist or k)  # a lot ends where the list does
            chance = chance_recall(positives, candidates, deep)
            out[f"{way} R@{k}"] = Cell(hits[:, i].mean(), drawn[:, i], len(rank), chance, ties, "share")
        medians = replicates(rank, picture, "median", **settings)
        middle = chance_median(positives, candidates)
        if options.shortlist is not None and middle > options.shortlist:
            middle = candidates
        out[f"{way} median rank"] = Cell(float(np.median(rank)), medians, len(rank), middle, ties, "rank")
        if options.shortlist is not None and all(LISTED in run[key] for run in runs):
            listed = np.concatenate([run[key][LISTED] for run in runs]).astype(np.float64)
            drawn = replicates(listed, picture, **settings)
            chance = chance_recall(positives, candidates, options.shortlist)
            out[f"{way} in shortlist"] = Cell(listed.mean(), drawn, len(rank), chance, 0, "share")
    return out


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
