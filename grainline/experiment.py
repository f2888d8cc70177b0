"""From a recipe to a run: opens data, makes tokenizer and method, trains, and goes on where a run stopped.

A run folder is complete from its first second: recipe.yaml, model.json and tokenizer.json stand there before
the first step, checkpoints/ and log.jsonl grow, best/ and last/ hold the weights to use.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from grainline.begin import Earlier, begin_with, read_earlier_run, say
from grainline.config import Config
from grainline.data.dataset import TrainSet
from grainline.data.descriptions import Descriptions, Told, require_fit
from grainline.data.features import KeptFeatures
from grainline.data.record import Damaged, Source
from grainline.data.sources import open_sources, takes_images
from grainline.data.sources.texts import without_pictures
from grainline.data.superpixels import StoredSuperpixels
from grainline.data.tokenized import TextTokenizer
from grainline.data.tokenizer import Tokenizer, load_tokenizer, read_tokenizer
from grainline.data.transforms import Crop, EvalTransform, SameTransform, TrainTransform
from grainline.dist import rank, wait
from grainline.errors import UserError
from grainline.evaluate.encode import encode_source
from grainline.evaluate.examples import Measured
from grainline.evaluate.suite import Options, retrieval_suite
from grainline.files import aside, reason
from grainline.methods.base import Method
from grainline.model import Model, load
from grainline.origin import image_fingerprint
from grainline.recipe import Recipe, read_recipe, with_descriptions, write_recipe
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
from grainline.train import checkpoint
from grainline.train.log import NAME as LOG
from grainline.train.loop import Run, Validation, train
from grainline.train.process import process_group
from grainline.train.report import NAME as REPORT
from grainline.train.report import Story, write_report
from grainline.viz.page import short

MAY_CHANGE = ("data.workers", "data.damage", "train.keep", "train.log", "train.log_every")
"""Recipe fields that do not change what a run computes, so that a resumed run may have others."""

BEGUN = {"tokenizer.json", "tokenizer_meta.json", "model.json", "recipe.yaml"}
BEGUN |= {aside(Path(name)).name for name in ("model.json", "recipe.yaml")}
"""What stands in a folder before its log makes it a run; what was killed or stopped there is begun anew."""


def run(recipe: Recipe, out: Path, *, resume: bool = False, at: str | None = None) -> Path:
    """Train a recipe into a folder and return the folder of the last weights.

    resume  go on from the newest checkpoint of the folder, or from the beginning if it has none yet
    at      name of the checkpoint to go on from instead

    Raises UserError for everything a user can mend; what was there stays.
    """
    recipe, descriptions = with_descriptions(recipe)
    _check_folder(recipe, out, resume)
    with process_group() as device:
        come = _checkpoint(out, at) if resume else None
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
        validation = _validation(recipe, description, tokenizer, method.size, descriptions)
        if rank() == 0:
            with _writing(out):
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
        )
        job = Run(
            out,
            method,
            data,
            recipe.train,
            recipe.data.workers,
            recipe.data.damage,
            validation,
        )
        before = _stamp(out / LOG)
        try:
            last = train(job, device, come)
        except (UserError, KeyboardInterrupt) as error:
            if _stamp(out / LOG) != before:  # else nothing was done, and what was done before stays told
                _report(job, recipe, str(error) or "interrupted")
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
    story = Story(short(title, 120), _flat(recipe.model_dump(mode="json")), len(job.data), ended)
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
    config: Any = description.config
    if cfg.features is not None:
        # What goes on from a checkpoint gets its weights when training begins, so they are read here too.
        begun = method if come is None else load(come, device="cpu").method
        encoder = image_fingerprint(config.image, begun.get_submodule("towers.image"))
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


def _stamp(path: Path) -> tuple[int, int] | None:
    """What changes when a file is written to; None where there is none."""
    if not path.is_file():
        return None
    state = path.stat()
    return state.st_size, state.st_mtime_ns


def _begun(recipe: Recipe, out: Path, come: Path | None) -> Start:
    """The method and what it begins with. What goes on from a checkpoint of its own needs none of others."""
    description = recipe.description
    if come is not None and is_pretrained(description):
        return Start(read_description(out))
    return start(description)


def _size(begun: Start) -> int:
    """Side of the pictures that the method reads."""
    config: Any = begun.description.config
    size: int = config.image.size
    return size


def _check_folder(recipe: Recipe, out: Path, resume: bool) -> None:
    """The folder is new, or it holds this very recipe and --resume was asked for."""
    if not recipe.data.paths:
        raise UserError("no data to train on; give --data PATH..., or data.paths in the recipe")
    if not _is_run(out):
        there = {path.name for path in out.iterdir()} if out.is_dir() else set()
        if resume and "checkpoints" in there:
            lost = " and ".join(name for name in ("recipe.yaml", LOG) if name not in there)
            raise UserError(f"{out} has checkpoints but no {lost}, so it cannot be resumed; put it back")
        if resume and not there & BEGUN:
            raise UserError(f"{out} holds no run to resume; leave out --resume to begin one")
        if not there <= BEGUN or (out.exists() and not out.is_dir()):
            raise UserError(f"{out} is not an empty folder; choose another --out")
        _made(out)
        return
    if not resume:
        raise UserError(f"{out} holds a run already; go on with --resume, or choose another --out")
    differ = sorted(_differences(read_recipe(str(out / "recipe.yaml"), []), recipe))
    if differ:
        raise UserError(
            f"{out} belongs to another recipe; it differs in {', '.join(differ[:4])}; "
            "resume with the same recipe and settings, or choose another --out"
        )


def _is_run(out: Path) -> bool:
    """The log is the last to come, when nothing more can be wrong with the settings."""
    return (out / "recipe.yaml").is_file() and (out / LOG).is_file()


def _made(out: Path) -> None:
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot make the folder {out}: {error.strerror}; choose another --out") from None


@contextmanager
def _writing(out: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UserError(
            f"cannot write into {out}: {reason(error)}; free some space, or choose another --out"
        ) from None


def _differences(old: Recipe, new: Recipe) -> Iterator[str]:
    """Names of the fields that two recipes do not share, except those that a resumed run may change."""
    before, after = _flat(old.model_dump(mode="json")), _flat(new.model_dump(mode="json"))
    for name in before.keys() | after.keys():
        if before.get(name) != after.get(name) and not name.startswith(MAY_CHANGE):
            yield name


def _flat(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    out: dict[str, Any] = {}
    for name, value in values.items():
        out |= _flat(value, f"{prefix}{name}.") if isinstance(value, dict) else {f"{prefix}{name}": value}
    return out


def _tokenizer(
    recipe: Recipe, begun: Start, source: Source, out: Path, earlier: Earlier | None
) -> TextTokenizer:
    """The tokenizer of the run folder; made or fetched by the first process, read by the others."""
    if rank() == 0 and not _is_run(out):
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
        with _writing(out):
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
    config: Config = method_config(description.method, values, "recipe field model")
    return description._replace(config=config)


class Measure:
    """Retrieval on the validation sources."""

    def __init__(
        self,
        description: Description,
        tokenizer: TextTokenizer,
        source: Source,
        damage: float,
        descriptions: Descriptions | None,
    ) -> None:
        """damage  share of the samples that may be damaged"""
        self.description, self.tokenizer, self.source = description, tokenizer, source
        self.damage, self.descriptions = damage, descriptions
        self.last: Measured | None = None

    def __call__(self, method: Method) -> Validation:
        """The sum of recalls first, because it picks the best checkpoint."""
        result = self.run(method).result
        return {metric.name: metric.value for metric in reversed(result.metrics)}, result.notes

    def run(self, method: Method) -> Measured:
        """Measure, and keep what was found."""
        model = Model(self.description, method, self.tokenizer)
        own = self.descriptions is not None and self.descriptions.own  # then no query may be a long caption
        encodings = encode_source(
            model,
            self.source,
            captions="each" if own else "whole",
            descriptions=self.descriptions,
            max_damaged=self.damage,
        )
        result = retrieval_suite(method, encodings, Options(resamples=100))
        self.last = Measured(model, self.source, encodings, result)
        return self.last


def _validation(
    recipe: Recipe,
    description: Description,
    tokenizer: TextTokenizer,
    size: int,
    descriptions: Descriptions | None,
) -> Measure | None:
    """What measures the model while it is trained; None where the recipe names nothing to measure on."""
    if not recipe.data.validation:
        if recipe.train.validate_every:
            raise UserError("train.validate_every is set, but data.validation names no source to measure on")
        return None
    if not recipe.train.validate_every:
        raise UserError(
            "data.validation names a source, but train.validate_every is 0; set it to a number of steps"
        )
    paths = recipe.data.validation
    images = recipe.data.images if any(map(takes_images, paths)) else None  # it may be for training alone
    source = open_sources(paths, images=images, size=size)
    return Measure(description, tokenizer, source, recipe.data.damage, descriptions)


def _checkpoint(out: Path, at: str | None) -> Path | None:
    return checkpoint.find(out, at) if at else checkpoint.newest(out)
