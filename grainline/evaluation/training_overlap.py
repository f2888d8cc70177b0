"""The images of sets that are images of the training data of models, too. Two data are compared once."""

import json
from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256
from pathlib import Path

from grainline.data.open_source import open_source
from grainline.data.overlap import overlap
from grainline.data.record import Source
from grainline.errors import UserError, amount
from grainline.evaluation.comparison import Entrant, Overlaps
from grainline.evaluation.suites.transfer import training_of
from grainline.files import read_plain, write_text

SIDE = 32  # pixels of drawn scenes, which are compared by their keys


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
            data = dict.fromkeys((one.path, one.images) for run in runs for one in run.data)
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
                unread = f"{amount(both.skipped, 'image')} could not be read" if both.skipped else ""
                images, exact, near = both.tested, len(both.exact), len(both.near)
                write_text(place, json.dumps([images, exact, near, unread]))
            remark = "; ".join(filter(None, (note, unread)))
            out.append(Overlaps(model.name, name, images, exact, near, remark))
    return tuple(out)
