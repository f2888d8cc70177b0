"""`grainline convert`: write a CLIP or SigLIP as a Hugging Face folder or an open_clip state dict.

The written model is read again and its vectors are compared; a model that differs is removed.
"""

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

from grainline.data.tokenizers.tokenizer import TextTokenizer
from grainline.data.tokenizers.tokenizer_files import load_tokenizer
from grainline.data.transforms import EvalTransform
from grainline.encoders.pretrained import Pretrained, kind_of, load_pretrained
from grainline.encoders.pretrained.convert import to_hugging_face, to_open_clip
from grainline.encoders.pretrained.hub import library, quiet, readable
from grainline.encoders.pretrained.kind import PretrainedImageConfig, PretrainedTextConfig
from grainline.encoders.pretrained.library import tokenizer_of
from grainline.errors import UserError, path_of
from grainline.files import discard
from grainline.loading import find_run, load
from grainline.model import Model

TEXTS = (
    "a dog runs over wet sand",
    "two men wait by the red door of a house and one of them is old",
    " ".join(["a long text of many words"] * 60),
)
LIMIT = 1e-4  # largest difference of a number of a unit vector before writing and after reading again
PICKLED = (".pt", ".pth", ".bin", ".ckpt", ".pkl")
FORMS = {"clip": "clip", "siglip": "siglip", "himo": "clip", "beta_clip": "clip", "flair": "clip"}
"""Methods that score like a CLIP or SigLIP after training -> that architecture."""


class Parity(NamedTuple):
    """Largest absolute difference of unit vectors, before writing and after reading again."""

    image: float
    text: float


def convert(source: str, out: str | Path, scoring: str | None = None) -> Parity:
    """Write a model into a new Hugging Face folder, or into a state dict of open_clip (`.safetensors`).

    source   a run folder whose towers are a CLIP or SigLIP, or what `load_pretrained` takes
    scoring  how pairs are scored, for runs with several ways: only vectors can be written

    The tokenizer is written too, into the folder of the file. Returns how far vectors moved. Raises UserError
    where the model has no such form, where a file exists, and where vectors moved by more than LIMIT; then
    nothing is left.
    """
    place = path_of(out, "the place of the model")
    if place.suffix in PICKLED:
        raise UserError(f"{place} would be pickled; name a .safetensors file, or a folder")
    if place.exists() and (not place.is_dir() or any(place.iterdir())):
        raise UserError(f"{place} is there already; give a new name")
    towers, tokenizer = _read(source, scoring)
    if place.suffix == ".safetensors":
        _check_activation(towers, place)
        if tokenizer is not None and (existing := sorted(place.parent.glob("tokenizer*.json"))):
            raise UserError(f"{existing[0]} is there already; give a new folder")
        to_open_clip(towers, place)
        if tokenizer is not None:
            tokenizer.save(place.parent)
    else:
        to_hugging_face(towers, place, () if tokenizer is None else (_writer(towers, tokenizer),))
    try:
        moved = parity(towers, place, tokenizer)
        if not max(moved) <= LIMIT:
            wrong = f"images by {moved.image:.1e}, texts by {moved.text:.1e}; allowed is {LIMIT:.0e}"
            raise UserError(f"{place} gave other vectors than {source} ({wrong}) and was removed")
    except BaseException:
        shutil.rmtree(place) if place.is_dir() else discard(place)
        raise
    return moved


def parity(towers: Pretrained, place: str | Path, tokenizer: TextTokenizer | None = None) -> Parity:
    """Towers against the written files, on two images and three texts; without a tokenizer on ids.

    The transformers library reads a written folder, with tokenizer and processor of the folder.
    """
    place, before = Path(place), _by_package(towers, tokenizer)
    if place.is_dir():
        after = _by_library(place, towers, tokenizer)
    else:  # it does not hold the activation
        quick = towers.architecture["config"]["text_config"]["hidden_act"] == "quick_gelu"
        again = load_pretrained(place, quick_gelu=quick)
        after = _by_package(again, None if tokenizer is None else load_tokenizer(again.tokenizer))
    return Parity(*(float((a - b).abs().max()) for a, b in zip(before, after, strict=True)))


