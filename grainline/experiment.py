"""From a recipe to a run: opens data, makes tokenizer and method, trains, and goes on where a run stopped.

The folder of a run is that of `run_folder.py`.
"""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from grainline.begin import Earlier, begin_with, read_earlier_run, say
from grainline.data.dataset import TrainSet, phrase_provider
from grainline.data.descriptions import Told, require_fit
from grainline.data.features import KeptFeatures
from grainline.data.record import Damaged, Source
from grainline.data.sources import open_sources
from grainline.data.sources.texts import without_pictures
from grainline.data.superpixels import StoredSuperpixels
from grainline.data.tokenized import TextTokenizer
from grainline.data.tokenizer import Tokenizer, load_tokenizer, read_tokenizer
from grainline.data.transforms import Crop, EvalTransform, SameTransform, TrainTransform
from grainline.dist import rank, wait
from grainline.errors import UserError
from grainline.methods.base import Method
from grainline.model import load
from grainline.origin import image_fingerprint
from grainline.recipe import Recipe, with_descriptions, write_recipe
from grainline.run_folder import checkpoint_of, flat, is_run, run_folder, stamp, writing
from grainline.start import (
    Description,
    Start,
    is_pretrained,
    method_config,
    picture_settings,
    read_description,
    reads_pretrained_texts,
    start,
    write_description,
)
from grainline.stop import Stopped
from grainline.train.log import NAME as LOG
from grainline.train.loop import Run, train
from grainline.train.process import process_group
from grainline.train.report import NAME as REPORT
from grainline.train.report import Story, write_report
from grainline.validation import Measure, validation
from grainline.viz.page import short


def run(recipe: Recipe, out: Path, *, resume: bool = False, at: str | None = None) -> Path:
    """Train a recipe into a folder and return the folder of the last weights.

    resume  go on from the newest checkpoint of the folder, or from the beginning if it has none yet
    at      name of the checkpoint to go on from instead

    Raises UserError for everything a user can mend; what was there stays. Raises Stopped after SIGINT or
    SIGTERM, with a checkpoint of the last step.
    """
    recipe, descriptions = with_descriptions(recipe)
    if not recipe.data.paths:
        raise UserError("no data to train on; give --data PATH..., or data.paths in the recipe")
    recipe.data.require_workers()
    provider = phrase_provider(recipe.data.texts)  # first of all: a checkpoint may be gigabytes to fetch
    with process_group() as device, run_folder(recipe, out, resume):
        come = checkpoint_of(out, at) if resume else None
        begun = _begun(recipe, out, come)
        earlier = read_earlier_run(recipe.begin) if recipe.begin and come is None else None
        source = open_sources(recipe.data.paths, images=recipe.data.images, size=_size(begun))
        told = source if descriptions is None else Told(source, descriptions)
        tokenizer = _tokenizer(recipe, begun, told, out, earlier)
        if not reads_pretrained_texts(begun.description):
            begun = begun._replace(description=_with_vocabulary(begun.description, tokenizer.vocab))
        torch.manual_seed(recipe.train.seed)
        method, description = begun.method(), begun.description
        _check_pictures(source, method)
        require_fit(description.method, method.describes, descriptions, "data.descriptions")
        if earlier is not None:
            fresh = begin_with(method, earlier)
            if rank() == 0:
                say(fresh, earlier)
        measure = validation(recipe, description, tokenizer, method.size, descriptions)
        if rank() == 0:
            with writing(out):
                write_description(out, description)
                write_recipe(out / "recipe.yaml", recipe)
        data = TrainSet(
            told,
            tokenizer,
            _crop(recipe, source, method, description, come),
            recipe.data.texts,
            context=method.context,
            seed=recipe.train.seed,
            parts=method.parts,
            chunking=method.chunking,
            provider=provider,
        )
        job = Run(
            out,
            method,
            data,
            recipe.train,
            recipe.data.workers,
            recipe.data.damage,
            measure,
        )
        before = stamp(out / LOG)
        try:
            last = train(job, device, come)
        except (UserError, Stopped, KeyboardInterrupt) as error:
            if stamp(out / LOG) != before:  # else nothing was done, and what was done before stays told
                _report(job, recipe, str(error) or "interrupted")
            if isinstance(error, Stopped):
                wait()  # torchrun ends the others when the first one ends
            raise
        _report(job, recipe, "")
        return last


