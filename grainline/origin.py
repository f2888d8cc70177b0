"""Which model it is: a fingerprint of all that decides its vectors, and where its weights lay."""

import hashlib
import json
from pathlib import Path
from typing import Any

import torch

from grainline.files import STATE
from grainline.model import Model, located


def origin(model: Model, path: str) -> dict[str, Any]:
    """What a result says about the model it measured, which was loaded from a path.

    weights  the folder of the weights that the path meant just then
    step     of training, None where nothing says it
    """
    _, weights = located(Path(path))
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
    }


def fingerprint(model: Model) -> str:
    """sha256 over the method, its config, all weights by name, and the tokenizer."""
    total = hashlib.sha256()
    description = model.description
    facts = [description.method, description.config.model_dump(mode="json"), model.tokenizer.to_json()]
    total.update(json.dumps(facts, sort_keys=True).encode())
    for name, tensor in sorted(model.method.state_dict().items()):
        total.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        total.update(tensor.detach().cpu().flatten().contiguous().view(torch.uint8).numpy().tobytes())
    return total.hexdigest()
