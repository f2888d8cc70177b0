"""Which files of the package take part in three small tasks: how far a reader has to follow the data.

    python tests/trace_files.py           # the files with their numbers of calls
    python tests/trace_files.py --limits  # exit code 1 where a limit is exceeded

The tasks: the texts of one record become those of a training sample; one query becomes its hits in an opened
index; one image and one text become their score. Each is done once before, so that imports and caches do not
count, then once more with another text under `sys.setprofile`. The model, the images and the index are made
here, in a temporary folder.
"""

import argparse
import contextlib
import io
import runpy
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import yaml
from PIL import Image

LIMITS = {  # files; the goal stands beside
    "texts of a record": 5,  # goal 5
    "query to hits": 17,  # goal 8
    "pair to score": 20,  # goal 8
}
NETWORK = "encoders/", "nn/"  # shown apart: what a tower computes is no way of the data
CHECKS = "errors.py"  # not counted: the decorator of public functions looks at arguments and passes them on
CAPTIONS = [
    f"A {colour} {animal} {verb} by the {place}. The {place} is {colour}. It is a cold day in a small town."
    for colour in ("red", "green", "blue")
    for animal in ("dog", "cat", "bird")
    for verb, place in (("runs", "tree"), ("sleeps", "house"))
]
QUERIES = ["A green bird sings. The day is cold.", "A blue dog barks at the tree. It is small."]

# What a renaming touches: modules of grainline and recipe fields.

SIDE = {"width": 32, "depth": 1, "heads": 2}
RECIPE = {
    "method": "maxsim",
    "model": {
        "image": SIDE | {"patch": 8, "size": 32},
        "text": SIDE | {"vocab": 600, "context": 32},
        "width": 32,
        "sentences": 4,
    },
    "data": {"paths": ["scenes:train?count=16"], "workers": 0},
    "train": {"max_steps": 1, "global_batch_size": 4, "precision": "fp32"},
}


def samples(run: Path) -> Callable[[int], Any]:
    """A function that makes the texts of a record, given by its number: the caption and two sentences."""
    from grainline.data.dataset import Draw, TrainSet
    from grainline.data.record import Record
    from grainline.data.texts import TextsConfig
    from grainline.data.tokenizers.tokenizer_files import read_tokenizer

    class NoImage:
        """In the place of the crop: this task is about texts."""

        def __call__(self, *_: Any) -> torch.Tensor:
            return torch.zeros(3, 0, 0)

        def features(self, *_: Any) -> None: ...

        regions = features

    class Records(list[Record]):
        path = "records"

    cfg = TextsConfig.model_validate({"sentences": 2})
    records = Records(Record(str(i), b"", (text,)) for i, text in enumerate(CAPTIONS))
    data = TrainSet(records, read_tokenizer(run), NoImage(), cfg, context=32, seed=0)
    return lambda i: data[Draw(i, 0, i)]


def searching(index: Path) -> Callable[[str], Any]:
    """A function that searches an opened index."""
    from grainline.index.search import open_index

    opened = open_index(index)
    return lambda text: opened.search([text], k=3)


def scoring(run: Path) -> Callable[[str, str], Any]:
    """A function that scores an image file and a text."""
    import grainline

    model = grainline.load(run, device="cpu")
    return lambda image, text: model.score([image], [text])


# Tracing


class Trace(NamedTuple):
    """What a task touched."""

    calls: Counter[str]  # of functions, by file of the package
    entries: int  # how often the work went into a file from another one, or from outside


def traced(package: Path, task: Callable[[], Any]) -> Trace:
    """Count the calls of Python functions of a package while a task runs, in all its threads."""
    calls: Counter[str] = Counter()
    entered: Counter[str] = Counter()

    def place(frame: Any) -> str | None:
        """The file of a frame, below the package; None for code of others."""
        path = Path(frame.f_code.co_filename)
        inside = path.relative_to(package).as_posix() if path.is_relative_to(package) else CHECKS
        return None if inside == CHECKS else inside

    def note(frame: Any, event: str, _: Any) -> None:
        here = place(frame) if event == "call" else None
        if here is None:
            return
        above = frame.f_back
        while above is not None and place(above) is None:
            above = above.f_back
        calls[here] += 1
        entered[here] += above is None or place(above) != here

    threading.setprofile(note)
    sys.setprofile(note)
    try:
        task()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type]
    return Trace(calls, entered.total())


def command(*arguments: object) -> None:
    """Run `grainline ARGUMENTS` in this process."""
    sys.argv = ["grainline", *map(str, arguments)]
    said = io.StringIO()
    try:
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            runpy.run_module("grainline", run_name="__main__", alter_sys=True)
    except SystemExit as end:
        if end.code:
            sys.exit(said.getvalue())


def tasks(work: Path) -> dict[str, tuple[Callable[..., Any], list[tuple[Any, ...]]]]:
    """Each task as a function, with the arguments of a first call and of the one that is traced."""
    recipe, run, index, photos, null = (work / x for x in ("r.yaml", "run", "index", "photos", "null.txt"))
    recipe.write_text(yaml.safe_dump(RECIPE))
    null.write_text("\n".join([*CAPTIONS, *QUERIES]) + "\n")
    photos.mkdir()
    for i in range(12):
        pixels = np.random.default_rng(i).integers(0, 256, (40, 48, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(photos / f"{i:02}.png")
    command("train", recipe, "--out", run)
    command("index", "build", photos, "--model", run, "--out", index, "--calibration-texts", null)
    pairs = [(str(photos / f"{i:02}.png"), text) for i, text in enumerate(QUERIES)]
    return {
        "texts of a record": (samples(run), [(0,), (1,)]),
        "query to hits": (searching(index), [(text,) for text in QUERIES]),
        "pair to score": (scoring(run), [(image, text) for image, text in pairs]),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="Files of the package that take part in small tasks.")
    parser.add_argument("--limits", action="store_true", help="exit code 1 where a limit is exceeded")
    asked = parser.parse_args()
    checkout = Path(__file__).resolve().parent.parent
    sys.path.insert(0, str(checkout))
    torch.set_num_threads(1)
    over = []
    with tempfile.TemporaryDirectory() as work:
        for name, (task, (first, second)) in tasks(Path(work)).items():
            task(*first)
            trace = traced(checkout / "grainline", partial(task, *second))
            number = len(trace.calls)
            apart = sum(file.startswith(NETWORK) for file in trace.calls)
            print(f"{name}: {number} files, {apart} of them of the network; limit {LIMITS[name]}; ", end="")
            returns = trace.entries - number
            print(f"{trace.calls.total()} calls, {returns} returns to a file that was left before")
            print("\n".join(f"  {calls:6} {file}" for file, calls in trace.calls.most_common()))
            over += [f"{name}: {number} files, limit {LIMITS[name]}"] if number > LIMITS[name] else []
    if asked.limits and over:
        sys.exit(f"trace_files.py: {'; '.join(over)}")


if __name__ == "__main__":
    main()
