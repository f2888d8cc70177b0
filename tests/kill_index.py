"""Kills an index at every call that writes, and at random: a program of its own for test_index_kills.py.

    python tests/kill_index.py FOLDER [--kills 100]

`near` is a refresh of an index with an inverted file, as one of very many images has; it writes all that a
refresh without one does. Prints how many points each operation had, and how many of the random kills fell
into the work.
"""

import argparse
import io
import os
import random
import shutil
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import torch
from indexes import content, photo, photos, texts, tiny_model, tree

from grainline.index import inverted
from grainline.index.inverted import Inverted, open_candidates
from grainline.index.reader import IndexReader
from grainline.index.store import ANN, MANIFEST, SEGMENTS, read_manifest
from grainline.index.sync import add, build, refresh, remove

KILLED = 9
CHUNK = 2
KILLS = 6
FEW, MANY = 2, inverted.EXACT  # images beyond which an inverted file is kept
CALLS = ((os, "fsync"), (os, "rename"), (os, "mkdir"), (os, "unlink"), (os, "rmdir"), (os, "ftruncate"))
HALVES = ((np, "save"), (Path, "write_text"), (faiss, "write_index"))  # die in the middle of writing


def count_or_die(at: int) -> list[int]:
    """Let the calls that change a disk pass until the one numbered `at`, from 0; that one is the last."""
    seen = [0]

    def wrap(owner: Any, name: str, half: bool) -> None:
        real = getattr(owner, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            if seen[0] == at:
                if half:
                    write_half(real, *args, **kwargs)
                os._exit(KILLED)
            seen[0] += 1
            return real(*args, **kwargs)

        setattr(owner, name, call)

    for owner, name in CALLS:
        wrap(owner, name, half=False)
    for owner, name in HALVES:
        wrap(owner, name, half=True)
    return seen


def write_half(real: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
    real(*args, **kwargs)
    if isinstance(args[0], io.IOBase):
        args[0].flush()
    places = (Path(x) for x in (getattr(args[0], "name", args[0]), *args[1:2]) if isinstance(x, str | Path))
    target = next(places)
    os.truncate(target, target.stat().st_size // 2)


def in_child(act: Callable[[Path], Any], out: Path, at: int) -> bool:
    """Do it in a process that dies at a point; whether it died."""
    child = os.fork()
    if child == 0:
        count_or_die(at)
        try:
            act(out)
        except BaseException as error:
            print(f"the process failed by itself: {error!r}", file=sys.stderr)
            os._exit(1)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    assert code in (0, KILLED), code
    return code == KILLED


class Trial:
    """One operation on a small index: five images, then some of them changed, new, gone or broken."""

    def __init__(self, folder: Path, operation: str) -> None:
        self.folder, self.operation = folder, operation
        self.model, self.null = tiny_model(), texts(folder, 20)
        self.root, self.base = photos(folder / "photos", 5), folder / "base"
        inverted.EXACT = FEW if operation == "near" else MANY
        if operation != "build":
            build(self.root, self.base, model=self.model, calibration_texts=self.null, chunk=CHUNK)
            (self.root / "01.png").unlink()
            photo(self.root / "02.png", 77)
            photo(self.root / "new.png", 78)
            photo(self.root / "newer.png", 79)
            (self.root / "bad.png").write_bytes(b"no image")

    def fresh(self, name: str) -> Path:
        """A copy of the index as it is before the operation."""
        out = self.folder / name
        shutil.rmtree(out, ignore_errors=True)
        if self.base.exists():
            shutil.copytree(self.base, out)
        return out

    def act(self, out: Path) -> None:
        if self.operation == "build":
            build(self.root, out, model=self.model, calibration_texts=self.null, chunk=CHUNK)
        elif self.operation == "add":
            paths = [self.root / name for name in ("new.png", "newer.png", "02.png")]
            add(out, paths, model=self.model, chunk=CHUNK)
        elif self.operation == "remove":
            remove(out, ["below"])
        else:
            refresh(out, model=self.model, chunk=CHUNK)

    def finish(self, out: Path) -> None:
        """The same command again, and what a user does next."""
        self.act(out)
        if self.operation != "build":
            refresh(out, model=self.model, chunk=CHUNK)


def points(folder: Path, operation: str) -> int:
    """Kill one operation at every point; the index must stay good and end as that of a whole run."""
    trial = Trial(folder, operation)
    whole = trial.fresh("whole")
    before = content(whole) if operation != "build" else {}
    trial.act(whole)
    after = content(whole)
    if operation != "build":
        refresh(whole, model=trial.model, chunk=CHUNK)
    final, expected = content(whole), tree(whole)
    if operation == "near":
        check_near(whole)
        expected = tree(whole)
    number = 0
    while in_child(trial.act, trial.fresh("out"), number):
        out = folder / "out"
        if (out / MANIFEST).exists():
            check_half(content(out), before, after, number)
        trial.finish(out)
        if operation == "remove":  # what is compacted depends on what was committed before the kill
            assert content(out) == final, number
            kept = {part.name for part in read_manifest(out).segments}
            assert {path.name for path in (out / SEGMENTS).iterdir()} == kept, number
        else:
            if operation == "near":
                check_near(out)
            mine = tree(out)
            assert mine.keys() == expected.keys(), (number, mine.keys() ^ expected.keys())
            assert mine == expected, (number, [name for name in mine if mine[name] != expected[name]])
        number += 1
    return number


def check_near(out: Path) -> None:
    """One inverted file that is whole and finds every image. Drops it: its number depends on the kills."""
    opened = IndexReader(out)
    finder = open_candidates(out, opened.segments)
    assert isinstance(finder, Inverted), finder.note
    vectors = np.concatenate([vector[live] for vector, live in zip(opened.vectors, opened.live, strict=True)])
    near = finder.top(vectors, len(vectors))
    assert all(sorted(row) == list(range(len(vectors))) for row in near.row.tolist())
    assert len(list((out / ANN).iterdir())) == 1
    shutil.rmtree(out / ANN)


Content = dict[str, tuple[Any, str]]


def check_half(found: Content, before: Content, after: Content, number: int) -> None:
    """After a kill every row is an old or a new one, and none is gone that neither side misses."""
    for path, row in found.items():
        assert row in (before.get(path), after.get(path)), (number, path)
    lost = [path for path in before.keys() & after.keys() if path not in found]
    assert not lost, (number, lost)


def randomly(folder: Path, kills: int) -> int:
    """Kill a build with SIGKILL at random times and go on; nothing that was committed may get lost."""
    model, null = tiny_model(), texts(folder, 20)
    root, out = photos(folder / "photos", 24), folder / "out"
    inverted.EXACT = FEW
    begun = time.perf_counter()
    build(root, folder / "whole", model=model, calibration_texts=null, chunk=1)
    takes = time.perf_counter() - begun
    check_near(folder / "whole")
    whole = tree(folder / "whole")
    rng, seen, inside = random.Random(5), 0, 0
    for _ in range(20 * kills):
        child = os.fork()
        if child == 0:
            try:
                build(root, out, model=model, calibration_texts=null, chunk=1)
            finally:
                os._exit(0)
        time.sleep(rng.random() * takes)
        os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        if not os.WIFSIGNALED(status):  # it had come to its end: begin another
            check_near(out)
            assert tree(out) == whole
            shutil.rmtree(out)
            seen = 0
            continue
        inside += 1
        if (out / MANIFEST).exists():
            number = len(content(out))
            assert number >= seen, (number, seen)
            seen = number
        if inside == kills:
            break
    build(root, out, model=model, calibration_texts=null, chunk=1)
    check_near(out)
    assert tree(out) == whole
    return inside


def main() -> None:
    torch.set_num_threads(1)
    os.fsync = lambda _: None  # what a killed process has written is there; only a dead machine forgets it
    faiss.omp_set_num_threads(1)  # its threads do not live on in a child
    parser = argparse.ArgumentParser(description="Kill an index at every write, and at random.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--kills", type=int, default=KILLS, help="at random moments")
    args = parser.parse_args()
    for operation in ("build", "add", "remove", "near", "random"):
        here = args.folder / operation
        here.mkdir(parents=True)
        number = randomly(here, args.kills) if operation == "random" else points(here, operation)
        print(operation, number, flush=True)


if __name__ == "__main__":
    main()
