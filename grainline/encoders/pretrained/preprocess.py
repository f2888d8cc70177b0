"""Settings of checkpoints: mean and std of pixels, filter, the way to a square; and the config of open_clip.

An architecture holds `mean`, `spread` (the std), `resize` ("crop": the short side is resized and the middle
cut out; "squash": the whole image becomes a square), `filter` (a name of Pillow's) and `margin` (the size
from which the middle is cut out, as a multiple of the square; 0: images keep their size).
"""

import math
import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from grainline.errors import UserError

IMAGENET = {"mean": (0.485, 0.456, 0.406), "spread": (0.229, 0.224, 0.225)}
_CLIP = {"mean": (0.48145466, 0.4578275, 0.40821073), "spread": (0.26862954, 0.26130258, 0.27577711)}
_HALF = {"mean": (0.5, 0.5, 0.5), "spread": (0.5, 0.5, 0.5)}
_READ = {
    "image_mean", "image_std", "resample", "size", "crop_size", "do_center_crop", "do_rescale",
    "rescale_factor", "do_normalize", "do_resize", "default_to_square", "size_divisor",
    # What changes no image of three colours.
    "auto_map", "data_format", "device", "disable_grouping", "do_convert_rgb", "do_reduce_labels",
    "feature_extractor_type", "image_processor_type", "input_data_format", "processor_class", "reduce_labels",
    "return_tensors", "_valid_processor_keys",
}  # fmt: skip
"""The settings of image processors of transformers that are known. Others may only be null or false."""
_FILTERS = ["nearest", "lanczos", "bilinear", "bicubic", "box", "hamming"]  # by their number in Pillow
_CUT, _SQUASH = {"resize": "crop", "margin": 1.0}, {"resize": "squash", "margin": 1.0}

KNOWN: dict[str, dict[str, Any]] = {
    "clip": {**_CLIP, **_CUT, "filter": "bicubic"},
    "siglip": {**_HALF, **_SQUASH, "filter": "bicubic"},
    "siglip2": {**_HALF, **_SQUASH, "filter": "bilinear", "patch_size": None, "max_num_patches": 256},
    "groupvit": {**IMAGENET, **_CUT, "filter": "bicubic"},
    "vit": {**_HALF, **_SQUASH, "filter": "bilinear"},
    "swin": {**IMAGENET, **_SQUASH, "filter": "bicubic"},
    "deit": {**_HALF, **_SQUASH, "filter": "bicubic", "margin": 256 / 224},
    "beit": {**_HALF, **_SQUASH, "filter": "bicubic"},
    "bit": {**_CLIP, **_CUT, "filter": "bicubic"},
    "convnext": {**_HALF, **_CUT, "filter": "bicubic", "margin": 256 / 224, "crop_pct": 224 / 256},
    "efficientnet": {**_HALF, **_SQUASH, "filter": "bicubic", "rescale_offset": False, "include_top": True},
    "mobilenetv1": {**_HALF, **_CUT, "filter": "bilinear", "margin": 256 / 224},
    "mobilenetv2": {**_HALF, **_CUT, "filter": "bilinear", "margin": 256 / 224},
    "dinov3vit": {**IMAGENET, **_SQUASH, "filter": "bilinear"},
}  # fmt: skip
"""Defaults of the image processors of the library, by the beginning of their name; and of two kinds."""
_OWN = "crop_pct", "rescale_offset", "include_top", "patch_size", "max_num_patches"  # settings of some alone


def check_known(settings: Mapping[str, Any], known: Collection[str], where: str) -> None:
    """UserError for settings outside of those that are known, unless they are null or false."""
    other = {name: x for name, x in settings.items() if name not in known and x not in (None, False)}
    if unknown := ", ".join(f"{name} {x!r}" for name, x in other.items()):
        raise UserError(f"{where} has settings that cannot be obeyed: {unknown}")


def of_hugging_face(
    known: Mapping[str, Any], settings: Mapping[str, Any], where: str, image_size: int | None = None
) -> dict[str, Any]:
    """The settings of an image processor of transformers as ours, and the `size` of squares if it names one.

    known       the defaults of its kind, where the settings name no processor
    image_size  what the model reads; UserError where the processor makes another
    """
    name = settings.get("image_processor_type") or settings.get("feature_extractor_type")
    if name is not None:
        processor = re.sub("(ImageProcessor|FeatureExtractor)(Fast|Pil)?$", "", str(name)).lower()
        if processor not in KNOWN:
            raise UserError(f"{where} names {name}, an image processor that is not known here")
        if ("patch_size" in known) != ("patch_size" in KNOWN[processor]):
            raise UserError(f"{where} names {name}, which is for another kind of model; fetch both again")
        known = KNOWN[processor]
    own = {key: settings.get(key, known[key]) for key in _OWN if key in known}
    check_known(settings, _READ | own.keys(), where)
    settings = {key: x for key, x in settings.items() if x is not None} | own
    out = {key: x for key, x in known.items() if key not in _OWN} | _colours(known, settings)
    if "resample" in settings:
        out["filter"] = dict(enumerate(_FILTERS))[int(settings["resample"])]  # -1 is none of them
    if "patch_size" in known:  # NaFlex, whose square only shows the image
        check_known({key: settings.get(key) for key in ("size", "crop_size", "do_center_crop")}, (), where)
        out |= {"patch_size": own["patch_size"], "max_num_patches": [int(own["max_num_patches"])]}
    way, side, square = _frame(known, settings, where)
    if way is None:
        return out
    if image_size not in (None, square) or square > side > 0:
        reads = f"and its model reads {image_size or square}; fetch both again"
        raise UserError(f"{where} cuts squares of {square} pixels out of {side}, {reads}")
    if square % (settings.get("size_divisor") or 1):
        raise UserError(f"{where} makes squares of {square} pixels, no multiple of its size_divisor")
    return out | {"resize": way, "margin": side / square, "size": square}


