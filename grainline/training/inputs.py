"""The beginning of a run: its folder, training data, tokenizer, weights of an earlier run (`init_from`).

recipe.yaml, model.json and tokenizer.json are written before the first step. During training checkpoints/ and
log.jsonl grow; best/ and last/ hold the weights to use.
"""

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from grainline.build import (
    Start,
    changed,
    is_pretrained,
    read_description,
    reads_pretrained_texts,
    start,
    write_description,
)
from grainline.data.descriptions import Descriptions, WithDescriptions, require_fit
from grainline.data.formats.joined import without_images
from grainline.data.open_source import open_sources
from grainline.data.record import CorruptSample, Source
from grainline.data.tokenizers.tokenizer import CONFIG, CONTENT, META, TextTokenizer, Tokenizer
from grainline.data.tokenizers.tokenizer_files import load_tokenizer, read_tokenizer
from grainline.distributed import all_gather_objects, barrier, rank
from grainline.errors import UserError
from grainline.files import LOCK, NoLocks, discard, one_writer, reason, temporary_path, writing
from grainline.loading import load
from grainline.methods.base import Method
from grainline.model import Model
from grainline.training.log import LOG_FILE
from grainline.training.recipe import Recipe, read_recipe, write_recipe

MAY_CHANGE = ("data.workers", "data.max_corrupt", "train.keep_checkpoints", "train.log", "train.log_every")
"""Recipe fields that do not change what a run computes, so a resumed run may change them."""

INITIAL_FILES = {LOCK, CONTENT, META, CONFIG, "model.json", "recipe.yaml"}
INITIAL_FILES |= {temporary_path(Path(name)).name for name in ("model.json", "recipe.yaml")}
"""Files that a folder may hold before its log exists. A run killed that early starts again from scratch."""


@contextmanager
def run_folder(recipe: Recipe, out: Path, resume: bool) -> Iterator[tuple[int, int] | None]:
    """Check the folder of a run and hold its lock for the length of the block; gives its `log_stamp`.

    The first process checks and locks; all processes call it, and an error of the first one is a UserError in
    each of them. A folder that holds anything but a run is never written to. An error before a step is logged
    leaves it as it was before.
    """
    with ExitStack() as stack:
        message = ""
        try:
            if rank() == 0:
                _require_run_or_empty(out, resume)
                new = [folder for folder in (out, *out.parents) if not folder.exists()]
                existing = set() if new else {path.name for path in out.iterdir()}
                out.mkdir(parents=True, exist_ok=True)
                hint = "wait until it ends, or choose another --out"
                try:
                    stack.enter_context(one_writer(out, f"run {out}", hint))
                except NoLocks as error:  # as on some cluster file systems, where training has to work too
                    print(f"{error}; another process could train into it too", file=sys.stderr)
                _require_run_or_empty(out, resume)  # another process may have started a run before the lock
                stack.enter_context(_left_as_it_was(out, existing, new))
                if is_run(out):
                    _require_same(recipe, out, resume)
        except UserError as error:
            message = str(error)
        except (OSError, ValueError) as error:  # ValueError: a path with a null character
            message = f"cannot use the folder {out}: {reason(error)}; choose another --out"
        message = all_gather_objects(message)[0]
        if message:
            raise UserError(message)
        yield log_stamp(out)


@contextmanager
def _left_as_it_was(out: Path, existing: set[str], new: Sequence[Path]) -> Iterator[None]:
    """If the block fails before a step is logged, remove what a run writes until then.

    existing  names that the folder had before, which stay
    new    the folder and its parents that were made for the run, the innermost first; they go if empty
    """
    try:
        yield
    except BaseException:
        with suppress(OSError):
            if not has_steps(out):
                for name in {*INITIAL_FILES, LOG_FILE, "tensorboard", "wandb.id", "wandb"} - existing:
                    discard(out / name)
                for folder in new:
                    folder.rmdir()
        raise


def is_run(out: Path) -> bool:
    """Whether the folder holds a run. The log is written last, once all settings have been checked."""
    return (out / "recipe.yaml").is_file() and (out / LOG_FILE).is_file()


def has_steps(out: Path) -> bool:
    """Whether the folder has a checkpoint, or a log with a step or more: what a failed run must leave."""
    lines = (out / LOG_FILE).read_bytes().splitlines() if (out / LOG_FILE).is_file() else []
    return (out / "checkpoints").exists() or not all(b'"step": 0,' in line for line in lines)


def log_stamp(out: Path) -> tuple[int, int] | None:
    """Size and time of the log, which change when it is written; None without a log."""
    path = out / LOG_FILE
    return (path.stat().st_size, path.stat().st_mtime_ns) if path.is_file() else None


def _require_run_or_empty(out: Path, resume: bool) -> None:
    """UserError unless the folder holds a run, the files at the start of one, or nothing."""
    if is_run(out):
        return
    existing = {path.name for path in out.iterdir()} if out.is_dir() else set()
    if resume and "checkpoints" in existing:
        missing = " and ".join(name for name in ("recipe.yaml", LOG_FILE) if not (out / name).is_file())
        raise UserError(f"{out} has checkpoints but no {missing}, so it cannot be resumed; put it back")
    if resume and not out.exists():
        raise UserError(f"{out} holds no run to resume; leave out --resume to start one")
    if not existing <= INITIAL_FILES or (out.exists() and not out.is_dir()):
        raise UserError(f"{out} is not an empty folder; choose another --out")