def _check_pictures(source: Source, method: Method) -> None:
    """Captions without pictures are for methods that look at none."""
    bare = without_pictures(source)
    if method.sees and bare:
        raise UserError(
            f"{bare} has captions without pictures, and {type(method).__name__} looks at pictures; name data "
            "that has some, or train tgt with model.contrastive=0"
        )


def _report(job: Run, recipe: Recipe, ended: str) -> None:
    """Leave report.html, on the first process; what keeps it from being written stops nothing."""
    if rank() > 0:
        return
    title = f"Training of {recipe.method} on {', '.join(recipe.data.paths)}"
    story = Story(short(title, 120), flat(recipe.model_dump(mode="json")), len(job.data), ended)
    job.method.eval()  # training leaves it with noise, and without the tokens that heat needs
    try:
        found = None
        if isinstance(job.validate, Measure):
            found = job.validate.last
            if found is None and not ended:  # a run that had ended before; its weights may be in parts here
                found = job.validate.run(load(job.out).method)
        write_report(job.out, story, found)
    except UserError as error:
        print(f"no {REPORT}: {error}", file=sys.stderr)


def _crop(
    recipe: Recipe, source: Source, method: Method, description: Description, come: Path | None
) -> Crop:
    """How training pictures are cut out, and their superpixels or features where they were made before."""
    cfg = recipe.data
    if cfg.crop is not None:
        return TrainTransform(method.size, **cfg.crop.model_dump())
    transform = EvalTransform(method.size, **picture_settings(description))
    config = description.config
    if cfg.features is not None:
        # What goes on from a checkpoint gets its weights when training begins, so they are read here too.
        begun = method if come is None else load(come, device="cpu").method
        encoder = image_fingerprint(config.image, begun.towers.image)
        return KeptFeatures(Path(cfg.features), source, transform, encoder, tokens=config.reads_tokens)
    if cfg.superpixels is None:
        return SameTransform(transform)
    settings = config.image.model_dump(mode="json").get("superpixels")
    if settings is None:
        raise UserError(
            f"data.superpixels is set, but the image encoder of {description.method} reads none: leave it out"
        )
    del settings["checkpoint"]  # where the weights lay says nothing about what they are
    return SameTransform(transform, StoredSuperpixels(Path(cfg.superpixels), source, transform, settings))


def _begun(recipe: Recipe, out: Path, come: Path | None) -> Start:
    """The method and what it begins with. What goes on from a checkpoint of its own needs none of others."""
    description = recipe.description
    if come is not None and is_pretrained(description):
        return Start(read_description(out))
    return start(description)


def _size(begun: Start) -> int:
    """Side of the pictures that the method reads."""
    config = begun.description.config
    assert config.image.size is not None, "filled in where checkpoints are read"
    return config.image.size


def _tokenizer(
    recipe: Recipe, begun: Start, source: Source, out: Path, earlier: Earlier | None
) -> TextTokenizer:
    """The tokenizer of the run folder; made or fetched by the first process, read by the others."""
    if rank() == 0 and not is_run(out):
        asked = recipe.data.tokenizer
        config: Any = begun.description.config
        texts = _captions(source, recipe.data.tokenizer_samples)
        made: TextTokenizer
        if earlier is not None:
            made = earlier.tokenizer
        elif begun.text is not None:
            made = begun.tokenizer(asked)
        else:
            made = load_tokenizer(asked) if asked else Tokenizer.train(texts, config.text.vocab)
        with writing(out):
            made.save(out)
    wait()
    return read_tokenizer(out)


def _captions(source: Source, most: int) -> Iterator[str]:
    """All texts of at most `most` records, evenly spread over the source."""
    count = min(most, len(source))
    for i in range(count):
        try:
            record = source[i * len(source) // count]
        except Damaged:  # counted when training comes to it
            continue
        yield from record.captions
        yield from record.longs
        if record.dense is not None and record.dense not in record.longs:
            yield record.dense


def _with_vocabulary(description: Description, vocab: int) -> Description:
    """The same method with as many word vectors as the tokenizer has entries."""
    values = description.config.model_dump(mode="json")
    values["text"]["vocab"] = vocab
    return description._replace(config=method_config(description.method, values, "recipe field model"))
