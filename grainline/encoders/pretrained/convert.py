"""Pretrained towers back into files that other programs read, and how far that moved their vectors."""

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from grainline.encoders.pretrained import Pretrained, joined, load_pretrained, preprocess, whole_model
from grainline.encoders.pretrained.hub import quiet
from grainline.encoders.pretrained.openclip import heads_of_image, heads_of_text, to_open_clip_names
from grainline.errors import UserError
from grainline.files import replacing, sync, write_tensors, write_text


class Parity(NamedTuple):
    """Largest absolute difference of unit vectors, before writing and after reading again."""

    image: float
    text: float


def to_hugging_face(
    towers: Pretrained, folder: str | Path, also: Iterable[Callable[[Path], None]] = ()
) -> None:
    """Write config.json, model.safetensors and preprocessor_config.json of a CLIP or SigLIP, atomically.

    also  writes more into the folder before it stands in its place: the `save` of a tokenizer, say
    """
    home = Path(folder)
    _check(towers, ("clip", "siglip"), "a Hugging Face folder")
    if home.exists() and (not home.is_dir() or any(home.iterdir())):
        raise UserError(f"{home} is there already; give a new folder")
    with replacing(home) as place:
        with quiet():
            model = whole_model(towers)
            # Whoever reads the folder has the config alone to tell what fills up texts.
            model.config.text_config.pad_token_id = towers.architecture["pad"]
            model.save_pretrained(place)
        for write in also:
            write(place)
        for file in sorted(place.iterdir()):
            sync(file)
        kind, architecture = towers.architecture["kind"], towers.architecture
        size = architecture["config"]["vision_config"]["image_size"]
        processor = preprocess.to_hugging_face(kind, architecture, size)
        write_text(place / "preprocessor_config.json", json.dumps(processor, indent=2) + "\n")


def to_open_clip(towers: Pretrained, file: str | Path) -> None:
    """Write a CLIP as one safetensors file with the names of OpenAI and open_clip, atomically."""
    _check(towers, ("clip",), "a state dict of open_clip")
    config = towers.architecture["config"]
    for side, heads in (("vision_config", heads_of_image), ("text_config", heads_of_text)):
        width, mine = config[side]["hidden_size"], config[side]["num_attention_heads"]
        if heads(width) != mine:
            raise UserError(
                f"the {side} has {mine} heads; readers of a state dict would take width {width} for "
                f"{heads(width)} heads; write a Hugging Face folder instead"
            )
    told = {name: towers.architecture[name] for name in preprocess.KNOWN["clip"]}
    if json.dumps(told) != json.dumps(preprocess.KNOWN["clip"]):
        raise UserError(
            "images are made for this CLIP in another way than for OpenAI's, which a state dict does not "
            "tell; write a Hugging Face folder instead"
        )
    with replacing(Path(file)) as place:
        write_tensors(place, to_open_clip_names(joined(towers)), {})


def parity(towers: Pretrained, place: str | Path, *, rows: int = 4, seed: int = 0) -> Parity:
    """Towers against what was written of them, on seeded random images and texts of random lengths.

    The activation is taken from the towers: a state dict does not tell.
    """
    quick = None
    if towers.architecture["kind"] == "clip":
        quick = towers.architecture["config"]["text_config"]["hidden_act"] == "quick_gelu"
    again = load_pretrained(place, quick_gelu=quick)
    before, after = vectors(towers, rows, seed), vectors(again, rows, seed)
    return Parity(*(float((a - b).abs().max()) for a, b in zip(before, after, strict=True)))


@torch.no_grad()
def vectors(towers: Pretrained, rows: int, seed: int) -> tuple[Tensor, Tensor]:
    """Unit vectors [rows, D] of random images and of random texts, the same for the same seed."""
    assert towers.image is not None
    assert towers.text is not None
    g = torch.Generator().manual_seed(seed)
    images = torch.rand(rows, 3, towers.image.size, towers.image.size, generator=g)
    ids = torch.randint(0, towers.text.vocab, (rows, towers.text.context), generator=g)
    lengths = torch.randint(1, towers.text.context + 1, (rows, 1), generator=g)
    mask = torch.arange(towers.text.context) < lengths
    image, text = towers.image(images).pooled, towers.text(ids, mask).pooled
    return _projected(image, towers.image_projection), _projected(text, towers.text_projection)


def _projected(pooled: Tensor, matrix: Tensor | None) -> Tensor:
    return F.normalize(pooled if matrix is None else pooled @ matrix.T, dim=-1)


def _check(towers: Pretrained, kinds: tuple[str, ...], what: str) -> None:
    kind = towers.architecture["kind"]
    if kind not in kinds:
        raise UserError(f"a {kind} cannot be written as {what}; allowed are {', '.join(kinds)}")
