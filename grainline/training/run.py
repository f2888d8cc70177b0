"""From a recipe to a run in its folder: data, tokenizer, method, training, resuming.

The folder of a run is that of `run.py`.
"""

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch

from grainline.build import (
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
from grainline.data.cache import KeptFeatures, StoredSuperpixels
from grainline.data.dataset import TrainSet, phrase_provider
from grainline.data.descriptions import Told, require_fit
from grainline.data.formats.texts_alone import without_pictures
from grainline.data.open_source import open_sources
from grainline.data.record import Damaged, Source
from grainline.data.tokenizers.tokenized import TextTokenizer
from grainline.data.tokenizers.tokenizer import Tokenizer, load_tokenizer, read_tokenizer
from grainline.data.transforms import Crop, EvalTransform, SameTransform, TrainTransform
from grainline.distributed import everyones, rank, wait
from grainline.errors import UserError
from grainline.files import LOCK, NoLocks, aside, one_writer, reason, remedy
from grainline.fingerprint import image_fingerprint
from grainline.methods.base import Method
from grainline.model import load
from grainline.report.page import short
from grainline.stop import Stopped
from grainline.training import checkpoint
from grainline.training.log import NAME as LOG
from grainline.training.loop import Run, train
from grainline.training.parallel import process_group
from grainline.training.recipe import Recipe, read_recipe, with_descriptions, write_recipe
from grainline.training.report import NAME as REPORT
from grainline.training.report import Story, write_report
from grainline.training.validation import Measure, validation
from grainline.training.warm_start import Earlier, begin_with, read_earlier_run, say

# The folder of a run: whether it may be begun or gone on with, and what is written into it.
#
# It is complete from its first second: recipe.yaml, model.json and tokenizer.json stand there before the
# first step, checkpoints/ and log.jsonl grow, best/ and last/ hold the weights to use.


MAY_CHANGE = ("data.workers", "data.damage", "train.keep", "train.log", "train.log_every")
"""Recipe fields that do not change what a run computes, so that a resumed run may have others."""

BEGUN = {LOCK, "tokenizer.json", "tokenizer_meta.json", "model.json", "recipe.yaml"}
BEGUN |= {aside(Path(name)).name for name in ("model.json", "recipe.yaml")}
"""What stands in a folder before its log makes it a run; what was killed or stopped there is begun anew."""


@contextmanager
def run_folder(recipe: Recipe, out: Path, resume: bool) -> Iterator[None]:
    """The folder, checked and locked by the first process as long as the block lasts.

    Nothing is written into a folder of anything else. All processes of the run call it, and an error that the
    first one meets is a UserError in each of them.
    """
    with ExitStack() as stack:
        met = ""
        if rank() == 0:
            try:
                _require_place(out, resume)
                _made(out)
                _lock(out, stack)
                _require_place(out, resume)  # it may have become a run before it was locked
                if is_run(out):
                    _require_same(recipe, out, resume)
            except UserError as error:
                met = str(error)
            except (OSError, ValueError) as error:  # ValueError: a path with a null character
                met = f"cannot use {short(str(out), 200)}: {reason(error)}; choose another --out"
        met = everyones(met)[0]
        if met:
            raise UserError(met)
        yield


def _lock(out: Path, stack: ExitStack) -> None:
    try:
        stack.enter_context(one_writer(out, f"run {out}", "wait until it ends, or choose another --out"))
    except NoLocks as error:  # as on some file systems of clusters, where runs have to be possible
        print(f"{error}; nothing keeps another process from training into it", file=sys.stderr)


def _require_place(out: Path, resume: bool) -> None:
    """The folder holds a run, or the beginning of one, or nothing."""
    if is_run(out):
        return
    there = {path.name for path in out.iterdir()} if out.is_dir() else set()
    if resume and "checkpoints" in there:
        lost = " and ".join(name for name in ("recipe.yaml", LOG) if name not in there)
        raise UserError(f"{out} has checkpoints but no {lost}, so it cannot be resumed; put it back")
    if resume and not out.exists():
        raise UserError(f"{out} holds no run to resume; leave out --resume to begin one")
    if not there <= BEGUN or (out.exists() and not out.is_dir()):
        raise UserError(f"{out} is not an empty folder; choose another --out")


def _require_same(recipe: Recipe, out: Path, resume: bool) -> None:
    """The folder holds a run of this very recipe, and --resume was asked for."""
    if not resume:
        raise UserError(f"{out} holds a run already; go on with --resume, or choose another --out")
    differ = sorted(_differences(read_recipe(str(out / "recipe.yaml"), []), recipe))
    if differ:
        raise UserError(
            f"{out} belongs to another recipe; it differs in {', '.join(differ[:4])}; "
            "resume with the same recipe and settings, or choose another --out"
        )


def is_run(out: Path) -> bool:
    """The log is the last to come, when nothing more can be wrong with the settings."""
    return (out / "recipe.yaml").is_file() and (out / LOG).is_file()


def checkpoint_of(out: Path, at: str | None) -> Path | None:
    """What a run goes on from: the checkpoint of that name, else the newest, if there is one."""
    return checkpoint.find(out, at) if at is not None else checkpoint.newest(out)


@contextmanager
def writing(out: Path) -> Iterator[None]:
    """What cannot be written inside is a UserError."""
    try:
        yield
    except OSError as error:
        raise UserError(
            f"cannot write into {out}: {reason(error)}; {remedy(error, 'choose another --out')}"
        ) from None


def stamp(path: Path) -> tuple[int, int] | None:
    """What changes when a file is written to; None where there is none."""
    if not path.is_file():
        return None
    state = path.stat()
    return state.st_size, state.st_mtime_ns


def flat(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Values of nested fields by their names with dots."""
    out: dict[str, Any] = {}
    for name, value in values.items():
        out |= flat(value, f"{prefix}{name}.") if isinstance(value, dict) else {f"{prefix}{name}": value}
    return out


def _made(out: Path) -> None:
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot make the folder {out}: {error.strerror}; choose another --out") from None


def _differences(old: Recipe, new: Recipe) -> Iterator[str]:
    """Names of the fields that two recipes do not share, except those that a resumed run may change."""
    before, after = flat(old.model_dump(mode="json")), flat(new.model_dump(mode="json"))
    for name in before.keys() | after.keys():
        if before.get(name) != after.get(name) and not name.startswith(MAY_CHANGE):
            yield name


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
