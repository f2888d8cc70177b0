"""Does an index know when it has nothing to show, and which sentences its hits show?

Queries are long captions. Without --data, images are drawn scenes: an index holds scenes:dev, queries without
a match are captions of scenes:test, and the drawn world says which of their sentences are true of which hit
(another scene may well show one of them). With --data the images of a source are divided anew for each seed:
half are indexed, the captions of the others are queries without a match, and all their sentences count as
false of every hit.
  - no match: captions whose image is not in the index, and captions of indexed images after that image was
    taken out (scenes only); how many best hits match;
  - match: captions of the indexed images;
  - sentences in the first 3 hits: false ones in hits of queries without a match, true ones in hits that are
    the right image, with the three verdicts; for scenes also true ones in hits of queries without a match,
    and false ones in the right image: a caption is searched with one sentence altered (its foils).

Shares of hits have Wilson's intervals; those of sentences 95 % of a bootstrap over queries.

A model with fresh weights knows nothing to measure, so without MODEL, a trained one, nothing is done.

    python -m benchmarks.bench_calibration [MODEL] [--data PATH] [--null PATH] [--images 300] [--queries 300]
        [--seeds 5] [--sentences N]
"""

import argparse
import random
import re
import sys
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from PIL import Image
from rich.console import Console
from rich.table import Table

from grainline.data.captions import sentences
from grainline.data.open_source import open_source
from grainline.data.record import Record
from grainline.data.scenes import words
from grainline.data.scenes.source import Scenes
from grainline.data.scenes.speech import SceneDescription
from grainline.data.scenes.words import matches, stated
from grainline.data.scenes.world import Background, Scene, holds
from grainline.evaluation.statistics import wilson
from grainline.index.search import Hit, Index, Options, open_index
from grainline.index.sync import add, build, remove
from grainline.loading import load
from grainline.model import Model

LEVELS = (0.01, 0.05, 0.1, 0.2)
PLAIN = Options(sentences=False)
SHOWN = 3  # hits
VERDICTS = ("shows", "cannot tell", "does not")
MATCHES = ("sure", "in part", "none")

Truth = Callable[[str, str], bool]
"""Whether a sentence is true of the image of a key."""


class Item(NamedTuple):
    """An image with its caption."""

    key: str
    image: bytes | Image.Image
    text: str
    foil: tuple[str, str] | None = None  # the caption with one sentence altered, and that sentence


class Data(NamedTuple):
    """What one index is measured with."""

    inside: list[Item]
    outside: list[Item]
    truth: Truth | None  # of sentences of outside captions; None: all are false


class Said(NamedTuple):
    """Verdicts on sentences of one group, with the numbers of their queries."""

    query: list[int]
    verdict: list[str]


class Measured(NamedTuple):
    """What one seed gives: p of best hits, and verdicts on sentences."""

    foreign: np.ndarray  # queries whose image was never there
    removed: np.ndarray  # queries whose image was taken out; empty with --data
    there: np.ndarray  # queries whose image is there
    found: np.ndarray  # bool, whether it is the best hit
    match: dict[str, list[str]]  # of the best hit, by kind of query
    said: dict[str, Said]
    power: float | None  # as the index itself estimates it


def drawn(images: int, queries: int, seed: int, size: int, most: int | None) -> Data:
    """Scenes with their truth. most: sentences of a query, None: all"""
    dev = open_source(f"scenes:dev?count={images}&seed={seed}", size=size)
    test = open_source(f"scenes:test?count={queries}&seed={seed}", size=32)
    assert isinstance(dev, Scenes)
    assert isinstance(test, Scenes)
    known = {f"{dev[i].key}.png": dev.scene(i) for i in range(images)}
    facts: dict[str, Callable[[Scene], bool]] = {}
    for i in range(queries):
        facts |= statements(test.scene(i), test.description(i))
    inside = [_item(dev[i], most, i) for i in range(images)]
    outside = [_item(test[i], most, i) for i in range(queries)]
    return Data(inside, outside, lambda key, text: facts[text](known[key]))


def _item(record: Record, most: int | None, number: int) -> Item:
    """The kinds of foils take turns."""
    foil = record.foils[number % len(record.foils)]
    changed = [b for a, b in zip(_split(foil.true), _split(foil.text), strict=False) if a != b]
    text = " ".join(_split(record.whole)[:most])
    return Item(f"{record.key}.png", record.image, text, (foil.text, changed[0]) if most is None else None)


