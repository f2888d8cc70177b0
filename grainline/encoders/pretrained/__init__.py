"""Encoders with weights that others trained: CLIP, SigLIP, ViT, Swin, BERT, GroupViT.

Only this folder knows names of other programs' parameters, classes and settings. In three steps:
  1. read a Hugging Face folder or name, or a state dict of OpenAI, open_clip or Long-CLIP;
  2. fit its positions to the wanted size of images and length of texts;
  3. build the modules of the transformers library and fill them strictly. Heads that no encoder has (such as
     a classifier) are left out by name and listed.

Differs from the library: pixels are normalised inside, padding never counts, the summary of a text is its
last real token where the library searches for an end token (in one text they are the same), patches pass
the same last layers as the summary, and the logit scale is a tensor of shape [1].

    adapters    Models of the transformers library as encoders of this package.
    archive     Tensors from files of other programs, without running code in these files.
    build       The configs of encoders from a checkpoint, and from an architecture to its encoders and back.
    convert     Pretrained towers as files that other programs read.
    hf          Hugging Face folders and names: weights and settings of one of KINDS, read strictly.
    hub         The Hugging Face hub and the transformers library, both loaded late, their errors in one line.
    llava       Descriptions by LLaVA, through the transformers library.
    openclip    State dicts with the names of OpenAI: those of OpenAI itself, of open_clip and of Long-CLIP.
    preprocess  How images are prepared for a checkpoint: mean and std, the filter, and the way to a square.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from torch import Tensor

from grainline.config import HUB_NAME
from grainline.encoders.pretrained.build import (
    KINDS,
    Pretrained,
    Source,
    build_pretrained,
    fresh_model,
    is_vector,
    joined,
    sides_of,
    space_of,
    split,
)
from grainline.encoders.pretrained.hf import from_hugging_face
from grainline.encoders.pretrained.hub import download
from grainline.encoders.pretrained.openclip import from_file, from_open_clip_folder
from grainline.errors import UserError
from grainline.nn.positions import KEEP, Stretch, to_context, to_grid

__all__ = ["Pretrained", "build_pretrained", "is_vector", "joined", "load_pretrained", "space_of"]


def load_pretrained(
    name: str | Path,
    *,
    size: int | None = None,
    context: int | None = None,
    stretch: Stretch = "keep",
    quick_gelu: bool | None = None,
    resize: Literal["crop", "squash"] | None = None,
) -> Pretrained:
    """The encoders of a checkpoint, in evaluation mode and float32.

    name        a Hugging Face folder or name; a folder of open_clip; a file with a state dict of OpenAI,
                open_clip or Long-CLIP
    size        side of the images, another than that of the checkpoint: positions become a finer or coarser
                grid (`to_grid`)
    context     longest text: positions are stretched ("keep" or "linear", see `to_context`) or cut
    quick_gelu  x * sigmoid(1.702 x) in place of GELU in a CLIP. None: by the config of a folder; files of
                OpenAI (TorchScript), of Long-CLIP and with "quickgelu" in their name have it, other files
                do not. Weights do not show it: give True for OpenAI's weights in a file of another kind.
    resize      how an image becomes a square, in place of the checkpoint's way: its short side and the
                middle ("crop"), or all of it, whatever its shape ("squash"); both without a margin
    """
    source = _read(name, quick_gelu)
    architecture, state = _fitted(source.architecture, source.state, size, context, stretch)
    if resize is not None:
        architecture |= {"resize": resize, "margin": 1.0}
    model = fresh_model(architecture)
    model.load_state_dict(state, strict=True)
    return split(model, architecture)._replace(tokenizer=source.tokenizer, left_out=source.left_out)


def _fitted(
    architecture: dict[str, Any],
    state: dict[str, Tensor],
    size: int | None,
    context: int | None,
    stretch: Stretch,
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Architecture and state dict for another size of images and another length of texts."""
    architecture, state = json.loads(json.dumps(architecture)), dict(state)
    kind, sides = KINDS[architecture["kind"]], sides_of(architecture)
    if size is not None and kind.image is not None:
        image = sides["image"]
        if size != image["image_size"]:  # 14 divides no 384, and yet there are such models
            _check_size(architecture["kind"], image, size)
        old, new = image["image_size"] // image["patch_size"], size // image["patch_size"]
        image["image_size"] = size
        if kind.grid in state:  # Swin has relative positions only
            table = state[kind.grid]
            fitted = to_grid(table.flatten(0, -2), (old, old), (new, new), kind.lead)
            state[kind.grid] = fitted.view(*table.shape[:-2], *fitted.shape)
    if context is not None and kind.text is not None:
        if context < 3:
            raise UserError(f"the context is {context} tokens; it must be at least 3 (begin, one token, end)")
        learnt = sides["text"]["max_position_embeddings"]
        if stretch == "keep" and learnt < context and learnt <= KEEP:
            raise UserError(
                f"the first {KEEP} positions of texts stay as they are, and this checkpoint has {learnt}; "
                "choose stretch='linear'"
            )
        sides["text"]["max_position_embeddings"] = context
        state[kind.row] = to_context(state[kind.row], context, stretch)
    return architecture, state


def _check_size(kind: str, config: Mapping[str, Any], size: int) -> None:
    patch = config["patch_size"]
    if size <= 0 or size % patch:
        raise UserError(f"size {size} is not a multiple of the checkpoint's patch side {patch}")
    if kind == "swin" and (size // patch) >> (len(config["depths"]) - 1) < config["window_size"]:
        least = (config["window_size"] * patch) << (len(config["depths"]) - 1)
        raise UserError(
            f"size {size} is smaller than a window of the last stage; this Swin needs {least} at least"
        )


def _read(name: str | Path, quick_gelu: bool | None) -> Source:
    place = Path(name)
    if not place.exists():
        if HUB_NAME.fullmatch(str(name)) is None:
            raise UserError(
                f"no file or folder {name}, and it is no Hugging Face name; give one of the three"
            )
        place = download(str(name))
    if place.is_file():
        return from_file(place, quick_gelu, {})
    if not (place / "config.json").is_file():
        return from_open_clip_folder(place, quick_gelu)
    return from_hugging_face(place, quick_gelu)
