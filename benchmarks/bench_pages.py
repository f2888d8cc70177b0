"""What it costs to check every byte of an index before it is used.

Three ways over the same segments of 512 images, with vectors of width 512, scores of 1,000 calibration
texts, of a sentence and of a span of each, and 49 tokens for each image:
  pages   as an index is read: a crc32 of each page, when it is first used
  none    no array is checked
  whole   as before there were pages: at each opening the sha256 of all files but the tokens, which nothing
          checks

`open` is opening the segments; `first` is opening and a first search: all vectors for one query, what the
calibration texts score, and the tokens of 200 candidates; `later` is the same search once the pages are
checked. The files are in the file cache. Times are those of the processor, so that other programs matter
less.

    python -m benchmarks.bench_pages [--images 10000] [--repeats 7]
"""

import argparse
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from benchmarks.harness import Ratio, interval, keep_pages, report
from grainline.index import store as segments_module
from grainline.index.candidates import Exact
from grainline.index.store import (
    NULL_SENTENCES,
    NULL_SPANS,
    NULL_TEXTS,
    SEGMENTS,
    TOKENS,
    VECTORS,
    Column,
    Part,
    Row,
    Segment,
    open_segment,
    take,
    write_segment,
)
from grainline.index.writer import CHUNK

WIDTH, TEXTS, LENGTH, BACKGROUND, CANDIDATES, K = 512, 1_000, 49, 256, 200, 10


def written(folder: Path, images: int) -> list[tuple[Path, Part]]:
    rng = np.random.default_rng(0)
    out = []
    for number, start in enumerate(range(0, images, CHUNK)):
        rows = [Row(f"{i}.jpg", f"{i:064d}", 1, 1) for i in range(start, min(start + CHUNK, images))]
        vectors = rng.standard_normal((len(rows), WIDTH), np.float32)
        arrays = {
            VECTORS: vectors / np.linalg.norm(vectors, axis=1, keepdims=True),
            NULL_TEXTS: rng.standard_normal((len(rows), TEXTS), np.float32).astype(np.float16),
            NULL_SENTENCES: rng.standard_normal((len(rows), TEXTS), np.float32).astype(np.float16),
            NULL_SPANS: rng.standard_normal((len(rows), TEXTS), np.float32).astype(np.float16),
            TOKENS: rng.standard_normal((len(rows), LENGTH, WIDTH), np.float32).astype(np.float16),
        }
        target = folder / SEGMENTS / f"{number:08d}"
        out.append((target, write_segment(target, rows, arrays)))
    return out


def opened(parts: Sequence[tuple[Path, Part]]) -> list[Segment]:
    return [open_segment(target, part) for target, part in parts]


def search(segments: Sequence[Segment]) -> None:
    """What a search reads of an index."""
    where = np.array([(i, row) for i, one in enumerate(segments) for row in range(len(one.rows))])
    rng = np.random.default_rng(1)
    query = rng.standard_normal((1, WIDTH), np.float32)
    scan = Exact([one.arrays[VECTORS].whole() for one in segments], [one.live for one in segments])
    scan.top(query / np.linalg.norm(query), K)
    for one in segments:
        for name in (NULL_TEXTS, NULL_SPANS):
            one.arrays[name][one.live].max(0)
    take([one.arrays[NULL_SENTENCES] for one in segments], where[rng.permutation(len(where))[:BACKGROUND]])
    take([one.arrays[TOKENS] for one in segments], where[rng.permutation(len(where))[:CANDIDATES]])


@contextmanager
def way(name: str) -> Iterator[None]:
    """How arrays are checked within this block."""
    check, files = Column._check, segments_module.check_files
    try:
        if name != "pages":
            Column._check = lambda column, _: column._unchecked.fill(False)  # type: ignore[method-assign, assignment]
        if name == "whole":
            segments_module.check_files = lambda folder, of, _: files(folder, of, [f"{TOKENS}.npy"])  # type: ignore[assignment]
        yield
    finally:
        Column._check, segments_module.check_files = check, files  # type: ignore[method-assign, assignment]


def within(name: str, call: Callable[[], object]) -> Callable[[], None]:
    def run() -> None:
        with way(name):
            call()

    return run


def seconds(call: Callable[[], object]) -> float:
    """Processor time of one call."""
    start = time.process_time()
    call()
    return time.process_time() - start


def ratio(a: Callable[[], object], b: Callable[[], object], repeats: int) -> Ratio:
    """Time of b over time of a, from pairs in turns."""
    a(), b()
    pairs = []
    for turn in range(repeats):
        times = {call: seconds(call) for call in ((a, b) if turn % 2 else (b, a))}
        pairs.append(times[b] / times[a])
    return interval(pairs)


def measure(folder: Path, images: int, repeats: int) -> None:
    parts = written(folder, images)
    calls = {"open": lambda: opened(parts), "first": lambda: search(opened(parts))}
    facts = {"images": images, "megabytes": sum(p.stat().st_size for p in folder.rglob("*.npy")) / 1e6}
    for what, call in calls.items():
        for other in ("none", "whole"):
            times = ratio(within(other, call), within("pages", call), repeats)
            report(f"checks, {what}: time with pages / {other}", times, "x", **facts)
        for name in ("pages", "none", "whole"):
            times = interval([1000 * seconds(within(name, call)) for _ in range(repeats)])
            report(f"checks, {what}: {name}", times, "ms")
    checked, unchecked = opened(parts), opened(parts)
    search(checked)
    times = ratio(within("none", lambda: search(unchecked)), lambda: search(checked), repeats)
    report("checks, later: time with pages / none", times, "x")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--images", type=int, default=10_000)
    parser.add_argument("--repeats", type=int, default=7)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        measure(Path(folder), args.images, args.repeats)


if __name__ == "__main__":
    keep_pages()
    main()
