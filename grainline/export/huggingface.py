"""`grainline convert`: write a CLIP or SigLIP as a Hugging Face folder or an open_clip state dict.

The written model is read again and its vectors are compared; a model that differs is removed.
"""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from grainline.data.tokenizers.library_tokenizer import write_settings
from grainline.data.tokenizers.tokenizer import TextTokenizer
from grainline.data.tokenizers.tokenizer_files import load_tokenizer
from grainline.encoders.pretrained import Pretrained, load_pretrained
from grainline.encoders.pretrained.build import (
    PretrainedImageConfig,
    PretrainedTextConfig,
    is_vector,
    space_of,
)
from grainline.encoders.pretrained.convert import Parity, parity, to_hugging_face, to_open_clip
from grainline.errors import UserError, path_of
from grainline.files import discard
from grainline.loading import find_run, load
from grainline.model import Model

LIMIT = 1e-4  # largest difference of a number of a unit vector before writing and after reading again
PICKLED = (".pt", ".pth", ".bin", ".ckpt", ".pkl")
FORMS = {"clip": "clip", "siglip": "siglip", "himo": "clip", "beta_clip": "clip", "flair": "clip"}
"""Methods that score like a CLIP or SigLIP after training -> that architecture."""


def convert(source: str, out: str | Path, scoring: str | None = None) -> Parity:
    """Write a model into a new Hugging Face folder, or into a state dict of open_clip (`.safetensors`).

    source   a run folder whose towers are a CLIP or SigLIP, or what `load_pretrained` takes
    scoring  how the method of a run scores pairs, where it has several ways: only "vectors" can be written

    The tokenizer is written too, into the folder of the file. Returns how far vectors moved. Raises UserError
    where the model has no such form, where a file exists, and where vectors moved by more than LIMIT; then
    nothing is left.
    """
    place = path_of(out, "the place of the model")
    if place.suffix in PICKLED:
        raise UserError(
            f"{place} would be pickled; a state dict is written as .safetensors, all else as a folder"
        )
    if place.exists() and (not place.is_dir() or any(place.iterdir())):
        raise UserError(f"{place} is there already; give a new name")
    towers, tokenizer = _read(source, scoring)
    if place.suffix == ".safetensors":
        _check_activation(towers, place)
        names = ("tokenizer.json", "tokenizer_meta.json")
        existing = next((place.parent / name for name in names if (place.parent / name).is_file()), None)
        if tokenizer is not None and existing is not None:
            raise UserError(
                f"{existing} is there already, and the tokenizer goes into the same folder; give a new folder"
            )
        to_open_clip(towers, place)
        if tokenizer is not None:
            tokenizer.save(place.parent)
    else:
        to_hugging_face(towers, place, () if tokenizer is None else (_writer(towers, tokenizer),))
    moved = parity(towers, place)
    if not max(moved) <= LIMIT:
        shutil.rmtree(place) if place.is_dir() else discard(place)
        raise UserError(
            f"{place} gave other vectors than {source} when it was read again (images by "
            f"{moved.image:.1e}, texts by {moved.text:.1e}; allowed is {LIMIT:.0e}) and was removed"
        )
    return moved


def _writer(towers: Pretrained, tokenizer: TextTokenizer) -> Callable[[Path], None]:
    """Writes the tokenizer into a Hugging Face folder, with what its AutoTokenizer wants to know."""
    assert towers.text is not None
    context, pad = towers.text.context, towers.architecture["pad"]
    masked = not is_vector(towers.architecture)  # SigLIP reads its padding

    def write(folder: Path) -> None:
        tokenizer.save(folder)
        write_settings(tokenizer, folder, context=context, pad=pad, masked=masked)

    return write


