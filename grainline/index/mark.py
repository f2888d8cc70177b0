"""Which model an index belongs to: vectors of other weights cannot be compared with those of the index."""

import hashlib
import json
from pathlib import Path
from typing import Any

import torch

from grainline.config import Config
from grainline.errors import UserError
from grainline.index.folder import Manifest, ModelMark
from grainline.model import Model, load


def mark_of(model: Model, path: str) -> ModelMark:
    """The mark of a model that was loaded from a path ("" if it is only in memory)."""
    place = str(Path(path).resolve()) if path and Path(path).exists() else path  # what is not here is a name
    return ModelMark(place, model.description.method, fingerprint(model))


def fingerprint(model: Model) -> str:
    """sha256 over the method, its config, all weights by name, and the tokenizer.

    Where a checkpoint of others lay is none of it: weights and architecture say what it was.
    """
    total = hashlib.sha256()
    facts = [model.description.method, _placeless(model.description.config), model.tokenizer.to_json()]
    total.update(json.dumps(facts, sort_keys=True).encode())
    for name, tensor in sorted(model.method.state_dict().items()):
        total.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        total.update(tensor.detach().cpu().flatten().contiguous().view(torch.uint8).numpy().tobytes())
    return total.hexdigest()


def _placeless(config: Config) -> dict[str, Any]:
    values = config.model_dump(mode="json")
    sides = {
        k: {f: y for f, y in x.items() if f != "pretrained"} if isinstance(x, dict) else x
        for k, x in values.items()
    }
    return {name: x for name, x in sides.items() if name != "pretrained"}


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
