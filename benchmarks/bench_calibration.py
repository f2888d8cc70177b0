"""Does an index know when it has nothing to show? False alarms, true alarms, sentences true and false.

An index is built of pictures of scenes:dev; what it says is measured with queries from other scenes than
those that its null texts come from:
  - no match: long captions of scenes:test, whose pictures are not in the index, and captions of indexed
    pictures after that picture was taken out;
  - match: long captions of the indexed pictures;
  - sentences: those of a picture's caption against those of another caption, and against the sentence that a
    foil has in place of a true one, by kind of foil. AUROC of three ways to compare their scores: as they
    are; minus mean, over spread, over the background; minus what the sentence scores where it is shown, which
    is what `Sentence.chance` uses.

Shares have Wilson's intervals, AUROCs the range over the seeds.

A model with fresh weights knows nothing to measure, so without MODEL, a trained one, nothing is done.

    python -m benchmarks.bench_calibration [MODEL] [--pictures 300] [--queries 300] [--seeds 5] [--null PATH]
"""

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from grainline.data.captions import sentences
from grainline.data.record import Record
from grainline.data.sources import open_source
from grainline.evaluate.intervals import wilson
from grainline.index.answer import Options
from grainline.index.null import chance, shown, standard
from grainline.index.search import Index, open_index
from grainline.index.write import add, build, remove
from grainline.model import Model, load

LEVELS = (0.01, 0.05, 0.1, 0.2)
WAYS = ("score", "minus mean, over spread", "minus where it is shown")
PLAIN = Options(sentences=False)


class Measured(NamedTuple):
    """What one seed gives: chances of best hits, and scores and chances of sentences."""

    foreign: np.ndarray  # queries whose picture was never there
    removed: np.ndarray  # queries whose picture was taken out
    there: np.ndarray  # queries whose picture is there
    found: np.ndarray  # bool, whether it is the best hit
    alone: np.ndarray  # single sentences of foreign captions
    true: np.ndarray  # [S, 3] scores of sentences that are true of the picture, in three ways
    other: np.ndarray  # [S, 3] of another caption
    pairs: dict[str, np.ndarray]  # kind of foil -> [F, 2, 3] true sentence, foil
    support: np.ndarray  # the null scores of sentences, in the last way


