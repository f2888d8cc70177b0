"""Transfer: a model that was trained on one set is measured by retrieval on another, without any tuning.

The result names the training data and the test data, and counts the images in both; training data as test
data are an error. The recipe of the run names its data, and those of the runs before it (`init_from`). They
are opened again, so that their fingerprints are those of today's files. Images are the same if their files
are, byte by byte, and scenes if their keys are. Images of other bytes that look the same are near copies, by
a perceptual hash (data/overlap.py), with a count of their own.
"""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import Field

from grainline.config import read_yaml
from grainline.data.formats.joined import parts_of
from grainline.data.open_source import open_source, takes_images
from grainline.data.overlap import overlap
from grainline.data.record import Source, keys_of
from grainline.errors import UserError
from grainline.evaluation.encode import Encodings, Progress
from grainline.evaluation.score import Scorer
from grainline.evaluation.suite import Outcomes, Settings, Strings, count_notes
from grainline.evaluation.suites.retrieval import RetrievalOptions, RetrievalSuite
from grainline.hub import START
from grainline.loading import find_run
from grainline.model import Model

RECIPE = "recipe.yaml"
NAMED_PAIRS = 5  # images that look the same, in a note


class Named(NamedTuple):
    """Data that the recipe of a run names."""

    path: str
    images: str | None  # folder of the images
    run: str


class Training(NamedTuple):
    """The training data of a model."""

    run: str
    data: tuple[Named, ...]
    unknown: tuple[str, ...]  # checkpoints and runs before it that cannot be examined


class DataOverlap(NamedTuple):
    """Training data compared with test data."""

    run: str
    paths: tuple[str, ...]
    fingerprints: tuple[str, ...]  # of each path
    samples: tuple[int, ...]  # in each path
    unknown: tuple[str, ...]
    keys: int  # images of the test data whose key is one of training
    images: int  # images of the test data that are images of training
    compared: int  # images of the test data that could be read
    near: tuple[tuple[str, str], ...]  # keys of test and training images that look the same, of other bytes
    unlike: int  # training images that were compared by their bytes alone


class TransferOptions(RetrievalOptions):
    """Options of `transfer`."""

    train_data: Strings = Field(
        (), description="where the training data lie now; none: where the recipe says"
    )


class TransferSuite(RetrievalSuite):
    """The metrics of retrieval on data that the model was not trained on, with what it was trained on."""

    name = "transfer"
    Options = TransferOptions
    takes_vectors = False
    card = ("Data", "What was trained on, and what is tested on")

    def open_run(self, path: str) -> None:
        assert isinstance(self.options, TransferOptions)
        self.training = training_of(path, self.options.train_data)

    def walk(self, model: Model, source: Source, settings: Settings, **others: Any) -> Encodings:
        """Training data are read first. Raises UserError where the source is among them. Needs `open_run`."""
        both = compare_data(self.training, source, model.method.size, others["progress"])
        return super().walk(model, source, settings, **others)._replace(collected={self.name: both})

    def outcomes(self, scorer: Scorer, data: Encodings, settings: Settings) -> Outcomes:
        both: DataOverlap = self.collected(data)
        plain = super().outcomes(scorer, data, settings)
        values = {name: list(x) if isinstance(x, tuple) else x for name, x in both._asdict().items()}
        about = {**plain.settings, "trained": values, "card": _card(both, data)}
        return plain._replace(notes=plain.notes + _notes(both), settings=about)


def training_of(model: str, paths: Sequence[str] = ()) -> Training:
    """The data that the recipe of a run names (or `paths`), and the recipes of the runs before it.

    Raises UserError for a path that is no run, since nothing says what it was trained on.
    """
    home = _home(model)
    if home is None:
        why = f"{model} is no run with a {RECIPE}, so nothing says what it was trained on"
        raise UserError(f"{why}, which --suite transfer compares with the data; use --suite retrieval")
    data: list[Named] = []
    unknown: list[str] = []
    visited, name = set[Path](), model
    while home is not None and home.resolve() not in visited:
        visited.add(home.resolve())
        values = read_yaml(home / RECIPE)
        recipe_data = values.get("data") or {}
        images = recipe_data.get("images")
        if paths and name == model:
            data += [Named(path, None, model) for path in paths]
        else:
            own = recipe_data.get("paths") or ()
            data += [Named(path, images if images and _takes(path) else None, name) for path in own]
        unknown += [f"the checkpoint {checkpoint}" for checkpoint in _pretrained(values.get("model"))]
        averaged = (part for part in values.get("average", ()) if part != START)
        unknown += [f"the checkpoint {part}" for part in averaged if _home(part) is None]
        before = values.get("init_from")
        home, name = (None, name) if before is None else (_home(before), before)
        if before is not None and home is None:
            known = Path(before).exists()  # a checkpoint of others
            gone = f"the run {before}, which is not there any more"
            unknown.append(f"the checkpoint {before}" if known else gone)
    return Training(model, tuple(data), tuple(dict.fromkeys(unknown)))


