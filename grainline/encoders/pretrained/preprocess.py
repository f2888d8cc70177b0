"""How images are prepared for a checkpoint: mean and std of pixels, the filter, and the way to a square.

An architecture holds `mean`, `spread` (the std), `resize` ("crop": the short side is resized and the middle
cut out; "squash": the whole image becomes a square), `filter` (a name of Pillow's) and `margin` (the size
from which the middle is cut out, as a multiple of the square; nearly always 1).
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch

from grainline.errors import UserError

_IMAGENET = {"mean": (0.485, 0.456, 0.406), "spread": (0.229, 0.224, 0.225)}
_CLIP = {"mean": (0.48145466, 0.4578275, 0.40821073), "spread": (0.26862954, 0.26130258, 0.27577711)}
_HALF = {"mean": (0.5, 0.5, 0.5), "spread": (0.5, 0.5, 0.5)}
_FILTERS = ["nearest", "lanczos", "bilinear", "bicubic", "box", "hamming"]  # by their number in Pillow

KNOWN: dict[str, dict[str, Any]] = {  # defaults of each kind
    "clip": {**_CLIP, "resize": "crop", "filter": "bicubic", "margin": 1.0},
    "siglip": {**_HALF, "resize": "squash", "filter": "bicubic", "margin": 1.0},
    "groupvit": {**_IMAGENET, "resize": "crop", "filter": "bicubic", "margin": 1.0},
    "vit": {**_HALF, "resize": "squash", "filter": "bilinear", "margin": 1.0},
    "swin": {**_IMAGENET, "resize": "squash", "filter": "bicubic", "margin": 1.0},
}


def of_hugging_face(kind: str, settings: Mapping[str, Any], where: str) -> dict[str, Any]:
    """The settings of an image processor of transformers as ours, with the defaults of its kind."""
    if kind not in KNOWN:  # a model without images
        return {}
    return _checked(partial(_of_processor, KNOWN[kind], settings, where), where)


def _checked(read: Callable[[], dict[str, Any]], where: str) -> dict[str, Any]:
    """Settings that images can be prepared by; UserError for others, and for what cannot be read."""
    try:
        out = read()
        mean, std = (torch.tensor(out[name], dtype=torch.float64) for name in ("mean", "spread"))
        whole = mean.shape == std.shape == (3,) and bool(mean.isfinite().all())
        wrong = "" if whole and bool(((std > 0) & std.isfinite()).all()) else "mean and std"
    except UserError:
        raise
    except (TypeError, ValueError, LookupError, ArithmeticError, AttributeError) as error:
        wrong = repr(error)
    if wrong:
        raise UserError(
            f"{where} has settings for images in a form that is not known ({wrong}); fetch its settings again"
        )
    return out


def _of_processor(known: Mapping[str, Any], settings: Mapping[str, Any], where: str) -> dict[str, Any]:
    out = dict(known)
    for ours, theirs in (("mean", "image_mean"), ("spread", "image_std")):
        if settings.get(theirs):
            out[ours] = [float(x) for x in settings[theirs]]
    if settings.get("resample") is not None:
        out["filter"] = dict(enumerate(_FILTERS))[int(settings["resample"])]  # -1 is none of them
    size, cut = settings.get("size"), settings.get("do_center_crop")
    cut = known["resize"] == "crop" if cut is None else bool(cut)
    if size is None:
        return out
    if isinstance(size, dict):
        out["resize"] = "crop" if "shortest_edge" in size else "squash"
    else:  # a bare number: the short side where the middle is cut out, else both
        out["resize"] = "crop" if cut else "squash"
    side = _side(size, where)
    out["margin"] = side / _side(settings.get("crop_size") or side, where) if cut else 1.0
    return out


def to_hugging_face(kind: str, architecture: Mapping[str, Any], size: int) -> dict[str, Any]:
    """What image processors of transformers read: the inverse of `of_hugging_face` for CLIP and SigLIP."""
    larger = round(size * architecture["margin"])
    squash = architecture["resize"] == "squash"
    content: dict[str, Any] = {
        "image_processor_type": {"clip": "CLIPImageProcessor", "siglip": "SiglipImageProcessor"}[kind],
        "image_mean": list(architecture["mean"]),
        "image_std": list(architecture["spread"]),
        "do_convert_rgb": True,
        "do_resize": True,
        "do_rescale": True,
        "do_normalize": True,
        "resample": _FILTERS.index(architecture["filter"]),
        "rescale_factor": 1 / 255,
        "size": {"height": larger, "width": larger} if squash else {"shortest_edge": larger},
    }
    cut = not squash or larger != size  # always written: the default of a CLIP's processor is to cut
    return content | {"do_center_crop": cut, "crop_size": {"height": size, "width": size}}


def of_open_clip(settings: Mapping[str, Any], where: str) -> dict[str, Any]:
    """The `preprocess_cfg` of open_clip as ours."""
    mode = settings.get("resize_mode", "shortest")
    if mode not in ("shortest", "squash"):
        raise UserError(f"{where} resizes images by resize_mode {mode!r}; known are shortest and squash")
    filter = settings.get("interpolation", "bicubic")
    known = KNOWN["clip"]
    values = known | {
        "mean": settings.get("mean", known["mean"]),
        "spread": settings.get("std", known["spread"]),
        "resize": "crop" if mode == "shortest" else "squash",
        "filter": "bicubic" if filter == "random" else filter,
    }
    if values["filter"] not in _FILTERS:
        raise UserError(
            f"{where} resizes images by interpolation {filter!r}; known are {', '.join(_FILTERS)}"
        )
    return _checked(lambda: values, where)


def _side(size: Mapping[str, int] | int, where: str) -> int:
    if not isinstance(size, Mapping):
        return int(size)
    sides = {int(size[name]) for name in ("shortest_edge", "height", "width") if size.get(name)}
    if len(sides) != 1:
        raise UserError(f"{where} makes images of size {dict(size)}; only squares can be read")
    return sides.pop()
