"""What training reads instead of computing it: features of a frozen image encoder, and superpixels.

`grainline data features` and `grainline data superpixels` write these folders, data/cache.py defines them.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from grainline import recipes
from grainline.build import Description, Start, image_settings, start
from grainline.config import parse
from grainline.data.cache import CachedFeatures, CachedSuperpixels, make_features, make_superpixels
from grainline.data.lines import Progress, Written
from grainline.data.open_source import open_sources
from grainline.data.record import Source
from grainline.data.transforms import Crop, EvalTransform, SameTransform, TrainTransform
from grainline.encoders.superpixels import SuperpixelConfig, Superpixels
from grainline.errors import UserError
from grainline.fingerprint import image_fingerprint
from grainline.loading import default_device, find_run, load
from grainline.methods.base import Method
from grainline.training.recipe import DataConfig, read_recipe
from grainline.types import Images


def write_features(
    model: str,
    sources: Sequence[str],
    out: Path,
    *,
    tokens: bool = False,
    images: str | None = None,
    changes: Sequence[str] = (),
    progress: Progress | None = None,
) -> Written:
    """Run an image encoder over all images once, for `data.features` of a recipe that freezes it.

    model    a run, or the recipe that will be trained
    tokens   write image tokens too, for methods that learn from them
    changes  of the recipe, as `--set` takes them

    Raises UserError for a recipe whose image encoder has fresh weights, and for changes of a run.
    """
    description, method = _starting_method(model, list(changes))
    size, encode = method.size, feature_encoder(method, tokens=tokens)
    rows, width = encode(torch.zeros(1, 3, size, size, dtype=torch.uint8)).shape[1:]
    return make_features(
        open_sources(sources, images=images, size=size, trust_code=True),
        encode,
        out,
        EvalTransform(size, **image_settings(description)),
        encoder=image_fingerprint(description.config.image, method.towers.image),
        row=(rows, width),
        progress=progress,
    )


def write_superpixels(
    sources: Sequence[str],
    out: Path,
    settings: Mapping[str, Any],
    *,
    size: int = 224,
    images: str | None = None,
    progress: Progress | None = None,
) -> Written:
    """Compute the superpixels of all images once, for `data.superpixels` of a recipe without random crops.

    settings  fields of `SuperpixelConfig`
    size      side of the images that the model reads
    """
    config = parse(SuperpixelConfig, dict(settings), "the options")
    segmenter = Superpixels(config, size)
    if config.checkpoint is not None:
        segmenter.fill(Path(config.checkpoint))
    segmenter.to(default_device())
    return make_superpixels(
        open_sources(sources, images=images, size=size, trust_code=True),
        lambda pixels: segmenter(pixels.to(default_device())).label,
        out,
        size=size,
        settings=config.model_dump(mode="json", exclude={"checkpoint"}),
        progress=progress,
    )


def feature_encoder(method: Method, *, tokens: bool) -> Callable[[Tensor], Tensor]:
    """From squares [n, 3, S, S] uint8 to features [n, 1 + L, W]: the summary, and the tokens if wanted."""
    device = next(method.parameters()).device

    @torch.no_grad()
    def encode(pixels: Tensor) -> Tensor:
        encoded = method.towers.image_tokens(
            Images(pixels.to(device), torch.arange(len(pixels), device=device))
        )
        if tokens and encoded.mask is not None:
            raise UserError(
                "segments may be empty, which cached features cannot say: leave --tokens out, or train "
                "without data.features"
            )
        patches = encoded.patches if tokens else encoded.patches[:, :0]
        return torch.cat([encoded.pooled[:, None], patches], dim=1)

    return encode


def make_crop(
    cfg: DataConfig, source: Source, method: Method, start_point: Start, resume_from: Path | None
) -> Crop:
    """How training images are cropped, with cached superpixels or features where the recipe names them.

    resume_from  the checkpoint that the run resumes from, for features of a frozen encoder
    """
    if cfg.crop is not None:
        return TrainTransform(method.size, cfg.crop)
    description = start_point.description
    transform, config = EvalTransform(method.size, **image_settings(description)), description.config
    if cfg.features is not None:
        # The loop reads the checkpoint's weights later, so read them here for the fingerprint.
        trained = method if resume_from is None else load(resume_from, device="cpu").method
        encoder = image_fingerprint(config.image, trained.towers.image)
        return CachedFeatures(Path(cfg.features), source, transform, encoder, tokens=config.reads_tokens)
    if cfg.superpixels is None:
        return SameTransform(transform)
    settings = config.image.model_dump(mode="json").get("superpixels")
    if settings is None:
        raise UserError(
            f"data.superpixels is set, but the image encoder of {description.method} reads none: leave it out"
        )
    del settings["checkpoint"]  # the path of the weights does not change the superpixels
    superpixels = CachedSuperpixels(Path(cfg.superpixels), source, transform, settings)
    return SameTransform(transform, superpixels.label)


def _starting_method(name: str, changes: list[str]) -> tuple[Description, Method]:
    """A method in evaluation mode with the image encoder that training would start with."""
    if name in recipes.names() or name.endswith((".yaml", ".yml")):
        recipe = read_recipe(name, changes)
        if recipe.init_from is None:
            started = start(recipe.description)
            if started.image is None:
                raise UserError(
                    f"the image encoder of recipe {name} begins with fresh weights: give a run, or a recipe "
                    "with model.image.pretrained or init_from"
                )
            return started.description, started.method().eval().to(default_device())
        name = recipe.init_from
    elif changes:
        raise UserError("--set changes fields of a recipe, and --model names a run: leave one of them out")
    if find_run(name) is None:
        raise UserError(f"{name} is neither a run nor a recipe; write a recipe for a checkpoint")
    model = load(name)
    return model.description, model.method