def compare_data(
    training: Training, source: Source, size: int, progress: Progress | None = None
) -> DataOverlap:
    """How much of the test data a model was trained on.

    size      side of scenes in pixels, as the model reads them
    progress  gets the number of images that were compared, first those of the test data

    Raises UserError where the test data are training data (equal fingerprints, equal keys, or every image
    among those of training), and where training data cannot be opened.
    """
    opened = [_opened(one, size) for one in training.data]
    fingerprints = tuple(one.fingerprint() for one in opened)
    test_keys = set(_keys(source))
    train_keys: set[str] = set()
    for one, named, fingerprint in zip(opened, training.data, fingerprints, strict=True):
        _refuse_if(fingerprint == source.fingerprint(), source, named, "their fingerprints are equal")
        keys = set(_keys(one))
        _refuse_if(keys == test_keys, source, named, f"all {len(keys):,} keys are the same")
        train_keys |= keys
    both = overlap(opened, source, progress)
    if training.data:
        why = f"each of its {both.tested:,} images is among those of training"
        _refuse_if(0 < both.tested == len(both.exact), source, training.data[0], why)
    paths, alike = tuple(one.path for one in training.data), sum(key in train_keys for key in _keys(source))
    return DataOverlap(
        training.run, paths, fingerprints, tuple(map(len, opened)), training.unknown, alike,
        len(both.exact), both.tested, both.near, both.unlike,
    )  # fmt: skip


def _home(model: str) -> Path | None:
    """The folder of the run of a path; None where there is none, or one without a recipe."""
    with suppress(UserError):
        run = find_run(model)
        return run[0] if run is not None and (run[0] / RECIPE).is_file() else None
    return None


def _takes(path: str) -> bool:
    """Whether a path names images in a folder; one that is not there any more fails when it is opened."""
    with suppress(UserError):
        return takes_images(path)
    return False


def _pretrained(values: Any) -> Iterator[str]:
    """The pretrained checkpoints in the description of a model, of one side or both."""
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
        what = f"the training data of {one.run} cannot be opened, so they cannot be compared ({error})"
        raise UserError(f"{what}; say where they lie with --set train_data=PATH") from None


def _refuse_if(wrong: bool, source: Source, named: Named, why: str) -> None:
    if wrong:
        what = f"{source.path} is what {named.run} was trained on ({named.path}: {why})"
        raise UserError(f"{what}; --suite transfer measures on other data: name another set")


def _keys(source: Source) -> Iterator[str]:
    return chain.from_iterable(map(keys_of, parts_of(source)))


def _card(both: DataOverlap, data: Encodings) -> dict[str, str]:
    """Training and test data, in words."""
    trained = [
        f"{path}: {number:,} samples, fingerprint {fingerprint[:16]}"
        for path, number, fingerprint in zip(both.paths, both.samples, both.fingerprints, strict=True)
    ]
    return {
        "trained on": "; ".join(trained) or "nothing that a recipe names",
        **({"began with": ", ".join(both.unknown)} if both.unknown else {}),
        "tested on": f"{data.path}: {len(data.keys):,} images, fingerprint {data.fingerprint[:16]}",
        "in both": f"{both.images:,} of {both.compared:,} images, byte by byte; {len(both.near):,} more"
        f" look the same; {both.keys:,} keys",
    }


def _notes(both: DataOverlap) -> tuple[str, ...]:
    """Overlaps that weaken a transfer."""
    pairs = ", ".join(f"{key} = {other}" for key, other in both.near[:NAMED_PAIRS])
    some = f"of {both.compared:,} images"
    counts = {
        f"{some} were trained on, byte by byte": both.images,
        f"{some} look like crops or smaller copies of training images; look at them: {pairs}"
        + ", ..." * (len(both.near) > NAMED_PAIRS): len(both.near),
        "training images were compared by their bytes alone, not by their looks": both.unlike,
        "keys of images are keys of training data too": both.keys * (both.keys != both.images),
    }
    learnt = f"what {', '.join(both.unknown)} learnt from is not known here, nor compared"
    return count_notes(counts) + (learnt,) * bool(both.unknown)
