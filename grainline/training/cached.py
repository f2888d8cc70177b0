"""Inputs of training in place of an encoder or of images: cached superpixels, features and texts.

With `data.features: auto` training writes what frozen encoders give into $GRAINLINE_CACHE/features, by
default ~/.cache/grainline/features: a folder for each digest of weights, preprocessing and data.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

from grainline.build import Start, image_settings
from grainline.data.cache import CachedSuperpixels, Views, place, write_once
from grainline.data.features import CachedFeatures, cached_features
from grainline.data.record import Source
from grainline.data.transforms import Crop, EvalTransform, SameTransform, TrainTransform
from grainline.distributed import rank, world_size
from grainline.errors import UserError
from grainline.hub import image_fingerprint, text_fingerprint
from grainline.loading import load
from grainline.methods.base import Method
from grainline.model import Model
from grainline.training.precompute import convolutional, feature_encoder
from grainline.training.recipe import DataConfig, Recipe
from grainline.training.text_cache import TEXTS, CachedTexts, make_texts, text_reader
from grainline.training.tune import tuned


def make_crop(
    cfg: DataConfig,
    source: Source,
    method: Method,
    start_point: Start,
    resume_from: Path | None,
    device: torch.device,
) -> Crop:
    """The crop of training images, with cached superpixels or features where the recipe names them.

    resume_from  the checkpoint that the run resumes from, for features of a frozen encoder
    device       that computes features
    """
    description = start_point.description
    transform, config = EvalTransform(method.size, **image_settings(description)), description.config
    auto = cfg.features == "auto"
    frozen = [tower for tower, side in tuned(method).items() if side.tune == "frozen"]
    if auto and "towers.image" in frozen:
        if cfg.crop is not None and cfg.views <= 1:
            advice = "set data.crop to null, or data.views to a number of squares of each image"
            wrong = "caches the square that evaluation reads, and a random crop is another"
            raise UserError(f"data.features: auto {wrong}: {advice}")
        views = Views(transform, max(1, cfg.views), cfg.crop)
        trained = _trained(method, resume_from).to(device).eval()
        encode = feature_encoder(trained, tokens=config.reads_tokens)
        encoder = image_fingerprint(config.image, trained.towers.image)
        one_each = convolutional(trained) and device.type == "cpu"
        return cached_features(source, views, encode, encoder, tokens=config.reads_tokens, one_each=one_each)
    if auto and cfg.views > 1:
        wrong = f"data.views is {cfg.views}, and the image encoder learns"
        raise UserError(f"{wrong}: set model.image.tune=frozen")
    if auto and not any(tower.startswith("towers.text") for tower in frozen):
        wrong = (
            "caches what frozen encoders give, and none is: set model.image.tune or model.text.tune to frozen"
        )
        if frozen:
            wrong = "does not cache cells that superpixels pool: set model.text.tune to frozen"
        raise UserError(f"data.features: auto {wrong}")
    if cfg.crop is not None:
        return TrainTransform(method.size, cfg.crop, transform.square.patches)
    if cfg.features is not None and not auto:
        encoder = image_fingerprint(config.image, _trained(method, resume_from).towers.image)
        return CachedFeatures(Path(cfg.features), source, transform, encoder, tokens=config.reads_tokens)
    if cfg.superpixels is None:
        return SameTransform(transform)
    settings = config.image.model_dump(mode="json").get("superpixels")
    if settings is None:
        wrong = f"the image encoder of {description.method} reads none"
        raise UserError(f"data.superpixels is set, but {wrong}: leave it out")
    del settings["checkpoint"]  # the path of the weights does not change the superpixels
    superpixels = CachedSuperpixels(Path(cfg.superpixels), source, transform, settings)
    return SameTransform(transform, superpixels.label)


def _trained(method: Method, resume_from: Path | None) -> Method:
    """The method with the weights of the checkpoint, which the loop reads later."""
    return method if resume_from is None else load(resume_from, device="cpu").method


def cached_texts(
    recipe: Recipe, source: Source, model: Model, resume_from: Path | None, device: torch.device
) -> Callable[[Method], None] | None:
    """Puts what a frozen text encoder gives for the captions of a source in front of it (`CachedTexts`).

    It is computed where the cache lacks it, by the method that training starts with. None without
    data.features: auto, or where the encoder learns.
    """
    sides: dict[str, Any] = {x: y for x, y in tuned(model.method).items() if x.startswith("towers.text")}
    if recipe.data.features != "auto" or not any(side.tune == "frozen" for side in sides.values()):
        return None
    if recipe.train.fsdp and world_size() > 1:  # every process has to call every layer equally often
        if rank() == 0:
            print("texts are not cached: with train.fsdp every step computes them", flush=True)
        return None
    ((name, side),) = sides.items()
    method = _trained(model.method, resume_from).to(device).eval()
    tower: Any = method.get_submodule(name)
    encoder, texts = text_fingerprint(side, tower, model.tokenizer), recipe.data.texts
    reading = method.context, method.parts, str(method.chunking), texts.captions == "whole"
    kind, out = place(TEXTS, source, encoder, *reading)
    settings = {"encoder": encoder, "width": tower.width}

    read = text_reader(model.tokenizer, method, tower)
    write_once(out, partial(make_texts, kind, source, texts, read, out, settings), len(source))
    return CachedTexts(kind, out, name, tower.width).install
