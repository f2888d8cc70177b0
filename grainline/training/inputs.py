"""What a run starts from: training set, tokenizer, and the weights of an earlier run (`init_from`)."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch

from grainline.build import Start, image_settings, method_config, reads_pretrained_texts
from grainline.data.cache import CachedFeatures, CachedSuperpixels
from grainline.data.dataset import TrainSet
from grainline.data.descriptions import Descriptions, WithDescriptions, require_fit
from grainline.data.formats.texts_alone import without_images
from grainline.data.open_source import open_sources
from grainline.data.phrases.base import Provider
from grainline.data.record import CorruptSample, Source
from grainline.data.tokenizers.tokenized import TextTokenizer
from grainline.data.tokenizers.tokenizer import Tokenizer, load_tokenizer, read_tokenizer
from grainline.data.transforms import Crop, EvalTransform, SameTransform, TrainTransform
from grainline.distributed import barrier, rank
from grainline.errors import UserError
from grainline.fingerprint import image_fingerprint
from grainline.methods.base import Method
from grainline.model import find_run, load
from grainline.training.folder import is_run, writing
from grainline.training.recipe import DataConfig, Recipe

TOWERS = "towers."  # encoders and projections: the part that an earlier run must provide completely


class SourceRun(NamedTuple):
    """The run that `init_from` names."""

    path: str
    weights: dict[str, torch.Tensor]
    tokenizer: TextTokenizer


def read_source_run(path: str) -> SourceRun:
    """Weights and tokenizer of a run, or of a folder inside one. Raises UserError for anything else."""
    if find_run(Path(path)) is None:
        raise UserError(
            f"init_from is {path}, which is no run of grainline; for other checkpoints use model.pretrained"
        )
    model = load(path, device="cpu")
    return SourceRun(path, model.method.state_dict(), model.tokenizer)


@torch.no_grad()
def copy_weights(method: Method, source_run: SourceRun) -> list[str]:
    """Copy every tensor that both models have; returns the names of the tensors that stay as initialised.

    Raises UserError where the run lacks a tensor of the encoders, or has a tensor of another shape.
    """
    weights, state = source_run.weights, method.state_dict()
    required = [
        name for name in state if name.startswith(TOWERS) and not name.startswith(method.new_parameters)
    ]
    missing = [name for name in required if name not in weights]
    if missing:
        raise UserError(
            f"the run {source_run.path} has no {missing[0]} ({len(missing)} tensors are missing): init_from "
            "needs a run with the same encoders"
        )
    for name, x in state.items():
        if name in weights and weights[name].shape != x.shape:
            raise UserError(
                f"{name} is {tuple(weights[name].shape)} in the run {source_run.path} and {tuple(x.shape)} "
                "here; give the model the sizes that the run has"
            )
    for name, x in state.items():
        if name in weights:
            x.copy_(weights[name])
    return [name for name in state if name not in weights]


def init_weights(method: Method, source_run: SourceRun) -> None:
    """`copy_weights`, and one line on stderr about the tensors that did not come from the run."""
    new = copy_weights(method, source_run)
    if rank() == 0:
        parts = dict.fromkeys(name.partition(".")[0] for name in new)
        what = f"{len(new)} tensors of {', '.join(parts)} are new" if new else "no tensor is new"
        print(f"starts from {source_run.path}; {what}", file=sys.stderr)


def open_data(recipe: Recipe, start_point: Start, descriptions: Descriptions | None) -> tuple[Source, Source]:
    """The training sources of a recipe, and the same with descriptions where it names some."""
    config: Any = start_point.description.config
    assert config.image.size is not None, "filled in when checkpoints are read"
    source = open_sources(recipe.data.paths, images=recipe.data.images, size=config.image.size)
    return source, source if descriptions is None else WithDescriptions(source, descriptions)


def make_tokenizer(
    recipe: Recipe, start_point: Start, source: Source, out: Path, source_run: SourceRun | None
) -> TextTokenizer:
    """The tokenizer of the run folder: trained or fetched by the first process, read by the others."""
    if rank() == 0 and not is_run(out):
        name = recipe.data.tokenizer
        config: Any = start_point.description.config
        tokenizer: TextTokenizer
        if source_run is not None:
            tokenizer = source_run.tokenizer
        elif start_point.text is not None:
            tokenizer = start_point.tokenizer(name)
        elif name:
            tokenizer = load_tokenizer(name)
        else:
            tokenizer = Tokenizer.train(_captions(source, recipe.data.tokenizer_samples), config.text.vocab)
        with writing(out):
            tokenizer.save(out)
    barrier()
    return read_tokenizer(out)


def with_vocabulary(start_point: Start, vocab: int) -> Start:
    """The method with one word embedding per token of its tokenizer; pretrained text encoders stay as is."""
    description = start_point.description
    if reads_pretrained_texts(description):
        return start_point
    values = description.config.model_dump(mode="json")
    values["text"]["vocab"] = vocab
    config = method_config(description.method, values, "recipe field model")
    return start_point._replace(description=description._replace(config=config))


def make_train_set(
    recipe: Recipe,
    source: Source,
    described: Source,
    tokenizer: TextTokenizer,
    method: Method,
    start_point: Start,
    provider: Provider,
    resume_from: Path | None,
) -> TrainSet:
    """The training samples, cropped and tokenized as the method needs them.

    source, described  as `open_data` returns them
    resume_from        the checkpoint that the run resumes from, for features of a frozen encoder
    """
    return TrainSet(
        described,
        tokenizer,
        _crop(recipe.data, source, method, start_point, resume_from),
        recipe.data.texts,
        context=method.context,
        seed=recipe.train.seed,
        parts=method.parts,
        chunking=method.chunking,
        provider=provider,
    )


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


def _crop(
    cfg: DataConfig, source: Source, method: Method, start_point: Start, resume_from: Path | None
) -> Crop:
    """How training images are cropped, with cached superpixels or features where the recipe names them."""
    if cfg.crop is not None:
        return TrainTransform(method.size, **cfg.crop.model_dump())
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
    return SameTransform(transform, CachedSuperpixels(Path(cfg.superpixels), source, transform, settings))


def _captions(source: Source, max_records: int) -> Iterator[str]:
    """All texts of at most `max_records` records, evenly spread over the source."""
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
