"""Inputs of training in place of images or their encoder: cached features, and superpixels.

With `data.features: auto` training writes what frozen encoders give into $GRAINLINE_CACHE/features, by
default ~/.cache/grainline/features: a folder for each digest of weights, preprocessing and data. `text_cache`
does the same for texts.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from grainline.build import image_settings
from grainline.data.cache import SUPERPIXELS, CachedSuperpixels, Views, make
from grainline.data.features import cached_features
from grainline.data.lines import Progress, Written
from grainline.data.record import Source
from grainline.data.transforms import Crop, EvalTransform, SameTransform, TrainTransform
from grainline.encoders.superpixels import SuperpixelConfig, Superpixels
from grainline.encoders.towers import Towers
from grainline.errors import UserError
from grainline.hub import image_fingerprint
from grainline.loading import default_device
from grainline.model import Model
from grainline.training.optim import tuned
from grainline.training.recipe import DataConfig
from grainline.types import Images


def make_crop(cfg: DataConfig, source: Source, model: Model, device: torch.device) -> Crop:
    """The crop of training images, with cached superpixels or features where the recipe names them.

    device  that computes features
    """
    method, config = model.method, model.description.config
    transform = EvalTransform(method.size, **image_settings(model.description))
    frozen = [tower for tower, side in tuned(method).items() if side.tune == "frozen"]
    if cfg.features and "towers.image" in frozen:
        if cfg.crop is not None and cfg.views <= 1:
            wrong = "caches the square that evaluation reads, and a random crop is another"
            raise UserError(f"data.features: auto {wrong}: set data.crop to null, or data.views")
        views = Views(transform, max(1, cfg.views), cfg.crop)
        towers = method.to(device).eval().towers
        encode = feature_encoder(towers, tokens=config.reads_tokens)
        encoder = image_fingerprint(config.image, towers.image)
        one_each = convolutional(towers) and device.type == "cpu"
        options: Any = {"tokens": config.reads_tokens, "one_each": one_each}
        crop = cached_features(source, views, encode, encoder, **options)
        method.cache = crop.folder.parent
        return crop
    if cfg.features and cfg.views > 1:
        wrong = f"data.views is {cfg.views}, and the image encoder learns"
        raise UserError(f"{wrong}: set model.image.tune=frozen")
    if cfg.features and not any(tower.startswith("towers.text") for tower in frozen):
        wrong = "caches what frozen encoders give, and none is: set model.image.tune or model.text.tune"
        if frozen:
            wrong = "does not cache cells that superpixels pool: set model.text.tune"
        raise UserError(f"data.features: auto {wrong} to frozen")
    if cfg.crop is not None:
        return TrainTransform(method.size, cfg.crop, transform.square.patches)
    if cfg.superpixels is None:
        return SameTransform(transform)
    settings = config.image.model_dump(mode="json").get("superpixels")
    if settings is None:
        wrong = f"the image encoder of {model.description.method} reads none"
        raise UserError(f"data.superpixels is set, but {wrong}: leave it out")
    del settings["checkpoint"]  # the path of the weights does not change the superpixels
    superpixels = CachedSuperpixels(Path(cfg.superpixels), source, transform, settings)
    return SameTransform(transform, superpixels.label)


def feature_encoder(towers: Towers, *, tokens: bool) -> Callable[[Tensor], Tensor]:
    """Encodes squares [n, 3, S, S] uint8 as features [n, 1 + L, W]: the summary, and tokens if wanted."""
    device, layout = next(towers.parameters()).device, torch.contiguous_format
    if convolutional(towers):
        layout = torch.channels_last  # an image with all its channels beside each other: faster by half
        towers.image.to(memory_format=layout)

    @torch.no_grad()
    def encode(pixels: Tensor) -> Tensor:
        pixels = pixels.to(device).contiguous(memory_format=layout)
        encoded = towers.image_tokens(Images(pixels, torch.arange(len(pixels), device=device)))
        if tokens and encoded.mask is not None:
            wrong = "image tokens may be masked, which cached features cannot say"
            raise UserError(f"{wrong}: train without data.features")
        patches = encoded.patches if tokens else encoded.patches[:, :0]
        return torch.cat([encoded.pooled[:, None], patches], dim=1)

    return encode


def convolutional(towers: Towers) -> bool:
    """Whether the image encoder is a network of convolutions, of which a transformer has one or a few."""
    return sum(isinstance(part, nn.Conv2d) for part in towers.image.modules()) > 8


def write_superpixels(
    source: Source, out: Path, config: SuperpixelConfig, size: int, progress: Progress | None = None
) -> Written:
    """Compute the superpixels of all images once, for `data.superpixels` of a recipe without random crops.

    size  side of the images that the model reads
    """
    segmenter = Superpixels(config, size)
    if config.checkpoint is not None:
        segmenter.fill(Path(config.checkpoint))
    segmenter.to(default_device())

    def compute(pixels: Tensor) -> Tensor:
        return segmenter.neighbours(pixels.to(default_device()))

    settings = config.model_dump(mode="json", exclude={"checkpoint"})
    views, row = Views(EvalTransform(size)), (size, size)
    return make(SUPERPIXELS, source, compute, out, views, row=row, settings=settings, progress=progress)
