"""What a run was trained on, and how much of it is in the data that it is tested on.

The recipe of the run names its data, and those of the runs that it began with. They are opened again, so that
their fingerprints are those of what lies there now. Pictures are the same if their files are, byte by byte,
and drawn scenes if their keys are. Images of other bytes that look the same are counted apart: near copies,
by a perceptual hash (data/check.py). What checkpoints of others were trained on, nobody knows here.
"""

from collections.abc import Callable, Iterator, Sequence
from hashlib import blake2b
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from grainline.config import read_yaml
from grainline.data.check import LIMIT, PIXELS, image_hash, near_copies
from grainline.data.decode import decode
from grainline.data.formats.joined import parts_of
from grainline.data.formats.texts_alone import TextsAlone
from grainline.data.open_source import open_source, takes_images
from grainline.data.record import Damaged, Source, content_of, keys_of
from grainline.data.scenes import VERSION
from grainline.data.scenes.source import Scenes
from grainline.errors import UserError
from grainline.model import find_run

RECIPE = "recipe.yaml"
TRAINED = "--trained"
Progress = Callable[[int, int], None]


class Named(NamedTuple):
    """Data that a recipe names."""

    path: str
    images: str | None  # folder of the pictures
    run: str  # whose recipe it is


class Taught(NamedTuple):
    """What a model learnt from."""

    run: str
    data: tuple[Named, ...]
    unknown: tuple[str, ...]  # what it began with and nobody can look at


class Overlap(NamedTuple):
    """Training data beside test data."""

    run: str
    paths: tuple[str, ...]
    fingerprints: tuple[str, ...]  # of each path
    samples: tuple[int, ...]  # in each path
    unknown: tuple[str, ...]
    keys: int  # pictures of the test data whose key is one of training
    pictures: int  # pictures of the test data that are pictures of training
    compared: int  # pictures of the test data that could be read
    near: tuple[tuple[str, str], ...]  # keys of test and training images that look the same, of other bytes
    unlike: int  # training images beyond those that were compared by their looks


def taught(model: str, lies: Sequence[str] | None = None) -> Taught:
    """What the recipe of a run names, and the recipes of the runs that it began with.

    lies  where the training data of the run lie, if not where its recipe says

    Raises UserError for what is no run, since nothing says what it was trained on.
    """
    home = _home(model)
    if home is None:
        raise UserError(
            f"{model} is no run with a {RECIPE}, so nothing says what it was trained on, which --suite"
            " transfer has to compare with the data; measure it with --suite retrieval"
        )
    data: list[Named] = []
    unknown: list[str] = []
    seen: set[Path] = set()
    name: str | None = model
    while name is not None and home is not None and home.resolve() not in seen:
        seen.add(home.resolve())
        values = read_yaml(home / RECIPE)
        told = values.get("data") or {}
        own = list(told.get("paths") or ())
        first = name == model and lies is not None
        images = None if first else told.get("images")
        data += [
            Named(path, images if images and _takes(path) else None, name)
            for path in (list(lies or ()) if first else own)
        ]
        unknown += [f"the checkpoint {found}" for found in _pretrained(values.get("model"))]
        name = values.get("begin")
        home = None if name is None else _home(name)
    if name is not None and home is None:
        unknown.append(f"the run {name}, which is not there any more")
    return Taught(model, tuple(data), tuple(dict.fromkeys(unknown)))