def statements(scene: Scene, told: SceneDescription) -> dict[str, Callable[[Scene], bool]]:
    """Each sentence of a caption, and whether another scene makes it true, read by itself.

    An object is there if one has all that is stated; a relation holds if two such objects have it ("it" may
    be any); the background is the same, and the number of objects where it is said.
    """
    out: dict[str, Callable[[Scene], bool]] = {}
    for one in told.sentences:
        text = told.long[one.start : one.end]
        if one.kind == "object":
            facts = {name: getattr(scene.things[one.things[0]], name) for name in one.stated}
            out[text] = partial(_has, facts)
        elif one.kind == "relation":
            said = {
                m.thing: {name: getattr(scene.things[m.thing], name) for name in stated(m.pieces)}
                for m in told.mentions
                if one.start <= m.start < one.end
            }
            a, b = (said.get(thing, {}) for thing in one.things)
            out[text] = partial(_related, a, b, one.relation)
        else:
            numbers = {word: number for number, word in words.NUMBERS.items()}
            found = [numbers[word] for word in re.findall("[a-z]+", text.lower()) if word in numbers]
            out[text] = partial(_set_in, scene.background, found)
    return out


def _has(facts: dict[str, str], other: Scene) -> bool:
    return any(matches(thing, facts) for thing in other.things)


def _related(first: dict[str, str], second: dict[str, str], how: str, other: Scene) -> bool:
    return any(
        a is not b and matches(a, first) and matches(b, second) and holds(how, a, b)
        for a in other.things
        for b in other.things
    )


def _set_in(ground: Background, numbers: list[int], other: Scene) -> bool:
    return other.background == ground and numbers in ([], [len(other.things)])


def divided(path: str, images: int, queries: int, seed: int, most: int | None) -> Data:
    """A source, one part of it in the index; the captions of the rest are queries without a match."""
    source = open_source(path)
    order = random.Random(seed).sample(range(len(source)), min(len(source), images + queries))
    items = []
    for i in order:
        record = source[i]
        text = " ".join(_split(record.whole)[:most])
        items.append(Item(f"{i:06}.jpg", record.image, text))
    return Data(items[:images], items[images:], None)