def towers_of(model: Model, source: str) -> Pretrained:
    """The towers of a method as those of one checkpoint; UserError with the reason where they are none."""
    if obstacles := _obstacles(model):
        raise UserError(f"{source} cannot be written for other programs: {'; '.join(obstacles)}")
    config = model.description.config
    method: Any = model.method  # a CLIP or a SigLIP: see `FORMS`
    towers = method.towers
    assert isinstance(config.image, PretrainedImageConfig)
    assert isinstance(config.text, PretrainedTextConfig)
    image, text = config.image.architecture, config.text.architecture
    assert image is not None
    assert text is not None
    settings = image["config"] | {"text_config": text["config"]["text_config"]}
    bare = is_vector(image)
    if not bare:
        settings |= {"projection_dim": towers.space}
        for side in ("vision_config", "text_config"):
            settings[side] = settings[side] | {"projection_dim": towers.space}
    return Pretrained(
        image=towers.image,
        text=towers.text,
        image_projection=None if bare else towers.to_image.weight.detach(),
        text_projection=None if bare else towers.to_text.weight.detach(),
        scale=method.scale().detach(),
        bias=method.bias.detach() if bare else None,
        tokenizer=None,
        left_out=(),
        architecture=image | {"config": settings, "pad": text["pad"]},
    )


def _obstacles(model: Model) -> list[str]:
    """Why this model has no CLIP or SigLIP form; [] if it has one."""
    config, name, out = model.description.config, model.description.method, list[str]()
    if model.method.chunking is not None:
        out.append(f"{name} makes a text of {model.method.parts} chunks, which no CLIP or SigLIP does")
    if model.method.pairwise:
        out.append(f"{name} scores pairs by their tokens, which no CLIP or SigLIP does")
    if name not in FORMS:
        out.append(f"{name} is none of the methods that become a CLIP or SigLIP: {', '.join(FORMS)}")
    encoders: dict[str, Any] = {"image": config.image, "text": config.text}
    library = (PretrainedImageConfig, PretrainedTextConfig)
    scratch = [side for side, encoder in encoders.items() if not isinstance(encoder, library)]
    if scratch:
        which = "sides were" if len(scratch) > 1 else "side was"
        sides = " and ".join(scratch)
        out.append(f"its {sides} {which} trained from scratch, and they do not know that architecture")
    if scratch or name not in FORMS:
        return out
    architectures = [encoder.architecture for encoder in encoders.values()]
    kinds, spaces = [one["kind"] for one in architectures], {space_of(one) for one in architectures}
    if set(kinds) != {FORMS[name]}:
        out.append(f"it is a {name} on the image side of a {kinds[0]} and the text side of a {kinds[1]}")
    elif FORMS[name] == "siglip" and spaces != {config.width}:
        out.append(f"its vectors of width {config.width} come out of projections, and a SigLIP has none")
    if len(out) == 1 and model.method.pairwise:
        out[0] += "; --scoring vectors leaves that out"
    return out


def _read(source: str, scoring: str | None) -> tuple[Pretrained, TextTokenizer | None]:
    """Towers and tokenizer; a checkpoint may have no tokenizer."""
    if find_run(source) is None:
        if scoring is not None:
            raise UserError(
                f"scoring is {scoring!r}; {source} is no run and has one way to score: leave it out"
            )
        pretrained = load_pretrained(source)
        if pretrained.tokenizer is None:
            return pretrained, None
        vocab = pretrained.text.vocab if pretrained.text else None
        return pretrained, load_tokenizer(pretrained.tokenizer, vocab=vocab)
    model = load(source, device="cpu", scoring=scoring)
    return towers_of(model, source), model.tokenizer


def _check_activation(towers: Pretrained, place: Path) -> None:
    """A state dict does not contain its GELU: readers go by the file name."""
    if towers.architecture["kind"] != "clip":
        return
    quick = towers.architecture["config"]["text_config"]["hidden_act"] == "quick_gelu"
    if quick != ("quickgelu" in place.name.lower()):
        stem = place.stem if quick else "clip"
        better = f"{stem}-quickgelu.safetensors" if quick else "one without that word"
        raise UserError(
            f"this CLIP {'has' if quick else 'does not have'} the quick GELU, which a state dict tells by "
            f"'quickgelu' in its name; name it {better}"
        )
