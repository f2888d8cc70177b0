"""How a checkpoint wants its images: mean and spread, the filter, and how any image becomes a square.

An architecture holds it as `mean`, `spread`, `resize` ("crop": the short side is resized and the middle cut
out; "squash": the whole image becomes a square), `filter` (a name of Pillow's) and `margin` (how many times
as large as the square the image is made before the middle is cut out; nearly always 1).
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch

from grainline.errors import UserError

CLIP_MEAN = (0.48145466, 0.4578275, 0.40821073)
CLIP_SPREAD = (0.26862954, 0.26130258, 0.27577711)
_IMAGENET = {"mean": (0.485, 0.456, 0.406), "spread": (0.229, 0.224, 0.225)}
_CLIP = {"mean": CLIP_MEAN, "spread": CLIP_SPREAD}
_HALF = {"mean": (0.5, 0.5, 0.5), "spread": (0.5, 0.5, 0.5)}
_FILTERS = (
    "nearest",
    "lanczos",
    "bilinear",
    "bicubic",
    "box",
    "hamming",
)  # by the number that Pillow gives them

KNOWN: dict[str, dict[str, Any]] = {  # of each kind, where a checkpoint does not say
    "clip": {**_CLIP, "resize": "crop", "filter": "bicubic", "margin": 1.0},
    "siglip": {**_HALF, "resize": "squash", "filter": "bicubic", "margin": 1.0},
    "groupvit": {**_IMAGENET, "resize": "crop", "filter": "bicubic", "margin": 1.0},
    "vit": {**_HALF, "resize": "squash", "filter": "bilinear", "margin": 1.0},
    "swin": {**_IMAGENET, "resize": "squash", "filter": "bicubic", "margin": 1.0},
}


def of_hugging_face(kind: str, found: Mapping[str, Any], where: str) -> dict[str, Any]:
    """The settings of an image processor of transformers as ours; what it leaves out is that of its kind."""
    if kind not in KNOWN:  # a model without images
        return {}
    return _checked(lambda: _settings(KNOWN[kind], found, where), where)


def _checked(read: Callable[[], dict[str, Any]], where: str) -> dict[str, Any]:
    """Settings that images can be prepared by; UserError for others, and for what cannot be read."""
    try:
        out = read()
        mean, spread = (torch.tensor(out[name], dtype=torch.float64) for name in ("mean", "spread"))
        whole = mean.shape == spread.shape == (3,) and bool(mean.isfinite().all())
        why = "" if whole and bool(((spread > 0) & spread.isfinite()).all()) else "mean and spread"
    except UserError:
        raise
    except (TypeError, ValueError, LookupError, ArithmeticError, AttributeError) as error:
        why = repr(error)
    if why:
        raise UserError(
            f"{where} says how images are prepared in a form that is not known ({why}); "
            "fetch its settings again"
        )
    return out


def _settings(known: Mapping[str, Any], found: Mapping[str, Any], where: str) -> dict[str, Any]:
    out = dict(known)
    for ours, theirs in (("mean", "image_mean"), ("spread", "image_std")):
        if found.get(theirs):
            out[ours] = [float(x) for x in found[theirs]]
    if found.get("resample") is not None:
        out["filter"] = dict(enumerate(_FILTERS))[int(found["resample"])]  # -1 is none of them
    size = found.get("size")
    cut = found.get("do_center_crop")
    cut = known["resize"] == "crop" if cut is None else bool(cut)
    if isinstance(size, dict):
        out["resize"] = "crop" if "shortest_edge" in size else "squash"
        side = _side(size, where)
    elif size is not None:  # a bare number: the short side where the middle is cut out, else both
        out["resize"], side = "crop" if cut else "squash", int(size)
    else:
        return out
    crop = found.get("crop_size") or side
    out["margin"] = side / (_side(crop, where) if isinstance(crop, dict) else int(crop)) if cut else 1.0
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
    cut = not squash or larger != size  # said in any case: a CLIP's processor cuts unless it is told not to
    return content | {"do_center_crop": cut, "crop_size": {"height": size, "width": size}}


def of_open_clip(found: Mapping[str, Any], where: str) -> dict[str, Any]:
    """The `preprocess_cfg` of open_clip as ours."""
    mode = found.get("resize_mode", "shortest")
    if mode not in ("shortest", "squash"):
        raise UserError(f"{where} resizes images by resize_mode {mode!r}; known are shortest and squash")
    filter = found.get("interpolation", "bicubic")
    known = KNOWN["clip"]
    values = known | {
        "mean": found.get("mean", known["mean"]),
        "spread": found.get("std", known["spread"]),
        "resize": "crop" if mode == "shortest" else "squash",
        "filter": "bicubic" if filter == "random" else filter,
    }
    if values["filter"] not in _FILTERS:
        raise UserError(
            f"{where} resizes images by interpolation {filter!r}; known are {', '.join(_FILTERS)}"
        )
    return _checked(lambda: values, where)


def _side(size: Mapping[str, int], where: str) -> int:
    sides = {int(size[name]) for name in ("shortest_edge", "height", "width") if size.get(name)}
    if len(sides) != 1:
        raise UserError(f"{where} makes images of size {dict(size)}; only squares can be read")
    return sides.pop()