def _require_same(recipe: Recipe, out: Path, resume: bool) -> None:
    """UserError unless --resume was given and the folder holds a run of this recipe."""
    if not resume:
        raise UserError(f"{out} holds a run already; continue with --resume (resume=True), or another --out")
    before, now = read_recipe(str(out / "recipe.yaml"), []).settings(), recipe.settings()
    names = sorted(before.keys() | now.keys())
    differ = [x for x in names if before.get(x) != now.get(x) and not x.startswith(MAY_CHANGE)]
    if differ:
        advice = f"resume with the same, or choose another --out (with its weights: --set init_from={out})"
        raise UserError(f"{out} belongs to another recipe; it differs in {', '.join(differ[:4])}; {advice}")


def begin(
    recipe: Recipe, out: Path, resume_from: Path | None, descriptions: Descriptions | None
) -> tuple[Source, Source, Model]:
    """The data of a run, these with descriptions, and the model that training starts from.

    The first process writes recipe.yaml, model.json, and the tokenizer of a new run.
    """
    description, earlier = recipe.description, None
    # A resumed run does not read the pretrained checkpoint again.
    resumed = resume_from is not None and is_pretrained(description)
    start_point = Start(read_description(out)) if resumed else start(description)
    if recipe.init_from and resume_from is None:
        earlier = load(recipe.init_from, device="cpu")
    config: Any = start_point.description.config
    assert config.image.size is not None, "filled in when checkpoints are read"
    source = open_sources(recipe.data.paths, images=recipe.data.images, size=config.image.size)
    described = source if descriptions is None else WithDescriptions(source, descriptions)
    if rank() == 0 and not is_run(out):
        first = new_tokenizer(recipe, start_point, described, earlier)
        with writing(out):
            first.save(out)
    barrier()
    model = first_model(recipe, start_point, read_tokenizer(out), earlier)
    if model.method.uses_images and (without := without_images(source)):
        wrong = f"{without} has captions without images, and {type(model.method).__name__} uses images"
        raise UserError(f"{wrong}; name data that has some, or train tgt with model.contrastive=0")
    require_fit(recipe.method, model.method.reads_descriptions, descriptions, "data.descriptions")
    if resume_from is not None and recipe.data.features:  # caches are of these weights
        model.method.load_state_dict(load(resume_from, device="cpu").method.state_dict())
    if rank() == 0:
        with writing(out):
            write_description(out, model.description)
            write_recipe(out / "recipe.yaml", recipe)
    return source, described, model


def first_model(recipe: Recipe, start_point: Start, tokenizer: TextTokenizer, earlier: Model | None) -> Model:
    """The model of a run before its first step. earlier: the model that `init_from` names"""
    if not reads_pretrained_texts(start_point.description):  # one embedding for each token
        resized = changed(start_point.description, [f"text.vocab={tokenizer.vocab}"], "recipe field model")
        start_point = start_point._replace(description=resized)
    torch.manual_seed(recipe.train.seed)
    model = Model(start_point.description, start_point.method(), tokenizer)
    if earlier is not None:
        copy_weights(model.method, earlier.method.state_dict(), str(recipe.init_from))
    return model


@torch.no_grad()
def copy_weights(method: Method, weights: Mapping[str, Tensor], path: str) -> list[str]:
    """Copy the tensors of an earlier run; returns the names of those that stay as initialised.

    Raises UserError where the run lacks a tensor of the encoders, or has a tensor of another shape.
    """
    state, added = method.state_dict(), method.new_parameters
    # Encoders and projections: the part that an earlier run must provide completely.
    missing = [x for x in state if x.startswith("towers.") and not x.startswith(added) and x not in weights]
    if missing:
        wrong = f"{path} has no {missing[0]} ({len(missing)} tensors are missing)"
        advice = "init_from needs a model with the same encoders, or give model.pretrained"
        raise UserError(f"{wrong}: {advice}")
    common = [name for name in state if name in weights]
    for name in common:
        before, now = tuple(weights[name].shape), tuple(state[name].shape)
        if before != now:
            wrong = f"{name} is {before} in {path} and {now} here"
            raise UserError(f"{wrong}; give the model the sizes that the run has")
    for name in common:
        state[name].copy_(weights[name])
    new = [name for name in state if name not in weights]
    if rank() == 0:
        parts = dict.fromkeys(name.partition(".")[0] for name in new)
        what = f"{len(new)} tensors of {', '.join(parts)} are new" if new else "no tensor is new"
        print(f"starts from {path}; {what}", file=sys.stderr)
    return new


def new_tokenizer(
    recipe: Recipe, start_point: Start, source: Source, source_run: Model | None
) -> TextTokenizer:
    """The tokenizer of the earlier run, the checkpoint or the recipe, or a BPE trained on the captions."""
    name = recipe.data.tokenizer
    if source_run is not None:
        return source_run.tokenizer
    if start_point.text is not None:
        return start_point.tokenizer(name)
    if name:
        return load_tokenizer(name)
    config: Any = start_point.description.config
    return Tokenizer.train(_captions(source, recipe.data.tokenizer_samples), config.text.vocab)


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
