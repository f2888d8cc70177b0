"""Finding candidates: the exact scan, FAISS Flat, and the inverted file of an index.

The vectors are unit vectors around centres, one centre for a hundred of them; the queries are others around
the same centres. `recall@10` is the share of the ten true neighbours that are found. Both exact ways of ours
score what may be among the best in float64; that they find what float64 finds is checked first.

    python -m benchmarks.bench_search [--sizes 10000 100000] [--width 512] [--queries 64] [--repeats 7]

With `--sizes 1000000` it needs 8 GB of memory and 3 GB of disk.
"""

import argparse
import tempfile
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import faiss
import numpy as np

from benchmarks.harness import interval, keep_pages, paired, report, seconds
from grainline.index import candidates
from grainline.index.candidates import Candidates, Exact, Inverted, open_candidates, update_inverted
from grainline.index.store import SEGMENTS, VECTORS, Row, Segment, open_segment, write_segment

K = 10
SPREAD = 0.7  # length of what a vector has beside its centre, whose length is 1
GATES = {"float32": 3.0}  # times as fast as FAISS Flat, for many queries at a time
CHECKED = 4  # queries that are compared with float64


class Data(NamedTuple):
    """Vectors and queries."""

    vectors: np.ndarray  # [N, D]
    queries: np.ndarray  # [M, D]


class Flat:
    """FAISS's own exact search behind our interface."""

    note = ""

    def __init__(self, vectors: np.ndarray) -> None:
        self.index = faiss.IndexFlatIP(vectors.shape[1])
        self.index.add(vectors)

    def top(self, queries: np.ndarray, k: int) -> Candidates:
        score, row = self.index.search(queries, k)
        return Candidates(row, score)


def make(number: int, width: int, queries: int) -> Data:
    """The same for the same sizes."""
    rng = np.random.default_rng(number)
    centres = _unit(rng.standard_normal((max(1, number // 100), width), np.float32))
    vectors = np.empty((number, width), np.float32)
    for start in range(0, number, 65_536):
        vectors[start : start + 65_536] = _around(rng, centres, min(65_536, number - start))
    return Data(vectors, _around(rng, centres, queries))


def measure(data: Data, repeats: int) -> None:
    """All ways over the same vectors."""
    ways: dict[str, Any] = {"float32": Exact([data.vectors], [np.ones(len(data.vectors), bool)])}
    for name, way in ways.items():
        _check(way, data, name)
    flat = Flat(data.vectors)
    size = f"search: {len(data.vectors):,} x {data.vectors.shape[1]}"
    for name, way in ways.items():
        for queries in (data.queries, data.queries[:1]):
            ratio = paired(partial(way.top, queries, K), partial(flat.top, queries, K), repeats)
            gate = GATES[name] if len(queries) > 1 else None
            report(f"{size}, {_many(queries)}: FAISS Flat / {name}", ratio, "x", at_least=gate)
    ways["FAISS Flat"] = flat
    true = ways["float32"].top(data.queries, K).row
    for name, way in ways.items():
        _speed(f"{size}, {name}", way, data, true, repeats)
    del flat, ways["FAISS Flat"]
    with tempfile.TemporaryDirectory() as folder:
        segments = [_segment(Path(folder), data.vectors)]
        report(
            f"{size}, inverted file: made in", seconds(lambda: update_inverted(Path(folder), segments)), "s"
        )
        report(
            f"{size}, inverted file: opened in", seconds(lambda: open_candidates(Path(folder), segments)), "s"
        )
        found = open_candidates(Path(folder), segments)
        assert isinstance(found, Inverted)
        probes, lists = found.how.nprobe, found.index.nlist
        _speed(f"{size}, {probes} of {lists} lists", found, data, true, repeats)


def _speed(what: str, way: Any, data: Data, true: np.ndarray, repeats: int) -> None:
    found = way.top(data.queries, K).row
    recall = float(np.mean([len(set(a) & set(b)) / K for a, b in zip(found, true, strict=True)]))
    way.top(data.queries[:1], K)
    one = interval([seconds(partial(way.top, data.queries[:1], K)) * 1000 for _ in range(3 * repeats)])
    many = interval([len(data.queries) / seconds(partial(way.top, data.queries, K)) for _ in range(repeats)])
    report(f"{what}: one query", one, "ms")
    report(f"{what}: {_many(data.queries)}", many, "queries/s", recall_at_10=recall)
    report(f"{what}: recall@{K}", recall, "")


def _many(queries: np.ndarray) -> str:
    return f"{len(queries)} queries" if len(queries) > 1 else "one query"


def _check(way: Exact, data: Data, name: str) -> None:
    """Against products in float64."""
    found = way.top(data.queries[:CHECKED], K).row
    for query, row in zip(data.queries.astype(np.float64), found, strict=False):
        blocks = np.array_split(data.vectors, max(1, len(data.vectors) // 65_536))
        score = np.concatenate([block.astype(np.float64) @ query for block in blocks])
        assert set(row) == set(np.argsort(-score)[:K]), f"{name} is not exact"


def _segment(folder: Path, vectors: np.ndarray) -> Segment:
    rows = [Row(str(i), "", 0, 0) for i in range(len(vectors))]
    target = folder / SEGMENTS / "00000000"
    return open_segment(target, write_segment(target, rows, {VECTORS: vectors}))


def _around(rng: np.random.Generator, centres: np.ndarray, number: int) -> np.ndarray:
    noise = rng.standard_normal((number, centres.shape[1]), np.float32) * (SPREAD / centres.shape[1] ** 0.5)
    return _unit(centres[rng.integers(len(centres), size=number)] + noise)


def _unit(x: np.ndarray) -> np.ndarray:
    unit: np.ndarray = x / np.linalg.norm(x, axis=1, keepdims=True)
    return unit


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--sizes", type=int, nargs="+", default=[10_000, 100_000])
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--queries", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=7)
    args = parser.parse_args()
    candidates.EXACT = 0  # an index of any size gets its inverted file here
    for size in args.sizes:
        measure(make(size, args.width, args.queries), args.repeats)


if __name__ == "__main__":
    keep_pages()
    main()
