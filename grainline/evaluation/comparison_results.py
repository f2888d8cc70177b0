"""The results of a comparison: one file each, measured where it is not there yet.

The name of a file has a digest of all that the result depends on: weights, data, suite, options, settings. A
comparison that was stopped finds what was measured before, and goes on.
"""

import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from hashlib import sha256
from json import dumps
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch

import grainline
from grainline.data.descriptions import Descriptions
from grainline.data.other_texts import trained_paths
from grainline.data.record import Source
from grainline.errors import UserError
from grainline.evaluation.comparison import Entrant
from grainline.evaluation.costs import Meter
from grainline.evaluation.encode import encode_source
from grainline.evaluation.result import Result, notes_on_training, origin, read, write
from grainline.evaluation.suite import Settings, Suite
from grainline.evaluation.vectors import Embeddings, Lookup, open_named
from grainline.hub import fingerprint
from grainline.loading import load
from grainline.model import Model
from grainline.types import Encoded, vectors_only, without_places

FORMAT = 1  # of these files: another one measures everything again


class Task(NamedTuple):
    """A column before it is measured: a suite on a set, with one way to read captions."""

    set: str
    source: Source
    fingerprint: str  # of the source
    suite: Suite[Any]
    settings: Settings

    @property
    def title(self) -> str:
        return ", ".join(filter(None, (self.set, self.suite.name, self.settings.captions)))


class Facts(NamedTuple):
    """A path of a model: what is known of it before it is measured."""

    entrant: Entrant  # of this path alone
    size: int = 0  # of its images in pixels; 0 for vectors
    descriptions: str = ""  # where it reads descriptions of images, for a method that does


Describe = Callable[[Model, str], Descriptions | None]
Step = Callable[[int, int], None]


def facts_of(path: str, describe: Describe) -> Facts:
    """The facts of a run, a checkpoint, or files of vectors. Raises UserError where it cannot be loaded."""
    vectors = open_named(path)
    if vectors is not None:
        data = vectors.data
        both = b"".join(x.vector.contiguous().numpy().tobytes() for x in (data.images, data.texts))
        digest = sha256(both + data.fingerprint.encode()).hexdigest()
        return Facts(Entrant("", (path,), "vectors", {}, (digest,), {}, None))
    model = load(path)
    method, trained, described = model.method, trained_paths(model.run), ""
    with suppress(UserError):  # it is the reason why cells are empty
        described = str(describe(model, path) or "")
    count = {
        side: sum(x.numel() for name, x in method.named_parameters() if f"towers.{side}." in name)
        for side in ("image", "text")
    }
    count["all"] = sum(x.numel() for x in method.parameters())
    trained_on = None if trained is None else tuple(trained)
    one = Entrant("", (path,), "model", model.facts(), (fingerprint(model),), count, trained_on)
    return Facts(one, method.size, described)


def place_of(folder: Path, path: str, facts: Facts, task: Task) -> tuple[Path, Result | str]:
    """The file of a result, and the result in it; "" where there is none or it is damaged."""
    suite, options = task.suite, task.suite.options.model_dump(mode="json")
    named = [x for x in map(str, options.values()) if Path(x).is_file()]
    depends = {
        "versions": [FORMAT, grainline.__version__],
        "model": [facts.entrant.fingerprints, facts.entrant.trained_on, facts.descriptions],
        "data": task.fingerprint,
        "suite": [suite.key, options, [Path(x).stat().st_mtime_ns for x in named]],
        "settings": {**task.settings._asdict(), "memory": 0, "batch_size": 0},
    }
    digest = sha256(dumps(depends, sort_keys=True).encode()).hexdigest()[:16]
    existing = sorted(folder.glob(f"*-{digest}.json"))
    name = re.sub("[^A-Za-z0-9]+", "-", f"{path} {task.title}").strip("-")[-100:]
    place = existing[0] if existing else folder / f"{name}-{digest}.json"
    with suppress(UserError):
        return place, read(place) if place.is_file() else ""
    return place, ""


def results_of(
    path: str,
    facts: Facts,
    places: Sequence[tuple[Path, Result | str]],
    tasks: Sequence[Task],
    describe: Describe,
    watch: Callable[[Task], Step],
) -> list[Result | str]:
    """The result of each task, from its place or measured now, or the reason why there is none.

    watch  is called before a task is measured, and returns what takes the number of samples read
    """
    out = [known for _, known in places]
    missing = [i for i, result in enumerate(out) if not result]
    opened = (open_named(path) or load(path)) if missing else None
    if isinstance(opened, Model) and fingerprint(opened) != facts.entrant.fingerprints[0]:
        changed = f"{path} has changed since the comparison began; name one of its checkpoints"
        return [one or changed for one in out]
    for name in dict.fromkeys(tasks[i].set for i in missing):
        some = [i for i in missing if tasks[i].set == name]
        suites = [tasks[i].suite for i in some]
        meter = Meter(opened.method, _reduced(opened, suites)) if isinstance(opened, Model) else None
        for i in some:
            step = watch(tasks[i])
            try:
                if meter is None:
                    result = _of_vectors(cast(Embeddings, opened), tasks[i], step)
                else:
                    result = _of_model(cast(Model, opened), path, meter, tasks[i], describe, step)
            except UserError as error:
                out[i] = str(error)
            except torch.OutOfMemoryError:
                out[i] = "not enough memory on the GPU; choose a smaller batch size"
            else:
                write(result, places[i][0])
                out[i] = result
    return out


def _reduced(model: Model, suites: Sequence[Suite[Any]]) -> Callable[[Encoded], Encoded] | None:
    """The part of encoded images that several suites read, None for a single suite."""
    if len(suites) < 2:
        return None
    if any(suite.reads_tokens for suite in suites):
        return lambda encoded: encoded
    return without_places if model.method.pairwise else vectors_only


def _of_model(model: Model, path: str, meter: Meter, task: Task, describe: Describe, step: Step) -> Result:
    suite, source = task.suite, task.source
    meter.start()
    with meter:
        data = suite.encode(model, source, task.settings, describe(model, path), step)
        result = suite.measure(model.method, data, task.settings)
    scored = (
        suite.encodes_images and suite.encodes_captions and (suite.keeps_tokens or not model.method.pairwise)
    )
    cost = {"cost": meter.counts(data if scored else None)}
    notes = result.notes + notes_on_training(model.run, source)
    return result._replace(settings=result.settings | origin(model, path) | cost, notes=notes)


def _of_vectors(vectors: Embeddings, task: Task, step: Step) -> Result:
    suite, settings = task.suite, task.settings
    if not suite.takes_vectors:
        raise UserError(f"the suite {suite.name} needs a model; vectors of another program go with retrieval")
    lookup: Any = Lookup(vectors)
    captions, batch = suite.choose_captions(settings.captions), settings.batch_size
    data = encode_source(
        lookup, task.source, captions=captions, collectors={"vectors": lookup}, batch=batch,
        max_corrupt=settings.max_corrupt, progress=step,
    )  # fmt: skip
    result = suite.measure(vectors.method, data, settings)
    return result._replace(settings=result.settings | vectors.about)
