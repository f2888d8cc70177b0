"""`grainline encode` against the plain loop over a source: what units, claims and parts cost.

    python -m benchmarks.bench_encode MODEL DATA [--rows 100 1000]

Both encode all images and texts of the data in this process. Paired, so that a slow minute hits both.
"""

import argparse
import itertools
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.harness import keep_pages, paired, report
from grainline.data.open_source import open_source
from grainline.embedding.work import Settings, Work, work_through
from grainline.evaluation.encode import encode_source
from grainline.loading import load


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("model")
    parser.add_argument("data")
    parser.add_argument("--rows", type=int, nargs="+", default=[100, 1000])
    parser.add_argument("--repeats", type=int, default=7)
    args = parser.parse_args()
    model, source = load(args.model), open_source(args.data)
    for rows in args.rows:
        with TemporaryDirectory() as home:
            folders = map(str, itertools.count())

            def in_units(rows: int = rows, home: str = home, folders: Iterator[str] = folders) -> None:
                work = Work(model, Path(home) / next(folders), Settings(args.data, rows=rows))
                work_through(work)
                work.finish()

            def plain() -> None:
                encode_source(model, source, keep_tokens=False)

            ratio = paired(plain, in_units, args.repeats)
            report(f"encode in parts of {rows} / plain loop", ratio, "x", at_most=1.1, images=len(source))


if __name__ == "__main__":
    keep_pages()
    main()
