"""`grainline.train`: from a recipe to a run in its folder.

It opens the data, makes or reads the tokenizer, builds the method, trains or resumes, and writes report.html.
"""

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from grainline.data.dataset import TrainSet, phrase_provider
from grainline.data.formats.joined import remarks
from grainline.data.open_source import register
from grainline.distributed import barrier, rank
from grainline.errors import UserError, amount, checked, path_of
from grainline.stop import Stopped
from grainline.training import checkpoint as checkpoints
from grainline.training.cached import make_crop
from grainline.training.inputs import begin, has_steps, log_stamp, run_folder
from grainline.training.loop import Run, train_loop
from grainline.training.parallel import process_group, spare_core
from grainline.training.recipe import Recipe, field_of, open_recipe, with_descriptions
from grainline.training.report import REPORT_FILE, Validator, write_report
from grainline.training.text_cache import cached_texts


@checked(recipe="data go by data=")
def train(  # noqa: PLR0913 - keywords that users give by name
    recipe: Recipe | str | Path,
    out: str | Path | None = None,
    *,
    data: Any = None,
    validation: Any = None,
    images: str | None = None,
    changes: Sequence[str] | Mapping[str, Any] = (),
    resume: bool = False,
    checkpoint: str | None = None,
    callbacks: Any = (),
    **settings: Any,
) -> Path:
    """Train a recipe into the folder `out` and return the folder of the last weights, OUT/last.

        grainline.train("clip/finetune", out="runs/tuned", data=pairs, global_batch_size=64, lr=1e-5)

    recipe      a recipe of the package by its name (`clip/scenes`), a YAML file, a `Recipe`, or a folder of
                a run: train("runs/x", resume=True) continues it
    out         folder of the run; None: that of `recipe`
    data        what to train on, in place of the recipe's `data.paths`: a path or several (docs/data.md), a
                list of (image, captions), a data set of PyTorch or of Hugging Face
    validation  the same, to validate on, in place of the recipe's `data.validation`
    images      folder of the images, for files that name them by path
    changes     other fields of the recipe by path: {"model.text.context": 128}, or as `--set` takes them
    resume      continue from the newest checkpoint in `out`, or from step 0 if there is none
    checkpoint  with `resume`: the checkpoint to continue from, such as step-00000200
    callbacks   one or several objects of `grainline.Callback`, or functions that are called after every step
                with its `TrainingState`; each may raise or return `grainline.StopTraining`
    settings    fields of the recipe under `train` and `data` by their name (max_steps, global_batch_size,
                precision, seed, workers, tokenizer, ...), and lr, weight_decay, pretrained, init_from

    Under torchrun every process calls it. Raises UserError for a wrong recipe, wrong data or a folder that
    holds something else; before a step is logged the folder then stays as it was, or is not there. Raises
    Stopped after SIGINT or SIGTERM, once a checkpoint of the last step is saved.
    """
    changes = _as_changes(changes, settings, data=data, validation=validation, images=images)
    if out is None and (isinstance(recipe, Recipe) or not Path(recipe).is_dir()):
        raise UserError("no folder for the run; give out=..., or a run with resume=True")
    out = path_of(str(recipe) if out is None else out, "the folder of the run")
    if out.suffix in (".csv", ".tsv", ".jsonl", ".parquet"):
        raise UserError(f"out is {out}, and should be the folder of the run; data go by data={str(out)!r}")
    if isinstance(recipe, Recipe) and changes:
        raise UserError("data, validation, images and changes go with the name or file of a recipe")
    if checkpoint is not None and not resume:
        raise UserError("a checkpoint to continue from needs --resume (resume=True) too")
    several = callbacks if isinstance(callbacks, Iterable) else (callbacks,)
    with open_recipe(recipe if isinstance(recipe, Recipe) else str(recipe), changes) as opened:
        return _run(opened, out, resume, checkpoint, tuple(several))


def _as_changes(
    changes: Sequence[str] | Mapping[str, Any], settings: Mapping[str, Any], **sources: Any
) -> list[str]:
    """The arguments of `grainline.train` as changes of recipe fields.

    changes   of fields by path, or as `--set` takes them
    settings  by the names of `field_of`
    sources   data and validation, registered where they are no paths, and images; None leaves out
    """
    fields = {
        {"data": "data.paths"}.get(name, f"data.{name}"): value if name == "images" else register(value)
        for name, value in sources.items()
        if value is not None
    }
    fields |= {field_of(name): value for name, value in settings.items()}
    if isinstance(changes, Mapping):
        fields, changes = {**changes, **fields}, ()
    return [*changes, *(f"{name}={json.dumps(value, default=str)}" for name, value in fields.items())]