def measure(model: Model, pictures: int, queries: int, seed: int, null: str | None) -> Measured:
    """One index, one set of queries."""
    size = model.method.size
    inside = _records(f"scenes:dev?count={pictures}&seed={seed}", size)
    outside = _records(f"scenes:test?count={queries}&seed={seed}", 32)
    with tempfile.TemporaryDirectory() as folder:
        root, out = Path(folder, "pictures"), Path(folder, "index")
        root.mkdir()
        for record in inside:
            assert not isinstance(record.image, bytes)
            record.image.save(root / f"{record.key}.png")
        build(root, out, model=model, null=null)
        index = open_index(out, model)
        foreign = [record.whole for record in outside]
        single = [sentences(text)[i % len(sentences(text))].text for i, text in enumerate(foreign)]
        there = index.search([record.whole for record in inside], 1, PLAIN)
        found = [a.hits[0].path == f"{r.key}.png" for a, r in zip(there, inside, strict=True)]
        true, other, pairs = _sentences(index, inside)
        taken = inside[: len(inside) // 2]
        removed = []
        for part in (
            taken,
            inside[len(taken) :],
        ):  # half at a time: the index keeps its size within a factor two
            remove(out, [f"{record.key}.png" for record in part])
            removed += _chances(open_index(out, model), [record.whole for record in part])
            add(out, [root / f"{record.key}.png" for record in part], model=model)
        return Measured(
            np.array(_chances(index, foreign)),
            np.array(removed),
            np.array([answer.hits[0].chance for answer in there]),
            np.array(found),
            np.array(_chances(index, single)),
            true,
            other,
            pairs,
            index.opened.support,
        )


def _records(path: str, size: int) -> list[Record]:
    source = open_source(path, size=size)
    return [source[i] for i in range(len(source))]


def _chances(index: Index, texts: Sequence[str]) -> list[float]:
    return [answer.hits[0].chance for answer in index.search(texts, 1, PLAIN)]


def _sentences(
    index: Index, records: Sequence[Record]
) -> tuple[np.ndarray, np.ndarray, dict[str, np.ndarray]]:
    """Scores of true sentences, of those of the next caption, and of pairs of a true sentence and a foil."""
    true, other = [], []
    pairs: dict[str, list[np.ndarray]] = {}
    for i, record in enumerate(records):
        row = index.opened.numbers[f"{record.key}.png"]
        mine = _said(record.whole)
        next_one = _said(records[(i + 1) % len(records)].whole)
        changed = [
            (foil.kind, a, b)
            for foil in record.foils
            for a, b in zip(_said(foil.true), _said(foil.text), strict=False)
            if a != b
        ]
        texts = [*mine, *next_one, *(a for _, a, _ in changed), *(b for _, _, b in changed)]
        score = index.scores(np.append(index.opened.ground, row), texts)
        ground, own = score[:-1], score[-1:]
        ways = np.stack([own, standard(ground).apply(own), own - shown(ground)], 2)[0]
        true.append(ways[: len(mine)])
        other.append(ways[len(mine) : len(mine) + len(next_one)])
        rest = ways[len(mine) + len(next_one) :].reshape(2, -1, len(WAYS))
        for j, (kind, _, _) in enumerate(changed):
            pairs.setdefault(kind, []).append(rest[:, j])
    found = {kind: np.stack(pairs[kind]) for kind in sorted(pairs)}
    return np.concatenate(true), np.concatenate(other), found


def _said(text: str) -> list[str]:
    return [sentence.text for sentence in sentences(text)]


def auroc(right: np.ndarray, wrong: np.ndarray) -> float:
    """Share of pairs of a right and a wrong value in which the right one is higher; equal ones count half.

    >>> auroc(np.array([1.0, 2.0]), np.array([0.0, 1.0]))
    0.875
    """
    ordered = np.sort(wrong)
    below = np.searchsorted(ordered, right, "left") + np.searchsorted(ordered, right, "right")
    return float(below.mean() / 2 / len(wrong))


def show(all_of: Sequence[Measured]) -> None:
    """Tables: all seeds together, and the range over the seeds."""
    alarms = Table(
        "best hits called sure", *(f"at {level:g}" for level in LEVELS), "queries", "seeds at 0.05"
    )
    lines = {
        "picture never there": [one.foreign for one in all_of],
        "picture taken out": [one.removed for one in all_of],
        "one sentence, picture never there": [one.alone for one in all_of],
        "picture there": [one.there for one in all_of],
        "picture there and best hit": [one.there[one.found] for one in all_of],
    }
    for name, parts in lines.items():
        alarms.add_row(name, *_shares(np.concatenate(parts)), str(sum(map(len, parts))), _range(parts, 0.05))
    said = Table("sentences", "number", *(f"supported at {level:g}" for level in LEVELS))
    areas = Table("AUROC", *WAYS)
    groups = {"true of the picture": [one.true for one in all_of]}
    groups["of another caption"] = [one.other for one in all_of]
    kinds = sorted({kind for one in all_of for kind in one.pairs})
    groups |= {f"foil: {kind}": [_pairs(one, kind)[:, 1] for one in all_of] for kind in [*kinds, "all"]}
    for name, parts in groups.items():
        shares = [chance(one.support, part[:, -1]) for one, part in zip(all_of, parts, strict=True)]
        said.add_row(name, str(sum(map(len, parts))), *_shares(np.concatenate(shares)))
        if name != "true of the picture":
            areas.add_row(f"all true sentences, {name}", *_areas([one.true for one in all_of], parts))
    for kind in [*kinds, "all"]:
        pairs = [_pairs(one, kind) for one in all_of]
        areas.add_row(
            f"true sentence, foil in its place: {kind}",
            *_areas([pair[:, 0] for pair in pairs], [pair[:, 1] for pair in pairs]),
        )
    console = Console(width=160)
    for table in (alarms, said, areas):
        console.print(table)


def _areas(right: Sequence[np.ndarray], wrong: Sequence[np.ndarray]) -> list[str]:
    """Of each way: the mean and the range over the seeds."""
    both = list(zip(right, wrong, strict=True))
    return [_mean([auroc(a[:, way], b[:, way]) for a, b in both]) for way in range(len(WAYS))]


def _pairs(one: Measured, kind: str) -> np.ndarray:
    return one.pairs[kind] if kind != "all" else np.concatenate(list(one.pairs.values()))


def _shares(values: np.ndarray) -> list[str]:
    out = []
    for level in LEVELS:
        number = int((values <= level).sum())
        share = wilson(number, len(values))
        out.append(f"{share.value:.3f} ({share.low:.3f}-{share.high:.3f})")
    return out


def _range(parts: Sequence[np.ndarray], level: float) -> str:
    return " ".join(f"{(part <= level).mean():.3f}" for part in parts)


def _mean(values: Sequence[float]) -> str:
    return f"{np.mean(values):.3f}" + (f" ({min(values):.3f}-{max(values):.3f})" if len(values) > 1 else "")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("model", nargs="?")
    parser.add_argument("--pictures", type=int, default=300)
    parser.add_argument("--queries", type=int, default=300)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument(
        "--null", help="as of `grainline index build`; drawn scenes of another seed if not given"
    )
    args = parser.parse_args()
    if args.model is None:
        print("# calibration: not measured, it wants a trained model: bench_calibration MODEL")
        return
    torch.set_num_threads(1)
    model = load(args.model, device="cpu")
    found = [measure(model, args.pictures, args.queries, 100 + seed, args.null) for seed in range(args.seeds)]
    print(" ".join(sys.argv[1:]), f"seeds 100 to {99 + args.seeds}")
    show(found)


if __name__ == "__main__":
    main()
