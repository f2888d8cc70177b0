"""Hugging Face folders and names: weights and settings of one of KINDS, read strictly."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from grainline.encoders.pretrained.build import HEADLESS, KINDS, Source, sides_of
from grainline.encoders.pretrained.library import library, quiet, readable
from grainline.errors import UserError
from grainline.weights import listed


def from_hugging_face(name: str, quick_gelu: bool | None) -> Source:
    found = library()
    with quiet(), readable(name):
        config = found.AutoConfig.from_pretrained(name).to_dict()
    kind = _kind_of(name, config)
    for settings_of_side in sides_of({"config": config}).values():
        _square(name, settings_of_side)
    if quick_gelu is not None:
        if kind != "clip":
            raise UserError(f"{name} is a {kind}, which has one activation; quick_gelu is for CLIP")
        for side in ("vision_config", "text_config"):
            config[side]["hidden_act"] = "quick_gelu" if quick_gelu else "gelu"
    headless = {"add_pooling_layer": False} if kind in HEADLESS else {}
    with quiet(), readable(name):
        model, report = getattr(found, KINDS[kind].model).from_pretrained(
            name, dtype=torch.float32, output_loading_info=True, ignore_mismatched_sizes=True, **headless
        )
    unread = {key for key in report["unexpected_keys"] if re.fullmatch(KINDS[kind].left_out, key)}
    wrong = listed(
        {
            "missing": report["missing_keys"],
            "unknown": set(report["unexpected_keys"]) - unread,
            "of another form": {key for key, *_ in report["mismatched_keys"]},
        }
    )
    if wrong:
        raise UserError(f"the weights of {name} do not fit its config.json: {wrong}; fetch both again")
    settings = _picture_settings(name)
    architecture = {
        "kind": kind,
        "config": plain(config),
        "mean": settings.get("image_mean", KINDS[kind].mean),
        "spread": settings.get("image_std", KINDS[kind].spread),
        "pad": _pad(name, config.get("text_config", config)),
    }
    left_out = tuple(sorted({key.split(".")[0] for key in unread}))
    return Source(architecture, model.state_dict(), tokenizer_of(name), left_out)


def _kind_of(name: str, config: Mapping[str, Any]) -> str:
    kind = str(config.get("model_type"))
    if kind == "siglip2":
        raise UserError(
            f"{name} is a SigLIP 2 for pictures of any shape (NaFlex), which is not supported; "
            "give one of fixed size, such as google/siglip2-base-patch16-224"
        )
    if kind not in KINDS:
        raise UserError(f"{name} is a {kind}; models that can be loaded are {', '.join(KINDS)}")
    if kind == "siglip" and not config["vision_config"].get("vision_use_head", True):
        raise UserError(
            f"{name} has no attention pool (vision_use_head is false), so no vector for a picture"
        )
    return kind


def _square(name: str, config: dict[str, Any]) -> None:
    """Sides of pictures and patches as one number each; some configs write [224, 224]."""
    for key in {"image_size", "patch_size"} & config.keys():
        sides = config[key] if isinstance(config[key], list) else [config[key]]
        if len(set(sides)) != 1:
            raise UserError(f"{key} of {name} is {sides}; only square pictures and patches can be read")
        config[key] = sides[0]


def plain(config: Mapping[str, Any]) -> dict[str, Any]:
    """Settings without those of the file they came from: where it lay, its precision, its version."""
    left = {"_name_or_path", "dtype", "torch_dtype", "transformers_version", "architectures"}
    kept = {key: plain(x) if isinstance(x, dict) else x for key, x in config.items() if key not in left}
    content: dict[str, Any] = json.loads(json.dumps(kept))
    return content


def _picture_settings(name: str) -> dict[str, Any]:
    """mean and std of the pixels; the second file is what version 5 of the library writes."""
    found = json_beside(name, "preprocessor_config.json") or json_beside(name, "processor_config.json").get(
        "image_processor", {}
    )
    return {key: [float(x) for x in found[key]] for key in ("image_mean", "image_std") if found.get(key)}


def _pad(name: str, config: Mapping[str, Any]) -> int:
    """The id that fills up texts: SigLIP reads it. The tokenizer knows, the config often does not."""
    token = json_beside(name, "tokenizer_config.json").get("pad_token")
    token = token["content"] if isinstance(token, dict) else token
    tokens = json_beside(name, "tokenizer.json").get("added_tokens", [])
    ids = {entry["content"]: int(entry["id"]) for entry in tokens}
    return ids.get(str(token), int(config.get("pad_token_id") or 0))


def json_beside(name: str, file: str) -> dict[str, Any]:
    """A file beside the weights; empty where there is none."""
    from transformers.utils import cached_file

    try:
        with quiet():
            place = cached_file(name, file)
        content: dict[str, Any] = json.loads(Path(place or "").read_text(encoding="utf-8"))
        return content
    except OSError:
        return {}
    except ValueError as error:
        raise UserError(f"{file} of {name} is no JSON: {error}; fetch it again") from None


def tokenizer_of(name: str) -> str | None:
    folder = Path(name)
    files = ("tokenizer.json", "vocab.json", "vocab.txt", "spiece.model")
    held = not folder.is_dir() or any((folder / file).is_file() for file in files)
    return name if held else None
