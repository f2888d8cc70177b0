"""`grainline serve` under load: many clients at a time, then one, over loopback, against a server of its own.

The model is that of recipe maxsim/scenes with fresh weights, since speed does not depend on them, unless
--index names another index. Every request is a text of another scene. Clients are threads of this process and
share the machine with the server.

    python -m benchmarks.bench_serve [--seconds 60] [--clients 32] [--images 2000] [--index INDEX]
"""

import argparse
import http.client
import itertools
import json
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from benchmarks.harness import report
from grainline.build import build as build_method
from grainline.build import write_description
from grainline.data.open_source import open_source
from grainline.data.tokenizers.tokenizer import Tokenizer
from grainline.index.sync import build
from grainline.model import Model
from grainline.training.recipe import read_recipe
from grainline.weights import save_weights

QUERIES = "scenes:test?count=512&size=32&seed=5"


class Load(NamedTuple):
    """What a number of clients met."""

    times: np.ndarray  # seconds of every request that was answered
    errors: int
    wall: float

    @property
    def rate(self) -> float:
        return len(self.times) / self.wall


def prepared(folder: Path, images: int) -> Path:
    """An index of drawn scenes."""
    recipe = read_recipe("maxsim/scenes", [])
    torch.manual_seed(0)
    description = recipe.description
    tokenizer = Tokenizer.train(
        [record.whole for record in records("scenes:train?count=300&size=32")], vocab=1024
    )
    model = Model(description, build_method(description), tokenizer)
    (folder / "model").mkdir()
    write_description(folder / "model", description)
    tokenizer.save(folder / "model")
    save_weights(folder / "model" / "model.safetensors", model.method)
    (folder / "images").mkdir()
    for record in records(f"scenes:dev?count={images}&size={model.method.size}"):
        assert not isinstance(record.image, bytes)
        record.image.save(folder / "images" / f"{record.key}.png")
    build(folder / "images", folder / "index", model=str(folder / "model"))
    return folder / "index"


def records(path: str) -> list:
    source = open_source(path, size=None)
    return [source[i] for i in range(len(source))]


def load(port: int, bodies: Sequence[bytes], clients: int, duration: float) -> Load:
    """Clients that each ask again as soon as they have an answer."""
    turns = itertools.cycle(bodies)
    times: list[float] = []
    errors: list[int] = []
    start = time.perf_counter()

    def client() -> None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        while time.perf_counter() - start < duration:
            begun = time.perf_counter()
            connection.request("POST", "/api/search", next(turns), {"Content-Type": "application/json"})
            response = connection.getresponse()
            response.read()
            if response.status == 200:
                times.append(time.perf_counter() - begun)
            else:
                errors.append(response.status)
        connection.close()

    threads = [threading.Thread(target=client) for _ in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return Load(np.array(times), len(errors), time.perf_counter() - start)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--images", type=int, default=2000)
    parser.add_argument("--index", type=Path)
    args = parser.parse_args()
    bodies = [json.dumps({"text": record.whole, "k": 12}).encode() for record in records(QUERIES)]
    with tempfile.TemporaryDirectory() as folder:
        index = args.index or prepared(Path(folder), args.images)
        command = [sys.executable, "-m", "grainline", "serve", str(index), "--port", "0"]
        server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        try:
            assert server.stdout is not None
            found = re.search(r":(\d+)/", server.stdout.readline())
            assert found, "the server did not start"
            port = int(found.group(1))
            load(port, bodies, args.clients, min(2.0, args.seconds))  # warm
            one = load(port, bodies, 1, args.seconds)
            many = load(port, bodies, args.clients, args.seconds)
        finally:
            server.terminate()
            server.wait()
    for name, measured in ((f"{args.clients} clients", many), ("one client", one)):
        p50, p99 = np.quantile(measured.times, [0.5, 0.99])
        facts = {"errors": measured.errors, "requests": len(measured.times), "seconds": measured.wall}
        report(f"serve: {name}, queries a second", measured.rate, "1/s", **facts)
        report(f"serve: {name}, median time of a query", p50 * 1000, "ms")
        report(f"serve: {name}, 99th percentile", p99 * 1000, "ms")
    report("serve: errors", many.errors + one.errors, "", at_most=0)
    report(f"serve: queries a second, {args.clients} clients / one", many.rate / one.rate, "x")


if __name__ == "__main__":
    main()
