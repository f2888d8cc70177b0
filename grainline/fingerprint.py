"""Which model it is: a fingerprint of all that decides its vectors, and where its weights lay."""

import hashlib
import json
from pathlib import Path
from typing import Any

import torch
from torch import nn

from grainline.config import Config
from grainline.encoders.pretrained.build import PretrainedImageConfig, sides_of
from grainline.files import STATE
from grainline.model import Model, find_run


def origin(model: Model, path: str) -> dict[str, Any]:
    """What a result says about the model it measured, which was loaded from a path.

    weights  the folder of the weights that the path meant just then; the path where it means no run
    step     of training, None where nothing says it
    scoring  how pairs were scored, of methods with several ways
    """
    run = find_run(Path(path))
    weights = Path(path) if run is None else run[1]
    try:
        step = json.loads((weights / STATE).read_bytes())["state"]["step"]
    except (OSError, ValueError, KeyError, TypeError):
        step = None
    return {
        "model": path,
        "method": model.description.method,
        "weights": str(weights),
        "step": step,
        "fingerprint": fingerprint(model),
        **_scoring(model.description.config),
    }


def fingerprint(model: Model) -> str:
    """sha256 over the method, its config, all weights by name, and the tokenizer.

    Where a checkpoint of others lay is none of it: weights and architecture say what it was. Nor is which of
    its positions learn.
    """
    facts = [model.description.method, _deciding(model.description.config), model.tokenizer.to_json()]
    return _digest(facts, model.method)


def image_fingerprint(side: Config, encoder: nn.Module) -> str:
    """16 hex digits of a sha256 over an image encoder in evaluation: what its config says, and its weights.

    side  the config of the image side of a method

    Neither the text side nor how images become squares is part of it.
    """
    facts = side.model_dump(mode="json", exclude={"drop_path", "dropout"})  # training alone knows these
    if isinstance(side, PretrainedImageConfig):
        assert side.architecture is not None, "read by `start`"
        names = ("kind", "mean", "spread")
        facts = {name: side.architecture[name] for name in names} | {"patches": side.patches}
        facts["config"] = sides_of(side.architecture)["image"]
    if "superpixels" in facts:
        del facts["superpixels"]["checkpoint"]  # where the weights lay
    return _digest(facts, encoder)[:16]


def _digest(facts: Any, module: nn.Module) -> str:
    total = hashlib.sha256()
    total.update(json.dumps(facts, sort_keys=True).encode())
    for name, tensor in sorted(module.state_dict().items()):
        total.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        total.update(tensor.detach().cpu().flatten().contiguous().view(torch.uint8).numpy().tobytes())
    return total.hexdigest()


def _scoring(config: Config) -> dict[str, Any]:
    """The way to score, as `--scoring` takes it."""
    values = config.model_dump()
    way = {name: value for name, value in values.items() if name == "scoring"}
    if way.get("scoring") == "conditioned" and "alpha" in values:
        way["scoring"] += f":{values['alpha']:g}"
    return way


LATER = (("patches", "attention"), ("resize", None))
"""Fields that came after the first indexes were built, at the values that they then had without a name."""


def _deciding(config: Config) -> dict[str, Any]:
    values = config.model_dump(mode="json")
    sides = {
        k: {f: y for f, y in x.items() if f not in ("pretrained", "frozen_positions") and (f, y) not in LATER}
        if isinstance(x, dict)
        else x
        for k, x in values.items()
    }
    return {name: x for name, x in sides.items() if name != "pretrained"}
