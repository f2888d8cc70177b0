"""What training reads instead of computing it: what frozen encoders give, and superpixels.

`grainline data features` and `grainline data superpixels` write folders that data/cache.py defines. With
`data.features: auto` training writes them, and the texts of text_cache.py, into $GRAINLINE_CACHE/features,
by default ~/.cache/grainline/features. Each has a folder of its own, whose name is a digest of the weights,
the preprocessing and the data.
"""

import hashlib
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from grainline import recipes
from grainline.build import Description, Start, image_settings, start
from grainline.config import parse
from grainline.data.cache import (
    FEATURES,
    CachedFeatures,
    CachedSuperpixels,
    Kind,
    Views,
    make_features,
    make_superpixels,
)
from grainline.data.lines import Progress, Written
from grainline.data.open_source import open_sources
from grainline.data.record import Source
from grainline.data.texts import encode_parts
from grainline.data.transforms import Crop, EvalTransform, SameTransform, TrainTransform
from grainline.distributed import rank, usable_cores, world_size
from grainline.encoders.superpixels import SuperpixelConfig, Superpixels
from grainline.errors import UserError, amount
from grainline.files import InUse, one_writer, writing
from grainline.fingerprint import image_fingerprint, text_fingerprint
from grainline.loading import default_device, find_run, load
from grainline.methods.base import Method
from grainline.model import Model
from grainline.progress import progress
from grainline.training.recipe import DataConfig, Recipe, read_recipe
from grainline.training.text_cache import TEXTS, CachedTexts, Read, make_texts
from grainline.training.tune import tuned
from grainline.types import Images, texts_of, to


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
    with _all_cores(method) as threads:
        return make_features(
            open_sources(sources, images=images, size=size, trust_code=True),
            encode,
            out,
            Views(EvalTransform(size, **image_settings(description))),
            encoder=image_fingerprint(description.config.image, method.towers.image),
            row=(rows, width),
            threads=threads,
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
    device, layout = next(method.parameters()).device, torch.contiguous_format
    if _convolutional(method):
        layout = torch.channels_last  # an image with all its channels beside each other: faster by half
        method.towers.image.to(memory_format=layout)

    @torch.no_grad()
    def encode(pixels: Tensor) -> Tensor:
        pixels = pixels.to(device).contiguous(memory_format=layout)
        encoded = method.towers.image_tokens(Images(pixels, torch.arange(len(pixels), device=device)))
        if tokens and encoded.mask is not None:
            raise UserError(
                "segments may be empty, which cached features cannot say: leave --tokens out, or train "
                "without data.features"
            )
        patches = encoded.patches if tokens else encoded.patches[:, :0]
        return torch.cat([encoded.pooled[:, None], patches], dim=1)

    return encode


def _convolutional(method: Method) -> bool:
    """Whether the image encoder is a network of convolutions, of which a transformer has one or a few."""
    return sum(isinstance(part, nn.Conv2d) for part in method.towers.image.modules()) > 8


@contextmanager
def _all_cores(method: Method) -> Iterator[int]:
    """Compute on all cores; gives the number of batches to compute at a time.

    Convolutions on several threads wait for each other: a thread for each batch is twice as fast.
    """
    before = torch.get_num_threads()
    set_by_user = any(name in os.environ for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"))
    cores = before if set_by_user else min(usable_cores(), 16)
    by_batch = _convolutional(method) and next(method.parameters()).device.type == "cpu"
    torch.set_num_threads(1 if by_batch else cores)
    try:
        yield cores if by_batch else 1
    finally:
        torch.set_num_threads(before)


def make_crop(
    cfg: DataConfig,
    source: Source,
    method: Method,
    start_point: Start,
    resume_from: Path | None,
    device: torch.device,
) -> Crop:
    """How training images are cropped, with cached superpixels or features where the recipe names them.

    resume_from  the checkpoint that the run resumes from, for features of a frozen encoder
    device       that computes features
    """
    description = start_point.description
    transform, config = EvalTransform(method.size, **image_settings(description)), description.config
    auto = cfg.features == "auto"
    frozen = [tower for tower, side in tuned(method).items() if side.tune == "frozen"]
    if auto and "towers.image" in frozen:
        if cfg.crop is not None and cfg.views <= 1:
            raise UserError(
                "data.features: auto caches the square that evaluation reads, and a random crop is another: "
                "set data.crop to null, or data.views to a number of squares of each image"
            )
        views = Views(transform, max(1, cfg.views), cfg.crop)
        trained = _trained(method, resume_from).to(device)
        return _cached_features(source, views, trained.eval(), config.image, config.reads_tokens)
    if auto and cfg.views > 1:
        raise UserError(
            f"data.views is {cfg.views}, and the image encoder learns: set model.image.tune=frozen"
        )
    if auto and not any(tower.startswith("towers.text") for tower in frozen):
        raise UserError(
            "data.features: auto caches what frozen encoders give, and none is: set model.image.tune or "
            "model.text.tune to frozen"
        )
    if cfg.crop is not None:
        return TrainTransform(method.size, cfg.crop)
    if cfg.features is not None and not auto:
        encoder = image_fingerprint(config.image, _trained(method, resume_from).towers.image)
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


def _trained(method: Method, resume_from: Path | None) -> Method:
    """The method with the weights of the checkpoint, which the loop reads later."""
    return method if resume_from is None else load(resume_from, device="cpu").method


def _cached_features(source: Source, views: Views, method: Method, side: Any, tokens: bool) -> Crop:
    """The features of all images, computed where the cache lacks them."""
    encoder = image_fingerprint(side, method.towers.image)
    crop = views.crop.model_dump(mode="json") if views.crop is not None and views.number > 1 else None
    square = views.transform
    facts = encoder, square.size, square.resize, square.filter.name, square.larger, tokens, views.number, crop
    kind, out = _place(FEATURES, source, *facts)

    def write(step: Progress) -> Written:
        encode = feature_encoder(method, tokens=tokens)
        row = encode(torch.zeros(1, 3, method.size, method.size, dtype=torch.uint8)).shape[1:]
        with _all_cores(method) as threads:
            return make_features(
                source, encode, out, views, encoder=encoder, row=(row[0], row[1]), kind=kind,
                threads=threads, progress=step,
            )  # fmt: skip

    _write_once(out, write, len(source))
    return CachedFeatures(out, source, views.transform, encoder, tokens=tokens, kind=kind)


def cached_texts(
    recipe: Recipe, source: Source, model: Model, resume_from: Path | None, device: torch.device
) -> CachedTexts | None:
    """What a frozen text encoder gives for the captions of a source, for data.features: auto; else None.

    It is computed where the cache lacks it, by the method that training starts with.
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
    kind, out = _place(TEXTS, source, encoder, *reading)
    settings = {"encoder": encoder, "width": tower.width}

    @torch.no_grad()
    def read(captions: list[str]) -> list[Read]:
        """What the encoder reads where the method encodes texts, and what it gives."""
        encoded = encode_parts(model.tokenizer, captions, method.context, method.parts, method.chunking)
        reads: list[Read] = []
        hook = tower.register_forward_hook(lambda _, given, output: reads.append((*given, output)))
        try:
            method.encode_texts(to(texts_of(encoded.ids), device))
        finally:
            hook.remove()
        return reads

    def write(step: Progress) -> Written:
        with _all_cores(method):
            return make_texts(kind, source, texts, read, out, settings, step)

    _write_once(out, write, len(source))
    return CachedTexts(kind, out, name, tower.width)


def _place(kind: Kind, source: Source, *facts: Any) -> tuple[Kind, Path]:
    """The folder in the cache for what depends on a source and some facts, and the kind with its home."""
    user = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    root = Path(os.environ.get("GRAINLINE_CACHE") or Path(user) / "grainline")
    content = json.dumps([kind.format, source.fingerprint(), *facts], sort_keys=True)
    home = root / "features" / hashlib.sha256(content.encode()).hexdigest()[:16]
    return kind._replace(home=home), home / kind.name


def _write_once(out: Path, write: Callable[[Progress], Written], records: int) -> None:
    """Write a folder of the cache if it is not there; where another process does, wait for it."""
    what, begin, quiet = f"{out.name} of {amount(records, 'image')}", time.monotonic(), rank() > 0
    last = [begin]
    while not out.is_dir():
        try:
            with writing(out.parent, "set GRAINLINE_CACHE to another folder"):
                out.parent.mkdir(parents=True, exist_ok=True)
            with one_writer(out.parent, f"the cache {out.parent}", "waiting for it"), progress(what) as bar:
                if out.is_dir():
                    return

                def step(done: int, total: int) -> None:
                    bar(done, total)
                    if not sys.stderr.isatty() and time.monotonic() - last[0] > 30:
                        last[0] = time.monotonic()
                        print(f"{what}: {done:,} are done", flush=True)

                print(f"computing the {what} once, into {out}", flush=True)
                begin = time.monotonic()
                written, seconds = write(step), time.monotonic() - begin
                speed = (records - written.resumed) / max(seconds, 1e-3)
                print(f"{written}; {seconds:.0f} s, {speed:.1f} images a second", flush=True)
        except InUse as error:
            if not quiet:
                print(error, flush=True)
            quiet = True
            time.sleep(1)


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