def measure(model: Model, data: Data, null: str | None) -> Measured:
    """One index, one set of queries."""
    with tempfile.TemporaryDirectory() as folder:
        root, out = Path(folder, "images"), Path(folder, "index")
        root.mkdir()
        for item in data.inside:
            if isinstance(item.image, bytes):
                (root / item.key).write_bytes(item.image)
            else:
                item.image.save(root / item.key)
        build(root, out, model=model, calibration_texts=null)
        index = open_index(out, model)
        there = index.search([item.text for item in data.inside], 1, PLAIN)
        found = [a.hits[0].path == item.key for a, item in zip(there, data.inside, strict=True)]
        said, match = _sentences(index, data)
        power = index.reader.calibration.power(Options().support)
        foreign = _best(index, [item.text for item in data.outside])
        removed: list[float] = []
        taken = data.inside[: len(data.inside) // 2]
        for part in (taken, data.inside[len(taken) :]) if data.truth else ():  # half at a time
            remove(out, [item.key for item in part])
            removed += _best(open_index(out, model), [item.text for item in part])
            add(out, [root / item.key for item in part], model=model)
        sure = np.array([answer.hits[0].p for answer in there])
        return Measured(np.array(foreign), np.array(removed), sure, np.array(found), match, said, power)


def _best(index: Index, texts: Sequence[str]) -> list[float]:
    return [answer.hits[0].p for answer in index.search(texts, 1, PLAIN)]


def _sentences(index: Index, data: Data) -> tuple[dict[str, Said], dict[str, list[str]]]:
    """Verdicts on sentences in the first hits, and the match of the best one where it is the right image."""
    said: dict[str, Said] = {}
    match: dict[str, list[str]] = {"no match": []}
    for query, answer in enumerate(index.search([item.text for item in data.outside], SHOWN)):
        match["no match"].append(answer.match)
        for hit in answer.hits:
            right = {one.text for one in hit.sentences if data.truth and data.truth(hit.path, one.text)}
            _take(said, "no match, false of the hit", query, hit, set(_texts(hit)) - right)
            _take(said, "no match, true of the hit", query, hit, right)
    asked = [(i, item, item.text, set(_split(item.text))) for i, item in enumerate(data.inside)]
    match["right image"] = _take_right(said, "right image, true", index, asked)
    asked = [(i, item, item.foil[0], {item.foil[1]}) for i, item in enumerate(data.inside) if item.foil]
    match["right image, one sentence false"] = _take_right(said, "right image, false (foil)", index, asked)
    return said, match


def _take_right(
    said: dict[str, Said], group: str, index: Index, asked: Sequence[tuple[int, Item, str, set[str]]]
) -> list[str]:
    """Verdicts on some sentences of each query in the right image, where it is among the hits.

    Returns the match of each query whose best hit it is.
    """
    match = []
    answers = index.search([text for _, _, text, _ in asked], SHOWN) if asked else []
    for (query, item, _, wanted), answer in zip(asked, answers, strict=True):
        for rank, hit in enumerate(answer.hits):
            if hit.path == item.key:
                _take(said, group, query, hit, wanted)
                match += [hit.match] if rank == 0 else []
    return match


def _take(said: dict[str, Said], group: str, query: int, hit: Hit, wanted: set[str]) -> None:
    for one in hit.sentences:
        if one.text in wanted:
            into = said.setdefault(group, Said([], []))
            into.query.append(query)
            into.verdict.append(one.verdict)


def _texts(hit: Hit) -> list[str]:
    return [one.text for one in hit.sentences]


def _split(text: str) -> list[str]:
    return [sentence.text for sentence in sentences(text)]


def interval(parts: Sequence[Said], verdict: str, resamples: int = 1000) -> tuple[float, float, float]:
    """Share of the sentences with a verdict, and 95 % of a bootstrap over the queries of all indexes."""
    hits, total = [], []
    for part in parts:
        query = np.array(part.query)
        is_it = np.array([one == verdict for one in part.verdict])
        hits.append(np.bincount(query, is_it))
        total.append(np.bincount(query))
    top, all_of = np.concatenate(hits), np.concatenate(total)
    rng = np.random.default_rng(0)
    drawn_ones = rng.integers(0, len(top), (resamples, len(top)))
    shares = top[drawn_ones].sum(1) / all_of[drawn_ones].sum(1)
    low, high = np.percentile(shares, (2.5, 97.5))
    return float(top.sum() / all_of.sum()), float(low), float(high)


def show(all_of: Sequence[Measured]) -> None:
    """Tables: all seeds together, and each seed."""
    alarms = Table("best hits that match", *(f"at {level:g}" for level in LEVELS), "queries", "seeds at 0.05")
    lines = {
        "image never there": [one.foreign for one in all_of],
        "image taken out": [one.removed for one in all_of],
        "image there": [one.there for one in all_of],
        "image there and best hit": [one.there[one.found] for one in all_of],
    }
    for name, parts in lines.items():
        values = np.concatenate(parts)
        if len(values):
            by = " ".join(f"{(part <= 0.05).mean():.3f}" if len(part) else "-" for part in parts)
            alarms.add_row(name, *_shares(values), str(len(values)), by)
    said = Table(f"sentences in the first {SHOWN} hits", "number", *VERDICTS)
    for group in dict.fromkeys(group for one in all_of for group in one.said):
        parts = [one.said[group] for one in all_of if group in one.said]
        cells = [_percent(*interval(parts, verdict)) for verdict in VERDICTS]
        said.add_row(group, f"{sum(len(part.query) for part in parts):,}", *cells)
    matches = Table("match of the best hit", "queries", *MATCHES)
    for group in all_of[0].match:
        values = [match for one in all_of for match in one.match[group]]
        shares = [wilson(values.count(match), len(values)) for match in MATCHES] if values else []
        matches.add_row(group, f"{len(values):,}", *(_percent(x.value, x.low, x.high) for x in shares))
    console = Console(width=180)
    for table in (alarms, matches, said):
        console.print(table)
    powers = ["unknown" if one.power is None else f"{one.power:.3f}" for one in all_of]
    console.print("power by the indexes' own estimate:", " ".join(powers))


def _percent(value: float, low: float, high: float) -> str:
    return f"{100 * value:.1f} % ({100 * low:.1f} to {100 * high:.1f})"


def _shares(values: np.ndarray) -> list[str]:
    out = []
    for level in LEVELS:
        share = wilson(int((values <= level).sum()), len(values))
        out.append(f"{share.value:.3f} ({share.low:.3f}-{share.high:.3f})")
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("model", nargs="?")
    parser.add_argument("--data", help="a source with captions; drawn scenes if not given")
    parser.add_argument("--images", type=int, default=300)
    parser.add_argument("--queries", type=int, default=300)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--sentences", type=int, help="cut queries after so many; all if not given")
    parser.add_argument("--null", help="as of `grainline index build`; drawn scenes if not given")
    args = parser.parse_args()
    if args.model is None:
        print("# calibration: not measured, it wants a trained model: bench_calibration MODEL")
        return
    torch.set_num_threads(1)
    model = load(args.model, device="cpu")
    found = []
    for seed in range(100, 100 + args.seeds):
        if args.data:
            data = divided(args.data, args.images, args.queries, seed, args.sentences)
        else:
            data = drawn(args.images, args.queries, seed, model.method.size, args.sentences)
        found.append(measure(model, data, args.null))
    print(" ".join(sys.argv[1:]), f"seeds 100 to {99 + args.seeds}")
    show(found)


if __name__ == "__main__":
    main()
