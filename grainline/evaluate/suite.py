"""Suites: from encodings to a result.

retrieval  image to text and text to image: recalls, their sum, median ranks
foils      share of comparisons in which the true text beats a false one, by what is false
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from grainline.errors import UserError
from grainline.evaluate.encode import Encodings
from grainline.evaluate.foils import foil_choices
from grainline.evaluate.intervals import from_replicates, replicates, wilson
from grainline.evaluate.protocols import coco_split, folds
from grainline.evaluate.result import Metric, Result, now, versions
from grainline.evaluate.retrieval import Ranks, chance_median, chance_recall
from grainline.evaluate.score import MEMORY, Scorer, retrieval_ranks
from grainline.types import rows

DEPTHS = (1, 5, 10)
I2T, T2I = "image to text", "text to image"
ALL = "all kinds"


class Options(NamedTuple):
    """How a suite is run."""

    protocol: str = "plain"
    seed: int = 0  # of the bootstrap
    resamples: int = 1000
    level: float = 0.95
    memory: int = MEMORY  # bytes of a tile of scores


Suite = Callable[[Scorer, Encodings, Options], Result]


def retrieval_suite(method: Scorer, data: Encodings, options: Options = Options()) -> Result:  # noqa: B008
    """Recall at 1, 5 and 10 and median rank both ways, and the sum of the recalls.

    Raises UserError where the protocol does not fit the data, and for NaN scores.
    """
    parts = []
    for fold in folds(options.protocol, data.images, data.texts, data.path):
        images, texts = rows(data.images, fold.images), rows(data.texts, fold.texts)
        both = retrieval_ranks(method, images, texts, options.memory)
        owner = texts.image[texts.image >= 0]
        parts.append(
            {
                "pictures": len(images.image),
                "texts": len(texts.image),
                "i2t": _queries(both.i2t, images.image.tolist()),
                "t2i": _queries(both.t2i, owner.tolist()),
            }
        )
    queries = {"keys": list(data.keys), "folds": parts}
    return _result(
        "retrieval", data, options, retrieval_metrics([parts], options), queries, _notes(data, options)
    )


def foils_suite(method: Scorer, data: Encodings, options: Options = Options()) -> Result:  # noqa: B008
    """Accuracy of the true text over its foil, by kind and over all kinds.

    Raises UserError if the data were encoded without foils, for a protocol of retrieval, and for NaN scores.
    """
    if data.foils is None:
        raise UserError(f"{data.path} was encoded without foils; the foils suite needs them (foils=True)")
    if options.protocol != "plain":
        raise UserError(f"protocol is {options.protocol!r}; the foils suite knows only 'plain'")
    chosen = foil_choices(method, data.images, data.foils)
    queries = {
        "keys": list(data.keys),
        "kind": list(data.foils.kind),
        "picture": data.foils.picture.tolist(),
        "right": chosen.right.int().tolist(),
        "tied": chosen.tied.int().tolist(),
    }
    return _result("foils", data, options, foil_metrics([queries], options), queries, _notes(data, options))


SUITES: dict[str, Suite] = {"retrieval": retrieval_suite, "foils": foils_suite}


def retrieval_metrics(runs: list[list[dict[str, Any]]], options: Options) -> tuple[Metric, ...]:
    """Metrics from ranks: one list of folds per run, all runs over the same queries.

    Means over the folds; the bootstrap draws pictures within each fold, with all their queries of all runs.
    Both directions draw the same pictures, which makes the interval of the sum a joint one.
    """
    table = [_fold_table([run[f] for run in runs], options, f) for f in range(len(runs[0]))]
    out = []
    for name, unit in [(name, unit) for way in (I2T, T2I) for name, unit in _names(way)]:
        cells = [fold[name] for fold in table]
        out.append(_metric(name, unit, cells, options))
    return (*out, _metric("rSum", "sum", [_sum(fold) for fold in table], options))


def foil_metrics(runs: list[dict[str, Any]], options: Options) -> tuple[Metric, ...]:
    """Accuracies from outcomes: one dict per run, all runs over the same comparisons."""
    first = runs[0]
    kind = np.array(first["kind"])
    right = np.mean([run["right"] for run in runs], axis=0)  # [P] share of the runs that were right
    tied = np.sum([run["tied"] for run in runs], axis=0)
    picture = np.array(first["picture"])
    out = []
    for name in [ALL, *sorted(set(first["kind"]))]:
        mine = np.ones(len(kind), bool) if name == ALL else kind == name
        drawn = replicates(right[mine], picture[mine], resamples=options.resamples, seed=options.seed)
        ends = from_replicates(right[mine].mean(), drawn, options.level)
        number = int(mine.sum())
        alone = wilson(int(right[mine].sum()), number, options.level) if len(runs) == 1 else None
        out.append(
            Metric(
                name, *ends, number * len(runs), 0.5, int(tied[mine].sum()), "share",
                None if alone is None else (alone.low, alone.high),
            )
        )  # fmt: skip
    return tuple(out)


class _Cell(NamedTuple):
    """One metric in one fold."""

    value: float
    drawn: np.ndarray  # [R]
    queries: int
    chance: float
    ties: int


def _names(way: str) -> list[tuple[str, str]]:
    return [(f"{way} R@{k}", "share") for k in DEPTHS] + [(f"{way} median rank", "rank")]


def _sum(fold: dict[str, _Cell]) -> _Cell:
    """The sum of the six recalls, in percent."""
    recalls = [fold[f"{way} R@{k}"] for way in (I2T, T2I) for k in DEPTHS]
    ends = [fold[f"{way} R@1"] for way in (I2T, T2I)]
    return _Cell(
        100 * sum(cell.value for cell in recalls),
        100 * np.sum([cell.drawn for cell in recalls], axis=0),
        sum(cell.queries for cell in ends),
        100 * sum(cell.chance for cell in recalls),
        sum(cell.ties for cell in ends),
    )


def _queries(ranks: Ranks, picture: list[int]) -> dict[str, list[int]]:
    return {"rank": ranks.rank.tolist(), "tied": ranks.tied.int().tolist(), "picture": picture}


def _fold_table(runs: list[dict[str, Any]], options: Options, number: int) -> dict[str, _Cell]:
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
            chance = chance_recall(positives, candidates, k)
            out[f"{way} R@{k}"] = _Cell(hits[:, i].mean(), drawn[:, i], len(rank), chance, ties)
        medians = replicates(rank, picture, "median", **settings)
        middle = chance_median(positives, candidates)
        out[f"{way} median rank"] = _Cell(float(np.median(rank)), medians, len(rank), middle, ties)
    return out


def _metric(name: str, unit: Any, cells: list[_Cell], options: Options) -> Metric:
    """The mean over the folds, whose pictures were drawn independently of each other."""
    drawn = np.mean([cell.drawn for cell in cells], axis=0)
    value = float(np.mean([cell.value for cell in cells]))
    ends = from_replicates(value, drawn, options.level)
    chance = float(np.mean([cell.chance for cell in cells]))
    return Metric(
        name, *ends, sum(cell.queries for cell in cells), chance, sum(cell.ties for cell in cells), unit
    )


def _notes(data: Encodings, options: Options) -> tuple[str, ...]:
    """What a reader of the numbers has to know."""
    notes = list(data.remarks)
    if data.damaged:
        causes = ", ".join(f"{number} {cause}" for cause, number in sorted(data.damaged.items()))
        skipped = sum(data.damaged.values())
        first = "; ".join(data.damaged_first)
        notes.append(f"{skipped} of {data.samples} samples were skipped: {causes}; the first: {first}")
    if data.blank:
        notes.append(f"{data.blank} blank captions were skipped")
    if data.cut:
        notes.append(f"{data.cut} texts were longer than the model reads and were cut")
    if options.protocol.startswith("coco"):
        notes.append(f"pictures of {coco_split(data.keys)}")
    return tuple(notes)


def _result(
    suite: str,
    data: Encodings,
    options: Options,
    metrics: tuple[Metric, ...],
    queries: dict[str, Any],
    notes: tuple[str, ...],
) -> Result:
    if any(metric.low == metric.high for metric in metrics if metric.unit == "share"):
        notes += (
            "an interval of width zero means that all outcomes were alike, not that the value is certain",
        )
    settings = {**options._asdict(), "captions": data.captions}
    if options.protocol.startswith("coco"):
        settings["split"] = coco_split(data.keys)
    found = {
        "path": data.path,
        "fingerprint": data.fingerprint,
        "samples": data.samples,
        "pictures": len(data.keys),
        "texts": len(data.strings),
        "damaged": data.damaged,
        "damaged_first": list(data.damaged_first),
        "blank_captions": data.blank,
        "cut_texts": data.cut,
    }
    return Result(
        suite, options.protocol, metrics, settings, found, versions(), options.seed, now(), notes, queries
    )
