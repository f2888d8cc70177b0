"""A model as a folder that `grainline.load` reads, its identity, and the Hugging Face hub.

The folder has model.json, tokenizer.json, model.safetensors and README.md (`model_card.py`). It holds no
optimizer; a run is resumed from its own folder. Other people read it: of a path it has the last part alone.
"""

import hashlib
import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import nn

from grainline.build import Description, write_description
from grainline.config import Config
from grainline.data.tokenizers.tokenizer import TextTokenizer
from grainline.encoders.pretrained.kind import PretrainedImageConfig, PretrainedTextConfig, sides_of
from grainline.errors import UserError
from grainline.files import reason, write_text
from grainline.weights import MODEL, save_weights

CARD = "README.md"
START = "its start"  # the name of the weights before the first step, among the parts of an average


def save(
    folder: Path, description: Description, method: nn.Module, tokenizer: TextTokenizer, card: str
) -> None:
    """Write the folder, which `require_free` has checked. Raises UserError where it cannot be written."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_description(folder, description, shared=True)
        tokenizer.save(folder)
        write_text(folder / CARD, card)
    except OSError as error:
        raise UserError(f"cannot write into {folder}: {reason(error)}; name another folder") from None
    save_weights(folder / MODEL, method)


def require_free(folder: Path) -> None:
    """Raise UserError for a folder that holds something other than a saved model."""
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder} is a file; name a new folder")
    if (folder / "recipe.yaml").exists():
        raise UserError(f"{folder} is the folder of a run; name a new folder")
    if folder.is_dir() and any(folder.iterdir()) and not (folder / "model.json").is_file():
        raise UserError(f"{folder} is not empty and holds no model; name a new folder")


def push(folder_of: Any, name: str, *, private: bool, token: str | None, message: str) -> str:
    """Upload a model to the hub as owner/model: the address of the commit. UserError with the hub's reason.

    folder_of  writes the model into the folder that it is called with
    """
    from huggingface_hub import HfApi
    from huggingface_hub.utils import disable_progress_bars, enable_progress_bars

    api = HfApi(token=token)
    with TemporaryDirectory() as place:
        folder_of(Path(place) / "model")
        disable_progress_bars()
        try:
            repo = api.create_repo(name, private=private, exist_ok=True).repo_id
            done = api.upload_folder(repo_id=repo, folder_path=Path(place) / "model", commit_message=message)
        except Exception as error:  # the library passes on those of whatever it speaks HTTP with
            why = next(iter(str(error).strip().splitlines()), repr(error)).rstrip(".")
            answered = getattr(error, "response", None) is not None
            hint = "log in with `hf auth login` or give token" if answered else "the hub was not reached"
            raise UserError(f"the Hugging Face hub did not take {name} ({why}); {hint}") from None
        finally:
            enable_progress_bars()
    return str(done.commit_url)


# The identity of a model: a fingerprint of everything that its vectors depend on.

LATER: tuple[tuple[str, Any], ...] = (("patches", "attention"), ("resize", None), ("scoring", "whole"))
LATER += (("pool", None), ("max_num_patches", None), ("walk_type", None))
"""Fields that came after the first indexes, with the values that these indexes have."""


def fingerprint(model: Any) -> str:
    """sha256 over the method of a `Model`, its config, all weights by name, and the tokenizer.

    It does not depend on the path of a checkpoint, which weights and architecture describe, nor on what
    learns.
    """
    config: dict[str, Any] = {}
    for name, x in model.description.config.model_dump(mode="json").items():
        if isinstance(x, dict):
            own = without_paths(x)
            config[name] = _with_version({k: y for k, y in own.items() if (k, y) not in LATER})
        elif name not in ("pretrained", "dropout") and (name, x) not in LATER:
            config[name] = x
    return _digest([model.description.method, config, model.tokenizer.to_json()], model.method)


def image_fingerprint(side: Config, encoder: nn.Module) -> str:
    """16 hex digits of a sha256 over an image encoder in evaluation: its config and its weights.

    side  the config of the image side of a method

    Neither the text side nor the way from images to squares is part of it.
    """
    facts = side.model_dump(mode="json", exclude={"drop_path", "dropout"})  # for training alone
    if isinstance(side, PretrainedImageConfig):
        assert side.architecture is not None, "read by `start`"
        names = ("kind", "mean", "spread")
        facts = {name: side.architecture[name] for name in names} | {"patches": side.patches}
        facts["config"] = sides_of(side.architecture)["image"]
    if "superpixels" in facts:
        del facts["superpixels"]["checkpoint"]  # a path
        facts = without_paths(facts)
    return _digest(_with_version(facts), encoder)[:16]


def text_fingerprint(side: PretrainedTextConfig, encoder: nn.Module, tokenizer: Any) -> str:
    """The same over a text encoder from a checkpoint, and its tokenizer."""
    return _digest([side.architecture, tokenizer.to_json()], encoder)[:16]


def without_paths(side: dict[str, Any]) -> dict[str, Any]:
    """The fields of a side, and of the encoder inside it, that vectors depend on."""
    out = {k: x for k, x in side.items() if k not in ("pretrained", "frozen_positions", "tune", "rate")}
    encoder = out.pop("encoder", None)
    return out if encoder is None else out | {"encoder": without_paths(encoder)}


def _with_version(side: dict[str, Any]) -> dict[str, Any]:
    """The fields of a side, with the version of its superpixels: by k-means they are in one piece since 2."""
    superpixels = side.get("superpixels") or {}
    version = {"version": 2} if superpixels.get("kind") == "kmeans" else {}
    return side | {"superpixels": superpixels | version} if superpixels else side


def _digest(facts: Any, module: nn.Module) -> str:
    total = hashlib.sha256(json.dumps(facts, sort_keys=True).encode())
    for name, tensor in sorted(module.state_dict().items()):
        total.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        total.update(tensor.detach().cpu().flatten().contiguous().view(torch.uint8).numpy().tobytes())
    return total.hexdigest()
