"""Hugging Face folders and names: weights and settings of one of KINDS, read strictly."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from grainline.encoders.pretrained.archive import read_tensors
from grainline.encoders.pretrained.build import HEADLESS, KINDS, Source, sides_of
from grainline.encoders.pretrained.hub import library, quiet, readable
from grainline.encoders.pretrained.preprocess import of_hugging_face
from grainline.errors import UserError
from grainline.files import read_settings
from grainline.weights import check_numbers, summarize_names


def from_hugging_face(folder: Path, quick_gelu: bool | None) -> Source:
    """A folder as `save_pretrained` of the transformers library writes it."""
    transformers, name = library(), str(folder)
    kind = _kind_of(name, read_settings(folder / "config.json"))
    reader = getattr(transformers, KINDS[kind].config)  # no Auto class: it would ask to run a folder's code
    with quiet(), readable(folder):
        config = reader.from_pretrained(name, trust_remote_code=False).to_dict()
    if kind == "siglip" and not config["vision_config"].get("vision_use_head", True):
        raise UserError(f"{name} has no attention pool (vision_use_head is false), so no vector for an image")
    for settings in sides_of({"config": config}).values():
        _square(name, settings)
    if quick_gelu is not None:
        if kind != "clip":
            raise UserError(f"{name} is a {kind}, which has one activation; quick_gelu is for CLIP")
        for side in ("vision_config", "text_config"):
            config[side]["hidden_act"] = "quick_gelu" if quick_gelu else "gelu"
    headless = {"add_pooling_layer": False} if kind in HEADLESS else {}
    with quiet(), readable(folder):
        model, report = getattr(transformers, KINDS[kind].model).from_pretrained(
            name,
            trust_remote_code=False,
            dtype=torch.float32,
            output_loading_info=True,
            ignore_mismatched_sizes=True,
            **headless,
        )
    stored = sorted(folder.glob("model*.safetensors")) or sorted(folder.glob("pytorch_model*.bin"))
    for file in stored:  # the library makes floats of integers
        check_numbers(read_tensors(file)[0], file)
    unread = {key for key in report["unexpected_keys"] if re.fullmatch(KINDS[kind].left_out, key)}
    wrong = summarize_names(
        {
            "missing": report["missing_keys"],
            "unknown": set(report["unexpected_keys"]) - unread,
            "of another form": {key for key, *_ in report["mismatched_keys"]},
        }
    )
    if wrong:
        raise UserError(f"the weights of {name} do not fit its config.json: {wrong}; fetch both again")
    pad = _pad(folder, config.get("text_config", config))
    if kind == "siglip":  # its model reads padding
        config["text_config"]["pad_token_id"] = pad
    image_size = sides_of({"config": config})["image"].get("image_size")
    pixels = of_hugging_face(kind, _processor(folder), name, image_size)
    architecture = {"kind": kind, "config": plain(config), "pad": pad, **pixels}
    left_out = tuple(sorted({key.split(".")[0] for key in unread}))
    return Source(architecture, model.state_dict(), tokenizer_of(folder), left_out)


def _kind_of(name: str, config: Mapping[str, Any]) -> str:
    kind = str(config.get("model_type", "model of no model_type"))
    if kind == "siglip2":
        raise UserError(
            f"{name} is a SigLIP 2 for images of any shape (NaFlex), which is not supported; "
            "give one of fixed size, such as google/siglip2-base-patch16-224"
        )
    if kind not in KINDS:
        code = " with code of its own, which is never run" if "auto_map" in config else ""
        raise UserError(f"{name} is a {kind}{code}; models that can be loaded are {', '.join(KINDS)}")
    return kind


def _square(name: str, config: dict[str, Any]) -> None:
    """Sides of images and patches as one number each; some configs write [224, 224]."""
    for key in {"image_size", "patch_size"} & config.keys():
        sides = config[key] if isinstance(config[key], list) else [config[key]]
        if len(set(sides)) != 1:
            raise UserError(f"{key} of {name} is {sides}; only square images and patches can be read")
        config[key] = sides[0]


def plain(config: Mapping[str, Any]) -> dict[str, Any]:
    """Settings as JSON has them, without path, precision and version of the file they came from."""
    file = {"_name_or_path", "dtype", "torch_dtype", "transformers_version", "architectures"}
    own = {key: plain(x) if isinstance(x, dict) else x for key, x in config.items() if key not in file}
    content: dict[str, Any] = json.loads(json.dumps(own))
    return content


def _processor(folder: Path) -> dict[str, Any]:
    """The settings of the image processor; the library too reads the second file where the first has none."""
    nested: dict[str, Any] | None = read_settings(folder / "processor_config.json").get("image_processor")
    return read_settings(folder / "preprocessor_config.json") if nested is None else nested


def _pad(folder: Path, config: Mapping[str, Any]) -> int:
    """The id of padding, which SigLIP reads: that of the tokenizer; the config often lacks it."""
    token = read_settings(folder / "tokenizer_config.json").get("pad_token")
    tokens = read_settings(folder / "tokenizer.json").get("added_tokens", [])
    try:
        token = token["content"] if isinstance(token, dict) else token
        ids = {entry["content"]: int(entry["id"]) for entry in tokens}
    except (TypeError, KeyError, ValueError) as error:
        raise UserError(
            f"the tokenizer of {folder} names its special tokens in no form that is known ({error!r}); "
            "fetch it again"
        ) from None
    return ids.get(str(token), int(config.get("pad_token_id") or 0))


def tokenizer_of(folder: Path) -> str | None:
    """The folder, where it holds a tokenizer."""
    files = (
        "tokenizer.json",
        "vocab.json",
        "vocab.txt",
        "spiece.model",
        "sentencepiece.bpe.model",
        "spm.model",
    )
    return str(folder) if any((folder / file).is_file() for file in files) else None
