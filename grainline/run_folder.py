"""The folder of a run: whether it may be begun or gone on with, and what is written into it.

It is complete from its first second: recipe.yaml, model.json and tokenizer.json stand there before the first
step, checkpoints/ and log.jsonl grow, best/ and last/ hold the weights to use.
"""

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from grainline.dist import everyones, rank
from grainline.errors import UserError
from grainline.files import aside, reason, remedy
from grainline.lock import LOCK, NoLocks, one_writer
from grainline.recipe import Recipe, read_recipe
from grainline.train import checkpoint
from grainline.train.log import NAME as LOG
from grainline.viz.page import short

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
