"""At which rank a model finds right images: what its run measured on its validation data, in one sentence.

A run measures itself while it is trained (`data.validation` of its recipe) and writes it to its log. The demo
or a user may write a measurement as retrieval.json into the folder: it names its own data, which need not be
validation data. A checkpoint of others has neither.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from grainline.errors import UserError
from grainline.evaluation.result import from_json
from grainline.files import STATE
from grainline.model import find_run

LOG, RESULT = "log.jsonl", "retrieval.json"
METRIC = "text to image median rank"
SHOWN = 10  # hits that a search shows unless another number is asked for


def validated(path: str) -> str:
    """How well a model did on the validation data of its run; "" where no run says it.

    path  of a run or of weights in it, as `load` takes it

    A run that measured itself several times is quoted at the step of the weights.
    """
    try:
        run = find_run(Path(path))
    except UserError:  # it was moved, or is a name that nothing stands for here
        run = None
    if run is None:
        return ""
    found = _measured(*run)
    return "" if found is None else sentence(*found)


def sentence(rank: float, images: int | None, data: str = "its validation data") -> str:
    """The median rank of the right image among so many (None: unknown) of `data` in words.

    >>> sentence(1.0, 500)
    'On its validation data this model finds the right image at rank 1 of 500 (median).'
    >>> sentence(1.0, 500, "photos.jsonl")
    'On photos.jsonl this model finds the right image at rank 1 of 500 (median).'
    >>> sentence(71.5, None)[:77]
    'On its validation data this model finds the right image at rank 71.5 (median)'
    >>> sentence(71.5, None)[78:]
    ' It is too weak to trust: most right images are not among the first 10.'
    """
    among = "" if images is None else f" of {images:,}"
    weak = f" It is too weak to trust: most right images are not among the first {SHOWN}."
    said = f"On {data} this model finds the right image at rank {rank:,g}{among} (median)."
    return said + weak * (rank > SHOWN)


def _measured(home: Path, weights: Path) -> tuple[float, int | None] | tuple[float, int, str] | None:
    """Median rank, number of images: of the log, else of the result beside it, with the name of its data."""
    lines = [line for line in _validations(home / LOG) if METRIC in line.get("metrics", {})]
    if lines:
        own = [line for line in lines if line["step"] == _step(weights)]
        line = (own or lines)[-1]
        return line["metrics"][METRIC], line.get("images")
    try:
        result = from_json((home / RESULT).read_text(encoding="utf-8"), RESULT)
        return result.metric(METRIC).value, result.data["images"], result.data["path"]
    except (OSError, ValueError, KeyError, UserError):
        return None


def _validations(path: Path) -> Iterator[dict[str, Any]]:
    try:
        lines = path.read_bytes().splitlines()
    except OSError:
        return
    for line in lines:
        if b'"validation"' in line:
            try:
                found = json.loads(line)
            except ValueError:  # the last line of a run that was killed
                continue
            if found.get("kind") == "validation":
                yield found


def _step(weights: Path) -> int | None:
    try:
        step: int = json.loads((weights / STATE).read_bytes())["state"]["step"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return step
