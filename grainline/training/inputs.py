"""What a run starts from: training data, tokenizer, and the weights of an earlier run (`init_from`)."""

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from grainline.build import Start, image_settings, method_config, reads_pretrained_texts
from grainline.data.cache import CachedFeatures, CachedSuperpixels
from grainline.data.descriptions import Descriptions, WithDescriptions, require_fit
from grainline.data.formats.table import without_images
from grainline.data.open_source import open_sources
from grainline.data.record import CorruptSample, Source
from grainline.data.tokenizers.tokenized import TextTokenizer
from grainline.data.tokenizers.tokenizer import Tokenizer, load_tokenizer
from grainline.data.transforms import Crop, EvalTransform, SameTransform, TrainTransform
from grainline.distributed import rank
from grainline.errors import UserError
from grainline.fingerprint import image_fingerprint
from grainline.methods.base import Method
from grainline.model import Model, find_run, load
from grainline.training.recipe import DataConfig, Recipe

TOWERS = "towers."  # encoders and projections: the part that an earlier run must provide completely


def read_source_run(path: str) -> Model:
    """The model of a run, or of a folder inside one. Raises UserError for anything else."""
    if find_run(Path(path)) is None:
        raise UserError(
            f"init_from is {path}, which is no run of grainline; for other checkpoints use model.pretrained"
        )
    return load(path, device="cpu")


@torch.no_grad()
def copy_weights(method: Method, weights: Mapping[str, Tensor], path: str) -> list[str]:
    """Copy the tensors of an earlier run; returns the names of those that stay as initialised.

    Raises UserError where the run lacks a tensor of the encoders, or has a tensor of another shape.
    """
    state, added = method.state_dict(), method.new_parameters
    missing = [x for x in state if x.startswith(TOWERS) and not x.startswith(added) and x not in weights]
    if missing:
        raise UserError(
            f"the run {path} has no {missing[0]} ({len(missing)} tensors are missing): init_from needs a run "
            "with the same encoders"
        )
    common = [name for name in state if name in weights]
    for name in common:
        if weights[name].shape != state[name].shape:
            raise UserError(
                f"{name} is {tuple(weights[name].shape)} in the run {path} and {tuple(state[name].shape)} "
                "here; give the model the sizes that the run has"
            )
    for name in common:
        state[name].copy_(weights[name])
    return [name for name in state if name not in weights]


def init_weights(method: Method, source_run: Model, path: str) -> None:
    """`copy_weights`, and one line on stderr about the tensors that did not come from the run."""
    new = copy_weights(method, source_run.method.state_dict(), path)
    if rank() == 0:
        parts = dict.fromkeys(name.partition(".")[0] for name in new)
        what = f"{len(new)} tensors of {', '.join(parts)} are new" if new else "no tensor is new"
        print(f"starts from {path}; {what}", file=sys.stderr)


def open_data(recipe: Recipe, start_point: Start, descriptions: Descriptions | None) -> tuple[Source, Source]:
    """The training sources of a recipe, and the same with descriptions where it names some."""
    config: Any = start_point.description.config
    assert config.image.size is not None, "filled in when checkpoints are read"
    source = open_sources(recipe.data.paths, images=recipe.data.images, size=config.image.size)
    return source, source if descriptions is None else WithDescriptions(source, descriptions)


def new_tokenizer(
    recipe: Recipe, start_point: Start, source: Source, source_run: Model | None
) -> TextTokenizer:
    """That of the earlier run, of the checkpoint or of the recipe, or a BPE trained on the captions."""
    name = recipe.data.tokenizer
    if source_run is not None:
        return source_run.tokenizer
    if start_point.text is not None:
        return start_point.tokenizer(name)
    if name:
        return load_tokenizer(name)
    config: Any = start_point.description.config
    return Tokenizer.train(_captions(source, recipe.data.tokenizer_samples), config.text.vocab)


def with_vocabulary(start_point: Start, vocab: int) -> Start:
    """The method with one word embedding per token of its tokenizer; pretrained text encoders stay as is."""
    description = start_point.description
    if reads_pretrained_texts(description):
        return start_point
    values = description.config.model_dump(mode="json")
    values["text"]["vocab"] = vocab
    config = method_config(description.method, values, "recipe field model")
    return start_point._replace(description=description._replace(config=config))


def require_data_fits(source: Source, descriptions: Descriptions | None, method: Method, name: str) -> None:
    """UserError where the method uses images and the data have none, and likewise for descriptions.

    name  the name of the method, for the message
    """
    without = without_images(source)
    if method.uses_images and without:
        raise UserError(
            f"{without} has captions without images, and {type(method).__name__} uses images; name data "
            "that has some, or train tgt with model.contrastive=0"
        )
    require_fit(name, method.reads_descriptions, descriptions, "data.descriptions")


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
        trained = method if resume_from is None else load(resume_from, device="cpu", trust_code=True).method
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


def _captions(source: Source, max_records: int) -> Iterator[str]:
    """All texts of at most `max_records` records at even distances in the source."""
    count = min(max_records, len(source))
    for i in range(count):
        try:
            record = source[i * len(source) // count]
        except CorruptSample:  # training counts it
            continue
        yield from record.captions
        yield from record.longs
        if record.dense is not None and record.dense not in record.longs:
            yield record.dense
