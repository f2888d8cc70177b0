"""Does an index know when it has nothing to show? False alarms, true alarms, sentences true and false.

An index is built of pictures of scenes:dev; what it says is measured with queries from other scenes than
those that its null texts come from:
  - no match: long captions of scenes:test, whose pictures are not in the index, and captions of indexed
    pictures after that picture was taken out;
  - match: long captions of the indexed pictures;
  - sentences: those of a picture's caption against those of another caption, and against the sentence that a
    foil has in place of a true one, by kind of foil. Intervals are Wilson's.

    python -m benchmarks.bench_calibration MODEL [--pictures 400] [--queries 400] [--seeds 3] [--null PATH]
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
from grainline.index.null import chance
from grainline.index.search import Index, open_index
from grainline.index.write import add, build, remove
from grainline.model import Model, load

LEVELS = (0.01, 0.05, 0.1, 0.2)
PLAIN = Options(sentences=False)


class Measured(NamedTuple):
    """What one seed gives: chances of best hits, and scores and chances of sentences."""

    foreign: np.ndarray  # queries whose picture was never there
    removed: np.ndarray  # queries whose picture was taken out
    there: np.ndarray  # queries whose picture is there
    found: np.ndarray  # bool, whether it is the best hit
    alone: np.ndarray  # single sentences of foreign captions
    true: np.ndarray  # scores of sentences that are true of the picture
    other: np.ndarray  # of another caption
    pairs: dict[str, np.ndarray]  # kind of foil -> [F, 2] true sentence, foil
    support: np.ndarray  # the null scores of sentences


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
    pairs: dict[str, list[tuple[float, float]]] = {}
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
        score = index.scores(np.array([row]), texts)[0]
        true += score[: len(mine)].tolist()
        other += score[len(mine) : len(mine) + len(next_one)].tolist()
        rest = score[len(mine) + len(next_one) :].reshape(2, -1)
        for (kind, _, _), a, b in zip(changed, rest[0].tolist(), rest[1].tolist(), strict=True):
            pairs.setdefault(kind, []).append((a, b))
    return np.array(true), np.array(other), {kind: np.array(pairs[kind]) for kind in sorted(pairs)}


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
    """Two tables: all seeds together, and the range over the seeds."""
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
    truth = Table("sentences", "AUROC", "pairs", *(f"supported at {level:g}" for level in LEVELS))
    true = [chance(one.support, one.true) for one in all_of]
    other = [chance(one.support, one.other) for one in all_of]
    truth.add_row("true of the picture", "", str(sum(map(len, true))), *_shares(np.concatenate(true)))
    area = [auroc(one.true, one.other) for one in all_of]
    truth.add_row(
        "of another caption", _mean(area), str(sum(map(len, other))), *_shares(np.concatenate(other))
    )
    kinds = sorted({kind for one in all_of for kind in one.pairs})
    for kind in [*kinds, "all foils"]:
        pairs = [_pairs(one, kind) for one in all_of]
        said = np.concatenate([chance(one.support, p[:, 1]) for one, p in zip(all_of, pairs, strict=True)])
        area = [auroc(p[:, 0], p[:, 1]) for p in pairs]
        mixed = [auroc(one.true, p[:, 1]) for one, p in zip(all_of, pairs, strict=True)]
        name = f"foil: {kind} (against all true sentences {_mean(mixed)})"
        truth.add_row(name, _mean(area), str(len(said)), *_shares(said))
    console = Console(width=160)
    console.print(alarms)
    console.print(truth)


def _pairs(one: Measured, kind: str) -> np.ndarray:
    return one.pairs[kind] if kind in one.pairs else np.concatenate(list(one.pairs.values()))


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
    parser.add_argument("model")
    parser.add_argument("--pictures", type=int, default=400)
    parser.add_argument("--queries", type=int, default=400)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument(
        "--null", help="as of `grainline index build`; drawn scenes of another seed if not given"
    )
    args = parser.parse_args()
    torch.set_num_threads(1)
    model = load(args.model, device="cpu")
    found = [measure(model, args.pictures, args.queries, 100 + seed, args.null) for seed in range(args.seeds)]
    print(" ".join(sys.argv[1:]), f"seeds 100 to {99 + args.seeds}")
    show(found)


if __name__ == "__main__":
    main()
