"""Which model an index belongs to: vectors of other weights cannot be compared with those of the index."""

from pathlib import Path

from grainline.errors import UserError
from grainline.index.folder import Manifest, ModelMark
from grainline.model import Model, load
from grainline.origin import fingerprint


def mark_of(model: Model, path: str) -> ModelMark:
    """The mark of a model that was loaded from a path ("" if it is only in memory)."""
    place = str(Path(path).resolve()) if path and Path(path).exists() else path  # what is not here is a name
    return ModelMark(place, model.description.method, fingerprint(model))


def model_of(folder: Path, manifest: Manifest, given: Model | str | None, device: str | None = None) -> Model:
    """The model of an index: the given one, or the one that it was made with. UserError if it is another."""
    path = given if isinstance(given, str) else manifest.model.path
    if not isinstance(given, Model) and not path:
        raise UserError(f"index {folder} was made with a model in memory; name its folder with --model")
    model = given if isinstance(given, Model) else load(path, device=device)
    if fingerprint(model) != manifest.model.fingerprint:
        which = f"the model {path}" if not isinstance(given, Model) else "this model"
        raise UserError(
            f"index {folder} was made with other weights than {which} has now: "
            f"give the {manifest.model.method} it was made with (--model), or build an index anew"
        )
    return model
