"""The folder of a run: whether training may start or resume in it, its lock, and the files at its start.

recipe.yaml, model.json and tokenizer.json are written before the first step. During training checkpoints/ and
log.jsonl grow; best/ and last/ hold the weights to use.
"""

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from grainline.distributed import all_gather_objects, rank
from grainline.errors import UserError
from grainline.files import LOCK, NoLocks, one_writer, reason, remedy, temporary_path
from grainline.report.page import short
from grainline.training.log import LOG_FILE
from grainline.training.recipe import Recipe, read_recipe

MAY_CHANGE = ("data.workers", "data.max_corrupt", "train.keep_checkpoints", "train.log", "train.log_every")
"""Recipe fields that do not change what a run computes, so a resumed run may change them."""

INITIAL_FILES = {LOCK, "tokenizer.json", "tokenizer_meta.json", "model.json", "recipe.yaml"}
INITIAL_FILES |= {temporary_path(Path(name)).name for name in ("model.json", "recipe.yaml")}
"""Files that a folder may hold before its log exists. A run killed that early starts again from scratch."""


@contextmanager
def run_folder(recipe: Recipe, out: Path, resume: bool) -> Iterator[None]:
    """Check the folder of a run and hold its lock for the length of the block.

    The first process checks and locks; all processes call it, and an error of the first one is a UserError in
    each of them. A folder that holds anything but a run is never written to.
    """
    with ExitStack() as stack:
        message = ""
        if rank() == 0:
            try:
                _require_run_or_empty(out, resume)
                try:
                    out.mkdir(parents=True, exist_ok=True)
                except OSError as error:
                    raise UserError(
                        f"cannot make the folder {out}: {error.strerror}; choose another --out"
                    ) from None
                hint = "wait until it ends, or choose another --out"
                try:
                    stack.enter_context(one_writer(out, f"run {out}", hint))
                except NoLocks as error:  # as on some cluster file systems, where training has to work too
                    print(f"{error}; another process could train into it too", file=sys.stderr)
                _require_run_or_empty(out, resume)  # another process may have started a run before the lock
                if is_run(out):
                    _require_same(recipe, out, resume)
            except UserError as error:
                message = str(error)
            except (OSError, ValueError) as error:  # ValueError: a path with a null character
                message = f"cannot use {short(str(out), 200)}: {reason(error)}; choose another --out"
        message = all_gather_objects(message)[0]
        if message:
            raise UserError(message)
        yield


def is_run(out: Path) -> bool:
    """Whether the folder holds a run. The log is written last, once all settings have been checked."""
    return (out / "recipe.yaml").is_file() and (out / LOG_FILE).is_file()


def log_stamp(out: Path) -> tuple[int, int] | None:
    """Size and time of the log, which change when it is written; None without a log."""
    path = out / LOG_FILE
    return (path.stat().st_size, path.stat().st_mtime_ns) if path.is_file() else None


@contextmanager
def writing(out: Path) -> Iterator[None]:
    """Turn an OSError inside the block into a UserError that names the folder."""
    try:
        yield
    except OSError as error:
        raise UserError(
            f"cannot write into {out}: {reason(error)}; {remedy(error, 'choose another --out')}"
        ) from None


def flatten(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested fields as one mapping from dotted names to values."""
    out: dict[str, Any] = {}
    for name, value in values.items():
        out |= flatten(value, f"{prefix}{name}.") if isinstance(value, dict) else {f"{prefix}{name}": value}
    return out


def _require_run_or_empty(out: Path, resume: bool) -> None:
    """UserError unless the folder holds a run, the files at the start of one, or nothing."""
    if is_run(out):
        return
    there = {path.name for path in out.iterdir()} if out.is_dir() else set()
    if resume and "checkpoints" in there:
        missing = " and ".join(name for name in ("recipe.yaml", LOG_FILE) if name not in there)
        raise UserError(f"{out} has checkpoints but no {missing}, so it cannot be resumed; put it back")
    if resume and not out.exists():
        raise UserError(f"{out} holds no run to resume; leave out --resume to start one")
    if not there <= INITIAL_FILES or (out.exists() and not out.is_dir()):
        raise UserError(f"{out} is not an empty folder; choose another --out")


def _require_same(recipe: Recipe, out: Path, resume: bool) -> None:
    """UserError unless --resume was given and the folder holds a run of this recipe."""
    if not resume:
        raise UserError(f"{out} holds a run already; continue with --resume, or choose another --out")
    before, now = (
        flatten(x.model_dump(mode="json")) for x in (read_recipe(str(out / "recipe.yaml"), []), recipe)
    )
    names = sorted(before.keys() | now.keys())
    differ = [x for x in names if before.get(x) != now.get(x) and not x.startswith(MAY_CHANGE)]
    if differ:
        raise UserError(
            f"{out} belongs to another recipe; it differs in {', '.join(differ[:4])}; "
            "resume with the same recipe and settings, or choose another --out"
        )
