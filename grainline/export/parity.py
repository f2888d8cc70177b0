"""The difference of vectors between a checkpoint and what was written of it."""

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

from grainline.data.tokenizers.tokenizer import TextTokenizer
from grainline.data.tokenizers.tokenizer_files import load_tokenizer
from grainline.data.transforms import EvalTransform
from grainline.encoders.pretrained import Pretrained, load_pretrained
from grainline.encoders.pretrained.adapters import ImageEncoder, TextEncoder
from grainline.encoders.pretrained.build import KINDS
from grainline.encoders.pretrained.hf import tokenizer_of
from grainline.encoders.pretrained.hub import library, quiet, readable
from grainline.errors import UserError

TEXTS = (
    "a dog runs over wet sand",
    "two men wait by the red door of a house and one of them is old",
    " ".join(["a long text of many words"] * 60),
)


class Parity(NamedTuple):
    """Largest absolute difference of unit vectors, before writing and after reading again."""

    image: float
    text: float


def parity(
    towers: Pretrained, place: str | Path, tokenizer: TextTokenizer | None = None, source: Path | None = None
) -> Parity:
    """Towers against the written files, on two images and three texts; without a tokenizer on ids.

    The transformers library reads a written folder, with tokenizer and processor of the folder, and a CLIP in
    the folder `source`; of some SigLIP tokenizers it makes something else than the training did. Everything
    else is read here.
    """
    place, before = Path(place), None
    if source is not None and towers.architecture["kind"] == "clip" and (source / "config.json").is_file():
        with suppress(UserError):
            before = _by_library(source, towers, tokenizer)
    if place.is_dir():
        after = _by_library(place, towers, tokenizer)
    else:  # it does not hold the activation
        quick = towers.architecture["config"]["text_config"]["hidden_act"] == "quick_gelu"
        again = load_pretrained(place, quick_gelu=quick)
        after = _here(again, None if tokenizer is None else load_tokenizer(again.tokenizer))
    before = before or _here(towers, tokenizer)
    return Parity(*(float((a - b).abs().max()) for a, b in zip(before, after, strict=True)))


def _images() -> list[Image.Image]:
    """Two images, three times as wide as high and the other way round: what is cut off is even."""
    ramp, rings = Image.linear_gradient("L"), Image.radial_gradient("L")
    image = Image.merge("RGB", (ramp, rings, ramp.rotate(90)))
    return [image.resize((672, 224)), image.rotate(40).resize((224, 672))]


def _inputs(towers: Pretrained, tokenizer: TextTokenizer | None) -> tuple[Tensor, list[list[int]]]:
    """Squares of images [2, 3, size, size] uint8, and ids of texts."""
    image, text = _sides(towers)
    transform = EvalTransform(image.size, *(towers.architecture[x] for x in ("resize", "filter", "margin")))
    pixels = torch.stack([transform(shown) for shown in _images()])
    if tokenizer is not None:
        return pixels, tokenizer.encode(TEXTS, text.context).ids
    end = towers.architecture["config"]["text_config"].get("eos_token_id") or 2
    end = end if 2 < end < text.vocab else text.vocab - 1  # 2: the highest id, in old settings of CLIPs
    return pixels, [[*range(3, 3 + length), end] for length in (1, min(text.context, 16) - 1)]


def _padded(rows: Sequence[Sequence[int]], length: int, pad: int) -> tuple[Tensor, Tensor]:
    mask = torch.arange(length) < torch.tensor([len(row) for row in rows])[:, None]
    return torch.tensor([[*row, *[pad] * (length - len(row))] for row in rows]), mask


@torch.no_grad()
def _here(towers: Pretrained, tokenizer: TextTokenizer | None) -> tuple[Tensor, Tensor]:
    """Unit vectors of images and texts as this package computes them."""
    (image, text), (pixels, rows) = _sides(towers), _inputs(towers, tokenizer)
    pooled = image(pixels).pooled, text(*_padded(rows, text.context, 0)).pooled
    heads = towers.image_projection, towers.text_projection
    seen, read = (x if head is None else x @ head.T for x, head in zip(pooled, heads, strict=True))
    return F.normalize(seen, dim=-1), F.normalize(read, dim=-1)


@torch.no_grad()
def _by_library(folder: Path, towers: Pretrained, tokenizer: TextTokenizer | None) -> tuple[Tensor, Tensor]:
    """Unit vectors as the transformers library computes them, with tokenizer and processor of the folder."""
    (image, text), (pixels, rows) = _sides(towers), _inputs(towers, tokenizer)
    values, kind, transformers = image.normalised(pixels), towers.architecture["kind"], library()
    with quiet(), readable(folder):
        model = getattr(transformers, KINDS[kind].model).from_pretrained(
            str(folder), dtype=torch.float32, trust_remote_code=False
        )
        if any((folder / name).is_file() for name in ("preprocessor_config.json", "processor_config.json")):
            prepare = transformers.AutoImageProcessor.from_pretrained(str(folder), trust_remote_code=False)
            values = prepare(_images(), return_tensors="pt")["pixel_values"]
        if tokenizer_of(folder) is not None:
            read = transformers.AutoTokenizer.from_pretrained(str(folder), trust_remote_code=False)
            rows = read(list(TEXTS), truncation=True, max_length=text.context)["input_ids"]
        ids, mask = _padded(rows, text.context, model.config.text_config.pad_token_id or 0)
        masked = {"attention_mask": mask} if kind == "clip" else {}  # SigLIP reads its padding
        out = model.eval()(pixel_values=values, input_ids=ids, **masked)
    return F.normalize(out.image_embeds, dim=-1), F.normalize(out.text_embeds, dim=-1)


def _sides(towers: Pretrained) -> tuple[ImageEncoder, TextEncoder]:
    assert towers.image is not None
    assert towers.text is not None
    return towers.image, towers.text
