"""Tars on S3 against the same tars on a disk, and ten million samples: memory of a loader process, and start.

    python -m benchmarks.bench_remote DIR-OF-TARS [--samples 10000000]      needs `make engines`

The S3 server is moto, which runs on the same cores as the loader, so it is the bound. Images a second are
those of 40 batches of random crops, first with an empty cache of blocks, then with a full one. The index of
ten million samples is invented: 10,000 in each tar, with keys of 9 digits as img2dataset writes them, and the
places of images that are really there, so that batches can be read.
"""

import argparse
import itertools
import os
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch

from benchmarks.harness import interval, report
from grainline.data.batches import load_batches
from grainline.data.dataset import Batches, TrainSet
from grainline.data.formats import tar_index
from grainline.data.formats.common import digest
from grainline.data.formats.ranges import _objects
from grainline.data.formats.storage import state_of
from grainline.data.open_source import open_source
from grainline.data.record import Source
from grainline.data.texts import TextsConfig
from grainline.data.tokenizers.tokenizer import Tokenizer
from grainline.data.transforms import TrainTransform

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

EACH = 10_000  # samples of a tar
BATCH = 64


def batches(source: Source, number: int, workers: int) -> Any:
    tokenizer = Tokenizer.train(["A dog runs over the grass."], 600)
    data = TrainSet(source, tokenizer, TrainTransform(224), TextsConfig(), context=32, seed=0)
    return load_batches(data, Batches(len(source), BATCH, 0, range(number)), workers)


def rate(source: Source, number: int) -> float:
    """Images a second of some batches, in this process."""
    start = time.perf_counter()
    for _ in batches(source, number, 0):
        pass
    return number * BATCH / (time.perf_counter() - start)


def throughput(folder: Path) -> None:
    import s3fs
    from clouds import BUCKET, s3_server, upload

    with s3_server() as proxy:
        behind = f"http://127.0.0.1:{proxy.behind}"
        os.environ |= {"AWS_ENDPOINT_URL": behind, "AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "x"}
        fs = s3fs.S3FileSystem()
        fs.mkdir(BUCKET)
        here, there = open_source(str(folder)), open_source(upload(fs, folder, "tars"))
        number = min(40, len(here) // BATCH)
        for what in ("first", "second"):
            ratios = []
            for _ in range(5):
                if what == "first":  # the index stays, the blocks go
                    _objects.cache_clear()
                    for file in (Path(os.environ["GRAINLINE_CACHE"]) / "remote").glob("*/*"):
                        file.unlink()
                ratios.append(rate(there, number) / rate(here, number))
            report(f"S3 / disk, {what} epoch", interval(ratios), "x", images_a_second=rate(here, number))


def invent(folder: Path, real: Path, samples: int) -> None:
    """Tars with the index of many samples, all of which are links to one that is real."""
    shard = tar_index.load_shard(str(real))
    spans = shard.spans[np.arange(EACH) % len(shard.keys)]
    rng = np.random.default_rng(0)
    for number in range(samples // EACH):
        path = folder / f"{number:05d}.tar"
        os.link(real, path)
        letters = "".join(f"{number:05d}{row:04d}" for row in range(EACH)).encode()
        keys = tar_index.Keys(np.arange(9, 9 * EACH + 1, 9, np.uint32), np.frombuffer(letters, np.uint8))
        hashes = rng.integers(0, 2**63, EACH).astype(np.uint64)
        about = shard._replace(path=str(path), digest=digest([number]), hashes=hashes, keys=keys, spans=spans)
        file = tar_index.index_file(str(path))
        file.parent.mkdir(parents=True, exist_ok=True)
        tar_index._write_index(file, about._replace(changed=state_of(str(path)).changed))


def memory(process: int | str) -> tuple[float, float]:
    """Resident memory, and its share where pages that several processes use count in parts, in MiB."""
    lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
    sizes = {line.split()[0]: int(line.split()[1]) / 1024 for line in lines[1:]}
    return sizes["Rss:"], sizes["Pss:"]


def open_and_read(folder: Path) -> None:
    """Start and memory with many samples, in this process and its workers."""
    before, start = memory("self")[0], time.perf_counter()
    source = open_source(str(folder))
    source.fingerprint()
    report(f"{len(source):,} samples: start", time.perf_counter() - start, "s", at_most=30)
    loader = batches(source, 1000, 2)
    list(itertools.islice(loader, 200))
    workers = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    whole, shared = (max(one) for one in zip(*map(memory, workers), strict=True))
    facts = {"shared_in_parts": shared, "parent": memory("self")[0], "before": before}
    report(f"{len(source):,} samples: memory of a worker", whole, "MiB", at_most=1024, **facts)
    loader.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--samples", type=int, default=10_000_000)
    parser.add_argument("--only-open", action="store_true", help="start and memory with the tars of a folder")
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.only_open:
        open_and_read(args.folder)
        return
    with TemporaryDirectory() as home:
        os.environ["GRAINLINE_CACHE"] = f"{home}/cache"
        throughput(args.folder)
        tars, real = Path(home) / "tars", Path(home) / "real.tar"
        tars.mkdir()
        real.write_bytes(next(iter(sorted(args.folder.glob("*.tar")))).read_bytes())
        invent(tars, real, args.samples)
        command = [sys.executable, "-m", "benchmarks.bench_remote", str(tars), "--only-open"]
        subprocess.run(command, check=True)


if __name__ == "__main__":
    main()