def _images() -> list[Image.Image]:
    """Two images, three times as wide as high and the other way round: what is cut off is even."""
    ramp, rings = Image.linear_gradient("L"), Image.radial_gradient("L")
    image = Image.merge("RGB", (ramp, rings, ramp.rotate(90)))
    return [image.resize((672, 224)), image.rotate(40).resize((224, 672))]


def _inputs(towers: Any, tokenizer: TextTokenizer | None) -> tuple[Tensor, list[list[int]]]:
    """Squares of images [2, 3, size, size] uint8, and ids of texts."""
    text, settings = towers.text, (towers.architecture[x] for x in ("resize", "filter", "margin"))
    transform = EvalTransform(towers.image.size, *settings)
    pixels = torch.stack([transform(image) for image in _images()])
    if tokenizer is not None:
        return pixels, tokenizer.encode(TEXTS, text.context).ids
    end = towers.architecture["config"]["text_config"].get("eos_token_id") or 2
    end = end if 2 < end < text.vocab else text.vocab - 1  # 2: the highest id, in old settings of CLIPs
    return pixels, [[*range(3, 3 + length), end] for length in (1, min(text.context, 16) - 1)]


def _padded(rows: Sequence[Sequence[int]], length: int, pad: int) -> tuple[Tensor, Tensor]:
    mask = torch.arange(length) < torch.tensor([len(row) for row in rows])[:, None]
    return torch.tensor([[*row, *[pad] * (length - len(row))] for row in rows]), mask


@torch.no_grad()
def _by_package(towers: Any, tokenizer: TextTokenizer | None) -> tuple[Tensor, Tensor]:
    """Unit vectors of images and texts as this package computes them."""
    pixels, rows = _inputs(towers, tokenizer)
    vectors = [towers.image(pixels).pooled, towers.text(*_padded(rows, towers.text.context, 0)).pooled]
    for i, head in enumerate((towers.image_projection, towers.text_projection)):
        vectors[i] = F.normalize(vectors[i] if head is None else vectors[i] @ head.T, dim=-1)
    return vectors[0], vectors[1]


@torch.no_grad()
def _by_library(folder: Path, towers: Any, tokenizer: TextTokenizer | None) -> tuple[Tensor, Tensor]:
    """Unit vectors as the transformers library computes them, with tokenizer and processor of the folder."""
    pixels, rows = _inputs(towers, tokenizer)
    values, context, transformers = towers.image.normalised(pixels), towers.text.context, library()
    whole: Any = kind_of(towers.architecture)
    with quiet(), readable(folder):
        model = whole.classes()[1].from_pretrained(str(folder), dtype=torch.float32, trust_remote_code=False)
        if any((folder / name).is_file() for name in ("preprocessor_config.json", "processor_config.json")):
            prepare = transformers.AutoImageProcessor.from_pretrained(str(folder), trust_remote_code=False)
            values = prepare(_images(), return_tensors="pt")["pixel_values"]
        if tokenizer_of(folder) is not None:
            read = transformers.AutoTokenizer.from_pretrained(str(folder), trust_remote_code=False)
            rows = read(list(TEXTS), truncation=True, max_length=context)["input_ids"]
        ids, mask = _padded(rows, context, model.config.text_config.pad_token_id or 0)
        masked = {} if whole.vectors else {"attention_mask": mask}  # SigLIP reads its padding
        out = model.eval()(pixel_values=values, input_ids=ids, **masked)
    return F.normalize(out.image_embeds, dim=-1), F.normalize(out.text_embeds, dim=-1)


def _writer(towers: Any, tokenizer: TextTokenizer) -> Callable[[Path], None]:
    """A function that writes the tokenizer into a Hugging Face folder, with the settings of AutoTokenizer."""
    masked = not kind_of(towers.architecture).vectors  # SigLIP reads its padding
    settings = {
        "model_max_length": towers.text.context,
        "padding_side": "right",
        "model_input_names": ["input_ids", "attention_mask"] if masked else ["input_ids"],
        "clean_up_tokenization_spaces": False,
    }
    pad = towers.architecture["pad"]
    if pad in tokenizer.special:  # the library would make a special token of any other
        settings["pad_token"] = tokenizer.special[pad]
    return lambda folder: tokenizer.save(folder, settings)