def overlap(told: Taught, source: Source, size: int, progress: Progress | None = None) -> Overlap:
    """How much of the test data a model was trained on.

    size      side of drawn pictures in pixels, as the model reads them
    progress  told of pictures that were compared, first those of the test data

    Raises UserError where the test data are training data (equal fingerprints, equal keys, or every picture
    among those of training), and where training data cannot be opened.
    """
    opened = [_opened(one, size) for one in told.data]
    fingerprints = tuple(one.fingerprint() for one in opened)
    tested = set(_keys(source))
    every: set[str] = set()
    for one, named, fingerprint in zip(opened, told.data, fingerprints, strict=True):
        _refuse_if(fingerprint == source.fingerprint(), source, named, "their fingerprints are equal")
        keys = set(_keys(one))
        _refuse_if(keys == tested, source, named, f"all {len(keys):,} keys are the same")
        every |= keys
    same = sum(key in every for key in _keys(source))
    total = len(source) + sum(map(len, opened))
    count = _Counter(total, progress)
    mine = list(_contents(source, count))
    wanted = {one.content for one in mine}
    hit: set[str] = set()
    others: list[_Content] = []
    for one in opened:
        for content in _contents(one, count):
            if content.content in wanted:
                hit.add(content.content)
            else:
                others.append(content)
    pictures = sum(one.content in hit for one in mine)
    if told.data:
        why = f"each of its {len(mine):,} pictures is among those of training"
        _refuse_if(bool(mine) and pictures == len(mine), source, told.data[0], why)
    return Overlap(
        told.run,
        tuple(one.path for one in told.data),
        fingerprints,
        tuple(map(len, opened)),
        told.unknown,
        same,
        pictures,
        len(mine),
        _near(mine, others, hit),
        max(0, sum(one.look is not None for one in others) - LIMIT),
    )


def _near(
    mine: Sequence["_Content"], others: Sequence["_Content"], hit: set[str]
) -> tuple[tuple[str, str], ...]:
    """Keys of test images, each with the training image of other bytes that looks most like it."""
    tested = [None if one.content in hit else one.look for one in mine]
    best: dict[int, tuple[int, int]] = {}
    for first, second, distance in near_copies(tested, [one.look for one in others]):
        best[first] = min(best.get(first, (distance, second)), (distance, second))
    return tuple((mine[i].key, others[j].key) for i, (_, j) in sorted(best.items()))


class _Content(NamedTuple):
    """A picture, as far as it is compared."""

    key: str
    content: str  # equal for equal pictures
    look: np.ndarray | None  # its perceptual hash


class _Counter:
    """Tells how many pictures were compared."""

    def __init__(self, total: int, progress: Progress | None) -> None:
        self.done, self.total, self.progress = 0, total, progress

    def __call__(self) -> None:
        self.done += 1
        if self.progress is not None:
            self.progress(self.done, self.total)


def _home(model: str) -> Path | None:
    """The folder of the run that a path means; None where it means none, or one without a recipe."""
    try:
        found = find_run(Path(model))
    except UserError:
        return None
    return found[0] if found is not None and (found[0] / RECIPE).is_file() else None


def _takes(path: str) -> bool:
    """Whether a path names pictures in a folder; one that is not there any more fails when it is opened."""
    try:
        return takes_images(path)
    except UserError:
        return False


def _pretrained(values: Any) -> Iterator[str]:
    """All checkpoints that a model begins with, of one side or both."""
    if isinstance(values, dict):
        for name, value in values.items():
            if name == "pretrained" and isinstance(value, str):
                yield value
            else:
                yield from _pretrained(value)


def _opened(one: Named, size: int) -> Source:
    try:
        return open_source(one.path, images=one.images, size=size)
    except UserError as error:
        raise UserError(
            f"the training data of {one.run} cannot be opened, so they cannot be compared with the test data"
            f" ({error}); say where they lie with {TRAINED} PATH..."
        ) from None


def _refuse_if(wrong: bool, source: Source, named: Named, why: str) -> None:
    if wrong:
        raise UserError(
            f"{source.path} is what {named.run} was trained on ({named.path}: {why}); --suite transfer"
            " measures on other data: name another set, or take --suite retrieval"
        )


def _keys(source: Source) -> Iterator[str]:
    return chain.from_iterable(map(keys_of, parts_of(source)))


def _contents(source: Source, count: Callable[[], None]) -> Iterator[_Content]:
    """Every picture that can be read. Drawn scenes have no look: they are alike by design."""
    for part in parts_of(source):
        if isinstance(part, TextsAlone):
            continue
        for i, key in enumerate(_keys(part) if isinstance(part, Scenes) else [""] * len(part)):
            count()
            if isinstance(part, Scenes):  # not drawn: the key says all but the size
                yield _Content(key, f"scene {VERSION} {key}", None)
                continue
            try:
                record = part[i]
                data = content_of(record.image)
                look = image_hash(decode(record, draft=PIXELS))
            except Damaged:
                continue
            yield _Content(record.key, blake2b(data, digest_size=16).hexdigest(), look)