def _run(recipe: Recipe, out: Path, resume: bool, checkpoint: str | None, callbacks: tuple[Any, ...]) -> Path:
    if not recipe.data.paths:
        advice = "give --data PATH... (data=PATH in Python), or data.paths in the recipe"
        raise UserError(f"no data to train on; {advice}")
    data, descriptions = with_descriptions(recipe.data)
    recipe = recipe.model_copy(update={"data": data})
    data.require_workers()
    settings_notes = recipe.remarks()
    provider = phrase_provider(recipe.data.texts)  # first, because a checkpoint may be gigabytes to download
    with process_group() as device, spare_core(device), run_folder(recipe, out, resume) as before:
        resume_from = None
        if resume:
            resume_from = checkpoints.latest(out) if checkpoint is None else checkpoints.find(out, checkpoint)
        source, described, model = begin(recipe, out, resume_from, descriptions)
        method = model.method
        validator = None
        if recipe.data.validation:
            validator = Validator(recipe, model, descriptions, store=rank() == 0)
        crop = make_crop(recipe.data, source, model, device)
        train_set = TrainSet(
            described, model.tokenizer, crop, recipe.data.texts, context=method.context,
            seed=recipe.train.seed, parts=method.parts, chunking=method.chunking, provider=provider,
        )  # fmt: skip
        notes = *remarks(described), *settings_notes, *_announce(train_set, method, device)
        texts = cached_texts(recipe, described, model, device)
        paths = *recipe.data.paths, *recipe.data.validation
        job = Run(
            out, method, train_set, recipe.train, recipe.data.workers, recipe.data.max_corrupt, validator,
            notes, texts, callbacks, from_files=not any(path.startswith("python:") for path in paths),
        )  # fmt: skip
        try:
            last = train_loop(job, device, resume_from)
        except (UserError, Stopped, KeyboardInterrupt) as error:
            if log_stamp(out) != before and has_steps(out):  # else the report of earlier steps stays
                _report(job, recipe, validator, str(error) or "interrupted")
            if isinstance(error, Stopped):
                barrier()  # torchrun ends the others when the first one ends
            raise
        _report(job, recipe, validator, "")
        return last


def _announce(data: TrainSet, method: torch.nn.Module, device: torch.device) -> list[str]:
    """Print what a run trains on; returns remarks on texts, from a sample of the records."""
    records, captions, joined, texts, cut = data.sampled()
    number = f"{'about ' * (records < len(data))}{captions * len(data) // max(records, 1):,}"
    where = torch.cuda.get_device_name(device) if device.type == "cuda" else "the CPU"
    if rank() == 0:
        print(
            f"training on {where}: {amount(len(data), 'image')}, {number}"
            f" captions, {sum(one.numel() for one in method.parameters()) / 1e6:.3g} M parameters,"
            f" a tokenizer of {data.tokenizer.vocab:,} tokens",
            flush=True,
        )
    one = "data.texts.captions=random takes one a time"
    together = f"several captions of an image are joined to one text; {one}"
    reads = f"{data.context} tokens" + f" a part, or behind {data.parts} parts" * (data.parts > 1)
    longer = f"set model.text.context={2 * data.context} or more"
    recipes = "take a recipe for long captions (himo/finetune, beta_clip/finetune)"
    remark = f"{cut} of {texts} texts are cut at {reads}: {longer}, or {recipes}"
    return [together] * (joined > 0) + [remark] * (cut > 0)


def _report(job: Run, recipe: Recipe, validator: Validator | None, ended: str) -> None:
    """Write report.html on the first process; where that fails, the run is complete without it."""
    if rank() > 0:
        return
    job.method.eval()  # training mode has noise, and may drop the tokens that heat maps need
    try:
        write_report(job.out, recipe, len(job.data), ended, validator)
    except UserError as error:
        print(f"no {REPORT_FILE}: {error}", file=sys.stderr)