def towers_of(model: Model, source: str) -> Pretrained:
    """The towers of a method as those of one checkpoint; UserError with the reason where they are none."""
    if obstacles := _obstacles(model):
        raise UserError(f"{source} cannot be written for other programs: {'; '.join(obstacles)}")
    config: Any = model.description.config
    method: Any = model.method  # a CLIP or a SigLIP: see `FORMS`
    towers, image, text = method.towers, config.image.architecture, config.text.architecture
    settings = image["config"] | {"text_config": text["config"]["text_config"]}
    bare = kind_of(image).vectors
    if not bare:
        settings |= {"projection_dim": towers.space}
        for side in ("vision_config", "text_config"):
            settings[side] = settings[side] | {"projection_dim": towers.space}
    return Pretrained(
        towers.image,
        towers.text,
        image | {"config": settings, "pad": text["pad"]},
        image_projection=None if bare else towers.to_image.weight.detach(),
        text_projection=None if bare else towers.to_text.weight.detach(),
        scale=method.scale().detach(),
        bias=method.bias.detach() if bare else None,
    )


def _obstacles(model: Model) -> list[str]:
    """Why this model has no CLIP or SigLIP form; [] if it has one."""
    config, method, name = model.description.config, model.method, model.description.method
    by_sentence = getattr(config, "scoring", "") == "sentences"
    does = {
        f"makes a text of {method.parts} chunks": method.chunking is not None,
        "reads sentences one by one": by_sentence,
        "scores pairs by their tokens": method.pairwise,
    }
    out = [f"{name} {what}, which no CLIP or SigLIP does" for what, holds in does.items() if holds]
    if name not in FORMS:
        out.append(f"{name} is none of the methods that become a CLIP or SigLIP: {', '.join(FORMS)}")
    encoders: dict[str, Any] = {"image": config.image, "text": config.text}
    library = (PretrainedImageConfig, PretrainedTextConfig)
    if scratch := [side for side, encoder in encoders.items() if not isinstance(encoder, library)]:
        which = " and ".join(scratch) + (" sides were" if len(scratch) > 1 else " side was")
        out.append(f"its {which} trained from scratch, and they do not know that architecture")
    if scratch or name not in FORMS:
        return out
    architectures = [encoder.architecture for encoder in encoders.values()]
    kinds, spaces = [one["kind"] for one in architectures], {kind_of(one).space(one) for one in architectures}
    if set(kinds) != {FORMS[name]}:
        out.append(f"it is {name} on the image side of {kinds[0]} and the text side of {kinds[1]}")
    elif FORMS[name] == "siglip" and spaces != {config.width}:
        out.append(f"its vectors of width {config.width} come out of projections, and a SigLIP has none")
    if len(out) == 1 and (method.pairwise or by_sentence):
        out[0] += f"; --scoring {'whole' if by_sentence else 'vectors'} leaves that out"
    return out


def _read(source: str, scoring: str | None) -> tuple[Pretrained, TextTokenizer | None]:
    """Towers and tokenizer; a checkpoint may have no tokenizer."""
    if find_run(source) is None:
        if scoring is not None:
            raise UserError(f"scoring is {scoring!r}; {source} is no run and has one way to score")
        read = load_pretrained(source)
        vocab = read.text.vocab if read.text else None
        return read, None if read.tokenizer is None else load_tokenizer(read.tokenizer, vocab=vocab)
    model = load(source, device="cpu", scoring=scoring)
    return towers_of(model, source), model.tokenizer


def _check_activation(towers: Pretrained, place: Path) -> None:
    """A state dict does not contain its GELU: readers go by the file name."""
    if towers.architecture["kind"] != "clip":
        return
    quick = towers.architecture["config"]["text_config"]["hidden_act"] == "quick_gelu"
    if quick != ("quickgelu" in place.name.lower()):
        better = f"{place.stem}-quickgelu.safetensors" if quick else "without that word"
        wrong = "has the quick GELU" if quick else "has no quick GELU"
        raise UserError(f"this CLIP {wrong}, which readers tell by 'quickgelu' in its name; name it {better}")
