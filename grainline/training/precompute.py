"""Features of an image encoder, and superpixels: what `grainline data` writes for training to read."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from grainline import recipes
from grainline.build import Description, image_settings, start
from grainline.config import parse
from grainline.data.cache import SUPERPIXELS, Views, make
from grainline.data.features import make_features
from grainline.data.lines import Progress, Written
from grainline.data.open_source import open_sources
from grainline.data.transforms import EvalTransform
from grainline.encoders.superpixels import SuperpixelConfig, Superpixels
from grainline.errors import UserError
from grainline.hub import image_fingerprint
from grainline.loading import default_device, find_run, load
from grainline.methods.base import Method
from grainline.training.recipe import read_recipe
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
    images   folder of the images, for files that name them by path
    changes  of the recipe, as `--set` takes them

    Raises UserError for a recipe whose image encoder has fresh weights, and for changes of a run.
    """
    description, method = _starting_method(model, list(changes))
    return make_features(
        open_sources(sources, images=images, size=method.size, trust_code=True),
        feature_encoder(method, tokens=tokens),
        out,
        Views(EvalTransform(method.size, **image_settings(description))),
        encoder=image_fingerprint(description.config.image, method.towers.image),
        one_each=convolutional(method) and default_device() == "cpu",
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
    return make(
        SUPERPIXELS,
        open_sources(sources, images=images, size=size, trust_code=True),
        lambda pixels: segmenter.neighbours(pixels.to(default_device())),
        out,
        Views(EvalTransform(size)),
        row=(size, size),
        settings=config.model_dump(mode="json", exclude={"checkpoint"}),
        progress=progress,
    )


def feature_encoder(method: Method, *, tokens: bool) -> Callable[[Tensor], Tensor]:
    """Encodes squares [n, 3, S, S] uint8 as features [n, 1 + L, W]: the summary, and tokens if wanted."""
    device, layout = next(method.parameters()).device, torch.contiguous_format
    if convolutional(method):
        layout = torch.channels_last  # an image with all its channels beside each other: faster by half
        method.towers.image.to(memory_format=layout)

    @torch.no_grad()
    def encode(pixels: Tensor) -> Tensor:
        pixels = pixels.to(device).contiguous(memory_format=layout)
        encoded = method.towers.image_tokens(Images(pixels, torch.arange(len(pixels), device=device)))
        if tokens and encoded.mask is not None:
            advice = "leave --tokens out, or train without data.features"
            raise UserError(f"image tokens may be masked, which cached features cannot say: {advice}")
        patches = encoded.patches if tokens else encoded.patches[:, :0]
        return torch.cat([encoded.pooled[:, None], patches], dim=1)

    return encode


def convolutional(method: Method) -> bool:
    """Whether the image encoder is a network of convolutions, of which a transformer has one or a few."""
    return sum(isinstance(part, nn.Conv2d) for part in method.towers.image.modules()) > 8


def _starting_method(name: str, changes: list[str]) -> tuple[Description, Method]:
    """A method in evaluation mode with the image encoder that training would start with."""
    if name in recipes.names() or name.endswith((".yaml", ".yml")):
        recipe = read_recipe(name, changes)
        if recipe.init_from is None:
            started = start(recipe.description)
            if started.image is None:
                advice = "give a run, or a recipe with model.image.pretrained or init_from"
                raise UserError(f"the image encoder of recipe {name} begins with fresh weights: {advice}")
            return started.description, started.method().eval().to(default_device())
        name = recipe.init_from
    elif changes:
        raise UserError("--set changes fields of a recipe, and --model names a run: leave one of them out")
    if find_run(name) is None:
        raise UserError(f"{name} is neither a run nor a recipe; write a recipe for a checkpoint")
    model = load(name)
    return model.description, model.method
