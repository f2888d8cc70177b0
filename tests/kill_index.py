"""An index interrupted at every call that writes, and killed at random: the program of test_index_kills.py.

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
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest.mock import patch

import faiss
import numpy as np
import torch
from indexes import content, photo, photos, texts, tiny_model, tree

from grainline.index import candidates
from grainline.index.candidates import Inverted, open_candidates
from grainline.index.reader import IndexReader
from grainline.index.store import ANN, MANIFEST, SEGMENTS, read_manifest
from grainline.index.sync import add, build, refresh, remove

CHUNK = 2
KILLS = 6
FEW, MANY = 2, candidates.EXACT  # images beyond which an inverted file is kept
CALLS = [(os, name) for name in ("fsync", "replace", "rename", "mkdir", "unlink", "rmdir", "ftruncate")]
HALVES = ((np, "save"), (Path, "write_text"), (faiss, "write_index"))  # die in the middle of writing


class Interrupted:
    """What a process leaves behind that dies at a call that changes the disk, for every such call of `act`.

    The process is not killed but looked at: nothing that it does later can change what a dead one leaves.

    copies  folder for copies of the index, each as it is just before a call, or with a file half written
    """

    def __init__(self, act: Callable[[Path], Any], out: Path, copies: Path) -> None:
        self.out, self.copies = out, copies
        self.calls = 0
        self.states: dict[int, Path] = {}  # by the number of the call, from 0; equal ones once
        self._known: set[frozenset[tuple[str, bytes]]] = set()
        self._copying = False
        copies.mkdir()
        with ExitStack() as patches:
            for owner, name in CALLS:
                patches.enter_context(patch.object(owner, name, self._before(getattr(owner, name))))
            for owner, name in HALVES:
                patches.enter_context(patch.object(owner, name, self._halfway(getattr(owner, name))))
            act(out)

    def _before(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            if not self._copying:
                self._copy()
            return real(*args, **kwargs)

        return call

    def _halfway(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            result = real(*args, **kwargs)
            if not self._copying:
                self._copy(written(*args))
            return result

        return call

    def _copy(self, half: Path | None = None) -> None:
        self._copying = True
        if half or (self.out.exists() and state(self.out) not in self._known):
            copy = self.copies / str(self.calls)
            shutil.copytree(self.out, copy)
            if half:
                os.truncate(copy / half.relative_to(self.out), half.stat().st_size // 2)
            if state(copy) not in self._known:
                self._known.add(state(copy))
                self.states[self.calls] = copy
        self.calls += 1
        self._copying = False


def written(*args: Any) -> Path:
    """The file that one of HALVES has written, from its arguments."""
    if isinstance(args[0], io.IOBase):
        args[0].flush()
        return Path(args[0].name)
    return next(Path(x) for x in args[:2] if isinstance(x, str | Path))


def state(folder: Path) -> frozenset[tuple[str, bytes]]:
    """All files of an index and its folders, which have no bytes."""
    folders = {path.relative_to(folder).as_posix(): b"" for path in folder.rglob("*") if path.is_dir()}
    return frozenset((tree(folder) | folders).items())


class Trial:
    """One operation on a small index: four images, then some of them changed, new, gone or broken."""

    def __init__(self, folder: Path, operation: str) -> None:
        self.folder, self.operation = folder, operation
        self.model, self.null = tiny_model(), texts(folder, 20)
        self.root, self.base = photos(folder / "photos", 4), folder / "base"
        candidates.EXACT = FEW if operation == "near" else MANY
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
    if operation == "near":
        check_near(whole)
    final, expected = content(whole), tree(whole)
    stopped = Interrupted(trial.act, trial.fresh("out"), folder / "copies")
    for number, out in stopped.states.items():
        if (out / MANIFEST).exists():
            check_half(content(out), before, after, number)
        trial.finish(out)
        if operation == "remove":  # what is compacted depends on what was committed before the kill
            assert content(out) == final, number
            named = {part.name for part in read_manifest(out).segments}
            assert {path.name for path in (out / SEGMENTS).iterdir()} == named, number
        else:
            if operation == "near":
                check_near(out)
            files = tree(out)
            differing = [name for name in files | expected if files.get(name) != expected.get(name)]
            assert not differing, (number, differing)
    return stopped.calls


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


def check_half(rows: Content, before: Content, after: Content, number: int) -> None:
    """After a kill every row is an old or a new one, and none is gone that neither side misses."""
    for path, row in rows.items():
        assert row in (before.get(path), after.get(path)), (number, path)
    assert before.keys() & after.keys() <= rows.keys(), number


def randomly(folder: Path, kills: int) -> int:
    """Kill a build with SIGKILL at random times and go on; nothing that was committed may get lost."""
    model, null = tiny_model(), texts(folder, 20)
    root, out = photos(folder / "photos", 24), folder / "out"
    candidates.EXACT = FEW
    begun = time.perf_counter()
    build(root, folder / "whole", model=model, calibration_texts=null, chunk=1)
    takes = time.perf_counter() - begun
    check_near(folder / "whole")
    whole = tree(folder / "whole")
    rng, known, inside = random.Random(5), 0, 0
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
            known = 0
            continue
        inside += 1
        if (out / MANIFEST).exists():
            number = len(content(out))
            assert number >= known, (number, known)
            known = number
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
        folder = args.folder / operation
        folder.mkdir(parents=True)
        number = randomly(folder, args.kills) if operation == "random" else points(folder, operation)
        print(operation, number, flush=True)


if __name__ == "__main__":
    main()