def _frame(known: Mapping[str, Any], settings: Mapping[str, Any], where: str) -> tuple[str | None, int, int]:
    """`resize` (None: nothing says it), the side after resizing (0: none is done), that of the square."""
    size, crop = settings.get("size"), settings.get("crop_size")
    cut = settings.get("do_center_crop", known["resize"] == "crop" or known["margin"] != 1)
    if not settings.get("do_resize", True):
        if not cut or not crop:
            raise UserError(f"{where} leaves images in their size (do_resize is false), which must be one")
        return "crop", 0, _side(crop, where)
    if size is None:
        if crop:
            raise UserError(f"{where} cuts a crop_size out of images, and no size says of which; add it")
        return None, 0, 0
    side = _side(size, where)
    if settings.get("crop_pct"):
        return ("crop", int(side / settings["crop_pct"]), side) if side < 384 else ("squash", side, side)
    # A bare number is both sides, or the short one.
    short = not settings.get("default_to_square", known["resize"] != "crop")
    short = "shortest_edge" in size if isinstance(size, Mapping) else short
    if short and not cut:
        raise UserError(f"{where} cuts no squares out of images (no do_center_crop); only those can be read")
    square = _side(crop or side, where) if cut else side
    return "crop" if short else "squash", side, square


def _colours(known: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Mean and std of pixels from 0 to 1: (255 factor x - mean) / std is the input of the model."""
    out = {
        ours: [float(x) for x in settings[theirs]] if settings.get(theirs) else known[ours]
        for ours, theirs in (("mean", "image_mean"), ("spread", "image_std"))
    }
    std = out["spread"]
    if not settings.get("do_normalize", True):
        out = {"mean": [0.0] * 3, "spread": [1.0] * 3}
    scaled = settings.get("do_rescale", True)
    factor = float(settings.get("rescale_factor", 1 / 255)) if scaled else 1.0
    if settings.get("rescale_offset") and scaled:
        out["mean"] = [x + 1 for x in out["mean"]]
    if settings.get("include_top"):  # EfficientNet divides by the std twice
        out["spread"] = [x * y for x, y in zip(out["spread"], std, strict=True)]
    if factor != 1 / 255:
        out = {name: [x / (255 * factor) for x in values] for name, values in out.items()}
    mean, spread = out["mean"], out["spread"]
    if not len(mean) == len(spread) == 3 or not all(map(math.isfinite, [*mean, *spread])) or min(spread) <= 0:
        raise ValueError("mean and std of pixels must be three finite numbers each, std above 0")
    return out


def to_hugging_face(kind: str, architecture: Mapping[str, Any], size: int) -> dict[str, Any]:
    """Settings for image processors of transformers: the inverse of `of_hugging_face` for CLIP and SigLIP."""
    larger = round(size * architecture["margin"])
    squash = architecture["resize"] == "squash"
    content: dict[str, Any] = {
        "image_processor_type": {"clip": "CLIPImageProcessor", "siglip": "SiglipImageProcessor"}[kind],
        "image_mean": list(architecture["mean"]),
        "image_std": list(architecture["spread"]),
        "do_convert_rgb": True,
        "do_resize": larger > 0,
        "do_rescale": True,
        "do_normalize": True,
        "resample": _FILTERS.index(architecture["filter"]),
        "rescale_factor": 1 / 255,
        "size": {"height": larger, "width": larger} if squash else {"shortest_edge": larger or size},
    }
    cut = not squash or larger != size  # always written: the default of a CLIP's processor is to cut
    return content | {"do_center_crop": cut, "crop_size": {"height": size, "width": size}}


def of_open_clip(
    settings: Mapping[str, Any], where: str, image_size: int, known: Mapping[str, Any] = KNOWN["clip"]
) -> dict[str, Any]:
    """The `preprocess_cfg` of open_clip as ours; image_size and known as for `of_hugging_face`."""
    plain = ("mean", "std", "interpolation", "resize_mode", "size", "fill_color")
    check_known({k: x for k, x in settings.items() if (k, x) != ("mode", "RGB")}, plain, where)
    size = settings.get("size")
    if size not in (None, image_size, [image_size, image_size]):
        raise UserError(f"{where} makes images of size {size}, its model reads {image_size}; fetch both")
    mode = settings.get("resize_mode", "shortest" if known["resize"] == "crop" else "squash")
    filter = settings.get("interpolation", "bicubic")
    if mode not in ("shortest", "squash"):
        raise UserError(f"{where} resizes images by resize_mode {mode!r}; known are shortest and squash")
    if filter not in (*_FILTERS, "random"):
        raise UserError(f"{where} has interpolation {filter!r}; known are {', '.join(_FILTERS)}")
    numbers = {"image_mean": settings.get("mean"), "image_std": settings.get("std")}
    way = {"resize": "crop" if mode == "shortest" else "squash"}
    filter = "bicubic" if filter == "random" else filter
    return of_hugging_face(known, numbers, where) | way | {"filter": filter}


def _side(size: Mapping[str, int] | int, where: str) -> int:
    if not isinstance(size, Mapping):
        return int(size)
    check_known(size, ("shortest_edge", "height", "width"), f"{where}, size,")
    sides = {int(size[name]) for name in ("shortest_edge", "height", "width") if size.get(name)}
    if len(sides) != 1:
        raise UserError(f"{where} makes images of size {dict(size)}; only squares can be read")
    return sides.pop()


# open_clip_config.json


def open_clip_settings(file: Path, content: Mapping[str, Any], kind: str) -> Any:
    """The name of open_clip_config.json for messages, and its settings of pixels, model, images and texts."""
    where = f"open_clip_config.json of {file.parent}"
    pixels, model = _section(content, "preprocess_cfg", where), content
    if content.get("model_cfg") is not None:  # else as in open_clip's own list of models
        check_known(content, ("model_cfg", "preprocess_cfg"), where)
        model = _section(content, "model_cfg", where)
    image, text = sides = [_section(model, name, where) for name in _OBEYED[kind]]
    for (name, values), side in zip(_OBEYED[kind].items(), sides, strict=True):
        rest = {k: x for k, x in side.items() if k not in values or values[k] not in (None, x)}
        check_known(rest, ("head_width", "heads", *_FREE, *_SHOWN), f"{where}, {name},")
    check_known(model, (*_FREE, "embed_dim", "quick_gelu", "vision_cfg", "text_cfg", "preprocess_cfg"), where)
    numbers = image.get("head_width", 64), text.get("heads", 8)
    if not all(type(number) is int and number > 0 for number in numbers):
        raise UserError(f"head_width or heads in {where} is no positive whole number; fetch it again")
    if not isinstance(model.get("quick_gelu", False), bool):
        raise UserError(f"quick_gelu in {where} is {model['quick_gelu']!r}; allowed are true and false")
    return where, pixels, model, image, text


def _section(content: Mapping[str, Any], name: str, where: str) -> dict[str, Any]:
    section = {} if content.get(name) is None else content[name]
    if not isinstance(section, dict):
        raise UserError(f"{name} in {where} is {section!r}, not settings by name; fetch it again")
    return section


def check_agreement(where: str, *sides: tuple[Mapping[str, Any], Mapping[str, Any]]) -> None:
    """UserError where the settings of open_clip are not those that the tensors show: pairs of both."""
    for settings, tensors in sides:
        for name, ours in _SHOWN.items():
            in_weights = tensors.get(ours)
            if settings.get(name) not in (None, in_weights, [in_weights] * 2):
                wrong = f"{name} is {settings[name]}, in the weights {in_weights}"
                raise UserError(f"{where} contradicts the weights: {wrong}; fetch both again")


_FREE = (  # settings of open_clip that change no vector of a plain CLIP, or that tensors show
    "init_logit_scale", "custom_text", "cast_dtype", "output_dict", "nonscalar_logit_scale", "output_tokens",
    "patch_dropout", "attn_pooler_queries", "attn_pooler_heads", "timm_model_pretrained", "timm_pool",
    "timm_proj", "timm_drop", "hf_model_pretrained", "hf_proj_type", "hf_pooler_type", "pad_id", "eos_id",
    "mlp_ratio", "init_logit_bias",
)  # fmt: skip
_SHOWN = {  # settings of open_clip that the tensors show too, and their names in transformers
    "width": "hidden_size", "layers": "num_hidden_layers", "patch_size": "patch_size",
    "image_size": "image_size", "context_length": "max_position_embeddings", "vocab_size": "vocab_size",
    "embed_dim": "projection_dim",
}  # fmt: skip
_OBEYED: dict[str, dict[str, dict[str, Any]]] = {  # settings that no tensor shows; None: any value
    "clip": {
        "vision_cfg": {"head_width": 64, "pool_type": "tok", "pos_embed_type": "learnable"},
        "text_cfg": {"heads": 8, "pool_type": "argmax", "proj_type": "linear", "tokenizer_kwargs": {}},
    },
    "siglip": {
        "vision_cfg": {"timm_model_name": None},
        "text_cfg": {
            "hf_tokenizer_name": None, "tokenizer_kwargs": {"clean": "canonicalize"}, "no_causal_mask": True,
            "proj_bias": True, "pool_type": "last", "norm_kwargs": {"eps": 1e-06},
            "act_kwargs": {"approximate": "tanh"},
        },
    },
}  # fmt: skip
