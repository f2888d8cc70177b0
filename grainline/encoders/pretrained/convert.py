"""Pretrained towers as files that other programs read."""

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from torch import Tensor

from grainline.encoders.pretrained import kind_of, preprocess
from grainline.encoders.pretrained.clip_towers import heads_of, to_open_clip_names
from grainline.encoders.pretrained.hub import quiet
from grainline.encoders.pretrained.kind import Pretrained, sides_of
from grainline.errors import UserError
from grainline.files import replacing, share, sync, write_tensors, write_text


def to_hugging_face(
    towers: Pretrained, folder: str | Path, also: Iterable[Callable[[Path], None]] = ()
) -> None:
    """Write config.json, model.safetensors and preprocessor_config.json of a CLIP or SigLIP, atomically.

    also  functions that write more into the folder, such as the `save` of a tokenizer
    """
    home = Path(folder)
    _check(towers, "a Hugging Face folder", "clip", "siglip")
    if home.exists() and (not home.is_dir() or any(home.iterdir())):
        raise UserError(f"{home} is there already; give a new folder")
    with replacing(home) as place:
        with quiet():
            model: Any = kind_of(towers.architecture).model(towers.architecture)
            model.load_state_dict(joined(towers), strict=True)
            # Readers of the folder find the padding of texts in the config only.
            model.config.text_config.pad_token_id = towers.architecture["pad"]
            model.save_pretrained(place)
        for write in also:
            write(place)
        for file in sorted(place.iterdir()):
            share(file)
            sync(file)
        size = towers.architecture["config"]["vision_config"]["image_size"]
        processor = preprocess.to_hugging_face(towers.architecture["kind"], towers.architecture, size)
        write_text(place / "preprocessor_config.json", json.dumps(processor, indent=2) + "\n")


def to_open_clip(towers: Pretrained, file: str | Path) -> None:
    """Write a CLIP as one safetensors file with the names of OpenAI and open_clip, atomically."""
    _check(towers, "a state dict of open_clip", "clip")
    obstacles = []
    for side, settings in sides_of(towers.architecture).items():
        width, number = settings["hidden_size"], settings["num_attention_heads"]
        if (heads := heads_of(side, width)) != number:
            read = f"readers of a state dict take width {width} for {heads} heads"
            obstacles.append(f"the {side} side has {number} heads, and {read}")
    pixels = {name: towers.architecture[name] for name in preprocess.KNOWN["clip"]}
    if json.dumps(pixels) != json.dumps(preprocess.KNOWN["clip"]):
        other = "images are prepared for this CLIP in another way than for OpenAI's"
        obstacles.append(f"{other}, and a state dict has no field for that")
    if obstacles:
        raise UserError("; ".join([*obstacles, "write a Hugging Face folder instead"]))
    with replacing(Path(file)) as place:
        write_tensors(place, to_open_clip_names(joined(towers)), {})


def _check(towers: Pretrained, what: str, *kinds: str) -> None:
    kind = towers.architecture["kind"]
    if kind not in kinds:
        raise UserError(f"{kind} cannot be written as {what}; allowed are {', '.join(kinds)}")


def joined(towers: Any) -> dict[str, Tensor]:
    """The state dict of the library's whole model, for CLIP and SigLIP: the inverse of `Kind.split`."""
    image, text = towers.image.model.state_dict(), towers.text.library_state()
    state = {f"vision_model.{name}": x for name, x in image.items()}
    state |= {f"text_model.{name}": x for name, x in text.items()}
    state["logit_scale"] = towers.scale.log()[0]  # CLIP's is a scalar, SigLIP's has one element
    if towers.bias is not None:
        state |= {"logit_scale": towers.scale.log(), "logit_bias": towers.bias}
    heads = {"visual_projection": towers.image_projection, "text_projection": towers.text_projection}
    state |= {f"{head}.weight": matrix for head, matrix in heads.items() if matrix is not None}
    return {name: x.detach() for name, x in state.items()}
