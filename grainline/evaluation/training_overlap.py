"""The images of sets that are images of the training data of models, too. Two data are compared once."""

import json
from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

from grainline.data.open_source import open_source, takes_images
from grainline.data.overlap import overlap
from grainline.data.record import Source
from grainline.errors import UserError, amount
from grainline.evaluation.comparison import Entrant, Overlaps
from grainline.files import read_plain, write_text
from grainline.hub import START
from grainline.loading import recipe_of

SIDE = 32  # pixels of drawn scenes, which are compared by their keys


class Training(NamedTuple):
    """The training data of a model."""

    data: tuple[tuple[str, str | None], ...]  # paths, each with the folder of its images
    unknown: tuple[str, ...]  # checkpoints and runs before it whose data no recipe here names


def overlaps_of(
    models: Sequence[Entrant], sources: Mapping[str, Source], folder: Path, say: Callable[[str], None]
) -> tuple[Overlaps, ...]:
    """The overlap of each set with the training data of each model whose recipe names them.

    folder  has a file for each two data that were compared before
    """
    out = []
    for model in models:
        if model.trained_on is None:
            continue
        try:
            runs = [training_of(path) for path in model.paths]
            data = dict.fromkeys(one for run in runs for one in run.data)
            trained = [open_source(path, images=images, size=SIDE) for path, images in data]
            unknown = dict.fromkeys(one for run in runs for one in run.unknown)
            note = f"not known: the data of {', '.join(unknown)}" if unknown else ""
        except UserError as error:
            out += [Overlaps(model.name, name, 0, 0, 0, str(error)) for name in sources]
            continue
        for name, source in sources.items():
            digest = sha256("".join(x.fingerprint() for x in (*trained, source)).encode()).hexdigest()[:16]
            place = folder / f"overlap-{digest}.json"
            try:
                images, exact, near, unread = json.loads(read_plain(place))
            except (OSError, ValueError, TypeError):  # not there, or damaged
                say(f"copies of images in {name} and the training data of {model.name}")
                both = overlap(trained, source)
                counts = {"could not be read": both.skipped, "compared by bytes alone": both.unlike}
                unread = "; ".join(f"{amount(n, 'image')} {what}" for what, n in counts.items() if n)
                images, exact, near = both.tested, len(both.exact), len(both.near)
                write_text(place, json.dumps([images, exact, near, unread]))
            remark = "; ".join(filter(None, (note, unread)))
            out.append(Overlaps(model.name, name, images, exact, near, remark))
    return tuple(out)


def training_of(model: str) -> Training:
    """The data that the recipe of a run names, and those of the runs before it (`init_from`).

    Raises UserError for data of a kind that is not known, or that are not there any more.
    """
    data: list[tuple[str, str | None]] = []
    unknown: list[str] = []
    visited: list[str] = []
    name: str | None = model
    while name is not None and name not in visited:
        visited.append(name)
        recipe = recipe_of(name)
        own = recipe.get("data") or {}
        data += [(path, own.get("images") if takes_images(path) else None) for path in own.get("paths") or ()]
        config = recipe.get("model")
        sides = [config, *config.values()] if isinstance(config, dict) else []
        sides += [side["encoder"] for side in sides if isinstance(side, dict) and "encoder" in side]
        unknown += [side["pretrained"] for side in sides if isinstance(side, dict) and side.get("pretrained")]
        unknown += [part for part in recipe.get("average") or () if part != START and not recipe_of(part)]
        unknown += [] if recipe else [name]
        name = recipe.get("init_from")
    return Training(tuple(data), tuple(dict.fromkeys(unknown)))
